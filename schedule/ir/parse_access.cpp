#include <fmt/format.h>

#include <algorithm>

#include "schedule/ir/text_rules.h"
#include "schedule/ir/text_scope.h"

namespace steptwin {
namespace {

std::uint32_t read_tensor(const TextScope& scope, LineCursor& line, BufferId id) {
  const Schedule& schedule = scope.schedule;
  const Token token = line.peek();
  if (token.kind == Token::Kind::Word && to_number(token.text))
    return static_cast<std::uint32_t>(line.number("the index of a tensor", UINT32_MAX - 1));
  const std::string_view name = line.name("the name of a tensor");
  if (line.failed()) return 0;
  const Buffer& buffer = schedule.programs.back().buffers[id.value];
  std::vector<std::string> known;
  std::uint32_t found = UINT32_MAX, count = 0;
  if (buffer.layout.valid()) {
    const auto& tensors = schedule.layouts[buffer.layout.value].tensors;
    for (std::uint32_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].name == name) found = i, ++count;
    if (count == 0)
      for (const TensorSpec& tensor : tensors) known.push_back(tensor.name);
  }
  if (count == 1) return found;
  const char* problem = count == 0 ? "the layout of the buffer has no tensor" : "the layout has several tensors called";
  line.fail(token, "UNKNOWN-NAME", fmt::format("{} '{}'", problem, clipped(name)),
            count == 0 ? line.suggestion(name, known) : "name it by its index: [tensor 3]");
  return 0;
}

Part read_piece(LineCursor& line) {
  const std::string_view text = line.peek().text;
  const std::size_t slash = std::min(text.find('/'), text.size());
  const auto index = to_number(text.substr(0, slash));
  const auto count = slash < text.size() ? to_number(text.substr(slash + 1)) : std::nullopt;
  if (!index || !count || *index >= UINT32_MAX || *count >= UINT32_MAX) {
    line.expected("a piece such as 1/4", "piece 1/4 is the second of four");
    return {};
  }
  line.take();
  return {Part::Kind::Piece, static_cast<std::uint32_t>(*index), static_cast<std::uint32_t>(*count)};
}

Part read_part(const TextScope& scope, LineCursor& line, BufferId buffer) {
  Part part;
  if (line.take_word("tensor")) {
    part = {Part::Kind::Tensor, read_tensor(scope, line, buffer), 0};
  } else if (line.take_word("shard")) {
    part = {Part::Kind::Shard, known_name(line, scope.communicators, "communicator"), 0};
  } else if (line.take_word("piece")) {
    part = read_piece(line);
  } else {
    line.expected("tensor, shard or piece", "[tensor NAME], [shard COMM] or [piece 1/4]");
  }
  line.expect_mark(']');
  return part;
}

}  // namespace

void read_accesses(TextScope& scope, LineCursor& line, AccessMode mode) {
  do {
    Access access;
    access.mode = mode;
    access.buffer = BufferId(known_name(line, scope.buffers, "buffer"));
    if (line.take_mark('[')) access.part = read_part(scope, line, access.buffer);
    if (!line.failed()) scope.schedule.accesses.push_back(access);
  } while (line.peek().kind == Token::Kind::String || (line.peek().kind == Token::Kind::Word && is_plain_name(line.peek().text)));
}

}  // namespace steptwin
