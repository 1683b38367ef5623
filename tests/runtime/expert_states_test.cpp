// Experts whose states are shared by groups, and whose matrices LAMB scales.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "calibration.h"
#include "observed_step.h"
#include "parity.h"
#include "state_sync.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using planner::Layout;
using planner::Plan;
using planner::ScheduleKind;
using program::Payload;
using runtime::Parameter;

constexpr int kSteps = 4;
constexpr double kDecay = 0.01;

/// Gates, and a dense layer in front.
void use_gated_experts(Plan& plan) {
  use_shared_experts(plan);
  plan.model.experts.shared = 1;
}

void use_lamb(Plan& plan) {
  plan.training.optimizer = program::Optimizer::Lamb;
  plan.training.weight_decay = kDecay;
  plan.training.learning_rate = 0.015;
}

struct Degrees {
  int tp = 1, cp = 1, dp = 1, pp = 1, ep = 1, etp = 1;
};

struct Sharing {
  int zero_stage = 0, shard_size = 0;
  bool overlaps = false;
};

Layout layout_of(const Degrees& degrees, const Sharing& sharing = {}) {
  Layout layout;
  layout.tp = degrees.tp;
  layout.sequence_parallel = degrees.tp > 1;
  layout.cp = degrees.cp;
  layout.dp = degrees.dp;
  layout.pp = degrees.pp;
  layout.ep = degrees.ep;
  layout.etp = degrees.etp;
  layout.zero_stage = sharing.zero_stage;
  layout.shard_size = sharing.shard_size;
  layout.overlap.dp = sharing.overlaps;
  return layout;
}

Layout mirrored(Layout layout) {
  layout.schedule = ScheduleKind::DualPipe;
  layout.v = 2;
  return layout;
}

std::vector<Layout> layouts_without_groups() {
  return {
      layout_of({.dp = 2, .ep = 2}),
      layout_of({.tp = 2, .dp = 2, .ep = 2, .etp = 2}),
      layout_of({.tp = 2, .dp = 2, .ep = 2}, {.zero_stage = 1}),
      layout_of({.dp = 4, .ep = 2}, {.zero_stage = 1, .overlaps = true}),
      layout_of({.dp = 4, .ep = 2}, {.zero_stage = 2}),
      layout_of({.dp = 4, .ep = 2}, {.zero_stage = 3, .overlaps = true}),
      layout_of({.tp = 2, .dp = 2, .etp = 2}, {.zero_stage = 1, .overlaps = true}),
      layout_of({.tp = 2, .dp = 2, .etp = 2}, {.zero_stage = 3}),
      layout_of({.tp = 2, .pp = 2, .ep = 2}, {.zero_stage = 2}),
      mirrored(layout_of({.pp = 2})),
      mirrored(layout_of({.dp = 2, .pp = 2, .ep = 2}, {.zero_stage = 1})),
      mirrored(layout_of({.dp = 2, .pp = 2}, {.zero_stage = 2, .overlaps = true})),
  };
}

/// Two groups that shard have two copies of each expert, or one, which the group keeps whole.
std::vector<Layout> layouts_with_groups() {
  std::vector<Layout> all;
  for (const int zero_stage : {1, 2, 3}) {
    const bool overlaps = zero_stage != 1;
    const Sharing sharing{zero_stage, 2, overlaps};
    all.push_back(layout_of({.dp = 4}, sharing));
    all.push_back(layout_of({.dp = 4, .ep = 2}, {zero_stage, 2, !overlaps}));
    all.push_back(layout_of({.tp = 2, .dp = 4, .ep = 2, .etp = 1}, sharing));
  }
  all.push_back(layout_of({.tp = 2, .dp = 4, .etp = 2}, {1, 2, true}));
  all.push_back(layout_of({.tp = 2, .dp = 4, .ep = 2, .etp = 2}, {3, 2, false}));
  all.push_back(layout_of({.cp = 2, .dp = 2, .ep = 2}, {2, 2, false}));
  all.push_back(layout_of({.dp = 4, .pp = 2, .ep = 2}, {2, 2, true}));
  all.push_back(mirrored(layout_of({.cp = 2, .dp = 2, .pp = 2}, {1, 2, true})));
  return all;
}

using Change = std::function<void(Plan&)>;

