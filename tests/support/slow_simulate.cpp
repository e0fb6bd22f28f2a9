#include "tests/support/slow_simulate.h"

#include <algorithm>
#include <cmath>

namespace steptwin::test {
namespace {

struct Instance {  // one op of one rank
  RankId rank;
  OpId id;
  const Op* op = nullptr;
  SlowTimes t;
  std::int64_t after_launch = -1, own_end = -1;  // own_end: of a transfer, before the group is joined
  std::vector<Instance*> before;   // must have ended: lane, communicator FIFO outside the own group, dependencies
  std::vector<Instance*> group;    // all members, itself included
  std::vector<Instance*> meets;    // counterparts, itself included; empty: a counterpart is missing
  double left = 0, rate = 0;
  std::int64_t projected = 0;
};

using Key = std::vector<std::int64_t>;

struct World {
  std::vector<std::vector<Instance>> ranks;
  const Schedule& s;
  explicit World(const Schedule& schedule) : s(schedule) {
    const auto program_of = s.program_of_rank();
    for (std::uint32_t r = 0; r < program_of.size(); ++r) {
      ranks.emplace_back();
      if (!program_of[r].valid()) continue;
      const Program& p = s.programs[program_of[r].value];
      for (std::uint32_t i = 0; i < p.op_count; ++i) {
        Instance x;
        x.rank = RankId(r), x.id = OpId(p.first_op.value + i), x.op = &s.ops[x.id.value];
        ranks[r].push_back(x);
      }
    }
    for (auto& ops : ranks) link_rank(ops);
    link_counterparts();
  }

  // Key of the FIFO that a communication op queues in: (comm, kind of queue, peer rank).
  Key fifo(const Instance& x) const {
    const CommId comm = comm_of(x.op->body);
    const CommInstances c = expand(s.mesh, s.communicators[comm.value]);
    const auto& members = c.members[c.instance_of[x.rank.value]];
    const auto n = static_cast<std::uint32_t>(members.size());
    if (auto* m = std::get_if<Send>(&x.op->body)) return {comm.value, 1, members[m->to.resolve(c.member_of[x.rank.value], n)].value};
    if (auto* m = std::get_if<Recv>(&x.op->body)) return {comm.value, 2, members[m->from.resolve(c.member_of[x.rank.value], n)].value};
    return {comm.value, 0, c.instance_of[x.rank.value]};
  }

  void link_rank(std::vector<Instance>& ops) {
    std::map<std::uint32_t, Instance*> lane;
    std::map<Key, std::vector<Instance*>> queues;
    for (Instance& x : ops) {
      if (x.op->lane.valid() && lane.count(x.op->lane.value)) {
        Instance* last = lane[x.op->lane.value];
        if (!x.op->group.valid() || last->op->group != x.op->group) x.before.push_back(last);
      }
      if (x.op->lane.valid()) lane[x.op->lane.value] = &x;
      for (OpId dep : s.deps_of(x.id)) x.before.push_back(&ops[dep.value - ops[0].id.value]);
      if (comm_of(x.op->body).valid()) {
        auto& queue = queues[fifo(x)];
        for (auto it = queue.rbegin(); it != queue.rend(); ++it)
          if (!x.op->group.valid() || (*it)->op->group != x.op->group) { x.before.push_back(*it); break; }
        queue.push_back(&x);
      }
      for (Instance& y : ops)
        if (&y == &x || (x.op->group.valid() && y.op->group == x.op->group)) x.group.push_back(&y);
    }
  }

