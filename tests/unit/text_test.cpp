#include "schedule/ir/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/base/error.h"
#include "schedule/ir/builder.h"
#include "schedule/ir/verify.h"

namespace steptwin {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

void expect_round_trip(const Schedule& schedule) {
  const std::string text = print_schedule(schedule);
  EXPECT_EQ(parse_schedule(text, "t.sched"), schedule) << text;
  EXPECT_EQ(print_schedule(parse_schedule(text, "t.sched")), text);
}

std::vector<Diagnostic> problems_of(std::string_view text) {
  try {
    (void)parse_schedule(text, "t.sched");
  } catch (const InputError& error) {
    return error.problems();
  }
  return {};
}

std::string first_problem(std::string_view text) {
  const auto problems = problems_of(text);
  return problems.empty() ? "none" : format_diagnostic(problems.front());
}

// Two pipeline stages with most things the grammar has.
Schedule rich() {
  ScheduleBuilder b(Mesh{{{"pp", 4}, {"dp", 2}}});
  const CommId fwd = b.communicator("pp.fwd", {"pp"});
  b.communicator("emb", {"pp"}, {{0, 3}});
  const CommId dp = b.communicator("dp", {"dp"});
  const LayoutId hidden = b.layout({"hidden", {{"x", DType::Bf16, {1024, 768}, Bytes(0)}}});
  const LayoutId flag = b.layout({"", {{"value", DType::Fp32, {}, Bytes(0)}}});
  const WorkId attn = b.work({{{Kernel::Kind::MatMul, DType::Bf16, 1, 8, 4, 2, Flops(128), Bytes(80)},
                               {Kernel::Kind::Stream, DType::Fp32, 1, 0, 0, 0, Flops(7), Bytes(1024)}}});
  b.begin_program("pp1", {RankId(2), RankId(3)}, {1, 5});
  const LaneId compute = b.lane("compute", Engine::Compute);
  const LaneId recv = b.lane("recv", Engine::Network, Priority::High);
  const BufferId act = b.buffer("act", Space::Device, Category::Activation, Bytes(1024 * 768 * 2), hidden);
  const BufferId grad = b.buffer("G", Space::Device, Category::Gradient, Bytes(1000), {}, true);
  const BufferId ok = b.buffer("", Space::Pinned, Category::Other, Bytes(4), flag, true);
  Op op;
  op.lane = recv;
  op.body = Recv{fwd, DType::Bf16, Bytes(1024 * 768 * 2), {-1, true}};
  op.label = {Phase::Forward, NameId(), -1, 0, 3, -1};
  const OpId first = b.op(op, {write(act)}, {});
  const OpId second = b.compute(compute, {Phase::Forward, b.name("attn"), 3, 0, 3, 1}, attn,
                                {read(act, {Part::Kind::Tensor, 0, 0}), update(grad, {Part::Kind::Shard, dp.value, 0})}, {first});
  op.body = AllReduce{dp, DType::Fp32, Bytes(1000), AllReduce::Reduction::Max};
  op.label = {};
  op.group = b.new_group();
  op.guard = ok;
  op.given = Duration(1500);
  const OpId third = b.op(op, {update(grad), hold(act)}, {first, second});
  b.op({HostWait{third}, {}, {}, {}, {}, Duration(-1)}, {}, {});
  return b.finish();
}

TEST(Text, PrintsOneOpALine) {
  EXPECT_EQ(print_schedule(rich()), R"(mesh pp 4 dp 2
comm pp.fwd axes pp
comm emb axes pp groups {0,3}
comm dp axes dp
layout hidden
  tensor x bf16 1024x768 at 0B
layout l1
  tensor value fp32 scalar at 0B
work w0
  matmul bf16 m 8 n 4 k 2 flops 128 bytes 80B
  stream fp32 flops 7 bytes 1KiB
program pp1 ranks pp=1 stages 1,5
  lane compute compute
  lane recv network priority high
  buffer act activation device 1536KiB layout hidden
  buffer G gradient device 1000B resident
  buffer b2 other pinned 4B layout l1 resident
  0 recv on pp.fwd from -1 F c0 mb3 write act lane recv
  1 compute F attn L3 c0 mb3 s1 work w0 read act[tensor x] update G[shard dp] lane compute after 0
  2 all_reduce on dp max dtype fp32 update G hold act lane recv after 0,1 group 0 when b2 time 1500ns
  3 host_wait for 2
)");
}

TEST(Text, RoundTripOfEverything) { expect_round_trip(rich()); }

TEST(Text, ConstantsRoundTripToTheLastBit) {
  ScheduleBuilder b(Mesh{{{"dp", 1}}});
  b.constant("dropout", 0.1);
  b.constant("loss scale", 1.7e38);
  b.constant("third", -1.0 / 3);
  const Schedule schedule = b.finish();
  EXPECT_THAT(print_schedule(schedule), HasSubstr("constant dropout 0.1\nconstant \"loss scale\" 1.7e+38\n"));
  expect_round_trip(schedule);
  EXPECT_EQ(schedule.constant("third"), -1.0 / 3);
  EXPECT_EQ(schedule.constant("fourth"), std::nullopt);
  EXPECT_THAT(first_problem("mesh dp 1\nconstant a 1\nconstant a 2\n"), HasSubstr("constant 'a' is declared twice"));
  for (const char* value : {"", "x", "0.1x", "inf", "nan", "1e999"})
    EXPECT_THAT(first_problem(std::string("mesh dp 1\nconstant a ") + value), HasSubstr("expected the value of the constant")) << value;
}

TEST(Text, PrintOpIsTheLine) {
  const Schedule s = rich();
  EXPECT_EQ(print_op(s, OpId(0)), "0 recv on pp.fwd from -1 F c0 mb3 write act lane recv");
  EXPECT_EQ(print_op(s, OpId(99)), "?99");
}

TEST(Text, NamesTableOnlyWhenOrderDiffers) {
  ScheduleBuilder b(Mesh{{{"pp", 1}}});
  b.name("late");
  b.begin_program("p", {RankId(0)});
  b.buffer("early", Space::Device, Category::Other, Bytes(1));
  const Schedule s = b.finish();
  EXPECT_THAT(print_schedule(s), HasSubstr("names late early\n"));
  expect_round_trip(s);
  EXPECT_THAT(print_schedule(rich()), testing::Not(HasSubstr("names")));
}

TEST(Text, RepeatedAndOddNamesRoundTrip) {
  ScheduleBuilder b(Mesh{{{"a b", 2}, {"lane", 3}}});
  b.communicator("x y", {"a b", "lane"});
  b.layout({"same", {}});
  b.layout({"same", {{"t", DType::Int64, {0, 3}, Bytes(5)}, {"t", DType::Uint8, {}, Bytes(0)}}});
  b.layout({"l0", {}});
  b.begin_program("read", {RankId(1), RankId(3), RankId(4)});
  const LaneId lane = b.lane("\"quoted\" \\ \n\t\x01 ü", Engine::Host);
  b.buffer("twice", Space::Device, Category::Other, Bytes(0));
  const BufferId twice = b.buffer("twice", Space::Storage, Category::RecvBuffer, Bytes(1), LayoutId(1));
  b.buffer("b0", Space::Device, Category::Other, Bytes(2));   // looks like the handle of another buffer
  b.buffer("b77", Space::Device, Category::Other, Bytes(2));  // does not
  b.buffer("after", Space::Device, Category::Other, Bytes(2));
  for (const char* segment : {"F", "L3", "mb0", "+", "lane", "plain"})
    b.compute(lane, {Phase::None, b.name(segment), -1, -1, -1, -1}, {},
              {read(twice, {Part::Kind::Tensor, 1, 0}), write(twice, {Part::Kind::Piece, 1, 4}), write(BufferId(4))}, {});
  const Schedule s = b.finish();
  EXPECT_THAT(print_schedule(s), HasSubstr("buffer b1 named twice recv storage 1B layout l1\n"));
  EXPECT_THAT(print_schedule(s), HasSubstr("0 compute \"F\" read b1[tensor 1] write b1[piece 1/4] \"after\" lane"));
  EXPECT_THAT(print_schedule(s), HasSubstr("ranks 1,3,4\n"));
  expect_round_trip(s);
}

TEST(Text, PartsRoundTrip) {
  ScheduleBuilder b(Mesh{});
  b.work({});
  b.begin_program("p", {RankId(0)});
  const LaneId lane = b.lane("compute", Engine::Compute);
  const NameId attn = b.name("attn");
  const ComputePart f{Phase::Forward, attn, 3, 0, WorkId(0)}, i{Phase::InputGrad, attn, 3, 1, {}};
  b.compute_parts(lane, {Phase::Forward, attn, 3, 2, 0, -1}, {f, i, f}, {}, {});
  b.compute_parts(lane, {Phase::None, {}, -1, -1, -1, -1}, {i, f}, {}, {});
  b.compute_parts(lane, {Phase::Forward, attn, -1, -1, -1, -1}, {ComputePart{}, f}, {}, {});
  const Schedule s = b.finish();
  EXPECT_EQ(print_op(s, OpId(0)), "0 compute F attn L3 c2 mb0 work w0 + I attn L3 mb1 + F attn L3 mb0 work w0 lane compute");
  EXPECT_EQ(print_op(s, OpId(1)), "1 compute of I attn L3 mb1 + F attn L3 mb0 work w0 lane compute");
  EXPECT_EQ(print_op(s, OpId(2)), "2 compute F attn of + F attn L3 mb0 work w0 lane compute");
  expect_round_trip(s);
}

TEST(Text, PayloadIsPrintedOnlyWhereItDiffers) {
  ScheduleBuilder b(Mesh{{{"dp", 4}}});
  const CommId dp = b.communicator("dp", {"dp"});
  const LayoutId fp32 = b.layout({"f", {{"x", DType::Fp32, {100}, Bytes(0)}}});
  b.begin_program("p", {RankId(0), RankId(1), RankId(2), RankId(3)});
  const LaneId lane = b.lane("n", Engine::Network);
  const BufferId a = b.buffer("a", Space::Device, Category::Other, Bytes(400), fp32),
                 c = b.buffer("c", Space::Device, Category::Other, Bytes(100));
  const auto add = [&](OpBody body, std::vector<Access> accesses) {
    Op op;
    op.body = std::move(body), op.lane = lane;
    b.op(op, accesses, {});
    return print_op(b.so_far(), OpId(b.next_op() - 1)).substr(2);
  };
  EXPECT_EQ(add(AllGather{dp, DType::Fp32, Bytes(400)}, {read(c), write(a)}), "gather on dp read c write a lane n");
  EXPECT_EQ(add(ReduceScatter{dp, DType::Fp32, Bytes(400)}, {read(a), write(c)}), "reduce_scatter on dp read a write c lane n");
  EXPECT_EQ(add(AllToAll{dp, DType::Bf16, Bytes(100)}, {read(a, {Part::Kind::Shard, 0, 0})}),
            "all_to_all on dp dtype bf16 read a[shard dp] lane n");
  EXPECT_EQ(add(Broadcast{dp, DType::Bf16, Bytes(33), {2, false}}, {}), "broadcast on dp root 2 bytes 33B lane n");
  EXPECT_EQ(add(Copy{DType::Fp32, DType::Bf16, Bytes(400)}, {read(a), write(c)}), "copy dtype fp32 to bf16 read a write c lane n");
  EXPECT_EQ(add(Copy{DType::Bf16, DType::Bf16, Bytes(100)}, {read(c), write(c)}), "copy read c write c lane n");
  EXPECT_EQ(add(Copy{DType::Fp16, DType::Fp16, Bytes(7)}, {}), "copy bytes 7B dtype fp16 lane n");
  EXPECT_EQ(add(Copy{DType::Bf16, DType::Fp32, Bytes(100)}, {read(c), write(a)}), "copy read c write a lane n");
  expect_round_trip(b.finish());
}

TEST(Text, HandWrittenDefaults) {
  const Schedule s = parse_schedule(R"(
# buffers, sizes and obvious lanes may be left out
mesh pp 2   # two ranks
comm p2p axes pp
layout two
  tensor a fp32 10 at 8B
work w0
  matmul fp32 batch 2 m 3 n 4 k 5
program p ranks all
  lane net network
  lane gpu compute
  buffer x
  buffer y layout two activation
  0 send on p2p to +1
  1 compute F mlp L2 mb0 work w0 write y time 1.5ms after 0
  2 recv on p2p from +1 write y
)",
                                    "t.sched");
  EXPECT_EQ(s.works[0].kernels[0].flops, Flops(2 * 2 * 3 * 4 * 5));
  EXPECT_EQ(s.programs[0].ranks.size(), 2u);
  EXPECT_EQ(s.programs[0].buffers[0].bytes, Bytes(0));
  EXPECT_EQ(s.programs[0].buffers[0].category, Category::Other);
  EXPECT_EQ(s.programs[0].buffers[1].bytes, Bytes(48));
  EXPECT_EQ(s.ops[0].lane, LaneId(0));
  EXPECT_EQ(bytes_of(s.ops[0].body), Bytes(0));
  EXPECT_EQ(s.ops[1].lane, LaneId(1));
  EXPECT_EQ(s.ops[1].given, Duration(1'500'000));
  EXPECT_EQ(s.parts[0], (ComputePart{Phase::Forward, NameId(2), 2, 0, WorkId(0)}));
  EXPECT_EQ(std::get<Recv>(s.ops[2].body), (Recv{CommId(0), DType::Fp32, Bytes(48), {1, true}}));
  expect_round_trip(s);
}

