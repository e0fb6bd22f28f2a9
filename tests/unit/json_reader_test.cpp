// Places, strictness and typed getters of the JSON reader (specs/ux.md 2.7, 4, 7).
#include "schedule/json/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

using ::testing::HasSubstr;

Diagnostic syntax_error(const std::string& text) {
  JsonProblems problems;
  try {
    JsonDocument::parse(text, "t.json", problems);
  } catch (const InputError& e) {
    EXPECT_EQ(e.problems().size(), 1u);
    return e.problems().front();
  }
  ADD_FAILURE() << "accepted: " << text;
  return {};
}

void expect_at(const Place& place, int line, int column, int length) {
  EXPECT_EQ(place.line, line) << place.source;
  EXPECT_EQ(place.column, column) << place.source;
  EXPECT_EQ(place.length, length) << place.source;
}

TEST(JsonReader, EveryTokenKnowsItsPlace) {
  JsonProblems problems;
  const JsonDocument doc =
      JsonDocument::parse("{\n  \"a\": {\"b\": [1, -2.5e3 , \"x\"]},\n  // note: 7\n  \"c\" : true\n}", "t.json", problems);
  EXPECT_TRUE(problems.empty());
  const JsonNode* a = doc.root().find("a");
  const JsonNode* b = a->find("b");
  ASSERT_EQ(b->items.size(), 3u);
  expect_at(place_of(b->items[0]), 2, 15, 1);
  expect_at(place_of(b->items[1]), 2, 18, 6);
  expect_at(place_of(b->items[2]), 2, 27, 3);
  expect_at(place_of(*b), 2, 14, 1);
  expect_at(key_place_of(*b), 2, 9, 3);
  expect_at(place_of(*doc.root().find("c")), 4, 9, 4);
  EXPECT_EQ(b->items[1].pointer, "/a/b/1");
  EXPECT_EQ(place_of(b->items[1]).source, "  \"a\": {\"b\": [1, -2.5e3 , \"x\"]},");
  EXPECT_EQ(b->items[1].real, -2500);
}

TEST(JsonReader, ColumnsCountCodePointsAndTheByteOrderMarkIsSkipped) {
  JsonProblems problems;
  const JsonDocument doc = JsonDocument::parse("\xEF\xBB\xBF{\"\xC3\xA4\xE2\x82\xAC\": 5}", "t.json", problems);
  expect_at(place_of(doc.root().items[0]), 1, 8, 1);
}

TEST(JsonReader, WindowsLineEndsAreNotPartOfTheLine) {
  JsonProblems problems;
  const JsonDocument doc = JsonDocument::parse("{\r\n\"a\": 1\r\n}\r\n", "t.json", problems);
  EXPECT_EQ(place_of(doc.root().items[0]).source, "\"a\": 1");
  expect_at(place_of(doc.root().items[0]), 2, 6, 1);
}

TEST(JsonReader, DuplicateKeysAreErrorsAtTheSecond) {
  JsonProblems problems;
  const JsonDocument doc = JsonDocument::parse("{\"a\": {\"x\": 1,\n \"x\": 2}, \"a\": 3}", "t.json", problems);
  ASSERT_EQ(problems.list().size(), 2u);
  EXPECT_EQ(problems.list()[0].code, "DUPLICATE-KEY");
  EXPECT_EQ(problems.list()[0].place.pointer, "/a/x");
  EXPECT_THAT(problems.list()[0].text, HasSubstr("first at 1:8"));
  expect_at(problems.list()[0].place, 2, 2, 3);
  EXPECT_EQ(problems.list()[1].place.pointer, "/a");
  EXPECT_EQ(doc.root().find("a")->find("x")->integer, 1) << "the first value is kept";
}

TEST(JsonReader, DuplicateKeysInListsHaveFullPointers) {
  JsonProblems problems;
  JsonDocument::parse("{\"l\": [0, {\"x\": 1, \"x\": 2}]}", "t.json", problems);
  ASSERT_EQ(problems.list().size(), 1u);
  EXPECT_EQ(problems.list()[0].place.pointer, "/l/1/x");
}

