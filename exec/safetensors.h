// The safetensors file format (huggingface/safetensors): 8 bytes little-endian length of a JSON header, the header {"NAME": {"dtype":
// "F32", "shape": [..], "data_offsets": [begin, end]}, "__metadata__": {..}}, then the bytes of all tensors without gaps. Little-endian
// hosts only. Complaints are EnvironmentErrors (Kind::File) that name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "schedule/base/dtype.h"

namespace steptwin {

struct SavedTensor {
  DType dtype = DType::Fp32;
  std::vector<std::int64_t> shape;
  std::int64_t elements() const;
  std::int64_t bytes() const { return elements() * size_of(dtype); }
};

struct TensorData {
  SavedTensor tensor;
  std::vector<std::byte> bytes;
};

// Writes the file, flushes it to the disk and gives its length. Names in ascending order.
std::int64_t write_safetensors(const std::string& path, const std::map<std::string, TensorData>& tensors);

// An open file. Its header is checked: types known, offsets inside the file, sizes those of the shapes.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;
  const std::map<std::string, SavedTensor>& tensors() const { return tensors_; }
  // Bytes [first, first + to.size()) of a tensor of the file.
  void read(const std::string& name, std::int64_t first, std::span<std::byte> to) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::int64_t data_ = 0;
  std::map<std::string, SavedTensor> tensors_;
  std::map<std::string, std::int64_t> begins_;
};

}  // namespace steptwin
