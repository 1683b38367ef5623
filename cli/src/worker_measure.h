/// \file
/// Collects what the ranks measured, and writes a run's files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "foresail/runtime/job.h"
#include "foresail/runtime/measurement.h"
#include "foresail/runtime/store.h"
#include "worker_environment.h"
#include "worker_metrics.h"

namespace foresail::cli {

/// Which ranks' spans go into the Trace.
struct TraceRanks {
  enum class Kind { All, StageClass, List };
  Kind kind = Kind::StageClass;
  std::vector<int> list;  ///< List only
};
/// "all", "class" or "0,3,5". Throws Error{InvalidInput}.
TraceRanks parse_trace_ranks(const std::string& text);

/// Every rank calls it; rank 0 gets the measurements of all ranks, spans only of those chosen. For
/// StageClass: the first rank of each stage, and the rank that computed longest.
std::vector<runtime::RankMeasurement> gather(const RankEnvironment& environment,
                                             const TraceRanks& chosen, const runtime::Job& job,
                                             runtime::RankMeasurement mine, runtime::Store& store);

/// Every rank calls it; rank 0 gets what all ranks said.
std::vector<Document> gather_starts(const RankEnvironment& environment, const Document& mine,
                                    runtime::Store& store);

/// What a run's files are made from.
struct RunRecord {
  const runtime::Job* job = nullptr;
  const StepMeter* meter = nullptr;
  std::vector<runtime::RankMeasurement> ranks;
  Document start;  ///< seconds by phase
};
/// Writes trace.json, metrics.jsonl and run.json into `folder`.
void write_run(const std::filesystem::path& folder, const RunRecord& record);

}  // namespace foresail::cli
