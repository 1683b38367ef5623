#include "foresail/report/result.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "foresail/base/quantity.h"

namespace foresail::report {
namespace {

using foresail::to_text;

constexpr std::size_t kNamesShown = 2;  // of a list, in a table for people

Document interval(const std::optional<Interval>& interval) {
  if (!interval) return nullptr;
  return Document::array({to_seconds(interval->low), to_seconds(interval->high)});
}

Document memory(const StepResult& result) {
  const program::MemoryNeed& need = result.memory;
  Document document = {
      {"parameters", need.parameters.count()}, {"gradients", need.gradients.count()},
      {"optimizer", need.optimizer.count()},   {"activations", need.activations.count()},
      {"buffers", need.buffers.count()},       {"peak", need.peak().count()}};
  if (result.memory_upper) document["upper_bound"] = result.memory_upper->count();
  if (result.memory_measured) document["measured_peak"] = result.memory_measured->count();
  return document;
}

Document simulator(const std::optional<SimulatorCost>& cost) {
  if (!cost) return nullptr;
  return {{"events", cost->events},
          {"cpu_s", cost->cpu_s},
          {"wall_s", cost->wall_s},
          {"peak_rss_bytes", cost->peak_rss.count()}};
}

/// Two columns, the left one padded.
void line(std::string& text, std::string_view left, std::string_view right) {
  text += fmt::format("{:<22} {}\n", left, right);
}

std::string with_interval(const StepResult& result) {
  std::string text = to_text(result.iteration_time);
  const auto add = [&](int percent, const std::optional<Interval>& interval) {
    if (!interval) return;
    text +=
        fmt::format(" ({} %: {} to {})", percent, to_text(interval->low), to_text(interval->high));
  };
  add(50, result.interval_50);
  add(90, result.interval_90);
  return text;
}

void add_breakdown(std::string& text, const Breakdown& breakdown) {
  const std::array<std::pair<std::string_view, Duration>, 10> parts = {
      {{"compute", breakdown.compute},
       {"tp exposed", breakdown.tp_exposed},
       {"cp exposed", breakdown.cp_exposed},
       {"ep exposed", breakdown.ep_exposed},
       {"pp exposed", breakdown.pp_exposed},
       {"dp exposed", breakdown.dp_exposed},
       {"bubble", breakdown.bubble},
       {"optimizer", breakdown.optimizer},
       {"data", breakdown.data},
       {"other", breakdown.other}}};
  const double total = to_seconds(breakdown.total());
  text += "\nwhere the time goes\n";
  for (const auto& [name, time] : parts) {
    const double share = total > 0 ? 100 * to_seconds(time) / total : 0;
    text += fmt::format("  {:<20} {:>9} {:>6.1f} %\n", name, to_text(time), share);
  }
}

std::string shown(const Document& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array() && !value.empty() && value.front().is_string()) {
    std::string text = value.front().get<std::string>();
    for (std::size_t i = 1; i < std::min(value.size(), kNamesShown); ++i) {
      text += ", " + value[i].get<std::string>();
    }
    return value.size() > kNamesShown ? text + ", …" : text;
  }
  if (value.is_number_float()) return fmt::format("{:.4g}", value.get<double>());
  return value.dump();
}

/// A list of objects as a table, whose columns are the keys of the first.
void add_table(std::string& text, const Document& rows) {
  std::vector<std::vector<std::string>> cells(1);
  for (const auto& [key, value] : rows.front().items()) cells[0].push_back(key);
  const std::vector<std::string> keys = cells[0];
  for (const Document& row : rows) {
    std::vector<std::string>& shown_row = cells.emplace_back();
    for (const std::string& key : keys) {
      shown_row.push_back(row.contains(key) ? shown(row[key]) : "-");
    }
  }
  std::vector<std::size_t> widths(keys.size(), 0);
  for (const auto& row : cells) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : cells) {
    std::string shown_row = "  ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      shown_row += fmt::format("{:<{}}", row[i], i + 1 < row.size() ? widths[i] + 2 : 0);
    }
    text += shown_row + '\n';
  }
}

void add_network(std::string& text, const Document& network) {
  if (network.empty()) return;
  text += "\nnetwork\n";
  for (const auto& [key, value] : network.items()) {
    const bool is_table = value.is_array() && !value.empty() && value.front().is_object();
    if (is_table) continue;
    text += fmt::format("  {:<20} {}\n", key, shown(value));
  }
  for (const auto& [key, value] : network.items()) {
    const bool is_table = value.is_array() && !value.empty() && value.front().is_object();
    if (!is_table) continue;
    text += fmt::format("\n{}\n", key);
    add_table(text, value);
  }
}

}  // namespace

Document to_document(const StepResult& result) {
  return {{"iteration_time_s", to_seconds(result.iteration_time)},
          {"interval_50", interval(result.interval_50)},
          {"interval_90", interval(result.interval_90)},
          {"tokens_per_s", result.tokens_per_s},
          {"tokens_per_s_per_gpu", result.tokens_per_s_per_gpu},
          {"mfu", result.mfu},
          {"hfu", result.hfu},
          {"mfu_formula", result.mfu_formula},
          {"mfu_causal", result.mfu_causal},
          {"peak_tflops", result.peak_tflops},
          {"model_tflops_per_gpu", result.model_tflops_per_gpu},
          {"memory_bytes", memory(result)},
          {"breakdown_s", to_document(result.breakdown)},
          {"network", result.network},
          {"fidelity", result.fidelity},
          {"seed", result.seed},
          {"version", result.version},
          {"plan_digest", result.plan_digest},
          {"program_digest", result.program_digest},
          {"simulator", simulator(result.simulator)},
          {"notes", result.notes}};
}

std::string to_text(const StepResult& result) {
  std::string text;
  line(text, "step time", with_interval(result));
  line(text, "tokens/s",
       fmt::format("{:.0f} ({:.1f} per GPU)", result.tokens_per_s, result.tokens_per_s_per_gpu));
  line(text, "MFU",
       fmt::format("{:.1f} % ({:.1f} of {:.1f} TFLOP/s per GPU; {}, {})", 100 * result.mfu,
                   result.model_tflops_per_gpu, result.peak_tflops, result.mfu_formula,
                   result.mfu_causal ? "causal" : "not causal"));
  line(text, "HFU", fmt::format("{:.1f} %", 100 * result.hfu));
  const program::MemoryNeed& need = result.memory;
  line(text, "memory",
       fmt::format("{} (parameters {}, gradients {}, optimizer {}, activations {}, buffers {})",
                   to_text(need.peak()), to_text(need.parameters), to_text(need.gradients),
                   to_text(need.optimizer), to_text(need.activations), to_text(need.buffers)));
  if (result.memory_upper) line(text, "memory at most", to_text(*result.memory_upper));
  if (result.memory_measured) line(text, "memory measured", to_text(*result.memory_measured));
  add_breakdown(text, result.breakdown);
  add_network(text, result.network);
  text += '\n';
  line(text, "fidelity", fmt::format("{}, seed {}", result.fidelity, result.seed));
  if (result.simulator) {
    line(text, "simulator",
         fmt::format("{} events, {:.2f} s CPU, {:.2f} s wall, {}", result.simulator->events,
                     result.simulator->cpu_s, result.simulator->wall_s,
                     to_text(result.simulator->peak_rss)));
  }
  line(text, "plan digest", result.plan_digest);
  line(text, "program digest", result.program_digest);
  line(text, "version", result.version);
  for (const std::string& note : result.notes) line(text, "note", note);
  return text;
}

}  // namespace foresail::report
