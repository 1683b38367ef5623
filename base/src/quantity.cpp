#include "foresail/base/quantity.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <span>

#include "foresail/base/error.h"

namespace foresail {
namespace {

struct Unit {
  std::string_view name;
  double scale;
};

constexpr std::array kDurations = {Unit{"ps", 1},      Unit{"ns", 1e3},    Unit{"us", 1e6},
                                   Unit{"ms", 1e9},    Unit{"s", 1e12},    Unit{"min", 60e12},
                                   Unit{"h", 3600e12}, Unit{"d", 86400e12}};
constexpr std::array kBytes = {
    Unit{"B", 1},           Unit{"kB", 1e3},           Unit{"MB", 1e6},
    Unit{"GB", 1e9},        Unit{"TB", 1e12},          Unit{"KiB", 1024.0},
    Unit{"MiB", 1048576.0}, Unit{"GiB", 1073741824.0}, Unit{"TiB", 1099511627776.0}};
constexpr std::array kBandwidths = {
    Unit{"b/s", 1}, Unit{"kb/s", 1e3}, Unit{"Mb/s", 1e6}, Unit{"Gb/s", 1e9}, Unit{"Tb/s", 1e12},
    Unit{"B/s", 8}, Unit{"kB/s", 8e3}, Unit{"MB/s", 8e6}, Unit{"GB/s", 8e9}, Unit{"TB/s", 8e12}};
constexpr std::array kFlopRates = {Unit{"FLOP/s", 1}, Unit{"GFLOP/s", 1e9}, Unit{"TFLOP/s", 1e12},
                                   Unit{"PFLOP/s", 1e15}};

std::string unit_list(std::span<const Unit> units) {
  std::string list;
  for (const Unit& unit : units) {
    if (!list.empty()) list += ", ";
    list += unit.name;
  }
  return list;
}

struct Format {
  std::span<const Unit> units;
  std::string_view example;
};

double parse(std::string_view text, const Format& format) {
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("\"{}\" {} (for example \"{}\"; units: {})", text, why, format.example,
                            unit_list(format.units)));
  };
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, status] = std::from_chars(text.data(), end, number);
  if (status != std::errc{} || !std::isfinite(number)) fail("does not start with a number");
  std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (unit.empty()) fail("has no unit");
  if (number < 0) fail("is negative");
  for (const Unit& known : format.units) {
    if (known.name == unit) return number * known.scale;
  }
  fail(fmt::format("has the unknown unit \"{}\"", unit));
  return 0;
}

std::int64_t whole(std::string_view text, double value) {
  if (value >= 9.2e18) {
    throw Error(ErrorCode::InvalidInput, fmt::format("\"{}\" is out of range", text));
  }
  return std::llround(value);
}

struct Shown {
  double scale;
  const char* unit;
};

template <std::size_t N>
std::string show(double value, const std::array<Shown, N>& steps) {
  Shown chosen = steps.front();
  for (const Shown& step : steps) {
    if (std::abs(value) >= step.scale) chosen = step;
  }
  const double shown = value / chosen.scale;
  const int digits = shown >= 100 ? 0 : shown >= 10 ? 1 : 2;
  return fmt::format("{:.{}f} {}", shown, value == 0 ? 0 : digits, chosen.unit);
}

}  // namespace

Duration duration_from_seconds(double seconds) {
  if (!(std::abs(seconds) < 9.2e6)) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("a duration of {} s is out of range (106 days)", seconds));
  }
  return Duration(std::llround(seconds * 1e12));
}

Duration parse_duration(std::string_view text) {
  return Duration(whole(text, parse(text, {kDurations, "5 us"})));
}
Bytes parse_bytes(std::string_view text) {
  return Bytes(whole(text, parse(text, {kBytes, "80 GiB"})));
}
Bandwidth parse_bandwidth(std::string_view text) {
  return Bandwidth::bps(whole(text, parse(text, {kBandwidths, "400 Gb/s"})));
}
FlopRate parse_flop_rate(std::string_view text) {
  return FlopRate::per_second(parse(text, {kFlopRates, "312 TFLOP/s"}));
}

std::string to_text(Duration value) {
  static constexpr std::array<Shown, 5> kSteps = {
      {{1, "ps"}, {1e3, "ns"}, {1e6, "us"}, {1e9, "ms"}, {1e12, "s"}}};
  return show(static_cast<double>(value.count()), kSteps);
}
std::string to_text(Bytes value) {
  static constexpr std::array<Shown, 5> kSteps = {{{1, "B"},
                                                   {1024.0, "KiB"},
                                                   {1048576.0, "MiB"},
                                                   {1073741824.0, "GiB"},
                                                   {1099511627776.0, "TiB"}}};
  return show(static_cast<double>(value.count()), kSteps);
}
std::string to_text(Bandwidth value) {
  static constexpr std::array<Shown, 4> kSteps = {
      {{1, "b/s"}, {1e6, "Mb/s"}, {1e9, "Gb/s"}, {1e12, "Tb/s"}}};
  return show(static_cast<double>(value.bits_per_second()), kSteps);
}
std::string to_text(FlopRate value) {
  static constexpr std::array<Shown, 4> kSteps = {
      {{1, "FLOP/s"}, {1e9, "GFLOP/s"}, {1e12, "TFLOP/s"}, {1e15, "PFLOP/s"}}};
  return show(value.per_second(), kSteps);
}

}  // namespace foresail
