#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "foresail/base/error.h"
#include "foresail/scenarios/fit.h"

namespace foresail::scenarios {
namespace {

FitParameter read_device_parameter(const std::string& name, const Yaml& node) {
  node.allow_only({"prior", "sigma", "low", "high"});
  const auto known =
      std::ranges::find(topologies::kConstantNames, name, &topologies::ConstantName::name);
  if (known == topologies::kConstantNames.end()) node.fail("is not a constant of a device");
  return {name,
          known->member,
          {},
          node.at("prior").as_number(),
          node.at("sigma").as_number(),
          node.at("low").as_number(),
          node.at("high").as_number()};
}

FitParameter read_host_parameter(const std::string& stack, const Yaml& node) {
  node.allow_only({"prior_us", "sigma", "low_us", "high_us"});
  return {"host_per_kernel." + stack,
          nullptr,
          stack,
          node.at("prior_us").as_number(),
          node.at("sigma").as_number(),
          node.at("low_us").as_number(),
          node.at("high_us").as_number()};
}

void check(const FitParameter& parameter, const Yaml& node) {
  if (!(parameter.low > 0 && parameter.low <= parameter.prior &&
        parameter.prior <= parameter.high && parameter.sigma > 0)) {
    node.fail("needs 0 < low <= prior <= high and sigma > 0");
  }
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::istringstream text(read_file(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

void write_lines(const std::filesystem::path& path, const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  write_file(path, text);
}

/// Replaces the line of a constant, or adds it behind the others.
void write_constant(const FittedParameter& fitted, std::vector<std::string>& lines) {
  const std::string start = "  " + fitted.parameter.name + ":";
  const std::string text = fmt::format("{} {:.4g}", start, fitted.value);
  // `nccl` has a launch_us too.
  auto line = std::ranges::find(lines, "constants:");
  FORESAIL_EXPECT(line != lines.end());
  ++line;
  while (line != lines.end() && line->starts_with(' ') && !line->starts_with(start)) ++line;
  if (line != lines.end() && line->starts_with(start)) {
    *line = text;
  } else {
    lines.insert(line, text);
  }
}

void write_device(const FitSummary& summary, const std::filesystem::path& path,
                  const std::string& origin) {
  std::vector<std::string> lines = lines_of(path);
  for (const FittedParameter& fitted : summary.parameters) {
    if (fitted.parameter.member != nullptr) write_constant(fitted, lines);
  }
  const auto provenance = std::ranges::find_if(
      lines, [](const std::string& line) { return line.starts_with("provenance:"); });
  lines.erase(provenance, lines.end());
  lines.emplace_back("provenance: >-");
  lines.push_back("  " + origin);
  lines.push_back(
      fmt::format("  scripts/fit_devices used {} published rows in {} groups of the fit "
                  "set and the priors of",
                  summary.rows, summary.groups));
  lines.push_back(
      fmt::format("  scenarios/catalogue/fit.yaml: mean error {:.1f} %, median {:.1f} %.",
                  100 * summary.mean_abs_error, 100 * summary.median_abs_error));
  write_lines(path, lines);
}

void write_stacks(const FitSummary& summary, const std::filesystem::path& path) {
  std::vector<std::string> lines = lines_of(path);
  std::string stack;
  for (std::string& line : lines) {
    if (const std::size_t at = line.find("- name: "); at != std::string::npos) {
      stack = line.substr(at + 8);
    }
    const std::size_t begin = line.find("host_per_kernel: ");
    if (begin == std::string::npos || line.starts_with("#")) continue;
    for (const FittedParameter& fitted : summary.parameters) {
      if (fitted.parameter.stack.empty() || fitted.parameter.stack != stack) continue;
      const std::size_t end = line.find_first_of(",}", begin);
      line.replace(begin, end - begin, fmt::format("host_per_kernel: {:.3g} us", fitted.value));
    }
  }
  write_lines(path, lines);
}

}  // namespace

FitParameter read_anchor_parameter(const std::string& name, const Yaml& node) {
  node.allow_only({"sigma", "low", "high"});
  FitParameter parameter;
  parameter.name = name;
  if (name != "host_per_kernel") {
    const auto known =
        std::ranges::find(topologies::kConstantNames, name, &topologies::ConstantName::name);
    if (known == topologies::kConstantNames.end()) node.fail("is not a constant of a device");
    parameter.member = known->member;
  }
  parameter.sigma = node.at("sigma").as_number();
  parameter.low = node.at("low").as_number();
  parameter.high = node.at("high").as_number();
  if (!(parameter.sigma > 0 && parameter.low > 0 && parameter.low < parameter.high)) {
    node.fail("needs 0 < low < high and sigma > 0");
  }
  return parameter;
}

std::vector<FitFamily> load_fit_families(const Yaml& root) {
  root.allow_only({"families", "anchor"});
  std::vector<FitFamily> families;
  for (const Yaml& node : root.at("families").items()) {
    node.allow_only({"device", "carried_to", "rows", "csv_every", "parameters", "host_per_kernel"});
    FitFamily family;
    family.device = node.at("device").as_string();
    if (const auto others = node.find("carried_to")) {
      for (const Yaml& other : others->items()) family.carried_to.push_back(other.as_string());
    }
    for (const Yaml& file : node.at("rows").items()) {
      if (file.as_string().find("check") != std::string::npos) {
        file.fail("constants are never fitted on rows to check with");
      }
      family.rows.push_back(file.as_string());
    }
    family.csv_every = static_cast<int>(node.at("csv_every").as_integer(1, 1000));
    for (const auto& [name, value] : node.at("parameters").entries()) {
      family.parameters.push_back(read_device_parameter(name, value));
      check(family.parameters.back(), value);
    }
    if (const auto hosts = node.find("host_per_kernel")) {
      for (const auto& [stack, value] : hosts->entries()) {
        family.parameters.push_back(read_host_parameter(stack, value));
        check(family.parameters.back(), value);
      }
    }
    families.push_back(std::move(family));
  }
  return families;
}

void write_constants(const FitFamily& family, const FitSummary& summary,
                     const std::filesystem::path& folder,
                     const std::filesystem::path& stacks_file) {
  write_device(summary, folder / (family.device + ".yaml"), "Fitted on this device.");
  for (const std::string& other : family.carried_to) {
    write_device(summary, folder / (other + ".yaml"),
                 fmt::format("Carried over from {}: nothing here was fitted on this device.",
                             family.device));
  }
  write_stacks(summary, stacks_file);
}

}  // namespace foresail::scenarios
