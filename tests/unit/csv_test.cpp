// PyTorch schedule CSV (specs/schedules.md 6.1, 6.2).
#include <gtest/gtest.h>

#include "schedule/base/error.h"
#include "schedule/orders/orders.h"

namespace steptwin {
namespace {

std::vector<Diagnostic> problems_of(const std::string& text, CsvFormat format = CsvFormat::ComputeOnly) {
  try {
    read_csv(text, "s.csv", format);
  } catch (const InputError& error) {
    return error.problems();
  }
  return {};
}

ActionGrid compute(const std::string& text) { return read_csv(text, "s.csv", CsvFormat::ComputeOnly); }
ActionGrid comms(const std::string& text) { return read_csv(text, "s.csv", CsvFormat::ComputeComms); }

const char* const kTwoRanks = "0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n";

TEST(Csv, RoundTrip) {
  EXPECT_EQ(write_csv(compute(kTwoRanks)), kTwoRanks);
  OrderOptions options;
  options.ranks = 5;
  options.micro_batches = 7;
  for (const OrderEntry& order : order_table()) {
    const ActionGrid grid = order.make(options), lowered = lower_messages(grid);
    EXPECT_EQ(compute(write_csv(grid)), grid);
    EXPECT_EQ(comms(write_csv(lowered)), lowered);
  }
}

TEST(Csv, FormsThatMeanTheSame) {
  const ActionGrid expected = compute(kTwoRanks);
  EXPECT_EQ(compute("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1"), expected);                           // LF, no final newline
  EXPECT_EQ(compute("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n\r\n\n"), expected);                   // extra newlines
  EXPECT_EQ(compute("\"0F0\", 0F1 ,\" 0B0 \",0B1,,\n 1F0\t,1B0,1F1,\"1B1\" ,\n"), expected);  // quotes, blanks, trailing empty cells
  EXPECT_EQ(compute("0F0,0F1,,,,0B0,0B1\n,1F0,1B0,1F1,1B1\n"), expected);                     // idle slots
  EXPECT_EQ(compute("\xEF\xBB\xBF"
                    "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
            expected);  // byte order mark
}

// 6.2: the same lowered ZB-H1 list (p=2, m=3) in both dialects.
TEST(Csv, DialectsAgree) {
  const ActionGrid current = comms(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2\n"
      "1RECV_F0,1F0,1RECV_F1,1I0,1SEND_B0,1F1,1RECV_F2,1I1,1SEND_B1,1W0,1F2,1I2,1SEND_B2,1W1,1W2\n");
  const ActionGrid legacy = comms(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0BW0,0F2,0SEND_F2,0RECV_B1,0BW1,0RECV_B2,0BW2\n"
      "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1RECV_F2,1B1,1SEND_B1,1W0,1F2,1B2,1SEND_B2,1W1,1W2\n");
  EXPECT_EQ(current, legacy);
  EXPECT_EQ(current[0][5].kind, ActionKind::B);
  EXPECT_EQ(current[1][3].kind, ActionKind::I);
}

// 6.2 rules 4 and 5: with as many W as B on every stage, B is the input gradient; with F and B alone it is the full backward.
TEST(Csv, LegacySplitWithoutBw) {
  EXPECT_EQ(compute("0F0,0B0,0W0\n"), (ActionGrid{{{ActionKind::F, 0, 0}, {ActionKind::I, 0, 0}, {ActionKind::W, 0, 0}}}));
  EXPECT_EQ(compute("0F0,0B0\n"), (ActionGrid{{{ActionKind::F, 0, 0}, {ActionKind::B, 0, 0}}}));
  const auto problems = problems_of("0F0,0B0,0F1,0B1,0W1\n");  // neither: W beside a full backward
  ASSERT_FALSE(problems.empty());
  EXPECT_EQ(problems[0].code, "ORDER-MIXED");
}

TEST(Csv, MixedDialects) {
  const auto problems = problems_of("0F0,0I0,0W0,0F1,0BW1\n");
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].code, "CSV-DIALECT");
  EXPECT_EQ(problems[0].place.column, 17);
}

struct Bad {
  const char* text;
  CsvFormat format;
  const char* code;
  int line, column, length;
};

TEST(Csv, ErrorsHaveAPlace) {
  using enum CsvFormat;
  const Bad cases[] = {
      {"", ComputeOnly, "CSV-EMPTY", 1, 1, 0},
      {"\n\n", ComputeOnly, "CSV-EMPTY", 1, 1, 0},
      {"0F0,0B0\n\n1F0,1B0\n", ComputeOnly, "CSV-ROW", 2, 1, 0},
      {"0F0,0Q0,0B0\n", ComputeOnly, "CSV-CELL", 1, 5, 3},
      {"0F0,0B0x\n", ComputeOnly, "CSV-CELL", 1, 5, 4},  // trailing garbage
      {"0F0,x0B0\n", ComputeOnly, "CSV-CELL", 1, 5, 4},  // leading garbage
      {"0F0,0B\n", ComputeOnly, "CSV-CELL", 1, 5, 2},    // no micro-batch
      {"F0\n", ComputeOnly, "CSV-CELL", 1, 1, 2},        // no stage
      {"0F0,0B0,0UNSHARD3\n", ComputeComms, "CSV-CELL", 1, 9, 9},
      {"0F0,0B99999999999999999999\n", ComputeOnly, "CSV-CELL", 1, 5, 22},
      {"0F0,0B1000001\n", ComputeOnly, "CSV-CELL", 1, 5, 9},
      {"0F0, \"0B0\n", ComputeOnly, "CSV-QUOTE", 1, 6, 4},
      {"0F0,\"0B0\"z,0B0\n", ComputeOnly, "CSV-QUOTE", 1, 5, 5},
      {"0F0,0SEND_F0,0B0\n", ComputeOnly, "CSV-FORMAT", 1, 5, 8},
      {"0F0,0B0,0RESHARD\n", ComputeOnly, "CSV-FORMAT", 1, 9, 8},
      {"0F0,,0B0\n", ComputeComms, "CSV-CELL", 1, 5, 0},
      {"(0F0;0B1)OVERLAP_F_B\n", ComputeOnly, "CSV-OVERLAP", 1, 1, 20},
      {"0F0,\xC3\xA4,0Q1\n", ComputeOnly, "CSV-CELL", 1, 5, 1},  // columns in code points
      {"0F0,0B0\n0F0,0B0\n", ComputeOnly, "ORDER-STAGE", 2, 1, 3},
      {"0F0,0B0\n1B0,1F0\n", ComputeOnly, "ORDER-SEQUENCE", 2, 1, 3},
      {"0F0,0B0,0B0\n", ComputeOnly, "ORDER-DUPLICATE", 1, 9, 3},
      {"0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", ComputeComms, "MISSING-RECV", 1, 14, 3},
  };
  for (const Bad& bad : cases) {
    const auto problems = problems_of(bad.text, bad.format);
    ASSERT_FALSE(problems.empty()) << bad.text;
    EXPECT_EQ(problems[0].code, bad.code) << bad.text;
    EXPECT_EQ(problems[0].place.file, "s.csv");
    EXPECT_EQ(problems[0].place.line, bad.line) << bad.text;
    EXPECT_EQ(problems[0].place.column, bad.column) << bad.text;
    EXPECT_EQ(problems[0].place.length, bad.length) << bad.text;
    EXPECT_FALSE(problems[0].help.empty());
  }
}

TEST(Csv, AllProblemsAtOnceUpToALimit) {
  EXPECT_EQ(problems_of("x,y,0F0\nz\n").size(), 3u);
  std::string many = "x";
  for (int i = 0; i < 100; ++i) many += ",x";
  EXPECT_EQ(problems_of(many).size(), 20u);
}

// PyTorch's pattern reads a legacy 1BW3 as B of stage 1 without micro-batch: here it is the full backward of micro-batch 3.
TEST(Csv, AnchoredAtBothEnds) {
  const ActionGrid grid = compute("0F0,0BW0\n");
  EXPECT_EQ(grid[0][1], (Action{ActionKind::B, 0, 0}));
}

}  // namespace
}  // namespace steptwin
