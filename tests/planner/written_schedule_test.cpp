// Schedules that the user has written: what is read, and what is refused, with file, line and key.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "foresail/base/error.h"
#include "foresail/base/yaml.h"
#include "foresail/planner/schedule.h"

namespace foresail::planner {
namespace {

std::string refusal(const std::string& yaml) {
  try {
    read_layout(Yaml::parse(yaml, "layout.yaml"));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    return error.what();
  }
  return "read";
}

/// A layout whose schedule has these orders, the first in line 4.
std::string with_orders(const std::vector<std::string>& orders, const std::string& map = "ring") {
  std::string yaml = "schedule:\n  stage_map: " + map + "\n  order:\n";
  for (const std::string& order : orders) yaml += "    - " + order + "\n";
  return yaml;
}

TEST(WrittenSchedule, IsWhatTheTextSays) {
  const Layout layout = read_layout(
      Yaml::parse("pp: 2\n" + with_orders({"F0 F1.0&B0 B1", "F0 I0 W0 F1 B1"}), "layout.yaml"));
  EXPECT_EQ(layout.schedule, ScheduleKind::File);
  EXPECT_EQ(layout.v, 1);
  const Schedule schedule = make_schedule(layout.written);
  EXPECT_EQ(schedule.stages, 2);
  EXPECT_EQ(schedule.microbatches, 2);
  EXPECT_EQ(to_text(schedule, 0), "F0.0 F1.0&B0.0 B1.0");
  EXPECT_EQ(to_text(schedule, 1), "F0.0 I0.0 W0.0 F1.0 B1.0");
}

// The last stage's B1 needs its own F1, which is joined with it.
TEST(WrittenSchedule, NamesTheCycle) {
  EXPECT_EQ(
      refusal(with_orders({"F0 F1 B0 B1", "F0 I0 F1&B1 W0"})),
      "layout.yaml:3: schedule.order: schedule of 2 stages, 1 chunks, 2 microbatches deadlocks: "
      "stage 1 F1.0 waits for stage 1 F1.0; back to the first");
  EXPECT_EQ(
      refusal(with_orders({"F0 B0 F1 B1", "F1 F0 B0 B1"})),
      "layout.yaml:3: schedule.order: schedule of 2 stages, 1 chunks, 2 microbatches deadlocks: "
      "stage 0 B0.0 waits for stage 1 B0.0 behind F1.0; stage 1 F1.0 waits for stage 0 F1.0 "
      "behind B0.0; back to the first");
}

TEST(WrittenSchedule, ComesBackFromItsText) {
  for (const auto kind :
       {ScheduleKind::Interleaved, ScheduleKind::ZbH2, ScheduleKind::ZbV, ScheduleKind::DualPipe}) {
    const int chunks = kind == ScheduleKind::ZbH2 ? 1 : 2;
    const Schedule made = make_schedule(kind, {.stages = 4, .chunks = chunks, .microbatches = 8});
    const Document text = to_document(WrittenSchedule{made.stage_map, chunks, 8, made.order});
    const WrittenSchedule read = read_written_schedule(Yaml::parse(to_yaml(text), "schedule"));
    EXPECT_EQ(read.order, made.order);
    EXPECT_EQ(read.stage_map, made.stage_map);
    EXPECT_EQ(read.chunks, chunks);
    EXPECT_EQ(read.microbatches, 8);
  }
}

struct Refusal {
  std::vector<std::string> orders;
  std::string map;
  std::string message;
};

TEST(WrittenSchedule, RefusesWhatCannotRun) {
  const std::vector<Refusal> refusals = {
      {{"F0 B0", "F0 X0"},
       "ring",
       "layout.yaml:5: schedule.order[1]: \"X0\" is not a pass: expected "
       "F, B, I or W, then microbatch.chunk, as in F0.1"},
      {{"F0 B0", "F0 B0 F0"}, "ring", "layout.yaml:5: schedule.order[1]: F0.0 stands twice"},
      {{"F0 B0 F1 B1", "F0 B0"}, "ring", "layout.yaml:5: schedule.order[1]: F1.0 is missing"},
      {{"F0 I0"}, "ring", "layout.yaml:4: schedule.order[0]: W0.0 is missing"},
      {{"F0"}, "ring", "layout.yaml:4: schedule.order[0]: B0.0 is missing"},
      {{"B0 F0"}, "ring", "layout.yaml:4: schedule.order[0]: B0.0 stands before its forward pass"},
      {{"F0 W0 I0"}, "ring", "layout.yaml:4: schedule.order[0]: W0.0 stands before its I"},
      {{"F0 I0 B0 W0"},
       "ring",
       "layout.yaml:4: schedule.order[0]: B0.0: the pass is there whole (B) and in halves (I, W)"},
      {{"F0&F1 B0 B1"},
       "ring",
       "layout.yaml:4: schedule.order[0]: & joins a forward with a B or an I, not with F1.0"},
      {{"F0 B0&B1"},
       "ring",
       "layout.yaml:4: schedule.order[0]: & stands behind a forward, not "
       "behind B0.0"},
      {{"F0.0 B0.0 F99999.0"},
       "ring",
       "layout.yaml:3: schedule.order: 100000 microbatches through 1 chunks of 1 stages need more "
       "than the 3 passes that are here"},
      {{"F0 B0", "F0 B0", "F0 B0"},
       "mirrored",
       "layout.yaml:3: schedule.order: stage_map mirrored needs 2 chunks, an even number of stages "
       "and of microbatches, not 1, 3 and 1"},
      {{"F0.1 F1.0 B0.1 B1.0", "F0.0 F1.1 B0.0 B1.1"},
       "mirrored",
       "layout.yaml:4: schedule.order[0]: F0.1: with stage_map mirrored the first half of the 2 "
       "microbatches runs through chunk 0, the second half through chunk 1"},
      {{"F0 B0"},
       "zigzag",
       "layout.yaml:2: schedule.stage_map: \"zigzag\" is not one of ring, v, "
       "mirrored"}};
  for (const Refusal& each : refusals) {
    EXPECT_EQ(refusal(with_orders(each.orders, each.map)), each.message);
  }
  EXPECT_EQ(refusal("schedule: file\n"),
            "layout.yaml:1: schedule: a schedule from a file is written {file: PATH}");
}

class WrittenScheduleFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("foresail_written_schedule_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  std::filesystem::path folder_;
};

TEST_F(WrittenScheduleFile, StandsBesideTheLayout) {
  write("mine.yaml", "foresail_schedule: 1\nstage_map: v\norder:\n- F0.0 F0.1 B0.1 B0.0\n");
  write("layout.yaml", "schedule: {file: mine.yaml}\n");
  const Layout layout = read_layout(Yaml::load(folder_ / "layout.yaml"));
  EXPECT_EQ(layout.written.stage_map, program::StageMap::V);
  EXPECT_EQ(layout.v, 2);
  // A Plan carries the orders themselves.
  EXPECT_EQ(to_document(layout)["schedule"],
            Document({{"stage_map", "v"}, {"order", {"F0.0 F0.1 B0.1 B0.0"}}}));
}

TEST_F(WrittenScheduleFile, IsRefusedWithItsOwnLine) {
  write("mine.yaml", "foresail_schedule: 1\norder:\n- F0 B0 F1 B1\n- F0 B1\n");
  write("layout.yaml", "schedule: {file: mine.yaml}\n");
  try {
    read_layout(Yaml::load(folder_ / "layout.yaml"));
    FAIL() << "was read";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), (folder_ / "mine.yaml").string() +
                                             ":4: order[1]: B1.0 stands before its forward pass");
  }
}

}  // namespace
}  // namespace foresail::planner
