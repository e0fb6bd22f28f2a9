#include "exec/cpu/state_files.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "exec/checkpoint.h"
#include "exec/ops/compute.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

// A piece of a saved tensor in the memory of a rank.
struct Piece {
  std::uint32_t rank = 0;
  std::byte* data = nullptr;
  std::int64_t first_byte = 0, bytes = 0;  // of the tensor
};

struct Stored {
  SavedTensor tensor;
  std::vector<Piece> pieces;  // by rank
};

// "layers.3" of "layers.3.attn.qkv.weight.m"; "embed", "head".
std::string unit_of(const std::string& name) {
  const std::size_t first = name.find('.');
  return name.substr(0, name.starts_with("layers.") ? name.find('.', first + 1) : first);
}

// ".m" of a buffer "layers.3.m"; nothing for parameters.
std::string ending_of(const Schedule& schedule, const Buffer& buffer) {
  if (buffer.category == Category::Param) return {};
  const std::string_view name = schedule.name(buffer.name);
  return std::string(name.substr(name.rfind('.')));
}

// Everything that is saved, by name.
std::map<std::string, Stored> catalogue(const Schedule& schedule, const Matching& matching, const std::vector<RankMemory>& memories) {
  std::map<std::string, Stored> all;
  const HeldRanges ranges(schedule, matching);
  for (std::uint32_t r = 0; r < memories.size(); ++r) {
    const Program& program = schedule.programs[matching.tables[matching.ranks[r].tables].program.value];
    for (std::uint32_t b = 0; b < program.buffers.size(); ++b) {
      const Buffer& buffer = program.buffers[b];
      const bool state = buffer.category == Category::Param || (buffer.category == Category::Optimizer && buffer.name.valid());
      if (memories[r].resident(b) == nullptr || !buffer.layout.valid() || !state) continue;
      const Layout& layout = schedule.layouts[buffer.layout.value];
      for (const TensorPiece& piece : tensor_pieces(layout, ranges.of(r, buffer, {}))) {
        const TensorSpec& tensor = layout.tensors[piece.tensor];
        Stored& stored = all[drawn_as(schedule, tensor.name) + ending_of(schedule, buffer)];
        stored.tensor = {tensor.dtype, tensor.shape};
        const std::int64_t size = size_of(tensor.dtype);
        stored.pieces.push_back({r, memories[r].resident(b) + piece.at, piece.first_element * size, piece.elements * size});
      }
    }
  }
  return all;
}

// Of pieces that several ranks hold, the lowest rank's.
TensorData gather(const Stored& stored, const std::vector<RankMemory>& memories) {
  TensorData data{stored.tensor, std::vector<std::byte>(static_cast<std::size_t>(stored.tensor.bytes()))};
  std::set<std::int64_t> seen;
  std::int64_t bytes = 0;
  for (const Piece& piece : stored.pieces) {
    if (!seen.insert(piece.first_byte).second) continue;
    memories[piece.rank].source().read(data.bytes.data() + piece.first_byte, piece.data, piece.bytes);
    bytes += piece.bytes;
  }
  invariant(bytes == stored.tensor.bytes(), "the ranks hold every tensor in full");
  return data;
}

std::string shape_text(const SavedTensor& tensor) { return fmt::format("{} [{}]", name_of(tensor.dtype), fmt::join(tensor.shape, ", ")); }

void check(const CheckpointReader& reader, const std::string& name, const SavedTensor& wanted) {
  const std::optional<SavedTensor> saved = reader.find(name);
  if (!saved)
    throw EnvironmentError(EnvironmentError::Kind::File, fmt::format("the checkpoint {} has no tensor {}", reader.folder(), name),
                           "it was saved from another model, optimizer or master type");
  if (saved->dtype != wanted.dtype || saved->shape != wanted.shape)
    throw EnvironmentError(EnvironmentError::Kind::File,
                           fmt::format("tensor {} of the checkpoint {} is {}, the scenario needs {}", name, reader.folder(),
                                       shape_text(*saved), shape_text(wanted)),
                           "load it with the model and precision it was saved with");
}

}  // namespace

void save_state(const Schedule& schedule, const Matching& matching, const std::vector<RankMemory>& memories, const std::string& folder,
                std::int64_t steps) {
  CheckpointWriter writer(folder);
  const auto all = catalogue(schedule, matching, memories);
  std::map<std::string, TensorData> unit;
  for (auto it = all.begin(); it != all.end();) {
    const std::string name = unit_of(it->first);
    unit.emplace(it->first, gather(it->second, memories));
    if (++it != all.end() && unit_of(it->first) == name) continue;
    writer.add_file(name, unit);
    unit.clear();
  }
  writer.commit(steps);
}

std::int64_t load_state(const Schedule& schedule, const Matching& matching, const std::vector<RankMemory>& memories,
                        const std::string& folder) {
  const CheckpointReader reader(folder);
  for (const auto& [name, stored] : catalogue(schedule, matching, memories)) {
    check(reader, name, stored.tensor);
    for (const Piece& piece : stored.pieces) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(piece.bytes));
      reader.read(name, piece.first_byte, bytes);
      memories[piece.rank].source().write(piece.data, bytes.data(), piece.bytes);
    }
  }
  return reader.steps();
}

}  // namespace steptwin
