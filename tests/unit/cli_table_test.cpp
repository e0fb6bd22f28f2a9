// One table, five formats; values as stored (specs/ux.md 2.5).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/table.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

// What `print` writes, through a real pipe (small texts only).
template <class Print>
std::string written(Print print) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  Output out(ends[1], "pipe");
  print(out);
  out.flush();
  ::close(ends[1]);
  std::string text(1 << 16, 0);
  const ssize_t size = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

Table sample() {
  return {{"id", "name", "x"},
          {{number_cell(1), text_cell("a,b"), real_cell(0.1)}, {number_cell(12), text_cell("say \"hi\"\nto|you"), Table::Cell{}}}};
}

std::string in(Format format, const Table& table) {
  return written([&](Output& out) { print_table(out, table, format, "steptwin.test/1"); });
}

TEST(Table, HumanAlignsNumbersRight) {
  EXPECT_EQ(in(Format::Table, sample()), "id  name                x\n 1  a,b               0.1\n12  say \"hi\"\\nto|you\n");
}

TEST(Table, CsvQuotesWhatNeedsIt) { EXPECT_EQ(in(Format::Csv, sample()), "id,name,x\n1,\"a,b\",0.1\n12,\"say \"\"hi\"\"\nto|you\",\n"); }

TEST(Table, JsonHasASchemaAndTypedValues) {
  const auto json = nlohmann::json::parse(in(Format::Json, sample()));
  EXPECT_EQ(json["schema"], "steptwin.test/1");
  EXPECT_EQ(json["rows"][0]["id"], 1);
  EXPECT_EQ(json["rows"][0]["x"], 0.1);
  EXPECT_TRUE(json["rows"][1]["x"].is_null());
}

TEST(Table, JsonOfNoRowsParses) {
  EXPECT_TRUE(nlohmann::json::parse(in(Format::Json, {{"a"}, {}}))["rows"].empty());
  EXPECT_EQ(in(Format::Jsonl, {{"a"}, {}}), "");
}

TEST(Table, EqualColumnNamesHideNothing) {
  const Table twice{{"a", "a"}, {{number_cell(1), number_cell(2)}}};
  EXPECT_EQ(in(Format::Jsonl, twice), "{\"a\":1,\"a_2\":2}\n");
}

TEST(Table, BytesThatAreNoTextDoNotBreakJson) {
  const Table odd{{"a"}, {{text_cell("\xff\xfe")}}};
  EXPECT_TRUE(nlohmann::json::accept(in(Format::Json, odd)));
}

TEST(Table, MarkdownEscapesBars) { EXPECT_THAT(in(Format::Md, sample()), testing::HasSubstr("to\\|you")); }

TEST(Output, AReaderThatLeftIsQuiet) {
  ::signal(SIGPIPE, SIG_IGN);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  ::close(ends[0]);
  Output out(ends[1], "pipe");
  out.write("x");
  EXPECT_NO_THROW(out.flush());
  EXPECT_TRUE(out.closed());
  ::close(ends[1]);
}

TEST(Output, AFullDeviceIsAnError) {
  FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  Output out(::fileno(full), "standard output");
  out.write("x");
  try {
    out.flush();
    FAIL() << "no exception";
  } catch (const EnvironmentError& error) {
    EXPECT_STREQ(error.what(), "cannot write standard output: No space left on device");
  }
  EXPECT_NO_THROW(out.flush());  // said once
  std::fclose(full);
}

}  // namespace
}  // namespace steptwin
