// The engine loop: the inequalities of schedule.h as code. It visits runnable lanes until none is left; with fixed costs the
// semantics is max-plus, so the order of visits does not matter (replay: a stack). With shared resources or memory limits
// visits happen in time order (event: a heap). Both use the same start rule; they differ in when an op counts as ended:
// at once (replay) or when its end is popped (event).
//
// Rules is a policy class:
//   static constexpr bool kTimed;                       false: replay, true: event
//   const OpNode* nodes(rank)                           the rank's ops (those of its tables; `price` is the rule's own)
//   std::int64_t duration(node)                         ns; guards already applied
//   LaunchNs launch(node)                               issue cost
//   bool tick(ops_done, now)                            called now and then; false stops the loop
//   void rank_done(rank, step, const OpTimes*)          a rank finished a repetition (its times may be overwritten afterwards)
//   timed only: bool needs_turn(rank, op)               the op must begin in time order (it uses something shared)
//               void begin(loop, rank, op, start)       an op (leader of its counterparts) may start at `start`: the rule calls
//                                                       loop.schedule_end(...) or loop.finish(...) now or later; until then times(rank)[op].end
//                                                       is its duration
//               void wake(loop, token, now)             an alarm set by loop.schedule_wake
//               void grant(loop, node, freed, now)      slots: set by loop.schedule_grant; comes after everything else of its instant
//               void ended(loop, rank, op, end)         the op of one rank ended, before dependents run
//               bool host_in_time()                     true: the host issues in time order and asks may_issue
//               bool may_issue(loop, rank, op, now)     false: the host stalls at this op until loop.resume_host(rank)
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "schedule/ir/matching.h"

namespace steptwin {

struct OpTimes {
  std::int64_t issue, ready, start, end;  // ns
};
struct LaunchNs {
  std::int64_t total = 0, first = 0;
  auto operator<=>(const LaunchNs&) const = default;
};

template <class Rules>
class EngineLoop {
 public:
  static constexpr std::uint32_t kDone = 0xffffffffu;  // head of a finished lane
  enum class EventKind : std::uint8_t { End, Wake, Host, Start, Grant };  // order at one instant; Wake: a rule's own alarm

  // `times`: room for time_slots(matching) entries, of which the loop fills those of each rank (see times()).
  EngineLoop(const Matching& matching, Rules& rules, std::uint32_t steps, OpTimes* times) : matching_(matching), rules_(rules), steps_(steps) {
    set_up_ranks(times);
    instances_.resize(matching.instances.size());
  }

  static std::size_t time_slots(const Matching& matching) {
    std::size_t ops = 0;
    for (const SimRank& sim : matching.ranks) ops += matching.tables[sim.tables].nodes.size() - 1;
    return ops;
  }

  // Runs to the end. True when every rank finished all repetitions; false: stopped by tick(), or nothing can proceed.
  bool run() {
    for (std::uint32_t r = static_cast<std::uint32_t>(ranks_.size()); r-- > 0;) start_rank(r);
    const bool finished = run_agenda();
    if (!finished && !stopped_) issue_the_rest();
    return finished;
  }

  const OpTimes* times(std::uint32_t rank) const { return ranks_[rank].times; }
  bool finished(std::uint32_t rank) const { return ranks_[rank].step == steps_; }
  std::uint32_t step(std::uint32_t rank) const { return ranks_[rank].step; }
  std::uint64_t ops_done() const { return ops_done_; }
  std::int64_t now() const { return now_; }
  bool stopped() const { return stopped_; }
  bool ended(std::uint32_t rank, std::uint32_t op) const { return is_done(ranks_[rank], op, lane_number(rank, op)); }

  // What the head of a lane waits for, for explanations. Valid after run() returned false.
  enum class Wait : std::uint8_t { Nothing, Finished, Op, Host, Counterpart };
  struct Blocked {
    Wait wait = Wait::Nothing;
    std::uint32_t head = 0;      // local op at the head of the lane
    std::uint32_t waiting_on = 0;  // Op: local op. Host: the op that the host stands at
  };
  Blocked blocked(std::uint32_t rank, std::uint32_t lane) const;
  std::uint32_t host_position(std::uint32_t rank) const { return ranks_[rank].heads[ranks_[rank].lanes]; }
  std::uint32_t host_waiting_on(std::uint32_t rank) const { return ranks_[rank].host_wait; }

