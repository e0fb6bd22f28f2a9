#include <fmt/format.h>

#include <algorithm>

#include "schedule/base/error.h"
#include "schedule/ir/limits.h"
#include "schedule/ir/part_size.h"
#include "schedule/ir/text.h"
#include "schedule/ir/text_rules.h"
#include "schedule/ir/text_scope.h"

namespace steptwin {
namespace {

constexpr std::size_t kMostProblems = 100;

class ScheduleReader {
 public:
  ScheduleReader(std::string_view text, const std::string& file) : text_(text), line_(file) {}

  Schedule read() {
    scope_.schedule.access_offsets.push_back(0);
    scope_.schedule.dep_offsets.push_back(0);
    std::size_t at = 0;
    for (int number = 1; at <= text_.size() && line_.problems().size() < kMostProblems; ++number) {
      const std::size_t end = std::min(text_.find('\n', at), text_.size());
      line_.start(text_.substr(at, end - at), number);
      if (!line_.at_end()) read_line();
      at = end + 1;
    }
    if (section_ == Section::Start && line_.problems().empty()) {
      line_.start("", 1);
      line_.fail(line_.peek(), "SYNTAX", "the schedule is empty", "begin with a mesh line: mesh pp 2");
    }
    if (!line_.problems().empty()) throw InputError(line_.problems());
    return std::move(scope_.schedule);
  }

 private:
  enum class Section : std::uint8_t { Start, Top, Layout, Work, Program };

  struct Declaration {
    std::string_view word;
    void (ScheduleReader::*read)();
  };
  static constexpr std::size_t kDeclarations = 13;
  static const Declaration kTable[kDeclarations];

  void read_line() {
    const Token first = line_.peek();
    if (section_ == Section::Start && !first.is_word("mesh")) {
      section_ = Section::Top;  // complain once
      return line_.fail(first, "ORDER", "the first line must be the mesh", "for example: mesh pp 4 dp 2");
    }
    if (first.kind == Token::Kind::Word && first.text.front() >= '0' && first.text.front() <= '9') {
      if (require(Section::Program, "an op belongs below a program line")) read_op(scope_, line_);
      return finish_line();
    }
    for (const Declaration& declaration : kTable) {
      if (!line_.take_word(declaration.word)) continue;
      (this->*declaration.read)();
      return finish_line();
    }
    std::vector<std::string> known;
    for (const Declaration& declaration : kTable) known.emplace_back(declaration.word);
    const std::string near = line_.suggestion(first.text, known);
    line_.fail(first, "SYNTAX", fmt::format("unknown line '{}'", first.text.substr(0, 40)),
               near.empty() ? "a line begins with an op number, or with mesh, constant, comm, layout, work, program, lane, buffer" : near);
  }

  void finish_line() {
    if (!line_.at_end()) line_.expected("the end of the line");
  }

  bool require(Section section, const char* what) {
    if (section_ == section || line_.failed()) return !line_.failed();
    line_.fail(line_.peek(), "ORDER", what);
    return false;
  }

  void read_mesh() {
    if (section_ != Section::Start) return line_.fail(line_.peek(), "ORDER", "the mesh is declared twice", "one mesh line, the first");
    section_ = Section::Top;
    std::uint64_t ranks = 1;
    while (!line_.at_end()) {
      const Token token = line_.peek();
      const std::string_view name = line_.name("the name of a mesh axis");
      const Token size_token = line_.peek();
      const std::int64_t size = line_.number("the size of the axis", static_cast<std::int64_t>(kMaxRanks));
      if (line_.failed()) return;
      if (scope_.schedule.mesh.axis(name)) return line_.fail(token, "DUP-NAME", fmt::format("axis '{}' is declared twice", clipped(name)));
      ranks *= static_cast<std::uint64_t>(size);
      if (size == 0 || ranks > kMaxRanks)
        return line_.fail(size_token, "NUMBER", "the mesh must have between 1 and 1048576 ranks", "check the sizes of the axes");
      scope_.schedule.mesh.axes.push_back({std::string(name), static_cast<std::uint32_t>(size)});
    }
  }

