// What a measured time belongs to: texts and sizes that whoever measures an op and whoever looks its time up derive alike. Equal texts mean
// equal shapes; they contain no ids of the schedule.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "schedule/ir/schedule.h"

namespace steptwin {

const char* name_of(Kernel::Kind kind);  // "matmul", "attention", "stream"; also in the text form

// "matmul fp32 1 256 768 256 100663296 1311744": kind, type, batch, m, n, k, flops, bytes.
std::string kernel_text(const Kernel& kernel);
std::vector<std::string> kernel_texts(const Work& work);
// The kernels without their sizes: "matmul fp32, stream fp32". Works of one family differ in size only.
std::string kernel_family(const std::vector<std::string>& kernel_texts);

// "message" for Send and Recv, else kind_name.
std::string transfer_kind(const OpBody& body);
// The element type where the op calculates with it (all-reduce, reduce-scatter); else none.
std::optional<DType> calculated_type(const OpBody& body);

// The spaces of a Copy's first read and first written access; `written` follows from the cast.
struct CopyPath {
  Space from = Space::Device, to = Space::Device;
  Bytes read, written;
};
CopyPath copy_path(const Schedule& schedule, const Program& program, OpId op);
std::optional<std::pair<DType, DType>> cast_of(const Copy& copy);

}  // namespace steptwin
