// Rules that the printer and the parser of the text form share (text.h has the grammar).
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/ir/schedule.h"

namespace steptwin {

inline constexpr std::array<Phase, 6> kTextPhases = {Phase::Forward,    Phase::Backward,  Phase::InputGrad,
                                                     Phase::WeightGrad, Phase::Recompute, Phase::Update};

// Words that begin a clause and so end a list of names; quoted when they are names.
bool is_clause_word(std::string_view word);
// May the name stand without quotes?
bool is_plain_name(std::string_view name);
// F, L3, c0, mb1, s2: read as a label where a segment may stand.
bool is_label_word(std::string_view word);

void append_number(std::string& out, std::int64_t value);
void append_name(std::string& out, std::string_view name);     // quoted where needed
void append_segment(std::string& out, std::string_view name);  // also quoted when it looks like a label
void append_size(std::string& out, Bytes bytes);               // exact, in the largest unit that divides it
void append_time(std::string& out, Duration time);

void append_list(std::string& out, const std::vector<std::int64_t>& values);  // 0,3,5-7: ascending runs of three or more are shortened

// Is `word` prefix + decimal number below `count`, written canonically (b0, b12, not b007)?
bool is_index_handle(std::string_view word, char prefix, std::size_t count);

// How buffers and layouts are called in the text: by their name when it is unique and no index handle, else by index.
// In a table the views stay valid as long as it lives.
class Handles {
 public:
  static Handles of_buffers(const Schedule& schedule, const Program& program);
  static Handles of_layouts(const Schedule& schedule);
  void append(std::string& out, std::uint32_t index) const;  // out of range: ?<index>
  bool by_index(std::uint32_t index) const { return by_index_[index]; }

 private:
  Handles(char prefix, std::vector<std::string_view> names);
  char prefix_;
  std::vector<std::string_view> names_;
  std::vector<bool> by_index_;
};

// One op as its line. `buffers` are the handles of its program.
void append_op(std::string& out, const Schedule& schedule, const Program& program, const Handles& buffers, OpId op);

}  // namespace steptwin
