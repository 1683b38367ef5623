// Recomputation of some layers, of several layers together, and of single modules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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

Recomputation parse(const std::string& text) {
  return read_recomputation(Yaml::parse(text, "recompute"));
}

/// pp 2 with `layers` layers on each stage.
Plan plan_with(const std::string& recompute, int layers) {
  Layout layout = pipeline(2, 1, 0);
  layout.recompute = parse(recompute);
  return plan_of(plain_model(2 * layers), layout, 4);
}

const std::vector<Kernel>& kernels(const program::Program& program, const std::string& list) {
  for (const auto& each : program.kernel_lists) {
    if (each.name == list) return each.kernels;
  }
  ADD_FAILURE() << "no list " << list;
  return program.kernel_lists.front().kernels;
}

/// Of stage 0's layers: "again" for the forward of one that is made again, "back" for the backward.
std::vector<std::string> backward_of(const Plan& plan) {
  std::vector<std::string> order;
  const program::Program program = lower(plan);
  for (const Kernel& kernel : kernels(program, "stage0.chunk0.backward")) {
    if (kernel.name == "norm1.recompute") order.emplace_back("again");
    if (kernel.name == "norm1.backward") order.emplace_back("back");
  }
  return order;
}

double recomputed_flops(const Plan& plan) {
  double flops = 0;
  const program::Program program = lower(plan);
  for (const Kernel& kernel : kernels(program, "stage0.chunk0.backward")) {
    if (kernel.name.ends_with(".recompute")) flops += kernel.flops.count();
  }
  return flops;
}

TEST(Recompute, BlockCoversTheFirstLayersOfEachChunk) {
  EXPECT_THAT(backward_of(plan_with("{method: block, layers: 1}", 3)),
              ElementsAre("back", "back", "again", "back"));
  EXPECT_THAT(backward_of(plan_with("{method: block, layers: 2}", 3)),
              ElementsAre("back", "again", "back", "again", "back"));
  EXPECT_EQ(backward_of(plan_with("{method: block, layers: 3}", 3)),
            backward_of(plan_with("full", 3)));
}

TEST(Recompute, UniformRunsLayersTogether) {
  EXPECT_THAT(backward_of(plan_with("{method: uniform, layers: 2}", 3)),
              ElementsAre("again", "back", "again", "again", "back", "back"));
  EXPECT_THAT(backward_of(plan_with("{method: uniform, layers: 3}", 3)),
              ElementsAre("again", "again", "again", "back", "back", "back"));
  EXPECT_EQ(backward_of(plan_with("{method: uniform, layers: 1}", 3)),
            backward_of(plan_with("full", 3)));
  EXPECT_EQ(parse("{method: uniform, layers: 1}"), parse("full"));
}

TEST(Recompute, WorkAndMemoryAreThoseOfTheLayersCovered) {
  const double all = recomputed_flops(plan_with("full", 4));
  EXPECT_EQ(recomputed_flops(plan_with("none", 4)), 0);
  for (const int layers : {1, 2, 3, 4}) {
    const std::string block = "{method: block, layers: " + std::to_string(layers) + "}";
    EXPECT_DOUBLE_EQ(recomputed_flops(plan_with(block, 4)), all * layers / 4);
    const std::string uniform = "{method: uniform, layers: " + std::to_string(layers) + "}";
    EXPECT_DOUBLE_EQ(recomputed_flops(plan_with(uniform, 4)), all);
  }
  // Kept by stage 1, which has one microbatch in flight; its head keeps the same in every case.
  const auto kept = [](const std::string& recompute) {
    return memory_need(plan_with(recompute, 4), 1).activations.count();
  };
  const std::int64_t layer = (kept("none") - kept("full")) / 4;  // saved by covering one layer
  EXPECT_EQ(kept("{method: block, layers: 1}"), kept("none") - layer);
  EXPECT_EQ(kept("{method: block, layers: 3}"), kept("none") - 3 * layer);
  // A group of layers keeps one input: 64 tokens of 1024 elements in 16 bits.
  EXPECT_EQ(kept("{method: uniform, layers: 2}"), kept("full") - 2 * (64 * 1024 * 2));
  EXPECT_EQ(kept("{method: uniform, layers: 4}"), kept("full") - 3 * (64 * 1024 * 2));
  // But all of the group is there again at once.
  const auto peak = [](const std::string& recompute) {
    return memory_need(plan_with(recompute, 4), 1).buffers.count();
  };
  EXPECT_GT(peak("{method: uniform, layers: 4}"), peak("full") + 2 * layer);
}

