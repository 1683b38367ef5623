#include "foresail/base/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <set>
#include <sstream>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"

namespace foresail {

struct Yaml::Tree {
  std::string file;
};

struct Yaml::Node {
  YAML::Node value;
  int line = 0;
  // Of a map put together from others, in place of the value's entries.
  std::optional<std::vector<std::pair<std::string, Yaml>>> entries = std::nullopt;
};

namespace {

constexpr int kDepthMax = 64;                 // deeper input is refused: recursion must end
constexpr std::size_t kNodesMax = 2'000'000;  // with aliases expanded ("billion laughs")

// Length of the UTF-8 sequence at the front of `text`; 0 if it is not one (RFC 3629).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return 0;
  }
  const unsigned second = byte(1);
  const bool is_overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool is_beyond = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);
  return is_overlong || is_beyond ? 0 : length;
}

// A control character (C0, DEL, C1) other than line breaks and tabs of long texts; keys have none.
bool has_control(std::string_view text, std::string_view allowed) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte < 0x20 || byte == 0x7f) && allowed.find(text[i]) == allowed.npos) return true;
    if (byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0) {
      return true;
    }
  }
  return false;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// Alias cycles and exponential alias expansion are both caught by counting nodes as walked.
void check_tree(const YAML::Node& node, int depth, std::size_t& count, const std::string& file) {
  if (depth > kDepthMax || ++count > kNodesMax) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}:{}: nested too deeply or too large", file, node.Mark().line + 1));
  }
  const auto refuse = [&](const YAML::Node& where, const char* what) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}:{}: {}", file, where.Mark().line + 1, what));
  };
  if (node.IsScalar() && !is_utf8(node.Scalar())) refuse(node, "text that is not UTF-8");
  if (node.IsScalar() && has_control(node.Scalar(), "\n\t")) {
    refuse(node, "text with a control character");
  }
  if (node.IsMap()) {
    for (const auto& entry : node) {
      if (entry.first.IsScalar() && has_control(entry.first.Scalar(), "")) {
        refuse(entry.first, "a key with a control character");
      }
      check_tree(entry.first, depth + 1, count, file);
      check_tree(entry.second, depth + 1, count, file);
    }
  } else if (node.IsSequence()) {
    for (const auto& item : node) check_tree(item, depth + 1, count, file);
  }
}

// yaml-cpp 0.7 parses recursively, without a limit of its own: refuse what could exhaust the stack.
void check_nesting(std::string_view text, const std::string& name) {
  int line = 1;
  int open = 0;
  int markers = 0;  // "- - - -" and "? ? ?" nest within one line
  std::size_t indent = 0;
  bool at_start = true;
  for (const char c : text) {
    if (c == '\n') {
      ++line;
      markers = 0;
      indent = 0;
      at_start = true;
      continue;
    }
    if (at_start && c == ' ') ++indent;
    if (c == '-' || c == '?' || c == ':') ++markers;
    if (c != ' ') at_start = false;
    if (c == '[' || c == '{') ++open;
    if (c == ']' || c == '}') open = std::max(0, open - 1);
    if (open > kDepthMax || markers > 4096 || indent > 4096) {
      throw Error(ErrorCode::InvalidInput, fmt::format("{}:{}: nested too deeply", name, line));
    }
  }
}

// Refuses what stands behind the first document, which YAML::Load leaves unread; YAML::LoadAll of
// yaml-cpp 0.7 does not end on some of it.
class OneDocument : public YAML::EventHandler {
 public:
  explicit OneDocument(const std::string& name) : name_(name) {}
  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++count_ == 1) return;
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}:{}: a second YAML document; a file holds one", name_,
                            std::max(0, mark.line) + 1));
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  const std::string& name_;
  int count_ = 0;
};

void check_documents(std::string_view text, const std::string& name) {
  std::istringstream stream{std::string(text)};
  YAML::Parser parser(stream);
  OneDocument handler(name);
  while (parser.HandleNextDocument(handler)) {
  }
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row.back();
}

bool is_quoted(const YAML::Node& node) {
  return node.Tag() == "!";
}

