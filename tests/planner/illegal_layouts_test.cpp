// Hundreds of illegal layouts: exactly the broken laws are named, each with its terms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "illegal_cases.h"

namespace foresail::planner::illegal {
namespace {

/// A legal case: 16 microbatches per replica on pp 4 (or 2, 8), 24 or 48 layers.
Case legal(Draw& draw) {
  Case c;
  c.model.name = "gpt";
  c.model.layers = 24 * draw.between(1, 3);
  c.model.hidden = 64;
  c.model.heads = 16;
  c.model.kv_heads = 8;
  c.model.head_size = 4;
  c.model.ffn = 256;
  c.model.vocab = 128;
  c.layout.tp = draw.of({2, 4});
  c.layout.cp = draw.of({1, 2});
  c.layout.pp = draw.of({4, 4, 6});
  c.layout.dp = draw.of({2, 4});
  c.layout.zero_stage = draw.between(0, 2);
  c.layout.overlap = {.tp = draw.coin(), .pp = draw.coin(), .dp = draw.coin()};
  c.layout.sequence_parallel = draw.coin();
  c.layout.microbatch_size = draw.of({1, 2});
  if (draw.coin()) {
    c.layout.v = 2;
    c.layout.schedule = ScheduleKind::Interleaved;
  }
  c.training.global_batch_size = 24 * c.layout.dp * c.layout.microbatch_size;
  c.training.sequence_length = 64 * draw.between(1, 4);
  c.devices = c.layout.world_size();
  return c;
}

/// The names that check_laws gives must be `expected`, each message with its terms.
void expect_exactly(const Case& c, const std::vector<Law>& laws, std::map<std::string, int>& seen) {
  std::set<std::string> expected;
  for (const Law& law : laws) {
    if (law.breaks(c)) expected.insert(law.name);
  }
  std::set<std::string> named;
  const std::vector<BrokenLaw> broken = c.check();
  for (const BrokenLaw& each : broken) named.insert(each.name);
  ASSERT_EQ(named, expected) << c.key();
  for (const Law& law : laws) {
    if (!expected.contains(law.name)) continue;
    ++seen[law.name];
    const auto found = std::ranges::find(broken, law.name, &BrokenLaw::name);
    for (const std::int64_t term : law.terms(c)) {
      EXPECT_THAT(found->message, testing::HasSubstr(std::to_string(term))) << law.name;
    }
  }
}

TEST(IllegalLayouts, NameExactlyTheBrokenLawsWithTheirTerms) {
  std::vector<Law> laws = laws_of_the_model();
  for (Law& law : laws_of_the_schedule()) laws.push_back(std::move(law));
  std::map<std::string, int> seen;
  std::set<std::string> distinct;
  int several = 0;
  std::uint64_t index = 0;
  const auto run = [&](const std::vector<const Law*>& pushes, Draw& draw) {
    Case c = legal(draw);
    ASSERT_TRUE(c.check().empty()) << c.check().front().message;
    for (const Law* law : pushes) law->push(c, draw);
    expect_exactly(c, laws, seen);
    const std::size_t broken = c.check().size();
    if (broken > 0) distinct.insert(c.key());
    several += broken > 1 ? 1 : 0;
  };
  for (const Law& law : laws) {
    for (int round = 0; round < 12; ++round) {
      Draw draw(index++);
      run({&law}, draw);
      if (HasFatalFailure()) FAIL() << "pushed to " << law.name << ", case " << index - 1;
    }
  }
  for (int round = 0; round < 400; ++round) {
    Draw draw(index++);
    std::vector<const Law*> pushes;
    for (int n = draw.between(2, 4); n > 0; --n) {
      pushes.push_back(
          &laws[static_cast<std::size_t>(draw.between(0, static_cast<int>(laws.size()) - 1))]);
    }
    run(pushes, draw);
    if (HasFatalFailure()) FAIL() << "case " << index - 1;
  }
  EXPECT_GE(distinct.size(), 300u);
  EXPECT_GE(several, 100);
  for (const Law& law : laws) EXPECT_GE(seen[law.name], 3) << law.name;
}

// Before anything else: what the other laws divide by.
TEST(IllegalLayouts, NumbersBelowOneAreNamedAloneWithTheirValue) {
  const std::vector<std::pair<std::string, std::function<void(Case&, int)>>> keys = {
      {"tp", [](Case& c, int n) { c.layout.tp = n; }},
      {"cp", [](Case& c, int n) { c.layout.cp = n; }},
      {"ep", [](Case& c, int n) { c.layout.ep = n; }},
      {"dp", [](Case& c, int n) { c.layout.dp = n; }},
      {"pp", [](Case& c, int n) { c.layout.pp = n; }},
      {"v", [](Case& c, int n) { c.layout.v = n; }},
      {"microbatch_size", [](Case& c, int n) { c.layout.microbatch_size = n; }},
      {"global_batch_size", [](Case& c, int n) { c.training.global_batch_size = n; }},
      {"sequence_length", [](Case& c, int n) { c.training.sequence_length = n; }}};
  for (std::uint64_t index = 0; index < 60; ++index) {
    Draw draw(100'000 + index);
    Case c = legal(draw);
    std::set<std::string> expected;
    for (int n = draw.between(1, 3); n > 0; --n) {
      const auto& [key, set] = keys[static_cast<std::size_t>(draw.between(0, 8))];
      if (expected.contains(key)) continue;
      expected.insert(key);
      set(c, -draw.between(0, 5));
    }
    if (draw.coin()) c.layout.group_size = -1;
    const std::vector<BrokenLaw> broken = c.check();
    ASSERT_EQ(broken.size(), expected.size() + (c.layout.group_size < 0 ? 1u : 0u));
    for (const BrokenLaw& law : broken) {
      if (law.name == "group_size_not_negative") continue;
      EXPECT_EQ(law.name, "at_least_one");
      EXPECT_TRUE(expected.contains(law.message.substr(0, law.message.find(' '))));
    }
  }
}

}  // namespace
}  // namespace foresail::planner::illegal