// Bytes per sbh of a GPT layer without dropout under flash attention: 32 (34 without the masks),
// of which outputs of norms 4, of the activation 8, all between norm 2 and fc2 16.
TEST(Recompute, ModulesDropTheirTensors) {
  const auto kept = [](const std::string& recompute) {
    Plan plan = plan_with(recompute, 4);
    plan.stack.flash_attention = true;
    const std::int64_t head =
        memory_need(plan_with("full", 4), 1).activations.count() - 4 * (64 * 1024 * 2);
    return (memory_need(plan, 1).activations.count() - head) / (4 * 64 * 1024);
  };
  EXPECT_EQ(kept("none"), 32);
  EXPECT_EQ(kept("selective"), 32);
  EXPECT_EQ(kept("[norm]"), 28);
  EXPECT_EQ(kept("[activation]"), 24);
  EXPECT_EQ(kept("[mlp]"), 16);
  EXPECT_EQ(kept("[norm, mlp]"), 12);
  EXPECT_EQ(kept("[mlp, activation]"), 16);
  EXPECT_EQ(kept("full"), 2);
}

TEST(Recompute, ModulesRunAgainWhereTheyAreNeeded) {
  const auto names = [](const std::string& recompute) {
    std::vector<std::string> found;
    Plan plan = plan_with(recompute, 1);
    plan.stack.flash_attention = false;
    const program::Program program = lower(plan);
    for (const Kernel& kernel : kernels(program, "stage0.chunk0.backward")) {
      const bool is_anchor =
          kernel.name == "fc1.dgrad" || kernel.name == "fc2.dgrad" || kernel.name == "qkv.dgrad";
      if (is_anchor || kernel.name.ends_with(".recompute")) found.push_back(kernel.name);
    }
    return found;
  };
  EXPECT_THAT(names("[norm]"), ElementsAre("norm2.recompute", "fc2.dgrad", "fc1.dgrad",
                                           "norm1.recompute", "qkv.dgrad"));
  EXPECT_THAT(names("[activation]"),
              ElementsAre("activation.recompute", "fc2.dgrad", "fc1.dgrad", "qkv.dgrad"));
  EXPECT_THAT(names("[mlp]"), ElementsAre("fc1.recompute", "activation.recompute", "fc2.recompute",
                                          "fc2.dgrad", "fc1.dgrad", "qkv.dgrad"));
  EXPECT_THAT(names("selective"), names("[core_attention]"));
}

/// Experts in every second layer, all dense otherwise.
Plan mixture_with(const std::string& recompute, int layers) {
  Plan plan = plan_with(recompute, layers);
  plan.model.biases = false;
  plan.model.experts = {.count = 4, .per_token = 2, .ffn = 1024};
  plan.model.experts.every = 2;
  plan.model.experts.shared = 1;
  plan.model.experts.shared_ffn = 512;
  plan.layout.dp = 2;
  plan.layout.ep = 2;
  return plan_of(plan.model, plan.layout, 4);
}

