#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "schedule/ir/limits.h"
#include "schedule/ir/part_size.h"
#include "schedule/ir/text_scope.h"

namespace steptwin {
namespace {

constexpr std::size_t kMostStages = 1 << 16;

using Box = std::vector<std::vector<std::int64_t>>;  // coordinates per axis; empty = all of them

void fill_box(const Mesh& mesh, const Box& box, Program& program) {
  std::vector<RankId> ranks{RankId(0)};
  for (std::size_t a = 0; a < box.size(); ++a) {
    const std::uint32_t size = mesh.axes[a].size;
    std::vector<RankId> next;
    for (RankId base : ranks) {
      for (std::int64_t c : box[a]) next.push_back(RankId(base.value * size + static_cast<std::uint32_t>(c)));
      for (std::uint32_t c = 0; box[a].empty() && c < size; ++c) next.push_back(RankId(base.value * size + c));
    }
    ranks = std::move(next);
  }
  program.ranks = std::move(ranks);
}

void read_box_axis(const TextScope& scope, LineCursor& line, Box& box) {
  const Mesh& mesh = scope.schedule.mesh;
  const Token token = line.take();
  const std::size_t equals = token.text.find('=');
  const auto axis = mesh.axis(token.text.substr(0, equals));
  if (!axis) return unknown_axis(scope, line, token, token.text.substr(0, equals));
  if (!box[*axis].empty()) return line.fail(token, "DUP-NAME", "an axis is given twice");
  const std::uint32_t size = mesh.axes[*axis].size;
  box[*axis] = line.list_in(token, token.text.substr(equals + 1), "coordinates along the axis", std::int64_t{size} - 1, size);
  if (std::adjacent_find(box[*axis].begin(), box[*axis].end(), std::greater_equal<>()) != box[*axis].end())
    line.fail(token, "ORDER", "coordinates ascend and are named once");
}

void read_ranks(const TextScope& scope, LineCursor& line, Program& program) {
  const Mesh& mesh = scope.schedule.mesh;
  if (line.take_word("none")) return;
  Box box(mesh.axes.size());
  const bool all = line.take_word("all");
  if (!all && line.peek().text.find('=') == std::string_view::npos) {
    const auto ranks = line.list("the ranks", std::int64_t{mesh.size()} - 1, mesh.size());
    for (std::int64_t rank : ranks) program.ranks.push_back(RankId(static_cast<std::uint32_t>(rank)));
    return;
  }
  while (!line.at_end() && line.peek().text.find('=') != std::string_view::npos) read_box_axis(scope, line, box);
  if (!line.failed()) fill_box(mesh, box, program);
}

Bytes layout_extent(const Schedule& schedule, LayoutId layout) {
  std::int64_t extent = 0;
  if (layout.value < schedule.layouts.size())
    for (const TensorSpec& tensor : schedule.layouts[layout.value].tensors)
      extent = std::max(extent, tensor.offset.value + checked_bytes(tensor).value_or(0));
  return Bytes(extent);
}

// What a buffer without a stated size holds: its layout, or as a shard one member's share of it.
Bytes implied_size(const Schedule& schedule, const Buffer& buffer) {
  const Bytes extent = layout_extent(schedule, buffer.layout);
  const std::int64_t members = buffer.shard.valid() ? common_size(schedule, buffer.shard).value_or(1) : 1;
  return members > 0 ? Bytes((extent.value + members - 1) / members) : extent;
}

void read_buffer_property(const TextScope& scope, LineCursor& line, Buffer& buffer, std::optional<Bytes>& size) {
  const Token token = line.peek();
  if (token.kind == Token::Kind::Word && token.text.front() >= '0' && token.text.front() <= '9') {
    size = line.size("the size of the buffer");
  } else if (line.take_word("layout")) {
    buffer.layout = LayoutId(known_name(line, scope.layouts, "layout"));
  } else if (line.take_word("shard")) {
    buffer.shard = CommId(known_name(line, scope.communicators, "communicator"));
  } else if (line.take_word("resident")) {
    buffer.resident = true;
  } else if (line.take_word("lazy")) {
    buffer.resident = buffer.lazy = true;
  } else if (const auto category = enum_of<Category>(token.text, kCategories)) {
    buffer.category = *category, line.take();
  } else if (const auto space = enum_of<Space>(token.text, kSpaces)) {
    buffer.space = *space, line.take();
  } else {
    auto known = enum_words<Category>(kCategories);
    for (const std::string& word : enum_words<Space>(kSpaces)) known.push_back(word);
    known.insert(known.end(), {"layout", "shard", "resident", "lazy"});
    const std::string near = line.suggestion(token.text, known);
    line.expected("a category, space, size, layout, shard, resident or lazy", near);
  }
}

}  // namespace

void read_program(TextScope& scope, LineCursor& line) {
  scope.lanes.clear();
  scope.buffers.clear();
  scope.next_number = 0;
  Program program;
  const Token token = line.peek();
  program.name = line.name("the name of a program");
  if (!line.failed()) declare_name(line, scope.programs, token, program.name, scope.schedule.programs.size(), "program");
  if (!line.take_word("ranks")) line.expected("'ranks' and the ranks that issue it", "for example: program pp1 ranks pp=1");
  read_ranks(scope, line, program);
  if (line.take_word("stages"))
    for (std::int64_t stage : line.list("the stages", kMaxLabel, kMostStages)) program.stages.push_back(static_cast<std::int32_t>(stage));
  program.first_op = OpId(static_cast<std::uint32_t>(scope.schedule.ops.size()));
  scope.schedule.programs.push_back(std::move(program));
}

void read_lane(TextScope& scope, LineCursor& line) {
  Lane lane;
  const Token token = line.peek();
  lane.name = line.name("the name of a lane");
  auto& lanes = scope.schedule.programs.back().lanes;
  if (!line.failed()) declare_name(line, scope.lanes, token, lane.name, lanes.size(), "lane");
  const auto engine = enum_of<Engine>(line.peek().text, kEngineCount);
  if (!engine) {
    const std::string near = line.suggestion(line.peek().text, enum_words<Engine>(kEngineCount));
    line.expected("an engine", near.empty() ? "one of compute, copy_up, copy_down, network, storage, host" : near);
  }
  lane.engine = engine.value_or(Engine::Compute);
  line.take();
  if (line.take_word("priority")) {
    if (!line.take_word("high")) line.expected("'high'", "normal priority is not written");
    lane.priority = Priority::High;
  }
  if (lanes.size() >= kMaxLanes) return line.fail(token, "NUMBER", "a program has too many lanes");
  lanes.push_back(std::move(lane));
}

void read_buffer(TextScope& scope, LineCursor& line) {
  auto& buffers = scope.schedule.programs.back().buffers;
  Buffer buffer;
  const Token token = line.peek();
  std::string_view name = line.name("the name of a buffer");
  if (!line.failed()) declare_name(line, scope.buffers, token, name, buffers.size(), "buffer");
  if (name == "b" + std::to_string(buffers.size())) name = {};
  if (line.take_word("named")) name = line.name("the name of the buffer");
  if (!name.empty()) buffer.name = scope.intern(name);
  std::optional<Bytes> size;
  while (!line.at_end()) read_buffer_property(scope, line, buffer, size);
  buffer.bytes = size ? *size : implied_size(scope.schedule, buffer);
  buffers.push_back(buffer);
}

}  // namespace steptwin
