#include <array>
#include <charconv>
#include <set>
#include <utility>

#include "schedule/ir/op_key.h"
#include "schedule/ir/text.h"
#include "schedule/ir/text_rules.h"

namespace steptwin {
namespace {

constexpr std::size_t kNamesLineWidth = 110;

template <class T>
std::vector<std::int64_t> numbers(const std::vector<T>& values) {
  std::vector<std::int64_t> out;
  out.reserve(values.size());
  for (const T& v : values) out.push_back(v);
  return out;
}

// Are the interned names exactly those that reading the text would intern, in that order?
bool names_in_first_use_order(const Schedule& s) {
  std::uint32_t next = 0;
  bool ordered = true;
  const auto use = [&](NameId id) {
    if (!id.valid() || id.value < next) return;
    ordered = ordered && id.value == next;
    ++next;
  };
  for (const Program& program : s.programs) {
    for (const Buffer& buffer : program.buffers) use(buffer.name);
    for (const Op& op : s.ops_of(program)) {
      use(op.label.segment);
      if (const auto* compute = std::get_if<Compute>(&op.body))
        for (const ComputePart& part : s.parts_of(*compute)) use(part.segment);
    }
  }
  return ordered && next == s.names.size();
}

class SchedulePrinter {
 public:
  explicit SchedulePrinter(const Schedule& schedule) : s_(schedule), layouts_(Handles::of_layouts(schedule)) {}

  std::string print() {
    out_.reserve(256 + s_.ops.size() * 64);
    print_mesh();
    if (!names_in_first_use_order(s_)) print_names();
    for (const Constant& constant : s_.constants) print_constant(constant);
    for (const Communicator& comm : s_.communicators) print_communicator(comm);
    for (std::uint32_t i = 0; i < s_.layouts.size(); ++i) print_layout(i);
    for (std::uint32_t i = 0; i < s_.works.size(); ++i) print_work(i);
    for (const Program& program : s_.programs) print_program(program);
    return std::move(out_);
  }

 private:
  void print_mesh() {
    out_ += "mesh";
    for (const Axis& axis : s_.mesh.axes) {
      out_ += ' ', append_name(out_, axis.name);
      out_ += ' ', append_number(out_, axis.size);
    }
    out_ += '\n';
  }

  void print_names() {
    std::size_t line_start = out_.size();
    for (std::size_t i = 0; i < s_.names.size(); ++i) {
      if (i == 0 || out_.size() - line_start > kNamesLineWidth) {
        if (i > 0) out_ += '\n';
        line_start = out_.size();
        out_ += "names";
      }
      out_ += ' ', append_name(out_, s_.names[i]);
    }
    out_ += '\n';
  }

