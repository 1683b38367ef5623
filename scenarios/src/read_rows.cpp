#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "foresail/base/error.h"
#include "foresail/scenarios/rows.h"

namespace foresail::scenarios {
namespace {

constexpr std::int64_t kCountMax = std::int64_t{1} << 40;
constexpr std::int64_t kDegreeMax = 1 << 24;
constexpr std::int64_t kZeroMax = 3;
constexpr double kSecondsMin = 1e-9;
// What else sources print of a step; iter_s alone is compared.
const std::vector<std::string_view> kResultKeys = {"iter_s",
                                                   "iter_s_from",
                                                   "tokens_per_s",
                                                   "tokens_per_s_per_gpu",
                                                   "tflops_per_gpu",
                                                   "hw_tflops_per_gpu",
                                                   "agg_pflops",
                                                   "peak_tflops_used",
                                                   "mfu",
                                                   "hfu",
                                                   "pct_peak",
                                                   "days_300b_tokens",
                                                   "flops_per_seq_implied",
                                                   "speedup",
                                                   "throughput_gain_pct",
                                                   "delta_from_baseline",
                                                   "overhead_pct",
                                                   "mem_gb",
                                                   "oom",
                                                   "layer_fwd_ms",
                                                   "layer_bwd_ms",
                                                   "layer_total_ms"};

std::optional<std::int64_t> count(const std::optional<Yaml>& section, std::string_view key,
                                  std::int64_t most = kCountMax) {
  if (!section) return std::nullopt;
  const auto value = section->find(key);
  if (!value) return std::nullopt;
  return value->as_integer(0, most);
}

std::string text(const std::optional<Yaml>& section, std::string_view key) {
  if (!section) return {};
  const auto value = section->find(key);
  return value ? value->as_string() : std::string{};
}

void note_unused(const Yaml& section, const std::vector<std::string_view>& used, Row& row) {
  for (const auto& [name, value] : section.entries()) {
    if (std::ranges::find(used, name) != used.end()) continue;
    // "records[3].train.flavour" -> "train.flavour"
    const std::size_t record = value.key().find("].");
    row.unused.push_back(record == std::string::npos ? value.key()
                                                     : value.key().substr(record + 2));
  }
}

void read_model_columns(const Yaml& record, Row& row) {
  const auto model = record.find("model");
  if (!model) return;
  row.model_name = text(model, "name");
  row.layers = count(model, "layers", kDegreeMax);
  row.hidden = count(model, "hidden");
  row.heads = count(model, "heads", kDegreeMax);
  row.kv_heads = count(model, "kv_heads", kDegreeMax);
  row.ffn = count(model, "ffn");
  row.vocab = count(model, "vocab");
  if (const auto gated = model->find("gated_mlp")) row.is_gated = gated->as_bool();
  note_unused(*model,
              {"name", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "gated_mlp",
               "params", "params_b"},
              row);
}

void read_hardware_columns(const Yaml& record, Row& row) {
  const auto hw = record.find("hw");
  if (!hw) return;
  row.gpu = text(hw, "gpu");
  row.nics = text(hw, "nics");
  row.fabric = text(hw, "cluster");
  row.gpus = count(hw, "gpus", kDegreeMax).value_or(0);
  row.gpus_per_node = count(hw, "gpus_per_node").value_or(8);
  note_unused(*hw, {"gpu", "nics", "cluster", "gpus", "gpus_per_node", "nodes"}, row);
}

void read_parallel_columns(const Yaml& record, Row& row) {
  const auto par = record.find("par");
  if (!par) return;
  row.tp = count(par, "tp", kDegreeMax).value_or(1);
  row.cp = count(par, "cp", kDegreeMax).value_or(1);
  row.ep = count(par, "ep", kDegreeMax).value_or(1);
  row.pp = count(par, "pp", kDegreeMax).value_or(1);
  row.dp = count(par, "dp", kDegreeMax).value_or(0);
  row.v = count(par, "vpp", kDegreeMax);
  row.zero_stage = count(par, "zero", kZeroMax);
  if (const auto sp = par->find("sp")) row.sequence_parallel = sp->as_bool();
  note_unused(*par, {"tp", "cp", "ep", "pp", "dp", "vpp", "zero", "sp", "fsdp", "sharding"}, row);
}

void read_training_columns(const Yaml& record, Row& row) {
  const auto train = record.find("train");
  if (!train) return;
  row.global_batch = count(train, "gbs").value_or(0);
  row.sequence = count(train, "seq").value_or(0);
  row.microbatch = count(train, "mbs");
  row.framework = text(train, "framework");
  if (const auto value = train->find("precision")) row.precision = value->as_string();
  if (const auto value = train->find("recompute")) row.recompute = value->as_string();
  note_unused(*train, {"gbs", "seq", "mbs", "framework", "precision", "recompute", "ga"}, row);
}

// Empty if the row can be predicted.
std::string missing(const Row& row) {
  if (row.published_s <= 0) return "has no iter_s";
  if (row.layers.value_or(0) == 0 || row.hidden.value_or(0) == 0 || row.heads.value_or(0) == 0) {
    return "lacks layers, hidden or heads of the model";
  }
  if (row.gpus == 0) return "has no number of GPUs";
  if (row.dp == 0) return "lacks its parallel degrees";
  if (row.global_batch == 0 || row.sequence == 0) return "lacks batch size or sequence length";
  return {};
}

/// Names stand in tables and in the log: one line each, and no column's end.
void demand_name(const Yaml& node) {
  const std::string name = node.as_string();
  const bool is_plain = std::ranges::none_of(
      name, [](char c) { return c == '|' || static_cast<unsigned char>(c) < ' '; });
  if (name.empty() || !is_plain) node.fail("must be one line, not empty and without \"|\"");
}

/// Counts how often an id has come; a row that shares it with others is told from them by a number.
std::string distinct(const std::string& id, std::map<std::string, int>& times) {
  const int count = ++times[id];
  return count == 1 ? id : fmt::format("{}#{}", id, count);
}

void read_record(const Yaml& record, std::map<std::string, int>& ids, RowFile& file) {
  Row row;
  const Yaml id = record.at("id");
  demand_name(id);
  row.id = distinct(id.as_string(), ids);
  if (row.id != id.as_string()) {
    row.remarks.push_back(fmt::format("id {} given before: shown as {}", id.as_string(), row.id));
  }
  if (const auto source = record.find("source")) demand_name(*source);
  row.source = text(record, "source");
  note_unused(record,
              {"id", "kind", "source", "where", "model", "hw", "par", "train", "result",
               "measured_on", "note", "notes", "check"},
              row);
  read_model_columns(record, row);
  read_hardware_columns(record, row);
  read_parallel_columns(record, row);
  read_training_columns(record, row);
  if (const auto result = record.find("result")) {
    note_unused(*result, kResultKeys, row);
    if (const auto seconds = result->find("iter_s")) {
      row.published_s = seconds->as_number();
      if (row.published_s < kSecondsMin) seconds->fail("must be at least 1 ns");
    }
  }
  const std::string reason = missing(row);
  if (reason.empty()) {
    file.rows.push_back(std::move(row));
  } else {
    file.skipped.push_back({row.id, reason});
  }
}

/// A key that stands twice would hide one of its values.
void demand_distinct_keys(const Yaml& node) {
  if (node.is_sequence()) {
    for (const Yaml& item : node.items()) demand_distinct_keys(item);
  }
  if (!node.is_map()) return;
  std::set<std::string> seen;
  for (const auto& [name, value] : node.entries()) {
    if (!seen.insert(name).second) value.fail("stands twice");
    demand_distinct_keys(value);
  }
}

RowFile read_yaml(const std::filesystem::path& path) {
  const Yaml root = Yaml::load(path);
  demand_distinct_keys(root);
  RowFile file;
  bool has_rows = false;
  std::map<std::string, int> ids;
  for (const char* key : {"records", "other"}) {
    const auto list = root.find(key);
    if (!list) continue;
    has_rows = true;
    for (const Yaml& record : list->items()) read_record(record, ids, file);
  }
  if (!has_rows) root.fail("has neither \"records\" nor \"other\"");
  return file;
}

std::vector<std::string> split_cells(const std::string& line) {
  std::vector<std::string> cells;
  std::string cell;
  std::istringstream stream(line);
  while (std::getline(stream, cell, ',')) {
    cell.erase(0, cell.find_first_not_of(" \t\r\""));
    cell.erase(cell.find_last_not_of(" \t\r\"") + 1);
    cells.push_back(cell);
  }
  return cells;
}

// One line of a CSV, by header name.
class CsvLine {
 public:
  CsvLine(const std::vector<std::string>& header, std::vector<std::string> cells, std::string where)
      : header_(header), cells_(std::move(cells)), where_(std::move(where)) {
    if (cells_.size() != header_.size()) {
      fail(fmt::format("{} cells under {} headers", cells_.size(), header_.size()));
    }
  }
  double number(std::string_view name) const {
    const auto found = std::ranges::find(header_, name);
    if (found == header_.end()) fail(fmt::format("no column \"{}\"", name));
    const std::string& cell = cells_[static_cast<std::size_t>(found - header_.begin())];
    const Document value = Yaml::parse(cell.empty() ? "~" : cell, where_).to_document();
    if (!value.is_number()) fail(fmt::format("{}: \"{}\" is not a number", name, cell));
    return value.get<double>();
  }
  std::int64_t count(std::string_view name) const {
    const double value = number(name);
    if (value < 1 || value > static_cast<double>(kDegreeMax) ||
        value != static_cast<double>(static_cast<std::int64_t>(value))) {
      fail(fmt::format("{}: {} is not an integer from 1 to {}", name, value, kDegreeMax));
    }
    return static_cast<std::int64_t>(value);
  }

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorCode::InvalidInput, fmt::format("{}: {}", where_, message));
  }

