// All ranks in one process, without a network, train the weights that they train over Gloo.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "foresail/base/digest.h"
#include "foresail/base/document.h"
#include "foresail/base/error.h"
#include "foresail/runtime/local.h"
#include "foresail/runtime/store.h"
#include "foresail/runtime/weights.h"
#include "scratch_folder.h"
#include "thread_job.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using planner::Layout;
using planner::ScheduleKind;

constexpr int kSteps = 10;

struct Trained {
  std::string weights;  ///< digest of the file that all ranks wrote
  std::vector<double> losses;
  std::vector<double> norms;
  friend bool operator==(const Trained&, const Trained&) = default;
};

enum class Over { Gloo, Local };

Trained train(const TinyPlan& tiny, Over over) {
  const runtime::Job job = cli::make_job(make_plan(tiny));
  const std::filesystem::path path =
      test::scratch_folder() / (over == Over::Gloo ? "gloo.safetensors" : "local.safetensors");
  runtime::create_weights(path, job.model, job.training.sequence_length);
  runtime::LocalNetwork network{std::chrono::seconds(60)};
  JobHooks hooks;
  if (over == Over::Local) hooks.endpoint = [&](RankId) { return network.endpoint(); };
  hooks.after = [&](runtime::Trainer& trainer, RankId) { trainer.write_weights(path); };
  const std::vector<RankResult> ranks = run_job(job, kSteps, hooks);
  Trained made;
  made.weights = sha256(read_file(path));
  for (const runtime::StepSummary& step : ranks.front().steps) {
    made.losses.push_back(step.loss);
    made.norms.push_back(step.gradient_norm);
  }
  return made;
}

std::vector<Layout> layouts() {
  std::vector<Layout> all(8);
  all[0].tp = 2;
  all[1].tp = 2;
  all[1].sequence_parallel = true;
  all[1].dp = 2;
  all[1].zero_stage = 1;
  all[2].dp = 3;
  all[3].dp = 4;
  all[3].zero_stage = 3;
  all[3].overlap.dp = true;
  all[4].pp = 4;
  all[5].pp = 2;
  all[5].v = 2;
  all[5].schedule = ScheduleKind::Interleaved;
  all[5].overlap.pp = true;
  all[5].dp = 2;
  all[6].pp = 2;
  all[6].tp = 2;
  all[6].schedule = ScheduleKind::ZbH1;
  all[6].dp = 2;
  all[7].cp = 2;
  all[7].cp_kind = models::ContextParallel::Ring;
  all[7].dp = 2;
  all[7].zero_stage = 2;
  return all;
}

class LocalNetworkJobs : public ::testing::TestWithParam<int> {};

TEST_P(LocalNetworkJobs, TrainBitwiseWhatGlooTrains) {
  TinyPlan tiny{.layout = layouts()[static_cast<std::size_t>(GetParam())]};
  // 24 samples can be shared by 2, 3 and 4.
  tiny.change = [](planner::Plan& plan) { plan.training.global_batch_size = 24; };
  SCOPED_TRACE(describe(tiny.layout));
  const Trained gloo = train(tiny, Over::Gloo);
  EXPECT_LT(gloo.losses.back(), gloo.losses.front());
  EXPECT_EQ(train(tiny, Over::Local), gloo);
}

INSTANTIATE_TEST_SUITE_P(Layouts, LocalNetworkJobs, ::testing::Range(0, 8));

TEST(LocalNetwork, ARankThatFailsFreesTheOthers) {
  runtime::LocalNetwork network{std::chrono::seconds(60)};
  Layout layout;
  layout.dp = 2;
  const runtime::Job job = cli::make_job(make_plan({.layout = layout}));
  JobHooks hooks;
  hooks.endpoint = [&](RankId) { return network.endpoint(); };
  hooks.before = [](runtime::Trainer&, RankId rank) {
    if (rank == RankId{1}) throw std::runtime_error("rank 1 gives up");
  };
  EXPECT_THROW(run_job(job, 1, hooks), std::runtime_error);
}

TEST(LocalNetwork, AMemberThatIsDoneDoesNotDisturbTheOthers) {
  runtime::LocalNetwork network{std::chrono::seconds(60)};
  runtime::MemoryStore store{std::chrono::seconds(60)};
  const auto connect = [&](int rank) {
    return network.endpoint()->connect({.name = "three", .rank = rank, .size = 3}, store);
  };
  std::unique_ptr<runtime::Communicator> leaves = connect(0);
  const auto sends = connect(1);
  const auto receives = connect(2);
  leaves.reset();
  std::thread sender([&] { sends->send(at::ones({8}), 2); });
  at::Tensor message = at::zeros({8});
  receives->recv(message, 1);
  sender.join();
  EXPECT_TRUE(at::equal(message, at::ones({8})));
  // What needs the one that left fails at once.
  EXPECT_THROW(receives->recv(message, 0), Error);
  EXPECT_THROW(sends->barrier(), Error);
}

}  // namespace
}  // namespace foresail::testing
