#include "cli/format.h"

#include <fmt/core.h>

#include <array>
#include <cmath>

namespace steptwin {

std::string four_digits(double value) {
  const double size = std::fabs(value);
  if (size >= 999.95) return fmt::format("{:.0f}", value);
  if (size >= 99.995) return fmt::format("{:.1f}", value);
  if (size >= 9.9995) return fmt::format("{:.2f}", value);
  if (size >= 0.99995 || size == 0) return fmt::format("{:.3f}", value);
  return fmt::format("{:.4g}", value);
}

std::string six_digits(double value) {
  const double size = std::fabs(value);
  return size >= 99999.5 && size < 1e15 ? fmt::format("{:.0f}", value) : fmt::format("{:.6g}", value);
}

std::string human_time(Duration time, Micro micro) {
  const std::int64_t count = ns(time);
  if (std::llabs(count) < 1000) return fmt::format("{} ns", count);
  const double value = static_cast<double>(count);
  if (std::fabs(value) < 1e6) return four_digits(value / 1e3) + (micro == Micro::Sign ? " µs" : " us");
  if (std::fabs(value) < 1e9) return four_digits(value / 1e6) + " ms";
  return four_digits(value / 1e9) + " s";
}

std::string human_bytes(Bytes bytes) {
  static constexpr std::array<const char*, 5> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes.value);
  if (std::fabs(value) < 1024) return fmt::format("{} B", bytes.value);
  std::size_t unit = 0;
  for (value /= 1024; std::fabs(value) >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return four_digits(value) + " " + kUnits[unit];
}

std::string human_percent(double fraction) { return fmt::format("{:.1f} %", fraction * 100); }

std::string human_count(std::int64_t value) {
  std::string digits = fmt::format("{}", value);
  const std::size_t sign = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > sign + 3;) {
    at -= 3;
    digits.insert(at, " ");
  }
  return digits;
}

std::string exact_number(double value) {
  if (!std::isfinite(value)) return {};
  return fmt::format("{}", value);
}

namespace {

// Length of the well-formed UTF-8 sequence that starts `text`; 0 when it is none (RFC 3629: no surrogates, no overlong forms).
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  const bool bad = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
                   (first == 0xF4 && second > 0x8F);
  const bool c1_control = first == 0xC2 && second < 0xA0;  // 0x9B is a one-byte escape sequence on some terminals
  return bad || c1_control ? 0 : length;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool control = length == 1 && ((first < 0x20 && first != '\n') || first == 0x7F);
    if (length == 0 || control)
      result += first == '\t' ? ' ' : '?';
    else
      result += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return result;
}

std::size_t display_width(std::string_view utf8) {
  std::size_t width = 0;
  for (const char c : utf8) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return width;
}

std::string pad_right(std::string_view text, std::size_t width) {
  const std::size_t used = display_width(text);
  return std::string(text) + std::string(used < width ? width - used : 0, ' ');
}

std::string pad_left(std::string_view text, std::size_t width) {
  const std::size_t used = display_width(text);
  return std::string(used < width ? width - used : 0, ' ') + std::string(text);
}

}  // namespace steptwin
