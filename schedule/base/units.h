// Units in types. Time is int64 nanoseconds on the simulation (or execution) clock; bytes and flops are
// int64 counts; rates are doubles. Durations computed in double become nanoseconds in one place, ceil_ns.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>

namespace steptwin {

using Duration = std::chrono::nanoseconds;

// The clock of a run: 0 is the start of the run. Never mixed with wall clocks.
struct RunClock {
  using rep = std::int64_t;
  using period = std::nano;
  using duration = Duration;
  using time_point = std::chrono::time_point<RunClock, Duration>;
};
using SimTime = RunClock::time_point;

constexpr std::int64_t ns(Duration d) { return d.count(); }
constexpr std::int64_t ns(SimTime t) { return t.time_since_epoch().count(); }
constexpr SimTime at_ns(std::int64_t v) { return SimTime(Duration(v)); }

// Seconds (double) to nanoseconds, rounded up. Exactly 0 (or less) stays 0; anything else costs at least 1 ns.
// Values beyond int64 are clamped to its maximum. Never NaN: callers divide by checked rates.
constexpr Duration ceil_ns(double seconds) {
  if (!(seconds > 0)) return Duration(0);
  const double value = seconds * 1e9;
  if (value >= 9.2e18) return Duration(INT64_MAX);
  const auto floor = static_cast<std::int64_t>(value);
  return Duration(static_cast<double>(floor) < value || floor == 0 ? floor + 1 : floor);
}

struct Bytes {
  std::int64_t value = 0;
  constexpr Bytes() = default;
  constexpr explicit Bytes(std::int64_t v) : value(v) {}
  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes o) { value += o.value; return *this; }
  constexpr Bytes& operator-=(Bytes o) { value -= o.value; return *this; }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.value + b.value); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.value - b.value); }
  friend constexpr Bytes operator*(Bytes a, std::int64_t k) { return Bytes(a.value * k); }
  friend constexpr Bytes operator*(std::int64_t k, Bytes a) { return a * k; }
};

struct Flops {
  std::int64_t value = 0;
  constexpr Flops() = default;
  constexpr explicit Flops(std::int64_t v) : value(v) {}
  constexpr auto operator<=>(const Flops&) const = default;
  constexpr Flops& operator+=(Flops o) { value += o.value; return *this; }
  friend constexpr Flops operator+(Flops a, Flops b) { return Flops(a.value + b.value); }
  friend constexpr Flops operator*(Flops a, std::int64_t k) { return Flops(a.value * k); }
  friend constexpr Flops operator*(std::int64_t k, Flops a) { return a * k; }
};

struct BytesPerSecond {
  double value = 0;
  constexpr auto operator<=>(const BytesPerSecond&) const = default;
};
struct FlopsPerSecond {
  double value = 0;
  constexpr auto operator<=>(const FlopsPerSecond&) const = default;
};

// Seconds needed; the rate must be > 0.
constexpr double operator/(Bytes b, BytesPerSecond r) { return static_cast<double>(b.value) / r.value; }
constexpr double operator/(Flops f, FlopsPerSecond r) { return static_cast<double>(f.value) / r.value; }

namespace literals {
constexpr Bytes operator""_B(unsigned long long v) { return Bytes(static_cast<std::int64_t>(v)); }
constexpr Bytes operator""_KiB(unsigned long long v) { return Bytes(static_cast<std::int64_t>(v) << 10); }
constexpr Bytes operator""_MiB(unsigned long long v) { return Bytes(static_cast<std::int64_t>(v) << 20); }
constexpr Bytes operator""_GiB(unsigned long long v) { return Bytes(static_cast<std::int64_t>(v) << 30); }
constexpr Duration operator""_us(unsigned long long v) { return Duration(static_cast<std::int64_t>(v) * 1000); }
}  // namespace literals

}  // namespace steptwin