  void link_counterparts() {
    std::map<Key, std::vector<Instance*>> meetings;  // (comm, what, from, to or instance, k)
    std::map<Key, std::int64_t> count;
    std::map<Key, std::size_t> wanted;
    for (auto& ops : ranks)
      for (Instance& x : ops) {
        if (!comm_of(x.op->body).valid()) { x.meets = {&x}; continue; }
        const Key q = fifo(x);
        const std::int64_t me = x.rank.value, peer = q[2];
        Key meeting = q[1] == 0 ? Key{q[0], 0, peer, 0} : q[1] == 1 ? Key{q[0], 1, me, peer} : Key{q[0], 1, peer, me};
        meeting.push_back(count[{q[0], q[1], q[2], me}]++);
        meetings[meeting].push_back(&x);
        const CommInstances c = expand(s.mesh, s.communicators[static_cast<std::size_t>(q[0])]);
        wanted[meeting] = q[1] == 0 ? c.members[c.instance_of[x.rank.value]].size() : 2;
      }
    for (auto& [key, members] : meetings)
      if (members.size() == wanted[key])
        for (Instance* x : members) x->meets = members;
  }
};

std::int64_t last_end(const std::vector<Instance*>& list, std::int64_t now, bool& all) {
  std::int64_t latest = 0;
  for (const Instance* x : list) {
    if (x->t.end < 0 || x->t.end > now) all = false;
    latest = std::max(latest, x->t.end);
  }
  return latest;
}

// Ports of a transfer: sender's out and receiver's in; all members' out and in for a collective.
std::vector<std::uint32_t> ports(const Instance& x) {
  std::vector<std::uint32_t> out;
  for (const Instance* y : x.meets) {
    if (!std::holds_alternative<Recv>(y->op->body)) out.push_back(y->rank.value * 2);
    if (!std::holds_alternative<Send>(y->op->body)) out.push_back(y->rank.value * 2 + 1);
  }
  return out;
}

// Max-min shares of ports of capacity 1: fill the tightest port, take it away, repeat.
void share_links(const std::vector<Instance*>& flows) {
  std::map<std::uint32_t, double> capacity;
  for (Instance* f : flows) {
    f->rate = 0;
    for (std::uint32_t p : ports(*f)) capacity[p] = 1;
  }
  const auto open_on = [&flows](std::uint32_t port) {
    int n = 0;
    for (Instance* f : flows)
      if (f->rate == 0)
        for (std::uint32_t q : ports(*f)) n += q == port ? 1 : 0;
    return n;
  };
  while (std::any_of(flows.begin(), flows.end(), [](Instance* f) { return f->rate == 0; })) {
    std::uint32_t tightest = 0;
    double fair = 2;
    for (const auto& [port, left] : capacity)
      if (const int n = open_on(port); n > 0 && left / n < fair) fair = left / n, tightest = port;
    std::vector<Instance*> freeze;
    for (Instance* f : flows) {
      const auto list = ports(*f);
      if (f->rate == 0 && std::find(list.begin(), list.end(), tightest) != list.end()) freeze.push_back(f);
    }
    for (Instance* f : freeze) {
      f->rate = fair;
      for (std::uint32_t p : ports(*f)) capacity[p] -= fair;
    }
  }
}

// Rates of transfers and of compute ops; then projects every end once.
void share(const std::vector<Instance*>& flows, double contention, std::int64_t now) {
  std::vector<Instance*> transfers, computes;
  for (Instance* f : flows) (std::holds_alternative<Compute>(f->op->body) ? computes : transfers).push_back(f);
  share_links(transfers);
  for (Instance* f : computes) f->rate = 1 / (1 + contention * (static_cast<double>(computes.size()) - 1));
  for (Instance* f : flows) f->projected = now + static_cast<std::int64_t>(std::ceil(f->left / f->rate));
}

void advance(std::vector<Instance*>& flows, std::int64_t since) {
  for (Instance* f : flows) f->left = std::max(0.0, f->left - f->rate * static_cast<double>(since));
}

// Would `active` stay within the capacity if the host of this rank, having issued the ops before `next`, allocated for it at `now`?
bool fits(const Schedule& s, const std::vector<Instance>& ops, std::size_t next, std::int64_t now, std::int64_t capacity) {
  struct Buf { bool begun = false, in_use = false, fresh = false; LaneId home; };
  const Program& program = s.program_of(ops[0].id);
  std::vector<Buf> buffers(program.buffers.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    std::vector<BufferId> used;
    for (const Access& access : s.accesses_of(ops[i].id)) used.push_back(access.buffer);
    if (ops[i].op->guard.valid()) used.push_back(ops[i].op->guard);
    for (const BufferId id : used) {
      Buf& b = buffers[id.value];
      if (!b.begun && !ops[i].op->lane.valid()) continue;
      if (!b.begun && i > next) continue;
      if (!b.begun) b.home = ops[i].op->lane, b.fresh = i == next;
      b.begun = true;
      const bool running = ops[i].op->lane != b.home && (ops[i].t.end < 0 || ops[i].t.end > now);
      // What a group uses last is dropped with the group.
      const bool same_group = ops[i].op->group.valid() && ops[i].op->group == ops[next].op->group;
      if (i >= next || same_group || running) b.in_use = true;
    }
  }
  std::int64_t active = 0, need = 0;
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    if (program.buffers[b].space != Space::Device) continue;
    const bool lazy = program.buffers[b].lazy, resident = program.buffers[b].resident && !lazy;
    if (resident || buffers[b].in_use || (lazy && buffers[b].begun)) active += program.buffers[b].bytes.value;
    if (!resident && buffers[b].fresh) need += program.buffers[b].bytes.value;
  }
  return need == 0 || active <= capacity;
}

std::int64_t longest(const Instance& x, const SlowCosts& costs) {
  std::int64_t duration = 0;
  for (const Instance* y : x.meets) duration = std::max(duration, costs.duration(y->rank, y->id));
  return duration;
}

bool takes_slot(const Instance& x, const SlowCosts& costs) {
  if (costs.compute_slots == 0 || x.meets.empty() || !x.op->lane.valid() || longest(x, costs) == 0) return false;
  return costs.slots_for_everything || std::holds_alternative<Compute>(x.op->body);
}

// A transfer (or a local op) ends for all its counterparts; a group ends when its last member does.
void end_all(Instance* x, std::int64_t end) {
  for (Instance* y : x->meets) y->own_end = end;
  for (Instance* y : x->meets) {
    std::int64_t group_end = 0;
    bool complete = true;
    for (Instance* g : y->group) complete = complete && g->own_end >= 0, group_end = std::max(group_end, g->own_end);
    if (complete)
      for (Instance* g : y->group) g->t.end = group_end;
  }
}

// Once nothing else happens at `now`: the first op by (ready, rank, op) that waits for a slot takes one, if one is free. A transfer is ready
// when all its members are, and its lowest member stands for it.
bool start_in_slot(const std::vector<Instance*>& all, const SlowCosts& costs, std::int64_t now, std::int64_t& next) {
  std::uint32_t running = 0;
  Instance* first = nullptr;
  std::int64_t first_ready = 0;
  for (Instance* x : all) {
    if (!takes_slot(*x, costs) || x->meets.front() != x) continue;
    std::int64_t ready = 0;
    bool ok = true;
    for (const Instance* y : x->meets) ok = ok && y->t.ready >= 0, ready = std::max(ready, y->t.ready);
    if (!ok) continue;
    if (x->t.start >= 0) running += x->own_end > now ? 1 : 0;
    else if (ready > now) next = std::min(next, ready);
    else if (first == nullptr || ready < first_ready) first = x, first_ready = ready;  // `all` is by rank and op
  }
  if (first == nullptr || running >= costs.compute_slots) return false;
  const bool local = !comm_of(first->op->body).valid();
  const std::int64_t start = now + (local ? costs.turnaround : 0), end = start + longest(*first, costs);
  for (Instance* y : first->meets) y->t.start = start;
  end_all(first, local ? std::max(end, first->t.issue) : end);
  return true;
}

}  // namespace

