// parse(print(s)) == s for random structurally sound schedules, and no text, however broken, does more than throw InputError.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "schedule/base/error.h"
#include "schedule/ir/builder.h"
#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"

namespace steptwin {
namespace {

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed), b_(mesh()) {}

  Schedule schedule() {
    for (std::uint32_t i = 0, n = upto(3); i < n; ++i) communicator(i);
    for (std::uint32_t i = 0, n = upto(3); i < n; ++i) layout();
    for (std::uint32_t i = 0, n = upto(3); i < n; ++i) work();
    for (std::uint32_t i = 0, n = upto(3); i < n; ++i) b_.name("unused" + name());
    const std::uint32_t programs = upto(3);
    std::vector<std::vector<RankId>> ranks(programs);
    for (std::uint32_t r = 0; programs > 0 && r < b_.so_far().mesh.size(); ++r)
      if (const std::uint32_t owner = upto(programs); owner < programs) ranks[owner].push_back(RankId(r));
    for (std::uint32_t p = 0; p < programs; ++p) program(p, std::move(ranks[p]));
    return b_.finish();
  }

 private:
  std::uint32_t upto(std::uint32_t most) { return std::uniform_int_distribution<std::uint32_t>(0, most)(random_); }
  bool chance(std::uint32_t one_in) { return upto(one_in - 1) == 0; }

  std::string name() {
    static const char* const kNames[] = {"attn", "mlp", "b1",  "b7", "l0",  "w0",   "F",   "L3",    "mb1", "c2",  "s0", "lane",
                                         "read", "+",   "a b", "\"", "\\x", "\n\t", "x#y", "größe", "p+1", "[t]", "12"};
    return kNames[upto(std::size(kNames) - 1)];
  }
  std::string distinct(std::uint32_t index) { return chance(2) ? name() + std::to_string(index) : "n" + std::to_string(index); }

  Mesh mesh() {
    Mesh mesh;
    for (std::uint32_t i = 0, n = upto(3); i < n; ++i) mesh.axes.push_back({i == 1 ? "odd axis" : "x" + std::to_string(i), 1 + upto(3)});
    return mesh;
  }

  void communicator(std::uint32_t index) {
    std::vector<std::string> axes;
    std::uint32_t positions = 1;
    for (const Axis& axis : b_.so_far().mesh.axes)
      if (chance(2)) axes.push_back(axis.name), positions *= axis.size;
    std::vector<std::vector<std::uint32_t>> groups;
    if (chance(2)) {
      std::vector<std::uint32_t> order(positions);
      for (std::uint32_t i = 0; i < positions; ++i) order[i] = i;
      if (chance(2)) std::shuffle(order.begin(), order.end(), random_);
      for (std::uint32_t i = 0; i < positions;) {
        const std::uint32_t size = std::min(1 + upto(3), positions - i);
        groups.emplace_back(order.begin() + i, order.begin() + i + size);
        i += size;
      }
    }
    b_.communicator(distinct(index), axes, groups);
  }

  DType dtype() { return static_cast<DType>(upto(kDTypes - 1)); }
  Bytes size() { return Bytes(static_cast<std::int64_t>(upto(5)) << (10 * upto(4))) + Bytes(chance(3) ? upto(100) : 0); }

  void layout() {
    Layout layout{chance(3) ? "" : name(), {}};
    for (std::uint32_t i = 0, n = upto(4); i < n; ++i) {
      TensorSpec tensor{chance(3) ? name() : "t" + std::to_string(i), dtype(), {}, size()};
      for (std::uint32_t d = 0, dims = upto(3); d < dims; ++d) tensor.shape.push_back(upto(9));
      layout.tensors.push_back(tensor);
    }
    b_.layout(layout);
  }

  void work() {
    Work work;
    for (std::uint32_t i = 0, n = upto(3); i < n; ++i)
      work.kernels.push_back({static_cast<Kernel::Kind>(upto(2)), dtype(), upto(2), upto(9), upto(9), upto(9), Flops(upto(99999)), size()});
    b_.work(work);
  }

  void program(std::uint32_t index, std::vector<RankId> ranks) {
    std::vector<std::int32_t> stages;
    for (std::uint32_t i = 0, n = upto(3); i < n; ++i) stages.push_back(static_cast<std::int32_t>(upto(9)));
    b_.begin_program(distinct(index), std::move(ranks), stages);
    lanes_ = 1 + upto(3);
    for (std::uint32_t i = 0; i < lanes_; ++i) b_.lane(distinct(i), static_cast<Engine>(upto(5)), static_cast<Priority>(upto(1)));
    buffers_ = upto(8);
    for (std::uint32_t i = 0; i < buffers_; ++i) {
      const bool resident = chance(3);
      const auto layouts = static_cast<std::uint32_t>(b_.so_far().layouts.size());
      const LayoutId layout = layouts > 0 && chance(2) ? LayoutId(upto(layouts - 1)) : LayoutId();
      b_.buffer(resident    ? "r" + std::to_string(i)
                : chance(3) ? ""
                            : name(),
                static_cast<Space>(upto(kSpaces - 1)), static_cast<Category>(upto(kCategories - 1)), size(), layout, resident);
    }
    first_op_ = b_.next_op();
    for (std::uint32_t i = 0, n = upto(20); i < n; ++i) op();
  }

  std::int32_t tag() { return static_cast<std::int32_t>(upto(4)) - 1; }
  NameId segment() { return chance(2) ? NameId() : b_.name(name()); }
  Label label() { return {static_cast<Phase>(upto(6)), segment(), tag(), tag(), tag(), tag()}; }

