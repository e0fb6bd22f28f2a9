// What the parser of the text form knows while it reads: the schedule so far and the names declared in it.
#pragma once

#include <string>
#include <unordered_map>

#include "schedule/ir/schedule.h"
#include "schedule/ir/text_cursor.h"

namespace steptwin {

using NameTable = std::unordered_map<std::string, std::uint32_t>;

struct TextScope {
  Schedule schedule;
  NameTable names, communicators, layouts, programs;
  NameTable lanes, buffers;      // of the program being read
  std::int64_t next_number = 0;  // of its next op

  NameId intern(std::string_view text);
};

// Enters a new name; a repeated one fails the line.
void declare_name(LineCursor& line, NameTable& table, const Token& token, std::string_view name, std::size_t index, const char* what);
void unknown_axis(const TextScope& scope, LineCursor& line, const Token& token, std::string_view name);
// Reads a name and looks it up; an unknown one fails with the nearest known name. Returns none when the line failed.
std::uint32_t known_name(LineCursor& line, const NameTable& table, const char* what);

// The value of an enum whose words are name_of(E(0)) .. name_of(E(count - 1)); none for another word.
template <class E>
std::optional<E> enum_of(std::string_view word, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (word == name_of(static_cast<E>(i))) return static_cast<E>(i);
  return std::nullopt;
}
template <class E>
std::vector<std::string> enum_words(std::size_t count) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < count; ++i) words.emplace_back(name_of(static_cast<E>(i)));
  return words;
}

// The rest of a program, lane or buffer line (parse_program.cpp). They declare even when the line fails, so that one
// problem does not make others.
void read_program(TextScope& scope, LineCursor& line);
void read_lane(TextScope& scope, LineCursor& line);
void read_buffer(TextScope& scope, LineCursor& line);
// Reads an op line (parse_op.cpp) whose number is the next token. Appends one op even when the line fails, so that later numbers hold.
void read_op(TextScope& scope, LineCursor& line);
// Reads the buffers and parts after read, write, update or hold and appends them to the schedule (parse_access.cpp).
void read_accesses(TextScope& scope, LineCursor& line, AccessMode mode);

}  // namespace steptwin
