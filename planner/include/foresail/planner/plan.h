/// \file
/// The Plan: one choice, searched, simulated and executed. Self-contained in one YAML file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/yaml.h"
#include "foresail/models/model.h"
#include "foresail/models/stack.h"
#include "foresail/planner/layout.h"
#include "foresail/program/placement.h"
#include "foresail/program/program.h"
#include "foresail/program/training.h"
#include "foresail/topologies/cluster.h"
#include "foresail/topologies/network_options.h"

namespace foresail::planner {

inline constexpr double kMessageCostMin = 0.05;

struct Plan {
  models::Model model;
  topologies::Cluster::Options cluster;
  Layout layout;
  models::Stack stack;
  program::Placement placement;
  program::Training training;
  topologies::NetworkOptions network;
  /// Predicted time of one message relative to one chunk's forward: messages are put in the order
  /// of a schedule simulated with this cost (at least 0.05). Part of the Plan, so that simulator
  /// and workers lower it to the same Program.
  double message_cost = kMessageCostMin;
  std::uint64_t seed = 1;

  /// SHA-256 of the canonical form: sorted keys, SI integers, the digest left out.
  std::string digest() const;
};

/// Devices that the layout must fill: all of the cluster's, or, with a placement on a part of it,
/// as many as the layout has ranks (if the cluster has so many).
int job_devices(const Plan& plan);
/// How many nodes they stand in.
int job_nodes(const Plan& plan);

/// Keys of design section 7's `training` plus gradient_dtype, learning_rate and clip. Required:
/// global_batch_size and sequence_length.
program::Training read_training(const Yaml& node);
Document to_document(const program::Training& training);

Document to_document(const Plan& plan);  ///< with `foresail_plan: 1` and the digest
/// Reads a Plan file and refuses one whose digest does not equal the recomputed one:
/// "plan.yaml: digest 12ab... does not match the contents (34cd...): the plan was edited".
Plan load_plan(const std::filesystem::path& path);
void save_plan(const Plan& plan, const std::filesystem::path& path);

/// Memory of one stage class by category, point estimates (facts: Megatron's estimator, states
/// exact, activations from the saved tensors of each pass times the passes in flight).
program::MemoryNeed memory_need(const Plan& plan, int stage);

/// The outcome of checking a Plan: an answer, never an exception.
struct Feasibility {
  std::vector<BrokenLaw> broken;            ///< laws; if any, memory is not computed
  std::vector<program::MemoryNeed> memory;  ///< by stage
  Bytes memory_limit;
  /// "stage 0 needs 91.2 GiB of 80 GiB: parameters 5.2 GiB, ..."; empty if it fits.
  std::string out_of_memory;
  bool is_feasible() const { return broken.empty() && out_of_memory.empty(); }
};
Feasibility check(const Plan& plan);

/// Plan -> Program (facts: sections 1 to 6). Requires a plan without broken laws. The result passes
/// program::verify except possibly its memory rule.
///
/// With pp = 1 the local chunks are gradient buckets: one if overlap.dp is off, else groups of
/// consecutive layers of at least max(40 M, 1 M * dp * cp) parameters, closed from the last layer
/// on, so that only the first may be smaller (ZeRO-3: one layer each, with overlap or without);
/// passes run through them in order, so that gradients leave while earlier layers are still in
/// backward. Without anyone to reduce with (dp * cp = 1) there is one.
program::Program lower(const Plan& plan);

/// First and one-past-last layer of a chunk (its global stage: Layout::stage_map), and what else
/// it holds.
struct StagePart {
  int first_layer = 0, end_layer = 0;
  bool has_embedding = false;  ///< word (and position) embedding in front
  bool has_head = false;       ///< final norm, output layer and loss behind
};
StagePart stage_part(const Plan& plan, int stage, int chunk);
/// Local chunks of the Program: layout.v, or the number of buckets when pp = 1.
int chunk_count(const Plan& plan);

}  // namespace foresail::planner