  void read_names() {
    while (!line_.at_end()) {
      const Token token = line_.peek();
      const std::string_view name = line_.name("a name");
      if (line_.failed()) return;
      if (name.empty()) return line_.fail(token, "SYNTAX", "an interned name cannot be empty");
      declare_name(line_, scope_.names, token, name, scope_.schedule.names.size(), "name");
      if (!line_.failed()) scope_.schedule.names.emplace_back(name);
    }
  }

  void read_constant() {
    section_ = Section::Top;
    const Token token = line_.peek();
    Constant constant{std::string(line_.name("the name of a constant")), 0};
    constant.value = line_.real("the value of the constant");
    if (line_.failed()) return;
    if (scope_.schedule.constant(constant.name))
      return line_.fail(token, "DUP-NAME", fmt::format("constant '{}' is declared twice", clipped(constant.name)));
    scope_.schedule.constants.push_back(std::move(constant));
  }

  std::optional<std::size_t> read_axis() {
    const Token token = line_.peek();
    const std::string_view name = line_.name("the name of a mesh axis");
    if (line_.failed()) return std::nullopt;
    const auto axis = scope_.schedule.mesh.axis(name);
    if (!axis) unknown_axis(scope_, line_, token, name);
    return axis;
  }

  void read_communicator() {
    section_ = Section::Top;
    Communicator comm;
    const Token token = line_.peek();
    comm.name = line_.name("the name of a communicator");
    if (!line_.failed()) declare_name(line_, scope_.communicators, token, comm.name, scope_.schedule.communicators.size(), "communicator");
    if (!line_.take_word("axes")) line_.expected("'axes' and the axes it spans", "for example: comm dp axes dp");
    std::int64_t positions = 1;
    while (!line_.at_end() && !line_.peek().is_word("groups")) {
      const Token axis_token = line_.peek();
      const auto axis = read_axis();
      if (!axis) break;
      if (!comm.axes.empty() && *axis <= comm.axes.back())
        line_.fail(axis_token, "ORDER", "the axes of a communicator are named once, in mesh order");
      comm.axes.push_back(*axis);
      positions *= scope_.schedule.mesh.axes[*axis].size;
    }
    if (line_.take_word("groups")) read_groups(comm, positions);
    scope_.schedule.communicators.push_back(std::move(comm));
  }

  void read_groups(Communicator& comm, std::int64_t positions) {
    if (line_.at_end()) line_.expected("the groups", "for example: groups {0,3} {1,2}");
    while (!line_.at_end()) {
      const Token open = line_.peek();
      line_.expect_mark('{');
      std::string list;
      while (line_.peek().kind == Token::Kind::Word) list += line_.take().text;
      if (!line_.peek().is_mark('}')) return line_.expect_mark('}');
      const auto members = line_.list_in(open, list, "the positions of a group", positions - 1, static_cast<std::size_t>(positions));
      line_.take_mark('}');
      comm.groups.emplace_back(members.begin(), members.end());
    }
  }

  void read_layout() {
    section_ = Section::Layout;
    Layout layout;
    const Token token = line_.peek();
    const std::string_view handle = line_.name("the name of a layout");
    const std::size_t index = scope_.schedule.layouts.size();
    if (!line_.failed()) declare_name(line_, scope_.layouts, token, handle, index, "layout");
    if (handle != "l" + std::to_string(index)) layout.name = handle;
    if (line_.take_word("named")) layout.name = line_.name("the name of the layout");
    scope_.schedule.layouts.push_back(std::move(layout));
  }

  void read_tensor() {
    if (!require(Section::Layout, "a tensor belongs below a layout line")) return;
    TensorSpec tensor;
    tensor.name = line_.name("the name of a tensor");
    tensor.dtype = line_.dtype();
    const Token token = line_.peek();
    if (!line_.take_word("scalar")) tensor.shape = read_shape();
    if (!line_.take_word("at")) line_.expected("'at' and the offset", "for example: tensor weight bf16 768x3072 at 0B");
    tensor.offset = line_.size("the offset of the tensor");
    if (line_.failed()) return;
    const auto bytes = checked_bytes(tensor);
    if (!bytes || *bytes > kMaxBytes - tensor.offset.value)
      return line_.fail(token, "NUMBER", "the tensor is too large", "layouts go up to 1024TiB");
    scope_.schedule.layouts.back().tensors.push_back(std::move(tensor));
  }