TEST(JsonReader, SyntaxErrorsStandAtTheToken) {
  expect_at(syntax_error("{\"a\": NaN}").place, 1, 7, 1);
  EXPECT_THAT(syntax_error("{\"a\": NaN}").help, HasSubstr("NaN"));
  EXPECT_THAT(syntax_error("{\"a\": Infinity}").help, HasSubstr("Infinity"));
  EXPECT_THAT(syntax_error("{\"a\": -Infinity}").help, HasSubstr("Infinity"));
  expect_at(syntax_error("{\"a\": 1,\n}").place, 2, 1, 1);
  EXPECT_THAT(syntax_error("{\"a\": 1,\n}").help, HasSubstr("remove the comma"));
  EXPECT_THAT(syntax_error("{\"a\": 1\n \"b\": 2}").help, HasSubstr("comma is missing"));
  expect_at(syntax_error("{\"a\": 1\n \"b\": 2}").place, 2, 2, 3);
  expect_at(syntax_error("{} x").place, 1, 4, 1);
  EXPECT_THAT(syntax_error("{} {}").help, HasSubstr("after the closing bracket"));
  EXPECT_THAT(syntax_error("{\"a\": 1").help, HasSubstr("ends too early"));
  EXPECT_THAT(syntax_error("{'a': 1}").help, HasSubstr("double quotes"));
  EXPECT_THAT(syntax_error("").help, HasSubstr("ends too early"));
  EXPECT_THAT(syntax_error("# x\n{}").help, HasSubstr("//"));
  EXPECT_EQ(syntax_error("{\"a\": \"\xFF\"}").code, "SYNTAX");
  EXPECT_EQ(syntax_error("{\"a\": 1e999}").code, "SYNTAX");
  EXPECT_EQ(syntax_error("{\"a\": 01}").code, "SYNTAX");
  EXPECT_EQ(syntax_error("{\"a\": \"x\ny\"}").place.line, 1);
}

TEST(JsonReader, DeepNestingIsRefusedNotFollowed) {
  const Diagnostic problem = syntax_error(std::string(200000, '['));
  EXPECT_EQ(problem.code, "DEPTH");
  EXPECT_EQ(problem.place.column, static_cast<int>(kMaxJsonDepth) + 1);
}

struct Read {
  JsonProblems problems;
  JsonDocument doc;
  explicit Read(const std::string& text) : doc(JsonDocument::parse(text, "t.json", problems)) {}
  JsonObject root() { return JsonObject(&doc.root(), problems); }
};

TEST(JsonReader, IntegersMayBeWrittenAsRealsButNotBeyond2To53) {
  Read r(R"({"a": 8.0, "b": 1e3, "c": 8.5, "d": 9007199254740994.0, "e": 18446744073709551615, "f": "8", "g": 9007199254740993})");
  EXPECT_EQ(r.root().integer("a"), 8);
  EXPECT_EQ(r.root().integer("b"), 1000);
  EXPECT_EQ(r.root().integer("g"), 9007199254740993);
  EXPECT_TRUE(r.problems.empty());
  EXPECT_FALSE(r.root().integer("c"));
  EXPECT_EQ(r.problems.list().back().code, "TYPE");
  EXPECT_FALSE(r.root().integer("d"));
  EXPECT_EQ(r.problems.list().back().code, "RANGE");
  EXPECT_FALSE(r.root().integer("e"));
  EXPECT_EQ(r.problems.list().back().code, "RANGE");
  EXPECT_FALSE(r.root().integer("f"));
  EXPECT_THAT(r.problems.list().back().help, HasSubstr("without quotes"));
}

TEST(JsonReader, RangesNameTheNearestAllowedValue) {
  Read r(R"({"a": 0, "b": -0.5})");
  EXPECT_FALSE(r.root().integer("a", {1, 64}));
  EXPECT_EQ(r.problems.list()[0].text, "\"a\" is 0, but must be at least 1 and at most 64");
  EXPECT_EQ(r.problems.list()[0].help, "the nearest allowed value is 1");
  EXPECT_FALSE(r.root().number("b", {0, 1e9, true}));
  EXPECT_THAT(r.problems.list()[1].text, HasSubstr("above 0"));
}

TEST(JsonReader, UnknownNamesAreMatched) {
  Read r(R"({"bandwith_gb_per_s": 1, "latency": 2, "order": "1f1", "zzz": 1})");
  r.root().only({"bandwidth_gb_per_s", "latency_us", "order"});
  ASSERT_EQ(r.problems.list().size(), 3u);
  EXPECT_THAT(r.problems.list()[0].help, HasSubstr("did you mean \"bandwidth_gb_per_s\"?"));
  EXPECT_EQ(r.problems.list()[1].code, "UNIT");
  EXPECT_EQ(r.problems.list()[1].help, "write \"latency_us\"");
  EXPECT_THAT(r.problems.list()[2].help, HasSubstr("known here: bandwidth_gb_per_s, latency_us, order"));
  EXPECT_FALSE(r.root().choice("order", {"gpipe", "1f1b"}));
  EXPECT_THAT(r.problems.list()[3].help, HasSubstr("did you mean \"1f1b\"? known: gpipe, 1f1b"));
}

