// The safetensors format and the checkpoint folder (exec/safetensors.h, exec/checkpoint.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "exec/checkpoint.h"
#include "exec/safetensors.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  Files() : folder_(fs::temp_directory_path() / ("steptwin-safetensors-" + std::to_string(::getpid()))) { fs::create_directories(folder_); }
  ~Files() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& header, const std::string& data) const {
    std::ofstream file(path(name), std::ios::binary);
    const std::uint64_t length = header.size();
    file.write(reinterpret_cast<const char*>(&length), 8);
    file << header << data;
  }
  std::string complaint(const std::string& name) const {
    try {
      const SafetensorsFile file(path(name));
    } catch (const EnvironmentError& e) {
      return e.what();
    }
    return "";
  }

 private:
  fs::path folder_;
};

TensorData tensor(DType dtype, std::vector<std::int64_t> shape, const std::string& bytes) {
  TensorData data{{dtype, std::move(shape)}, std::vector<std::byte>(bytes.size())};
  std::memcpy(data.bytes.data(), bytes.data(), bytes.size());
  return data;
}

std::string text_of(const SafetensorsFile& file, const std::string& name, std::int64_t first, std::size_t bytes) {
  std::string text(bytes, '\0');
  file.read(name, first, std::as_writable_bytes(std::span(text.data(), text.size())));
  return text;
}

TEST_F(Files, what_is_written_is_read_again) {
  const std::int64_t size = write_safetensors(path("a"), {{"b", tensor(DType::Bf16, {3}, "abcdef")},
                                                          {"a", tensor(DType::Fp32, {2, 1}, "01234567")},
                                                          {"empty", tensor(DType::Uint8, {0}, "")}});
  EXPECT_EQ(size, static_cast<std::int64_t>(fs::file_size(path("a"))));
  const SafetensorsFile file(path("a"));
  EXPECT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors().at("a").shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(file.tensors().at("b").dtype, DType::Bf16);
  EXPECT_EQ(text_of(file, "a", 0, 8), "01234567");
  EXPECT_EQ(text_of(file, "b", 2, 3), "cde");
}

// As the format's description has it: length, header, data.
TEST_F(Files, a_file_of_another_writer_is_read) {
  write(
      "b",
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F16","shape":[2],"data_offsets":[1,5]},
 "u":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
      "xabcd");
  const SafetensorsFile file(path("b"));
  EXPECT_EQ(text_of(file, "w", 0, 4), "abcd");
  EXPECT_EQ(text_of(file, "u", 0, 1), "x");
}

TEST_F(Files, broken_files_are_refused_by_name) {
  write("c", "{}", "");
  fs::resize_file(path("c"), 5);
  EXPECT_THAT(complaint("c"), testing::HasSubstr("too short"));
  write("d", R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234567");
  EXPECT_THAT(complaint("d"), testing::AllOf(testing::HasSubstr("tensor w"), testing::HasSubstr("the file holds 7")));
  write("e", R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "12345678");
  EXPECT_THAT(complaint("e"), testing::HasSubstr("its shape needs 8"));
  write("f", R"({"w":{"dtype":"F8","shape":[2],"data_offsets":[0,2]}})", "12");
  EXPECT_THAT(complaint("f"), testing::HasSubstr("type \"F8\""));
  write("g", R"({"w":{"dtype":"F32","shape":[9223372036854775807,9],"data_offsets":[0,2]}})", "12");
  EXPECT_THAT(complaint("g"), testing::HasSubstr("impossible shape"));
  write("h", "[1]", "");
  EXPECT_THAT(complaint("h"), testing::HasSubstr("no JSON object"));
  write("i", R"({"w":{"shape":[2]}})", "");
  EXPECT_THAT(complaint("i"), testing::HasSubstr("broken"));
  EXPECT_THAT(complaint("missing"), testing::HasSubstr("No such file"));
  std::ofstream(path("j"), std::ios::binary) << "\xff\xff\xff\xff\xff\xff\xff\x7f{}";
  EXPECT_THAT(complaint("j"), testing::HasSubstr("does not fit"));
}

TEST_F(Files, an_uncommitted_checkpoint_leaves_the_old_one_and_nothing_else) {
  {
    CheckpointWriter writer(path("state"));
    writer.add_file("one", {{"a", tensor(DType::Uint8, {3}, "old")}});
    writer.commit(7);
  }
  {
    CheckpointWriter writer(path("state"));
    writer.add_file("one", {{"a", tensor(DType::Uint8, {3}, "new")}});
  }
  const CheckpointReader reader(path("state"));
  EXPECT_EQ(reader.steps(), 7);
  std::string text(3, '\0');
  reader.read("a", 0, std::as_writable_bytes(std::span(text.data(), text.size())));
  EXPECT_EQ(text, "old");
  EXPECT_FALSE(reader.find("b"));
  EXPECT_EQ(std::distance(fs::directory_iterator(path("state")), fs::directory_iterator()), 2) << "the index and one generation";
}

}  // namespace
}  // namespace steptwin