  // Timed rules only.
  void schedule_end(std::uint32_t rank, std::uint32_t op, std::int64_t start, std::int64_t end) {
    OpTimes& t = ranks_[rank].times[op];
    t.start = start;
    push_event(std::max(end, t.issue), EventKind::End, rank, op);
  }
  void finish(std::uint32_t rank, std::uint32_t op, std::int64_t start, std::int64_t end) {
    ranks_[rank].times[op].start = start;
    finish_transfer(rank, op, end);
  }
  void schedule_start(std::uint32_t rank, std::uint32_t op, std::int64_t at) { push_event(at, EventKind::Start, rank, op); }
  void schedule_wake(std::int64_t at, std::uint32_t token) { push_event(at, EventKind::Wake, 0, token); }
  void schedule_grant(std::int64_t at, std::uint32_t node, std::uint32_t freed) { push_event(at, EventKind::Grant, node, freed); }
  void resume_host(std::uint32_t rank) {
    RankState& r = ranks_[rank];
    if (r.host_wait != kStalled) return;
    r.host_wait = kNone;
    r.host_time = std::max(r.host_time, now_);
    wake_host_lanes(rank, r);
  }
  bool host_stalled(std::uint32_t rank) const { return ranks_[rank].host_wait == kStalled; }
  std::int64_t host_time(std::uint32_t rank) const { return ranks_[rank].host_time; }

 private:
  static constexpr std::uint32_t kNone = 0xffffffffu;     // waits for nothing: runnable
  static constexpr std::uint32_t kHost = 0xfffffffeu;     // for its host to issue
  static constexpr std::uint32_t kPosted = 0xfffffffdu;   // ready, for its counterparts or its end
  static constexpr std::uint32_t kStalled = 0xfffffffcu;  // host only: for memory
  static constexpr std::uint32_t kTimer = 0xfffffffbu;    // host only (timed): for its own clock

  struct LaneState {
    std::int64_t last_end = 0;
    std::int64_t group_end = 0;
    std::uint32_t position = 0, end = 0;  // into lane_ops
    std::uint32_t group_left = 0;
    std::uint32_t number = 0;             // of the lane
  };
  struct ChannelState {
    std::int64_t last_end = 0;
    std::uint32_t posted = 0, done = 0;   // of this step
    const std::uint32_t* ops = nullptr;   // the FIFO: local ops
    std::uint32_t last_posted = 0;        // local op
    std::uint32_t peer = Counterpart::kNobody, peer_channel = 0;  // message: rank and its channel; collective: instance
  };
  struct RankState {
    const OpNode* nodes = nullptr;
    const std::uint32_t* deps = nullptr;
    const std::uint32_t* lane_ops = nullptr;
    OpTimes* times = nullptr;
    LaneState* lane = nullptr;
    std::uint32_t* heads = nullptr;       // [lanes + 1] local op at the head; the last is the host's
    std::uint32_t* waits = nullptr;       // [lanes] what the lane waits for: a local op, or one of the above; beside heads in memory
    ChannelState* channels = nullptr;
    const ProgramTables* tables = nullptr;
    std::uint32_t lanes = 0, op_count = 0, lanes_left = 0, step = 0;
    std::uint32_t host_wait = kNone;
    std::int64_t host_time = 0;
    std::int64_t floor = 0;               // end of the previous repetition
  };
  // A collective that some members have posted. Usually one at a time per instance; a group may post several.
  struct Slot {
    std::uint32_t step = 0, sequence = 0, arrived = 0;
    std::int64_t ready = 0, duration = 0;
  };
  using InstanceState = std::vector<Slot>;
  struct Work { std::uint32_t rank, lane; };
  struct Event {
    std::int64_t time;
    EventKind kind;
    std::uint32_t rank, op;
    bool operator>(const Event& o) const {
      if (time != o.time) return time > o.time;
      if (kind != o.kind) return kind > o.kind;
      if (rank != o.rank) return rank > o.rank;
      return op > o.op;
    }
  };

