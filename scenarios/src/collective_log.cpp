#include "foresail/scenarios/collective_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <sstream>

#include "foresail/base/error.h"

namespace foresail::scenarios {
namespace {

constexpr std::size_t kShortestColumns = 3;  // time, algbw, busbw
// Beyond these a figure is a slip: an hour, 1 PB/s, 1 PiB.
constexpr double kLongestUs = 3.6e9, kFastestGBs = 1e6, kLargestBytes = 1125899906842624.0;

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
  return token == "N/A" || token == "n/a" || token == "nan" || token == "-nan" || token == "inf";
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

bool is_row(const std::vector<std::string>& tokens) {
  return tokens.size() >= 3 && is_count(tokens[0]) && is_count(tokens[1]) && is_word(tokens[2]);
}

bool is_plausible(const LogRow& row) {
  const auto is_figure = [](double value, double most) { return value > 0 && value <= most; };
  return is_figure(row.time_us, kLongestUs) && row.bus_bandwidth >= 0 &&
         row.bus_bandwidth <= kFastestGBs && !(row.in_place_time_us > kLongestUs) &&
         !std::isnan(row.in_place_time_us);
}

// size count type [redop] [root] time algbw busbw [wrong] [time algbw busbw [wrong]]
std::optional<LogRow> row_of(const std::vector<std::string>& tokens) {
  if (!is_row(tokens) || tokens.size() < 3 + kShortestColumns) return std::nullopt;
  std::size_t at = 3;
  while (at < tokens.size() && is_word(tokens[at]) && !is_missing(tokens[at])) ++at;
  std::vector<std::string> values(tokens.begin() + static_cast<std::ptrdiff_t>(at), tokens.end());
  for (const std::string& value : values) {
    if (!number(value) && !is_missing(value)) return std::nullopt;
  }
  // An odd count of 5, 7 or 9: the first is the root (3: one set without errors).
  const std::size_t count = values.size();
  if (count == 5 || count == 7 || count == 9) values.erase(values.begin());
  const std::size_t set = values.size() == 6 ? 3 : values.size() >= 4 ? 4 : values.size();
  if (values.size() != set && values.size() != 2 * set) return std::nullopt;
  if (set < kShortestColumns) return std::nullopt;
  LogRow row;
  const double size = number(tokens[0]).value_or(0);
  if (!(size > 0 && size <= kLargestBytes)) return std::nullopt;
  row.size = Bytes(static_cast<std::int64_t>(size));
  row.time_us = number(values[0]).value_or(0);
  row.bus_bandwidth = number(values[2]).value_or(0);
  if (values.size() == 2 * set) row.in_place_time_us = number(values[set]).value_or(0);
  if (row.time_us <= 0) {
    row.time_us = row.in_place_time_us;
    if (values.size() == 2 * set) row.bus_bandwidth = number(values[set + 2]).value_or(0);
  }
  return is_plausible(row) ? std::optional(row) : std::nullopt;
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
  int at = 0;
  for (std::string raw; std::getline(stream, raw);) {
    ++at;
    const std::string line = without_prefix(raw);
    if (line.empty()) continue;
    if (!log.operation) log.operation = operation_in(line);
    const std::vector<std::string> tokens = tokens_of(line);
    if (line.front() == '#') {
      if (tokens.size() > 2 && tokens[1] == "Rank" && is_count(tokens[2])) ++log.ranks;
      continue;
    }
    if (!is_row(tokens)) continue;
    const std::optional<LogRow> row = row_of(tokens);
    if (!row) {
      throw Error(ErrorCode::InvalidInput,
                  fmt::format("{}:{}: a damaged row of nccl-tests: columns are missing, or a size, "
                              "time or bandwidth is no plausible positive number",
                              name, at));
    }
    rows[row->size.count()] = *row;
  }
  if (rows.empty()) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}: no line is a row of nccl-tests (size, count, type, redop, root, "
                            "time, algbw, busbw, #wrong ...)",
                            name));
  }
  for (const auto& [size, row] : rows) log.rows.push_back(row);
  return log;
}

CollectiveLog read_log(const std::filesystem::path& path) {
  return parse_log(read_file(path), path.string());
}

}  // namespace foresail::scenarios
