#include "canonical.h"

#include <array>
#include <string>
#include <string_view>

#include "foresail/base/quantity.h"

namespace foresail::planner {
namespace {

/// Endings of the units that `base/quantity.h` reads.
bool ends_with_any(std::string_view text, std::initializer_list<std::string_view> endings) {
  for (const std::string_view ending : endings) {
    if (text.ends_with(ending)) return true;
  }
  return false;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("+-.eE0123456789") == std::string_view::npos &&
         text.find_first_of("0123456789") != std::string_view::npos;
}

/// "80 GiB" -> "80": what stands before a blank or the unit's first letter.
std::string_view number_of(std::string_view text) {
  const std::size_t end = text.find_last_of("0123456789.");
  return end == std::string_view::npos ? std::string_view{} : text.substr(0, end + 1);
}

Document quantity(const std::string& text) {
  if (!is_number(number_of(text))) return text;
  const std::string_view unit = std::string_view(text).substr(number_of(text).size());
  const std::size_t first = unit.find_first_not_of(' ');
  if (first == std::string_view::npos) return text;
  const std::string_view name = unit.substr(first);
  if (name.ends_with("FLOP/s")) return parse_flop_rate(text).per_second();
  if (ends_with_any(name, {"b/s", "B/s"})) return parse_bandwidth(text).bits_per_second();
  if (name.ends_with('B')) return parse_bytes(text).count();
  static constexpr std::array<std::string_view, 8> kTimes{"ps", "ns",  "us", "ms",
                                                          "s",  "min", "h",  "d"};
  for (const std::string_view time : kTimes) {
    if (name == time) return parse_duration(text).count();
  }
  return text;
}

}  // namespace

Document canonical(const Document& document) {
  if (document.is_string()) return quantity(document.get<std::string>());
  if (document.is_array()) {
    Document list = Document::array();
    for (const Document& item : document) list.push_back(canonical(item));
    return list;
  }
  if (!document.is_object()) return document;
  Document map = Document::object();
  for (const auto& [key, value] : document.items()) {
    const bool is_text = key == "name" || key == "provenance" || key == "data";
    map[key] = is_text ? value : canonical(value);
  }
  return map;
}

}  // namespace foresail::planner
