#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "foresail/base/digest.h"
#include "foresail/base/error.h"
#include "foresail/scenarios/search.h"

namespace foresail::scenarios {
namespace {

using planner::Candidate;

constexpr double kRounding = 1e-9;
constexpr int kFormat = 1;

/// Everything that decides a step time but the layout and the placement.
std::string digest_of(const planner::Plan& base) {
  planner::Plan bare = base;
  bare.layout = {};
  bare.placement = {};
  return sha256(bare.digest() + FORESAIL_VERSION);
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw Error(ErrorCode::InvalidInput, fmt::format("{}: {}", path.string(), why));
}

/// Throws what nlohmann::json throws if the document has another shape.
std::map<std::string, Duration> read_steps(const std::filesystem::path& path,
                                           const Document& document) {
  std::map<std::string, Duration> steps;
  for (const Document& entry : document.at("simulated")) {
    const auto plan = entry.at("plan").get<std::string>();
    const Document& time = entry.at("step_ps");
    if (!time.is_number_integer() || time.get<std::int64_t>() <= 0) {
      refuse(path, fmt::format("step_ps of \"{}\" is no positive integer", plan));
    }
    const Duration step(time.get<std::int64_t>());
    if (!steps.emplace(plan, step).second) {
      refuse(path, fmt::format("\"{}\" stands twice", plan));
    }
  }
  return steps;
}

}  // namespace

SearchState::SearchState(std::filesystem::path path, const planner::SearchProblem& problem)
    : path_(std::move(path)), digest_(digest_of(problem.base)) {
  for (const planner::DeviceOrder& order : problem.space.placement) {
    placements_.push_back(order.name);
  }
  if (!std::filesystem::exists(path_)) return;
  const Document document = parse_json(read_file(path_), path_.string());
  try {
    if (document.at("foresail_search_state").get<int>() != kFormat) {
      refuse(path_, "is a search state of another format");
    }
    if (document.at("job").get<std::string>() != digest_) {
      refuse(path_,
             "of another job (model, cluster, training, stack, network, seed) or version: name "
             "another file, or remove it");
    }
    steps_ = read_steps(path_, document);
  } catch (const Document::exception& problem_with_it) {
    refuse(path_, fmt::format("is no search state: {}", problem_with_it.what()));
  }
}

std::string SearchState::key_of(const planner::Layout& layout, const std::string& placement) const {
  return fmt::format("{} on {}", planner::to_document(layout).dump(), placement);
}

std::string SearchState::placement_of(const Candidate& candidate) const {
  if (placements_.empty()) return planner::DeviceOrder{}.name;
  return placements_.at(static_cast<std::size_t>(candidate.placement));
}

std::optional<Duration> SearchState::recall(const Candidate& candidate) const {
  const auto known = steps_.find(key_of(candidate.layout, placement_of(candidate)));
  if (known == steps_.end()) return std::nullopt;
  if (to_seconds(known->second) < candidate.bound_s * (1 - kRounding)) {
    refuse(path_, fmt::format("step_ps of \"{}\" is below what is possible ({:.4g} s)",
                              known->first, candidate.bound_s));
  }
  return known->second;
}

void SearchState::keep(const std::vector<Candidate>& simulated) {
  for (const Candidate& each : simulated) {
    steps_[key_of(each.layout, placement_of(each))] = duration_from_seconds(each.step_s);
  }
  Document document = {
      {"foresail_search_state", kFormat}, {"job", digest_}, {"simulated", Document::array()}};
  for (const auto& [key, step] : steps_) {
    document["simulated"].push_back({{"plan", key}, {"step_ps", step.count()}});
  }
  write_file(path_, document.dump(1) + "\n");
}

}  // namespace foresail::scenarios
