#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "command.h"
#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "foresail/base/yaml.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/topologies/check.h"
#include "foresail/topologies/cluster.h"
#include "foresail/topologies/export.h"
#include "foresail/topologies/import.h"
#include "option_checks.h"

namespace foresail::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  Common common;
  std::string cluster;  ///< of import: the file
  int gpus = 0;
  std::string format = "auto";
  std::string output, device, name, link_latency;
  int gpus_per_node = 0;
};

/// The same forms as a scenario's `cluster` key: a catalogue name or a path.
topologies::Cluster load(const Options& options) {
  const Document named = options.gpus > 0
                             ? Document{{"name", options.cluster}, {"gpus", options.gpus}}
                             : Document(options.cluster);
  const Yaml node = Yaml::parse(to_yaml(named), "command line");
  return topologies::Cluster(
      topologies::resolve_cluster(node, scenarios::data_folders().topologies));
}

int show(const Options& options) {
  const topologies::Cluster cluster = load(options);
  answer(options.common, topologies::summary_document(cluster), topologies::summary(cluster));
  return kOk;
}

int check(const Options& options) {
  const topologies::Cluster cluster = load(options);
  const std::vector<topologies::Finding> findings = topologies::check_wiring(cluster);
  answer(options.common, topologies::findings_document(cluster, findings),
         topologies::findings_text(cluster, findings));
  return findings.empty() ? kOk : kInfeasible;
}

int export_graph(const Options& options) {
  const auto format = from_string<topologies::ExportFormat>(options.format);
  if (!format) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("--format: \"{}\" is not one of {}", options.format,
                            choices<topologies::ExportFormat>()));
  }
  const topologies::Cluster cluster = load(options);
  std::string text;
  switch (*format) {
    case topologies::ExportFormat::Yaml:
      text = to_yaml(topologies::to_document(topologies::as_graph(cluster)));
      break;
    case topologies::ExportFormat::Dot:
      text = topologies::to_dot(cluster);
      break;
    case topologies::ExportFormat::Json:
      text = topologies::graph_document(cluster).dump(1) + "\n";
      break;
  }
  if (options.output.empty()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
  } else {
    OutputFiles files;
    files.add(options.output, text);
    files.commit();
  }
  return kOk;
}

topologies::ImportOptions import_options(const Options& options) {
  topologies::ImportOptions import;
  if (options.format != "auto") {
    import.format = from_string<topologies::TopologyFormat>(options.format);
    if (!import.format) {
      throw Error(ErrorCode::InvalidInput,
                  fmt::format("--format: \"{}\" is not one of auto, {}", options.format,
                              choices<topologies::TopologyFormat>()));
    }
  }
  import.device = options.device;
  import.devices_per_node = options.gpus_per_node;
  if (!options.link_latency.empty()) import.link_latency = parse_duration(options.link_latency);
  return import;
}

/// The cluster file: what was assumed and which node is which stand at its head.
std::string cluster_file(const topologies::ImportedTopology& imported, const Document& cluster,
                         const std::string& source) {
  const auto comment = [](std::string text) {
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
    }
    return "# " + text + "\n";
  };
  std::string text = comment("Imported from " + source + ".");
  for (const std::string& remark : imported.remarks) text += comment(remark);
  if (!imported.graph.empty()) {
    for (std::size_t n = 0; n < imported.nodes.size(); ++n) {
      text += comment(fmt::format("node{}: {}", n, imported.nodes[n]));
    }
  }
  return text + to_yaml(cluster);
}

int import(const Options& options) {
  const fs::path source = options.cluster;
  const topologies::ImportOptions import = import_options(options);
  const std::string file = read_file(source);
  topologies::ImportedTopology imported =
      topologies::import_topology(file, options.cluster, import);
  const std::string name = options.name.empty() ? source.stem().string() : options.name;
  const Document cluster = topologies::cluster_document(imported, name, import);
  // What cannot be read again is not written.
  const std::string where = "the cluster imported from " + options.cluster;
  const topologies::Cluster::Options made = topologies::resolve_cluster(
      Yaml::parse(to_yaml(cluster), where), scenarios::data_folders().topologies);
  const Bandwidth nvlink = made.device.nvlink;
  if (imported.nvlink > Bandwidth() && imported.nvlink != nvlink) {
    imported.remarks.push_back(fmt::format("NVLink of one GPU is {} in the file, {} of {}",
                                           to_text(imported.nvlink), to_text(nvlink),
                                           made.device.name));
  }
  for (const std::string& text : imported.remarks) remark(options.common, text);
  OutputFiles files;
  files.add(options.output, cluster_file(imported, cluster, source.filename().string()));
  Document document = {{"name", name},
                       {"nodes", imported.nodes},
                       {"devices", made.nodes * made.node.devices},
                       {"switches", imported.graph.switches.size()},
                       {"cables", imported.graph.cables.size()},
                       {"remarks", imported.remarks},
                       {"file", options.output}};
  answer(options.common, document,
         fmt::format("{}: {} nodes of {} {}, {} switches; written to {}\n", name, made.nodes,
                     made.node.devices, made.device.name, imported.graph.switches.size(),
                     options.output),
         std::move(files));
  return kOk;
}

void add_cluster(CLI::App& command, Options& options) {
  command.add_option("cluster", options.cluster, "catalogue name or file")->required();
  command.add_option("--gpus", options.gpus, "size, instead of the file's own")
      ->check(whole_number(1, kGpusMax));
}

void add_import(CLI::App& command, Options& options) {
  command.add_option("file", options.cluster, "what another tool printed")->required();
  command.add_option("--format", options.format,
                     "auto (default), ibnetdiscover, nccl, astra_sim or simai");
  command.add_option("-o,--output", options.output, "cluster file to write")->required();
  command.add_option("--device", options.device, "GPU by its catalogue name");
  command.add_option("--name", options.name, "of the cluster; default: the file's");
  command
      .add_option("--gpus-per-node", options.gpus_per_node,
                  "where the file does not say; default: one per NIC")
      ->check(whole_number(1, 1024));
  command.add_option("--link-latency", options.link_latency,
                     "of a cable and its switch, where the file has none; default: 450 ns");
}

}  // namespace

Command add_topology(CLI::App& root) {
  CLI::App* app = root.add_subcommand("topology", "look at a cluster");
  app->require_subcommand(1);
  struct Verb {
    CLI::App* app;
    int (*run)(const Options&);
  };
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* show_app = app->add_subcommand("show", "devices, tiers, ports, bandwidth, bisection");
  CLI::App* check_app = app->add_subcommand("check", "what is wired wrongly; status 3 if anything");
  CLI::App* export_app = app->add_subcommand("export", "the graph as YAML, GraphViz or JSON");
  CLI::App* import_app = app->add_subcommand("import", "a cluster file from another tool's output");
  for (CLI::App* each : {show_app, check_app, export_app}) add_cluster(*each, *options);
  export_app->add_option("--format", options->format, "yaml, dot or json")->required();
  export_app->add_option("-o,--output", options->output, "file to write; default: standard output");
  add_import(*import_app, *options);
  for (CLI::App* each : {show_app, check_app, export_app, import_app}) {
    options->common.add_outputs_to(*each);
  }
  const std::vector<Verb> verbs = {
      {show_app, show}, {check_app, check}, {export_app, export_graph}, {import_app, import}};
  return {app, [options, verbs] {
            for (const Verb& verb : verbs) {
              if (verb.app->parsed()) return verb.run(*options);
            }
            return kBadInput;
          }};
}

}  // namespace foresail::cli