std::string kind_of(const YAML::Node& node) {
  if (node.IsMap()) return "a mapping";
  if (node.IsSequence()) return "a list";
  if (node.IsNull() || !node.IsDefined()) return "nothing";
  std::string text = node.Scalar();
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  return '"' + text + '"';
}

std::optional<std::int64_t> integer_of(std::string_view text) {
  std::int64_t value = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <class Parse>
auto quantity(const Yaml& node, Parse parse) {
  const std::string text = node.as_string();
  try {
    return parse(text);
  } catch (const Error& problem) {
    node.fail(problem.what());
  }
}

}  // namespace

Yaml::Yaml(std::shared_ptr<const Tree> tree, std::shared_ptr<const Node> node, std::string key)
    : tree_(std::move(tree)), node_(std::move(node)), key_(std::move(key)) {}

Yaml Yaml::load(const std::filesystem::path& path) {
  return parse(read_file(path), path.string());
}

Yaml Yaml::parse(std::string_view text, const std::string& name) {
  check_nesting(text, name);
  try {
    check_documents(text, name);
    const YAML::Node root = YAML::Load(std::string(text));
    std::size_t count = 0;
    check_tree(root, 0, count, name);
    auto tree = std::make_shared<Tree>(Tree{name});
    return Yaml(std::move(tree),
                std::make_shared<Node>(Node{root, std::max(0, root.Mark().line) + 1}), "");
  } catch (const YAML::Exception& problem) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}:{}: not valid YAML: {}", name, std::max(0, problem.mark.line) + 1,
                            problem.msg));
  }
}

bool Yaml::is_map() const {
  return node_->value.IsMap();
}
bool Yaml::is_sequence() const {
  return node_->value.IsSequence();
}
bool Yaml::is_scalar() const {
  return node_->value.IsScalar();
}
bool Yaml::is_null() const {
  return node_->value.IsNull();
}

void Yaml::allow_only(std::initializer_list<std::string_view> keys) const {
  std::set<std::string> seen;
  for (const auto& [name, value] : entries()) {
    if (!seen.insert(name).second) value.fail("stands twice");
    if (std::ranges::find(keys, name) != keys.end()) continue;
    std::string message = "unknown key";
    std::string_view best;
    std::size_t distance = 3;
    for (const std::string_view known : keys) {
      const std::size_t d = name.size() > 40 ? distance : edit_distance(name, known);
      if (d < distance) {
        distance = d;
        best = known;
      }
    }
    if (!best.empty()) {
      message += fmt::format("; did you mean \"{}\"?", best);
    } else {
      message += "; known: ";
      for (const std::string_view known : keys) message += fmt::format("{}, ", known);
      message.resize(message.size() - 2);
    }
    value.fail(message);
  }
}

std::vector<std::pair<std::string, Yaml>> Yaml::entries() const {
  if (!is_map()) fail("expected a mapping, got " + kind_of(node_->value));
  if (node_->entries) return *node_->entries;
  std::vector<std::pair<std::string, Yaml>> list;
  for (const auto& entry : node_->value) {
    if (!entry.first.IsScalar()) fail("expected plain keys, got " + kind_of(entry.first));
    const std::string& name = entry.first.Scalar();
    const std::string path = key_.empty() ? name : key_ + "." + name;
    list.emplace_back(
        name,
        Yaml(tree_, std::make_shared<Node>(Node{entry.second, entry.first.Mark().line + 1}), path));
  }
  return list;
}

std::optional<Yaml> Yaml::find(std::string_view key) const {
  for (auto& [name, value] : entries()) {
    if (name == key) return value.is_null() ? std::nullopt : std::optional<Yaml>(value);
  }
  return std::nullopt;
}

Yaml Yaml::at(std::string_view key) const {
  if (std::optional<Yaml> value = find(key)) return *value;
  fail(fmt::format("the key \"{}\" is missing", key));
}

std::vector<Yaml> Yaml::items() const {
  if (!is_sequence()) fail("expected a list, got " + kind_of(node_->value));
  std::vector<Yaml> list;
  int index = 0;
  for (const auto& item : node_->value) {
    list.push_back(Yaml(tree_, std::make_shared<Node>(Node{item, item.Mark().line + 1}),
                        fmt::format("{}[{}]", key_, index++)));
  }
  return list;
}

