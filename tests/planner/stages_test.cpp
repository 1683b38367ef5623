// Layers dealt unevenly to the stages, embedding and loss counted as layers, a head by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "foresail/base/error.h"
#include "foresail/planner/plan.h"
#include "foresail/program/verifier.h"
#include "plans.h"
#include "program_run.h"

namespace foresail::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StageLayers parse(const std::string& text) {
  return read_stage_layers(Yaml::parse(text, "stages"));
}

Plan plan_with(const std::string& stages, int layers, int pp, int v) {
  Layout layout = pipeline(pp, v, 0);
  layout.stages = parse(stages);
  return plan_of(plain_model(layers), layout, 2 * pp);
}

/// Layers by global stage, "E" and "H" for embedding and head.
std::vector<std::string> parts(const Plan& plan) {
  const program::GlobalStages global = plan.layout.global_stages();
  std::vector<std::string> found(static_cast<std::size_t>(global.count()));
  int next = 0;
  for (int at = 0; at < global.count(); ++at) {
    for (int stage = 0; stage < plan.layout.pp; ++stage) {
      for (int chunk = 0; chunk < plan.layout.v; ++chunk) {
        if (global.of({stage, chunk}) != at) continue;
        const StagePart part = stage_part(plan, stage, chunk);
        EXPECT_EQ(part.first_layer, next);
        next = part.end_layer;
        found[static_cast<std::size_t>(at)] = (part.has_embedding ? "E" : "") +
                                              std::to_string(part.end_layer - part.first_layer) +
                                              (part.has_head ? "H" : "");
      }
    }
  }
  EXPECT_EQ(next, plan.model.layers);
  return found;
}

TEST(StageLayers, FormsDealTheLayersAsTheySay) {
  EXPECT_THAT(parts(plan_with("even", 16, 4, 1)), ElementsAre("E4", "4", "4", "4H"));
  EXPECT_THAT(parts(plan_with("[3, 5, 5, 3]", 16, 4, 1)), ElementsAre("E3", "5", "5", "3H"));
  // The head by itself, and the embedding.
  EXPECT_THAT(parts(plan_with("[0, 8, 8, 0]", 16, 4, 1)), ElementsAre("E0", "8", "8", "0H"));
  // Llama 3's 126 layers: both ends count as one, 128 = 16 * 8 (Llama 3 paper: one layer less on
  // the first and on the last stage).
  const auto llama = parts(plan_with("account_for_both", 126, 16, 1));
  EXPECT_EQ(llama.front(), "E7");
  EXPECT_EQ(llama[1], "8");
  EXPECT_EQ(llama.back(), "7H");
  EXPECT_THAT(parts(plan_with("account_for_loss", 15, 2, 2)), ElementsAre("E4", "4", "4", "3H"));
  // Of a stage in all its chunks together: 4 on the first, 2 on the last, 5 * 2 between.
  EXPECT_THAT(parts(plan_with("{first_stage_layers: 4, last_stage_layers: 2}", 16, 3, 2)),
              ElementsAre("E2", "5", "1", "2", "5", "1H"));
  EXPECT_THAT(parts(plan_with("{last_stage_layers: 1}", 16, 4, 1)),
              ElementsAre("E5", "5", "5", "1H"));
}

TEST(StageLayers, InAVTheFirstStageHoldsBothEnds) {
  Plan plan = plan_with("{first_stage_layers: 2}", 14, 4, 1);
  plan.layout.schedule = ScheduleKind::ZbV;
  plan.layout.v = 2;
  EXPECT_THAT(parts(plan), ElementsAre("E1", "2", "2", "2", "2", "2", "2", "1H"));
}

TEST(StageLayers, ProgramsVerifyAndRun) {
  for (const auto& [stages, pp, v] : {std::tuple{"[0, 8, 8, 0]", 4, 1},
                                      {"[1, 3, 1, 3, 1, 3, 4, 0]", 4, 2},
                                      {"{first_stage_layers: 4, last_stage_layers: 2}", 3, 2},
                                      {"{last_stage_layers: 1}", 4, 1}}) {
    for (const int zero : {0, 1, 3}) {
      for (const auto schedule : {ScheduleKind::OneForwardOneBackward, ScheduleKind::ZbH1}) {
        Plan plan = plan_with(stages, 16, pp, v);
        if (v == 1) plan.layout.schedule = schedule;
        plan.layout.dp = 2;
        plan.layout.zero_stage = zero;
        plan.layout.overlap.dp = zero == 1;
        plan = plan_of(plan.model, plan.layout, 2 * pp);
        ASSERT_TRUE(check(plan).broken.empty()) << check(plan).broken.front().message;
        const program::Program program = lower(plan);
        const auto violations = program::verify(program);
        EXPECT_TRUE(violations.empty()) << stages << ": " << violations.front().message;
        EXPECT_TRUE(run(program, {.message = 1}).has_value()) << stages;
      }
    }
  }
}

