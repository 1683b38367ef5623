/// \file
/// How the model is split, and the one validator of that choice.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/names.h"
#include "foresail/base/yaml.h"
#include "foresail/models/model.h"
#include "foresail/models/operators.h"
#include "foresail/planner/recomputation.h"
#include "foresail/planner/schedule_order.h"
#include "foresail/planner/stage_layers.h"
#include "foresail/program/axes.h"
#include "foresail/program/training.h"

namespace foresail::planner {

/// Schedules that this version lowers.
enum class ScheduleKind {
  Gpipe,
  OneForwardOneBackward,
  Interleaved,
  ZbH1,
  ZbH2,
  ZbV,
  DualPipe,
  File
};

/// Messages of data parallelism that a switch is about. In documents `true` (both), `false`
/// (neither), `gradients` or `parameters`.
struct DataMessages {
  bool gradients = false;   ///< reductions
  bool parameters = false;  ///< gathers
  constexpr DataMessages(bool both = false) : gradients(both), parameters(both) {}
  constexpr DataMessages(bool reductions, bool gathers)
      : gradients(reductions), parameters(gathers) {}
  constexpr bool any() const { return gradients || parameters; }
  friend bool operator==(const DataMessages&, const DataMessages&) = default;
};

std::string_view to_text(DataMessages messages);
Document to_document(DataMessages messages);

struct Overlap {
  bool tp = false;       ///< tensor-parallel collectives pipelined with their GEMMs
  bool pp = false;       ///< sends and receives decoupled from compute
  DataMessages dp = {};  ///< gradients per chunk during backward, parameters prefetched
  bool ep = false;       ///< shared experts beside the exchange of the routed ones' tokens
  /// Which of those of dp all stages of an interleaved pipeline launch at one moment
  /// (Megatron-LM's align_grad_reduce and align_param_gather).
  DataMessages aligned = {};
  friend bool operator==(const Overlap&, const Overlap&) = default;
};

struct Layout {
  int tp = 1, cp = 1, ep = 1, dp = 1, pp = 1;
  int etp = 0;  ///< tensor parallelism of experts; 0: tp
  models::ContextParallel cp_kind = models::ContextParallel::AllGather;
  int v = 1;           ///< virtual stages (chunks) per rank
  StageLayers stages;  ///< how many layers each global stage has
  int group_size = 0;  ///< microbatches per interleaving group (G); 0: pp
  ScheduleKind schedule = ScheduleKind::OneForwardOneBackward;
  WrittenSchedule written;  ///< its orders if schedule is File
  std::int64_t microbatch_size = 1;
  bool sequence_parallel = false;
  int zero_stage = 0;
  /// Ranks that share one copy of what zero_stage shards: consecutive ones of the dp * cp that
  /// reduce gradients together; the other groups of as many hold copies. 0: all of them.
  int shard_size = 0;
  /// Share of the optimizer states that stays in host memory and is stepped there, 0 to 1
  /// (Megatron-LM's --optimizer-cpu-offload and --optimizer-offload-fraction, ZeRO-Offload).
  double optimizer_offload = 0;
  Recomputation recompute;
  std::array<program::Axis, program::kAxisCount> rank_order{program::Axis::Tp, program::Axis::Cp,
                                                            program::Axis::Ep, program::Axis::Dp,
                                                            program::Axis::Pp};
  Overlap overlap;

  int world_size() const { return tp * cp * dp * pp; }
  int expert_tp() const { return etp == 0 ? tp : etp; }
  /// Ranks that hold copies of the same experts: etp * ep * edp = tp * cp * dp (parallel folding:
  /// Liu et al. 2025, "MoE Parallel Folding"; Megatron-Core).
  int expert_dp() const { return tp * cp * dp / (expert_tp() * ep); }
  int shard_ranks() const { return shard_size == 0 ? dp * cp : shard_size; }
  /// Whether several groups shard, each a copy of the states (HSDP).
  bool has_copies_of_shards() const { return shard_ranks() < dp * cp; }
  /// Which part of the model each chunk is (a ring without a pipeline).
  program::StageMap stage_map() const;
  program::GlobalStages global_stages() const;  ///< requires a layout that keeps the laws
  /// Whether some backward passes may come in two halves.
  bool has_split_backward() const;
  program::RankGrid grid() const;
  /// The same ranks as experts see them: (etp, 1, ep, edp, pp), in the same order.
  program::RankGrid expert_grid() const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// Keys of design section 7 plus `group_size`; absent degrees are 1, `schedule` defaults to 1f1b
/// (interleaved if v > 1). An absent v is 2 for zb_v and dualpipe, and what a written schedule
/// has. etp, cp_kind, overlap.ep and overlap.aligned stand in the document only if they are not
/// the default.
Layout read_layout(const Yaml& node);
/// true, false, gradients or parameters.
DataMessages read_data_messages(const Yaml& node);
/// shard_size, optimizer_offload and stages only if they are not 0 and even.
Document to_document(const Layout& layout);

/// A broken law: `name` is stable ("heads_by_tp"), `message` has every term:
/// "heads 96 % tp 7 = 5, must be 0".
struct BrokenLaw {
  std::string name;
  std::string message;
};

/// All broken laws (facts: Megatron-LM's constraints), one message per law; empty if legal.
/// `devices` is the size of the cluster.
std::vector<BrokenLaw> check_laws(const models::Model& model, const Layout& layout,
                                  const program::Training& training, int devices);

}  // namespace foresail::planner

namespace foresail {
template <>
inline constexpr auto kNames<planner::ScheduleKind> = std::to_array<Named<planner::ScheduleKind>>(
    {{planner::ScheduleKind::Gpipe, "gpipe"},
     {planner::ScheduleKind::OneForwardOneBackward, "1f1b"},
     {planner::ScheduleKind::Interleaved, "interleaved"},
     {planner::ScheduleKind::ZbH1, "zb_h1"},
     {planner::ScheduleKind::ZbH2, "zb_h2"},
     {planner::ScheduleKind::ZbV, "zb_v"},
     {planner::ScheduleKind::DualPipe, "dualpipe"},
     {planner::ScheduleKind::File, "file"}});
}  // namespace foresail
