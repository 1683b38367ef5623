// Optimizer states in host memory: which ops step them, what stays on the device, which laws hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "foresail/base/error.h"
#include "foresail/base/units.h"
#include "foresail/planner/live_memory.h"
#include "foresail/planner/plan.h"
#include "foresail/program/verifier.h"
#include "plans.h"

namespace foresail::planner {
namespace {

using program::Op;
using program::OpId;
using program::Program;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::int64_t kTerabyte = 1'000'000'000'000;

topologies::HostSpec host() {
  return {Bytes(2 * kTerabyte), Bandwidth::gigabytes_per_second(400),
          Bandwidth::gigabytes_per_second(25)};
}

Plan offloaded(const models::Model& model, const Layout& layout, int microbatches, double share) {
  Plan plan = plan_of(model, layout, microbatches);
  plan.layout.optimizer_offload = share;
  plan.cluster.node.host = host();
  return plan;
}

/// "copy offload.gradients 1024", by op of the host's and copy lanes.
std::vector<std::string> host_ops(const Program& program, int stage) {
  std::vector<std::string> lines;
  for (const Op& op : program.stages[static_cast<std::size_t>(stage)].ops) {
    if (op.pass != program::Pass::Optimizer || op.lane == Lane::Compute) continue;
    const Kernel& kernel = program.kernel_lists[op.kernels.value].kernels.front();
    lines.push_back(std::string(to_string(op.lane)) + " " + kernel.name + " " +
                    std::to_string(kernel.bytes.count()));
  }
  return lines;
}

std::vector<Kernel> updates_on_device(const Program& program) {
  std::vector<Kernel> kernels;
  for (const Op& op : program.stages[0].ops) {
    if (op.pass != program::Pass::Optimizer || op.lane != Lane::Compute) continue;
    kernels.push_back(program.kernel_lists[op.kernels.value].kernels.front());
  }
  return kernels;
}

std::int64_t parameters_of(const Program& program) {
  return updates_on_device(program).front().m;
}

// P parameters in bf16 with fp32 gradients: 4 P bytes down, 24 P of states, 4 P of gradients and
// 2 P of new parameters through host memory, 2 P up.
TEST(OptimizerOffload, GradientsGoDownAndParametersComeBack) {
  const std::int64_t all = parameters_of(lower(plan_of(plain_model(2), {}, 1)));
  const Program program = lower(offloaded(plain_model(2), {}, 1, 1));
  EXPECT_THAT(program::verify(program), IsEmpty());
  const auto bytes = [&](std::int64_t each) { return std::to_string(each * all); };
  EXPECT_THAT(host_ops(program, 0),
              ElementsAre("copy offload.gradients " + bytes(4), "host offload.update " + bytes(30),
                          "copy offload.parameters " + bytes(2)));
  EXPECT_THAT(updates_on_device(program), IsEmpty());
}

TEST(OptimizerOffload, AShareStaysOnTheDevice) {
  const std::int64_t all = parameters_of(lower(plan_of(plain_model(2), {}, 1)));
  const Program program = lower(offloaded(plain_model(2), {}, 1, 0.25));
  ASSERT_THAT(updates_on_device(program), SizeIs(1));
  EXPECT_EQ(updates_on_device(program)[0].m, all - all / 4);
  EXPECT_THAT(host_ops(program, 0), SizeIs(3));
}

TEST(OptimizerOffload, OnlyTheShardCrosses) {
  Layout layout;
  layout.dp = 4;
  layout.zero_stage = 1;
  const std::int64_t shard = parameters_of(lower(plan_of(plain_model(2), layout, 1)));
  const Program program = lower(offloaded(plain_model(2), layout, 1, 1));
  EXPECT_THAT(program::verify(program), IsEmpty());
  EXPECT_EQ(host_ops(program, 0)[0], "copy offload.gradients " + std::to_string(4 * shard));
}

// The gathers of new parameters wait for the last of them to be back.
TEST(OptimizerOffload, GathersWaitForTheHost) {
  Layout layout;
  layout.dp = 4;
  layout.zero_stage = 1;
  const Program program = lower(offloaded(plain_model(2), layout, 1, 0.5));
  const auto& ops = program.stages[0].ops;
  bool is_gathered = false;
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[OpId{i}];
    if (op.payload != program::Payload::ChunkParameters) continue;
    is_gathered = true;
    bool waits_for_copy = false;
    bool waits_for_device = false;
    for (const OpId before : op.after) {
      waits_for_copy |= ops[before].lane == Lane::Copy;
      waits_for_device |= ops[before].lane == Lane::Compute;
    }
    EXPECT_TRUE(waits_for_copy && waits_for_device);
  }
  EXPECT_TRUE(is_gathered);
}

// With overlap a chunk's gradients go down while the other chunks' passes still run.
TEST(OptimizerOffload, GradientsGoDownBesideBackwardPasses) {
  Layout layout = pipeline(2, 2, 2);
  layout.overlap.dp = true;
  const Program program = lower(offloaded(plain_model(4), layout, 4, 1));
  EXPECT_THAT(program::verify(program), IsEmpty());
  const auto& ops = program.stages[0].ops;
  std::uint32_t first_copy = 0;
  std::uint32_t last_backward = 0;
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    if (ops[OpId{i}].lane == Lane::Copy && first_copy == 0) first_copy = i;
    if (ops[OpId{i}].pass == program::Pass::Backward) last_backward = i;
  }
  EXPECT_LT(first_copy, last_backward);
}