void expect_legal(const TinyPlan& tiny) {
  const Plan plan = make_plan(tiny);
  const int ranks = plan.layout.world_size();
  for (const auto& law : planner::check_laws(plan.model, plan.layout, plan.training, ranks)) {
    ADD_FAILURE() << law.message;
  }
}

runtime::Job lamb_job(const Layout& layout, const Change& model = use_experts) {
  return cli::make_job(make_plan({.layout = layout, .change = [&](Plan& plan) {
                                    model(plan);
                                    use_lamb(plan);
                                  }}));
}

/// Every layout trains what one process does, in turn on each model.
void expect_parity(const std::vector<Layout>& layouts, const Change& optimizer) {
  std::vector<Change> models;
  std::vector<Curve> truths;
  for (const Change& model : {Change(use_experts), Change(use_gated_experts)}) {
    models.emplace_back([=](Plan& plan) {
      model(plan);
      optimizer(plan);
    });
    truths.push_back(train({.layout = {}, .change = models.back()}, kSteps));
  }
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const std::size_t at = i % models.size();
    SCOPED_TRACE(std::to_string(at) + ": " + describe(layouts[i]));
    expect_legal({.layout = layouts[i], .change = models[at]});
    if (::testing::Test::HasFailure()) return;
    expect_equal(train({.layout = layouts[i], .change = models[at]}, kSteps), truths[at]);
  }
}

TEST(ExpertStates, LambOnAnySpreadEqualsOneProcess) {
  expect_parity(layouts_without_groups(), use_lamb);
}

TEST(ExpertStates, LambInGroupsThatShardEqualsOneProcess) {
  expect_parity(layouts_with_groups(), use_lamb);
}

TEST(ExpertStates, AdamInGroupsThatShardEqualsOneProcess) {
  expect_parity(layouts_with_groups(), [](Plan&) {});
}

/// With a capacity, shapes of all GEMMs are those of the Program too.
TEST(ExpertStates, OpsAndGemmsAreThoseOfTheProgramOnEveryRank) {
  std::vector<Layout> all = layouts_without_groups();
  std::ranges::copy(layouts_with_groups(), std::back_inserter(all));
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(describe(all[i]));
    expect_step_of_program(cli::make_job(make_plan({.layout = all[i], .change = [&](Plan& plan) {
                                                      i % 2 == 0 ? use_experts(plan)
                                                                 : use_gated_experts(plan);
                                                      plan.model.experts.capacity_factor = 1;
                                                      use_lamb(plan);
                                                    }})));
  }
}

/// Alone, with stand-ins for the others of its groups.
TEST(ExpertStates, AStageInGroupsThatShardIsCalibratedKernelByKernel) {
  const runtime::Job job = lamb_job(layout_of({.tp = 2, .dp = 4, .etp = 2}, {3, 2, true}));
  runtime::CalibrateOptions options;
  options.job = &job;
  options.rank = 5;  // another shard than the first, in the second group
  options.budget = std::chrono::milliseconds(1);
  const runtime::StageTimes times = runtime::measure_stage(options);
  for (std::uint32_t list = 0; list < job.program.kernel_lists.size(); ++list) {
    const auto& kernels = job.program.kernel_lists[list].kernels;
    SCOPED_TRACE(job.program.kernel_lists[list].name);
    ASSERT_EQ(times.lists.at(list).size(), kernels.size());
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      if (kernels[i].kind == KernelKind::Collective) continue;
      EXPECT_GT(times.lists.at(list)[i], 0) << kernels[i].name;
    }
  }
}

/// One rank's parameters and their states, with gradients that follow from the values: whatever
/// the layout, an element has the same.
struct RankStates {
  RankStates(const runtime::Job& job, RankId rank)
      : device(runtime::make_cpu_device()),
        place(runtime::MeshPlace::of(job.program, rank)),
        stage(job, rank),
        state(job, stage, place, *device) {
    std::vector<runtime::Bucket*> buckets = stage.all_buckets();
    for (std::size_t chunk = 0; chunk < stage.chunk_count(); ++chunk) {
      buckets.push_back(stage.expert_bucket(static_cast<int>(chunk)));
    }
    for (runtime::Bucket* bucket : buckets) {
      if (bucket != nullptr) bucket->grads().copy_(gradient_of(bucket->values()));
    }
  }

  static at::Tensor gradient_of(const at::Tensor& values) { return (values * 40).sin_(); }

