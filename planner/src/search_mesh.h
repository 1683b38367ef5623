/// \file
/// Prices of one mesh: a layout's degrees and rank order on a placement.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "foresail/planner/plan.h"
#include "foresail/program/cost_model.h"
#include "memory.h"
#include "search_pass_time.h"
#include "stage_work.h"

namespace foresail::planner {

/// Least seconds of what the ranks of one mesh exchange. Every price is that of a transfer alone,
/// all links at full rate: sharing only slows it down.
class MeshCost {
 public:
  /// `plan` gives cluster, placement and degrees; not kept. `cost` must outlive this object.
  MeshCost(const Plan& plan, const program::CostModel& cost);

  /// A kernel, or a collective inside a pass: the least over the stages' own groups.
  double kernel(const Kernel& kernel) const;
  /// A message between neighbouring stages, the least over all pairs; 0 with one stage.
  double message(Bytes bytes);
  /// Collectives of the end of the step, of the replica 0's rank 0 on `stage`; 0 for one member.
  double dp(int stage, Collective kind, Bytes bytes) { return dp(stage, {}, kind, bytes); }
  /// The same in a part of the ranks that reduce gradients together.
  double dp(int stage, const program::Cut& cut, Collective kind, Bytes bytes);
  /// The same of experts.
  double edp(int stage, const program::Cut& cut, Collective kind, Bytes bytes);
  double embedding(Bytes bytes);
  /// All-reduce of a mirrored schedule between `stage` and its mirror image.
  double mirror(int stage, Bytes bytes);
  double tp(Bytes bytes);
  double scalars();

 private:
  using Devices = std::vector<DeviceId>;
  /// Groups by stage, and the parts that their first members are in, each made once.
  struct Groups {
    std::vector<std::vector<RankId>> of_stage;
    std::map<std::tuple<int, program::Cut::Kind, int>, Devices> parts;
    std::map<std::tuple<int, program::Cut::Kind, int, Collective, std::int64_t>, double> known;
  };
  double in_part(Groups& groups, int stage, const program::Cut& cut, Collective kind, Bytes bytes);
  double free_of_sharing(Collective kind, Bytes bytes, const Devices& devices) const;
  double least(std::string_view communicator, Collective kind, Bytes bytes) const;

  const program::CostModel& cost_;
  program::Placement placement_;
  std::int64_t shared_below_;  // bytes, see free_of_sharing
  std::vector<Devices> tp_;
  /// Groups of what passes exchange, by communicator.
  std::map<std::string, std::vector<Devices>, std::less<>> groups_;
  Groups dp_, edp_;
  std::vector<std::pair<DeviceId, DeviceId>> neighbours_;
  Devices embedding_, world_;
  int nodes_ = 1;
  double scalars_ = -1;
  std::map<std::int64_t, double> messages_;
  std::map<std::int64_t, double> tp_known_, embedding_known_;
  mutable std::map<std::tuple<std::string, Collective, std::int64_t>, double> least_known_;
};

/// One kind of stage: those whose chunks hold the same parts.
struct StageShape {
  StageWork work;                         ///< without kernels
  std::vector<double> forward, backward;  ///< least seconds, by chunk
  /// The halves of `backward`; empty if the schedule has whole backward passes only.
  std::vector<double> backward_input, backward_weight;
};
struct PlanShape {
  std::vector<StageShape> kinds;
  std::vector<std::size_t> kind_of;  ///< by stage
  bool is_timed = false;
  const StageShape& of(int stage) const { return kinds[kind_of[static_cast<std::size_t>(stage)]]; }
};

/// Shapes of the plans of one mesh, each made once.
class ShapeCache {
 public:
  /// `plan` gives the device and the software; not kept. `mesh` must outlive this object.
  ShapeCache(const MeshCost& mesh, const Plan& plan)
      : mesh_(mesh),
        host_per_kernel_s_(to_seconds(plan.stack.host_per_kernel)),
        constants_(plan.cluster.device.constants) {}

  /// `plan` must belong to the mesh.
  const PlanShape& shape(const Plan& plan);
  /// The same, maybe without times: many plans are too large, and pricing takes most of the time.
  const PlanShape& sizes(const Plan& plan);

 private:
  using SplitKey = std::tuple<std::int64_t, bool, Recomputation, bool>;
  /// v, stages, buckets, layers as buckets, stage map, split backward.
  using ChunkKey = std::tuple<int, StageLayers, bool, bool, program::StageMap, bool>;
  struct Passes {
    PricedPart forward, backward, backward_input, backward_weight;
  };
  struct ChunkSeconds {
    double forward = 0, backward = 0, backward_input = 0, backward_weight = 0;
  };
  enum class Backward { Whole, Split };
  struct SplitParts {
    ModelParts sizes;            // without kernels
    std::vector<Passes> layers;  // by kind
    std::vector<Passes> kept;    // by kind; of full recomputation in pieces
    std::vector<PricedPart> again, again_last;
    Passes embedding, head;
    PricedPart gather;           ///< of a sharded activation
    PricedPart gradient_gather;  ///< of a sharded gradient; empty where gradients travel whole
    bool is_priced = false, has_halves = false;
    /// By the kinds of the layers, how many are recomputed, ends and kind of backward.
    std::map<std::tuple<std::vector<int>, int, bool, bool, Backward>, ChunkSeconds> known;
    int kind(int layer) const { return sizes.kind[static_cast<std::size_t>(layer)]; }
  };
  using Key = std::pair<SplitKey, ChunkKey>;
  static Key key_of(const Plan& plan);
  SplitParts& parts(const Plan& plan);
  void price(const Plan& plan, Backward kind, SplitParts& parts) const;
  void add_times(const Plan& plan, int stage, SplitParts& parts, StageShape& shape) const;
  ChunkSeconds chunk_seconds(const Layout& layout, const StagePart& part, SplitParts& parts) const;
  double backward_seconds(const Layout& layout, const StagePart& part, const SplitParts& parts,
                          PricedPart Passes::*half) const;

  const MeshCost& mesh_;
  double host_per_kernel_s_;
  topologies::CostConstants constants_;
  std::map<SplitKey, SplitParts> splits_;
  std::map<Key, PlanShape> shapes_;
};

}  // namespace foresail::planner
