#include "foresail/scenarios/scenario.h"

#include <fmt/format.h>

#include <cstdlib>

#include "foresail/base/error.h"
#include "foresail/scenarios/predict.h"

namespace foresail::scenarios {
namespace {

namespace fs = std::filesystem;

// `root` is one folder of data: the installed layout, or the source tree's.
void add_folder(DataFolders& folders, const fs::path& root) {
  const bool is_source_tree = fs::is_directory(root / "models" / "catalogue");
  folders.models.push_back(is_source_tree ? root / "models" / "catalogue" : root / "models");
  folders.topologies.push_back(is_source_tree ? root / "topologies" / "catalogue" : root);
  folders.scenarios.push_back(is_source_tree ? root / "scenarios" / "catalogue" : root);
}

[[noreturn]] void refuse(const Yaml& node, const std::string& why) {
  throw Error(ErrorCode::Unsupported, fmt::format("{}: {}: {}", node.where(), node.key(), why));
}

void refuse_later_keys(const Yaml& root) {
  if (const auto search = root.find("search")) {
    refuse(*search, "the search over layouts is not part of this version; give a layout");
  }
  if (const auto jitter = root.find("jitter")) {
    if (!jitter->is_scalar() || jitter->as_string() != "none") {
      refuse(*jitter, "only \"none\" is part of this version");
    }
  }
  if (const auto faults = root.find("faults")) {
    if (!faults->items().empty()) refuse(*faults, "faults are not part of this version");
  }
}

planner::Plan read_scenario(const Yaml& root) {
  root.allow_only({"foresail", "model", "cluster", "layout", "search", "training", "stack",
                   "network", "jitter", "faults", "seed"});
  root.at("foresail").as_integer(1, 1);
  refuse_later_keys(root);
  const DataFolders folders = data_folders();
  planner::Plan plan;
  plan.model = models::resolve_model(root.at("model"), folders.models);
  plan.cluster = topologies::resolve_cluster(root.at("cluster"), folders.topologies);
  plan.layout = planner::read_layout(root.at("layout"));
  plan.training = planner::read_training(root.at("training"));
  if (!plan.training.data.empty()) {
    const fs::path data = plan.training.data;
    if (data.is_relative()) {
      plan.training.data = fs::absolute(fs::path(root.file()).parent_path() / data).string();
    }
  }
  if (const auto stack = root.find("stack")) plan.stack = models::read_stack(*stack);
  if (const auto network = root.find("network")) {
    plan.network = topologies::read_network(*network);
  }
  if (const auto seed = root.find("seed")) {
    plan.seed = static_cast<std::uint64_t>(seed->as_integer(0, INT64_MAX));
  }
  const int devices = plan.cluster.nodes * plan.cluster.node.devices;
  plan.placement = program::Placement::identity(devices);
  set_message_cost(plan);
  return plan;
}

}  // namespace

DataFolders data_folders() {
  DataFolders folders;
  if (const char* given = std::getenv("FORESAIL_DATA"); given != nullptr) {
    std::string_view rest = given;
    while (!rest.empty()) {
      const std::size_t end = rest.find(':');
      if (end != 0) add_folder(folders, fs::path(rest.substr(0, end)));
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    }
  }
  for (const char* root : {FORESAIL_INSTALLED_DATA, FORESAIL_SOURCE_DIR}) {
    std::error_code ignored;
    if (fs::is_directory(root, ignored)) add_folder(folders, root);
  }
  return folders;
}

Scenario load_scenario(const fs::path& path) {
  const Yaml root = Yaml::load(path);
  Scenario scenario;
  scenario.path = path;
  scenario.is_plan_file = root.is_map() && root.find("foresail_plan").has_value();
  scenario.plan = scenario.is_plan_file ? planner::load_plan(path) : read_scenario(root);
  return scenario;
}

}  // namespace foresail::scenarios