  std::unique_ptr<runtime::Device> device;
  runtime::MeshPlace place;
  runtime::Stage stage;
  runtime::StateSync state;
};

constexpr runtime::StateSync::OptimizerStep kStep{.gradient_norm = 1, .learning_rate = 0.25};

/// LAMB's first update of a matrix before it is scaled: Adam's direction, and the decay.
at::Tensor update_of(const at::Tensor& matrix) {
  const at::Tensor grad = RankStates::gradient_of(matrix).to(at::kDouble);
  return grad / (grad.abs() + 1e-8) + kDecay * matrix.to(at::kDouble);
}

double norm_of(const at::Tensor& values) {
  return at::linalg_vector_norm(values.to(at::kDouble)).item<double>();
}

/// Of a parameter [experts, rows, columns].
void expect_scaled_by_itself(const at::Tensor& before, const at::Tensor& after) {
  for (std::int64_t expert = 0; expert < before.size(0); ++expert) {
    const at::Tensor old = before.select(0, expert);
    const at::Tensor update = update_of(old);
    const double factor = kStep.learning_rate * norm_of(old) / norm_of(update);
    const at::Tensor moved = (after.select(0, expert) - old).to(at::kDouble);
    EXPECT_LE(norm_of(moved + factor * update), 1e-5 * norm_of(moved)) << expert;
  }
}

TEST(ExpertStates, LambScalesEachMatrixOfEachExpertByItself) {
  for (const Change& model : {Change(use_experts), Change(use_gated_experts)}) {
    const runtime::Job job = lamb_job({}, model);
    RankStates rank(job, RankId{0});
    runtime::Bucket& bucket = *rank.stage.expert_bucket(0);
    std::vector<at::Tensor> before;
    for (const auto& parameter : bucket.parameters()) {
      // Each expert is longer than the one in front by half, so that lumps of them would show.
      for (std::int64_t expert = 1; expert < parameter->value.size(0); ++expert) {
        parameter->value.narrow(0, expert, parameter->value.size(0) - expert).mul_(1.5);
      }
      parameter->grad.copy_(RankStates::gradient_of(parameter->value));
      before.push_back(parameter->value.clone());
    }
    rank.state.optimize("optimizer", kStep);
    rank.state.optimize("optimizer.apply", kStep);
    int matrices = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const Parameter& parameter = *bucket.parameters()[i];
      if (!parameter.is_matrix()) continue;
      SCOPED_TRACE(parameter.name);
      expect_scaled_by_itself(before[i], parameter.value);
      ++matrices;
    }
    EXPECT_EQ(matrices, 2 * models::expert_layers(job.model));
  }
}

/// A group of which one rank is there: keeps what that rank adds to a sum.
class ListeningCommunicator : public runtime::Communicator {
 public:
  ListeningCommunicator(int rank, int size) : Communicator("listening", rank, size) {}
  void all_reduce(at::Tensor& tensor, runtime::Reduction) override { heard = tensor.clone(); }
  void all_gather(const at::Tensor&, at::Tensor&) override {}
  void reduce_scatter(const at::Tensor&, at::Tensor&) override {}
  void broadcast(at::Tensor&, int) override {}
  void all_to_all(const at::Tensor&, at::Tensor&) override {}
  void all_to_all_rows(const at::Tensor&, const std::vector<std::int64_t>&, at::Tensor&,
                       const std::vector<std::int64_t>&) override {}
  void send(const at::Tensor&, int) override {}
  void recv(at::Tensor&, int) override {}
  void exchange(const at::Tensor&, int, at::Tensor&, int) override {}
  void barrier() override {}
  std::unique_ptr<Communicator> split(int, int) override { return nullptr; }
  void abort() override {}

  at::Tensor heard;
};

/// The sums of one group.
struct GroupNorms {
  program::GridKind grid = program::GridKind::Dense;
  int ep = 0;  ///< whose experts
  at::Tensor sums;
};

