#include "foresail/scenarios/explain_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "foresail/planner/live_memory.h"
#include "foresail/scenarios/predict.h"
#include "memory_remedies.h"

namespace foresail::scenarios {
namespace {

using foresail::to_text;
using planner::Plan;
using program::Axis;
using program::Program;

constexpr std::size_t kPointsShown = 2000;  // of the curve, in a document

int stage_of(const Program& program, RankId rank) {
  return program.grid.coordinates(rank)[static_cast<std::size_t>(Axis::Pp)];
}

RankId first_of_fullest(const Program& program) {
  const auto fullest = std::ranges::max_element(program.memory, {}, &program::MemoryNeed::peak);
  program::Coordinates at{};
  at[static_cast<std::size_t>(Axis::Pp)] = static_cast<int>(fullest - program.memory.begin());
  return program.grid.rank(at);
}

std::vector<report::OpInterval> times_of(const sim::StepOutcome& outcome, RankId rank, int stage) {
  // A unit stands for ranks that run alike; of a folded stage, any unit is as good.
  std::size_t found = outcome.units.size();
  for (std::size_t u = 0; u < outcome.units.size(); ++u) {
    if (outcome.units[u].stage != stage) continue;
    const bool is_own =
        std::ranges::find(outcome.units[u].ranks, rank) != outcome.units[u].ranks.end();
    if (found == outcome.units.size() || is_own) found = u;
    if (is_own) break;
  }
  FORESAIL_EXPECT(found < outcome.units.size());
  std::vector<report::OpInterval> times;
  for (const sim::StepOutcome::OpTime& op : outcome.op_times[found]) {
    times.push_back({op.start, op.end});
  }
  return times;
}

Document need_document(const program::MemoryNeed& need) {
  return {{"parameters", need.parameters.count()}, {"gradients", need.gradients.count()},
          {"optimizer", need.optimizer.count()},   {"activations", need.activations.count()},
          {"buffers", need.buffers.count()},       {"peak", need.peak().count()}};
}

std::string of_limit(Bytes bytes, Bytes limit) {
  if (limit.count() == 0) return to_text(bytes);
  return fmt::format("{} of {} ({:.1f} %)", to_text(bytes), to_text(limit),
                     100 * static_cast<double>(bytes.count()) / static_cast<double>(limit.count()));
}

constexpr std::string_view meaning(program::MemoryCategory category) {
  switch (category) {
    case program::MemoryCategory::Parameters:
      return "the rank's weights in the training precision";
    case program::MemoryCategory::Gradients:
      return "what passes add up until the step ends";
    case program::MemoryCategory::Optimizer:
      return "moments and fp32 master weights";
    case program::MemoryCategory::Activations:
      return "kept by forward passes for their backward passes";
    case program::MemoryCategory::Buffers:
      return "the pass under way, messages, buckets of sharded states";
  }
  return "";
}

/// Bytes of the owners by category, in the order of the categories.
std::vector<std::pair<program::MemoryCategory, Bytes>> by_category(
    const report::MemoryCurve& curve) {
  std::vector<std::pair<program::MemoryCategory, Bytes>> sums;
  for (const auto& [category, name] : kNames<program::MemoryCategory>) {
    Bytes sum;
    for (const report::OwnedBytes& owned : curve.owners) {
      if (owned.tensor.category == category) sum += owned.bytes();
    }
    sums.emplace_back(category, sum);
  }
  return sums;
}

Document curve_document(const report::MemoryCurve& curve) {
  Document points = Document::array();
  const std::size_t step = std::max<std::size_t>(1, curve.points.size() / kPointsShown);
  for (std::size_t i = 0; i < curve.points.size(); ++i) {
    if (i % step != 0 && i != curve.peak) continue;
    points.push_back({to_seconds(curve.points[i].time - SimTime{}), curve.points[i].total.count()});
  }
  return points;
}

}  // namespace

MemoryExplanation explain_memory(const Plan& plan, const SimulateOptions& options,
                                 std::optional<RankId> rank) {
  const Program program = lower_verified(plan);
  const topologies::Cluster cluster(plan.cluster);
  sim::SimulatorOptions simulator = simulator_options(plan, options.prediction());
  simulator.seed = options.seed.value_or(plan.seed);
  MemoryExplanation explanation;
  explanation.rank = rank.value_or(first_of_fullest(program));
  explanation.stage = stage_of(program, explanation.rank);
  explanation.bound = planner::memory_bound(plan, program, explanation.stage);
  explanation.limit = program.memory_limit;
  explanation.plan_digest = plan.digest();
  explanation.remedies = memory_remedies(plan);
  const sim::StepOutcome outcome =
      simulate_jobs(plan, program, cluster, simulator, options.conditions);
  explanation.failure = outcome.failure;
  if (!outcome.failure.empty()) return explanation;
  explanation.iteration = outcome.iteration;
  const program::StageProgram& stage = program.stages[static_cast<std::size_t>(explanation.stage)];
  explanation.curve =
      report::memory_curve(stage, planner::live_memory(plan, program, explanation.stage),
                           times_of(outcome, explanation.rank, explanation.stage));
  explanation.op = program::describe(stage.ops[explanation.curve.op]);
  return explanation;
}

Document to_document(const MemoryExplanation& explanation, int top) {
  Document margins = Document::array();
  for (const planner::MemoryMargin& margin : explanation.bound.margins) {
    margins.push_back(
        {{"name", margin.name}, {"bytes", margin.bytes.count()}, {"why", margin.why}});
  }
  Document remedies = Document::array();
  for (const MemoryRemedy& remedy : explanation.remedies) {
    remedies.push_back({{"change", remedy.change},
                        {"saved_bytes", remedy.saved.count()},
                        {"peak_bytes", remedy.peak.count()}});
  }
  Document document = {{"rank", explanation.rank.value},
                       {"stage", explanation.stage},
                       {"memory_bytes", need_document(explanation.bound.point)},
                       {"margins", std::move(margins)},
                       {"memory_limit_bytes", explanation.limit.count()},
                       {"remedies", std::move(remedies)},
                       {"plan_digest", explanation.plan_digest}};
  document["memory_bytes"]["upper_bound"] = explanation.bound.upper().count();
  if (!explanation.failure.empty()) {
    document["failure"] = explanation.failure;
    return document;
  }
  const report::MemoryCurve& curve = explanation.curve;
  const report::MemoryPoint& peak = curve.points[curve.peak];
  Document owners = Document::array();
  for (const report::OwnedBytes& owned : curve.owners) {
    if (static_cast<int>(owners.size()) == top) break;
    owners.push_back({{"category", to_string(owned.tensor.category)},
                      {"owner", owned.tensor.owner},
                      {"name", owned.tensor.name},
                      {"count", owned.count},
                      {"bytes", owned.bytes().count()}});
  }
  Document categories = Document::object();
  for (const auto& [category, bytes] : by_category(curve)) {
    categories[std::string(to_string(category))] = bytes.count();
  }
  document["peak"] = {{"time_s", to_seconds(peak.time - SimTime{})},
                      {"op", explanation.op},
                      {"bytes", peak.total.count()},
                      {"categories", std::move(categories)},
                      {"owners", std::move(owners)}};
  document["iteration_time_s"] = to_seconds(explanation.iteration);
  document["curve"] = curve_document(curve);
  return document;
}

std::string to_text(const MemoryExplanation& explanation, int top) {
  const planner::MemoryBound& bound = explanation.bound;
  std::string text = fmt::format("rank {} (stage {})\npoint estimate  {}\nupper bound     {}\n",
                                 explanation.rank.value, explanation.stage,
                                 of_limit(bound.point.peak(), explanation.limit),
                                 of_limit(bound.upper(), explanation.limit));
  if (!explanation.failure.empty()) {
    return text + fmt::format("the job fails: {}\n", explanation.failure);
  }
  const report::MemoryCurve& curve = explanation.curve;
  const report::MemoryPoint& peak = curve.points[curve.peak];
  text +=
      fmt::format("peak            {} at {} of {}, in {}\n\n", to_text(peak.total),
                  to_text(peak.time - SimTime{}), to_text(explanation.iteration), explanation.op);
  for (const auto& [category, bytes] : by_category(curve)) {
    text +=
        fmt::format("{:<12} {:>10}  {}\n", to_string(category), to_text(bytes), meaning(category));
  }
  text += "\nlargest owners at the peak\n";
  int shown = 0;
  for (const report::OwnedBytes& owned : curve.owners) {
    if (shown++ == top) break;
    text += fmt::format("  {:>10}  {:<12} {}: {}{}\n", to_text(owned.bytes()),
                        to_string(owned.tensor.category), owned.tensor.owner, owned.tensor.name,
                        owned.count > 1 ? fmt::format(", {} times", owned.count) : "");
  }
  text += "\nwhat the upper bound adds\n";
  for (const planner::MemoryMargin& margin : bound.margins) {
    text += fmt::format("  {:>10}  {}: {}\n", to_text(margin.bytes), margin.name, margin.why);
  }
  text += explanation.remedies.empty() ? "\nno change of one choice needs less\n"
                                       : "\nwhat would bring it down (fullest stage)\n";
  for (const MemoryRemedy& remedy : explanation.remedies) {
    text += fmt::format("  {:<28} -{} to {}\n", remedy.change, to_text(remedy.saved),
                        to_text(remedy.peak));
  }
  return text;
}

}  // namespace foresail::scenarios
