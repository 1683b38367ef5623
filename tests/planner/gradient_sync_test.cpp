// When gradients leave and parameters come: the switches of overlap.dp and overlap.aligned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "described_ops.h"
#include "foresail/planner/plan.h"
#include "foresail/planner/schedule.h"
#include "foresail/program/verifier.h"
#include "plans.h"

namespace foresail::planner {
namespace {

using program::Pass;
using program::Program;
using testing::ElementsAre;

constexpr DataMessages kGradients(true, false);
constexpr DataMessages kParameters(false, true);

/// Interleaved over p stages, two replicas with sharded states.
Layout sharded(int p, int v) {
  Layout layout = pipeline(p, v, p);
  layout.dp = 2;
  layout.zero_stage = 1;
  layout.overlap.dp = true;
  return layout;
}

Program lowered(const Layout& layout, int microbatches) {
  models::Model model = plain_model(layout.pp * layout.v);
  model.tied_embeddings = false;
  Program program = lower(plan_of(model, layout, microbatches));
  EXPECT_TRUE(program::verify(program).empty());
  return program;
}

// facts: for p = 4, v = 2, m = 8, G = 4 the reduction of chunk 1 stands behind B7.1 on stage 0 and
// behind B4.0, B5.0 and B6.0 on the others; that of chunk 0 behind the last pass everywhere.
TEST(AlignedLaunches, ReductionsStandAsManyPassesLaterAsStagesAreBehind) {
  Layout layout = sharded(4, 2);
  layout.overlap.aligned = kGradients;
  const Program program = lowered(layout, 8);
  const std::vector<std::string> passes = {
      "compute backward chunk 1 microbatch 7", "compute backward chunk 0 microbatch 4",
      "compute backward chunk 0 microbatch 5", "compute backward chunk 0 microbatch 6"};
  for (std::size_t stage = 0; stage < 4; ++stage) {
    EXPECT_THAT(awaited(program, stage, "reduce_scatter chunk_gradients chunk 1"),
                ElementsAre(passes[stage]));
    EXPECT_THAT(awaited(program, stage, "reduce_scatter chunk_gradients chunk 0"),
                ElementsAre("compute backward chunk 0 microbatch 7"));
    EXPECT_THAT(
        lane(program, stage, Lane::Dp),
        ElementsAre("all_gather chunk_parameters chunk 0", "all_gather chunk_parameters chunk 1",
                    "reduce_scatter chunk_gradients chunk 1",
                    "reduce_scatter chunk_gradients chunk 0", "all_reduce step_scalars"));
  }
}

// With the first pass of chunk 1 on stage 0, its fifth, all start to gather chunk 2: together with
// the pass that stage r runs then, the (5 - r)th.
TEST(AlignedLaunches, GathersStartWithThePassThatRunsWhenStageZeroBeginsTheChunkBefore) {
  Layout layout = sharded(4, 3);
  layout.overlap.aligned = kParameters;
  const Program program = lowered(layout, 8);
  const std::string gather = "all_gather chunk_parameters chunk 2";
  EXPECT_THAT(awaited(program, 0, gather),
              ElementsAre("recv activation chunk 1 microbatch 0 from stage 3",
                          "compute forward chunk 0 microbatch 3"));
  EXPECT_THAT(awaited(program, 1, gather),
              ElementsAre("recv activation chunk 0 microbatch 3 from stage 0",
                          "compute forward chunk 0 microbatch 2"));
  EXPECT_THAT(awaited(program, 3, gather),
              ElementsAre("recv activation chunk 0 microbatch 1 from stage 2",
                          "compute forward chunk 0 microbatch 0"));
  for (std::size_t stage = 0; stage < 4; ++stage) {
    for (const char* early : {"chunk 0", "chunk 1"}) {
      EXPECT_TRUE(
          awaited(program, stage, std::string("all_gather chunk_parameters ") + early).empty());
    }
    EXPECT_THAT(awaited(program, stage, "compute forward chunk 2 microbatch 0"),
                testing::Contains(gather));
    // Reductions are not aligned: each behind the last pass of its chunk.
    EXPECT_THAT(awaited(program, stage, "reduce_scatter chunk_gradients chunk 1"),
                ElementsAre("compute backward chunk 1 microbatch 7"));
  }
}

// The tied matrix, which the last chunk of the last stage reads, comes with that chunk.
TEST(AlignedLaunches, TheTiedMatrixIsGatheredInFrontOfTheChunkThatReadsIt) {
  Layout layout = sharded(2, 3);
  layout.overlap.aligned = true;
  const Program program = lower(plan_of(plain_model(6), layout, 4));
  EXPECT_TRUE(program::verify(program).empty());
  EXPECT_THAT(lane(program, 0, Lane::Dp),
              testing::IsSupersetOf({"all_gather embedding_parameters"}));
  EXPECT_EQ(lane(program, 0, Lane::Dp).front(), "all_gather embedding_parameters");
  const auto last = lane(program, 1, Lane::Dp);
  EXPECT_EQ(last[2], "all_gather embedding_parameters");
  EXPECT_EQ(last[3], "all_gather chunk_parameters chunk 2");
  EXPECT_THAT(awaited(program, 1, "compute forward chunk 2 microbatch 0"),
              testing::Contains("all_gather embedding_parameters"));
}

/// Per chunk, the time between the first and the last stage that starts its reduction, or with
/// `gathers` its gather, of those that wait for passes.
std::vector<double> spreads(const Layout& layout, int microbatches, bool gathers) {
  const Program program = lowered(layout, microbatches);
  const Schedule schedule =
      make_schedule(layout.schedule, {layout.pp, layout.v, microbatches, layout.group_size});
  PassCosts costs;
  const TimedSchedule timed = simulate(schedule, costs);
  std::vector<double> made;
  for (int chunk = 0; chunk < layout.v; ++chunk) {
    const std::string name =
        (gathers ? "all_gather chunk_parameters chunk " : "reduce_scatter chunk_gradients chunk ") +
        std::to_string(chunk);
    double first = 1e9;
    double last = 0;
    for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
      const auto& ops = program.stages[stage].ops;
      double start = 0;
      for (const program::OpId id : op(program, stage, name).after) {
        for (std::size_t at = 0; at < schedule.order[stage].size(); ++at) {
          const SchedulePass& pass = schedule.order[stage][at];
          const bool is_it = ops[id].kind == program::OpKind::Compute &&
                             pass.pass == ops[id].pass && pass.chunk == ops[id].chunk &&
                             pass.microbatch == ops[id].microbatch;
          if (is_it) start = std::max(start, timed.end[stage][at]);
        }
      }
      first = std::min(first, start);
      last = std::max(last, start);
    }
    made.push_back(last - first);
  }
  return made;
}

// facts: the skew of the stages makes all launch at the same time, give or take half a backward
// pass; on its own each stage launches up to p - 1 backward passes before stage 0.
TEST(AlignedLaunches, AllStagesStartAChunksReductionWithinOnePass) {
  for (const auto& [p, v, m] : {std::array{4, 2, 8}, {4, 3, 8}, {3, 4, 9}, {8, 2, 16}, {2, 3, 6}}) {
    Layout layout = sharded(p, v);
    const std::vector<double> alone = spreads(layout, m, false);
    layout.overlap.aligned = true;
    const std::vector<double> aligned = spreads(layout, m, false);
    for (int chunk = 1; chunk < v; ++chunk) {
      const auto at = static_cast<std::size_t>(chunk);
      const double backward = PassCosts{}.backward;
      EXPECT_GE(alone[at], (p - 1) * backward * 0.999) << p << " " << v << " " << chunk;
      EXPECT_LE(aligned[at], backward) << p << " " << v << " " << chunk;
    }
  }
}

TEST(DataOverlap, GradientsAndParametersAreSwitchesOfTheirOwn) {
  Layout layout = sharded(2, 2);
  layout.overlap.dp = kGradients;
  const Program early = lowered(layout, 4);
  EXPECT_THAT(awaited(early, 0, "reduce_scatter chunk_gradients chunk 1"),
              ElementsAre("compute backward chunk 1 microbatch 3"));
  EXPECT_THAT(awaited(early, 0, "all_gather chunk_parameters chunk 0"),
              ElementsAre("compute optimizer"));
  layout.overlap.dp = kParameters;
  const Program late = lowered(layout, 4);
  EXPECT_THAT(awaited(late, 0, "reduce_scatter chunk_gradients chunk 1"),
              ElementsAre("compute backward chunk 0 microbatch 3"));
  EXPECT_TRUE(awaited(late, 0, "all_gather chunk_parameters chunk 0").empty());
  EXPECT_THAT(awaited(late, 0, "compute forward chunk 1 microbatch 0"),
              testing::Contains("all_gather chunk_parameters chunk 1"));
}

// Fully sharded: gathers come one pass ahead, or pass by pass; so do reductions.
TEST(DataOverlap, FullyShardedPassesWaitForWhatIsNotOverlapped) {
  Layout layout;
  layout.dp = 2;
  layout.zero_stage = 3;
  const auto made = [&](DataMessages messages) {
    layout.overlap.dp = messages;
    models::Model model = plain_model(2);
    model.tied_embeddings = false;
    return lower(plan_of(model, layout, 2));
  };
  const std::string pass = "compute backward chunk 0 microbatch 0";
  const std::string next = "compute forward chunk 0 microbatch 1";
  const std::string reduction = "reduce_scatter chunk_gradients chunk 0 microbatch 0";
  const std::string gather = "all_gather chunk_parameters chunk 0 microbatch 1";
  EXPECT_THAT(awaited(made(kParameters), 0, next), testing::Contains(reduction));
  EXPECT_THAT(awaited(made(kGradients), 0, next), testing::Not(testing::Contains(reduction)));
  EXPECT_THAT(awaited(made(kGradients), 0, gather), ElementsAre(pass));
  EXPECT_THAT(awaited(made(kParameters), 0, gather),
              ElementsAre("compute backward chunk 1 microbatch 0"));
}

}  // namespace
}  // namespace foresail::planner
