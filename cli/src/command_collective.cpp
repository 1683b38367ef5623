#include <fmt/format.h>

#include <algorithm>

#include "command.h"
#include "foresail/base/error.h"
#include "foresail/base/yaml.h"
#include "foresail/scenarios/collective_compare.h"
#include "foresail/scenarios/collective_log.h"
#include "foresail/scenarios/collective_scenario.h"
#include "foresail/scenarios/collective_sweep.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/topologies/cluster.h"
#include "option_checks.h"

namespace foresail::cli {
namespace {

struct Options {
  Common common;
  std::string cluster, operation;
  std::optional<std::string> min, max;
  std::optional<double> factor;
  int gpus = 0, seeds = 0, channels = 0, groups = 1;
  std::string scenario, network_file, algorithm, protocol, log_file;
};

// The same forms as a scenario's `cluster` key: a catalogue name or a path.
topologies::Cluster cluster_of(const std::string& name, int gpus) {
  const Document named = gpus > 0 ? Document{{"name", name}, {"gpus", gpus}} : Document(name);
  const Yaml node = Yaml::parse(to_yaml(named), "command line");
  return topologies::Cluster(
      topologies::resolve_cluster(node, scenarios::data_folders().topologies));
}

// Of the size that --gpus says, or else of the log's ranks.
topologies::Cluster cluster_of(const Options& options, const scenarios::CollectiveLog& log) {
  if (options.gpus > 0 || log.ranks < 2) return cluster_of(options.cluster, options.gpus);
  topologies::Cluster own = cluster_of(options.cluster, 0);
  if (own.device_count() == log.ranks) return own;
  try {
    topologies::Cluster cluster = cluster_of(options.cluster, log.ranks);
    remark(options.common, fmt::format("--gpus {}: the log's ranks", log.ranks));
    return cluster;
  } catch (const Error& problem) {
    throw Error(problem.code(), fmt::format("{}: {} ranks, which the cluster cannot have: {}",
                                            log.file, log.ranks, problem.what()));
  }
}

template <class Choice>
Choice choice_of(const std::string& text, const char* option) {
  const std::optional<Choice> value = from_string<Choice>(text);
  if (!value) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}: \"{}\" is not one of {}", option, text, choices<Choice>()));
  }
  return *value;
}

void set_nccl(const Options& options, topologies::NcclOptions& nccl) {
  if (!options.algorithm.empty()) {
    nccl.algorithm = choice_of<topologies::Algorithm>(options.algorithm, "--nccl-algo");
  }
  if (!options.protocol.empty()) {
    nccl.protocol = choice_of<topologies::Protocol>(options.protocol, "--nccl-proto");
  }
  if (options.channels > 0) nccl.channels = options.channels;
}

// The file is a scenario's `network` mapping, or holds one.
topologies::NetworkOptions network_of(const Options& options) {
  if (options.network_file.empty()) return {};
  const Yaml root = Yaml::load(options.network_file);
  const std::optional<Yaml> inner = root.find("network");
  return topologies::read_network(inner ? *inner : root);
}

// Sizes that the ranks can share in floats. `max` is where the largest stands.
void keep_shared(const topologies::Cluster& cluster, scenarios::SweepOptions& sweep,
                 const std::string& max) {
  const int devices = sweep.devices > 0 ? sweep.devices : cluster.device_count();
  const int ranks = std::max(1, devices / sweep.groups);
  std::erase_if(sweep.sizes, [&](Bytes size) {
    return scenarios::element_count(sweep.operation, size, ranks) == 0;
  });
  if (sweep.sizes.empty()) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}: too small for {} ranks to share in floats", max, ranks));
  }
}

int run_scenario(const Options& options) {
  scenarios::CollectiveScenario scenario = scenarios::load_collective(options.scenario);
  scenarios::SweepOptions& sweep = scenario.sweep;
  sweep.fidelity = options.common.fidelity_choice();
  sweep.seed = options.common.seed.value_or(sweep.seed);
  if (options.seeds > 0) sweep.seeds = options.seeds;
  set_nccl(options, sweep.network.nccl);
  const topologies::Cluster cluster(scenario.cluster);
  keep_shared(cluster, sweep, options.scenario + ": collective.max");
  const scenarios::Sweep result = scenarios::sweep(cluster, sweep);
  answer(options.common, scenarios::to_document(result), scenarios::to_text(result));
  return kOk;
}

Bytes smallest(const Options& options) {
  return scenarios::parse_size(options.min.value_or("8"), "--min");
}