  // ---- set-up -------------------------------------------------------------------------------------------------------
  void set_up_ranks(OpTimes* times) {
    std::size_t lanes = 0, heads = 0, channels = 0;
    for (const SimRank& sim : matching_.ranks) {
      const ProgramTables& t = matching_.tables[sim.tables];
      lanes += t.lanes, heads += 2 * t.lanes + 1, channels += t.channels.size();
    }
    lanes_.resize(lanes), heads_.resize(heads), channels_.resize(channels), ranks_.resize(matching_.ranks.size());
    std::size_t ops = 0;
    lanes = heads = channels = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const SimRank& sim = matching_.ranks[i];
      const ProgramTables& t = matching_.tables[sim.tables];
      RankState& r = ranks_[i];
      r.nodes = rules_.nodes(static_cast<std::uint32_t>(i)), r.deps = t.deps.data(), r.lane_ops = t.lane_ops.data(), r.tables = &t;
      r.lanes = t.lanes, r.op_count = static_cast<std::uint32_t>(t.nodes.size() - 1);
      r.times = times + ops, r.lane = lanes_.data() + lanes, r.heads = heads_.data() + heads, r.channels = channels_.data() + channels;
      r.waits = r.heads + t.lanes + 1;
      for (std::size_t c = 0; c < t.channels.size(); ++c) {
        r.channels[c].ops = t.channels[c].ops.data();
        r.channels[c].peer = sim.counterparts[c].rank, r.channels[c].peer_channel = sim.counterparts[c].channel;
      }
      ops += r.op_count, lanes += t.lanes, heads += 2 * t.lanes + 1, channels += t.channels.size();
    }
  }

  void start_rank(std::uint32_t index) {
    RankState& r = ranks_[index];
    if (r.step == steps_) return;
    r.lanes_left = 0;
    r.heads[r.lanes] = 0;
    for (std::size_t c = 0; c < r.tables->channels.size(); ++c) r.channels[c].posted = r.channels[c].done = 0;
    for (std::uint32_t l = r.lanes; l-- > 0;) {
      LaneState& lane = r.lane[l];
      lane = {r.floor, 0, r.tables->lane_begin[l], r.tables->lane_begin[l + 1], 0, l};
      r.waits[l] = kNone;
      r.heads[l] = lane.position < lane.end ? r.lane_ops[lane.position] : kDone;
      if (lane.position == lane.end) continue;
      ++r.lanes_left;
      work_.push_back({index, l});
    }
    if (r.lanes_left == 0) finish_rank_if_done(index, r);
  }

  // Of a run that cannot go on: hosts issue what they still can, so that every op that is not blocked has its times.
  void issue_the_rest() {
    for (std::uint32_t r = 0; r < ranks_.size(); ++r)
      if (ranks_[r].step < steps_ && ranks_[r].op_count > 0) advance_host(r, ranks_[r], ranks_[r].op_count - 1);
  }

  // ---- agendas ------------------------------------------------------------------------------------------------------
  bool run_agenda() {
    if constexpr (Rules::kTimed) return run_timed();
    else return run_work();
  }

  bool run_work() {
    while (!work_.empty() && !stopped_) {
      const Work next = work_.back();
      work_.pop_back();
      run_lane(next.rank, next.lane);
    }
    return !stopped_ && all_finished();
  }

  bool run_timed() {
    for (;;) {
      while (!work_.empty()) {
        const Work next = work_.back();
        work_.pop_back();
        run_lane(next.rank, next.lane);
      }
      running_ = nullptr;
      if (events_.empty() || stopped_) break;
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      handle(event);
    }
    return !stopped_ && all_finished();
  }

