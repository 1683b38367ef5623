// What parses, under mutation: scenarios, plans, rows, stacks, profiles. FORESAIL_FUZZ_ROUNDS sets
// the number of inputs (the sanitizer run uses 100,000).
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "../base/mutate.h"
#include "foresail/base/document.h"
#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "foresail/program/profile.h"
#include "foresail/scenarios/fit.h"
#include "foresail/scenarios/import.h"
#include "foresail/scenarios/rows.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/scenarios/simulate.h"
#include "fuzz_rounds.h"

namespace foresail::scenarios {
namespace {

namespace fs = std::filesystem;

// Values that parsers trip over: inserted whole, beside single-byte changes.
const std::vector<std::string> kTokens = {"-1",  "0",    "1e999", "99999999999999999999",
                                          "~",   "null", "{",     "}",
                                          "[",   "]",    ": ",    "\n  ",
                                          "&a ", "*a",   "!!",    "\"",
                                          "nan", "tp",   "2 GiB", "\xff\xfe"};

struct Target {
  std::string seed;
  std::string file;  ///< name to write, with its ending
  void (*read)(const fs::path&);
};

// A scenario that can be read is also checked, and lowered if it is small and legal.
void read_and_check(const fs::path& path) {
  const Scenario scenario = load_scenario(path);
  const planner::Feasibility answer = planner::check(scenario.plan);
  const std::int64_t passes = scenario.plan.training.global_batch_size *
                              scenario.plan.model.layers * scenario.plan.layout.pp;
  if (answer.broken.empty() && passes < 4096) lower_verified(scenario.plan);
}

// Another framework's job, and the scenario that it becomes.
void import_and_check(const fs::path& path) {
  ImportOptions options;
  options.cluster = "dgx_h100";
  options.gpus = 64;
  options.vocab = 50257;
  const std::string text = to_yaml(import_job(path, options), "a job");
  planner::check(read_scenario(Yaml::parse(text, "imported.yaml")).plan);
}

TEST(Fuzz, MutatedInputIsReadOrRefusedNeverMore) {
  const fs::path tree = FORESAIL_SOURCE_DIR;
  const fs::path folder = fs::path(::testing::TempDir()) / "foresail_fuzz";
  fs::create_directories(folder);
  const fs::path plan = folder / "seed_plan.yaml";
  planner::save_plan(load_scenario(tree / "scenarios/cpu_gpt/scenario.yaml").plan, plan);
  const fs::path profile = folder / "seed_profile.yaml";
  program::Profile seed_profile;
  seed_profile.kernels = {{Kernel{}, std::chrono::microseconds(3)}};
  seed_profile.transfers = {{"send", 2, 4_KiB, std::chrono::microseconds(9)}};
  program::save_profile(seed_profile, profile);
  const std::vector<Target> targets = {
      {read_file(tree / "scenarios/cpu_gpt/scenario.yaml"), "s.yaml", read_and_check},
      {read_file(tree / "scenarios/megascale_175b_12288/scenario.yaml"), "m.yaml", read_and_check},
      {read_file(tree / "tests/scenarios/data/conditions.yaml"), "k.yaml", read_and_check},
      {read_file(plan), "p.yaml", read_and_check},
      {read_file(tree / "tests/scenarios/data/rows.yaml"), "r.yaml",
       [](const fs::path& path) { read_rows(path); }},
      {read_file(tree / "tests/scenarios/data/rows.csv"), "r.csv",
       [](const fs::path& path) { read_rows(path); }},
      {read_file(tree / "scenarios/catalogue/fit.yaml"), "f.yaml",
       [](const fs::path& path) { load_fit_families(Yaml::load(path)); }},
      {read_file(tree / "tests/scenarios/data/jobs/gpt3_175b.sh"), "i.sh", import_and_check},
      {read_file(tree / "tests/scenarios/data/jobs/llama3_70b.toml"), "i.toml", import_and_check},
      {read_file(tree / "tests/scenarios/data/jobs/gpt_5b.yaml"), "i.yaml", import_and_check},
      {read_file(profile), "c.yaml", [](const fs::path& path) { program::load_profile(path); }}};
  RandomStream random = Rng(2026).stream("fuzz");
  int refused = 0;
  const int all = test::fuzz_rounds(3000);
  for (int round = 0; round < all; ++round) {
    const Target& target = targets[static_cast<std::size_t>(round) % targets.size()];
    const fs::path path = folder / target.file;
    write_file(path, test::mutate(target.seed, kTokens, 40, random));
    try {
      target.read(path);
    } catch (const Error&) {
      ++refused;  // anything else, a ContractViolation or a crash, fails the test
    }
  }
  EXPECT_GT(refused, all / 10);
  EXPECT_LT(refused, all);
}

}  // namespace
}  // namespace foresail::scenarios
