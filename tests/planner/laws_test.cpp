#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "foresail/planner/layout.h"
#include "foresail/planner/schedule.h"

namespace foresail::planner {
namespace {

/// A legal starting point: 16 layers, 8 heads on tp 2 * cp 2 * pp 4 * dp 2 = 32 devices.
struct Case {
  models::Model model;
  Layout layout;
  program::Training training;
  int devices = 32;

  Case() {
    model.name = "gpt";
    model.layers = 16;
    model.hidden = 64;
    model.heads = 8;
    model.kv_heads = 4;
    model.head_size = 8;
    model.ffn = 256;
    model.vocab = 128;
    layout.tp = 2;
    layout.cp = 2;
    layout.pp = 4;
    layout.dp = 2;
    layout.v = 2;
    layout.schedule = ScheduleKind::Interleaved;
    layout.sequence_parallel = true;
    training.global_batch_size = 16;
    training.sequence_length = 32;
  }

  std::vector<BrokenLaw> check() const { return check_laws(model, layout, training, devices); }
};

TEST(Laws, LegalLayoutBreaksNone) {
  EXPECT_TRUE(Case().check().empty());
}

struct Breach {
  std::string name;
  std::string message;
  std::function<void(Case&)> change;
};

/// What a zero-bubble layout needs: two microbatches per device and stage of pp 4.
void use(Case& c, ScheduleKind kind, int chunks) {
  c.layout.schedule = kind;
  c.layout.v = chunks;
  c.training.global_batch_size = 16;
}

/// A ZB-H1 of that shape as the user's own.
void write(Case& c, const ScheduleShape& shape) {
  use(c, ScheduleKind::File, 1);
  const Schedule made = make_schedule(ScheduleKind::ZbH1, shape);
  c.layout.written = {made.stage_map, made.chunks, made.microbatches, made.order};
}

TEST(Laws, LegalZeroBubbleLayoutsBreakNone) {
  for (const auto kind : {ScheduleKind::ZbH1, ScheduleKind::ZbH2, ScheduleKind::ZbV,
                          ScheduleKind::DualPipe, ScheduleKind::File}) {
    Case c;
    if (kind == ScheduleKind::File) {
      write(c, {.stages = 4, .microbatches = 8});
    } else {
      use(c, kind, kind == ScheduleKind::ZbH1 || kind == ScheduleKind::ZbH2 ? 1 : 2);
    }
    EXPECT_TRUE(c.check().empty()) << to_string(kind) << ": " << c.check().front().message;
  }
}

std::vector<Breach> breaches_of_zero_bubble() {
  return {
      {"schedule_needs_pp", "schedule zb_h1 needs pp > 1, but pp is 1",
       [](Case& c) {
         use(c, ScheduleKind::ZbH1, 1);
         c.layout.pp = 1;
         c.devices = 8;
       }},
      {"v_needs_interleaved", "v 2 needs schedule interleaved, but schedule is zb_h2",
       [](Case& c) { use(c, ScheduleKind::ZbH2, 2); }},
      {"chunks_of_schedule", "schedule zb_v has 2 chunks per rank, but v is 1",
       [](Case& c) { use(c, ScheduleKind::ZbV, 1); }},
      {"chunks_of_schedule", "schedule dualpipe has 2 chunks per rank, but v is 4",
       [](Case& c) { use(c, ScheduleKind::DualPipe, 4); }},
      {"dualpipe_even_pp", "pp 3 % 2 = 1, must be 0 with schedule dualpipe",
       [](Case& c) {
         use(c, ScheduleKind::DualPipe, 2);
         c.layout.pp = 3;
         c.model.layers = 15;
         c.devices = 24;
       }},
      {"dualpipe_even_microbatches",
       "9 microbatches % 2 = 1, must be 0 with schedule dualpipe: half of them enters at each end",
       [](Case& c) {
         use(c, ScheduleKind::DualPipe, 2);
         c.training.global_batch_size = 18;
       }},
      {"dualpipe_microbatches_min",
       "6 microbatches, must be at least 2 * pp 4 = 8 with schedule dualpipe",
       [](Case& c) {
         use(c, ScheduleKind::DualPipe, 2);
         c.training.global_batch_size = 12;
       }},
      {"mirrored_zero_stage",
       "schedule dualpipe sums the gradients of two whole copies, so zero_stage must be at most 2, "
       "but is 3",
       [](Case& c) {
         use(c, ScheduleKind::DualPipe, 2);
         c.layout.zero_stage = 3;
       }},
      {"layers_by_stages", "layers 18 % pp 4 = 2, must be 0",
       [](Case& c) {
         use(c, ScheduleKind::DualPipe, 2);
         c.model.layers = 18;
       }},
      {"stages_of_schedule", "the written schedule has 2 stages, but pp is 4",
       [](Case& c) { write(c, {.stages = 2, .microbatches = 8}); }},
      {"microbatches_of_schedule",
       "the written schedule has 7 microbatches, but global_batch_size / (microbatch_size * dp) is "
       "8",
       [](Case& c) { write(c, {.stages = 4, .microbatches = 7}); }},
  };
}

std::vector<Breach> breaches_of_degrees() {
  return {
      {"at_least_one", "tp 0, must be at least 1", [](Case& c) { c.layout.tp = 0; }},
      {"group_size_not_negative", "group_size -1, must be at least 0",
       [](Case& c) { c.layout.group_size = -1; }},
      {"world_size", "tp 2 * cp 2 * pp 4 * dp 2 = 32, but the cluster has 128 devices",
       [](Case& c) { c.devices = 128; }},
      {"rank_order", "rank_order tp-tp-ep-dp-pp names an axis twice, must name each once",
       [](Case& c) { c.layout.rank_order[1] = program::Axis::Tp; }},
      {"ep_needs_experts", "ep 2, but model gpt has no experts, must be 1",
       [](Case& c) { c.layout.ep = 2; }},
      {"zero_stage", "zero_stage 4, must be 0 to 3", [](Case& c) { c.layout.zero_stage = 4; }},
      {"heads_by_tp", "heads 9 % tp 2 = 1, must be 0", [](Case& c) { c.model.heads = 9; }},
      {"kv_heads_by_tp", "kv_heads 1 % tp 2 = 1, must be 0", [](Case& c) { c.model.kv_heads = 1; }},
      {"ffn_by_tp", "ffn 255 % tp 2 = 1, must be 0", [](Case& c) { c.model.ffn = 255; }},
      {"layers_by_stages", "layers 12 % (pp 4 * v 2) = 4, must be 0",
       [](Case& c) { c.model.layers = 12; }},
      {"layers_max", "layers 4000, must be at most 2000", [](Case& c) { c.model.layers = 4000; }},
      {"width_max", "vocab 5000000, must be at most 4194304",
       [](Case& c) { c.model.vocab = 5'000'000; }},
      {"activations_max",
       "layers 16 * microbatch_size 1 * sequence_length 1099511627776 * (heads 8 * sequence_length "
       "or width 256) is beyond what can be counted",
       [](Case& c) { c.training.sequence_length = std::int64_t{1} << 40; }},
      {"sequence_parallel_needs_tp", "sequence_parallel needs tp > 1, but tp is 1",
       [](Case& c) {
         c.layout.tp = 1;
         c.layout.dp = 4;
       }},
      {"sequence_by_2cp", "sequence_length 32 % (2 * cp 3) = 2, must be 0",
       [](Case& c) {
         c.layout.sequence_parallel = false;
         c.layout.cp = 3;
         c.devices = 48;
       }},
      {"sequence_by_tp_cp", "sequence_length 36 % (tp 8 * cp 1) = 4, must be 0", [](Case& c) {
         c.layout.tp = 8;
         c.layout.cp = 1;
         c.layout.dp = 1;
         c.model.kv_heads = 8;
         c.training.sequence_length = 36;
       }}};
}

std::vector<Breach> breaches_of_schedule() {
  return {
      {"v_needs_interleaved", "v 2 needs schedule interleaved, but schedule is 1f1b",
       [](Case& c) { c.layout.schedule = ScheduleKind::OneForwardOneBackward; }},
      {"group_size_needs_interleaved",
       "group_size 4 needs schedule interleaved, but schedule is gpipe",
       [](Case& c) {
         c.layout.schedule = ScheduleKind::Gpipe;
         c.layout.v = 1;
         c.layout.group_size = 4;
       }},
      {"interleaved_needs_v", "schedule interleaved needs v > 1, but v is 1",
       [](Case& c) { c.layout.v = 1; }},
      {"v_needs_pp", "v 2 needs pp > 1, but pp is 1",
       [](Case& c) {
         c.layout.pp = 1;
         c.layout.dp = 8;
       }},
      {"interleaved_needs_overlap",
       "schedule interleaved without overlap.pp needs pp > 2, but pp is 2",
       [](Case& c) {
         c.layout.pp = 2;
         c.layout.dp = 4;
       }},
      {"aligned_needs_interleaved",
       "overlap.aligned gradients needs schedule interleaved, but schedule is 1f1b",
       [](Case& c) {
         c.layout.schedule = ScheduleKind::OneForwardOneBackward;
         c.layout.v = 1;
         c.layout.overlap.dp = true;
         c.layout.overlap.aligned = DataMessages(true, false);
       }},
      {"aligned_needs_overlap",
       "overlap.aligned true needs the same of overlap.dp, but that is gradients",
       [](Case& c) {
         c.layout.overlap.dp = DataMessages(true, false);
         c.layout.overlap.aligned = true;
       }},
      {"aligned_zero_stage",
       "overlap.aligned true needs zero_stage at most 2, but it is 3: its messages come with every "
       "pass",
       [](Case& c) {
         c.layout.zero_stage = 3;
         c.layout.overlap.dp = true;
         c.layout.overlap.aligned = true;
       }},
      {"aligned_gathers_need_zero",
       "overlap.aligned parameters needs zero_stage 1 or 2, but it is 0: there are no gathers",
       [](Case& c) {
         c.layout.overlap.dp = true;
         c.layout.overlap.aligned = DataMessages(false, true);
       }},
      {"batch_by_replicas", "global_batch_size 15 % (microbatch_size 1 * dp 2) = 1, must be 0",
       [](Case& c) { c.training.global_batch_size = 15; }},
      {"passes_max",
       "global_batch_size 4000000 / (microbatch_size 1 * dp 2) * v 2 * pp 4 = 16000000 forward "
       "passes, must be at most 1000000",
       [](Case& c) { c.training.global_batch_size = 4'000'000; }},
      {"group_size_range", "group_size 3, must be at least pp 4 and at most the 8 microbatches",
       [](Case& c) { c.layout.group_size = 3; }},
      {"microbatches_by_group",
       "9 microbatches % group_size 4 = 1, must be 0 or at least pp 4: the bubble would be 0.37 "
       "instead of 0.17",
       [](Case& c) { c.training.global_batch_size = 18; }}};
}

// Each change breaks one law alone, and the message carries every term.
TEST(Laws, EachIsReportedAloneWithItsTerms) {
  std::vector<Breach> breaches = breaches_of_degrees();
  for (const Breach& breach : breaches_of_schedule()) breaches.push_back(breach);
  for (const Breach& breach : breaches_of_zero_bubble()) breaches.push_back(breach);
  EXPECT_EQ(breaches.size(), 40u);
  for (const Breach& breach : breaches) {
    Case c;
    breach.change(c);
    const std::vector<BrokenLaw> broken = c.check();
    ASSERT_EQ(broken.size(), 1u) << breach.name
                                 << (broken.size() > 1 ? ": " + broken[1].message : "");
    EXPECT_EQ(broken[0].name, breach.name);
    EXPECT_EQ(broken[0].message, breach.message);
  }
}

TEST(Laws, SeveralAreReportedTogether) {
  Case c;
  c.model.heads = 9;
  c.model.layers = 12;
  c.devices = 31;
  std::vector<std::string> names;
  for (const BrokenLaw& law : c.check()) names.push_back(law.name);
  EXPECT_THAT(names, testing::ElementsAre("world_size", "heads_by_tp", "layers_by_stages"));
}

TEST(Laws, RemainderOfAtLeastStagesIsLegal) {
  Case c;
  c.layout.group_size = 5;  // 9 = 5 + 4
  c.training.global_batch_size = 18;
  EXPECT_TRUE(c.check().empty());
}

TEST(Laws, DeadlockingGroupsAreRefusedWithTheirCycle) {
  Case c;
  c.layout.tp = c.layout.cp = c.layout.dp = 1;
  c.layout.sequence_parallel = false;
  c.layout.pp = c.devices = 8;
  c.layout.group_size = 8;
  c.training.global_batch_size = 12;
  const auto broken = c.check();
  ASSERT_EQ(broken.size(), 1u);
  EXPECT_EQ(broken[0].name, "microbatches_by_group");
  EXPECT_THAT(
      broken[0].message,
      testing::StartsWith("12 microbatches % group_size 8 = 4, must be 0 or at least pp 8: "
                          "schedule of 8 stages, 2 chunks, 12 microbatches deadlocks: stage"));
}

TEST(Laws, HugeDegreesDoNotOverflow) {
  Case c;
  c.layout.tp = c.layout.cp = c.layout.pp = c.layout.dp = 1 << 20;
  c.layout.v = 1 << 20;
  c.layout.microbatch_size = 1 << 20;
  const auto broken = c.check();
  ASSERT_FALSE(broken.empty());
  EXPECT_EQ(broken[0].message,
            "tp 1048576 * cp 1048576 * pp 1048576 * dp 1048576 = 1208925819614629174706176, but "
            "the cluster has 32 devices");
}

}  // namespace
}  // namespace foresail::planner
