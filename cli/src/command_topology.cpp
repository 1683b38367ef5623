#include "command.h"
#include "foresail/base/error.h"
#include "foresail/base/yaml.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/topologies/cluster.h"

namespace foresail::cli {
namespace {

struct Options {
  Common common;
  std::string cluster;
  int gpus = 0;
};

int show(const Options& options) {
  // The same forms as a scenario's `cluster` key: a catalogue name or a path.
  const Document named = options.gpus > 0
                             ? Document{{"name", options.cluster}, {"gpus", options.gpus}}
                             : Document(options.cluster);
  const Yaml node = Yaml::parse(to_yaml(named), "command line");
  const topologies::Cluster cluster(
      topologies::resolve_cluster(node, scenarios::data_folders().topologies));
  answer(options.common, topologies::summary_document(cluster), topologies::summary(cluster));
  return kOk;
}

}  // namespace

Command add_topology(CLI::App& root) {
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* app = root.add_subcommand("topology", "look at a cluster");
  app->require_subcommand(1);
  CLI::App* command = app->add_subcommand("show", "devices, tiers, ports, bandwidth, bisection");
  command->add_option("cluster", options->cluster, "catalogue name or file")->required();
  command->add_option("--gpus", options->gpus, "size, instead of the file's own")
      ->check(CLI::PositiveNumber);
  options->common.add_to(*command);
  return {app, [options] { return show(*options); }};
}

}  // namespace foresail::cli
