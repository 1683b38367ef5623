/// \file
/// A job of a tiny Plan whose ranks a test starts one by one.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>

#include "rank_process.h"
#include "scratch_folder.h"
#include "thread_job.h"
#include "worker_environment.h"

namespace foresail::testing {

namespace fs = std::filesystem;

/// Steps of a job that a test ends.
inline constexpr int kEndless = 100000;

class LaunchedJob : public ::testing::Test {
 protected:
  std::string save(int ranks, const std::function<void(planner::Plan&)>& change = {}) {
    planner::Layout layout;
    layout.dp = ranks;
    const planner::Plan plan = make_plan({.layout = layout, .change = [&](planner::Plan& made) {
                                            made.model.layers = 2;
                                            made.training.global_batch_size = 2 * ranks;
                                            made.training.steps = 3;
                                            if (change) change(made);
                                          }});
    const fs::path path = folder_ / ("plan" + std::to_string(plans_++) + ".yaml");
    planner::save_plan(plan, path);
    return path.string();
  }
  static std::function<void(planner::Plan&)> endless() {
    return [](planner::Plan& plan) { plan.training.steps = kEndless; };
  }

  /// A rank as torchrun would start it.
  Process start(int rank, int ranks, const std::string& plan, const std::string& more = {}) {
    const std::string environment =
        "env RANK=" + std::to_string(rank) + " WORLD_SIZE=" + std::to_string(ranks) +
        " MASTER_ADDR=" + host_ + " MASTER_PORT=" + std::to_string(port_) + " OMP_NUM_THREADS=1 ";
    return {environment + FORESAIL_WORKER + " run " + plan + " -o " + (folder_ / "out").string() +
                " --timeout " + limit_ + " " + more,
            folder_ / ("log" + std::to_string(logs_++))};
  }

  /// One line of this rank's, and this status.
  static void expect_end(Process& process, int status,
                         const ::testing::Matcher<std::string>& text) {
    const Outcome outcome = process.wait();
    EXPECT_EQ(outcome.status, status) << outcome.text;
    const std::size_t at = outcome.text.find("foresail-worker: ");
    ASSERT_NE(at, std::string::npos) << outcome.text;
    const std::string message = outcome.text.substr(at);
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << outcome.text;
    EXPECT_THAT(message, text);
  }

  /// Nothing was written, no process has the test's folder on its command line.
  void TearDown() override {
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
      const std::string line = contents(entry.path() / "cmdline");
      EXPECT_EQ(line.find((folder_ / "out").string()), std::string::npos) << entry.path();
    }
  }

  const fs::path folder_ = test::scratch_folder();
  std::string host_ = "127.0.0.1";
  std::string limit_ = "1s";
  int port_ = cli::free_port();
  int plans_ = 0, logs_ = 0;
};

}  // namespace foresail::testing