/// What the ranks of every group add up to.
std::map<std::pair<std::string, RankId>, GroupNorms> all_norms(const runtime::Job& job) {
  std::map<std::pair<std::string, RankId>, GroupNorms> groups;
  const program::Program& program = job.program;
  for (std::uint32_t at = 0; at < static_cast<std::uint32_t>(program.grid.world_size()); ++at) {
    const RankId rank{at};
    RankStates own(job, rank);
    own.state.optimize("optimizer", kStep);
    for (const program::Op& op : program.of(rank).ops) {
      if (op.payload != Payload::UpdateNorms) continue;
      const program::Communicator& described = program.communicators[op.communicator.value];
      const std::vector<RankId> members = program.members(op.communicator, rank);
      const auto place = std::ranges::find(members, rank) - members.begin();
      ListeningCommunicator group(static_cast<int>(place), static_cast<int>(members.size()));
      own.state.run(op, group);
      GroupNorms& norms = groups[{described.name, members.front()}];
      norms.grid = described.grid;
      norms.ep = own.place.experts.ep;
      norms.sums = norms.sums.defined() ? norms.sums + group.heard : group.heard;
    }
  }
  return groups;
}

/// Squared norms of a matrix and of its update.
void add_norms(const at::Tensor& matrix, std::vector<double>& to) {
  for (const at::Tensor& of : {matrix, update_of(matrix)}) to.push_back(std::pow(norm_of(of), 2));
}

/// Of the whole model in one process: all matrices but experts', or those of the experts that
/// place `ep` of `parts` has.
std::vector<double> plain_norms(runtime::Stage& whole, const GroupNorms& group, int parts) {
  std::vector<double> norms;
  const bool of_experts = group.grid == program::GridKind::Expert;
  const runtime::Bucket& bucket = of_experts ? *whole.expert_bucket(0) : whole.bucket(0);
  for (const auto& parameter : bucket.parameters()) {
    if (!parameter->is_matrix()) continue;
    const at::Tensor& values = parameter->value;
    if (!of_experts) {
      add_norms(values, norms);
      continue;
    }
    const std::int64_t local = values.size(0) / parts;
    for (std::int64_t expert = 0; expert < local; ++expert) {
      add_norms(values.select(0, group.ep * local + expert), norms);
    }
  }
  return norms;
}

struct NormsCase {
  Layout layout;
  std::vector<std::string> groups;  ///< that tell each other norms
};

std::vector<NormsCase> norms_cases() {
  return {
      {layout_of({.dp = 2, .ep = 2}), {}},
      {layout_of({.tp = 2, .etp = 2}), {"etp", "tp"}},
      {layout_of({.tp = 2, .dp = 2, .ep = 2, .etp = 2}), {"etp", "tp"}},
      {layout_of({.tp = 2, .ep = 2}), {"tp"}},
      {layout_of({.dp = 4, .ep = 2}, {.zero_stage = 1}), {"dp", "edp"}},
      {layout_of({.tp = 2, .dp = 2}, {.zero_stage = 1}), {"edp", "norms"}},
      {layout_of({.tp = 2, .dp = 2, .etp = 2}, {.zero_stage = 1}), {"expert_norms", "norms"}},
      {layout_of({.dp = 4}, {1, 2}), {"expert_shard", "shard"}},
      {layout_of({.dp = 4, .ep = 2}, {1, 2}), {"shard"}},
      // The sums over tp and all of dp span two copies of every shard.
      {layout_of({.tp = 2, .dp = 4, .etp = 2}, {1, 2}), {"expert_norms", "norms"}},
      {layout_of({.tp = 2, .dp = 4, .ep = 2, .etp = 2}, {1, 2}), {"etp", "norms"}},
      {layout_of({.tp = 2, .dp = 4, .ep = 2}, {1, 2}), {"expert_shard", "norms"}},
  };
}

TEST(ExpertStates, EveryElementCountsOnceInTheNormsOfItsMatrix) {
  const runtime::Job one = lamb_job({});
  runtime::Stage whole(one, RankId{0});
  for (const NormsCase& each : norms_cases()) {
    SCOPED_TRACE(describe(each.layout));
    std::vector<std::string> names;
    for (const auto& [key, group] : all_norms(lamb_job(each.layout))) {
      const std::string& name = key.first;
      SCOPED_TRACE(name + " of rank " + std::to_string(key.second.value));
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
      const std::vector<double> expected = plain_norms(whole, group, each.layout.ep);
      ASSERT_EQ(group.sums.numel(), static_cast<std::int64_t>(expected.size()));
      const at::Tensor sums = group.sums.to(at::kDouble);
      EXPECT_TRUE(at::allclose(sums, at::tensor(expected, at::kDouble), 1e-4, 0));
    }
    EXPECT_EQ(names, each.groups);
  }
}

}  // namespace
}  // namespace foresail::testing
