#include "schedule/ir/op_key.h"

#include <fmt/format.h>

namespace steptwin {

const char* name_of(Kernel::Kind kind) {
  switch (kind) {
    case Kernel::Kind::MatMul:
      return "matmul";
    case Kernel::Kind::Attention:
      return "attention";
    case Kernel::Kind::Stream:
      return "stream";
  }
  return "?";
}

std::string kernel_text(const Kernel& k) {
  return fmt::format("{} {} {} {} {} {} {} {}", name_of(k.kind), name_of(k.dtype), k.batch, k.m, k.n, k.k, k.flops.value, k.bytes.value);
}

std::vector<std::string> kernel_texts(const Work& work) {
  std::vector<std::string> texts;
  for (const Kernel& kernel : work.kernels) texts.push_back(kernel_text(kernel));
  return texts;
}

std::string kernel_family(const std::vector<std::string>& texts) {
  std::string family;
  for (const std::string& text : texts) {
    const std::size_t first = text.find(' ');
    family += (family.empty() ? "" : ", ") + text.substr(0, first == std::string::npos ? first : text.find(' ', first + 1));
  }
  return family;
}

std::string transfer_kind(const OpBody& body) { return is_point_to_point(body) ? "message" : kind_name(body); }

std::optional<DType> calculated_type(const OpBody& body) {
  if (const auto* op = std::get_if<AllReduce>(&body)) return op->dtype;
  if (const auto* op = std::get_if<ReduceScatter>(&body)) return op->dtype;
  return std::nullopt;
}

CopyPath copy_path(const Schedule& schedule, const Program& program, OpId id) {
  const Copy& copy = std::get<Copy>(schedule.ops[id.value].body);
  CopyPath path;
  path.read = copy.bytes;
  path.written = Bytes(copy.bytes.value / size_of(copy.from) * size_of(copy.to));
  bool has_source = false, has_target = false;
  for (const Access& access : schedule.accesses_of(id)) {
    const Space space = program.buffers[access.buffer.value].space;
    if (access.mode == AccessMode::Read && !has_source) {
      path.from = space;
      has_source = true;
    } else if (access.mode == AccessMode::Write && !has_target) {
      path.to = space;
      has_target = true;
    }
  }
  return path;
}

std::optional<std::pair<DType, DType>> cast_of(const Copy& copy) {
  if (copy.from == copy.to) return std::nullopt;
  return std::pair{copy.from, copy.to};
}

}  // namespace steptwin
