#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <string_view>

#include "foresail/base/error.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/scenarios/search.h"

namespace foresail::scenarios {
namespace {

using planner::SearchSpace;

constexpr std::int64_t kDegreeMax = std::int64_t{1} << 22;
constexpr double kPriceMax = 1e9;
constexpr double kTokensMax = 1e18;
constexpr double kWattsMax = 1e6;

bool is_all(const Yaml& node) {
  return node.is_scalar() && node.as_string() == "all";
}

std::int64_t read_step(const Yaml& node) {
  const std::string text = node.as_string();
  if (text.size() < 2 || text.front() != 'x') return 0;
  const std::string digits = text.substr(1);
  if (digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos) return 0;
  return std::stoll(digits);
}

/// {from: 1, to: 64, step: x2}: multiplied by 2; step: 3: increased by 3; default 1.
std::vector<std::int64_t> read_range(const Yaml& node, std::int64_t low, std::int64_t high) {
  node.allow_only({"from", "to", "step"});
  const std::int64_t from = node.at("from").as_integer(low, high);
  const std::int64_t to = node.at("to").as_integer(from, high);
  std::int64_t factor = 0;
  std::int64_t step = 1;
  if (const auto given = node.find("step")) {
    factor = read_step(*given);
    if (factor == 1 || (factor > 1 && from == 0)) given->fail("never leaves its start");
    if (factor == 0) step = given->as_integer(1, high);
  }
  std::vector<std::int64_t> values;
  for (std::int64_t at = from; at <= to; at = factor > 1 ? at * factor : at + step) {
    values.push_back(at);
    if (values.size() > 100'000) node.fail("has more than 100000 values");
  }
  return values;
}

/// One value, a list, a range, or `all` (empty).
std::vector<std::int64_t> read_integers(const Yaml& node, std::int64_t low, std::int64_t high) {
  if (is_all(node)) return {};
  if (node.is_map()) return read_range(node, low, high);
  if (node.is_scalar()) return {node.as_integer(low, high)};
  std::vector<std::int64_t> values;
  std::set<std::int64_t> seen;
  for (const Yaml& item : node.items()) {
    values.push_back(item.as_integer(low, high));
    if (!seen.insert(values.back()).second) item.fail("stands here twice");
  }
  if (values.empty()) node.fail("names nothing");
  return values;
}

void read_ints(const Yaml& root, std::string_view key, std::int64_t low, std::int64_t high,
               std::vector<int>& out) {
  const auto node = root.find(key);
  if (!node) return;
  out.clear();
  for (const std::int64_t value : read_integers(*node, low, high)) {
    out.push_back(static_cast<int>(value));
  }
}

bool is_number(const Yaml& node) {
  const std::string text = node.as_string();
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

std::vector<Yaml> listed(const Yaml& node) {
  if (!node.is_sequence()) return {node};
  std::vector<Yaml> items = node.items();
  if (items.empty()) node.fail("names nothing");
  return items;
}

/// true, false, [true, false] or all.
void read_flags(const Yaml& root, std::string_view key, std::vector<int>& out) {
  const auto node = root.find(key);
  if (!node) return;
  out.clear();
  if (is_all(*node)) return;
  for (const Yaml& item : listed(*node)) {
    const int value = item.as_bool() ? 1 : 0;
    for (const int other : out) {
      if (other == value) item.fail("stands here twice");
    }
    out.push_back(value);
  }
}

/// true, false, gradients, parameters, a list of them, or all.
void read_messages(const Yaml& root, std::string_view key,
                   std::vector<planner::DataMessages>& out) {
  const auto node = root.find(key);
  if (!node) return;
  out.clear();
  if (is_all(*node)) return;
  for (const Yaml& item : listed(*node)) {
    const planner::DataMessages value = planner::read_data_messages(item);
    if (std::ranges::find(out, value) != out.end()) item.fail("stands here twice");
    out.push_back(value);
  }
}

/// Shares of 0 to 1, a list of them, or all.
void read_shares(const Yaml& root, std::string_view key, std::vector<double>& out) {
  const auto node = root.find(key);
  if (!node) return;
  out.clear();
  if (is_all(*node)) return;
  for (const Yaml& item : listed(*node)) {
    const double share = item.as_number();
    if (!(share >= 0 && share <= 1)) item.fail("must be a share, 0 to 1");
    if (std::ranges::find(out, share) != out.end()) item.fail("stands here twice");
    out.push_back(share);
  }
}

template <class E>
void read_choices(const Yaml& root, std::string_view key, std::vector<E>& out) {
  const auto node = root.find(key);
  if (!node) return;
  out.clear();
  if (is_all(*node)) return;
  for (const Yaml& item : listed(*node)) {
    const E value = item.as_choice<E>();
    for (const E other : out) {
      if (other == value) item.fail("stands here twice");
    }
    out.push_back(value);
  }
}

void read_overlap(const Yaml& root, SearchSpace& space) {
  const auto node = root.find("overlap");
  if (!node || is_all(*node)) return;
  node->allow_only({"tp", "pp", "dp", "ep", "aligned"});
  read_flags(*node, "tp", space.overlap_tp);
  read_flags(*node, "pp", space.overlap_pp);
  read_messages(*node, "dp", space.overlap_dp);
  read_flags(*node, "ep", space.overlap_ep);
  read_messages(*node, "aligned", space.overlap_aligned);
}

void read_orders(const Yaml& root, SearchSpace& space) {
  const auto node = root.find("rank_order");
  if (!node) return;
  space.rank_order.clear();
  for (const Yaml& item : listed(*node)) {
    try {
      space.rank_order.push_back(program::parse_rank_order(item.as_string()));
    } catch (const Error& error) {
      item.fail(error.what());
    }
  }
}

/// A name, a mapping, or a list of them; modules stand in a list of their own.
void read_recompute(const Yaml& node, SearchSpace& space) {
  space.recompute.clear();
  if (is_all(node)) return;
  for (const Yaml& item : listed(node)) {
    const planner::Recomputation choice = planner::read_recomputation(item);
    if (std::ranges::find(space.recompute, choice) != space.recompute.end()) {
      item.fail("stands here twice");
    }
    space.recompute.push_back(choice);
  }
}

/// One form, or a list of them; a list of numbers is one form.
void read_stages(const Yaml& node, SearchSpace& space) {
  space.stages.clear();
  const bool is_form = node.is_sequence() && !node.items().empty() &&
                       node.items().front().is_scalar() && is_number(node.items().front());
  for (const Yaml& item : is_form ? std::vector<Yaml>{node} : listed(node)) {
    const planner::StageLayers form = planner::read_stage_layers(item);
    if (std::ranges::find(space.stages, form) != space.stages.end()) {
      item.fail("stands here twice");
    }
    space.stages.push_back(form);
  }
}

std::string placement_name(const Yaml& node) {
  return node.is_scalar() ? node.as_string() : node.to_document().dump();
}

void read_placements(const Yaml& root, const planner::Plan& base, SearchSpace& space) {
  const auto node = root.find("placement");
  if (!node) return;
  int most = 0;
  for (const int gpus : space.gpus) most = std::max(most, gpus);
  for (const Yaml& item : listed(*node)) {
    const program::Placement placement = read_placement(item, base.cluster, most, base.seed);
    planner::DeviceOrder order;
    order.name = placement_name(item);
    for (const DeviceId device : placement.device_of) order.devices.push_back(device);
    space.placement.push_back(std::move(order));
  }
}

double positive(const Yaml& node, double most) {
  const double value = node.as_number();
  if (!(value > 0 && value <= most)) {
    node.fail(fmt::format("must be above 0 and at most {:g}", most));
  }
  return value;
}

/// "700 W" or "1.3 kW".
double read_watts(const Yaml& node) {
  const std::string text = node.as_string();
  const auto fail = [&] {
    node.fail(fmt::format("\"{}\" is no power (for example \"700 W\"; units: W, kW)", text));
  };
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, status] = std::from_chars(text.data(), end, value);
  std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (status != std::errc{} || (unit != "W" && unit != "kW")) fail();
  if (unit == "kW") value *= 1000;
  if (!(value > 0 && value <= kWattsMax)) node.fail("must be above 0 W and at most 1000 kW");
  return value;
}

/// The scenario's, or that of the device's data sheet, for what it is worth.
void read_power(const Yaml& root, SearchRequest& request) {
  if (const auto node = root.find("power_per_gpu")) {
    request.problem.watts_per_gpu = read_watts(*node);
    request.power_source = "the scenario";
    return;
  }
  const std::string& device = request.problem.base.cluster.device.name;
  for (const std::filesystem::path& folder : data_folders().scenarios) {
    const std::filesystem::path path = folder / "power.yaml";
    if (request.problem.watts_per_gpu > 0 || !std::filesystem::exists(path)) continue;
    const Yaml catalogue = Yaml::load(path);
    catalogue.allow_only({"power"});
    for (const Yaml& entry : catalogue.at("power").items()) {
      entry.allow_only({"device", "watts", "source"});
      if (entry.at("device").as_string() != device) continue;
      request.problem.watts_per_gpu = positive(entry.at("watts"), kWattsMax);
      request.power_source = entry.at("source").as_string();
    }
  }
  const bool is_energy = request.problem.objective == planner::Objective::Energy;
  if (is_energy && request.problem.watts_per_gpu <= 0) {
    root.at("objective")
        .fail(fmt::format("needs power_per_gpu: no power is known of device {}", device));
  }
}

void read_objective(const Yaml& root, SearchRequest& request) {
  if (const auto node = root.find("objective")) {
    request.problem.objective = node->as_choice<planner::Objective>();
  }
  using planner::Objective;
  const Objective objective = request.problem.objective;
  const auto price = objective == Objective::Cost ? root.at("price") : root.find("price");
  if (price) {
    price->allow_only({"per_gpu_hour", "currency"});
    request.problem.price_per_gpu_hour = positive(price->at("per_gpu_hour"), kPriceMax);
    request.currency = price->at("currency").as_string();
  }
  const auto tokens = objective == Objective::Days ? root.at("tokens") : root.find("tokens");
  if (tokens) request.problem.tokens = positive(*tokens, kTokensMax);
  read_power(root, request);
}

}  // namespace

SearchRequest read_search(const Yaml& node, const planner::Plan& base) {
  node.allow_only({"gpus",
                   "tp",
                   "cp",
                   "cp_kind",
                   "ep",
                   "etp",
                   "pp",
                   "dp",
                   "v",
                   "stages",
                   "microbatch_size",
                   "sequence_parallel",
                   "zero_stage",
                   "shard_size",
                   "optimizer_offload",
                   "recompute",
                   "schedule",
                   "overlap",
                   "rank_order",
                   "placement",
                   "objective",
                   "memory",
                   "price",
                   "power_per_gpu",
                   "tokens",
                   "compare"});
  SearchRequest request;
  request.problem.base = base;
  SearchSpace& space = request.problem.space;
  const int devices = base.cluster.nodes * base.cluster.node.devices;
  read_ints(node, "gpus", 1, devices, space.gpus);
  if (space.gpus.empty()) space.gpus = {devices};
  read_ints(node, "tp", 1, kDegreeMax, space.tp);
  read_ints(node, "cp", 1, kDegreeMax, space.cp);
  read_choices(node, "cp_kind", space.cp_kind);
  read_ints(node, "ep", 1, kDegreeMax, space.ep);
  read_ints(node, "etp", 1, kDegreeMax, space.etp);
  read_ints(node, "pp", 1, kDegreeMax, space.pp);
  read_ints(node, "dp", 1, kDegreeMax, space.dp);
  read_ints(node, "v", 1, kDegreeMax, space.v);
  if (const auto stages = node.find("stages")) read_stages(*stages, space);
  if (const auto size = node.find("microbatch_size")) {
    space.microbatch_size = read_integers(*size, 1, kDegreeMax);
  }
  read_flags(node, "sequence_parallel", space.sequence_parallel);
  read_ints(node, "zero_stage", 0, 3, space.zero_stage);
  read_ints(node, "shard_size", 0, kDegreeMax, space.shard_size);
  read_shares(node, "optimizer_offload", space.optimizer_offload);
  if (const auto recompute = node.find("recompute")) read_recompute(*recompute, space);
  read_choices(node, "schedule", space.schedule);
  if (std::ranges::find(space.schedule, planner::ScheduleKind::File) != space.schedule.end()) {
    node.at("schedule").fail("a search chooses among the named schedules; \"file\" is none");
  }
  read_overlap(node, space);
  read_orders(node, space);
  read_placements(node, base, space);
  read_objective(node, request);
  if (const auto memory = node.find("memory")) {
    request.problem.memory = memory->as_choice<planner::MemoryRule>();
  }
  if (const auto compare = node.find("compare")) {
    for (const Yaml& item : compare->items()) {
      request.compare.push_back({planner::read_layout(item), 0});
    }
  }
  return request;
}

}  // namespace foresail::scenarios
