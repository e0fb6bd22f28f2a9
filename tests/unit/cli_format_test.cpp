// Numbers for people: four significant digits, always a unit (specs/ux.md 2.5).
#include <gtest/gtest.h>

#include <limits>

#include "cli/format.h"

namespace steptwin {
namespace {

TEST(Format, SixDigitsForTables) {
  EXPECT_EQ(six_digits(52.87769624020541), "52.8777");
  EXPECT_EQ(six_digits(637077.0234), "637077");
  EXPECT_EQ(six_digits(51434911.0), "51434911");
  EXPECT_EQ(six_digits(74227788970.0), "74227788970");
  EXPECT_EQ(six_digits(0), "0");
  EXPECT_EQ(six_digits(1e-5), "1e-05");
  EXPECT_EQ(six_digits(-1.5e300), "-1.5e+300");
}

TEST(Format, FourSignificantDigits) {
  EXPECT_EQ(four_digits(179.44), "179.4");
  EXPECT_EQ(four_digits(1), "1.000");
  EXPECT_EQ(four_digits(12.345), "12.35");  // 12.345 is 12.3450000000000006 in binary
  EXPECT_EQ(four_digits(999.96), "1000");
  EXPECT_EQ(four_digits(99.996), "100.0");
  EXPECT_EQ(four_digits(9.99951), "10.00");
  EXPECT_EQ(four_digits(0), "0.000");
  EXPECT_EQ(four_digits(0.000123456), "0.0001235");
}

TEST(Format, TimesChooseTheirUnit) {
  EXPECT_EQ(human_time(Duration(0)), "0 ns");
  EXPECT_EQ(human_time(Duration(999)), "999 ns");
  EXPECT_EQ(human_time(Duration(1000)), "1.000 us");
  EXPECT_EQ(human_time(Duration(1500), Micro::Sign), "1.500 µs");
  EXPECT_EQ(human_time(Duration(179'400'000)), "179.4 ms");
  EXPECT_EQ(human_time(Duration(2'000'000'000)), "2.000 s");
}

TEST(Format, BytesAreBinary) {
  EXPECT_EQ(human_bytes(Bytes(0)), "0 B");
  EXPECT_EQ(human_bytes(Bytes(1023)), "1023 B");
  EXPECT_EQ(human_bytes(Bytes(1024)), "1.000 KiB");
  EXPECT_EQ(human_bytes(Bytes(85899345920)), "80.00 GiB");
  EXPECT_EQ(human_bytes(Bytes(INT64_C(457) * 1000000000)), "425.6 GiB");  // the 405B case of the issue
}

TEST(Format, CountsAreGrouped) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1000), "1 000");
  EXPECT_EQ(human_count(-1234567), "-1 234 567");
}

TEST(Format, PercentAndExactNumbers) {
  EXPECT_EQ(human_percent(3.0 / 19), "15.8 %");
  EXPECT_EQ(exact_number(0.1), "0.1");
  EXPECT_EQ(exact_number(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(exact_number(std::numeric_limits<double>::quiet_NaN()), "");
}

TEST(Format, PrintableKeepsTextAndNothingElse) {
  EXPECT_EQ(printable("a µ ✓ 𝕊\nb"), "a µ ✓ 𝕊\nb");
  EXPECT_EQ(printable("\x1b[31m\t\x7f\r"), "?[31m ??");
  EXPECT_EQ(printable("\xff\xc3"), "??");            // no lead byte; cut short
  EXPECT_EQ(printable("\xed\xa0\x80"), "???");       // surrogate
  EXPECT_EQ(printable("\xc0\xaf\xc2\x9b"), "????");  // overlong; C1 control
}

TEST(Format, WidthCountsCodePoints) {
  EXPECT_EQ(display_width("µs"), 2u);
  EXPECT_EQ(pad_left("µ", 3), "  µ");
  EXPECT_EQ(pad_right("abcd", 3), "abcd");
}

}  // namespace
}  // namespace steptwin
