/// \file
/// A question as data: the scenario file, and the Plan that it (or a Plan file) describes.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "foresail/base/yaml.h"
#include "foresail/planner/plan.h"
#include "foresail/scenarios/conditions.h"

namespace foresail::scenarios {

/// Where bare names are looked up, in order: $FORESAIL_DATA (one or more folders separated by ':'),
/// then the installed share, then the source tree. Each holds `models/`, `clusters/` and
/// `devices/`.
struct DataFolders {
  std::vector<std::filesystem::path> models;      ///< folders of model files
  std::vector<std::filesystem::path> topologies;  ///< folders with clusters/ and devices/
  std::vector<std::filesystem::path> scenarios;   ///< folders with stacks.yaml
};
DataFolders data_folders();
/// The first `name` ("stacks.yaml") among the folders of scenarios. Throws Error{NotFound}.
Yaml load_catalogue(const std::string& name);

struct SearchRequest;

struct Scenario {
  std::filesystem::path path;
  planner::Plan plan;
  Conditions conditions;      ///< none for a Plan
  std::size_t changes = 0;    ///< how many `changes` the file lists (what_if.h reads them)
  bool is_plan_file = false;  ///< read from a Plan, not from a scenario
  /// Present: the layout is searched, and `plan` lacks it (search.h). Never changed, so copies of a
  /// Scenario share it.
  std::shared_ptr<const SearchRequest> search;
};

/// Reads a scenario (`foresail: 1`) or a Plan (`foresail_plan: 1`). Throws Error{InvalidInput} with
/// file, line and key, also for a search, which load_question alone accepts. Broken laws and
/// missing memory are not errors here: planner::check answers them.
Scenario load_scenario(const std::filesystem::path& path);
/// A scenario that is parsed already; of its `changes` only the list is looked at (what_if.h).
Scenario read_scenario(const Yaml& root);
/// load_scenario, but the scenario may have `search` in place of `layout`.
Scenario load_question(const std::filesystem::path& path);

}  // namespace foresail::scenarios
