#include "worker_hang.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "foresail/base/document.h"

namespace foresail::cli {
namespace {

using runtime::Activity;
using runtime::Occupation;
using std::chrono::milliseconds;

constexpr milliseconds kLimitMin{60'000};
constexpr milliseconds kLimitOfFirst{300'000};
constexpr int kTimesTheSlowest = 10;
/// Ranks, or what they do, that a message shows.
constexpr std::size_t kShown = 8;

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// "rank 2 for 61 s in step 5: ..., rank 4 for ..."
std::string each_of(const RollOfSteps& roll, const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, ranks.size()); ++i) {
    const auto& activity = roll.activities[static_cast<std::size_t>(ranks[i])];
    text += fmt::format("{}rank {} for {:.0f} s in {}", i > 0 ? ", " : "", ranks[i],
                        seconds(activity->quiet), activity->text);
  }
  if (ranks.size() > kShown) text += fmt::format(" and {} more", ranks.size() - kShown);
  return text;
}

}  // namespace

void StepLimit::add(std::chrono::nanoseconds step) {
  slowest_ns_ = std::max(slowest_ns_.load(), step.count());
}

milliseconds StepLimit::now() const {
  if (given_) return *given_;
  const std::chrono::nanoseconds slowest(slowest_ns_);
  if (slowest.count() == 0) return kLimitOfFirst;
  return std::max(kLimitMin, std::chrono::duration_cast<milliseconds>(slowest * kTimesTheSlowest));
}

std::string ranks_text(const std::vector<int>& ranks) {
  const std::size_t shown = std::min(kShown, ranks.size());
  const auto end = ranks.begin() + static_cast<std::ptrdiff_t>(shown);
  std::string text = fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks",
                                 fmt::join(ranks.begin(), end, ", "));
  if (shown < ranks.size()) text += fmt::format(" and {} more", ranks.size() - shown);
  return text;
}

std::string pack(const std::optional<Activity>& activity) {
  if (!activity) return {};
  return Document{{"occupation", to_string(activity->occupation)},
                  {"step", activity->step},
                  {"quiet_ns", activity->quiet.count()},
                  {"text", activity->text}}
      .dump();
}

std::optional<Activity> unpack(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const Document document = parse_json(text, "activity");
  Activity activity;
  const std::string occupation = document.at("occupation");
  activity.occupation = from_string<Occupation>(occupation).value();
  activity.step = document.at("step");
  activity.quiet = std::chrono::nanoseconds(document.at("quiet_ns").get<std::int64_t>());
  activity.text = document.at("text");
  return activity;
}

std::string find_hang(const RollOfSteps& roll) {
  std::vector<int> waiting, own, late;
  for (std::size_t rank = 0; rank < roll.activities.size(); ++rank) {
    const auto& activity = roll.activities[rank];
    if (!activity) continue;
    if (activity->quiet < roll.limit) return {};
    const auto number = static_cast<int>(rank);
    if (activity->occupation == Occupation::OwnWork) {
      own.push_back(number);
    } else if (activity->occupation == Occupation::BetweenSteps) {
      late.push_back(number);
    } else {
      waiting.push_back(number);
    }
  }
  const std::string others =
      waiting.empty() ? "" : fmt::format(" (waiting: {})", each_of(roll, waiting));
  if (!roll.missing.empty()) {
    return fmt::format("{} {} no progress and {} not answer{}", ranks_text(roll.missing),
                       roll.missing.size() == 1 ? "makes" : "make",
                       roll.missing.size() == 1 ? "does" : "do", others);
  }
  const std::vector<int>& blamed = own.empty() ? late : own;
  if (blamed.empty()) return fmt::format("no rank makes progress: {}", each_of(roll, waiting));
  return fmt::format("{} {} no progress: {}{}", ranks_text(blamed),
                     blamed.size() == 1 ? "makes" : "make", each_of(roll, blamed), others);
}

}  // namespace foresail::cli
