// What a rank says of itself while it runs, and whom a job that stands still blames.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "foresail/runtime/local.h"
#include "thread_job.h"
#include "worker_hang.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using cli::find_hang;
using cli::RollOfSteps;
using cli::StepLimit;
using runtime::Activity;
using runtime::Occupation;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Activity active(Occupation occupation, seconds quiet, const std::string& text) {
  return {.occupation = occupation, .step = 5, .quiet = quiet, .text = text};
}

const Activity kWaits = active(Occupation::Peers, seconds(70), "step 5: all_reduce");
const Activity kComputes = active(Occupation::OwnWork, seconds(80), "step 5: compute forward");
constexpr seconds kLimit{60};

TEST(FindHang, BlamesWhoDoesNotAnswerBeforeAllOthers) {
  EXPECT_EQ(find_hang({kLimit, {2}, {kWaits, kComputes, std::nullopt}}),
            "rank 2 makes no progress and does not answer (waiting: rank 0 for 70 s in step 5: "
            "all_reduce)");
  EXPECT_THAT(find_hang({kLimit, {1, 2}, {kWaits, std::nullopt, std::nullopt}}),
              StartsWith("ranks 1, 2 make no progress and do not answer"));
}

TEST(FindHang, BlamesWhoDoesWorkOfItsOwn) {
  EXPECT_EQ(find_hang({kLimit, {}, {kWaits, kComputes}}),
            "rank 1 makes no progress: rank 1 for 80 s in step 5: compute forward (waiting: rank 0 "
            "for 70 s in step 5: all_reduce)");
}

TEST(FindHang, BlamesWhoDoesNotBeginAStepUnlessAnotherComputes) {
  const Activity idle = active(Occupation::BetweenSteps, seconds(65), "front of step 5");
  EXPECT_THAT(find_hang({kLimit, {}, {idle, kWaits}}), StartsWith("rank 0 makes no progress"));
  EXPECT_THAT(find_hang({kLimit, {}, {idle, kComputes}}), StartsWith("rank 1 makes no progress"));
}

TEST(FindHang, NamesNobodyWhereAllWaitAndSaysForWhat) {
  const Activity device = active(Occupation::Device, seconds(61), "step 5: waits for its device");
  EXPECT_EQ(find_hang({kLimit, {}, {kWaits, device}}),
            "no rank makes progress: rank 0 for 70 s in step 5: all_reduce, rank 1 for 61 s in "
            "step 5: waits for its device");
}

TEST(FindHang, IsEmptyWhileAnyRankMoves) {
  Activity slow = kComputes;
  slow.quiet = kLimit - milliseconds(1);
  EXPECT_EQ(find_hang({kLimit, {}, {kWaits, slow, kWaits}}), "");
  EXPECT_EQ(find_hang({kLimit, {1}, {kWaits, std::nullopt, slow}}), "");
}

TEST(FindHang, ShowsEightOfManyRanks) {
  RollOfSteps roll{kLimit, {}, {}};
  roll.activities.assign(20, kWaits);
  EXPECT_THAT(find_hang(roll), HasSubstr("rank 7 for 70 s in step 5: all_reduce and 12 more"));
  roll.missing.assign(20, 3);
  EXPECT_THAT(find_hang(roll), StartsWith("ranks 3, 3, 3, 3, 3, 3, 3, 3 and 12 more make"));
}

TEST(StepLimit, IsTenTimesTheSlowestStepAndAtLeastAMinute) {
  StepLimit limit(std::nullopt);
  EXPECT_EQ(limit.now(), seconds(300));
  limit.add(seconds(2));
  EXPECT_EQ(limit.now(), seconds(60));
  limit.add(seconds(9));
  limit.add(seconds(3));
  EXPECT_EQ(limit.now(), seconds(90));
}

TEST(StepLimit, IsWhatIsGiven) {
  StepLimit limit(milliseconds(1500));
  limit.add(seconds(100));
  EXPECT_EQ(limit.now(), milliseconds(1500));
}

