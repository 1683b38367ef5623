#include "foresail/scenarios/collective_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <span>
#include <sstream>

#include "foresail/base/error.h"

namespace foresail::scenarios {
namespace {

constexpr std::size_t kShortestColumns = 3;  // time, algbw, busbw
constexpr double kBandwidthMax = 1e6;        // GB/s
constexpr int kRanksMax = 1 << 22;
constexpr std::size_t kShownMax = 40;

std::optional<double> number(const std::string& token) {
  double value = 0;
  const char* const end = token.data() + token.size();
  const auto [used, problem] = std::from_chars(token.data(), end, value);
  if (problem != std::errc() || used != end) return std::nullopt;
  return value;
}

bool is_word(const std::string& token) {
  return !token.empty() && (std::isalpha(static_cast<unsigned char>(token.front())) != 0);
}

bool is_missing(const std::string& token) {
  return token == "N/A" || token == "n/a";
}

// Without what launchers put before a line: "[1,0]<stdout>:" of mpirun, "0: " or "host: " of srun.
std::string without_prefix(std::string line) {
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) {
    line.pop_back();
  }
  std::size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string::npos) return {};
  line.erase(0, begin);
  if (line.front() == '[') {
    std::size_t end = line.find(']');
    if (end != std::string::npos) {
      ++end;
      if (end < line.size() && line[end] == '<') {
        const std::size_t close = line.find('>', end);
        if (close != std::string::npos) end = close + 1;
      }
      if (end < line.size() && line[end] == ':') ++end;
      line.erase(0, end);
    }
  }
  const std::size_t space = line.find_first_of(" \t");
  if (space != std::string::npos && space > 0 && line[space - 1] == ':') line.erase(0, space);
  begin = line.find_first_not_of(" \t");
  return begin == std::string::npos ? std::string{} : line.substr(begin);
}

std::vector<std::string> tokens_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> tokens;
  for (std::string token; stream >> token;) tokens.push_back(token);
  return tokens;
}

