#include "foresail/planner/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "foresail/base/error.h"

namespace foresail::planner {
namespace {

Layout read(const std::string& text) {
  return read_layout(Yaml::parse(text, "layout.yaml"));
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Layout, AbsentKeysAreOneAndOff) {
  const Layout layout = read("{}");
  EXPECT_EQ(layout, Layout{});
  EXPECT_EQ(layout.world_size(), 1);
}

TEST(Layout, VirtualStagesImplyInterleaving) {
  EXPECT_EQ(read("{pp: 4, v: 2}").schedule, ScheduleKind::Interleaved);
  EXPECT_EQ(read("{pp: 4, v: 2, schedule: gpipe}").schedule, ScheduleKind::Gpipe);
  EXPECT_EQ(read("{pp: 4}").schedule, ScheduleKind::OneForwardOneBackward);
}

TEST(Layout, ReadsEveryKey) {
  const Layout layout = read(
      "{tp: 8, cp: 2, ep: 1, dp: 192, pp: 8, v: 6, group_size: 16, schedule: interleaved, "
      "microbatch_size: 2, sequence_parallel: true, zero_stage: 2, recompute: selective, "
      "rank_order: tp-cp-ep-pp-dp, overlap: {tp: true, pp: true, dp: true}}");
  EXPECT_EQ(layout.world_size(), 24576);
  EXPECT_EQ(layout.group_size, 16);
  EXPECT_EQ(layout.recompute, models::Recompute::Selective);
  EXPECT_EQ(layout.rank_order[3], program::Axis::Pp);
  EXPECT_EQ(layout.overlap, (Overlap{true, true, true}));
  EXPECT_EQ(layout.grid().size(program::Axis::Dp), 192);
}

TEST(Layout, DocumentReadsBackEqual) {
  Layout layout;
  layout.tp = 4;
  layout.pp = 2;
  layout.v = 3;
  layout.schedule = ScheduleKind::Interleaved;
  layout.zero_stage = 1;
  layout.recompute = models::Recompute::Full;
  layout.overlap.pp = true;
  EXPECT_EQ(read(to_yaml(to_document(layout))), layout);
}

TEST(Layout, MessagesOfDataParallelismHaveNames) {
  const DataMessages gradients(true, false), parameters(false, true);
  EXPECT_EQ(read("{overlap: {dp: gradients}}").overlap.dp, gradients);
  EXPECT_EQ(read("{overlap: {dp: parameters}}").overlap.dp, parameters);
  EXPECT_EQ(read("{overlap: {dp: true, aligned: gradients}}").overlap,
            (Overlap{.dp = true, .aligned = gradients}));
  for (const DataMessages dp : {DataMessages(true), gradients, parameters, DataMessages(false)}) {
    Layout layout;
    layout.overlap.dp = dp;
    layout.overlap.aligned = dp;
    EXPECT_EQ(read(to_yaml(to_document(layout))), layout);
  }
  // Older plans keep their digests.
  Layout layout;
  layout.overlap.dp = true;
  EXPECT_EQ(to_document(layout)["overlap"], (Document{{"tp", false}, {"pp", false}, {"dp", true}}));
}

TEST(Layout, BadInputNamesFileLineAndKey) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"tp: 0", "layout.yaml:1: tp: "},
      {"dp: 2\ntp: eight", "layout.yaml:2: tp: "},
      {"microbatchsize: 1", "microbatch_size"},
      {"zero_stage: 4", "layout.yaml:1: zero_stage: "},
      {"schedule: dual", "gpipe, 1f1b, interleaved, zb_h1, zb_h2, zb_v, dualpipe, file"},
      {"recompute: some", "none, selective, full"},
      {"rank_order: tp-dp", "layout.yaml:1: rank_order: "},
      {"sequence_parallel: 3", "layout.yaml:1: sequence_parallel: "},
      {"overlap: {mp: true}", "layout.yaml:1: overlap"},
      {"overlap: {dp: some}",
       "layout.yaml:1: overlap.dp: \"some\" is not one of true, false, gradients, parameters"},
      {"overlap: {aligned: [true]}",
       "layout.yaml:1: overlap.aligned: expected true, false, gradients or parameters"}};
  for (const auto& [text, part] : cases) {
    EXPECT_THAT(error_of(text), testing::HasSubstr(part)) << text;
  }
}

}  // namespace
}  // namespace foresail::planner