TEST(JsonReader, ListsReportEachBadItem) {
  Read r(R"({"l": [1, "x", 2.5], "n": 3, "m": [0.5, 1]})");
  EXPECT_FALSE(r.root().integers("l"));
  ASSERT_EQ(r.problems.list().size(), 2u);
  EXPECT_EQ(r.problems.list()[0].place.pointer, "/l/1");
  EXPECT_EQ(r.root().numbers("n"), std::vector<double>{3});
  EXPECT_EQ(r.root().numbers("m"), (std::vector<double>{0.5, 1}));
}

TEST(JsonReader, ProblemsAreSortedAndCapped) {
  std::string text = "{";
  for (int i = 0; i < 50; ++i) text += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\": 1";
  Read r(text + "}");
  r.root().only({"other"});
  EXPECT_THROW(r.problems.throw_if_errors(), InputError);
  EXPECT_EQ(r.problems.list().size(), kMaxProblems);
}

TEST(JsonReader, FilesThatCannotBeRead) {
  JsonProblems problems;
  EXPECT_THROW(JsonDocument::read("/nonexistent/x.json", problems), EnvironmentError);
  EXPECT_THROW(JsonDocument::read("/tmp", problems), EnvironmentError);
}

// Property (specs/ux.md 7): every recorded position, re-read from the text, starts that token.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  std::string value(int depth) {
    switch (next(depth > 4 ? 5u : 7u)) {
      case 0:
        return std::to_string(static_cast<std::int64_t>(next(100000)) - 50000);
      case 1:
        return std::to_string(next(1000)) + "." + std::to_string(next(1000)) + (next(2) != 0 ? "e-3" : "");
      case 2:
        return next(2) != 0 ? "true" : "false";
      case 3:
        return "null";
      case 4:
        return "\"s\\\"\xC3\xA4, : // " + std::to_string(next(100)) + "\"";
      case 5:
        return container(depth, '[', ']');
      default:
        return container(depth, '{', '}');
    }
  }
  std::string blank() {
    static constexpr const char* kBlanks[] = {"", " ", "\n", "\t ", " // x, [1\n", "/* : */", "\r\n"};
    return kBlanks[next(7)];
  }

 private:
  std::string container(int depth, char open, char close) {
    std::string out(1, open);
    const std::uint64_t n = next(4);
    for (std::uint64_t i = 0; i < n; ++i) {
      out += (i == 0 ? "" : ",") + blank();
      if (open == '{') out += "\"k" + std::to_string(i) + "\"" + blank() + ":" + blank();
      out += value(depth + 1) + blank();
    }
    return out + blank() + close;
  }
  std::uint64_t next(std::uint64_t n) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ % n;
  }
  std::uint64_t state_;
};

void check_positions(const JsonNode& node) {
  const std::string& text = node.source->text;
  const std::string token = text.substr(node.value_span.begin, node.value_span.end - node.value_span.begin);
  switch (node.type) {
    case JsonType::Null:
      EXPECT_EQ(token, "null");
      break;
    case JsonType::Boolean:
      EXPECT_EQ(token, node.boolean ? "true" : "false");
      break;
    case JsonType::Integer:
      EXPECT_EQ(token, std::to_string(node.integer));
      break;
    case JsonType::Real:
      EXPECT_EQ(std::strtod(token.c_str(), nullptr), node.real);
      break;
    case JsonType::String:
      EXPECT_TRUE(token.starts_with("\"s") && token.ends_with("\"")) << token;
      break;
    case JsonType::Array:
      EXPECT_EQ(token, "[");
      break;
    case JsonType::Object:
      EXPECT_EQ(token, "{");
      break;
  }
  for (const JsonNode& item : node.items) {
    const std::string key = text.substr(item.key_span.begin, item.key_span.end - item.key_span.begin);
    EXPECT_EQ(key, item.key.empty() ? "" : "\"" + item.key + "\"");
    check_positions(item);
  }
}

TEST(JsonReader, PositionsOfRandomDocuments) {
  for (std::uint64_t seed = 1; seed <= 500 && !::testing::Test::HasFailure(); ++seed) {
    Generator generator(seed);
    const std::string text = generator.blank() + "[" + generator.value(0) + "," + generator.value(0) + "]" + generator.blank();
    JsonProblems problems;
    try {
      const JsonDocument doc = JsonDocument::parse(text, "t.json", problems);
      check_positions(doc.root());
    } catch (const InputError& e) {
      FAIL() << format_diagnostic(e.problems()[0]) << "\nin: " << text;
    }
  }
}

}  // namespace
}  // namespace steptwin