  std::vector<std::int64_t> read_shape() {
    std::vector<std::int64_t> shape;
    if (line_.peek().kind != Token::Kind::Word) line_.expected("a shape such as 768x3072");
    std::string_view text = line_.peek().text;
    while (!line_.failed()) {
      const std::size_t cross = std::min(text.find('x'), text.size());
      const auto extent = to_number(text.substr(0, cross));
      if (!extent || *extent > kMaxCount) {
        line_.expected("a shape such as 768x3072, or scalar");
        break;
      }
      shape.push_back(*extent);
      if (cross == text.size()) break;
      text.remove_prefix(cross + 1);
    }
    line_.take();
    return shape;
  }

  void read_work() {
    section_ = Section::Work;
    const std::string handle = "w" + std::to_string(scope_.schedule.works.size());
    if (!line_.take_word(handle)) line_.expected(fmt::format("the next work, {}", handle).c_str(), "works are called w0, w1, ... in order");
    scope_.schedule.works.emplace_back();
  }

  void read_matmul() { read_kernel(Kernel::Kind::MatMul); }
  void read_attention() { read_kernel(Kernel::Kind::Attention); }
  void read_stream() { read_kernel(Kernel::Kind::Stream); }

  void read_kernel(Kernel::Kind kind) {
    if (!require(Section::Work, "a kernel belongs below a work line")) return;
    Kernel kernel;
    kernel.kind = kind;
    kernel.dtype = line_.dtype();
    std::optional<std::int64_t> flops;
    while (!line_.at_end()) {
      if (line_.take_word("batch"))
        kernel.batch = line_.number("the batch", kMaxCount);
      else if (line_.take_word("m"))
        kernel.m = line_.number("m", kMaxCount);
      else if (line_.take_word("n"))
        kernel.n = line_.number("n", kMaxCount);
      else if (line_.take_word("k"))
        kernel.k = line_.number("k", kMaxCount);
      else if (line_.take_word("flops"))
        flops = line_.number("the flops", kMaxCount);
      else if (line_.take_word("bytes"))
        kernel.bytes = line_.size("the bytes read and written");
      else
        line_.expected("batch, m, n, k, flops or bytes");
    }
    kernel.flops = Flops(flops ? *flops : default_flops(kernel));
    if (!line_.failed()) scope_.schedule.works.back().kernels.push_back(kernel);
  }

  std::int64_t default_flops(const Kernel& kernel) {
    std::int64_t flops = kernel.kind == Kernel::Kind::MatMul ? 2 : 0;
    for (std::int64_t factor : {kernel.batch, kernel.m, kernel.n, kernel.k}) {
      if (!__builtin_mul_overflow(flops, factor, &flops) && flops <= kMaxCount) continue;
      line_.fail(line_.peek(), "NUMBER", "the matmul is too large: 2*batch*m*n*k passes 2^60");
      return 0;
    }
    return flops;
  }

  void read_program_line() {
    section_ = Section::Program;
    read_program(scope_, line_);
  }
  void read_lane_line() {
    if (require(Section::Program, "a lane belongs below a program line")) read_lane(scope_, line_);
  }
  void read_buffer_line() {
    if (require(Section::Program, "a buffer belongs below a program line")) read_buffer(scope_, line_);
  }

  std::string_view text_;
  LineCursor line_;
  TextScope scope_;
  Section section_ = Section::Start;
};

const ScheduleReader::Declaration ScheduleReader::kTable[kDeclarations] = {
    {"mesh", &ScheduleReader::read_mesh},         {"names", &ScheduleReader::read_names},
    {"constant", &ScheduleReader::read_constant},
    {"comm", &ScheduleReader::read_communicator}, {"layout", &ScheduleReader::read_layout},
    {"tensor", &ScheduleReader::read_tensor},     {"work", &ScheduleReader::read_work},
    {"matmul", &ScheduleReader::read_matmul},     {"attention", &ScheduleReader::read_attention},
    {"stream", &ScheduleReader::read_stream},     {"program", &ScheduleReader::read_program_line},
    {"lane", &ScheduleReader::read_lane_line},    {"buffer", &ScheduleReader::read_buffer_line},
};

}  // namespace

Schedule parse_schedule(std::string_view text, const std::string& file) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // byte order mark
  return ScheduleReader(text, file).read();
}

}  // namespace steptwin
