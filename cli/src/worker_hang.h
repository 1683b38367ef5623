/// \file
/// Whether a step hangs, and which rank is to blame.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "foresail/runtime/activity.h"

namespace foresail::cli {

/// How long nothing may begin or end on any rank in a step. What is given; else ten times the
/// slowest step so far, at least one minute; five minutes in the first step, which knows nothing.
class StepLimit {
 public:
  explicit StepLimit(std::optional<std::chrono::milliseconds> given) : given_(given) {}
  /// A step has ended. One thread.
  void add(std::chrono::nanoseconds step);
  /// Any thread.
  std::chrono::milliseconds now() const;

 private:
  std::optional<std::chrono::milliseconds> given_;
  std::atomic<std::int64_t> slowest_ns_ = 0;
};

/// "rank 3", "ranks 0, 2 and 5 more"
std::string ranks_text(const std::vector<int>& ranks);

/// What a rank's answer says of it in the store; empty text of a rank that runs no steps.
std::string pack(const std::optional<runtime::Activity>& activity);
std::optional<runtime::Activity> unpack(const std::string& text);

/// What the ranks answered when one of them found that nothing moves.
struct RollOfSteps {
  std::chrono::milliseconds limit{};  ///< of the rank that asks
  std::vector<int> missing;           ///< did not answer, and have not left
  /// By rank; none of those that run no steps, are missing or have left.
  std::vector<std::optional<runtime::Activity>> activities;
};

/// Why the job cannot go on, by rank; empty if it may be slow and no more: some rank has begun or
/// ended something within the limit. Ranks that do not answer are to blame; else those that do
/// work of their own or do not begin a step. If all wait for each
/// other or for their devices, nobody can be named, and it is said what each of them waits for.
std::string find_hang(const RollOfSteps& roll);

}  // namespace foresail::cli
