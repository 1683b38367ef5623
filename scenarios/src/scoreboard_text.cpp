#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "foresail/base/digest.h"
#include "foresail/base/yaml.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/scenarios/validate.h"

namespace foresail::scenarios {
namespace {

using Groups = std::map<std::string, Scoreboard>;

// Rows by source and device, by device, and all.
std::vector<std::pair<std::string, Scoreboard>> grouped(const Scoreboard& board) {
  Groups sources, devices;
  for (const ValidatedRow& row : board.rows) {
    sources[row.source + " on " + row.device].rows.push_back(row);
    devices["all on " + row.device].rows.push_back(row);
  }
  std::vector<std::pair<std::string, Scoreboard>> all(sources.begin(), sources.end());
  if (devices.size() > 1) all.insert(all.end(), devices.begin(), devices.end());
  all.emplace_back("all", board);
  return all;
}

std::string percent_or_dash(const std::optional<double>& value) {
  return value ? fmt::format("{:.1f}", 100 * *value) : "-";
}

Document or_null(const std::optional<double>& value) {
  return value ? Document(*value) : Document();
}

Document bounds(const report::Interval& interval) {
  return Document::array({to_seconds(interval.low), to_seconds(interval.high)});
}

Document row_document(const ValidatedRow& row) {
  Document made = {{"id", row.id},
                   {"source", row.source},
                   {"device", row.device},
                   {"stack", row.stack},
                   {"published_s", row.published_s},
                   {"predicted_s", row.predicted_s},
                   {"error", row.error()},
                   {"naive_s", or_null(row.naive_s)},
                   {"interval_50", nullptr},
                   {"interval_90", nullptr},
                   {"novelty", nullptr},
                   {"assumed", row.assumed},
                   {"anchored", row.anchored}};
  if (row.intervals) {
    made["interval_50"] = bounds(row.intervals->half);
    made["interval_90"] = bounds(row.intervals->ninety);
    made["novelty"] = to_string(row.intervals->novelty);
  }
  return made;
}

Document summary_document(const Scoreboard& board) {
  const bool has_rows = !board.scored().empty();
  const auto figure = [has_rows](double value) { return has_rows ? Document(value) : Document(); };
  const Ranking ranking = board.ranking();
  return {{"scored", board.scored().size()},
          {"mean_abs_error", figure(board.mean_abs_error())},
          {"median_abs_error", figure(board.median_abs_error())},
          {"worst", figure(board.worst())},
          {"bias", figure(board.bias())},
          {"naive_mean_abs_error", or_null(board.naive_mean_abs_error())},
          {"coverage_50", or_null(board.coverage_50())},
          {"coverage_90", or_null(board.coverage_90())},
          {"median_half_width_90", or_null(board.median_half_width_90())},
          {"ranking",
           {{"sweeps", ranking.sweeps},
            {"configurations", ranking.configurations},
            {"pairs", ranking.pairs},
            {"right", ranking.right},
            {"worst_pick", ranking.worst_pick}}}};
}

std::string group_cells(const std::string& name, const Scoreboard& board,
                        std::string_view separator) {
  const bool has_rows = !board.scored().empty();  // anchors alone have no errors
  const auto percent = [has_rows](double value) {
    return has_rows ? fmt::format("{:.1f}", 100 * value) : "-";
  };
  const auto signed_percent = [has_rows](double value) {
    return has_rows ? fmt::format("{:+.1f}", 100 * value) : "-";
  };
  return fmt::format("{:<44}{}{:>5}{}{:>7}{}{:>7}{}{:>7}{}{:>7}{}{:>7}{}{:>7}{}{:>7}", name,
                     separator, board.scored().size(), separator, percent(board.mean_abs_error()),
                     separator, percent(board.median_abs_error()), separator,
                     signed_percent(board.worst()), separator, signed_percent(board.bias()),
                     separator, percent_or_dash(board.naive_mean_abs_error()), separator,
                     percent_or_dash(board.coverage_90()), separator,
                     percent_or_dash(board.median_half_width_90()));
}

std::string row_cells(const ValidatedRow& row, std::string_view separator) {
  std::string interval = "-";
  if (row.intervals) {
    interval = fmt::format("{:.4g} to {:.4g}", to_seconds(row.intervals->ninety.low),
                           to_seconds(row.intervals->ninety.high));
  }
  return fmt::format("{:<44}{}{:>9.4g}{}{:>9.4g}{}{:>7}{}{:>7}{}{:>20}", row.id, separator,
                     row.published_s, separator, row.predicted_s, separator,
                     row.anchored ? "anchor" : fmt::format("{:+.1f}", 100 * row.error()), separator,
                     row.naive_error() ? fmt::format("{:+.1f}", 100 * *row.naive_error()) : "-",
                     separator, interval);
}

std::string ranking_line(const Ranking& ranking) {
  if (ranking.pairs == 0) return {};
  return fmt::format(
      "order within {} sweeps of {} configurations: {} of {} pairs that differ by over 10 % right "
      "({:.1f} %); the one predicted fastest is at most {:.1f} % slower than the fastest\n",
      ranking.sweeps, ranking.configurations, ranking.right, ranking.pairs,
      100.0 * ranking.right / ranking.pairs, 100 * ranking.worst_pick);
}

// What was assumed, and for how many rows: "window 1024 (11 rows)".
std::vector<std::string> assumptions(const Scoreboard& board) {
  std::map<std::string, int> counts;
  for (const ValidatedRow& row : board.rows) {
    for (const std::string& each : std::set(row.assumed.begin(), row.assumed.end())) ++counts[each];
  }
  std::vector<std::string> lines;
  for (const auto& [what, rows] : counts) {
    lines.push_back(fmt::format("{} ({} row{})", what, rows, rows == 1 ? "" : "s"));
  }
  return lines;
}

/// "  21  has no iter_s", the most frequent reason first; or each row with its own.
std::string skipped_lines(const Scoreboard& board, SkippedRows skipped) {
  if (board.skipped.empty()) return {};
  const std::size_t all = board.rows.size() + board.skipped.size();
  std::string text = fmt::format("\nskipped {} of {} rows", board.skipped.size(), all);
  if (skipped == SkippedRows::Listed) {
    text += ":\n";
    for (const SkippedRow& row : board.skipped) {
      text += fmt::format("  {}: {}\n", row.id, row.reason);
    }
    return text;
  }
  text += " (--skipped lists them):\n";
  std::map<std::string, int> counts;
  for (const SkippedRow& row : board.skipped) ++counts[row.reason];
  std::vector<std::pair<std::string, int>> reasons(counts.begin(), counts.end());
  std::ranges::stable_sort(reasons, std::greater<>{}, &std::pair<std::string, int>::second);
  for (const auto& [reason, rows] : reasons) text += fmt::format("{:>6}  {}\n", rows, reason);
  return text;
}

/// `text` as a cell of a Markdown table: one line, no column's end.
std::string cell(std::string_view text) {
  std::string made;
  for (const char c : text) {
    if (c == '|') made += '\\';
    made += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return made;
}

std::string anchor_lines(const Scoreboard& board) {
  std::string text;
  for (const AnchorGroup& group : board.anchors) {
    text += fmt::format("anchored {} on {} rows:", group.name, group.rows);
    for (const FittedParameter& each : group.moved) {
      text += fmt::format(" {} {:.3g} -> {:.3g};", each.parameter.name, each.parameter.prior,
                          each.value);
    }
    text.back() = '\n';
  }
  return text;
}

}  // namespace

Document to_document(const Scoreboard& board) {
  Document rows = Document::array();
  for (const ValidatedRow& row : board.rows) rows.push_back(row_document(row));
  Document skipped = Document::array();
  for (const SkippedRow& row : board.skipped) {
    skipped.push_back({{"id", row.id}, {"reason", row.reason}});
  }
  Document made = summary_document(board);
  made["rows"] = std::move(rows);
  made["skipped"] = std::move(skipped);
  Document groups = Document::object();
  for (const auto& [name, part] : grouped(board)) {
    if (name != "all") groups[name] = summary_document(part);
  }
  made["groups"] = std::move(groups);
  return made;
}

std::string to_text(const Scoreboard& board, SkippedRows skipped) {
  std::string text = fmt::format("{:<44} {:>9} {:>9} {:>7} {:>7} {:>20}\n", "row", "published s",
                                 "predicted", "error %", "naive %", "90 % interval, s");
  for (const ValidatedRow& row : board.rows) text += row_cells(row, " ") + "\n";
  if (!board.rows.empty()) {
    text += fmt::format("\n{:<44} {:>5} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}\n",
                        "absolute error, %", "rows", "mean", "median", "worst", "bias", "naive",
                        "in 90%", "+-90%");
    for (const auto& [name, part] : grouped(board)) text += group_cells(name, part, " ") + "\n";
    if (board.scored().empty()) text += "every row is an anchor: none is left to score\n";
    text += "\n" + ranking_line(board.ranking()) + anchor_lines(board);
    text += "assumed:\n";
    for (const std::string& line : assumptions(board)) text += "  " + line + "\n";
  }
  return text + skipped_lines(board, skipped);
}

std::string to_markdown(const Scoreboard& board) {
  std::string text = fmt::format("Constants `{}`.\n\n", constants_digest());
  text +=
      "| absolute error, % | rows | mean | median | worst | bias | naive | in 90 % interval | its "
      "half width |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  for (const auto& [name, part] : grouped(board)) {
    text += "| " + group_cells(name, part, " | ") + " |\n";
  }
  const std::string ranking = ranking_line(board.ranking());
  if (!ranking.empty()) text += "\nThe " + ranking;
  const std::string anchors = anchor_lines(board);
  if (!anchors.empty()) text += "\n```\n" + anchors + "```\n";
  text +=
      "\n| row | published s | predicted s | error % | naive % | 90 % interval, s |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: |\n";
  for (const ValidatedRow& row : board.rows) text += "| " + row_cells(row, " | ") + " |\n";
  text += "\nAssumed:\n\n";
  for (const std::string& line : assumptions(board)) text += "- " + line + "\n";
  return text;
}

std::string constants_digest() {
  std::string bytes;
  for (const auto& folder : data_folders().topologies) {
    std::set<std::filesystem::path> files;
    const auto devices = folder / "devices";
    if (!std::filesystem::is_directory(devices)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(devices)) {
      if (entry.path().extension() == ".yaml") files.insert(entry.path());
    }
    for (const auto& path : files) bytes += path.filename().string() + "\n" + read_file(path);
  }
  for (const auto& folder : data_folders().scenarios) {
    for (const char* name : {"stacks.yaml", "spread.yaml"}) {
      if (std::filesystem::exists(folder / name)) bytes += read_file(folder / name);
    }
  }
  return sha256(bytes).substr(0, 12);
}

std::string log_line(const Scoreboard& board, const std::string& date, const std::string& commit,
                     const std::string& set) {
  return fmt::format("| {} | {} | {} | {} | {} | {:.1f} | {:.1f} | {:+.1f} | {:+.1f} | {} |\n",
                     date, cell(commit), constants_digest(), cell(set), board.scored().size(),
                     100 * board.mean_abs_error(), 100 * board.median_abs_error(),
                     100 * board.worst(), 100 * board.bias(), percent_or_dash(board.coverage_90()));
}

}  // namespace foresail::scenarios