TEST(Activity, IsTheSameAfterTheStore) {
  const auto read = cli::unpack(cli::pack(kComputes));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->occupation, kComputes.occupation);
  EXPECT_EQ(read->step, kComputes.step);
  EXPECT_EQ(read->quiet, kComputes.quiet);
  EXPECT_EQ(read->text, kComputes.text);
  EXPECT_FALSE(cli::unpack(cli::pack(std::nullopt)));
}

/// The CPU, on which one kernel does not begin until it is let go.
class StuckDevice : public runtime::Device {
 public:
  c10::Device place() const override { return cpu_->place(); }
  std::unique_ptr<Lane> open_lane() override { return cpu_->open_lane(); }
  /// The compute lane alone has so many marks: two of each op, two of each kernel.
  runtime::Mark mark() override {
    constexpr int kOfAKernelsStart = 10;
    std::unique_lock lock(mutex_);
    if (++marks_[std::this_thread::get_id()] == kOfAKernelsStart) {
      changed_.wait(lock, [this] { return may_go_; });
    }
    return cpu_->mark();
  }
  void follow(const runtime::Mark& mark) override { cpu_->follow(mark); }
  void keep(const runtime::Tensor& tensor) override { cpu_->keep(tensor); }
  std::int64_t passed_ns(const runtime::Mark& mark) override { return cpu_->passed_ns(mark); }
  void begin_step() override { cpu_->begin_step(); }
  Bytes peak() const override { return cpu_->peak(); }
  void let_go() {
    const std::scoped_lock lock(mutex_);
    may_go_ = true;
    changed_.notify_all();
  }

 private:
  std::unique_ptr<runtime::Device> cpu_ = runtime::make_cpu_device();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::thread::id, int> marks_;
  bool may_go_ = false;
};

/// Who may be looked at.
class Trainers {
 public:
  void add(RankId rank, const runtime::Trainer& trainer) {
    const std::scoped_lock lock(mutex_);
    trainers_[rank.value] = &trainer;
  }
  std::vector<std::optional<Activity>> activities() const {
    const std::scoped_lock lock(mutex_);
    std::vector<std::optional<Activity>> all;
    for (const auto& [rank, trainer] : trainers_) all.emplace_back(trainer->activity());
    return all;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uint32_t, const runtime::Trainer*> trainers_;
};

TEST(Activity, TellsTheRankWhoseKernelHangsFromThoseThatWaitForIt) {
  planner::Layout layout;
  layout.dp = 2;
  const runtime::Job job = cli::make_job(make_plan({.layout = layout}));
  StuckDevice stuck;
  const auto other = runtime::make_cpu_device();
  Trainers trainers;
  JobHooks hooks;
  hooks.device = [&](RankId rank) { return rank.value == 1 ? &stuck : other.get(); };
  hooks.before = [&](runtime::Trainer& trainer, RankId rank) { trainers.add(rank, trainer); };
  std::string found;
  std::vector<std::optional<Activity>> seen;
  std::thread watch([&] {
    const auto is_so = [&] {
      return !found.empty() && seen[0]->occupation == Occupation::Peers &&
             seen[1]->occupation == Occupation::OwnWork;
    };
    while (!is_so()) {
      std::this_thread::sleep_for(milliseconds(5));
      seen = trainers.activities();
      if (seen.size() == 2) found = find_hang({milliseconds(200), {}, seen});
    }
    stuck.let_go();
  });
  const auto results = run_job(job, 2, hooks);
  watch.join();
  EXPECT_EQ(results[1].steps.size(), 2u);
  EXPECT_THAT(found, ContainsRegex("^rank 1 makes no progress: rank 1 for [0-9]+ s in step 0: "
                                   "compute forward chunk 0 microbatch 0, kernel [^ ]+ "
                                   "\\(waiting: rank 0 for [0-9]+ s in step 0: "));
}

TEST(Activity, IsBetweenStepsBehindTheLastOne) {
  const runtime::Job job = cli::make_job(make_plan({}));
  JobHooks hooks;
  hooks.after = [](runtime::Trainer& trainer, RankId) {
    EXPECT_EQ(trainer.activity().occupation, Occupation::BetweenSteps);
    EXPECT_EQ(trainer.activity().text, "front of step 2");
  };
  run_job(job, 2, hooks);
}

}  // namespace
}  // namespace foresail::testing
