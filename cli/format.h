// Numbers for people: four significant digits, always a unit, binary byte units. Machines read --format json or csv instead.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "schedule/base/units.h"

namespace steptwin {

enum class Micro { Sign, Letter };  // "µs" or "us"

std::string six_digits(double value);                                // "52.8777", "637077", "1e-05": a real in a table for people
std::string four_digits(double value);                               // "179.4", "0.1584", "1835"
std::string human_time(Duration time, Micro micro = Micro::Letter);  // "179.4 ms"
std::string human_bytes(Bytes bytes);                                // "31.20 GiB", "512 B"
std::string human_percent(double fraction);                          // 0.1579 -> "15.8 %"
std::string human_count(std::int64_t value);                         // 22833 -> "22 833"
// Shortest decimal text that reads back as the same double, never "inf" or "nan" (then empty).
std::string exact_number(double value);

// Text of a user's file made safe to show: control characters (except line ends) and bytes that are no UTF-8 become '?'.
std::string printable(std::string_view text);

std::size_t display_width(std::string_view utf8);  // code points
std::string pad_right(std::string_view text, std::size_t width);
std::string pad_left(std::string_view text, std::size_t width);

}  // namespace steptwin
