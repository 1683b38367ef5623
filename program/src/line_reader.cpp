#include "line_reader.h"

#include <fmt/format.h>

#include <cmath>

#include "foresail/base/error.h"

namespace foresail::program {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

/// The value of two hexadecimal digits, or -1.
int hex_byte(std::string_view digits) {
  unsigned value = 0;
  const char* const end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value, 16);
  if (digits.size() != 2 || result.ec != std::errc() || result.ptr != end) return -1;
  return static_cast<int>(value);
}

}  // namespace

LineReader::LineReader(std::string_view text, Place place) : place_(place) {
  std::size_t at = 0;
  while (true) {
    while (at < text.size() && is_blank(text[at])) ++at;
    if (at == text.size()) return;
    std::string word;
    if (text[at] != '"') {
      const std::size_t begin = at;
      while (at < text.size() && !is_blank(text[at])) ++at;
      words_.emplace_back(text.substr(begin, at - begin));
      continue;
    }
    for (++at; at < text.size() && text[at] != '"'; ++at) {
      if (text[at] != '\\') {
        word += text[at];
        continue;
      }
      if (++at == text.size()) break;
      if (text[at] == 'x') {
        const int byte = hex_byte(text.substr(at + 1, 2));
        if (byte < 0) fail("\\x in a quoted name needs two hexadecimal digits");
        word += static_cast<char>(byte);
        at += 2;
      } else if (text[at] == '"' || text[at] == '\\') {
        word += text[at];
      } else {
        fail("a quoted name knows \\\", \\\\ and \\xNN only");
      }
    }
    if (at >= text.size()) fail("a quoted name does not end");
    if (++at < text.size() && !is_blank(text[at])) fail("a blank must follow a quoted name");
    words_.push_back(std::move(word));
  }
}

std::string_view LineReader::peek() const {
  return is_done() ? std::string_view() : std::string_view(words_[next_]);
}

std::string LineReader::take(std::string_view what) {
  if (is_done()) fail(fmt::format("{} is missing at the end of the line", what));
  return words_[next_++];
}

void LineReader::expect(std::string_view word) {
  const std::string got = take(word);
  if (got != word) fail(fmt::format("expected \"{}\", got \"{}\"", word, got));
}

std::int64_t LineReader::to_integer(std::string_view text, std::string_view what, std::int64_t low,
                                    std::int64_t high) const {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) {
    fail(fmt::format("{}: expected an integer, got \"{}\"", what, text));
  }
  if (high < low) fail(fmt::format("{} {}: there are none", what, value));
  if (value < low || value > high) {
    fail(fmt::format("{} {} is not in {} to {}", what, value, low, high));
  }
  return value;
}

std::int64_t LineReader::integer(std::string_view what, std::int64_t low, std::int64_t high) {
  return to_integer(take(what), what, low, high);
}

double LineReader::number(std::string_view what) {
  const std::string text = take(what);
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || !std::isfinite(value) || value < 0) {
    fail(fmt::format("{}: expected a number not below 0, got \"{}\"", what, text));
  }
  return value;
}

std::vector<std::uint32_t> LineReader::list(std::string_view what, std::int64_t limit) {
  const std::string text = take(what);
  std::vector<std::uint32_t> items;
  std::string_view rest = text;
  while (true) {
    const std::string_view item = rest.substr(0, rest.find(','));
    items.push_back(static_cast<std::uint32_t>(to_integer(item, what, 0, limit - 1)));
    if (item.size() == rest.size()) return items;
    rest.remove_prefix(item.size() + 1);
  }
}

void LineReader::finish() const {
  if (!is_done()) fail(fmt::format("unexpected \"{}\"", peek()));
}

void LineReader::fail(const std::string& message) const {
  throw Error(ErrorCode::InvalidInput, fmt::format("{}:{}: {}", place_.file, place_.line, message));
}

}  // namespace foresail::program
