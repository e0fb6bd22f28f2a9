#include "exec/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kIndex = "checkpoint.json";
constexpr const char* kGeneration = "generation-";

[[noreturn]] void fail(const std::string& path, const std::string& problem, const std::string& help = {}) {
  throw EnvironmentError(EnvironmentError::Kind::File, fmt::format("{}: {}", path, problem), help);
}

// Renames and new files of a folder are on the disk only when the folder is.
void flush_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(path, std::strerror(errno));
  const bool flushed = ::fsync(descriptor) == 0 || errno == EINVAL;  // EINVAL: a file system without it
  ::close(descriptor);
  if (!flushed) fail(path, std::strerror(errno));
}

void write_index(const std::string& path, const std::string& text) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) fail(path, std::strerror(errno));
  const bool written = ::write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(descriptor) == 0;
  ::close(descriptor);
  if (!written) fail(path, std::strerror(errno));
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail(folder_, error.message());
  for (int number = 0; generation_.empty(); ++number) {  // a name that no other writer has
    const std::string name = fmt::format("{}{}-{}", kGeneration, ::getpid(), number);
    if (fs::create_directory(fs::path(folder_) / name, error)) generation_ = name;
    if (error) fail(folder_, error.message());
  }
}

CheckpointWriter::~CheckpointWriter() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(fs::path(folder_) / generation_, ignored);
}

void CheckpointWriter::add_file(const std::string& name, const std::map<std::string, TensorData>& tensors) {
  files_.push_back(name + ".safetensors");
  write_safetensors((fs::path(folder_) / generation_ / files_.back()).string(), tensors);
}

void CheckpointWriter::commit(std::int64_t steps) {
  const fs::path folder(folder_), fresh = folder / (generation_ + ".json");
  flush_folder((folder / generation_).string());
  write_index(fresh.string(), Json{{"format", 1}, {"steps", steps}, {"folder", generation_}, {"files", files_}}.dump(1) + "\n");
  std::error_code error;
  fs::rename(fresh, folder / kIndex, error);
  if (error) fail(folder_, error.message());
  committed_ = true;
  flush_folder(folder_);
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kGeneration) && name != generation_) fs::remove_all(entry.path(), error);
  }
}

CheckpointReader::CheckpointReader(std::string folder) : folder_(std::move(folder)) {
  const std::string index = (fs::path(folder_) / kIndex).string();
  std::ifstream file(index);
  if (!file) fail(folder_, "it holds no checkpoint.json, so no complete checkpoint", "name the folder that --save was given");
  const Json json = Json::parse(file, nullptr, false);
  try {
    if (json.at("format").get<int>() != 1) fail(index, "its format is not 1", "read it with the version of steptwin that wrote it");
    steps_ = json.at("steps").get<std::int64_t>();
    const fs::path generation = fs::path(folder_) / json.at("folder").get<std::string>();
    for (const auto& name : json.at("files")) files_.emplace_back((generation / name.get<std::string>()).string());
  } catch (const nlohmann::json::exception&) {
    fail(index, "it is no index of a checkpoint");
  }
  if (steps_ < 0) fail(index, "it counts fewer than no steps");
  for (std::size_t f = 0; f < files_.size(); ++f)
    for (const auto& [name, tensor] : files_[f].tensors()) file_of_[name] = f;
}

std::optional<SavedTensor> CheckpointReader::find(const std::string& name) const {
  const auto file = file_of_.find(name);
  if (file == file_of_.end()) return std::nullopt;
  return files_[file->second].tensors().at(name);
}

void CheckpointReader::read(const std::string& name, std::int64_t first_byte, std::span<std::byte> to) const {
  files_[file_of_.at(name)].read(name, first_byte, to);
}

}  // namespace steptwin
