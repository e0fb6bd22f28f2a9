// Precedence of colour (specs/ux.md 2.4, no-color.org) and of the character set.
#include <gtest/gtest.h>

#include <map>

#include "cli/terminal.h"

namespace steptwin {
namespace {

EnvironmentVariables with(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) {
    const auto found = values.find(name);
    return found == values.end() ? std::string() : found->second;
  };
}

TEST(Color, FollowsTheStream) {
  EXPECT_TRUE(use_color(ColorChoice::Auto, Stream::Tty, with({})));
  EXPECT_FALSE(use_color(ColorChoice::Auto, Stream::Plain, with({})));
}

TEST(Color, NoColorCountsOnlyWhenNotEmpty) {
  EXPECT_FALSE(use_color(ColorChoice::Auto, Stream::Tty, with({{"NO_COLOR", "1"}})));
  EXPECT_TRUE(use_color(ColorChoice::Auto, Stream::Tty, with({{"NO_COLOR", ""}})));
}

TEST(Color, NoColorBeatsForce) {
  EXPECT_TRUE(use_color(ColorChoice::Auto, Stream::Plain, with({{"CLICOLOR_FORCE", "1"}})));
  EXPECT_FALSE(use_color(ColorChoice::Auto, Stream::Plain, with({{"CLICOLOR_FORCE", "0"}})));
  EXPECT_FALSE(use_color(ColorChoice::Auto, Stream::Tty, with({{"CLICOLOR_FORCE", "1"}, {"NO_COLOR", "1"}})));
}

TEST(Color, DumbTerminalsGetNone) { EXPECT_FALSE(use_color(ColorChoice::Auto, Stream::Tty, with({{"TERM", "dumb"}}))); }

TEST(Color, TheFlagDecides) {
  EXPECT_TRUE(use_color(ColorChoice::Always, Stream::Plain, with({{"NO_COLOR", "1"}})));
  EXPECT_FALSE(use_color(ColorChoice::Never, Stream::Tty, with({{"CLICOLOR_FORCE", "1"}})));
}

TEST(Color, StyledTextIsPlainWithoutColor) {
  EXPECT_EQ(styled(false, "1", "x"), "x");
  EXPECT_EQ(styled(true, "1;31", "x"), "\x1b[1;31mx\x1b[0m");
}

TEST(Utf8, TheFirstLocaleVariableSetDecides) {
  EXPECT_TRUE(use_utf8(CharacterSet::Auto, with({{"LANG", "C.UTF-8"}})));
  EXPECT_FALSE(use_utf8(CharacterSet::Auto, with({{"LC_ALL", "C"}, {"LANG", "C.UTF-8"}})));
  EXPECT_TRUE(use_utf8(CharacterSet::Auto, with({{"LC_CTYPE", "de_DE.utf8"}})));
  EXPECT_FALSE(use_utf8(CharacterSet::Auto, with({})));
  EXPECT_FALSE(use_utf8(CharacterSet::Ascii, with({{"LANG", "C.UTF-8"}})));
}

}  // namespace
}  // namespace steptwin
