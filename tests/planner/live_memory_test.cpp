// Live tensors of whole Programs: closed forms, and no timing that needs more than the bound.
#include "foresail/planner/live_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "foresail/base/rng.h"
#include "foresail/planner/memory_bound.h"
#include "foresail/planner/schedule.h"
#include "foresail/report/memory_curve.h"
#include "plans.h"

namespace foresail::planner {
namespace {

using models::Recompute;
using report::MemoryCurve;
using report::OpInterval;

MemoryCurve in_program_order(const Plan& plan, const program::Program& program, int stage) {
  const auto& ops = program.stages[static_cast<std::size_t>(stage)];
  return report::memory_curve(ops, live_memory(plan, program, stage), report::program_order(ops));
}

Bytes most_activations(const MemoryCurve& curve) {
  Bytes most;
  for (const report::MemoryPoint& point : curve.points) most = std::max(most, point.activations);
  return most;
}

/// Lanes in order, `after` kept, every op with a time of its own: whatever the other stages do.
std::vector<OpInterval> random_times(const program::StageProgram& stage, RandomStream& random) {
  std::vector<OpInterval> times(stage.ops.size());
  std::map<Lane, SimTime> free_at;
  for (std::uint32_t i = 0; i < stage.ops.size(); ++i) {
    const program::Op& op = stage.ops[program::OpId{i}];
    SimTime start = free_at[op.lane];
    for (const program::OpId before : op.after) start = std::max(start, times[before.value].end);
    const bool is_slow = random.uniform() < 0.2;
    const auto length = static_cast<std::int64_t>(1 + random.uniform() * (is_slow ? 1000 : 20));
    times[i] = {start, start + Duration(length)};
    free_at[op.lane] = times[i].end;
  }
  return times;
}

Layout scheduled(ScheduleKind kind, int p, int v) {
  Layout layout = pipeline(p, v, 0);
  layout.schedule = kind;
  return layout;
}

/// Every second layer has experts, of loads that differ from layer to layer; latent attention.
Plan plan_of_experts(ScheduleKind kind) {
  models::Model model = plain_model(16);
  model.biases = false;
  model.experts = {.count = 4, .per_token = 1, .ffn = 2048};
  model.experts.every = 2;
  model.positions = models::Positions::Rotary;
  model.max_positions = 0;
  model.latent = {.kv_rank = 128, .query_rank = 256, .rope_head_size = 32, .value_head_size = 64};
  Layout layout = scheduled(kind, 4, kind == ScheduleKind::ZbH1 ? 1 : 2);
  layout.dp = 2;
  layout.ep = 2;
  layout.overlap.pp = layout.v > 1;
  Plan plan = plan_of(model, layout, 8);
  for (int row = 0; row < 8; ++row) {
    if (row % 2 == 0) plan.training.expert_load.push_back({0.25, 0.25, 0.25, 0.25});
    if (row % 2 == 1) plan.training.expert_load.push_back({0.5, 0.25, 0.125, 0.125});
  }
  return plan;
}

/// Modules, groups of layers that are made again together, and some layers only.
void add_recomputed(std::vector<Plan>& made) {
  Layout layout = scheduled(ScheduleKind::OneForwardOneBackward, 4, 1);
  layout.recompute = Recompute::Selective;
  layout.recompute.modules = {.core_attention = false, .norm = true, .mlp = true};
  made.push_back(plan_of(plain_model(16), layout, 8));
  layout.recompute = Recompute::Full;
  layout.recompute.layers = 3;  // of four layers a stage: groups of three and of one
  made.push_back(plan_of(plain_model(16), layout, 8));
  layout.recompute.method = CheckpointMethod::Block;
  made.push_back(plan_of(plain_model(16), layout, 8));
}

/// The same of experts, of layers that differ, and in groups that shard.
void add_recomputed_experts(std::vector<Plan>& made) {
  const auto add = [&](const Recomputation& recompute) {
    for (const ScheduleKind kind : {ScheduleKind::Interleaved, ScheduleKind::ZbH1}) {
      Plan plan = plan_of_experts(kind);
      plan.model.experts.shared = 1;
      plan.model.experts.shared_ffn = 1024;
      plan.layout.recompute = recompute;
      plan.layout.dp = 4;
      plan.layout.shard_size = 2;
      plan.layout.zero_stage = 1;
      made.push_back(plan_of(plan.model, plan.layout, 8));
      made.back().training.expert_load = plan.training.expert_load;
      made.back().stack.early_stop_recompute = kind == ScheduleKind::ZbH1;
    }
  };
  Recomputation recompute(Recompute::Full);
  recompute.layers = 3;
  add(recompute);
  recompute.method = CheckpointMethod::Block;
  recompute.layers = 1;
  add(recompute);
  recompute = Recompute::Selective;
  recompute.modules = {.core_attention = false, .norm = true, .activation = true};
  add(recompute);
  recompute.modules = {.core_attention = false, .norm = true, .mlp = true};
  add(recompute);
}

std::vector<Plan> plans() {
  std::vector<Plan> made;
  const auto add = [&](Layout layout) {
    for (const bool overlaps : {false, true}) {
      layout.overlap.pp = overlaps || layout.v > 1;
      made.push_back(plan_of(plain_model(16), layout, 8));
    }
  };
  add(Layout{});
  add(scheduled(ScheduleKind::Gpipe, 4, 1));
  add(scheduled(ScheduleKind::OneForwardOneBackward, 4, 1));
  add(scheduled(ScheduleKind::Interleaved, 4, 2));
  add(scheduled(ScheduleKind::ZbH1, 4, 1));
  add(scheduled(ScheduleKind::ZbH2, 4, 1));
  add(scheduled(ScheduleKind::ZbV, 4, 2));
  add(scheduled(ScheduleKind::DualPipe, 4, 2));
  for (const Recompute recompute : {Recompute::Selective, Recompute::Full}) {
    Layout layout = scheduled(ScheduleKind::Interleaved, 4, 2);
    layout.recompute = recompute;
    layout.tp = 2;
    layout.sequence_parallel = true;
    add(layout);
  }
  add_recomputed(made);
  for (const ScheduleKind kind :
       {ScheduleKind::Interleaved, ScheduleKind::ZbH1, ScheduleKind::DualPipe}) {
    made.push_back(plan_of_experts(kind));
  }
  add_recomputed_experts(made);
  return made;
}

std::string describe(const Plan& plan, int stage) {
  return std::string(to_string(plan.layout.schedule)) + ", recompute " +
         std::string(to_string(plan.layout.recompute)) + ", stage " + std::to_string(stage);
}

program::StageMemory without_messages(program::StageMemory memory) {
  std::erase_if(memory.lives, [&](const program::Life& life) {
    return memory.groups[life.group].tensors.front().owner == "messages";
  });
  return memory;
}

// Messages aside, of which memory_need counts at most five.
TEST(LiveMemory, PeakInProgramOrderIsTheEstimate) {
  for (const Plan& plan : plans()) {
    const program::Program program = lower(plan);
    for (int stage = 0; stage < plan.layout.pp; ++stage) {
      SCOPED_TRACE(describe(plan, stage));
      const auto& ops = program.stages[static_cast<std::size_t>(stage)];
      const MemoryCurve curve = report::memory_curve(
          ops, without_messages(live_memory(plan, program, stage)), report::program_order(ops));
      const program::MemoryNeed need = memory_need(plan, stage);
      const Bytes messages(plan.layout.pp == 1 ? 0 : 5 * 64 * 1024 * 2);
      const Bytes peak = curve.points[curve.peak].total;
      EXPECT_LE(peak, need.peak());
      EXPECT_GE(peak + messages, need.peak());
    }
  }
}

// A group keeps one input, but has all of its layers' tensors there in its backward pass.
TEST(LiveMemory, LayersMadeAgainTogetherTradeKeptForPeak) {
  Layout layout;
  layout.recompute = Recompute::Full;
  const auto peaks = [&](int layers) {
    layout.recompute.layers = layers;
    const Plan plan = plan_of(plain_model(16), layout, 1);
    const program::Program program = lower(plan);
    const MemoryCurve curve = in_program_order(plan, program, 0);
    EXPECT_EQ(curve.points[curve.peak].total, memory_need(plan, 0).peak());
    return std::pair(curve.points[curve.peak].total, most_activations(curve));
  };
  const Layout none;
  const Plan kept = plan_of(plain_model(16), none, 1);
  const Bytes all = memory_need(kept, 0).peak();
  EXPECT_LT(peaks(1).first, peaks(2).first);
  EXPECT_LT(peaks(4).first, peaks(16).first);
  EXPECT_LT(peaks(8).first, all);
  EXPECT_GT(10 * peaks(16).first, 9 * all);  // all layers at once: as if nothing were recomputed
  // 4 s b h bytes a layer input, sixteen or four of them (Korthikanti et al. 2022, section 4).
  const auto input = [&](int layers) { return peaks(layers).second; };
  EXPECT_GT(input(1), input(4));
}

// Modules that run again are kept out of what stays, one by one.
TEST(LiveMemory, EveryModuleThatRunsAgainLowersThePeak) {
  using models::RecomputeModules;
  Layout layout = scheduled(ScheduleKind::OneForwardOneBackward, 4, 1);
  const auto peak = [&] { return memory_need(plan_of(plain_model(16), layout, 8), 0).peak(); };
  const Bytes none = peak();
  layout.recompute = Recompute::Selective;
  const auto with = [&](RecomputeModules modules) {
    layout.recompute.modules = modules;
    return peak();
  };
  const Bytes norm = with({.core_attention = false, .norm = true});
  const Bytes activation = with({.core_attention = false, .activation = true});
  const Bytes mlp = with({.core_attention = false, .mlp = true});
  const Bytes both = with({.core_attention = false, .norm = true, .mlp = true});
  EXPECT_LT(norm, none);
  EXPECT_LT(activation, none);
  EXPECT_LT(mlp, activation);
  EXPECT_LT(both, mlp);
}

// The margin for messages alone must do: all timings of one Program differ only in those.
TEST(LiveMemory, NoTimingNeedsMoreThanTheUpperBound) {
  RandomStream random = Rng(11).stream("memory timings");
  for (const Plan& plan : plans()) {
    const program::Program program = lower(plan);
    for (int stage = 0; stage < plan.layout.pp; ++stage) {
      SCOPED_TRACE(describe(plan, stage));
      const MemoryBound bound = memory_bound(plan, program, stage);
      Bytes limit = bound.point.peak();
      for (const MemoryMargin& margin : bound.margins) {
        if (margin.name == "messages") limit += margin.bytes;
      }
      const program::StageMemory memory = live_memory(plan, program, stage);
      const auto& ops = program.stages[static_cast<std::size_t>(stage)];
      for (int draw = 0; draw < 10; ++draw) {
        const MemoryCurve curve = report::memory_curve(ops, memory, random_times(ops, random));
        EXPECT_LE(curve.points[curve.peak].total, limit);
      }
      EXPECT_LT(limit, bound.upper());
    }
  }
}

// 1F1B keeps min(p - r, m) microbatches on stage r, interleaved 1F1B min(2(p - r - 1) + (v - 1) G +
// 1, m v) chunks (facts: Megatron-LM's schedules). Stages between the ends have layers alone.
TEST(LiveMemory, InFlightCountsAreTheClosedForms) {
  const int p = 8, m = 16;
  for (const int v : {1, 2}) {
    const ScheduleKind kind =
        v == 1 ? ScheduleKind::OneForwardOneBackward : ScheduleKind::Interleaved;
    const Plan plan = plan_of(plain_model(16), scheduled(kind, p, v), m);
    const program::Program program = lower(plan);
    models::Split split;
    split.sequence_length = plan.training.sequence_length;
    split.dtype = plan.training.precision;
    split.stack = plan.stack;
    const Bytes layer = models::layer_work(plan.model, split).saved_bytes();
    for (int stage = 1; stage + 1 < p; ++stage) {
      const int chunks =
          v == 1 ? std::min(p - stage, m) : std::min(2 * (p - stage - 1) + (v - 1) * p + 1, m * v);
      const int layers = 16 / (p * v);
      EXPECT_EQ(most_activations(in_program_order(plan, program, stage)), chunks * layers * layer)
          << v << " " << stage;
    }
  }
}

// Korthikanti et al. 2022 through the whole Program: (p - r) microbatches of L / p layers of
// s b h (34 + 5 a s / h) / t bytes and its siblings, exactly.
TEST(LiveMemory, ActivationsOfAStageAreTheClosedForms) {
  models::Model model = plain_model(16);
  model.hidden = 1024;
  model.heads = model.kv_heads = 16;
  model.head_size = 64;
  model.ffn = 4096;
  model.dropout = true;
  Layout layout = scheduled(ScheduleKind::OneForwardOneBackward, 4, 1);
  layout.tp = 4;
  const std::int64_t s = 512, sbh = s * 1024, t = 4, scores = 5 * 16 * s * s;
  const auto saved = [&](bool sequence_parallel, Recompute recompute) {
    layout.sequence_parallel = sequence_parallel;
    layout.recompute = recompute;
    Plan plan = plan_of(model, layout, 8);
    plan.training.sequence_length = s;
    plan.stack.flash_attention = false;
    return most_activations(in_program_order(plan, lower(plan), 1)).count();
  };
  const std::int64_t units = (4 - 1) * 16 / 4;
  EXPECT_EQ(saved(false, Recompute::None), units * (10 * sbh + 24 * sbh / t + scores / t));
  EXPECT_EQ(saved(true, Recompute::None), units * (34 * sbh + scores) / t);
  EXPECT_EQ(saved(false, Recompute::Selective), units * (10 * sbh + 24 * sbh / t));
  EXPECT_EQ(saved(true, Recompute::Selective), units * 34 * sbh / t);
}

}  // namespace
}  // namespace foresail::planner
