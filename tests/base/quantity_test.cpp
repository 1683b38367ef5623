#include "foresail/base/quantity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "foresail/base/error.h"

namespace foresail {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(Quantity, ReadsUnitsWithAndWithoutBlank) {
  EXPECT_EQ(parse_duration("5us"), 5us);
  EXPECT_EQ(parse_duration("1.5 ms"), 1500us);
  EXPECT_EQ(parse_bytes("80 GiB"), 80_GiB);
  EXPECT_EQ(parse_bandwidth("400 Gb/s"), 400_Gbps);
  EXPECT_EQ(parse_bandwidth("300 GB/s"), Bandwidth::gigabytes_per_second(300));
  EXPECT_EQ(parse_flop_rate("312 TFLOP/s"), FlopRate::teraflops(312));
}

template <class Parse>
std::string refusal(Parse parse, std::string_view text) {
  try {
    parse(text);
  } catch (const Error& problem) {
    return problem.what();
  }
  return "accepted";
}

TEST(Quantity, RefusesWhatHasNoUnitOrNoMeaning) {
  EXPECT_THAT(refusal(parse_bandwidth, "400"), HasSubstr("\"400\" has no unit"));
  EXPECT_THAT(refusal(parse_bytes, "80 GB/s"), HasSubstr("unknown unit \"GB/s\""));
  EXPECT_THAT(refusal(parse_duration, "-1 s"), HasSubstr("is negative"));
  EXPECT_THAT(refusal(parse_duration, "fast"), HasSubstr("does not start with a number"));
  EXPECT_THAT(refusal(parse_duration, "200 d"), HasSubstr("out of range"));
  EXPECT_THAT(refusal(parse_duration, "inf s"), HasSubstr("does not start with a number"));
}

TEST(Quantity, ShowsThreeFigures) {
  EXPECT_EQ(to_text(Duration(6'340'000'000'000)), "6.34 s");
  EXPECT_EQ(to_text(48_GiB), "48.0 GiB");
  EXPECT_EQ(to_text(200_Gbps), "200 Gb/s");
  EXPECT_EQ(to_text(Duration(0)), "0 ps");
}

}  // namespace
}  // namespace foresail