SlowResult slow_simulate(const Schedule& schedule, const SlowCosts& costs) {
  World world(schedule);
  std::vector<Instance*> all, flows;
  for (auto& ops : world.ranks)
    for (Instance& x : ops) all.push_back(&x);
  std::vector<std::size_t> cursor(world.ranks.size(), 0);
  std::vector<std::int64_t> host(world.ranks.size(), 0);
  std::int64_t now = 0, flows_at = 0;
  for (;;) {
    bool changed = false;
    std::int64_t next = INT64_MAX;
    for (std::size_t r = 0; r < world.ranks.size(); ++r) {  // hosts
      for (auto& ops = world.ranks[r]; cursor[r] < ops.size(); ++cursor[r]) {
        Instance& x = ops[cursor[r]];
        if (auto* wait = std::get_if<HostWait>(&x.op->body)) {
          const Instance& target = ops[wait->target.value - ops[0].id.value];
          if (target.t.end < 0 || target.t.end > now) break;
          x.t = {std::max(host[r], target.t.end), host[r], host[r], std::max(host[r], target.t.end)};
          host[r] = x.t.end;
        } else {
          if (costs.capacity > 0 && host[r] > now) { next = std::min(next, host[r]); break; }
          if (costs.capacity > 0 && !fits(schedule, ops, cursor[r], now, costs.capacity)) break;
          if (costs.capacity > 0) host[r] = now;
          const bool follows = x.op->group.valid() && x.group.front() != &x;
          host[r] += follows ? 0 : costs.launch(x.rank, x.id);
          x.t.issue = x.after_launch = host[r];
        }
        changed = true;
      }
    }
    for (Instance* x : all) {  // readiness
      if (x->t.ready >= 0 || x->after_launch < 0) continue;
      bool ok = true;
      std::int64_t ready = 0;
      for (Instance* g : x->group) {
        if (g->after_launch < 0) { ok = false; break; }
        ready = std::max({ready, g->after_launch, last_end(g->before, now, ok)});
      }
      if (!ok) continue;
      for (Instance* g : x->group) g->t.ready = ready;
      changed = true;
    }
    std::vector<Instance*> started;
    for (Instance* x : all) {  // starts
      if (x->t.start >= 0 || x->t.ready < 0 || x->meets.empty() || x->op->lane == LaneId()) continue;
      std::int64_t start = 0, duration = 0;
      bool ok = true;
      for (Instance* y : x->meets) {
        if (y->t.ready < 0) ok = false;
        start = std::max(start, y->t.ready);
        duration = std::max(duration, costs.duration(y->rank, y->id));
      }
      if (!ok || takes_slot(*x, costs)) continue;
      const bool transfer = comm_of(x->op->body).valid();
      const bool slows = transfer ? costs.fair_links : costs.contention > 0 && std::holds_alternative<Compute>(x->op->body);
      if (slows && duration > 0) {
        if (start > now) { next = std::min(next, start); continue; }
        for (Instance* y : x->meets) y->t.start = start;
        x->left = static_cast<double>(duration);
        started.push_back(x);
      } else {
        for (Instance* y : x->meets) y->t.start = start;
        end_all(x, transfer ? start + duration : std::max(start + duration, x->t.issue));
      }
      changed = true;
    }
    if (!started.empty()) {
      advance(flows, now - flows_at);
      flows_at = now;
      flows.insert(flows.end(), started.begin(), started.end());
      share(flows, costs.contention, now);
    }
    if (changed || start_in_slot(all, costs, now, next)) continue;
    for (Instance* f : flows) next = std::min(next, f->projected);
    for (Instance* x : all) {
      if (x->t.end > now) next = std::min(next, x->t.end);
      if (x->own_end > now) next = std::min(next, x->own_end);
    }
    if (next == INT64_MAX) break;
    now = next;
    std::vector<Instance*> done, rest;
    for (Instance* f : flows) (f->projected <= now ? done : rest).push_back(f);
    if (done.empty()) continue;
    advance(rest, now - flows_at);
    flows_at = now;
    flows = rest;
    share(flows, costs.contention, now);
    for (Instance* f : done) end_all(f, std::max(now, std::holds_alternative<Compute>(f->op->body) ? f->t.issue : now));
  }
  SlowResult out;
  out.finished = std::all_of(all.begin(), all.end(), [](Instance* x) { return x->t.end >= 0; });
  for (Instance* x : all) out.times[{x->rank.value, x->id.value}] = x->t;
  return out;
}

}  // namespace steptwin::test
