/// \file
/// Quantities of the simulated world. Time is integer picoseconds, so event
/// order never depends on rounding; sizes are integer bytes.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>

namespace foresail {

/// Span of simulated time. Spans about +/-106 days; parsers reject more.
using Duration = std::chrono::duration<std::int64_t, std::pico>;

/// Clock of the simulated world. It has no now(): only a Simulator knows it.
struct SimClock {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<SimClock>;
  static constexpr bool is_steady = true;
};
using SimTime = SimClock::time_point;

/// Seconds as a real number: for printing and for formulas, never for event order.
constexpr double to_seconds(Duration span) {
  return static_cast<double>(span.count()) * 1e-12;
}

/// The nearest whole picosecond. Throws Error{InvalidInput} outside the range of Duration.
Duration duration_from_seconds(double seconds);

/// Amount of data.
class Bytes {
 public:
  constexpr Bytes() = default;
  explicit constexpr Bytes(std::int64_t count) : count_(count) {}
  constexpr std::int64_t count() const { return count_; }
  friend constexpr auto operator<=>(Bytes, Bytes) = default;
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.count_ + b.count_); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.count_ - b.count_); }
  friend constexpr Bytes operator*(std::int64_t times, Bytes a) { return Bytes(times * a.count_); }
  constexpr Bytes& operator+=(Bytes other) {
    count_ += other.count_;
    return *this;
  }

 private:
  std::int64_t count_ = 0;
};

/// Rate of a link, in bits per second as vendors quote it.
class Bandwidth {
 public:
  constexpr Bandwidth() = default;
  static constexpr Bandwidth bps(std::int64_t value) { return Bandwidth(value); }
  static constexpr Bandwidth gbps(std::int64_t value) { return Bandwidth(value * 1'000'000'000); }
  static constexpr Bandwidth gigabytes_per_second(std::int64_t value) { return gbps(8 * value); }
  constexpr std::int64_t bits_per_second() const { return bits_per_second_; }
  constexpr double bytes_per_second() const { return static_cast<double>(bits_per_second_) / 8; }
  friend constexpr auto operator<=>(Bandwidth, Bandwidth) = default;

 private:
  explicit constexpr Bandwidth(std::int64_t value) : bits_per_second_(value) {}
  std::int64_t bits_per_second_ = 0;
};

/// Floating-point operations (a multiply-add counts as two).
class Flops {
 public:
  constexpr Flops() = default;
  explicit constexpr Flops(double count) : count_(count) {}
  constexpr double count() const { return count_; }
  friend constexpr auto operator<=>(Flops, Flops) = default;
  friend constexpr Flops operator+(Flops a, Flops b) { return Flops(a.count_ + b.count_); }
  friend constexpr Flops operator*(double times, Flops a) { return Flops(times * a.count_); }
  constexpr Flops& operator+=(Flops other) {
    count_ += other.count_;
    return *this;
  }

 private:
  double count_ = 0;
};

/// Floating-point operations per second.
class FlopRate {
 public:
  constexpr FlopRate() = default;
  static constexpr FlopRate per_second(double value) { return FlopRate(value); }
  static constexpr FlopRate teraflops(double value) { return FlopRate(value * 1e12); }
  constexpr double per_second() const { return per_second_; }
  friend constexpr auto operator<=>(FlopRate, FlopRate) = default;

 private:
  explicit constexpr FlopRate(double value) : per_second_(value) {}
  double per_second_ = 0;
};

/// Time to serialize `size` at `rate`, rounded up to a whole picosecond.
constexpr Duration transfer_time(Bytes size, Bandwidth rate) {
  __extension__ using Wide = __int128;
  const Wide bits = Wide{size.count()} * 8;
  const Wide rate_bits = rate.bits_per_second();
  return Duration(
      static_cast<std::int64_t>((bits * 1'000'000'000'000 + rate_bits - 1) / rate_bits));
}

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n));
}
constexpr Bytes operator""_KiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n << 10));
}
constexpr Bytes operator""_MiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n << 20));
}
constexpr Bytes operator""_GiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n << 30));
}
constexpr Bandwidth operator""_Gbps(unsigned long long n) {
  return Bandwidth::gbps(static_cast<std::int64_t>(n));
}
}  // namespace literals

}  // namespace foresail
