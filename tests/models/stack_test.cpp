#include "foresail/models/stack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "foresail/base/error.h"

namespace foresail::models {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

Stack read(const std::string& text) {
  return read_stack(Yaml::parse(text, "stack.yaml"));
}

TEST(ReadStack, KeepsDefaultsOfAbsentKeys) {
  EXPECT_EQ(read("{}"), Stack{});
  const Stack stack = read("{flash_attention: false, host_per_kernel: 36 us}");
  EXPECT_FALSE(stack.flash_attention);
  EXPECT_TRUE(stack.fused_kernels);
  EXPECT_EQ(stack.host_per_kernel, 36us);
}

TEST(ReadStack, RoundTripsEverySwitch) {
  const Stack stack = read(
      "{flash_attention: false, padded_heads: true, fused_kernels: false,"
      " async_tensor_parallel: false, scatter_gather: false, early_stop_recompute: true,"
      " fused_softmax_multiple: 4, host_per_kernel: 1234567 ps}");
  EXPECT_EQ(stack.fused_softmax_multiple, 4);
  EXPECT_EQ(stack.host_per_kernel, Duration(1234567));
  EXPECT_EQ(read(to_yaml(to_document(stack))), stack);
}

TEST(ReadStack, RefusesUnknownKeysAndBareNumbers) {
  EXPECT_THROW(read("{flash: true}"), Error);
  EXPECT_THROW(read("{fused_softmax_multiple: 0}"), Error);
  try {
    read("host_per_kernel: 36");
    FAIL() << "accepted";
  } catch (const Error& problem) {
    EXPECT_THAT(problem.what(), HasSubstr("host_per_kernel"));
    EXPECT_THAT(problem.what(), HasSubstr("no unit"));
  }
}

}  // namespace
}  // namespace foresail::models
