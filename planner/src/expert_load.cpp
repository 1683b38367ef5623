#include "expert_load.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>

#include "foresail/base/error.h"
#include "foresail/base/reference.h"

namespace foresail::planner {
namespace {

constexpr double kCountMax = 1e15;
constexpr double kSumSlack = 1e-9;

// A sum of 1 is kept as it stands, so that what is written reads back equal.
std::vector<double> normalised(std::vector<double> row) {
  const double sum = std::accumulate(row.begin(), row.end(), 0.0);
  if (std::abs(sum - 1) <= kSumSlack) return row;
  for (double& share : row) share /= sum;
  return row;
}

std::vector<double> read_row(const Yaml& node) {
  std::vector<double> row;
  for (const Yaml& item : node.items()) {
    const double value = item.as_number();
    if (!(value >= 0) || value > kCountMax) item.fail("must be between 0 and 1e15");
    row.push_back(value);
  }
  if (std::accumulate(row.begin(), row.end(), 0.0) <= 0) node.fail("sums to 0: no expert has load");
  return normalised(std::move(row));
}

ExpertLoad read_list(const Yaml& node) {
  const std::vector<Yaml> items = node.items();
  if (items.empty()) node.fail("is empty: write uniform, or one share per expert");
  if (items.front().is_scalar()) return {read_row(node)};
  ExpertLoad load;
  for (const Yaml& item : items) load.push_back(read_row(item));
  return load;
}

double parse_count(std::string_view text, const std::string& where) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  const std::size_t last = text.find_last_not_of(" \t\r");
  std::size_t used = 0;
  double value = -1;
  if (first != std::string_view::npos) {
    const std::string word(text.substr(first, last - first + 1));
    try {
      value = std::stod(word, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used != word.size()) value = -1;
  }
  if (value >= 0 && value <= kCountMax) return value;
  throw Error(ErrorCode::InvalidInput,
              fmt::format("{}: \"{}\" is no count of tokens", where, text));
}

std::vector<double> parse_row(std::string_view line, const std::string& where) {
  std::vector<double> row;
  while (true) {
    const std::size_t comma = line.find(',');
    row.push_back(parse_count(line.substr(0, comma), where));
    if (comma == std::string_view::npos) break;
    line.remove_prefix(comma + 1);
  }
  if (std::accumulate(row.begin(), row.end(), 0.0) > 0) return normalised(std::move(row));
  throw Error(ErrorCode::InvalidInput, where + ": sums to 0: no expert has load");
}

ExpertLoad read_counts(const Yaml& node) {
  const std::string path = referenced_path(node).string();
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& problem) {
    node.fail(problem.what());
  }
  ExpertLoad load;
  std::size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    line = line.substr(0, line.find('#'));
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    load.push_back(parse_row(line, fmt::format("{}:{}", path, number)));
  }
  if (load.empty()) node.fail(fmt::format("{} has no counts", path));
  return load;
}

}  // namespace

ExpertLoad read_expert_load(const Yaml& node) {
  if (node.is_map()) {
    node.allow_only({"file"});
    return read_counts(node.at("file"));
  }
  if (!node.is_scalar()) return read_list(node);
  if (node.as_string() != "uniform") {
    node.fail("must be uniform, a list of shares or counts, or {file: PATH}");
  }
  return {};
}

Document to_document(const ExpertLoad& load) {
  if (load.empty()) return "uniform";
  const auto row_of = [](const std::vector<double>& row) {
    Document list = Document::array();
    for (const double share : row) list.push_back(share);
    return list;
  };
  if (load.size() == 1) return row_of(load.front());
  Document rows = Document::array();
  for (const std::vector<double>& row : load) rows.push_back(row_of(row));
  return rows;
}

}  // namespace foresail::planner
