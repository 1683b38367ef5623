/// \file
/// Random small training jobs for the tests of the search: seeded, so that a failure names its
/// case.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "foresail/base/rng.h"
#include "foresail/base/yaml.h"
#include "foresail/planner/plan.h"
#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {

class Draw {
 public:
  explicit Draw(std::uint64_t index) : stream_(Rng(20261129).stream("search", index)) {}
  int between(int low, int high) {
    return low + static_cast<int>(stream_.below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool coin() { return stream_.below(2) == 0; }
  template <class T>
  T of(std::initializer_list<T> choices) {
    return *(choices.begin() + stream_.below(choices.size()));
  }

 private:
  RandomStream stream_;
};

inline models::Model random_model(Draw& draw) {
  models::Model model;
  model.name = "random";
  model.layers = draw.of({4, 6, 8, 12});
  model.hidden = draw.of({256, 1024, 4096});
  model.heads = draw.of({8, 16});
  model.kv_heads = draw.coin() ? model.heads : 8;
  model.head_size = model.hidden / model.heads;
  model.ffn = 4 * model.hidden;
  model.vocab = draw.of({512, 32000});
  model.tied_embeddings = draw.coin();
  model.biases = draw.coin();
  model.dropout = draw.coin();
  return model;
}

/// A job on 8 to 32 GPUs of a catalogue cluster; its layout is left at the defaults.
inline planner::Plan random_job(Draw& draw) {
  planner::Plan plan;
  plan.model = random_model(draw);
  const std::string name = draw.of({"selene", "dgx_h100", "megascale", "leaf_spine"});
  const int gpus = draw.of({8, 16, 32});
  const std::string text = "{name: " + name + ", gpus: " + std::to_string(gpus) + "}";
  plan.cluster =
      topologies::resolve_cluster(Yaml::parse(text, "cluster"), data_folders().topologies);
  plan.training.sequence_length = draw.of({128, 2048});
  plan.training.global_batch_size = draw.of({16, 32, 48});
  plan.stack.flash_attention = draw.coin();
  plan.stack.fused_kernels = draw.coin();
  plan.stack.async_tensor_parallel = draw.coin();
  plan.stack.scatter_gather = draw.coin();
  plan.stack.host_per_kernel = Duration(draw.of({0, 8'000'000}));
  plan.placement = program::Placement::identity(gpus);
  return plan;
}

/// Any layout for it, legal or not.
inline planner::Layout random_layout(Draw& draw, const planner::Plan& plan) {
  using planner::ScheduleKind;
  planner::Layout layout;
  const int gpus = plan.cluster.nodes * plan.cluster.node.devices;
  layout.tp = draw.of({1, 1, 2, 4, 8, 16});
  layout.pp = draw.of({1, 2, 2, 4, 4, 3});
  layout.cp = draw.of({1, 1, 1, 2});
  layout.dp = gpus / (layout.tp * layout.pp * layout.cp);
  layout.schedule =
      draw.of({ScheduleKind::Gpipe, ScheduleKind::OneForwardOneBackward, ScheduleKind::Interleaved,
               ScheduleKind::ZbH1, ScheduleKind::ZbH2, ScheduleKind::ZbV, ScheduleKind::DualPipe});
  if (layout.schedule == ScheduleKind::Interleaved) layout.v = draw.between(2, 3);
  const bool has_two =
      layout.schedule == ScheduleKind::ZbV || layout.schedule == ScheduleKind::DualPipe;
  if (has_two) layout.v = 2;
  layout.microbatch_size = draw.of({1, 2, 4});
  layout.sequence_parallel = layout.tp > 1 && draw.coin();
  layout.zero_stage = draw.between(0, 3);
  layout.recompute =
      draw.of({models::Recompute::None, models::Recompute::Selective, models::Recompute::Full});
  layout.overlap = {.tp = draw.coin(), .pp = draw.coin(), .dp = draw.coin()};
  using program::Axis;
  if (draw.coin()) layout.rank_order = {Axis::Tp, Axis::Cp, Axis::Ep, Axis::Pp, Axis::Dp};
  if (draw.coin()) {
    planner::Recomputation& recompute = layout.recompute;
    recompute.method =
        draw.of({planner::CheckpointMethod::Uniform, planner::CheckpointMethod::Block});
    recompute.layers = recompute.what == models::Recompute::Full ? draw.between(1, 3) : 1;
    if (recompute.what != models::Recompute::Full) recompute.method = {};
    recompute.modules.norm = draw.coin();
    recompute.modules.activation = draw.coin();
    recompute.modules.mlp = draw.coin();
    if (recompute.what != models::Recompute::Selective) recompute.modules = {};
  }
  if (layout.pp > 1 && draw.between(0, 3) == 0) layout.stages.first = layout.v;
  if (layout.zero_stage > 0 && draw.coin()) layout.shard_size = draw.of({0, 2, 4});
  const bool has_host = !plan.cluster.node.host.empty();
  if (has_host && draw.between(0, 3) == 0) layout.optimizer_offload = 0.25 * draw.between(1, 4);
  return layout;
}

}  // namespace foresail::scenarios
