// Layouts with fused attention train the model that one process trains, and the same as with the
// scores written out.
#include <gtest/gtest.h>

#include "observed_step.h"
#include "parity.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using models::ContextParallel;
using planner::Layout;
using planner::Plan;
using planner::ScheduleKind;

constexpr int kSteps = 2;

Layout with(const std::function<void(Layout&)>& change) {
  return changed(Layout{}, change);
}

std::vector<Layout> layouts() {
  std::vector<Layout> all{with([](Layout& layout) { layout.tp = 2; }), with([](Layout& layout) {
                            layout.tp = 2;
                            layout.sequence_parallel = true;
                            layout.overlap.tp = true;
                            layout.recompute = models::Recompute::Selective;
                          }),
                          with([](Layout& layout) {
                            layout.pp = 2;
                            layout.schedule = ScheduleKind::ZbH1;
                          }),
                          with([](Layout& layout) {
                            layout.dp = 2;
                            layout.zero_stage = 3;
                            layout.recompute = models::Recompute::Full;
                          })};
  for (const ContextParallel kind : kContextKinds) {
    all.push_back(in_context(kind, 2, 2));
    all.push_back(in_context(kind, 4));
  }
  return all;
}

void use_flash(Plan& plan) {
  plan.stack.flash_attention = true;
  plan.training.sequence_length = 192;  // three tiles
}

/// Rotary positions, grouped queries, a window.
void use_windowed_llama(Plan& plan) {
  use_wide_llama(plan);
  plan.model.attention = models::Attention::SlidingWindow;
  plan.model.window = 40;
  use_flash(plan);
}

void use_parallel_block(Plan& plan) {
  plan.model.block = models::Block::Parallel;
  plan.stack.fused_cross_entropy = false;
  use_flash(plan);
}

TEST(Flash, LossesAreThoseOfTheScoresWrittenOut) {
  for (const auto& change : {use_flash, use_windowed_llama, use_parallel_block}) {
    const Curve fused = train({.layout = {}, .change = change}, kSteps);
    const Curve unfused = train({.layout = {},
                                 .change =
                                     [&](Plan& plan) {
                                       change(plan);
                                       plan.stack.flash_attention = false;
                                       plan.stack.fused_cross_entropy = true;
                                     }},
                                kSteps);
    expect_equal(fused, unfused);
  }
}

void expect_one_process(const std::function<void(Plan&)>& change,
                        const std::vector<Layout>& layouts) {
  const Curve truth = train({.layout = {}, .change = change}, kSteps);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(describe(layout));
    expect_equal(train({.layout = layout, .change = change}, kSteps), truth);
  }
}

TEST(Flash, EveryLayoutEqualsOneProcess) {
  expect_one_process(use_windowed_llama, layouts());
}

TEST(Flash, SoItIsWithoutRotaryPositionsAndInParallelBlocks) {
  const std::vector<Layout> some{
      with([](Layout& layout) { layout.tp = 2; }), in_context(ContextParallel::AllGather, 2),
      in_context(ContextParallel::Ring, 2), in_context(ContextParallel::AllToAll, 2)};
  expect_one_process(use_flash, some);
  expect_one_process(use_parallel_block, some);
}

TEST(Flash, InBf16LayoutsEqualOneProcess) {
  const auto change = [](Plan& plan) {
    use_windowed_llama(plan);
    plan.training.precision = DType::Bf16;
    plan.training.global_batch_size = kBf16Batch;
  };
  const Curve truth = train({.layout = {}, .change = change}, kSteps);
  for (const ContextParallel kind : kContextKinds) {
    SCOPED_TRACE(to_string(kind));
    expect_equal_in_bf16(train({.layout = in_context(kind, 2), .change = change}, kSteps), truth);
  }
}

/// scenarios/cpu_gpt/megascale.yaml
Layout megascale_layout() {
  return with([](Layout& layout) {
    layout.tp = layout.dp = layout.pp = layout.v = 2;
    layout.schedule = ScheduleKind::Interleaved;
    layout.sequence_parallel = true;
    layout.zero_stage = 2;
    layout.overlap = {.tp = true, .pp = true, .dp = true, .aligned = {true, false}};
  });
}

void use_megascale(Plan& plan) {
  plan.model.layers = 8;
  plan.model.tied_embeddings = true;
  plan.model.attention = models::Attention::SlidingWindow;
  plan.model.window = 64;
  plan.model.dropout = true;
  plan.training.optimizer = program::Optimizer::Lamb;
  plan.training.learning_rate = 0.01;
  use_parallel_block(plan);
}

TEST(Flash, AllOfMegaScalesTechniquesTogetherTrainWhatOneProcessTrains) {
  expect_one_process(use_megascale, {megascale_layout()});
  expect_step_of_program(
      cli::make_job(make_plan({.layout = megascale_layout(), .change = use_megascale})));
}

TEST(Flash, OpsAndGemmsOfAStepAreThoseOfTheProgramOnEveryRank) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(describe(layout));
    expect_step_of_program(
        cli::make_job(make_plan({.layout = layout, .change = use_windowed_llama})));
  }
}

}  // namespace
}  // namespace foresail::testing