TEST(Text, RanksAsBoxAndList) {
  const auto ranks = [](const std::string& spec) {
    std::vector<std::uint32_t> out;
    const Schedule s = parse_schedule("mesh pp 4 dp 3\nprogram p ranks " + spec, "t");
    for (RankId r : s.programs[0].ranks) out.push_back(r.value);
    return out;
  };
  EXPECT_THAT(ranks("pp=1"), ElementsAre(3, 4, 5));
  EXPECT_THAT(ranks("pp=0,3 dp=1-2"), ElementsAre(1, 2, 10, 11));
  EXPECT_THAT(ranks("dp=0"), ElementsAre(0, 3, 6, 9));
  EXPECT_THAT(ranks("0,3,5-7"), ElementsAre(0, 3, 5, 6, 7));
  EXPECT_THAT(ranks("none"), ElementsAre());
  EXPECT_EQ(ranks("all").size(), 12u);
}

TEST(Text, EmptySchedulesRoundTrip) {
  expect_round_trip(parse_schedule("mesh", "t"));
  expect_round_trip(parse_schedule("mesh pp 2\nprogram a ranks none\nprogram b ranks 0\n", "t"));
}

TEST(Text, AllErrorsAtOnceWithPlaces) {
  const auto problems = problems_of(R"(mesh pp 2
comm p2p axes qq
program p ranks pp=0
  lane gpu compute
  lane net netwrok
  buffer weights param
  0 compute F work w3
  1 compute F read weihgts lane gpu
  3 send on p2p to 1 lane net
  4 compute F aftr 2 lane gpu
)");
  std::vector<std::string> found;
  for (const Diagnostic& p : problems)
    found.push_back(p.code + " " + std::to_string(p.place.line) + ":" + std::to_string(p.place.column) + " " + p.help);
  EXPECT_THAT(found,
              ElementsAre("UNKNOWN-NAME 2:15 ", "SYNTAX 5:12 did you mean 'network'?",
                          "UNKNOWN-NAME 7:20 works are declared before the programs: work w0", "UNKNOWN-NAME 8:20 did you mean 'weights'?",
                          "ORDER 9:3 the ops of a program are numbered 0, 1, 2, ... in issue order",
                          "SYNTAX 10:20 'aftr' was read as the segment; clauses are words such as read, lane, after, time"));
}

