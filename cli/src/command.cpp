#include "command.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "foresail/base/error.h"
#include "foresail/report/perfetto.h"

namespace foresail::cli {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::InvalidInput, message);
}

template <class E>
E choice(const char* option, const std::string& text) {
  const auto value = from_string<E>(text);
  if (!value) refuse(fmt::format("{}: \"{}\" is not one of {}", option, text, choices<E>()));
  return *value;
}

}  // namespace

void Common::add_outputs_to(CLI::App& command) {
  command.add_flag("--json", is_json, "one JSON document on standard output");
  command.add_option("--report", report_file, "write the table to a file");
  command.add_flag("--quiet", is_quiet, "no progress on standard error");
}

void Common::add_network_to(CLI::App& command) {
  add_outputs_to(command);
  command.add_option("--fidelity", fidelity, "analytic or flow (default)");
  command.add_option("--seed", seed, "seed of hashing, instead of the scenario's")
      ->check(CLI::Validator(
          [](const std::string& text) {
            const bool is_number = !text.empty() && text.size() <= 19 &&
                                   text.find_first_not_of("0123456789") == std::string::npos;
            const bool is_small = is_number && std::stoull(text) <= INT64_MAX;
            return is_small ? std::string() : text + " is no number from 0 to 2^63 - 1";
          },
          "NUMBER"));
}

void Common::add_step_to(CLI::App& command) {
  add_network_to(command);
  command.add_option("--fold", fold, "auto (default) or off");
}

void Common::add_trace_to(CLI::App& command) {
  command.add_option("--trace", trace_file,
                     "write the trace (JSON; Chrome's format if the name ends in .perfetto.json)");
  command.add_option("--trace-ranks", trace_ranks,
                     "class (default), all, or a list such as 0,8-11");
}

sim::Fidelity Common::fidelity_choice() const {
  if (fidelity == "packet") {
    throw Error(ErrorCode::Unsupported, "--fidelity packet is not part of this version");
  }
  return choice<sim::Fidelity>("--fidelity", fidelity);
}

sim::Fold Common::fold_choice() const {
  return choice<sim::Fold>("--fold", fold);
}

scenarios::SimulateOptions simulate_options(const Common& common,
                                            const scenarios::Scenario& scenario,
                                            const program::Profile* profile) {
  scenarios::SimulateOptions simulate;
  simulate.fidelity = common.fidelity_choice();
  simulate.fold = common.fold_choice();
  simulate.seed = common.seed;
  simulate.profile = profile;
  simulate.conditions = &scenario.conditions;
  return simulate;
}

std::string trace_text(const std::string& path, const program::Program& program,
                       const program::Trace& trace) {
  if (path.ends_with(".perfetto.json")) return report::to_perfetto(program, trace);
  return program::to_document(trace).dump() + "\n";
}

std::optional<program::Profile> optional_profile(const std::string& path) {
  if (path.empty()) return std::nullopt;
  return program::load_profile(path);
}

sim::TraceRanks parse_trace_ranks(const std::string& text, int ranks) {
  if (text == "class") return {};
  if (text == "all") return {sim::TraceRanks::Kind::All, {}};
  sim::TraceRanks chosen{sim::TraceRanks::Kind::List, {}};
  std::istringstream items(text);
  std::string item;
  while (std::getline(items, item, ',')) {
    int first = 0;
    int last = 0;
    char rest = 0;
    const int read = std::sscanf(item.c_str(), "%d-%d%c", &first, &last, &rest);
    if (read == 1 && fmt::format("{}", first) == item) last = first;
    const bool is_number = read == 2 || (read == 1 && first == last);
    if (!is_number || first < 0 || last < first || last >= ranks) {
      refuse(fmt::format("--trace-ranks: \"{}\" is not a rank or a range within 0-{}", item,
                         ranks - 1));
    }
    for (int r = first; r <= last; ++r) {
      chosen.list.push_back(RankId{static_cast<std::uint32_t>(r)});
    }
  }
  if (chosen.list.empty()) refuse("--trace-ranks: no rank given");
  return chosen;
}

void keep_input(const std::string& input, const std::vector<std::string>& outputs) {
  std::error_code ignored;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].empty()) continue;
    if (std::filesystem::equivalent(input, outputs[i], ignored)) {
      refuse(fmt::format("{}: would be overwritten by its own result", input));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (std::filesystem::weakly_canonical(outputs[i], ignored) ==
              std::filesystem::weakly_canonical(outputs[j], ignored) &&
          !outputs[j].empty()) {
        refuse(fmt::format("{}: named for two results", outputs[i]));
      }
    }
  }
}

void answer(const Common& common, const Document& document, const std::string& text,
            OutputFiles files) {
  if (!common.report_file.empty()) files.add(common.report_file, text);
  files.commit();
  const std::string shown = common.is_json ? document.dump(2) + "\n" : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

void remark(const Common& common, const std::string& text) {
  if (!common.is_quiet) fmt::print(stderr, "{}\n", text);
}

}  // namespace foresail::cli