// Layers 0 and 2 of a stage have experts (router), 1 has an MLP (fc1).
TEST(Recompute, LayersOfBothKindsRunAgainInTheirOrder) {
  const auto order = [](const std::string& recompute) {
    std::vector<std::string> found;
    const program::Program program = lower(mixture_with(recompute, 4));
    for (const Kernel& kernel : kernels(program, "stage0.chunk0.backward")) {
      if (kernel.name == "router.recompute") found.emplace_back("again experts");
      if (kernel.name == "fc1.recompute") found.emplace_back("again mlp");
      if (kernel.name == "router.dgrad") found.emplace_back("experts");
      if (kernel.name == "fc1.dgrad") found.emplace_back("mlp");
    }
    return found;
  };
  EXPECT_THAT(order("{method: block, layers: 1}"),
              ElementsAre("mlp", "experts", "mlp", "again experts", "experts"));
  EXPECT_THAT(order("{method: uniform, layers: 2}"),
              ElementsAre("again experts", "again mlp", "mlp", "experts", "again experts",
                          "again mlp", "mlp", "experts"));
  EXPECT_THAT(order("{method: uniform, layers: 3}"),
              ElementsAre("again mlp", "mlp", "again experts", "again mlp", "again experts",
                          "experts", "mlp", "experts"));
}

// A group keeps its first layer's input; at its fullest all of its layers are there at once.
TEST(Recompute, GroupsOfBothKindsKeepOneInput) {
  const auto need = [](const std::string& recompute) {
    return memory_need(mixture_with(recompute, 4), 1);
  };
  const std::int64_t input = 64 * 1024 * 2;
  const auto kept = [&](const std::string& recompute) {
    return need(recompute).activations.count();
  };
  EXPECT_EQ(kept("{method: uniform, layers: 2}"), kept("full") - 2 * input);
  EXPECT_EQ(kept("{method: uniform, layers: 4}"), kept("full") - 3 * input);
  // All four layers, of both kinds, keep all: their inputs are counted in both.
  const std::int64_t layers = kept("none") - kept("full");
  EXPECT_GE(need("{method: uniform, layers: 4}").buffers.count(), layers);
  // Block covers the first layers, which differ.
  const std::int64_t first = kept("none") - kept("{method: block, layers: 1}");
  const std::int64_t second =
      kept("{method: block, layers: 1}") - kept("{method: block, layers: 2}");
  EXPECT_NE(first, second);
  EXPECT_EQ(kept("none") - kept("{method: block, layers: 4}"), 2 * (first + second));
}

// Per layer of experts, in tensors of 64 tokens * 2 bytes: outputs of two norms 2 h; activations of
// 2 copies of f 1024 and of shared 512; all but the router's input: probabilities in fp32 of 4
// experts, twice 2 copies of h, 2 copies of f in front of and behind the activation, and both of
// the shared one.
TEST(Recompute, ModulesOfExpertsDropTheirTensors) {
  const auto kept = [](const std::string& recompute) {
    Plan plan = mixture_with(recompute, 4);
    plan.model.experts.every = 1;
    plan.stack.flash_attention = true;
    return memory_need(plan, 1).activations.count() / (64 * 2);
  };
  const std::int64_t none = kept("none");
  const std::int64_t layers = 4, h = 1024, f = 1024, shared = 512;
  EXPECT_EQ(none - kept("[norm]"), layers * 2 * h);
  EXPECT_EQ(none - kept("[activation]"), layers * (2 * f + shared));
  EXPECT_EQ(none - kept("[mlp]"), layers * (2 * 4 + 4 * h + 4 * f + 2 * shared));
  EXPECT_EQ(none - kept("[norm, mlp]"), layers * (2 * h + 2 * 4 + 4 * h + 4 * f + 2 * shared));
  EXPECT_EQ(kept("[mlp, activation]"), kept("[mlp]"));
}

