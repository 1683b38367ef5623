#include "foresail/report/memory_curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "example.h"

namespace foresail::report {
namespace {

using program::LiveTensor;
using program::MemoryCategory;
using program::Moment;
using program::OpId;

LiveTensor tensor(MemoryCategory category, std::string owner, std::string name,
                  std::int64_t bytes) {
  return {category, std::move(owner), std::move(name), Bytes(bytes)};
}
Moment start(std::uint32_t op) {
  return {Moment::Edge::Start, OpId{op}};
}
Moment end(std::uint32_t op) {
  return {Moment::Edge::End, OpId{op}};
}

/// Stage 0 of the example: forward is op 1, its send 2, the receive 3, backward 4.
program::StageMemory example_memory() {
  program::StageMemory memory;
  memory.resident = {tensor(MemoryCategory::Parameters, "rank", "parameters", 1000)};
  memory.groups = {{{tensor(MemoryCategory::Activations, "layer 0", "fc2.input", 100)}},
                   {{tensor(MemoryCategory::Activations, "layer 0", "fc2.input", 100),
                     tensor(MemoryCategory::Buffers, "layer 0", "layer.output", 50)}},
                   {{tensor(MemoryCategory::Activations, "layer 0", "fc2.input", 100),
                     tensor(MemoryCategory::Buffers, "layer 0", "fc2.input.gradient", 80)}},
                   {{tensor(MemoryCategory::Buffers, "messages", "sent activation", 64)}},
                   {{tensor(MemoryCategory::Buffers, "messages", "received gradient", 64)}}};
  memory.lives = {{0, end(1), start(4)},
                  {1, start(1), end(1)},
                  {2, start(4), end(4)},
                  {3, end(1), end(2)},
                  {4, start(3), end(4)}};
  return memory;
}

/// The spans of rank 0 in the example's trace.
std::vector<OpInterval> example_times() {
  std::vector<OpInterval> times(7);
  for (const program::Span& span : example_trace().spans) {
    if (span.rank == RankId{0} && span.kernel < 0) times[span.op.value] = {span.start, span.end};
  }
  return times;
}

//  us     0     1     5     6     12    13    17
//  bytes  1000  1150  1164  1100  1164  1244  1000
TEST(MemoryCurve, AddsWhatComesAndGoes) {
  const MemoryCurve curve =
      memory_curve(example_program().stages[0], example_memory(), example_times());
  std::vector<std::int64_t> us, total;
  for (const MemoryPoint& point : curve.points) {
    us.push_back((point.time - SimTime{}) / std::chrono::microseconds(1));
    total.push_back(point.total.count());
  }
  EXPECT_EQ(us, (std::vector<std::int64_t>{0, 1, 5, 6, 12, 13, 17}));
  EXPECT_EQ(total, (std::vector<std::int64_t>{1000, 1150, 1164, 1100, 1164, 1244, 1000}));
  EXPECT_EQ(curve.peak, 5u);
  EXPECT_EQ(curve.op, OpId{4});
  EXPECT_EQ(curve.points[5].activations, Bytes(100));
  EXPECT_EQ(curve.points[5].buffers, Bytes(144));
}

TEST(MemoryCurve, NamesTheOwnersAtThePeakLargestFirst) {
  const MemoryCurve curve =
      memory_curve(example_program().stages[0], example_memory(), example_times());
  std::vector<std::string> names;
  Bytes sum;
  for (const OwnedBytes& owned : curve.owners) {
    names.push_back(owned.tensor.name);
    sum += owned.bytes();
  }
  EXPECT_THAT(names, testing::ElementsAre("parameters", "fc2.input", "fc2.input.gradient",
                                          "received gradient"));
  EXPECT_EQ(sum, curve.points[curve.peak].total);
}

TEST(MemoryCurve, CountsEqualTensorsOfSeveralMicrobatches) {
  program::StageMemory memory = example_memory();
  memory.lives.push_back({0, start(0), end(6)});
  memory.lives.push_back({0, start(0), end(6)});
  const MemoryCurve curve = memory_curve(example_program().stages[0], memory, example_times());
  for (const OwnedBytes& owned : curve.owners) {
    if (owned.tensor.name != "fc2.input") continue;
    EXPECT_EQ(owned.count, 3);
  }
  EXPECT_EQ(curve.points[curve.peak].total, Bytes(1444));
}

TEST(MemoryCurve, IsCsvWithOneLineAPoint) {
  const MemoryCurve curve =
      memory_curve(example_program().stages[0], example_memory(), example_times());
  const std::string text = to_csv(curve);
  EXPECT_EQ(text.substr(0, text.find('\n', 60)),
            "time_s,total_bytes,activation_bytes,buffer_bytes\n0,1000,0,0\n1e-06,1150,100,50");
  EXPECT_EQ(std::ranges::count(text, '\n'), 8);
}

}  // namespace
}  // namespace foresail::report
