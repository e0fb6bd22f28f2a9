// Runs a one-rank schedule op by op on plain host memory: no lanes, no pools, no backend. What is tested is run_compute alone.
// Every buffer has memory of its own, filled with 0xff before a step (NaN in every float type) unless it carries over.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "exec/backend.h"
#include "exec/cpu/data_loader.h"
#include "exec/ops/compute.h"
#include "schedule/compile.h"
#include "schedule/scenario.h"

namespace steptwin::test {

class OneRank {
 public:
  OneRank(const Schedule& schedule, const ExecuteOptions& options)
      : schedule_(schedule), options_(options), program_(schedule.programs.at(0)) {
    for (const Buffer& buffer : program_.buffers) memory_.emplace_back(static_cast<std::size_t>(buffer.bytes.value), std::byte{0xff});
    for (std::size_t b = 0; b < memory_.size(); ++b) initialise(program_.buffers[b], memory_[b]);
  }

  // One training step (from 0); returns the mean loss.
  double step(std::int64_t number) {
    load(number);
    const DataShape shape = data_shape(schedule_);
    const StepContext context{1.0 / static_cast<double>(shape.micro_batches * shape.data_parallel), number + 1};
    double loss = 0;
    for (std::uint32_t i = 0; i < program_.op_count; ++i) {
      const OpId op(program_.first_op.value + i);
      run(op, context);
      if (schedule_.ops[op.value].label.phase == Phase::Forward) loss += loss_of(op);
    }
    return loss / static_cast<double>(shape.micro_batches);
  }

  std::vector<BoundAccess> bind(OpId op) {
    std::vector<BoundAccess> bound;
    for (const Access& access : schedule_.accesses_of(op)) {
      const Buffer& buffer = program_.buffers[access.buffer.value];
      const ByteRange range = byte_range(buffer, schedule_, access.part, 0, 1);
      const Layout* layout = buffer.layout.valid() ? &schedule_.layouts[buffer.layout.value] : nullptr;
      bound.push_back({memory_[access.buffer.value].data() + range.first, range.size, layout, access.part, access.mode, buffer.category});
    }
    return bound;
  }
  void run(OpId op, const StepContext& context) { run_compute(schedule_, program_, op, bind(op), context); }
  std::vector<std::byte>& memory(BufferId buffer) { return memory_[buffer.value]; }

  // Bytes and values of the tensors of one category, by name.
  std::map<std::string, std::vector<std::byte>> bytes_of(Category category) const {
    std::map<std::string, std::vector<std::byte>> found;
    for_each_tensor(category, [&](const TensorSpec& t, const std::byte* data) { found[t.name].assign(data, data + t.bytes().value); });
    return found;
  }
  NamedValues values_of(Category category) const {
    NamedValues found;
    for_each_tensor(category, [&](const TensorSpec& t, const std::byte* data) {
      const std::int64_t elements = t.bytes().value / size_of(t.dtype);
      auto& values = found[t.name];
      values.resize(static_cast<std::size_t>(elements));
      convert(reinterpret_cast<std::byte*>(values.data()), DType::Fp32, data, t.dtype, elements);
    });
    return found;
  }

 private:
  template <class Function>
  void for_each_tensor(Category category, Function function) const {
    for (std::size_t b = 0; b < memory_.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      if (buffer.category != category || !buffer.resident || !buffer.layout.valid()) continue;
      for (const TensorSpec& tensor : schedule_.layouts[buffer.layout.value].tensors)
        function(tensor, memory_[b].data() + tensor.offset.value);
    }
  }

  void initialise(const Buffer& buffer, std::vector<std::byte>& memory) {
    if (!buffer.resident || !buffer.layout.valid()) return;
    const bool master = schedule_.name(buffer.name).ends_with(".master");
    if (buffer.category == Category::Optimizer && !master) std::fill(memory.begin(), memory.end(), std::byte{0});
    if (buffer.category != Category::Param && !master) return;
    for (const TensorSpec& tensor : schedule_.layouts[buffer.layout.value].tensors)
      initialise_parameter(drawn_as(schedule_, tensor.name), tensor, memory.data() + tensor.offset.value, options_.seed);
  }

  void load(std::int64_t number) {
    const DataLoader loader(options_.text, data_shape(schedule_), options_.seed);
    for (std::size_t b = 0; b < memory_.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      if (buffer.category == Category::Gradient || !buffer.resident) std::fill(memory_[b].begin(), memory_[b].end(), std::byte{0xff});
      if (buffer.category != Category::Input) continue;
      const Ids which = schedule_.name(buffer.name) == "tokens" ? Ids::Tokens : Ids::Targets;
      loader.fill_step(number, 0, which, reinterpret_cast<std::int64_t*>(memory_[b].data()));
    }
  }

  double loss_of(OpId op) {
    for (const BoundAccess& access : bind(op)) {
      if (access.layout == nullptr || access.layout->name != "loss") continue;
      float loss = 0;
      std::memcpy(&loss, access.data, sizeof loss);
      return loss;
    }
    return 0;
  }

  const Schedule& schedule_;
  const ExecuteOptions& options_;
  const Program& program_;
  std::vector<std::vector<std::byte>> memory_;
};

}  // namespace steptwin::test
