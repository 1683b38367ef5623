#include "foresail/scenarios/scenario.h"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <set>

#include "foresail/base/error.h"
#include "foresail/base/reference.h"
#include "foresail/scenarios/predict.h"
#include "foresail/scenarios/search.h"

namespace foresail::scenarios {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kRanksMax = std::int64_t{1} << 22;

// `root` is one folder of data: the installed layout, or the source tree's.
void add_folder(DataFolders& folders, const fs::path& root) {
  const bool is_source_tree = fs::is_directory(root / "models" / "catalogue");
  folders.models.push_back(is_source_tree ? root / "models" / "catalogue" : root / "models");
  folders.topologies.push_back(is_source_tree ? root / "topologies" / "catalogue" : root);
  folders.scenarios.push_back(is_source_tree ? root / "scenarios" / "catalogue" : root);
}

Scenario read_job(const Yaml& root, int depth);

// Other jobs: scenarios of their own, on the same cluster.
std::vector<OtherJob> read_jobs(const Yaml& node, const planner::Plan& mine, int depth) {
  std::vector<OtherJob> jobs;
  std::set<std::uint32_t> taken;
  for (const DeviceId device : mine.placement.device_of) taken.insert(device.value);
  const std::set<std::uint32_t> own = taken;
  for (const Yaml& item : node.items()) {
    item.allow_only({"scenario", "at", "repeats"});
    const Yaml file = item.at("scenario");
    if (depth > 0) file.fail("a job of another scenario has no other jobs itself");
    OtherJob job;
    job.name = file.as_string();
    job.plan = read_job(load_referenced(file), depth + 1).plan;
    if (job.plan.cluster != mine.cluster) file.fail("has another cluster");
    const planner::Feasibility feasibility = planner::check(job.plan);
    if (!feasibility.broken.empty()) file.fail(feasibility.broken.front().message);
    if (const auto at = item.find("at")) job.at = at->as_duration();
    if (const auto repeats = item.find("repeats")) job.repeats = repeats->as_bool();
    for (const DeviceId device : job.plan.placement.device_of) {
      if (!taken.insert(device.value).second) {
        file.fail(
            fmt::format("device {} has a job already (the scenario's own takes devices {} to "
                        "{}: give it a placement)",
                        device.value, *own.begin(), *own.rbegin()));
      }
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

// The product of the degrees; nothing if it is beyond any cluster (laws say more).
std::optional<int> ranks_of(const planner::Layout& layout) {
  std::int64_t ranks = 1;
  for (const int degree : {layout.tp, layout.cp, layout.pp, layout.dp}) {
    ranks *= degree;
    if (degree < 1 || ranks > kRanksMax) return std::nullopt;
  }
  return static_cast<int>(ranks);
}

Scenario read_job(const Yaml& root, int depth) {
  root.allow_only({"foresail", "model", "cluster", "layout", "search", "training", "stack",
                   "network", "jitter", "faults", "seed", "placement", "traffic", "jobs",
                   "changes"});
  root.at("foresail").as_integer(1, 1);
  const DataFolders folders = data_folders();
  Scenario scenario;
  planner::Plan& plan = scenario.plan;
  plan.model = models::resolve_model(root.at("model"), folders.models);
  plan.cluster = topologies::resolve_cluster(root.at("cluster"), folders.topologies);
  const auto search = root.find("search");
  if (search) {
    if (root.find("layout")) search->fail("stands beside layout; give one of them");
    if (depth > 0) search->fail("another job needs a layout");
  } else {
    plan.layout = planner::read_layout(root.at("layout"));
  }
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
  if (const auto placement = root.find("placement")) {
    if (search) placement->fail("stands beside search, which has a placement of its own");
    const auto ranks = ranks_of(plan.layout);
    if (!ranks) root.at("layout").fail("the product of its degrees is no number of ranks");
    plan.placement = read_placement(*placement, plan.cluster, *ranks, plan.seed);
  }
  if (search) {
    if (const auto jobs = root.find("jobs")) jobs->fail("needs a layout, not a search");
    scenario.search = std::make_shared<const SearchRequest>(read_search(*search, plan));
  } else {
    set_message_cost(plan);
  }
  if (const auto changes = root.find("changes")) {
    if (search) changes->fail("needs a layout, not a search");
    scenario.changes = changes->items().size();
  }
  Conditions& conditions = scenario.conditions;
  if (const auto jitter = root.find("jitter")) conditions.jitter = read_jitter(*jitter);
  if (const auto faults = root.find("faults")) {
    conditions.faults = read_faults(*faults, plan.cluster);
  }
  if (const auto traffic = root.find("traffic")) {
    conditions.traffic = read_traffic(*traffic, plan.cluster);
  }
  if (const auto jobs = root.find("jobs")) conditions.jobs = read_jobs(*jobs, plan, depth);
  return scenario;
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

Yaml load_catalogue(const std::string& name) {
  for (const fs::path& folder : data_folders().scenarios) {
    if (fs::exists(folder / name)) return Yaml::load(folder / name);
  }
  throw Error(ErrorCode::NotFound, name + ": not found in any data folder");
}

Scenario read_scenario(const Yaml& root) {
  Scenario scenario = read_job(root, 0);
  if (scenario.search) root.at("search").fail("needs a layout in its place");
  scenario.path = root.file();
  return scenario;
}

Scenario load_scenario(const fs::path& path) {
  Scenario scenario = load_question(path);
  if (scenario.search) {
    Yaml::load(path).at("search").fail(
        "only `foresail plan` searches; give a layout, or the Plan that it wrote");
  }
  return scenario;
}

Scenario load_question(const fs::path& path) {
  const Yaml root = Yaml::load(path);
  Scenario scenario;
  if (root.is_map() && root.find("foresail_plan")) {
    scenario.is_plan_file = true;
    scenario.plan = planner::load_plan(path);
  } else {
    scenario = read_job(root, 0);
  }
  scenario.path = path;
  return scenario;
}

}  // namespace foresail::scenarios