bool is_count(const std::string& token) {
  return !token.empty() &&
         std::ranges::all_of(token, [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool is_type(const std::string& token) {
  static const std::vector<std::string> kTypes = {
      "int8",  "uint8",  "int32",    "uint32",   "int64",    "uint64", "half",
      "float", "double", "bfloat16", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2"};
  return std::ranges::find(kTypes, token) != kTypes.end();
}

// Whether the line is meant as a row: two numbers and a type; or two counts, a word and columns.
bool is_row(const std::vector<std::string>& tokens) {
  if (tokens.size() < 3) return false;
  if (is_type(tokens[2])) return number(tokens[0]).has_value() && number(tokens[1]).has_value();
  return tokens.size() >= 3 + kShortestColumns && is_count(tokens[0]) && is_count(tokens[1]) &&
         is_word(tokens[2]);
}

// time algbw busbw [wrong], of out-of-place or in-place.
struct ColumnSet {
  double time_us = 0, algorithm_bandwidth = 0, bus_bandwidth = 0;  // 0: N/A
  double wrong = 0;
};

struct Row {
  LogRow row;
  double wrong = 0;
  std::string damage;  // why it is no row; empty: it is one
};

// A token for a message: whatever the log holds.
std::string shown(std::string token) {
  if (token.size() > kShownMax) token.resize(kShownMax);
  for (char& c : token) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  return token;
}

double in_range(const std::string& token, double max, const char* what, std::string& damage) {
  if (is_missing(token)) return 0;
  const double value = number(token).value_or(0);
  const bool is_good = std::isfinite(value) && value >= 0 && value <= max;
  if (!is_good && damage.empty()) damage = fmt::format("its {} is {}", what, shown(token));
  return is_good ? value : 0;
}

ColumnSet read_set(std::span<const std::string> values, Bytes size, std::string& damage) {
  ColumnSet set;
  set.time_us = in_range(values[0], kLogTimeMaxUs, "time", damage);
  set.algorithm_bandwidth = in_range(values[1], kBandwidthMax, "algbw", damage);
  set.bus_bandwidth = in_range(values[2], kBandwidthMax, "busbw", damage);
  // Old logs have the largest difference there (4e-07), which is no count.
  if (values.size() > 3 && is_count(values[3])) set.wrong = number(values[3]).value_or(0);
  if (!damage.empty() || is_missing(values[0])) return set;
  if (set.time_us <= 0) {
    damage = "its time is 0";
  } else if (!is_missing(values[1])) {
    const double expected = static_cast<double>(size.count()) / (1000 * set.time_us);
    if (std::abs(set.algorithm_bandwidth - expected) > 0.011 + 0.02 * expected) {
      damage = fmt::format("its algbw {} is not its size over its time {}", values[1], values[0]);
    }
  }
  return set;
}

// size count type [redop] [root] time algbw busbw [wrong] [time algbw busbw [wrong]]
Row row_of(const std::vector<std::string>& tokens) {
  Row result;
  const double size = number(tokens[0]).value_or(0);
  if (!(size >= 1 && size <= static_cast<double>(kLogSizeMax.count())) || !is_count(tokens[0])) {
    result.damage = fmt::format("its size is {}", shown(tokens[0]));
    return result;
  }
  std::size_t at = 3;
  while (at < tokens.size() && is_word(tokens[at]) && !is_missing(tokens[at]) &&
         !number(tokens[at])) {
    ++at;
  }
  std::vector<std::string> values(tokens.begin() + static_cast<std::ptrdiff_t>(at), tokens.end());
  for (const std::string& value : values) {
    if (number(value) || is_missing(value)) continue;
    result.damage = fmt::format("\"{}\" is no number", shown(value));
    return result;
  }
  // An odd count of 5, 7 or 9: the first is the root (3: one set without errors).
  const std::size_t count = values.size();
  if (count == 5 || count == 7 || count == 9) values.erase(values.begin());
  const std::size_t width = values.size() == 6 ? 3 : values.size() >= 4 ? 4 : values.size();
  if (width < kShortestColumns || (values.size() != width && values.size() != 2 * width)) {
    result.damage = fmt::format("{} columns: cut short", tokens.size());
    return result;
  }
  result.row.size = Bytes(static_cast<std::int64_t>(size));
  const std::span<const std::string> all(values);
  const ColumnSet out = read_set(all.first(width), result.row.size, result.damage);
  ColumnSet in;
  if (values.size() == 2 * width) in = read_set(all.last(width), result.row.size, result.damage);
  const ColumnSet& taken = out.time_us > 0 ? out : in;
  result.row.time_us = taken.time_us;
  result.row.bus_bandwidth = taken.bus_bandwidth;
  result.row.in_place_time_us = in.time_us;
  result.wrong = out.wrong + in.wrong;
  if (result.damage.empty() && taken.time_us <= 0) result.damage = "it has no time";
  return result;
}

// "#  Rank  3 Group ..." of nccl-tests, "# ... ranks 16 ..." of a simulated table.
void read_comment(const std::vector<std::string>& tokens, CollectiveLog& log) {
  for (std::size_t i = 1; i + 1 < tokens.size(); ++i) {
    const bool is_rank = i == 1 && tokens[i] == "Rank";
    const bool is_total = tokens[1] == "nThread" && tokens[i] == "ranks";
    if ((!is_rank && !is_total) || !is_count(tokens[i + 1])) continue;
    const double ranks = number(tokens[i + 1]).value_or(0) + (is_rank ? 1 : 0);
    if (ranks <= kRanksMax) log.ranks = std::max(log.ranks, static_cast<int>(ranks));
  }
}

std::optional<Operation> operation_in(const std::string& line) {
  static const std::vector<std::pair<std::string, Operation>> kPrograms = {
      {"all_reduce", Operation::AllReduce},
      {"all_gather", Operation::AllGather},
      {"reduce_scatter", Operation::ReduceScatter},
      {"broadcast", Operation::Broadcast},
      {"alltoall", Operation::AllToAll},
      {"all_to_all", Operation::AllToAll},
      {"sendrecv", Operation::SendRecv}};
  for (const auto& [name, operation] : kPrograms) {
    if (line.find(name + "_perf") != std::string::npos) return operation;
  }
  return std::nullopt;
}

}  // namespace

CollectiveLog parse_log(std::string_view text, const std::string& name) {
  CollectiveLog log;
  log.file = name;
  std::map<std::int64_t, LogRow> rows;
  std::istringstream stream{std::string(text)};
  int number_of_line = 0;
  for (std::string raw; std::getline(stream, raw);) {
    ++number_of_line;
    const std::string line = without_prefix(raw);
    if (line.empty()) continue;
    if (!log.operation) log.operation = operation_in(line);
    const std::vector<std::string> tokens = tokens_of(line);
    if (line.front() == '#') {
      read_comment(tokens, log);
      continue;
    }
    if (!is_row(tokens)) continue;
    const Row row = row_of(tokens);
    if (!row.damage.empty()) {
      log.skipped.push_back({number_of_line, row.damage});
      continue;
    }
    rows[row.row.size.count()] = row.row;
    if (row.wrong > 0) {
      log.corruption.push_back({number_of_line, fmt::format("{:.0f} wrong values at {} bytes",
                                                            row.wrong, row.row.size.count())});
    }
  }
  if (rows.empty()) {
    std::string why;
    if (!log.skipped.empty()) {
      why = fmt::format("; line {}: {}", log.skipped.front().line, log.skipped.front().text);
    }
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}: no line is a row of nccl-tests (size, count, type, redop, root, "
                            "time, algbw, busbw, #wrong ...){}",
                            name, why));
  }
  for (const auto& [size, row] : rows) log.rows.push_back(row);
  return log;
}

CollectiveLog read_log(const std::filesystem::path& path) {
  return parse_log(read_file(path), path.string());
}

}  // namespace foresail::scenarios