  std::vector<Access> accesses() {
    std::vector<Access> out;
    for (std::uint32_t i = 0, n = buffers_ == 0 ? 0 : upto(4); i < n; ++i) {
      Access access{BufferId(upto(buffers_ - 1)), static_cast<AccessMode>(upto(3)), {static_cast<Part::Kind>(upto(3)), 0, 0}};
      const auto comms = static_cast<std::uint32_t>(b_.so_far().communicators.size());
      if (access.part.kind == Part::Kind::Shard && comms == 0) access.part.kind = Part::Kind::Whole;
      if (access.part.kind == Part::Kind::Shard) access.part.a = upto(comms - 1);
      if (access.part.kind == Part::Kind::Tensor) access.part.a = upto(4);
      if (access.part.kind == Part::Kind::Piece) access.part.a = upto(4), access.part.b = upto(4);
      out.push_back(access);
    }
    return out;
  }

  std::vector<OpId> earlier_ops() {
    std::vector<OpId> out;
    for (std::uint32_t i = first_op_; i < b_.next_op(); ++i)
      if (chance(4)) out.push_back(OpId(i));
    return out;
  }

  OpBody communication() {
    const CommId comm(upto(static_cast<std::uint32_t>(b_.so_far().communicators.size()) - 1));
    const Peer peer = chance(2) ? Peer{static_cast<std::int32_t>(upto(4)), false} : Peer{static_cast<std::int32_t>(upto(4)) - 2, true};
    switch (upto(6)) {
      case 0:
        return AllGather{comm, dtype(), size()};
      case 1:
        return ReduceScatter{comm, dtype(), size()};
      case 2:
        return AllReduce{comm, dtype(), size(), static_cast<AllReduce::Reduction>(upto(1))};
      case 3:
        return Broadcast{comm, dtype(), size(), peer};
      case 4:
        return AllToAll{comm, dtype(), size()};
      case 5:
        return Send{comm, dtype(), size(), peer};
      default:
        return Recv{comm, dtype(), size(), peer};
    }
  }

  ComputePart part() {
    const auto works = static_cast<std::uint32_t>(b_.so_far().works.size());
    return {static_cast<Phase>(upto(6)), segment(), tag(), tag(), works > 0 && chance(2) ? WorkId(upto(works - 1)) : WorkId()};
  }

  void op() {
    const LaneId lane(upto(lanes_ - 1));
    if (chance(2)) {
      const Label l = label();
      std::vector<ComputePart> parts{part()};
      if (chance(2)) parts[0] = {l.phase, l.segment, l.layer, l.micro_batch, parts[0].work};
      while (chance(3)) parts.push_back(part());
      b_.compute_parts(lane, l, parts, accesses(), earlier_ops());
      return;
    }
    Op op;
    op.lane = lane;
    op.label = label();
    op.given = chance(2) ? Duration(upto(5000000)) : Duration(-1);
    const bool wait = b_.next_op() > first_op_ && chance(4);
    if (wait) {
      op.body = HostWait{OpId(first_op_ + upto(b_.next_op() - first_op_ - 1))};
      op.lane = LaneId();
    } else if (chance(2) || b_.so_far().communicators.empty()) {
      op.body = Copy{dtype(), dtype(), size()};
    } else {
      op.body = communication();
      if (chance(4)) op.group = GroupId(b_.next_op());
    }
    b_.op(op, accesses(), earlier_ops());
  }

  std::mt19937_64 random_;
  ScheduleBuilder b_;
  std::uint32_t lanes_ = 0, buffers_ = 0, first_op_ = 0;
};

constexpr std::uint64_t kSchedules = 1500;

TEST(TextRoundTrip, RandomSchedules) {
  for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
    const Schedule schedule = Generator(seed).schedule();
    for (const Diagnostic& d : verify(schedule)) ASSERT_NE(d.code, "RANGE") << "seed " << seed << "\n" << format_diagnostic(d);
    const std::string text = print_schedule(schedule);
    try {
      ASSERT_TRUE(parse_schedule(text, "t.sched") == schedule) << "seed " << seed << "\n" << text;
    } catch (const InputError& error) {
      FAIL() << "seed " << seed << "\n" << format_diagnostic(error.problems().front()) << "\n" << text;
    }
  }
}

// Damages a text: drops, doubles, swaps or replaces pieces of it.
std::string damaged(std::string text, std::mt19937_64& random) {
  static const char* const kPieces[] = {" ", "\n",   "\"",   "[",  "]", "#", "-1", "99999999999999999999", "read", "work", "+",
                                        "0", "\xff", "lane", "x=", "{", "}", ","};
  for (int i = 0, n = static_cast<int>(random() % 4) + 1; i < n && !text.empty(); ++i) {
    const std::size_t at = random() % text.size(), length = std::min<std::size_t>(random() % 12, text.size() - at);
    switch (random() % 3) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, text.substr(random() % text.size(), length));
        break;
      default:
        text.replace(at, length, kPieces[random() % std::size(kPieces)]);
    }
  }
  return text;
}

TEST(TextRoundTrip, DamagedTextIsRefusedOrRoundTrips) {
  std::mt19937_64 random(7);
  int refused = 0;
  for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
    const std::string text = damaged(print_schedule(Generator(seed).schedule()), random);
    try {
      const Schedule schedule = parse_schedule(text, "t.sched");
      ASSERT_TRUE(parse_schedule(print_schedule(schedule), "t.sched") == schedule) << text;
      for (const Diagnostic& d : verify(schedule)) ASSERT_FALSE(format_diagnostic(d).empty());
    } catch (const InputError& error) {
      ++refused;
      for (const Diagnostic& d : error.problems()) {
        ASSERT_GT(d.place.line, 0);
        ASSERT_GT(d.place.column, 0);
        ASSERT_FALSE(d.code.empty());
      }
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_LT(refused, 1450);
}

}  // namespace
}  // namespace steptwin
