#include "tests/support/random_schedule.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "schedule/ir/builder.h"

namespace steptwin::test {
namespace {

// A schedule before it is laid out: ops per rank, with rank-local dependencies and buffers.
struct Draft {
  struct Item {
    Op op;
    std::vector<std::uint32_t> deps;
    std::vector<std::uint32_t> buffers;
  };
  Mesh mesh;
  struct Buf {
    std::int64_t bytes = 0;
    Space space = Space::Device;
    Category category = Category::Activation;
    bool resident = false;
  };
  std::vector<std::uint32_t> lanes;                 // per rank
  std::vector<std::vector<Item>> ranks;
  std::vector<std::vector<Buf>> buffers;            // per rank
  std::vector<std::vector<std::string>> comm_axes;  // communicators: axes
};

Schedule lay_out(const Draft& draft) {
  ScheduleBuilder b(draft.mesh);
  for (std::size_t c = 0; c < draft.comm_axes.size(); ++c) b.communicator("c" + std::to_string(c), draft.comm_axes[c]);
  for (std::uint32_t r = 0; r < draft.ranks.size(); ++r) {
    b.begin_program("r" + std::to_string(r), {RankId(r)});
    for (std::uint32_t l = 0; l < draft.lanes[r]; ++l) b.lane("l" + std::to_string(l), Engine::Compute);
    std::set<std::uint32_t> used;
    for (const Draft::Item& item : draft.ranks[r])
      if (item.op.lane.valid()) used.insert(item.buffers.begin(), item.buffers.end());
    for (std::uint32_t id = 0; id < draft.buffers[r].size(); ++id) {
      const Draft::Buf& x = draft.buffers[r][id];
      const BufferId made = b.buffer("", x.space, x.category, Bytes(x.bytes), {}, x.resident);
      if (x.resident && used.contains(id) && id % 2 == 1) b.make_lazy(made);
    }
    const std::uint32_t first = b.next_op();
    for (const Draft::Item& item : draft.ranks[r]) {
      std::vector<OpId> deps;
      for (std::uint32_t d : item.deps) deps.push_back(OpId(first + d));
      std::vector<Access> accesses;
      for (std::uint32_t buffer : item.buffers) accesses.push_back(update(BufferId(buffer)));
      Op op = item.op;
      if (auto* wait = std::get_if<HostWait>(&op.body)) wait->target = OpId(first + wait->target.value);
      if (std::holds_alternative<Compute>(op.body)) {
        const OpId id = b.compute(op.lane, op.label, WorkId(), accesses, deps);
        b.at(id).given = op.given;
        b.at(id).guard = op.guard;
      } else {
        b.op(op, accesses, deps);
      }
    }
  }
  return b.finish();
}

class Generator {
 public:
  Generator(std::uint64_t seed, std::uint32_t max_ops) : random_(seed), budget_(1 + random_.below(max_ops)) {
    const std::uint32_t pp = 1 + random_.below(3), dp = 1 + random_.below(2);
    draft_.mesh = Mesh{{{"pp", pp}, {"dp", dp}}};
    ranks_ = pp * dp;
    draft_.comm_axes = {{"pp"}, {"pp"}, {"dp"}, {"pp", "dp"}};
    for (const auto& axes : draft_.comm_axes) {
      Communicator comm{"", {}, {}};
      for (const auto& axis : axes) comm.axes.push_back(*draft_.mesh.axis(axis));
      comms_.push_back(expand(draft_.mesh, comm));
    }
    for (std::uint32_t r = 0; r < ranks_; ++r) {
      draft_.lanes.push_back(1 + random_.below(3));
      draft_.ranks.emplace_back();
      draft_.buffers.emplace_back();
      for (std::uint32_t i = random_.below(4); i-- > 0;) draft_.buffers[r].push_back({1 + random_.below(100)});
    }
  }

  Draft make() {
    while (used_ < budget_) {
      const std::uint32_t what = random_.below(100);
      if (what < 45) local(random_.below(ranks_));
      else if (what < 70) message();
      else if (what < 80) collective();
      else if (what < 90) group();
      else host_wait(random_.below(ranks_));
    }
    return std::move(draft_);
  }