 private:
  const std::vector<std::string>& header_;
  std::vector<std::string> cells_;
  std::string where_;
};

/// A file's name as a source's (demand_name).
std::string plain_name(std::string name) {
  std::ranges::replace_if(
      name, [](char c) { return c == '|' || static_cast<unsigned char>(c) < ' '; }, '_');
  return name;
}

/// Headers name columns: a name that stands twice would hide one of them.
void demand_distinct(const std::vector<std::string>& header, const std::string& where) {
  for (auto name = header.begin(); name != header.end(); ++name) {
    if (std::find(header.begin(), name, *name) == name) continue;
    throw Error(ErrorCode::InvalidInput, fmt::format("{}: {}: stands twice", where, *name));
  }
}

RowFile read_csv(const std::filesystem::path& path) {
  std::string text = read_file(path);
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // spreadsheets write one
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line)) {
    throw Error(ErrorCode::InvalidInput, fmt::format("{}:1: empty", path.string()));
  }
  const std::vector<std::string> header = split_cells(line);
  demand_distinct(header, path.string() + ":1");
  const std::string source = plain_name(path.stem().string());
  RowFile file;
  for (int number = 2; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const CsvLine cells(header, split_cells(line), fmt::format("{}:{}", path.string(), number));
    Row row;
    row.source = source;
    row.id = fmt::format("{}-{}", row.source, number);
    row.published_s = cells.number("iteration time (ms)") * 1e-3;
    if (row.published_s < kSecondsMin) cells.fail("iteration time (ms): must be positive");
    row.gpu = "A100-SXM-80GB";
    row.gpus = cells.count("# GPUs");
    row.layers = cells.count("# layers");
    row.hidden = cells.count("hidden size");
    row.heads = cells.count("attention heads");
    row.tp = cells.count("tensor parallelism");
    row.dp = cells.count("data parallelism");
    row.pp = cells.count("pipeline parallelism");
    row.global_batch = cells.count("global batch");
    row.microbatch = cells.count("micro batch");
    row.sequence = cells.count("sequence length");
    row.precision = "fp16";
    const std::string reason = missing(row);
    if (reason.empty()) {
      file.rows.push_back(std::move(row));
    } else {
      file.skipped.push_back({row.id, reason});
    }
  }
  return file;
}

}  // namespace

RowFile read_rows(const std::filesystem::path& path) {
  return path.extension() == ".csv" ? read_csv(path) : read_yaml(path);
}

}  // namespace foresail::scenarios
