/// \file
/// The three readers of import.h: flat keys to our schema.
#pragma once

#include "foresail/planner/layout.h"
#include "foresail/scenarios/import.h"
#include "import_keys.h"

namespace foresail::scenarios {

/// What every reader fills in. Sections of the scenario; `dp` is derived from the number of GPUs.
struct JobParts {
  Document model = Document::object(), layout = Document::object(), training = Document::object(),
           stack = Document::object();
  std::int64_t dp = 0;           ///< 0: GPUs / (tp cp pp)
  std::int64_t local_batch = 0;  ///< samples per replica and step, where no global batch is given
  int gpus = 0;                  ///< 0: not said
  std::vector<std::string> notes;
};

JobParts read_megatron(ForeignKeys& keys, const ImportOptions& options);
JobParts read_torchtitan(ForeignKeys& keys);
JobParts read_nemo(ForeignKeys& keys, const ImportOptions& options);

/// Which messages of data parallelism overlap, and which of these an interleaved pipeline aligns;
/// nothing where every pass has its own (ZeRO-3).
void put_data_overlap(JobParts& parts, planner::DataMessages hidden, planner::DataMessages aligned);

/// The vocabulary of --vocab, or of `key`; else a complaint that says how to give it.
std::int64_t vocabulary(ForeignKeys& keys, const std::string& key, const ImportOptions& options);
/// `layers` kept per checkpoint ("uniform") or recomputed per chunk ("block") as our `recompute`.
Document full_recomputation(ForeignKeys& keys, const std::string& method_key,
                            const std::string& layers_key);

}  // namespace foresail::scenarios