// 128 Mi parameters a piece: a piece crosses while the next is updated.
TEST(OptimizerOffload, LargeShardsGoPieceByPiece) {
  models::Model model = plain_model(2);
  model.hidden = 4096;
  model.heads = 32;
  model.kv_heads = 32;
  model.head_size = 128;
  model.ffn = 16384;
  const Program program = lower(offloaded(model, {}, 1, 1));
  const std::int64_t all = parameters_of(lower(plan_of(model, {}, 1)));
  const auto pieces = static_cast<std::size_t>((all + (128 << 20) - 1) / (128 << 20));
  ASSERT_GT(pieces, 1U);
  EXPECT_THAT(host_ops(program, 0), SizeIs(1 + 2 * pieces));
  EXPECT_EQ(host_ops(program, 0)[1], "host offload.update " + std::to_string(30LL * (128 << 20)));
}

// 12 bytes a parameter leave the device; the host gets them, 4 of gradients and 2 of parameters.
TEST(OptimizerOffload, StatesLeaveTheDevice) {
  const Plan with = offloaded(plain_model(2), {}, 1, 1);
  const Plan without = plan_of(plain_model(2), {}, 1);
  const std::int64_t all = parameters_of(lower(without));
  EXPECT_EQ(memory_need(without, 0).optimizer, all * 12_B);
  EXPECT_EQ(memory_need(with, 0).optimizer, 0_B);
  EXPECT_EQ(memory_need(with, 0).gradients, memory_need(without, 0).gradients);
}

TEST(OptimizerOffload, HostMemoryIsNeverExceeded) {
  Plan plan = offloaded(plain_model(2), {}, 1, 1);
  EXPECT_TRUE(check(plan).is_feasible());
  const std::int64_t all = parameters_of(lower(plan_of(plain_model(2), {}, 1)));
  plan.cluster.node.host.memory = Bytes(18 * all);
  EXPECT_TRUE(check(plan).is_feasible());
  plan.cluster.node.host.memory = Bytes(18 * all - 1);
  EXPECT_THAT(check(plan).out_of_memory, HasSubstr("a host needs"));
}

// Copies of a chunk's gradients are no passes of it.
TEST(OptimizerOffload, MemoryOverTimeKnowsNoCopies) {
  const Plan plan = offloaded(plain_model(4), pipeline(2, 2, 2), 4, 1);
  const Program program = lower(plan);
  const program::StageMemory memory = live_memory(plan, program, 0);
  for (const program::LiveTensor& tensor : memory.resident) {
    EXPECT_NE(tensor.category, program::MemoryCategory::Optimizer);
  }
  EXPECT_EQ(
      memory.lives.size(),
      live_memory(offloaded(plain_model(4), pipeline(2, 2, 2), 4, 0), program, 0).lives.size());
}

TEST(OptimizerOffload, LawsNameWhatIsMissing) {
  Plan plan = offloaded(plain_model(2), {}, 1, 0.5);
  plan.training.optimizer = program::Optimizer::Lamb;
  plan.cluster.node.host = {};
  std::vector<std::string> names;
  for (const BrokenLaw& law : check(plan).broken) names.push_back(law.name);
  EXPECT_THAT(names, ElementsAre("optimizer_offload_needs_host", "optimizer_offload_needs_adam"));
}

TEST(OptimizerOffload, LayoutDocumentsKeepIt) {
  Layout layout;
  layout.optimizer_offload = 0.375;
  EXPECT_EQ(read_layout(Yaml::parse(to_document(layout).dump(), "layout")), layout);
  EXPECT_FALSE(to_document(Layout{}).contains("optimizer_offload"));
  EXPECT_THROW(read_layout(Yaml::parse("optimizer_offload: 1.5", "layout")), Error);
  EXPECT_THROW(read_layout(Yaml::parse("optimizer_offload: -0.1", "layout")), Error);
  EXPECT_THROW(read_layout(Yaml::parse("optimizer_offload: .nan", "layout")), Error);
}

}  // namespace
}  // namespace foresail::planner