TEST(Text, FormatsPlaceAndCaret) {
  EXPECT_EQ(
      first_problem("mesh pp 2\nprogram p ranks all\n  lane größe network\n"),
      "error: expected the name of a lane, found 'größe' [SYNTAX]\n  --> t.sched:3:8\n  3 |   lane größe network\n    |        ^^^^^\n"
      "  help: quote a name that is not letters, digits and _ . : / @ -, or that is a clause word");
}

TEST(Text, EveryRefusalHasItsMessage) {
  const std::string head =
      "mesh pp 2\ncomm c axes pp\nlayout l\n  tensor t fp32 2 at 0B\nprogram p ranks all\n  lane n network\n  buffer b 8B layout l\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "the schedule is empty [SYNTAX]"},
      {"comm c axes pp", "the first line must be the mesh [ORDER]"},
      {"mesh pp 2\nmesh pp 2", "the mesh is declared twice [ORDER]"},
      {"mesh pp 2 pp 2", "axis 'pp' is declared twice [DUP-NAME]"},
      {"mesh pp 0", "between 1 and 1048576 ranks [NUMBER]"},
      {"mesh pp 1000 dp 1000000", "between 1 and 1048576 ranks [NUMBER]"},
      {"mesh pp 2\nlane x compute", "a lane belongs below a program line [ORDER]"},
      {"mesh pp 2\nfoo", "unknown line 'foo' [SYNTAX]"},
      {"mesh pp 2\nprogram p ranks pp=2", "coordinates along the axis goes beyond its bounds [NUMBER]"},
      {"mesh pp 2\nprogram p ranks qq=0", "the mesh has no axis 'qq' [UNKNOWN-NAME]"},
      {"mesh pp 2\nprogram p ranks 0-4000000000", "the ranks goes beyond its bounds [NUMBER]"},
      {"mesh pp 2\ncomm c axes pp groups {0,9}", "goes beyond its bounds [NUMBER]"},
      {"mesh pp 2 dp 2\ncomm c axes dp pp", "the axes of a communicator are named once, in mesh order [ORDER]"},
      {"mesh pp 2\nwork w1", "expected the next work, w0, found 'w1' [SYNTAX]"},
      {"mesh pp 2\nlayout l\n  tensor t fp32 1125899906842624 at 0B", "the tensor is too large [NUMBER]"},
      {"mesh pp 2\nlayout l\n  tensor t fp23 1 at 0B", "expected an element type, found 'fp23' [SYNTAX]"},
      {head + "  lane n host", "lane 'n' is declared twice [DUP-NAME]"},
      {head + "  buffer b", "buffer 'b' is declared twice [DUP-NAME]"},
      {head + "  buffer c 4096TiB", "expected the size of the buffer, found '4096TiB' [NUMBER]"},
      {head + "  buffer c 1.5B", "expected the size of the buffer, found '1.5B' [SYNTAX]"},
      {head + "  0 sned on c to 1", "unknown kind of op 'sned' [SYNTAX]"},
      {head + "  0 send to 1", "expected 'on' and a communicator, found the end of the line [SYNTAX]"},
      {head + "  0 send on c", "expected 'to' and the member it sends to, found the end of the line [SYNTAX]"},
      {head + "  0 send on c from 1", "'from' belongs to recv, not to send [SYNTAX]"},
      {head + "  0 send on c to x", "expected a member number, or +1 / -1 along the ring, found 'x' [SYNTAX]"},
      {head + "  0 send on c to 1 to 1", "'to' is given twice [SYNTAX]"},
      {head + "  0 compute F", "expected 'lane' and the lane it runs on, found the end of the line [SYNTAX]"},
      {head + "  0 host_wait", "expected 'for' and the op waited for, found the end of the line [SYNTAX]"},
      {head + "  0 compute F F lane n", "a second phase [SYNTAX]"},
      {head + "  0 compute L99999999999 lane n", "L99999999999 is too large [NUMBER]"},
      {head + "  0 compute lane n time 5", "expected a time, found '5' [SYNTAX]"},
      {head + "  0 compute lane n time 0.5ns", "expected a time, found '0.5ns' [SYNTAX]"},
      {head + "  0 compute read b[tensor u] lane n", "the layout of the buffer has no tensor 'u' [UNKNOWN-NAME]"},
      {head + "  0 compute read b[slice 1] lane n", "expected tensor, shard or piece, found 'slice' [SYNTAX]"},
      {head + "  0 compute read b[piece 1 lane n", "expected a piece such as 1/4, found '1' [SYNTAX]"},
      {head + "  0 compute read \"b lane n", "the quoted name does not end [SYNTAX]"},
      {head + "  0 compute read lane n", "expected the name of a buffer, found 'lane' [SYNTAX]"},
      {head + "  0 send on c to 1 work w0", "'work' belongs to compute, not to send [SYNTAX]"},
      {head + "  0 compute lane n after 5-9", "the ops it comes after goes beyond its bounds [NUMBER]"},
  };
  for (const auto& [text, expected] : cases) EXPECT_THAT(first_problem(text), HasSubstr(expected)) << text;
}

TEST(Text, DeepNonsenseGivesOneProblemALine) {
  std::string text = "mesh pp 2\n";
  for (int i = 0; i < 1000; ++i) text += "nonsense \"open [ ] {\n";
  EXPECT_EQ(problems_of(text).size(), 100u);  // and no more: the reader stops
}

TEST(Text, SizesAndTimesAreExact) {
  const auto size_of_text = [](const std::string& s) {
    return parse_schedule("mesh\nprogram p ranks all\nbuffer b " + s, "t").programs[0].buffers[0].bytes.value;
  };
  EXPECT_EQ(size_of_text("96"), 96);
  EXPECT_EQ(size_of_text("1.5KiB"), 1536);
  EXPECT_EQ(size_of_text("6MiB"), 6 << 20);
  EXPECT_EQ(size_of_text("1TiB"), std::int64_t{1} << 40);
  EXPECT_EQ(size_of_text("1025KiB"), 1025 << 10);
}

}  // namespace
}  // namespace steptwin
