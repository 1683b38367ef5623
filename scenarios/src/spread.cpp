#include "foresail/scenarios/spread.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {
namespace {

constexpr double kRounding = 1e-12;

struct Weighted {
  double value, weight;
};

// The value below which a share of the weight lies.
double quantile(const std::vector<Weighted>& sorted, double share) {
  double all = 0;
  for (const Weighted& each : sorted) all += each.weight;
  double sum = 0;
  for (const Weighted& each : sorted) {
    sum += each.weight;
    if (sum >= share * all * (1 - kRounding)) return each.value;
  }
  return sorted.empty() ? 0 : sorted.back().value;
}

SpreadLevel read_level(const Yaml& node) {
  node.allow_only({"half_50", "half_90", "rows", "configurations"});
  SpreadLevel level;
  level.half_50 = node.at("half_50").as_number();
  level.half_90 = node.at("half_90").as_number();
  level.rows = static_cast<int>(node.at("rows").as_integer(1, 1 << 30));
  level.configurations = static_cast<int>(node.at("configurations").as_integer(1, 1 << 30));
  if (level.half_50 <= 0 || level.half_90 < level.half_50) {
    node.fail("needs 0 < half_50 <= half_90");
  }
  return level;
}

std::vector<std::string> read_names(const Yaml& node) {
  std::vector<std::string> names;
  for (const Yaml& name : node.items()) names.push_back(name.as_string());
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

Document to_document(const SpreadLevel& level) {
  const auto rounded = [](double value) { return std::round(value * 1e4) / 1e4; };
  return {{"half_50", rounded(level.half_50)},
          {"half_90", rounded(level.half_90)},
          {"rows", level.rows},
          {"configurations", level.configurations}};
}

}  // namespace

const SpreadLevel& Spread::level(Novelty novelty) const {
  switch (novelty) {
    case Novelty::Configuration:
      return configuration;
    case Novelty::Source:
      return source;
    case Novelty::Device:
      break;
  }
  return device;
}

SpreadLevel spread_level(const std::vector<LeftOut>& rows) {
  std::map<std::string, int> sizes;
  std::map<std::string, std::set<std::string>> configurations;  // by source
  for (const LeftOut& row : rows) {
    ++sizes[row.group];
    configurations[row.source].insert(row.group);
  }
  std::vector<Weighted> values;
  for (const LeftOut& row : rows) {
    const auto shared = static_cast<double>(configurations[row.source].size());
    values.push_back({std::abs(row.residual), 1.0 / (shared * sizes[row.group])});
  }
  std::ranges::sort(values, {}, &Weighted::value);
  return {quantile(values, 0.5), quantile(values, 0.9), static_cast<int>(rows.size()),
          static_cast<int>(sizes.size())};
}

SpreadParts spread_parts(const std::vector<LeftOut>& rows) {
  struct Mean {
    double sum = 0;
    int count = 0;
    void add(double value) {
      sum += value;
      ++count;
    }
    double value() const { return sum / count; }
  };
  std::map<std::string, std::map<std::string, Mean>> sources;
  for (const LeftOut& row : rows) sources[row.source][row.group].add(row.residual);
  std::vector<double> means;
  double within = 0;
  int freedom = 0;
  for (const auto& [source, groups] : sources) {
    Mean mean;
    for (const auto& [group, each] : groups) mean.add(each.value());
    means.push_back(mean.value());
    for (const auto& [group, each] : groups) within += std::pow(each.value() - mean.value(), 2);
    freedom += static_cast<int>(groups.size()) - 1;
  }
  double between = 0;
  for (const double each : means) between += each * each;  // about no error at all
  return {means.empty() ? 0 : std::sqrt(between / static_cast<double>(means.size())),
          freedom == 0 ? 0 : std::sqrt(within / freedom)};
}

Spread load_spread() {
  const Yaml root = load_catalogue("spread.yaml");
  root.allow_only({"configuration", "source", "device", "devices", "stacks", "clusters"});
  Spread spread;
  spread.configuration = read_level(root.at("configuration"));
  spread.source = read_level(root.at("source"));
  spread.device = read_level(root.at("device"));
  spread.devices = read_names(root.at("devices"));
  spread.stacks = read_names(root.at("stacks"));
  spread.clusters = read_names(root.at("clusters"));
  return spread;
}

Document to_document(const Spread& spread) {
  return {{"configuration", to_document(spread.configuration)},
          {"source", to_document(spread.source)},
          {"device", to_document(spread.device)},
          {"devices", spread.devices},
          {"stacks", spread.stacks},
          {"clusters", spread.clusters}};
}

Novelty novelty_of(const planner::Plan& plan, const std::string& stack, const Spread& spread) {
  const std::string& device = plan.cluster.device.name;
  if (!contains(spread.devices, device)) return Novelty::Device;
  const bool is_known =
      contains(spread.stacks, device + " " + stack) && contains(spread.clusters, plan.cluster.name);
  return is_known ? Novelty::Configuration : Novelty::Source;
}

std::string known_stack(const planner::Plan& plan, const std::vector<StackDescription>& stacks) {
  for (const StackDescription& each : stacks) {
    if (each.stack == plan.stack && each.overlap == plan.layout.overlap &&
        each.gradient_dtype == plan.training.gradient_dtype && !each.match.empty()) {
      return each.name;
    }
  }
  return {};
}

StepIntervals intervals(Duration time, Novelty novelty, const Spread& spread) {
  const SpreadLevel& level = spread.level(novelty);
  const auto around = [time](double half) {
    const auto picoseconds = static_cast<double>(time.count());
    return report::Interval{Duration(std::llround(picoseconds * std::exp(-half))),
                            Duration(std::llround(picoseconds * std::exp(half)))};
  };
  return {around(level.half_50), around(level.half_90), novelty};
}

}  // namespace foresail::scenarios
