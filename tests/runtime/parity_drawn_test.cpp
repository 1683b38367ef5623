// Layouts drawn over all axes train what one process trains. FORESAIL_PARITY_LAYOUTS=60 runs the
// whole set, at some 8 CPU seconds each.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>

#include "drawn_jobs.h"
#include "observed_step.h"
#include "parity.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

constexpr int kSteps = 30;
constexpr int kWholeSet = 60;

/// Trained once per learner.
const Curve& truth_of(const DrawnJob& job) {
  static std::map<std::string, Curve> curves;
  const auto [known, is_new] = curves.try_emplace(job.learner);
  if (is_new) {
    known->second = train(one_process_of(job), kSteps);
    EXPECT_LE(known->second.back().loss, 0.85 * known->second.front().loss) << job.learner;
  }
  return known->second;
}

/// Ops of every rank, sizes included, and GEMMs where the data does not decide on their shapes.
void expect_program(const DrawnJob& drawn) {
  const runtime::Job job = cli::make_job(make_plan(drawn.tiny));
  if (!drawn.is_dropless) return expect_step_of_program(job);
  for (const auto& [rank, observed] : observe_step(job)) {
    const Observed expected = expected_of(job, rank);
    EXPECT_EQ(observed.executed, expected.executed);
    EXPECT_EQ(observed.digest, expected.digest);
  }
}

TEST(DrawnParity, EveryDrawnLayoutTrainsWhatOneProcessTrains) {
  for (int index = 0; index < parity_layouts(4); ++index) {
    const DrawnJob job = draw_job(static_cast<std::uint64_t>(index));
    SCOPED_TRACE(std::to_string(index) + ": " + job.text);
    const Curve& truth = truth_of(job);
    const Curve curve = train(job.tiny, kSteps);
    const Distance apart = distance(curve, truth);
    if (job.is_bf16) {
      expect_equal_in_bf16(curve, truth);
    } else {
      EXPECT_LE(apart.loss, 1e-6);
      EXPECT_LE(apart.norm, 1e-5);
    }
    expect_program(job);
    std::cout << index << ": loss " << apart.loss << " norm " << apart.norm << "  " << job.text
              << std::endl;
  }
}

std::vector<std::string> texts_of_whole_set() {
  std::vector<std::string> texts;
  for (int index = 0; index < kWholeSet; ++index) {
    texts.push_back(draw_job(static_cast<std::uint64_t>(index)).text);
  }
  return texts;
}

bool says(const std::string& text, const std::string& choice) {
  return text.find(choice) != std::string::npos;
}

/// What is said of a job, and how often at least.
TEST(DrawnParity, TheWholeSetHasEveryChoice) {
  const std::vector<std::string> texts = texts_of_whole_set();
  for (const char* choice : {"adam,",
                             "adamw",
                             "lamb",
                             "bf16",
                             "fp32",
                             "flash attention",
                             "dropout",
                             "kernels one by one",
                             "gpt,",
                             "tied,",
                             "tied llama",
                             "parallel block",
                             "llama,",
                             "experts,",
                             "shared experts",
                             "experts with room",
                             "tp 2",
                             "tp 4",
                             "pp 2",
                             "pp 4",
                             "dp 2",
                             "dp 4",
                             "dp 8",
                             "cp 2",
                             "cp 4",
                             "all_gather",
                             "ring",
                             "all_to_all",
                             "ep 2",
                             "ep 4",
                             "etp 1",
                             "etp 2",
                             "v 2",
                             "gpipe",
                             "interleaved",
                             "zb_h1",
                             "zb_h2",
                             "zb_v",
                             "dualpipe",
                             "zero 1",
                             "zero 2",
                             "zero 3",
                             "shard size",
                             "sequence parallel",
                             "recompute none",
                             "recompute selective",
                             "recompute full",
                             "microbatch 2",
                             "overlap dp",
                             "overlap pp",
                             "overlap ep",
                             "overlap tp",
                             "order "}) {
    const auto has = [&](const std::string& text) { return says(text, choice); };
    EXPECT_GE(std::ranges::count_if(texts, has), 1) << choice;
  }
}

TEST(DrawnParity, TheWholeSetHasExpertsWithLambAndInGroupsThatShard) {
  const std::vector<std::string> texts = texts_of_whole_set();
  for (const char* choice : {"lamb", "shard size", "zero 1", "zero 2", "zero 3"}) {
    const auto has = [&](const std::string& text) {
      return says(text, "experts") && says(text, choice);
    };
    EXPECT_GE(std::ranges::count_if(texts, has), 2) << choice;
  }
}

}  // namespace
}  // namespace foresail::testing
