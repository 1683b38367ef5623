#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "command.h"
#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "foresail/scenarios/rows.h"
#include "foresail/scenarios/scenario.h"

namespace foresail::cli {
namespace {

struct Finding {
  std::string subject;
  bool is_ok;
  std::string what;
};

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    return colon == std::string::npos ? line : line.substr(colon + 2);
  }
  return "unknown processor";
}

/// What the worker sees: "SUBJECT: WHAT" a line.
void add_devices(std::vector<Finding>& findings, const std::string& worker) {
  const std::string command = "'" + worker + "' devices 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw Error(ErrorCode::Io, worker + ": cannot be started");
  std::string text;
  std::array<char, 256> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) text += part.data();
  const bool is_ok = ::pclose(pipe) == 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    findings.push_back({line.substr(0, colon), is_ok, line.substr(colon + 2)});
  }
}

std::vector<Finding> examine() {
  std::vector<Finding> findings;
  findings.push_back({"version", true, scenarios::version()});
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  findings.push_back(
      {"host", true,
       fmt::format("{}, {} cores, {}", processor(), std::thread::hardware_concurrency(),
                   to_text(Bytes(std::int64_t{pages} * page)))});
  const scenarios::DataFolders folders = scenarios::data_folders();
  std::size_t models = 0;
  std::string where;
  for (const auto& folder : folders.models) {
    if (!std::filesystem::is_directory(folder)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".yaml") ++models;
    }
    if (where.empty()) where = folder.string();
  }
  findings.push_back({"catalogue", models > 0,
                      models > 0 ? fmt::format("{} models, first in {}", models, where)
                                 : "no models found; set FORESAIL_DATA"});
  try {
    findings.push_back(
        {"stacks", true, fmt::format("{} descriptions", scenarios::load_stacks().size())});
  } catch (const Error& problem) {
    findings.push_back({"stacks", false, problem.what()});
  }
  const std::string worker = worker_path();
  findings.push_back({"worker", !worker.empty(),
                      worker.empty() ? "foresail-worker not found: run and calibrate cannot work "
                                       "(built only where libtorch and Gloo are installed)"
                                     : worker});
  const bool has_driver = std::filesystem::exists("/dev/nvidiactl");
  findings.push_back(
      {"driver", true, has_driver ? "NVIDIA's is loaded" : "none for NVIDIA's GPUs"});
  if (!worker.empty()) add_devices(findings, worker);
  return findings;
}

int run(const Common& common) {
  Document list = Document::array();
  std::string text;
  bool is_ok = true;
  for (const Finding& finding : examine()) {
    is_ok = is_ok && finding.is_ok;
    list.push_back({{"subject", finding.subject}, {"ok", finding.is_ok}, {"what", finding.what}});
    text += fmt::format("{:<10} {:<8} {}\n", finding.subject, finding.is_ok ? "ok" : "missing",
                        finding.what);
  }
  answer(common, {{"ok", is_ok}, {"findings", list}}, text);
  return is_ok ? kOk : kFailedRun;
}

}  // namespace

Command add_doctor(CLI::App& root) {
  auto common = std::make_shared<Common>();  // shared with the runner below
  CLI::App* app = root.add_subcommand("doctor", "what this installation can do here");
  common->add_outputs_to(*app);
  return {app, [common] { return run(*common); }};
}

}  // namespace foresail::cli
