#include "foresail/program/trace.h"

#include <gtest/gtest.h>

#include "foresail/base/error.h"

namespace foresail::program {
namespace {

using std::chrono::microseconds;

SimTime at(std::int64_t us) {
  return SimTime(microseconds(us));
}

Trace example() {
  Trace trace;
  trace.kind = TraceKind::Measured;
  trace.version = "0.1.0";
  trace.plan_digest = "aa";
  trace.program_digest = "bb";
  trace.seed = 0xffff'ffff'ffff'ffffULL;
  trace.fidelity = "measured";
  trace.steps = {microseconds(10), microseconds(12)};
  trace.spans = {
      {RankId{0}, Lane::Compute, OpId{3}, -1, 0, at(1), at(4), Bytes(0)},
      {RankId{0}, Lane::Tp, OpId{3}, 2, 0, at(2), at(3), Bytes(4096)},
      {RankId{1}, Lane::Pp, OpId{0}, -1, 1, at(-1), at(0), Bytes(8)},
  };
  return trace;
}

bool is_equal(const Trace& a, const Trace& b) {
  return to_document(a) == to_document(b);
}

std::string complaint(const Document& document) {
  try {
    trace_from_document(document, "t.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    return error.what();
  }
  return "accepted";
}

TEST(TraceJson, RoundTrips) {
  const Document document = to_document(example());
  const Trace read = trace_from_document(parse_json(document.dump(), "t.json"), "t.json");
  EXPECT_TRUE(is_equal(read, example()));
  EXPECT_EQ(read.seed, example().seed);
  EXPECT_EQ(read.spans[2].start, at(-1));
}

TEST(TraceJson, CarriesTheProgramIfItHasOne) {
  EXPECT_FALSE(to_document(example()).contains("program"));
  Trace trace = example();
  trace.program = "foresail_program 1\n";
  EXPECT_EQ(trace_from_document(to_document(trace), "t.json").program, trace.program);
}

TEST(TraceJson, KeepsASpanInOneRowOfIntegers) {
  const Document document = to_document(example());
  EXPECT_EQ(document["spans"][1].dump(), "[0,0,1,3,2,2000000,3000000,4096]");
}

TEST(TraceJson, OrdersSpansByStepRankAndStart) {
  Document document = to_document(example());
  std::swap(document["spans"][0], document["spans"][2]);
  EXPECT_TRUE(is_equal(trace_from_document(document, "t.json"), example()));
}

TEST(TraceJson, NamesWhatIsWrong) {
  const Document good = to_document(example());
  const auto with = [&](const char* pointer, const Document& value) {
    Document document = good;
    document[Document::json_pointer(pointer)] = value;
    return complaint(document);
  };
  EXPECT_EQ(with("/kind", "guessed"),
            "t.json: kind: \"guessed\" is not one of predicted, measured");
  EXPECT_EQ(with("/spans/1/2", 9), "t.json: spans[1].lane 9 is not in 0 to 8");
  EXPECT_EQ(with("/spans/1/0", 2), "t.json: spans[1].step 2 is not in 0 to 1");
  EXPECT_EQ(with("/spans/1/5", 0.5), "t.json: spans[1].start_ps: expected an integer, got 0.5");
  EXPECT_EQ(with("/spans/0", 3), "t.json: spans[0]: expected 8 columns");
  EXPECT_EQ(with("/seed", -1), "t.json: seed: expected an integer not below 0");
  EXPECT_EQ(with("/foresail_trace", 2), "t.json: foresail_trace 2 is not in 1 to 1");
  EXPECT_EQ(with("/steps_ps/0", "10 us"), "t.json: steps_ps: expected an integer, got \"10 us\"");
  EXPECT_EQ(complaint(Document::array()), "t.json: expected an object");
  Document document = good;
  document.erase("plan_digest");
  EXPECT_EQ(complaint(document), "t.json: plan_digest is missing");
}

// The lane of copies to host memory came last.
TEST(TraceJson, ReadsATraceThatIsOlderThanALane) {
  Document document = to_document(example());
  Document& lanes = document["lanes"];
  lanes.erase(lanes.size() - 1);
  EXPECT_EQ(trace_from_document(document, "t.json").spans.size(), 3U);
  document["spans"][0][2] = static_cast<int>(Lane::Copy);
  EXPECT_NE(complaint(document), "accepted");
}

TEST(TraceJson, RefusesASpanThatEndsBeforeItStarts) {
  Document document = to_document(example());
  document["spans"][0][6] = 999'999;
  EXPECT_NE(complaint(document).find("spans[0].end_ps 999999 is not in 1000000"),
            std::string::npos);
}

}  // namespace
}  // namespace foresail::program
