// The traps of specs/ux.md 6: prefix guessing, negative numbers into unsigned, --set swallowing positionals, missing positionals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "cli/commands/commands.h"
#include "cli/options.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string problem_of(std::string_view verb, const std::vector<std::string>& arguments) {
  try {
    parse_options(verb, arguments);
  } catch (const InputError& error) {
    EXPECT_EQ(error.problems().front().code, "USAGE");
    return error.problems().front().text + " | " + error.problems().front().help;
  }
  return "accepted";
}

TEST(Options, SetCollectsOneValueEachTime) {
  const Options options = parse_options("simulate", {"--set", "mesh.pp=4", "s.json", "--set=a.b=-1"});
  EXPECT_THAT(options.list("set"), ElementsAre("mesh.pp=4", "a.b=-1"));
  EXPECT_THAT(options.positionals(), ElementsAre("s.json"));
}

TEST(Options, PrefixesAreNotGuessed) {
  EXPECT_THAT(problem_of("simulate", {"--step", "3"}), HasSubstr("did you mean --steps?"));
  EXPECT_THAT(problem_of("simulate", {"--allow"}), HasSubstr("unknown option --allow"));
}

TEST(Options, NumbersAreStrict) {
  for (const char* word : {"-3", "0", "1.5", "1e3", "3x", " 3", "99999999999999999999", "0x10", "+4"}) {
    EXPECT_THAT(problem_of("simulate", {std::string("--steps=") + word}), HasSubstr("not a whole number")) << word;
  }
  EXPECT_EQ(parse_options("simulate", {"--steps", "12"}).whole("steps", 1), 12);
  EXPECT_EQ(parse_options("simulate", {}).whole("steps", 7), 7);
}

TEST(Options, ChoicesNameTheNearest) {
  EXPECT_THAT(problem_of("simulate", {"--engine", "rplay"}), HasSubstr("did you mean replay?"));
  EXPECT_THAT(problem_of("trace", {"--format", "json"}), HasSubstr("must be one of perfetto|csv"));
}

TEST(Options, ScalarsAreGivenOnce) { EXPECT_THAT(problem_of("simulate", {"--db", "a", "--db", "b"}), HasSubstr("more than once")); }

TEST(Options, MissingValueIsReported) {
  EXPECT_NE(problem_of("simulate", {"--db"}), "accepted");
  EXPECT_NE(problem_of("simulate", {"--db="}), "accepted");
}

TEST(Options, AnOptionOfAnotherCommandSaysWhose) { EXPECT_THAT(problem_of("show", {"--allow-oom"}), HasSubstr("belongs to: simulate")); }

TEST(Options, HelperNameOfPositionalsIsNoOption) {
  EXPECT_THAT(problem_of("simulate", {"--positional", "x"}), HasSubstr("unknown option --positional"));
}

TEST(Options, DashIsAPositionalAndDoubleDashEndsOptions) {
  EXPECT_THAT(parse_options("simulate", {"-", "--no-db"}).positionals(), ElementsAre("-"));
  EXPECT_THAT(parse_options("validate", {"--", "--odd.json"}).positionals(), ElementsAre("--odd.json"));
}

TEST(Options, ShortLettersWork) {
  EXPECT_TRUE(parse_options("simulate", {"-q"}).flag("quiet"));
  EXPECT_EQ(parse_options("query", {"-n", "bubble"}).text("name"), "bubble");
  EXPECT_THAT(problem_of("simulate", {"-x"}), HasSubstr("unknown option -x"));
}

TEST(Options, TheVerbIsNotTheValueOfAnOption) {
  const SplitArguments split = split_arguments({"--db", "x.db", "-q", "simulate", "s.json", "--json"});
  EXPECT_THAT(split.before, ElementsAre("--db", "x.db", "-q"));
  EXPECT_EQ(split.verb, "simulate");
  EXPECT_THAT(split.after, ElementsAre("s.json", "--json"));
  EXPECT_EQ(split_arguments({"--db=x.db", "runs"}).verb, "runs");
  EXPECT_EQ(split_arguments({"--version"}).verb, "");
}

// One table feeds everything: every row belongs to verbs that exist, and no verb has a name twice.
TEST(Options, TheTableAndTheVerbsAgree) {
  for (const OptionSpec& spec : option_table()) {
    if (std::string_view(spec.verbs) == "*") continue;
    for (const std::string& verb : split_words(spec.verbs, ' ')) EXPECT_NE(find_verb(verb), nullptr) << spec.name;
  }
  for (const Verb& verb : verb_table()) {
    std::set<std::string> names;
    for (const OptionSpec* spec : options_of(verb.name)) EXPECT_TRUE(names.insert(spec->name).second) << verb.name << " " << spec->name;
  }
}

TEST(Options, AskingForAnUnlistedNameIsABug) { EXPECT_THROW(parse_options("simulate", {}).flag("nothing"), InternalError); }

}  // namespace
}  // namespace steptwin