  // The shortest digits that read back as the same value.
  void print_constant(const Constant& constant) {
    std::array<char, 32> digits;
    out_ += "constant ", append_name(out_, constant.name);
    out_ += ' ', out_.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), constant.value).ptr);
    out_ += '\n';
  }

  void print_communicator(const Communicator& comm) {
    out_ += "comm ", append_name(out_, comm.name);
    out_ += " axes";
    for (std::size_t axis : comm.axes) out_ += ' ', append_name(out_, s_.mesh.axes[axis].name);
    if (!comm.groups.empty()) out_ += " groups";
    for (const auto& group : comm.groups) {
      out_ += " {", append_list(out_, numbers(group));
      out_ += '}';
    }
    out_ += '\n';
  }

  void print_layout(std::uint32_t index) {
    const Layout& layout = s_.layouts[index];
    out_ += "layout ", layouts_.append(out_, index);
    if (layouts_.by_index(index) && !layout.name.empty()) out_ += " named ", append_name(out_, layout.name);
    out_ += '\n';
    for (const TensorSpec& tensor : layout.tensors) {
      out_ += "  tensor ", append_name(out_, tensor.name);
      out_ += ' ', out_ += name_of(tensor.dtype), out_ += ' ';
      for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
        if (i > 0) out_ += 'x';
        append_number(out_, tensor.shape[i]);
      }
      if (tensor.shape.empty()) out_ += "scalar";
      out_ += " at ", append_size(out_, tensor.offset);
      out_ += '\n';
    }
  }

  void append_field(const char* word, std::int64_t value, std::int64_t left_out) {
    if (value == left_out) return;
    out_ += word;
    append_number(out_, value);
  }

  void print_work(std::uint32_t index) {
    out_ += "work w", append_number(out_, index);
    out_ += '\n';
    for (const Kernel& kernel : s_.works[index].kernels) {
      out_ += "  ", out_ += name_of(kernel.kind);
      out_ += ' ', out_ += name_of(kernel.dtype);
      append_field(" batch ", kernel.batch, 1);
      append_field(" m ", kernel.m, 0);
      append_field(" n ", kernel.n, 0);
      append_field(" k ", kernel.k, 0);
      out_ += " flops ", append_number(out_, kernel.flops.value);
      out_ += " bytes ", append_size(out_, kernel.bytes);
      out_ += '\n';
    }
  }

  void print_program(const Program& program) {
    out_ += "program ", append_name(out_, program.name);
    out_ += " ranks", print_ranks(program.ranks);
    if (!program.stages.empty()) out_ += " stages ", append_list(out_, numbers(program.stages));
    out_ += '\n';
    for (const Lane& lane : program.lanes) {
      out_ += "  lane ", append_name(out_, lane.name);
      out_ += ' ', out_ += name_of(lane.engine);
      out_ += lane.priority == Priority::High ? " priority high\n" : "\n";
    }
    const Handles buffers = Handles::of_buffers(s_, program);
    for (std::uint32_t i = 0; i < program.buffers.size(); ++i) print_buffer(program.buffers[i], i, buffers);
    for (std::uint32_t i = 0; i < program.op_count; ++i) {
      out_ += "  ";
      append_op(out_, s_, program, buffers, OpId(program.first_op.value + i));
      out_ += '\n';
    }
  }

  void print_buffer(const Buffer& buffer, std::uint32_t index, const Handles& handles) {
    out_ += "  buffer ", handles.append(out_, index);
    if (handles.by_index(index) && buffer.name.valid()) out_ += " named ", append_name(out_, s_.name(buffer.name));
    out_ += ' ', out_ += name_of(buffer.category);
    out_ += ' ', out_ += name_of(buffer.space);
    out_ += ' ', append_size(out_, buffer.bytes);
    if (buffer.layout.valid()) out_ += " layout ", layouts_.append(out_, buffer.layout.value);
    if (buffer.shard.valid()) out_ += " shard ", append_name(out_, s_.communicators[buffer.shard.value].name);
    if (buffer.resident) out_ += buffer.lazy ? " lazy" : " resident";
    out_ += '\n';
  }

  // The coordinates along every axis when the ascending ranks are a box; empty when they are none.
  std::vector<std::set<std::uint32_t>> box_of(const std::vector<RankId>& ranks) const {
    std::vector<std::set<std::uint32_t>> along(s_.mesh.axes.size());
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i].value >= s_.mesh.size() || (i > 0 && ranks[i] <= ranks[i - 1])) return {};
      const auto at = s_.mesh.coordinates(ranks[i]);
      for (std::size_t a = 0; a < at.size(); ++a) along[a].insert(at[a]);
    }
    std::uint64_t volume = 1;
    for (const auto& coordinates : along) volume *= coordinates.size();
    return volume == ranks.size() ? along : std::vector<std::set<std::uint32_t>>{};
  }

  void print_ranks(const std::vector<RankId>& ranks) {
    if (ranks.empty()) return void(out_ += " none");
    const auto box = box_of(ranks);
    std::string text;
    bool plain = !box.empty();
    for (std::size_t a = 0; a < box.size(); ++a) {
      const Axis& axis = s_.mesh.axes[a];
      if (box[a].size() == axis.size) continue;
      const std::size_t before = text.size();
      text += ' ', append_name(text, axis.name);
      plain = plain && text[before + 1] != '"';
      text += '=', append_list(text, std::vector<std::int64_t>(box[a].begin(), box[a].end()));
    }
    if (plain) return void(out_ += text.empty() ? " all" : text);
    std::vector<std::int64_t> list;
    for (RankId rank : ranks) list.push_back(rank.value);
    out_ += ' ', append_list(out_, list);
  }

  const Schedule& s_;
  Handles layouts_;
  std::string out_;
};

}  // namespace

std::string print_schedule(const Schedule& schedule) { return SchedulePrinter(schedule).print(); }

}  // namespace steptwin