  void handle(const Event& event) {
    if constexpr (Rules::kTimed) {
      switch (event.kind) {
        case EventKind::End: finish_transfer(event.rank, event.op, event.time); break;
        case EventKind::Start: rules_.begin(*this, event.rank, event.op, event.time); break;
        case EventKind::Wake: rules_.wake(*this, event.op, event.time); break;
        case EventKind::Grant: rules_.grant(*this, event.rank, event.op, event.time); break;
        case EventKind::Host:
          if (ranks_[event.rank].host_wait == kTimer) {
            ranks_[event.rank].host_wait = kNone;
            wake_host_lanes(event.rank, ranks_[event.rank]);
          }
          break;
      }
    }
  }

  void push_event(std::int64_t time, EventKind kind, std::uint32_t rank, std::uint32_t op) { events_.push({time, kind, rank, op}); }

  bool all_finished() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [this](const RankState& r) { return r.step == steps_; });
  }

  // The hot functions are inlined by hand: the loop spends 30 to 40 ns an op, and calls are a quarter of it.

  // ---- readiness ----------------------------------------------------------------------------------------------------
  static bool is_done(const RankState& r, std::uint32_t op, std::uint32_t lane) { return r.heads[lane] > op; }
  std::uint32_t lane_number(std::uint32_t rank, std::uint32_t op) const { return ranks_[rank].nodes[op].lane; }

  // Runs one lane until its head has to wait.
  void run_lane(std::uint32_t index, std::uint32_t l) {
    RankState& r = ranks_[index];
    LaneState& lane = r.lane[l];
    if (r.waits[l] == kPosted || r.heads[l] == kDone) return;
    r.waits[l] = kNone;
    running_ = &lane;
    do {
      const std::uint32_t op = r.heads[l];
      const OpNode& node = r.nodes[op];
      prefetch(r, op);
      if (node.flags & OpNode::kGrouped) {
        if (!post_group(index, r, l)) return;
        continue;
      }
      if (!is_ready(index, r, lane, op, node)) return;
      if (node.kind == OpNode::Kind::Local) {
        run_local(index, r, lane, l, op);
      } else {
        r.waits[l] = kPosted;
        post(index, r, op, node);
      }
    } while (r.waits[l] == kNone && r.heads[l] != kDone);
  }

  // Ranks are visited in turn, so their tables are many slow streams: ask for what comes soon.
  static void prefetch(const RankState& r, std::uint32_t op) {
    __builtin_prefetch(r.nodes + op + 24);
    __builtin_prefetch(r.times + op + 12, 1);
  }

  // Issues up to `op`, then joins lane, communicator FIFO and dependencies; the result is in times[op].ready.
  [[gnu::always_inline]] bool is_ready(std::uint32_t index, RankState& r, LaneState& lane, std::uint32_t op, const OpNode& node) {
    if (r.heads[r.lanes] <= op && !advance_host(index, r, op)) {
      r.waits[lane.number] = kHost;
      return false;
    }
    std::int64_t ready = std::max(r.times[op].ready, lane.last_end);
    const std::uint32_t* end = r.deps + r.nodes[op + 1].dep_begin;
    for (const std::uint32_t* d = r.deps + node.dep_begin; d != end; ++d) {
      if (!is_done(r, *d, r.nodes[*d].lane)) {
        r.waits[lane.number] = *d;
        return false;
      }
      ready = std::max(ready, r.times[*d].end);
    }
    if (node.kind != OpNode::Kind::Local) {
      const ChannelState& channel = r.channels[node.channel];
      if (!(node.flags & OpNode::kFollows) && channel.done != node.sequence) {
        r.waits[lane.number] = channel.ops[node.sequence - 1];
        return false;
      }
      ready = std::max(ready, channel.last_end);
    }
    r.times[op].ready = ready;
    return true;
  }

  bool advance_host(std::uint32_t index, RankState& r, std::uint32_t target) {
    if (r.host_wait != kNone) return false;
    if constexpr (Rules::kTimed) {
      if (rules_.host_in_time() && target + 1 < r.op_count) {  // never late: it goes as far as it can
        advance_host(index, r, r.op_count - 1);
        return r.heads[r.lanes] > target;
      }
    }
    std::uint32_t& cursor = r.heads[r.lanes];
    while (cursor <= target) {
      const std::uint32_t op = cursor;
      OpTimes& t = r.times[op];
      if (r.nodes[op].kind == OpNode::Kind::HostWait) {
        const std::uint32_t on = r.nodes[op].sequence;
        if (!is_done(r, on, r.nodes[on].lane)) {
          r.host_wait = on;
          return false;
        }
        const std::int64_t after = std::max(r.host_time, r.times[on].end);
        t = {after, r.host_time, r.host_time, after};
        r.host_time = after;
        ++cursor;
        ++ops_done_;
        if (r.nodes[op].flags & OpNode::kWatched) notify(index, r, op);
        continue;
      }
      if constexpr (Rules::kTimed) {
        if (!host_may_issue(index, r, op)) return false;
      }
      const LaunchNs launch = rules_.launch(r.nodes[op]);
      t.issue = r.host_time + launch.total;
      t.ready = r.host_time + launch.first;
      r.host_time = t.issue;
      ++cursor;
    }
    return true;
  }

  bool host_may_issue(std::uint32_t index, RankState& r, std::uint32_t op) {
    if (!rules_.host_in_time()) return true;
    if (r.host_time > now_) {
      r.host_wait = kTimer;
      push_event(r.host_time, EventKind::Host, index, op);
      return false;
    }
    if (rules_.may_issue(*this, index, op, now_)) return true;
    r.host_wait = kStalled;
    return false;
  }

  // ---- running ------------------------------------------------------------------------------------------------------
  void run_local(std::uint32_t index, RankState& r, LaneState& lane, std::uint32_t l, std::uint32_t op) {
    OpTimes& t = r.times[op];
    if constexpr (Rules::kTimed) {
      r.waits[l] = kPosted;
      t.end = rules_.duration(r.nodes[op]);
      begin_at(index, op, t.ready);
    } else {
      t.start = t.ready;
      t.end = std::max(t.start + rules_.duration(r.nodes[op]), t.issue);
      advance_lane(index, r, lane, l, op, t.end);
    }
  }

  // The op at a lane's head has ended: the lane moves on, watchers wake.
  [[gnu::always_inline]] void advance_lane(std::uint32_t index, RankState& r, LaneState& lane, std::uint32_t l, std::uint32_t op, std::int64_t end) {
    lane.last_end = end;
    ++lane.position;
    r.heads[l] = lane.position < lane.end ? r.lane_ops[lane.position] : kDone;
    if ((++ops_done_ & 0xffff) == 0 && !rules_.tick(ops_done_, end)) stopped_ = true;
    if (r.nodes[op].flags & OpNode::kWatched) notify(index, r, op);
    if (r.heads[l] == kDone && --r.lanes_left == 0) finish_rank_if_done(index, r);
  }

  void notify(std::uint32_t index, RankState& r, std::uint32_t op) {
    for (std::uint32_t l = 0; l < r.lanes; ++l) {
      if (r.waits[l] != op) continue;
      r.waits[l] = kNone;
      work_.push_back({index, l});
    }
    if (r.host_wait != op) return;
    r.host_wait = kNone;
    wake_host_lanes(index, r);
  }

  void wake_host_lanes(std::uint32_t index, RankState& r) {
    if constexpr (Rules::kTimed) {
      if (rules_.host_in_time() && r.op_count > 0) advance_host(index, r, r.op_count - 1);
    }
    for (std::uint32_t l = 0; l < r.lanes; ++l) {
      if (r.waits[l] != kHost) continue;
      r.waits[l] = kNone;
      work_.push_back({index, l});
    }
    if (r.lanes_left == 0) finish_rank_if_done(index, r);
  }

  void finish_rank_if_done(std::uint32_t index, RankState& r) {
    if (r.step == steps_ || (r.op_count > 0 && r.heads[r.lanes] < r.op_count && !advance_host(index, r, r.op_count - 1))) return;
    for (std::uint32_t l = 0; l < r.lanes; ++l) r.floor = std::max(r.floor, r.lane[l].last_end);
    rules_.rank_done(index, r.step, r.times);
    ++r.step;
    start_rank(index);
  }

  // ---- communication ------------------------------------------------------------------------------------------------
  bool post_group(std::uint32_t index, RankState& r, std::uint32_t l) {
    LaneState& lane = r.lane[l];
    const std::uint32_t first = lane.position;
    std::uint32_t last = first;
    std::int64_t ready = 0;
    for (; last < lane.end; ++last) {
      const std::uint32_t op = r.lane_ops[last];
      const OpNode& node = r.nodes[op];
      if (!(node.flags & OpNode::kGrouped) || (last > first && (node.flags & OpNode::kGroupFirst))) break;
      if (!is_ready(index, r, lane, op, node)) return false;
      ready = std::max(ready, r.times[op].ready);
    }
    r.waits[l] = kPosted;
    lane.group_left = last - first;
    lane.group_end = 0;
    for (std::uint32_t i = first; i < last; ++i) r.times[r.lane_ops[i]].ready = ready;
    for (std::uint32_t i = first; i < last; ++i) {
      const std::uint32_t op = r.lane_ops[i];
      post(index, r, op, r.nodes[op]);
    }
    return r.waits[l] == kNone;
  }

  // Makes the op known to its counterparts; the last one to come starts the transfer.
  [[gnu::always_inline]] void post(std::uint32_t index, RankState& r, std::uint32_t op, const OpNode& node) {
    ChannelState& channel = r.channels[node.channel];
    ++channel.posted;
    channel.last_posted = op;
    if (channel.peer == Counterpart::kNobody) return;
    const std::int64_t ready = r.times[op].ready;
    if (node.kind == OpNode::Kind::Message) {
      RankState& o = ranks_[channel.peer];
      const ChannelState& theirs = o.channels[channel.peer_channel];
      if (o.step != r.step || theirs.posted <= node.sequence) return;
      // Outside groups a channel has one op posted at a time: no look into the FIFO.
      const std::uint32_t peer_op = theirs.posted == node.sequence + 1 ? theirs.last_posted : theirs.ops[node.sequence];
      const std::int64_t duration = std::max(rules_.duration(node), rules_.duration(o.nodes[peer_op]));
      const std::int64_t start = std::max(ready, o.times[peer_op].ready);
      if constexpr (Rules::kTimed) {
        start_transfer(index, op, start, duration);
      } else {
        finish_op(channel.peer, peer_op, start, start + duration);
        finish_op(index, op, start, start + duration);
      }
      return;
    }
    InstanceState& open = instances_[channel.peer];
    auto slot = std::find_if(open.begin(), open.end(), [&](const Slot& x) { return x.step == r.step && x.sequence == node.sequence; });
    if (slot == open.end()) slot = open.insert(open.end(), Slot{r.step, node.sequence, 0, 0, 0});
    ++slot->arrived;
    slot->ready = std::max(slot->ready, ready);
    slot->duration = std::max(slot->duration, rules_.duration(node));
    if (slot->arrived < matching_.instances[channel.peer].members.size()) return;
    const Slot full = *slot;
    open.erase(slot);
    start_transfer(index, op, full.ready, full.duration);
  }

  void start_transfer(std::uint32_t index, std::uint32_t op, std::int64_t start, std::int64_t duration) {
    if constexpr (Rules::kTimed) {
      ranks_[index].times[op].end = duration;  // kept for begin(); replaced at the end
      begin_at(index, op, start);
    } else {
      ranks_[index].times[op].start = start;
      finish_transfer(index, op, start + duration);
    }
  }

  void begin_at(std::uint32_t index, std::uint32_t op, std::int64_t start) {
    if constexpr (Rules::kTimed) {
      if (rules_.needs_turn(index, op)) push_event(start, EventKind::Start, index, op);
      else rules_.begin(*this, index, op, start);
    }
  }

  // Ends the op of the leader and of all its counterparts.
  void finish_transfer(std::uint32_t index, std::uint32_t op, std::int64_t end) {
    RankState& r = ranks_[index];
    const OpNode& node = r.nodes[op];
    const std::int64_t start = r.times[op].start;
    if (node.kind == OpNode::Kind::Local) {
      finish_op(index, op, start, end);
      return;
    }
    const ChannelState& channel = r.channels[node.channel];
    const std::uint32_t k = node.sequence;
    if (node.kind == OpNode::Kind::Message) {
      finish_op(channel.peer, ranks_[channel.peer].channels[channel.peer_channel].ops[k], start, end);
    } else {
      for (const InstanceMember& member : matching_.instances[channel.peer].members)
        if (member.rank != index) finish_op(member.rank, ranks_[member.rank].channels[member.channel].ops[k], start, end);
    }
    finish_op(index, op, start, end);
  }

  void finish_op(std::uint32_t index, std::uint32_t op, std::int64_t start, std::int64_t end) {
    RankState& r = ranks_[index];
    const OpNode& node = r.nodes[op];
    LaneState& lane = r.lane[node.lane];
    OpTimes& t = r.times[op];
    t.start = start;
    t.end = end;
    if (node.flags & OpNode::kGrouped) {
      lane.group_end = std::max(lane.group_end, end);
      if (--lane.group_left == 0) finish_group(index, r, lane, node.lane);
      return;
    }
    if (node.kind != OpNode::Kind::Local) {
      ChannelState& channel = r.channels[node.channel];
      ++channel.done;
      channel.last_end = end;
    }
    if constexpr (Rules::kTimed) rules_.ended(*this, index, op, end);
    r.waits[node.lane] = kNone;
    advance_lane(index, r, lane, node.lane, op, end);
    if (&lane != running_) work_.push_back({index, node.lane});
  }

  void finish_group(std::uint32_t index, RankState& r, LaneState& lane, std::uint32_t l) {
    const std::int64_t end = lane.group_end;
    const std::uint32_t step = r.step;
    r.waits[l] = kNone;
    for (bool first = true;; first = false) {
      const std::uint32_t op = r.heads[l];
      if (op == kDone || r.step != step) break;
      const OpNode& node = r.nodes[op];
      if (!(node.flags & OpNode::kGrouped) || (!first && (node.flags & OpNode::kGroupFirst))) break;
      r.times[op].end = end;
      ChannelState& channel = r.channels[node.channel];
      ++channel.done;
      channel.last_end = end;
      if constexpr (Rules::kTimed) rules_.ended(*this, index, op, end);
      advance_lane(index, r, lane, l, op, end);
    }
    if (&lane != running_) work_.push_back({index, l});
  }

  const Matching& matching_;
  Rules& rules_;
  const std::uint32_t steps_;
  std::vector<LaneState> lanes_;
  std::vector<std::uint32_t> heads_;
  std::vector<ChannelState> channels_;
  std::vector<RankState> ranks_;
  std::vector<InstanceState> instances_;
  std::vector<Work> work_;
  const LaneState* running_ = nullptr;  // the lane inside run_lane: it goes on by itself
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  std::uint64_t ops_done_ = 0;
  std::int64_t now_ = 0;
  bool stopped_ = false;
};

template <class Rules>
typename EngineLoop<Rules>::Blocked EngineLoop<Rules>::blocked(std::uint32_t rank, std::uint32_t l) const {
  const RankState& r = ranks_[rank];
  if (r.heads[l] == kDone) return {Wait::Finished, kDone, kDone};
  if (r.waits[l] == kHost) return {Wait::Host, r.heads[l], r.heads[r.lanes]};
  if (r.waits[l] == kPosted) return {Wait::Counterpart, r.heads[l], kDone};
  if (r.waits[l] == kNone) return {Wait::Nothing, r.heads[l], kDone};
  return {Wait::Op, r.heads[l], r.waits[l]};
}

}  // namespace steptwin
