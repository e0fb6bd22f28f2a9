// Orders against the generated vectors (specs/schedules.md 2, 6.3, 8; tests/data/*.csv are rows of validation/).
#include "schedule/orders/orders.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "schedule/base/error.h"
#include "schedule/orders/actions.h"
#include "schedule/orders/grid.h"

namespace steptwin {
namespace {

std::vector<std::string> split(const std::string& line, char separator) {
  std::vector<std::string> out;
  std::istringstream stream(line);
  for (std::string cell; std::getline(stream, cell, separator);) out.push_back(cell);
  return out;
}

std::vector<std::vector<std::string>> rows_of(const char* name) {
  std::ifstream file(std::string(TEST_DIR) + "/data/" + name);
  EXPECT_TRUE(file) << name;
  std::vector<std::vector<std::string>> rows;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    if (line.ends_with('\r')) line.pop_back();
    rows.push_back(split(line, ','));
  }
  return rows;
}

// "name,p,m,v" -> the file's text of one format.
std::map<std::string, std::string> golden_texts(const std::string& format) {
  std::map<std::string, std::string> texts;
  std::map<std::string, std::string> rank;
  for (const auto& row : rows_of("schedule_golden_orders.csv")) {
    if (row[4] != format) continue;
    const std::string key = row[0] + "," + row[1] + "," + row[2] + "," + row[3];
    std::string& text = texts[key];
    if (!text.empty()) text += rank[key] == row[5] ? "," : "\r\n";
    rank[key] = row[5];
    text += row[7];
  }
  for (auto& [key, text] : texts) text += "\r\n";
  return texts;
}

OrderOptions options(std::int32_t ranks, std::int32_t micro_batches) {
  OrderOptions out;
  out.ranks = ranks;
  out.micro_batches = micro_batches;
  return out;
}

ActionGrid parse(const std::string& text, CsvFormat format = CsvFormat::ComputeOnly) { return read_csv(text, "test.csv", format); }

TEST(Orders, EqualTheGoldenLists) {
  int compared = 0;
  for (const auto& [key, text] : golden_texts("compute_only")) {
    const auto parts = split(key, ',');
    const OrderEntry* order = find_order(parts[0]);
    if (!order) continue;
    EXPECT_EQ(write_csv(order->make(options(std::stoi(parts[1]), std::stoi(parts[2])))), text) << key;
    ++compared;
  }
  EXPECT_EQ(compared, 4);  // gpipe and 1f1b at (2,4) and (4,8)
}

TEST(Orders, LoweringEqualsTheGoldenLists) {
  const auto computes = golden_texts("compute_only");
  int compared = 0;
  for (const auto& [key, text] : golden_texts("compute_comms")) {
    const auto parts = split(key, ',');
    const OrderEntry* order = find_order(parts[0]);
    if (!order && !computes.contains(key)) continue;
    const ActionGrid grid = order ? order->make(options(std::stoi(parts[1]), std::stoi(parts[2]))) : parse(computes.at(key));
    EXPECT_EQ(write_csv(lower_messages(grid)), text) << key;
    ++compared;
  }
  EXPECT_EQ(compared, 8);
}

// The full runtime lowering of 6.3: messages taken out and placed again. UNSHARD and the like use up a pass and shift messages.
TEST(Orders, LoweringKeepsShardActions) {
  const std::string texts[] = {
      "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\r\n"
      "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\r\n",
      "0UNSHARD,2UNSHARD,0F0,0SEND_F0,2RECV_F0,0F1,0SEND_F1,2RECV_F1,2F0,2SEND_F0,2F1,2SEND_F1,2RECV_B0,2B0,2SEND_B0,2RECV_B1,2B1,"
      "2SEND_B1,2REDUCE_GRAD,2RESHARD,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\r\n"
      "1UNSHARD,3UNSHARD,1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3B0,3SEND_B0,1RECV_B0,3F1,3B1,3SEND_B1,"
      "1RECV_B1,3REDUCE_GRAD,3RESHARD,1B0,1SEND_B0,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\r\n"};
  for (const std::string& text : texts) {
    ActionGrid grid = parse(text, CsvFormat::ComputeComms);
    for (ActionList& list : grid) std::erase_if(list, [](const Action& a) { return is_message(a.kind); });
    EXPECT_EQ(write_csv(lower_messages(grid)), text);
  }
}

std::string joined(const std::vector<std::int64_t>& values) {
  std::string out;
  for (const std::int64_t value : values) out += (out.empty() ? "" : ";") + std::to_string(value);
  return out;
}

// Section 8: makespan, span, work and peaks at unit time; orders by their makers, the others from their golden lists.
TEST(Orders, UnitTimeVectors) {
  const auto lists = golden_texts("compute_only");
  int compared = 0;
  for (const auto& row : rows_of("schedule_unit_time_vectors.csv")) {
    const OrderEntry* order = find_order(row[0]);
    const std::string key = row[0] + "," + row[1] + "," + row[2] + "," + row[3];
    if (!order && !lists.contains(key)) continue;
    const UnitReplay replay = replay_units(order ? order->make(options(std::stoi(row[1]), std::stoi(row[2]))) : parse(lists.at(key)));
    EXPECT_FALSE(replay.stalled) << key;
    EXPECT_EQ(std::to_string(replay.makespan), row[4]) << key;
    EXPECT_EQ(std::to_string(replay.span), row[5]) << key;
    EXPECT_EQ(std::to_string(replay.work[0]), row[6]) << key;
    EXPECT_EQ(joined(replay.peak_until_w), row[9]) << key;
    EXPECT_EQ(joined(replay.peak_until_i), row[10]) << key;
    ++compared;
  }
  EXPECT_EQ(compared, 18);  // 6 gpipe, 6 1f1b, and 3 others at (2,4) and (4,8)
}

// 2.1, 2.2: step (m+p-1)(tF+tB), bubble rate (p-1)/(m+p-1), for m below and above p; peaks m and min(m, p-r).
TEST(Orders, ClosedForms) {
  for (const OrderEntry& order : order_table()) {
    for (std::int32_t p = 1; p <= 9; ++p) {
      for (std::int32_t m = 1; m <= 12; ++m) {
        const ActionGrid grid = order.make(options(p, m));
        EXPECT_TRUE(check_actions(grid).empty()) << order.name << p << ' ' << m;
        const UnitReplay replay = replay_units(grid);
        EXPECT_EQ(replay.makespan, 3 * (m + p - 1)) << order.name << p << ' ' << m;
        EXPECT_DOUBLE_EQ(order.bubble_rate(options(p, m)), static_cast<double>(p - 1) / (m + p - 1));
        for (std::int32_t r = 0; r < p; ++r)
          EXPECT_EQ(replay.peak_until_w[static_cast<std::size_t>(r)], std::string(order.name) == "gpipe" ? m : std::min(m, p - r));
        EXPECT_TRUE(check_actions(lower_messages(grid)).empty());
      }
    }
  }
}

TEST(Orders, GpipeDescendingBackward) {
  OrderOptions o = options(2, 3);
  o.backward_descending = true;
  EXPECT_EQ(write_csv(find_order("gpipe")->make(o)), "0F0,0F1,0F2,0B2,0B1,0B0\r\n1F0,1F1,1F2,1B2,1B1,1B0\r\n");
  EXPECT_EQ(replay_units(find_order("gpipe")->make(o)).makespan, 12);
}

// 2.3: all 125 vectors of {0..4}^3 at p = 3, m = 6 deadlock iff w increases somewhere; peak min(m, w+1).
TEST(Orders, WarmUpVectors) {
  int stalls = 0;
  for (std::int64_t a = 0; a <= 4; ++a) {
    for (std::int64_t b = 0; b <= 4; ++b) {
      for (std::int64_t c = 0; c <= 4; ++c) {
        OrderOptions o = options(3, 6);
        o.warm_up = {a, b, c};
        const ActionGrid grid = find_order("1f1b")->make(o);
        EXPECT_TRUE(check_actions(grid).empty());
        const UnitReplay replay = replay_units(grid);
        EXPECT_EQ(replay.stalled, a < b || b < c) << a << b << c;
        stalls += replay.stalled ? 1 : 0;
        if (replay.stalled) {
          EXPECT_THROW(lower_messages(grid), InputError);
          continue;
        }
        EXPECT_EQ(replay.peak_until_w, (std::vector<std::int64_t>{a + 1, b + 1, c + 1}));
      }
    }
  }
  EXPECT_EQ(stalls, 125 - 35);  // non-increasing triples of five values: C(7,3) = 35
}

TEST(Orders, WarmUpOptionIsChecked) {
  OrderOptions o = options(3, 2);
  o.warm_up = {1, 1};
  EXPECT_THROW(find_order("1f1b")->make(o), InputError);
  o.warm_up = {1, 1, -1};
  EXPECT_THROW(find_order("1f1b")->make(o), InputError);
  o.warm_up = {9, 9, 9};  // more than m: gpipe
  EXPECT_EQ(find_order("1f1b")->make(o), find_order("gpipe")->make(options(3, 2)));
  EXPECT_EQ(find_order("1f1b")->bubble_rate(o), -1);
  EXPECT_THROW(find_order("gpipe")->make(options(0, 4)), InputError);
  EXPECT_THROW(find_order("1f1b")->make(options(4, 0)), InputError);
  EXPECT_EQ(find_order("zbv-unknown"), nullptr);
}

TEST(Orders, GridIsTheOneOfTheSpecification) {
  std::ifstream file(std::string(TEST_DIR) + "/golden/orders/grids.txt");
  std::stringstream golden;
  golden << file.rdbuf();
  const auto lists = golden_texts("compute_only");
  std::string text;
  for (const char* name : {"gpipe", "1f1b"}) text += order_grid(find_order(name)->make(options(4, 8)));
  for (const char* key : {"interleaved1f1b,4,8,2", "zb-h1,4,8,1", "zbv,4,8,2"}) text += order_grid(parse(lists.at(key)));
  EXPECT_EQ(text, golden.str());
}

TEST(Orders, GridShowsAStall) {
  OrderOptions o = options(2, 2);
  o.warm_up = {0, 1};
  const std::string text = order_grid(find_order("1f1b")->make(o));
  EXPECT_NE(text.find("r0|F0  . waits at 0B0"), std::string::npos) << text;
  EXPECT_NE(text.find("r1|.   F0 waits at 1F1"), std::string::npos) << text;
}

struct Broken {
  const char* name;
  std::vector<std::vector<Action>> grid;
  const char* code;
  const char* text;  // part of the first problem's text
};

TEST(Orders, CheckFindsEveryRule) {
  using enum ActionKind;
  const Broken cases[] = {
      {"two ranks", {{{F, 0, 0}, {B, 0, 0}}, {{F, 1, 0}, {B, 1, 0}, {F, 0, 0}}}, "ORDER-STAGE", "stage 0 is also on rank 0"},
      {"stage gap", {{{F, 0, 0}, {B, 0, 0}}, {{F, 2, 0}, {B, 2, 0}}}, "ORDER-STAGE", "stages 1 to 1 are on no rank"},
      {"no F", {{{B, 0, 0}}}, "ORDER-MISSING", "0F0 is missing"},
      {"no B", {{{F, 0, 0}}}, "ORDER-MISSING", "0B0 is missing"},
      {"no W", {{{F, 0, 0}, {I, 0, 0}}}, "ORDER-MISSING", "0W0 is missing"},
      {"no I", {{{F, 0, 0}, {W, 0, 0}}}, "ORDER-MISSING", "0I0 is missing"},
      {"twice", {{{F, 0, 0}, {B, 0, 0}, {B, 0, 0}}}, "ORDER-DUPLICATE", "0B0 appears twice"},
      {"mixed", {{{F, 0, 0}, {B, 0, 0}, {W, 0, 0}}}, "ORDER-MIXED", "0B0 beside 0W0"},
      {"B before F", {{{B, 0, 0}, {F, 0, 0}}}, "ORDER-SEQUENCE", "0B0 stands before 0F0"},
      {"W before I", {{{F, 0, 0}, {W, 0, 0}, {I, 0, 0}}}, "ORDER-SEQUENCE", "0W0 stands before 0I0"},
      {"micro-batch gap", {{{F, 0, 1}, {B, 0, 1}}}, "ORDER-MISSING", "lacks micro-batches 0 to 0"},
      {"uneven",
       {{{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {B, 0, 1}}, {{F, 1, 0}, {B, 1, 0}}},
       "ORDER-MISSING",
       "stage 1 lacks micro-batches 1 to 1"},
      {"negative", {{{F, -1, 0}}}, "ORDER-NUMBER", "negative"},
      {"idle rank", {{{F, 0, 0}, {B, 0, 0}}, {}}, "ORDER-STAGE", "no compute action"},
      {"no recv", {{{F, 0, 0}, {SendF, 0, 0}, {RecvB, 0, 0}, {B, 0, 0}}, {{F, 1, 0}, {B, 1, 0}, {SendB, 1, 0}}}, "MISSING-RECV", "1F0"},
      {"no send", {{{F, 0, 0}, {RecvB, 0, 0}, {B, 0, 0}}, {{RecvF, 1, 0}, {F, 1, 0}, {B, 1, 0}, {SendB, 1, 0}}}, "MISSING-SEND", "0F0"},
      {"two sends",
       {{{F, 0, 0}, {SendF, 0, 0}, {SendF, 0, 0}, {RecvB, 0, 0}, {B, 0, 0}}, {{RecvF, 1, 0}, {F, 1, 0}, {B, 1, 0}, {SendB, 1, 0}}},
       "DUP-SEND",
       "0SEND_F0"},
      {"to itself", {{{F, 0, 0}, {SendF, 0, 0}, {B, 0, 0}}}, "SELF", "0SEND_F0"},
      {"late recv",
       {{{F, 0, 0}, {SendF, 0, 0}, {B, 0, 0}, {RecvB, 0, 0}}, {{RecvF, 1, 0}, {F, 1, 0}, {B, 1, 0}, {SendB, 1, 0}}},
       "ORDER-SEQUENCE",
       "0RECV_B0"},
  };
  for (const Broken& broken : cases) {
    const std::vector<Diagnostic> problems = check_actions(broken.grid);
    ASSERT_FALSE(problems.empty()) << broken.name;
    bool found = false;
    for (const Diagnostic& problem : problems)
      found = found || (problem.code == broken.code && problem.text.find(broken.text) != std::string::npos);
    EXPECT_TRUE(found) << broken.name << ": " << problems[0].code << ' ' << problems[0].text;
    EXPECT_FALSE(problems[0].details.empty());
    EXPECT_FALSE(problems[0].help.empty());
  }
}

TEST(Orders, ReportsAreLimited) {
  ActionGrid grid(1);
  for (std::int32_t i = 0; i < 1000; ++i) grid[0].push_back({ActionKind::F, 0, i});
  EXPECT_EQ(check_actions(grid).size(), 20u);
  EXPECT_THROW(lower_messages(grid), InputError);
  EXPECT_THROW(order_grid(grid), InputError);
}

TEST(Orders, LoweringRefusesMessages) {
  const ActionGrid lowered = lower_messages(find_order("1f1b")->make(options(2, 2)));
  EXPECT_THROW(lower_messages(lowered), InputError);
}

}  // namespace
}  // namespace steptwin
