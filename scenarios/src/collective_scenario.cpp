#include "foresail/scenarios/collective_scenario.h"

#include "foresail/base/error.h"
#include "foresail/base/yaml.h"
#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {
namespace {

constexpr int kSeedsMax = 10000;

Bytes read_size(const Yaml& node) {
  try {
    return parse_size(node.as_string());
  } catch (const Error& error) {
    node.fail(error.what());
  }
}

void read_collective(const Yaml& node, SweepOptions& sweep) {
  node.allow_only({"operation", "min", "max", "factor", "groups", "devices", "spread", "seeds"});
  const auto read_count = [&](const char* key, int& to, int high) {
    if (const auto value = node.find(key)) to = static_cast<int>(value->as_integer(1, high));
  };
  sweep.operation = node.at("operation").as_choice<Operation>();
  const auto factor = node.find("factor");
  try {
    sweep.sizes = sizes_between(read_size(node.at("min")), read_size(node.at("max")),
                                factor ? factor->as_number() : 2);
  } catch (const Error& error) {
    node.fail(error.what());
  }
  read_count("groups", sweep.groups, 1 << 20);
  read_count("devices", sweep.devices, 1 << 24);
  read_count("seeds", sweep.seeds, kSeedsMax);
  if (const auto value = node.find("spread")) sweep.spread = value->as_choice<Spread>();
}

}  // namespace

CollectiveScenario load_collective(const std::filesystem::path& path) {
  const Yaml root = Yaml::load(path);
  root.allow_only({"foresail", "cluster", "collective", "network", "seed"});
  const Yaml version = root.at("foresail");
  if (version.as_integer(0, 1 << 20) != 1) version.fail("this version reads schema 1");
  CollectiveScenario scenario;
  scenario.cluster = topologies::resolve_cluster(root.at("cluster"), data_folders().topologies);
  read_collective(root.at("collective"), scenario.sweep);
  if (const auto network = root.find("network")) {
    scenario.sweep.network = topologies::read_network(*network);
  }
  if (const auto seed = root.find("seed")) {
    scenario.sweep.seed = static_cast<std::uint64_t>(seed->as_integer(0, 1LL << 62));
  }
  return scenario;
}

}  // namespace foresail::scenarios
