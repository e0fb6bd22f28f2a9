// Every help has an example, lists its options and fits 80 columns (specs/ux.md 2.1).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/format.h"
#include "cli/help.h"

namespace steptwin {
namespace {

using testing::HasSubstr;

void fits(const std::string& text) {
  for (const std::string& line : split_words(text, '\n')) EXPECT_LE(display_width(line), 80u) << line;
}

TEST(Help, FitsEightyColumns) {
  for (const HelpDetail detail : {HelpDetail::Short, HelpDetail::Long}) {
    fits(general_help(detail));
    for (const Verb& verb : verb_table()) fits(verb_help(verb, detail));
  }
}

TEST(Help, EveryVerbHasAnExampleAndItsOptions) {
  for (const Verb& verb : verb_table()) {
    const std::string text = verb_help(verb, HelpDetail::Short);
    EXPECT_THAT(text, HasSubstr("example:\n  steptwin "));
    for (const OptionSpec* spec : options_of(verb.name)) EXPECT_THAT(text, HasSubstr(std::string("--") + spec->name)) << verb.name;
  }
}

TEST(Help, LongTellsExitCodesAndEnvironment) {
  for (const char* word : {"4 out of memory", "70 a bug", "STEPTWIN_DB", "NO_COLOR"})
    EXPECT_THAT(general_help(HelpDetail::Long), HasSubstr(word));
}

}  // namespace
}  // namespace steptwin