TEST(Recompute, ModulesOfExpertsRunAgainWhereTheyAreNeeded) {
  const auto names = [](const std::string& recompute, bool stops_early) {
    std::vector<std::string> found;
    Plan plan = mixture_with(recompute, 1);
    plan.stack.early_stop_recompute = stops_early;
    const program::Program program = lower(plan);
    for (const Kernel& kernel : kernels(program, "stage0.chunk0.backward")) {
      const bool is_anchor = kernel.name == "experts.fc2.dgrad" ||
                             kernel.name == "shared_fc2.dgrad" || kernel.name == "router.dgrad";
      if (is_anchor || kernel.name.ends_with(".recompute")) found.push_back(kernel.name);
    }
    return found;
  };
  EXPECT_THAT(names("[activation]", false),
              ElementsAre("shared_activation.recompute", "shared_fc2.dgrad",
                          "experts.activation.recompute", "experts.fc2.dgrad", "router.dgrad"));
  EXPECT_THAT(names("[norm]", false),
              ElementsAre("norm2.recompute", "shared_fc2.dgrad", "experts.fc2.dgrad",
                          "router.dgrad", "norm1.recompute"));
  const std::vector<std::string> early = names("[mlp]", true);
  EXPECT_THAT(early,
              testing::IsSupersetOf({"router.recompute", "ep.dispatch.recompute",
                                     "experts.fc2.recompute", "ep.combine.recompute",
                                     "shared_fc1.recompute", "shared_activation.recompute"}));
  EXPECT_THAT(early, testing::Not(testing::Contains("shared_fc2.recompute")));
  EXPECT_THAT(names("[mlp]", false),
              testing::IsSupersetOf({"shared_fc2.recompute", "shared.add.recompute"}));
}

TEST(Recompute, ProgramsVerifyUnderEveryKindOfBackward) {
  for (const char* recompute : {"{method: block, layers: 1}", "{method: uniform, layers: 2}",
                                "[norm, mlp]", "[core_attention, activation]"}) {
    for (const auto kind : {ScheduleKind::OneForwardOneBackward, ScheduleKind::ZbH1}) {
      Plan plan = plan_with(recompute, 3);
      plan.layout.schedule = kind;
      const program::Program program = lower(plan);
      EXPECT_TRUE(program::verify(program).empty()) << recompute;
      EXPECT_TRUE(run(program, {.message = 1}).has_value()) << recompute;
    }
  }
}

// Without a pipeline the chunks are buckets of gradients, and block counts layers of the model.
TEST(Recompute, BlockCountsLayersOfTheModelAcrossBuckets) {
  Layout layout;
  layout.dp = 2;
  layout.zero_stage = 3;
  layout.recompute = parse("{method: block, layers: 2}");
  const program::Program program = lower(plan_of(plain_model(4), layout, 1));
  std::vector<bool> again;
  for (int chunk = 0; chunk < 4; ++chunk) {
    const auto& list = kernels(program, "stage0.chunk" + std::to_string(chunk) + ".backward");
    again.push_back(std::ranges::any_of(
        list, [](const Kernel& kernel) { return kernel.name == "norm1.recompute"; }));
  }
  EXPECT_THAT(again, ElementsAre(true, true, false, false));
}

TEST(Recompute, DocumentsGoBothWays) {
  for (const char* text : {"none", "selective", "full", "[norm]", "[core_attention, mlp]",
                           "{method: block, layers: 3}", "{method: uniform, layers: 4}"}) {
    Layout layout;
    layout.recompute = parse(text);
    EXPECT_EQ(read_layout(Yaml::parse(to_document(layout).dump(), "layout")), layout) << text;
  }
  EXPECT_EQ(to_document(parse("[core_attention]")), Document("selective"));
}

TEST(Recompute, BadFormsAreRefusedWithTheirPlace) {
  for (const auto& [text, complaint] : {std::pair{"some", "some"},
                                        {"[]", "names no module"},
                                        {"[head]", "\"head\" is not one of"},
                                        {"[norm, norm]", "stands here twice"},
                                        {"{method: block}", "layers"},
                                        {"{method: block, layers: 0}", "layers"},
                                        {"{method: all, layers: 1}", "all"}}) {
    try {
      parse(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(complaint));
      EXPECT_THAT(error.what(), HasSubstr("recompute:1"));
    }
  }
}

}  // namespace
}  // namespace foresail::planner