 private:
  Draft::Item& push(std::uint32_t rank, Op op) {
    auto& items = draft_.ranks[rank];
    items.push_back({std::move(op), {}, {}});
    ++used_;
    Draft::Item& item = items.back();
    for (std::uint32_t i = random_.below(3); i-- > 0 && items.size() > 1;) {
      const std::uint32_t dep = random_.below(static_cast<std::uint32_t>(items.size() - 1));
      if (!(item.op.group.valid() && items[dep].op.group == item.op.group)) item.deps.push_back(dep);
    }
    for (std::uint32_t b = 0; b < draft_.buffers[rank].size(); ++b)
      if (random_.chance(30)) item.buffers.push_back(b);
    return item;
  }
  Op op_on(std::uint32_t rank, OpBody body) {
    Op op;
    op.body = body;
    op.lane = LaneId(random_.below(draft_.lanes[rank]));
    op.given = Duration(random_.chance(10) ? 0 : 1 + random_.below(20));
    return op;
  }
  void local(std::uint32_t rank) { push(rank, op_on(rank, Compute{})); }
  void host_wait(std::uint32_t rank) {
    const auto size = static_cast<std::uint32_t>(draft_.ranks[rank].size());
    if (size == 0) return local(rank);
    Op op;
    op.body = HostWait{OpId(random_.below(size))};
    draft_.ranks[rank].push_back({op, {}, {}});
    ++used_;
  }

  struct Pair { CommId comm; std::uint32_t from, to; Peer to_peer, from_peer; };
  std::optional<Pair> pick_pair() {
    const std::uint32_t c = random_.below(static_cast<std::uint32_t>(comms_.size()));
    const auto& members = comms_[c].members[random_.below(static_cast<std::uint32_t>(comms_[c].members.size()))];
    const auto n = static_cast<std::int32_t>(members.size());
    if (n < 2) return std::nullopt;
    const auto from = static_cast<std::int32_t>(random_.below(static_cast<std::uint32_t>(n)));
    const auto step = 1 + static_cast<std::int32_t>(random_.below(static_cast<std::uint32_t>(n - 1)));
    const std::int32_t to = (from + step) % n;
    const bool relative = random_.chance(50);
    return Pair{CommId(c), members[static_cast<std::size_t>(from)].value, members[static_cast<std::size_t>(to)].value,
                relative ? Peer{step, true} : Peer{to, false}, random_.chance(50) ? Peer{-step, true} : Peer{from, false}};
  }
  void message() {
    const auto pair = pick_pair();
    if (!pair) return local(random_.below(ranks_));
    push(pair->from, op_on(pair->from, Send{pair->comm, DType::Bf16, Bytes(8), pair->to_peer}));
    push(pair->to, op_on(pair->to, Recv{pair->comm, DType::Bf16, Bytes(8), pair->from_peer}));
  }
  void collective() {
    const std::uint32_t c = random_.below(static_cast<std::uint32_t>(comms_.size()));
    const auto& members = comms_[c].members[random_.below(static_cast<std::uint32_t>(comms_[c].members.size()))];
    for (RankId rank : members) push(rank.value, op_on(rank.value, AllReduce{CommId(c), DType::Fp32, Bytes(64)}));
  }
  // Several messages at once; on every rank that takes part its ends form one group on one lane.
  void group() {
    std::vector<Pair> pairs;
    for (std::uint32_t i = 1 + random_.below(3); i-- > 0;)
      if (const auto pair = pick_pair()) pairs.push_back(*pair);
    for (std::uint32_t r = 0; r < ranks_; ++r) {
      const LaneId lane(random_.below(draft_.lanes[r]));
      const GroupId id(groups_++);
      for (const Pair& p : pairs) {
        Op op;
        if (p.from == r) op = op_on(r, Send{p.comm, DType::Bf16, Bytes(8), p.to_peer});
        else if (p.to == r) op = op_on(r, Recv{p.comm, DType::Bf16, Bytes(8), p.from_peer});
        else continue;
        op.lane = lane;
        op.group = id;
        push(r, op);
      }
    }
  }

