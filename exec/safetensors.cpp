#include "exec/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

using Json = nlohmann::json;  // sorted keys

constexpr std::int64_t kLargestHeader = 100'000'000;  // of the format's own reader

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
  throw EnvironmentError(EnvironmentError::Kind::File, fmt::format("{}: {}", path, problem));
}
[[noreturn]] void fail_with_errno(const std::string& path) { fail(path, std::strerror(errno)); }

constexpr std::pair<DType, const char*> kTypes[] = {{DType::Fp32, "F32"},  {DType::Bf16, "BF16"}, {DType::Fp16, "F16"},
                                                    {DType::Int64, "I64"}, {DType::Int32, "I32"}, {DType::Uint8, "U8"}};

const char* type_word(DType dtype) {
  return std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& row) { return row.first == dtype; })->second;
}
std::optional<DType> type_of(const std::string& word) {
  for (const auto& [dtype, name] : kTypes)
    if (word == name) return dtype;
  return std::nullopt;
}

void write_all(int descriptor, const void* data, std::size_t size, const std::string& path) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(descriptor, at, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with_errno(path);
    at += written, size -= static_cast<std::size_t>(written);
  }
}

void read_all(int descriptor, void* data, std::size_t size, std::int64_t from, const std::string& path) {
  char* to = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::pread(descriptor, to, size, from);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with_errno(path);
    if (got == 0) fail(path, "it ends in the middle of a tensor");
    to += got, from += got, size -= static_cast<std::size_t>(got);
  }
}

std::string header_of(const std::map<std::string, TensorData>& tensors) {
  Json header = Json::object();
  std::int64_t at = 0;
  for (const auto& [name, data] : tensors) {
    const std::int64_t end = at + static_cast<std::int64_t>(data.bytes.size());
    header[name] = {{"dtype", type_word(data.tensor.dtype)}, {"shape", data.tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : value(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (value < 0) fail_with_errno(path);
  }
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value;
};

std::string read_header(int descriptor, std::int64_t file_size, const std::string& path) {
  std::uint64_t length = 0;
  if (file_size < static_cast<std::int64_t>(sizeof length)) fail(path, "too short for a safetensors file");
  read_all(descriptor, &length, sizeof length, 0, path);
  if (length > kLargestHeader || static_cast<std::int64_t>(length) > file_size - 8) fail(path, "its header does not fit into the file");
  std::string text(length, '\0');
  read_all(descriptor, text.data(), text.size(), 8, path);
  return text;
}

struct Entry {
  SavedTensor tensor;
  std::int64_t begin = 0;
};

Entry entry_of(const std::string& name, const Json& json, std::int64_t data_size, const std::string& path) {
  Entry entry;
  std::int64_t end = 0;
  try {
    const std::optional<DType> dtype = type_of(json.at("dtype").get<std::string>());
    if (!dtype) fail(path, fmt::format("tensor {} has type {}, which steptwin does not know", name, json.at("dtype").dump()));
    entry.tensor = {*dtype, json.at("shape").get<std::vector<std::int64_t>>()};
    const auto offsets = json.at("data_offsets").get<std::vector<std::int64_t>>();
    entry.begin = offsets.at(0), end = offsets.at(1);
  } catch (const EnvironmentError&) {
    throw;
  } catch (const std::exception&) {
    fail(path, fmt::format("the entry of tensor {} is broken", name));
  }
  std::int64_t bytes = size_of(entry.tensor.dtype);
  for (const std::int64_t extent : entry.tensor.shape)
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) fail(path, fmt::format("tensor {} has an impossible shape", name));
  if (entry.begin < 0 || end > data_size || end - entry.begin != bytes)
    fail(path,
         fmt::format("tensor {} has bytes {} to {}, its shape needs {}; the file holds {}", name, entry.begin, end, bytes, data_size));
  return entry;
}

}  // namespace

std::int64_t SavedTensor::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

std::int64_t write_safetensors(const std::string& path, const std::map<std::string, TensorData>& tensors) {
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  const std::string header = header_of(tensors);
  const std::uint64_t length = header.size();
  std::int64_t size = static_cast<std::int64_t>(8 + length);
  write_all(file.value, &length, sizeof length, path);
  write_all(file.value, header.data(), header.size(), path);
  for (const auto& [name, data] : tensors) {
    write_all(file.value, data.bytes.data(), data.bytes.size(), path);
    size += static_cast<std::int64_t>(data.bytes.size());
  }
  if (::fsync(file.value) != 0) fail_with_errno(path);
  return size;
}

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)) {
  Descriptor file(path_, O_RDONLY);
  struct stat status {};
  if (::fstat(file.value, &status) != 0) fail_with_errno(path_);
  const std::string text = read_header(file.value, status.st_size, path_);
  const Json header = Json::parse(text, nullptr, false);
  if (!header.is_object()) fail(path_, "its header is no JSON object");
  data_ = static_cast<std::int64_t>(8 + text.size());
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__") continue;
    Entry entry = entry_of(name, json, status.st_size - data_, path_);
    begins_[name] = entry.begin;
    tensors_[name] = std::move(entry.tensor);
  }
  descriptor_ = std::exchange(file.value, -1);
}

SafetensorsFile::~SafetensorsFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      data_(other.data_),
      tensors_(std::move(other.tensors_)),
      begins_(std::move(other.begins_)) {}

void SafetensorsFile::read(const std::string& name, std::int64_t first, std::span<std::byte> to) const {
  const auto tensor = tensors_.find(name);
  invariant(tensor != tensors_.end() && first >= 0 && first + static_cast<std::int64_t>(to.size()) <= tensor->second.bytes(),
            "bytes of a tensor of the file");
  read_all(descriptor_, to.data(), to.size(), data_ + begins_.at(name) + first, path_);
}

}  // namespace steptwin