Yaml Yaml::merged(const Yaml& change) const {
  std::vector<std::pair<std::string, Yaml>> list = entries();
  for (const auto& [name, value] : change.entries()) {
    const auto mine = std::ranges::find(list, name, [](const auto& entry) { return entry.first; });
    if (mine == list.end()) {
      list.emplace_back(name, value);
    } else {
      mine->second =
          mine->second.is_map() && value.is_map() ? mine->second.merged(value) : Yaml(value);
    }
  }
  return Yaml(tree_, std::make_shared<Node>(Node{node_->value, node_->line, std::move(list)}),
              key_);
}

Yaml Yaml::without(std::initializer_list<std::string_view> keys) const {
  std::vector<std::pair<std::string, Yaml>> list = entries();
  std::erase_if(
      list, [&](const auto& entry) { return std::ranges::find(keys, entry.first) != keys.end(); });
  return Yaml(tree_, std::make_shared<Node>(Node{node_->value, node_->line, std::move(list)}),
              key_);
}

std::string Yaml::as_string() const {
  if (!is_scalar()) fail("expected text, got " + kind_of(node_->value));
  return node_->value.Scalar();
}

std::int64_t Yaml::as_integer() const {
  if (is_scalar() && !is_quoted(node_->value)) {
    if (const auto value = integer_of(node_->value.Scalar())) return *value;
  }
  fail("expected an integer, got " + kind_of(node_->value));
}

std::int64_t Yaml::as_integer(std::int64_t low, std::int64_t high) const {
  const std::int64_t value = as_integer();
  if (value < low || value > high) {
    fail(fmt::format("{} is outside [{}, {}]", value, low, high));
  }
  return value;
}

double Yaml::as_number() const {
  if (is_scalar() && !is_quoted(node_->value)) {
    const auto value = number_of(node_->value.Scalar());
    if (value && std::isfinite(*value)) return *value;
  }
  fail("expected a number, got " + kind_of(node_->value));
}

bool Yaml::as_bool() const {
  if (is_scalar() && !is_quoted(node_->value)) {
    if (node_->value.Scalar() == "true") return true;
    if (node_->value.Scalar() == "false") return false;
  }
  fail("expected true or false, got " + kind_of(node_->value));
}

Duration Yaml::as_duration() const {
  return quantity(*this, parse_duration);
}
Bytes Yaml::as_bytes() const {
  return quantity(*this, parse_bytes);
}
Bandwidth Yaml::as_bandwidth() const {
  return quantity(*this, parse_bandwidth);
}
FlopRate Yaml::as_flop_rate() const {
  return quantity(*this, parse_flop_rate);
}

Document Yaml::to_document() const {
  if (is_map()) {
    Document map = Document::object();
    for (const auto& [name, value] : entries()) map[name] = value.to_document();
    return map;
  }
  if (is_sequence()) {
    Document list = Document::array();
    for (const Yaml& item : items()) list.push_back(item.to_document());
    return list;
  }
  if (!is_scalar()) return nullptr;
  const std::string& text = node_->value.Scalar();
  if (is_quoted(node_->value)) return text;
  if (text == "true") return true;
  if (text == "false") return false;
  if (text == "null" || text == "~" || text.empty()) return nullptr;
  if (const auto integer = integer_of(text)) return *integer;
  const auto number = number_of(text);
  if (number && std::isfinite(*number)) return *number;
  return text;
}

const std::string& Yaml::file() const {
  return tree_->file;
}
int Yaml::line() const {
  return node_->line;
}
std::string Yaml::where() const {
  return fmt::format("{}:{}", tree_->file, node_->line);
}

void Yaml::fail(const std::string& message) const {
  throw Error(ErrorCode::InvalidInput, key_.empty()
                                           ? fmt::format("{}: {}", where(), message)
                                           : fmt::format("{}: {}: {}", where(), key_, message));
}

}  // namespace foresail
