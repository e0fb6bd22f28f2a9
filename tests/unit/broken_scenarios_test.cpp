// tests/golden/broken: NN_NAME.json is a broken scenario, NN_NAME.expected what is said about it, NN_NAME.fix the remedy (text to replace,
// a line of four dashes, replacement) after which it must load. STEPTWIN_UPDATE_GOLDENS=1 rewrites the expected texts: read the diff.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "schedule/base/error.h"
#include "schedule/json/json_reader.h"
#include "schedule/scenario.h"

namespace steptwin {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> broken_files() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(TEST_DIR "/golden/broken")) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string golden(const std::string& name, const char* ending) { return std::string(TEST_DIR "/golden/broken/") + name + ending; }

// Problems as printed, with paths relative to the folder.
std::string complaints(const std::string& name, std::vector<Diagnostic>& problems) {
  const fs::path before = fs::current_path();
  fs::current_path(TEST_DIR "/golden/broken");
  try {
    load_scenario(name + ".json");
  } catch (const InputError& e) {
    problems = e.problems();
  }
  fs::current_path(before);
  std::string out;
  for (const Diagnostic& d : problems) out += format_diagnostic(d) + "\n";
  return out;
}

class BrokenScenario : public ::testing::TestWithParam<std::string> {};

TEST_P(BrokenScenario, SaysWhereWhatAndWhatToDo) {
  std::vector<Diagnostic> problems;
  const std::string actual = complaints(GetParam(), problems);
  ASSERT_FALSE(problems.empty()) << "accepted";
  for (const Diagnostic& d : problems) {
    EXPECT_EQ(d.severity, Severity::Error);
    EXPECT_GT(d.place.line, 0) << d.text;
    EXPECT_GT(d.place.column, 0) << d.text;
    EXPECT_FALSE(d.help.empty()) << d.text;
    EXPECT_FALSE(d.code.empty()) << d.text;
  }
  const std::string expected_file = golden(GetParam(), ".expected");
  if (std::getenv("STEPTWIN_UPDATE_GOLDENS") != nullptr) std::ofstream(expected_file) << actual;
  EXPECT_EQ(actual, read_text_file(expected_file));
}

TEST_P(BrokenScenario, IsWholeAfterTheRemedy) {
  std::string text = read_text_file(golden(GetParam(), ".json"));
  const std::string fix = read_text_file(golden(GetParam(), ".fix"));
  const std::string divider = "\n----\n";
  const std::size_t at = fix.find(divider);
  ASSERT_NE(at, std::string::npos);
  const std::string bad = fix.substr(0, at);
  const std::size_t place = text.find(bad);
  ASSERT_NE(place, std::string::npos);
  text.replace(place, bad.size(), fix.substr(at + divider.size()));
  try {
    parse_scenario(text, "fixed.json");
  } catch (const InputError& e) {
    FAIL() << format_diagnostic(e.problems().front());
  }
}

INSTANTIATE_TEST_SUITE_P(All, BrokenScenario, ::testing::ValuesIn(broken_files()), [](const auto& param) { return "n" + param.param; });

TEST(BrokenScenarios, AreAtLeast25) { EXPECT_GE(broken_files().size(), 25u); }

}  // namespace
}  // namespace steptwin
