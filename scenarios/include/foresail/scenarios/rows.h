/// \file
/// Published training steps as rows: read from YAML or CSV, and turned into Plans from their own
/// columns alone. What a row does not say is assumed, and every assumption is listed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "foresail/planner/plan.h"

namespace foresail::scenarios {

/// The columns of one published step that a prediction may use.
struct Row {
  std::string id;
  std::string source;     ///< key of the publication, or the CSV file's stem
  std::string framework;  ///< empty if not printed
  double published_s = 0;

  std::string model_name;
  std::optional<std::int64_t> layers, hidden, heads, kv_heads, ffn, vocab;
  bool is_gated = false;

  std::string gpu, nics, fabric;  ///< as printed
  std::int64_t gpus = 0;
  std::int64_t gpus_per_node = 8;

  std::int64_t tp = 1, cp = 1, ep = 1, dp = 0, pp = 1;
  std::optional<std::int64_t> v, zero_stage;
  std::optional<bool> sequence_parallel;

  std::int64_t global_batch = 0, sequence = 0;
  std::optional<std::int64_t> microbatch;
  std::optional<std::string> precision, recompute;
  std::vector<std::string> unused;   ///< columns that no prediction uses
  std::vector<std::string> remarks;  ///< on how the row was read
};

/// A row that cannot be predicted, and why ("has no par columns").
struct SkippedRow {
  std::string id;
  std::string reason;
};

struct RowFile {
  std::vector<Row> rows;
  std::vector<SkippedRow> skipped;
};

/// Reads `records` and `other` of a YAML file (docs/reference/rows.md), or a CSV file by its header
/// names. Throws Error{InvalidInput} with file and line for what is malformed.
RowFile read_rows(const std::filesystem::path& path);

/// A named software stack (scenarios/catalogue/stacks.yaml).
struct StackDescription {
  std::string name;
  std::vector<std::string> match;  ///< words of "<source> <framework>", lower case
  models::Stack stack;
  bool interleaving = true;  ///< the pipeline can run with v > 1
  bool sequence_parallel = false;
  int zero_stage = 0;
  models::Recompute recompute = models::Recompute::None;
  planner::Overlap overlap;
  DType gradient_dtype = DType::Fp32;
  program::Optimizer optimizer = program::Optimizer::Adam;
  std::optional<models::Block> block;
  std::optional<std::int64_t> window;  ///< sliding window
};
std::vector<StackDescription> load_stacks();

struct RowPlan {
  planner::Plan plan;
  std::string stack;                 ///< name of the description that was used
  std::vector<std::string> assumed;  ///< "microbatch_size 1 (fastest that fits)", "window 1024" ...
};

/// The Plan of a row, or the reason why there is none. Missing microbatch size and v: the fastest
/// legal choice by `analytic` prediction among sizes that fit the device's memory.
struct RowPlanResult {
  std::optional<RowPlan> made;
  std::string reason;
};
RowPlanResult plan_row(const Row& row, const std::vector<StackDescription>& stacks);

}  // namespace foresail::scenarios