  Random random_;
  std::uint32_t budget_, used_ = 0, ranks_ = 1, groups_ = 0;
  Draft draft_;
  std::vector<CommInstances> comms_;
};

// More buffers: each is used by a few ops of a window of the program, so that many live and die. One in ten is resident, half of these lazy.
void add_buffers(Draft& draft, Random& random) {
  constexpr std::array kPlaces = {Space::Device, Space::Device, Space::Device, Space::Pinned};
  for (std::size_t r = 0; r < draft.ranks.size(); ++r) {
    auto& items = draft.ranks[r];
    const auto size = static_cast<std::uint32_t>(items.size());
    for (std::uint32_t left = size == 0 ? 0 : 1 + random.below(size); left-- > 0;) {
      const auto category = static_cast<Category>(random.below(kCategories));
      draft.buffers[r].push_back({random.below(100), kPlaces[random.below(4)], category, random.chance(10)});
      const auto id = static_cast<std::uint32_t>(draft.buffers[r].size() - 1);
      const std::uint32_t first = random.below(size), window = std::min(size - first, 1 + random.below(12));
      for (std::uint32_t uses = 1 + random.below(4); uses-- > 0;) items[first + random.below(window)].buffers.push_back(id);
      Op& op = items[first + random.below(window)].op;
      if (op.lane.valid() && random.chance(5)) op.guard = BufferId(id);
    }
  }
}

bool plain(const Draft::Item& item) { return !item.op.group.valid() && !std::holds_alternative<HostWait>(item.op.body); }

void disturb_order(Draft& draft, Random& random) {
  for (auto& items : draft.ranks) {
    if (items.size() < 2) continue;
    const std::uint32_t i = random.below(static_cast<std::uint32_t>(items.size() - 1));
    if (!plain(items[i]) || !plain(items[i + 1])) continue;
    const auto depends = [](const Draft::Item& item, std::uint32_t on) { return std::find(item.deps.begin(), item.deps.end(), on) != item.deps.end(); };
    bool mentioned = depends(items[i + 1], i);
    for (const auto& item : items) {
      mentioned = mentioned || depends(item, i) || depends(item, i + 1);
      if (const auto* wait = std::get_if<HostWait>(&item.op.body)) mentioned = mentioned || wait->target == OpId(i) || wait->target == OpId(i + 1);
    }
    if (!mentioned) std::swap(items[i], items[i + 1]);
  }
}

}  // namespace

Schedule random_schedule(std::uint64_t seed, std::uint32_t max_ops, Disturb disturb) {
  Draft draft = Generator(seed, max_ops).make();
  if (disturb == Disturb::Swap) {
    Random random(seed ^ 0xabcdef);
    for (int i = 0; i < 30; ++i) disturb_order(draft, random);
  }
  return lay_out(draft);
}

Schedule random_memory_schedule(std::uint64_t seed, std::uint32_t max_ops) {
  Draft draft = Generator(seed, max_ops).make();
  Random random(seed ^ 0x5eed);
  add_buffers(draft, random);
  return lay_out(draft);
}

Schedule holding(Schedule schedule) {
  for (Access& access : schedule.accesses) access.mode = AccessMode::Hold;
  for (Op& op : schedule.ops) op.guard = BufferId();
  return schedule;
}

std::uint64_t for_each_small_schedule(std::uint32_t max_ops, const std::function<void(const Schedule&)>& visit) {
  std::uint64_t count = 0;
  // kind per op: compute on rank 0/1, or the ends of the single message (send 0->1 in two ops); lane 0/1; duration 1/2.
  struct Choice { std::uint32_t rank, lane, duration, kind; };  // kind 0 compute, 1 send, 2 recv
  std::vector<Choice> ops;
  std::vector<std::vector<std::uint32_t>> deps;
  const auto emit = [&] {
    Draft draft;
    draft.mesh = Mesh{{{"pp", 2}}};
    draft.comm_axes = {{"pp"}};
    draft.lanes = {2, 2};
    draft.ranks.resize(2);
    draft.buffers.resize(2);
    std::vector<std::uint32_t> local(ops.size());
    for (std::size_t i = 0; i < ops.size(); ++i) {
      Draft::Item item;
      if (ops[i].kind == 1) item.op.body = Send{CommId(0), DType::Bf16, Bytes(8), Peer{1, true}};
      if (ops[i].kind == 2) item.op.body = Recv{CommId(0), DType::Bf16, Bytes(8), Peer{-1, true}};
      item.op.lane = LaneId(ops[i].lane);
      item.op.given = Duration(ops[i].duration);
      local[i] = static_cast<std::uint32_t>(draft.ranks[ops[i].rank].size());
      for (std::uint32_t d : deps[i]) item.deps.push_back(local[d]);
      draft.ranks[ops[i].rank].push_back(item);
    }
    visit(lay_out(draft));
    ++count;
  };
  const std::function<void(int, int)> grow = [&](int sends, int recvs) {
    if (!ops.empty() && sends == recvs) emit();
    if (ops.size() == max_ops) return;
    for (std::uint32_t kind = 0; kind < 3; ++kind) {
      if ((kind == 1 && sends == 1) || (kind == 2 && recvs == 1)) continue;
      for (std::uint32_t rank = kind == 2 ? 1 : 0; rank <= (kind == 1 ? 0u : 1u); ++rank)
        for (std::uint32_t lane = 0; lane < 2; ++lane)
          for (std::uint32_t duration = 1; duration <= 2; ++duration) {
            std::vector<std::uint32_t> earlier;
            for (std::uint32_t i = 0; i < ops.size(); ++i)
              if (ops[i].rank == rank) earlier.push_back(i);
            for (std::uint32_t mask = 0; mask < (1u << earlier.size()); ++mask) {
              ops.push_back({rank, lane, duration, kind});
              deps.emplace_back();
              for (std::size_t i = 0; i < earlier.size(); ++i)
                if (mask & (1u << i)) deps.back().push_back(earlier[i]);
              grow(sends + (kind == 1), recvs + (kind == 2));
              ops.pop_back();
              deps.pop_back();
            }
          }
    }
  };
  grow(0, 0);
  return count;
}

Schedule without_op(const Schedule& schedule, OpId removed) {
  ScheduleBuilder b(schedule.mesh);
  Schedule out;
  for (const Communicator& comm : schedule.communicators) {
    std::vector<std::string> axes;
    for (std::size_t a : comm.axes) axes.push_back(schedule.mesh.axes[a].name);
    b.communicator(comm.name, axes, comm.groups);
  }
  for (const Program& p : schedule.programs) {
    b.begin_program(p.name, p.ranks, p.stages);
    for (const Lane& lane : p.lanes) b.lane(lane.name, lane.engine, lane.priority);
    for (const Buffer& buffer : p.buffers) {
      const BufferId made = b.buffer("", buffer.space, buffer.category, buffer.bytes, {}, buffer.resident);
      if (buffer.lazy) b.make_lazy(made);
    }
    std::vector<std::optional<OpId>> renumbered(p.op_count);
    for (std::uint32_t i = 0; i < p.op_count; ++i) {
      const OpId id(p.first_op.value + i);
      if (id == removed) continue;
      Op op = schedule.ops[id.value];
      const auto moved = [&](OpId old) { return renumbered[old.value - p.first_op.value]; };
      if (auto* wait = std::get_if<HostWait>(&op.body)) {
        if (!moved(wait->target)) continue;
        wait->target = *moved(wait->target);
      }
      std::vector<OpId> deps;
      for (OpId dep : schedule.deps_of(id))
        if (moved(dep)) deps.push_back(*moved(dep));
      const auto accesses = schedule.accesses_of(id);
      if (std::holds_alternative<Compute>(op.body)) {
        renumbered[i] = b.compute(op.lane, op.label, WorkId(), {accesses.begin(), accesses.end()}, deps);
        b.at(*renumbered[i]).given = op.given;
        b.at(*renumbered[i]).guard = op.guard;
      } else {
        renumbered[i] = b.op(op, {accesses.begin(), accesses.end()}, deps);
      }
    }
  }
  return b.finish();
}

}  // namespace steptwin::test
