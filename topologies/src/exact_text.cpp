#include "exact_text.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "foresail/base/quantity.h"

namespace foresail::topologies {
namespace {

struct Unit {
  std::int64_t scale;
  std::string_view name;
};

std::string in_largest_unit(std::int64_t count, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    if (count >= unit.scale && count % unit.scale == 0) {
      return fmt::format("{} {}", count / unit.scale, unit.name);
    }
  }
  return fmt::format("{} {}", count, units.back().name);
}

}  // namespace

std::string exact_text(Duration value) {
  static constexpr std::array kUnits = {Unit{1'000'000'000'000, "s"}, Unit{1'000'000'000, "ms"},
                                        Unit{1'000'000, "us"}, Unit{1'000, "ns"}, Unit{1, "ps"}};
  return in_largest_unit(value.count(), kUnits);
}

std::string exact_text(Bytes value) {
  static constexpr std::array kUnits = {Unit{std::int64_t{1} << 30, "GiB"},
                                        Unit{1'000'000'000, "GB"}, Unit{1 << 20, "MiB"},
                                        Unit{1 << 10, "KiB"}, Unit{1, "B"}};
  return in_largest_unit(value.count(), kUnits);
}

std::string exact_text(Bandwidth value) {
  static constexpr std::array kUnits = {Unit{1'000'000'000, "Gb/s"}, Unit{1'000'000, "Mb/s"},
                                        Unit{1, "b/s"}};
  return in_largest_unit(value.bits_per_second(), kUnits);
}

std::string exact_text(FlopRate value) {
  std::string text = fmt::format("{} TFLOP/s", value.per_second() / 1e12);
  if (parse_flop_rate(text) == value) return text;
  return fmt::format("{} FLOP/s", value.per_second());
}

}  // namespace foresail::topologies