Bytes largest(const Options& options) {
  return scenarios::parse_size(options.max.value_or("16GiB"), "--max");
}

// Rows from --min to --max, where given.
void keep_sizes(const Options& options, scenarios::CollectiveLog& log) {
  if (options.factor) {
    throw Error(ErrorCode::InvalidInput, "--factor: the sizes are the log's (--compare)");
  }
  const Bytes min = options.min ? smallest(options) : Bytes(0);
  const Bytes max = options.max ? largest(options) : scenarios::kLogSizeMax;
  std::erase_if(log.rows,
                [&](const scenarios::LogRow& row) { return row.size < min || row.size > max; });
  if (log.rows.empty()) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}: no row from {} to {} bytes (--min, --max)", log.file, min.count(),
                            max.count()));
  }
}

int compare(const Options& options, scenarios::SweepOptions sweep) {
  scenarios::CollectiveLog log = scenarios::read_log(options.log_file);
  keep_sizes(options, log);
  if (log.operation && options.operation.empty()) sweep.operation = *log.operation;
  const topologies::Cluster cluster = cluster_of(options, log);
  const scenarios::Comparison comparison = scenarios::compare_log(log, cluster, sweep);
  answer(options.common, scenarios::to_document(comparison), scenarios::to_text(comparison));
  return kOk;
}

int run(const Options& options) {
  if (!options.scenario.empty()) return run_scenario(options);
  if (options.cluster.empty()) {
    throw Error(ErrorCode::InvalidInput, "collective needs a scenario or --cluster");
  }
  scenarios::SweepOptions sweep;
  if (!options.operation.empty()) {
    sweep.operation = choice_of<scenarios::Operation>(options.operation, "--op");
  }
  sweep.network = network_of(options);
  set_nccl(options, sweep.network.nccl);
  sweep.fidelity = options.common.fidelity_choice();
  sweep.seed = options.common.seed.value_or(1);
  sweep.seeds = std::max(options.seeds, 1);
  sweep.groups = options.groups;
  if (!options.log_file.empty()) return compare(options, sweep);
  const topologies::Cluster cluster = cluster_of(options.cluster, options.gpus);
  sweep.sizes =
      scenarios::sizes_between(smallest(options), largest(options), options.factor.value_or(2));
  keep_shared(cluster, sweep, "--max");
  const scenarios::Sweep result = scenarios::sweep(cluster, sweep);
  answer(options.common, scenarios::to_document(result), scenarios::to_text(result));
  return kOk;
}

}  // namespace

Command add_collective(CLI::App& root) {
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* app = root.add_subcommand("collective", "nccl-tests' table of a cluster, simulated");
  CLI::Option* file =
      app->add_option("scenario", options->scenario, "file that describes a collective alone");
  app->add_option("--cluster", options->cluster, "catalogue name or file")->excludes(file);
  app->add_option("--gpus", options->gpus,
                  "size, instead of the file's own (--compare: or the log's ranks)")
      ->excludes(file)
      ->check(whole_number(1, kGpusMax));
  app->add_option("--op", options->operation,
                  "all_reduce (default; of a log: its own), all_gather, reduce_scatter, broadcast, "
                  "all_to_all, sendrecv")
      ->excludes(file);
  app->add_option("--min", options->min, "smallest size (8; of a log: all)")->excludes(file);
  app->add_option("--max", options->max, "largest size (16GiB; of a log: all)")->excludes(file);
  app->add_option("--factor", options->factor, "from size to size (2); not with --compare")
      ->excludes(file);
  app->add_option("--network", options->network_file, "file with a scenario's network mapping")
      ->excludes(file);
  app->add_option("--nccl-algo", options->algorithm, "ring, tree, nvls, nvls_tree, pat, ...");
  app->add_option("--nccl-proto", options->protocol, "ll, ll128, simple");
  app->add_option("--channels", options->channels, "instead of as many as NCCL finds")
      ->check(whole_number(1, 64));
  app->add_option("--seeds", options->seeds, "draws of the switches' hashes")
      ->check(whole_number(1, 10000));
  CLI::Option* groups =
      app->add_option("--groups", options->groups, "groups at once, interleaved over the devices")
          ->excludes(file)
          ->check(whole_number(1));
  app->add_option("--compare", options->log_file, "output of nccl-tests to explain")
      ->excludes(file)
      ->excludes(groups);
  options->common.add_network_to(*app);
  return {app, [options] { return run(*options); }};
}

}  // namespace foresail::cli