// The parts are the same, only dealt differently: every count of the model is kept.
TEST(StageLayers, NothingIsLostOrDoubled) {
  const auto flops = [](const Plan& plan) {
    double sum = 0;
    for (const auto& list : lower(plan).kernel_lists) {
      for (const Kernel& kernel : list.kernels) sum += kernel.flops.count();
    }
    return sum;
  };
  const auto parameters = [](const Plan& plan) {
    std::int64_t sum = 0;
    for (int stage = 0; stage < plan.layout.pp; ++stage) {
      sum += memory_need(plan, stage).parameters.count();
    }
    return sum;
  };
  const Plan even = plan_with("even", 16, 4, 1);
  for (const char* stages : {"[3, 5, 5, 3]", "[0, 8, 8, 0]", "{first_stage_layers: 1}"}) {
    EXPECT_NEAR(flops(plan_with(stages, 16, 4, 1)) / flops(even), 1, 1e-12) << stages;
    EXPECT_EQ(parameters(plan_with(stages, 16, 4, 1)), parameters(even)) << stages;
  }
}

TEST(StageLayers, DocumentsGoBothWays) {
  for (const char* text : {"[3, 5, 5, 3]", "{first_stage_layers: 4, last_stage_layers: 2}",
                           "{account_for_loss: true}", "account_for_both"}) {
    Layout layout;
    layout.stages = parse(text);
    const Document document = to_document(layout);
    EXPECT_EQ(read_layout(Yaml::parse(document.dump(), "layout")), layout) << text;
  }
  EXPECT_FALSE(to_document(Layout{}).contains("stages"));
  EXPECT_TRUE(parse("even").is_even());
  EXPECT_EQ(parse("{account_for_loss: true}"), parse("account_for_loss"));
}

TEST(StageLayers, BadFormsAreRefusedWithTheirPlace) {
  for (const auto& [text, complaint] : {std::pair{"odd", "is not one of even"},
                                        {"[]", "names no stage"},
                                        {"[3, -1]", "-1"},
                                        {"{first: 3}", "first"},
                                        {"{first_stage_layers: 0}", "first_stage_layers"}}) {
    try {
      parse(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(complaint));
      EXPECT_THAT(error.what(), HasSubstr("stages:1"));
    }
  }
}

struct Breach {
  std::string stages, message;
  int pp = 4, v = 1;
};

TEST(StageLayers, LawsNameEveryTerm) {
  const std::vector<Breach> breaches = {
      {"[4, 4, 4]", "stages has 3 entries, must have (pp 4 * v 1) = 4"},
      {"[4, 4, 4, 5]", "stages 4 + 4 + 4 + 5 = 17, but the model has 16 layers"},
      {"[8, 0, 4, 4]", "stages[1] = 0, must be at least 1 between the ends"},
      {"[16]", "stages [16] need pp > 1, but pp is 1", 1},
      {"account_for_loss", "(layers 16 + loss 1) 17 % (pp 4 * v 1) = 1, must be 0"},
      {"account_for_both", "(layers 16 + embedding 1 + loss 1) 18 % (pp 4 * v 1) = 2, must be 0"},
      {"{first_stage_layers: 3}",
       "layers 16 - first_stage_layers 3 = 13, % (3 stages * 1 chunks) = 1, must be 0"},
      {"{first_stage_layers: 8, last_stage_layers: 7}",
       "layers 16 - first_stage_layers 8 - last_stage_layers 7 = 1, must be at least 1 for each of "
       "the 2 chunks of the other stages"},
      {"{first_stage_layers: 8, last_stage_layers: 7}",
       "layers 16 - first_stage_layers 8 - last_stage_layers 7 = 1, must be 0 with pp 2", 2},
      {"{first_stage_layers: 7, last_stage_layers: 1}", "first_stage_layers 7 % v 2 = 1, must be 0",
       3, 2},
      {"{first_stage_layers: 4, account_for_loss: true}",
       "stages first_stage_layers 4 account_for_loss: either the layers of the first and last "
       "stage are given, or embedding and loss count as layers"},
  };
  for (const Breach& breach : breaches) {
    const Plan plan = plan_with(breach.stages, 16, breach.pp, breach.v);
    const auto broken = check(plan).broken;
    ASSERT_FALSE(broken.empty()) << breach.message;
    EXPECT_EQ(broken[0].message, breach.message);
  }
}

}  // namespace
}  // namespace foresail::planner
