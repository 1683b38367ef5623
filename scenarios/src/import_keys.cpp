#include "import_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "foresail/base/error.h"

namespace foresail::scenarios {
namespace {

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// On one line, whatever it holds.
std::string quoted(std::string text) {
  constexpr std::size_t kShown = 60;
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  return '"' + text + '"';
}

template <class T>
std::optional<T> parsed(std::string_view text) {
  T value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

void ForeignKeys::add(const std::string& key, const std::string& text, int line, bool is_list) {
  values_[key] = {text, line, is_list, false};
}

std::optional<std::string> ForeignKeys::scalar(const std::string& key,
                                               const std::string& expected) {
  const auto found = values_.find(key);
  if (found != values_.end() && found->second.is_list) {
    fail(key, "expected " + expected + ", got a list");
  }
  return text(key);
}

std::optional<std::string> ForeignKeys::text(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  found->second.is_taken = true;
  const std::string plain = lower(found->second.text);
  if (plain == "null" || plain == "none" || plain.empty()) return std::nullopt;
  return found->second.text;
}

std::optional<std::int64_t> ForeignKeys::integer(const std::string& key, std::int64_t low,
                                                 std::int64_t high) {
  const auto value = scalar(key, "an integer");
  if (!value) return std::nullopt;
  const auto number = parsed<std::int64_t>(*value);
  if (!number) fail(key, "expected an integer, got " + quoted(*value));
  if (*number < low || *number > high) {
    fail(key, fmt::format("{} is outside [{}, {}]", *number, low, high));
  }
  return number;
}

std::optional<double> ForeignKeys::number(const std::string& key) {
  const auto value = scalar(key, "a number");
  if (!value) return std::nullopt;
  const auto number = parsed<double>(*value);
  if (!number || !std::isfinite(*number)) {
    fail(key, "expected a number, got " + quoted(*value));
  }
  return number;
}

bool ForeignKeys::flag(const std::string& key, bool otherwise) {
  const auto value = scalar(key, "true or false");
  if (!value) return otherwise;
  const std::string plain = lower(*value);
  if (plain == "true" || plain == "1") return true;
  if (plain == "false" || plain == "0") return false;
  fail(key, "expected true or false, got " + quoted(*value));
}

std::int64_t ForeignKeys::required(const std::string& key) {
  if (const auto value = integer(key)) return *value;
  fail(key, "is missing");
}

void ForeignKeys::fail(const std::string& key, const std::string& message) const {
  const auto found = values_.find(key);
  const std::string where =
      found == values_.end() ? file_ : fmt::format("{}:{}", file_, found->second.line);
  throw Error(ErrorCode::InvalidInput, fmt::format("{}: {}: {}", where, key, message));
}

std::vector<std::string> ForeignKeys::untaken() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_) {
    if (!value.is_taken) keys.push_back(key);
  }
  return keys;
}

}  // namespace foresail::scenarios
