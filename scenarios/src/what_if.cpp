#include "foresail/scenarios/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "foresail/base/quantity.h"

namespace foresail::scenarios {
namespace {

constexpr double kNamedShare = 0.02;  // of the largest difference: smaller ones share a line

Variant variant_of(const std::string& name, const Scenario& scenario, SimulateOptions options,
                   const topologies::DeviceSpec& judge) {
  options.conditions = &scenario.conditions;
  const Answer answer = simulate(scenario.plan, options);
  Variant variant;
  variant.name = name;
  variant.reasons = reasons(answer.feasibility);
  if (!answer.failure.empty()) variant.reasons += "the job fails: " + answer.failure + "\n";
  variant.result = answer.result;
  if (answer.result) {
    variant.parts =
        step_parts(scenario.plan, answer.program, *answer.result, judge, options.profile);
  }
  return variant;
}

std::vector<StepPart> differences(const std::vector<StepPart>& before,
                                  const std::vector<StepPart>& after) {
  std::map<std::string, double> by_cause;
  for (const StepPart& part : before) by_cause[part.cause] -= part.seconds;
  for (const StepPart& part : after) by_cause[part.cause] += part.seconds;
  std::vector<StepPart> list;
  for (const auto& [cause, seconds] : by_cause) list.push_back({cause, seconds});
  std::ranges::stable_sort(list, std::greater<>(),
                           [](const StepPart& part) { return std::abs(part.seconds); });
  return list;
}

Document parts_document(const std::vector<StepPart>& parts) {
  Document document = Document::object();
  for (const StepPart& part : parts) document[part.cause] = part.seconds;
  return document;
}

std::string signed_time(double seconds) {
  return (seconds < 0 ? "-" : "+") + foresail::to_text(duration_from_seconds(std::abs(seconds)));
}

std::string parts_text(const std::vector<StepPart>& parts, bool are_differences) {
  double largest = 0;
  for (const StepPart& part : parts) largest = std::max(largest, std::abs(part.seconds));
  std::string text;
  double rest = 0;
  int count = 0;
  const auto line = [&](const std::string& cause, double seconds) {
    text += fmt::format(
        "  {:<44} {:>10}\n", cause,
        are_differences ? signed_time(seconds) : foresail::to_text(duration_from_seconds(seconds)));
  };
  for (const StepPart& part : parts) {
    if (part.seconds == 0) continue;
    if (std::abs(part.seconds) < kNamedShare * largest) {
      rest += part.seconds;
      ++count;
      continue;
    }
    line(part.cause, part.seconds);
  }
  if (count > 0 && are_differences) line(fmt::format("{} smaller ones", count), rest);
  if (count > 0 && !are_differences && rest > 0) line(fmt::format("{} smaller ones", count), rest);
  return text;
}

// Reasons one a line, each under the change's name.
std::string indented(const std::string& reasons) {
  std::string text;
  std::size_t at = 0;
  while (at < reasons.size()) {
    const std::size_t end = std::min(reasons.find('\n', at), reasons.size());
    text += "  " + reasons.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return text;
}

std::string variant_text(const Variant& variant, const Variant& base) {
  std::string text = variant.name + ": ";
  if (!variant.result) return text + "cannot run\n" + indented(variant.reasons);
  const double seconds = to_seconds(variant.result->iteration_time);
  text += foresail::to_text(variant.result->iteration_time);
  if (base.result) {
    const double before = to_seconds(base.result->iteration_time);
    text += fmt::format(" ({}, {:+.1f} %{})", signed_time(seconds - before),
                        100 * (seconds / before - 1),
                        variant.against ? " against " + base.name : std::string());
  }
  text += fmt::format(", MFU {:.1f} %, memory {}\n", 100 * variant.result->mfu,
                      foresail::to_text(variant.result->memory.peak()));
  text += parts_text(variant.differences, true);
  if (!variant.reasons.empty()) text += "  cannot run:\n" + indented(variant.reasons);
  return text;
}

}  // namespace

std::vector<Change> load_changes(const std::filesystem::path& path) {
  const Yaml root = Yaml::load(path);
  const auto listed = root.find("changes");
  std::vector<Change> changes;
  if (!listed) return changes;
  const Yaml plain = root.without({"changes"});
  Yaml kept = plain;
  std::optional<std::size_t> against;
  std::set<std::string> names;
  for (const Yaml& item : listed->items()) {
    const Yaml name = item.at("name");
    if (!names.insert(name.as_string()).second) name.fail("stands twice");
    const Yaml what = item.without({"name", "keep"});
    if (what.entries().empty()) item.fail("changes nothing");
    const Yaml changed = kept.merged(what);
    changes.push_back({name.as_string(), against, read_scenario(changed)});
    const auto keep = item.find("keep");
    if (!keep || !keep->as_bool()) continue;
    kept = changed;
    against = changes.size();
  }
  return changes;
}

WhatIf what_if(const Scenario& scenario, const std::vector<Change>& changes,
               const SimulateOptions& options) {
  const topologies::DeviceSpec& judge = scenario.plan.cluster.device;
  WhatIf answer;
  answer.variants.push_back(variant_of("as it is", scenario, options, judge));
  for (const Change& change : changes) {
    Variant variant = variant_of(change.name, change.scenario, options, judge);
    variant.against = change.against;
    const Variant& base = answer.variants[change.against.value_or(0)];
    if (base.result && variant.result) variant.differences = differences(base.parts, variant.parts);
    answer.variants.push_back(std::move(variant));
  }
  return answer;
}

Document to_document(const WhatIf& answer) {
  Document variants = Document::array();
  for (const Variant& variant : answer.variants) {
    Document document = {{"name", variant.name},
                         {"feasible", variant.reasons.empty()},
                         {"reasons", variant.reasons},
                         {"iteration_time_s", nullptr}};
    const Variant& base = answer.variants[variant.against.value_or(0)];
    const bool is_base = &variant == &answer.variants.front();
    document["against"] = is_base ? Document(nullptr) : Document(base.name);
    if (variant.result) {
      document["iteration_time_s"] = to_seconds(variant.result->iteration_time);
      document["mfu"] = variant.result->mfu;
      document["memory_peak_bytes"] = variant.result->memory.peak().count();
      document["plan_digest"] = variant.result->plan_digest;
      document["parts_s"] = parts_document(variant.parts);
      if (!is_base && base.result) {
        document["difference_s"] =
            to_seconds(variant.result->iteration_time - base.result->iteration_time);
        document["differences_s"] = parts_document(variant.differences);
      }
    }
    variants.push_back(std::move(document));
  }
  return {{"variants", std::move(variants)}};
}

std::string to_text(const WhatIf& answer) {
  const Variant& base = answer.variants.front();
  std::string text;
  if (base.result) {
    text = fmt::format("step time {}, MFU {:.1f} %, memory {}\n",
                       foresail::to_text(base.result->iteration_time), 100 * base.result->mfu,
                       foresail::to_text(base.result->memory.peak()));
    text += parts_text(base.parts, false);
  }
  if (!base.reasons.empty()) text += "cannot run: " + base.reasons;
  for (std::size_t i = 1; i < answer.variants.size(); ++i) {
    const Variant& variant = answer.variants[i];
    text += "\n" + variant_text(variant, answer.variants[variant.against.value_or(0)]);
  }
  return text;
}

}  // namespace foresail::scenarios
