// A checkpoint folder: checkpoint.json {"format": 1, "steps": N, "folder": "NAME", "files": [..]} names the one complete generation of
// safetensors files beside it. A new generation is written into a folder of its own; renaming checkpoint.json makes it the one that counts,
// then the old one is removed. So whoever is killed at any moment leaves the old checkpoint or the new one, never a mixture.
// Tensor names: the model's ("layers.0.attn.qkv.weight"), with ".master", ".m", ".v" for the optimizer's; whole tensors, whatever the mesh.
// Complaints are EnvironmentErrors (Kind::File).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/safetensors.h"

namespace steptwin {

class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::string folder);
  ~CheckpointWriter();  // removes what was not committed
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  void add_file(const std::string& name, const std::map<std::string, TensorData>& tensors);
  void commit(std::int64_t steps);

 private:
  std::string folder_, generation_;
  std::vector<std::string> files_;
  bool committed_ = false;
};

class CheckpointReader {
 public:
  explicit CheckpointReader(std::string folder);
  std::int64_t steps() const { return steps_; }  // of training so far
  const std::string& folder() const { return folder_; }
  std::optional<SavedTensor> find(const std::string& name) const;
  void read(const std::string& name, std::int64_t first_byte, std::span<std::byte> to) const;

 private:
  std::string folder_;
  std::int64_t steps_ = 0;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t> file_of_;
};

}  // namespace steptwin
