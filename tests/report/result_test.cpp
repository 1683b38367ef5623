#include "foresail/report/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foresail::report {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

StepResult example() {
  StepResult result;
  result.iteration_time = milliseconds(6340);
  result.interval_50 = Interval{milliseconds(6200), milliseconds(6500)};
  result.tokens_per_s = 1984000;
  result.tokens_per_s_per_gpu = 161.5;
  result.mfu = 0.552;
  result.hfu = 0.56;
  result.model_tflops_per_gpu = 172.2;
  result.mfu_formula = "korthikanti";
  result.peak_tflops = 312;
  result.memory = {Bytes(1 << 30), Bytes(2 << 20), Bytes(0), Bytes(5), Bytes(6)};
  result.memory_upper = Bytes(std::int64_t{2} << 30);
  result.breakdown.compute = milliseconds(5000);
  result.breakdown.bubble = milliseconds(1340);
  result.network = {
      {"transfers", 12},
      {"loaded_links", Document::array({{{"link", "tor0-spine1"}, {"utilisation", 0.75}},
                                        {{"link", "t1"}, {"utilisation", 0.5}}})}};
  result.fidelity = "flow";
  result.seed = 7;
  result.version = "0.1.0";
  result.plan_digest = "aa";
  result.program_digest = "bb";
  result.simulator = SimulatorCost{4'700'000, 3.5, 3.6, Bytes(1 << 30)};
  result.notes = {"folded 64 replicas"};
  return result;
}

std::vector<std::string> keys_of(const Document& document) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : document.items()) keys.push_back(key);
  return keys;
}

TEST(StepResult, HasTheKeysOfTheContract) {
  const Document document = to_document(example());
  EXPECT_THAT(keys_of(document),
              testing::UnorderedElementsAre(
                  "iteration_time_s", "interval_50", "interval_90", "tokens_per_s",
                  "tokens_per_s_per_gpu", "mfu", "hfu", "mfu_formula", "mfu_causal", "peak_tflops",
                  "model_tflops_per_gpu", "memory_bytes", "breakdown_s", "network", "fidelity",
                  "seed", "version", "plan_digest", "program_digest", "simulator", "notes"));
  EXPECT_THAT(keys_of(document["memory_bytes"]),
              testing::UnorderedElementsAre("parameters", "gradients", "optimizer", "activations",
                                            "buffers", "peak", "upper_bound"));
  EXPECT_THAT(keys_of(document["simulator"]),
              testing::UnorderedElementsAre("events", "cpu_s", "wall_s", "peak_rss_bytes"));
  EXPECT_EQ(document["iteration_time_s"], 6.34);
  EXPECT_EQ(document["interval_50"], (Document{6.2, 6.5}));
  EXPECT_EQ(document["memory_bytes"]["peak"], (1 << 30) + (2 << 20) + 11);
}

TEST(StepResult, SaysNullForWhatIsNotKnown) {
  StepResult measured = example();
  measured.simulator.reset();
  const Document document = to_document(measured);
  EXPECT_TRUE(document["interval_90"].is_null());
  EXPECT_TRUE(document["simulator"].is_null());
  EXPECT_FALSE(document["memory_bytes"].contains("measured_peak"));
}

TEST(StepResult, ShowsWhatRanksHeld) {
  StepResult measured = example();
  measured.memory_measured = Bytes(900 << 20);
  EXPECT_EQ(to_document(measured)["memory_bytes"]["measured_peak"], 900 << 20);
  EXPECT_THAT(to_text(measured), testing::HasSubstr("memory measured        900 MiB"));
}

TEST(StepResult, PrintsATableForPeople) {
  const std::string text = to_text(example());
  EXPECT_THAT(text, HasSubstr("step time              6.34 s (50 %: 6.20 s to 6.50 s)\n"));
  EXPECT_THAT(text, HasSubstr("MFU                    55.2 % (172.2 of 312.0 TFLOP/s per GPU; "
                              "korthikanti, not causal)\n"));
  EXPECT_THAT(text, HasSubstr("  compute                 5.00 s   78.9 %\n"));
  EXPECT_THAT(text, HasSubstr("  bubble                  1.34 s   21.1 %\n"));
  EXPECT_THAT(text, HasSubstr("\nloaded_links\n"
                              "  link         utilisation\n"
                              "  tor0-spine1  0.75\n"
                              "  t1           0.5\n"));
  EXPECT_THAT(text, HasSubstr("  transfers            12\n"));
  EXPECT_THAT(text, HasSubstr("note                   folded 64 replicas\n"));
}

TEST(StepResult, LeavesOutWhatItHasNot) {
  StepResult measured = example();
  measured.simulator.reset();
  measured.network = Document::object();
  EXPECT_THAT(to_text(measured), testing::Not(HasSubstr("events")));
  EXPECT_THAT(to_text(measured), testing::Not(HasSubstr("network")));
}

}  // namespace
}  // namespace foresail::report
