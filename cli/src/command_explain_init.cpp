#include "command_explain_init.h"

#include <fmt/format.h>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "foresail/planner/plan.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/sim/start_time.h"
#include "option_checks.h"

namespace foresail::cli {
namespace {

using sim::Barriers;

constexpr int kPairGroupsMax = 1 << 24;

struct Row {
  std::string store;
  Barriers barriers;
  sim::StartTime time;
};

std::vector<sim::GroupKind> kinds_of(const InitOptions& options, const planner::Plan& plan) {
  std::vector<sim::GroupKind> kinds;
  if (options.groups == "megatron") {
    const planner::Layout& layout = plan.layout;
    if (layout.cp * layout.ep != 1) {
      throw Error(
          ErrorCode::InvalidInput,
          fmt::format("--groups megatron: cp {} and ep {} must be 1", layout.cp, layout.ep));
    }
    kinds = sim::megatron_group_kinds({layout.tp, layout.pp, layout.dp});
  } else if (options.groups == "plan") {
    kinds = sim::group_kinds(planner::lower(plan));
  } else {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("--groups: \"{}\" is not one of plan, megatron", options.groups));
  }
  if (options.pair_groups > 0) kinds.push_back({"pairs", options.pair_groups, 2});
  return kinds;
}

std::vector<sim::StoreCost> stores_of(const std::string& choice) {
  if (choice.empty()) return {sim::tcp_store_cost(), sim::redis_store_cost()};
  for (const sim::StoreCost& store : {sim::tcp_store_cost(), sim::redis_store_cost()}) {
    if (store.name == choice) return {store};
  }
  throw Error(ErrorCode::InvalidInput,
              fmt::format("--store: \"{}\" is not one of tcp, redis", choice));
}

std::vector<Barriers> barriers_of(const std::string& choice) {
  if (choice.empty()) return {Barriers::Global, Barriers::Ordered};
  const auto found = from_string<Barriers>(choice);
  if (!found) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("--barriers: \"{}\" is not one of {}", choice, choices<Barriers>()));
  }
  return {*found};
}

Document document_of(const std::vector<sim::GroupKind>& kinds, const std::vector<Row>& rows) {
  Document document{{"groups", Document::array()}, {"starts", Document::array()}};
  for (const sim::GroupKind& kind : kinds) {
    document["groups"].push_back(
        {{"name", kind.name}, {"groups", kind.groups}, {"size", kind.size}});
  }
  for (const Row& row : rows) {
    document["starts"].push_back({{"store", row.store},
                                  {"barriers", to_string(row.barriers)},
                                  {"total_s", to_seconds(row.time.total())},
                                  {"join_s", to_seconds(row.time.join)},
                                  {"barriers_s", to_seconds(row.time.barriers)},
                                  {"addresses_s", to_seconds(row.time.addresses)},
                                  {"connect_s", to_seconds(row.time.connect)},
                                  {"global_barriers", row.time.global_barriers},
                                  {"store_questions", row.time.questions}});
  }
  return document;
}

std::string text_of(const std::vector<sim::GroupKind>& kinds, const std::vector<Row>& rows) {
  std::string text = fmt::format("{:<20} {:>8} {:>8}\n", "groups", "count", "ranks");
  for (const sim::GroupKind& kind : kinds) {
    text += fmt::format("{:<20} {:>8} {:>8}\n", kind.name, kind.groups, kind.size);
  }
  text += fmt::format("\n{:<6} {:<9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>10}\n", "store",
                      "order", "start", "join", "barriers", "addresses", "connect", "times",
                      "questions");
  for (const Row& row : rows) {
    text += fmt::format("{:<6} {:<9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>10}\n", row.store,
                        to_string(row.barriers), to_text(row.time.total()), to_text(row.time.join),
                        to_text(row.time.barriers), to_text(row.time.addresses),
                        to_text(row.time.connect), row.time.global_barriers, row.time.questions);
  }
  return text;
}

}  // namespace

CLI::App* add_explain_init(CLI::App& explain, InitOptions& options) {
  CLI::App* init = explain.add_subcommand(
      "init", "how long a job needs until its groups can communicate, by store and barriers");
  init->add_option("scenario", options.scenario, "scenario or Plan file")->required();
  init->add_option("--store", options.store, "tcp or redis (default: both)");
  init->add_option("--barriers", options.barriers,
                   "global: after every group; ordered: one at the end (default: both)");
  init->add_option("--groups", options.groups, "plan (default): the Program's; or megatron");
  init->add_option("--pair-groups", options.pair_groups, "further groups, of two ranks each")
      ->check(whole_number(0, kPairGroupsMax));
  options.common.add_outputs_to(*init);
  return init;
}

int run_explain_init(const InitOptions& options) {
  const scenarios::Scenario scenario = scenarios::load_scenario(options.scenario);
  const planner::Plan& plan = scenario.plan;
  const planner::Feasibility feasibility = planner::check(plan);
  if (!feasibility.broken.empty()) {
    const std::string reasons = scenarios::reasons(feasibility);
    answer(options.common, {{"feasible", false}, {"reasons", reasons}}, "infeasible\n" + reasons);
    return kInfeasible;
  }
  const std::vector<sim::GroupKind> kinds = kinds_of(options, plan);
  std::vector<Row> rows;
  for (const sim::StoreCost& store : stores_of(options.store)) {
    for (const Barriers barriers : barriers_of(options.barriers)) {
      sim::StartOptions start = sim::cluster_start_options();
      start.ranks = plan.layout.world_size();
      start.kinds = kinds;
      start.store = store;
      start.barriers = barriers;
      rows.push_back({store.name, barriers, sim::start_time(start)});
    }
  }
  answer(options.common, document_of(kinds, rows), text_of(kinds, rows));
  return kOk;
}

}  // namespace foresail::cli
