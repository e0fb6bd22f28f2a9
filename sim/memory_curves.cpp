#include "sim/memory_curves.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "schedule/ir/liveness.h"

namespace steptwin {
namespace {

constexpr std::uint32_t kNoOp = 0xffffffffu;
using Stamp = std::pair<std::int64_t, std::uint32_t>;

// Sorts by time, equal times by index. The stamps of a schedule spread over its run and come almost in order, so they are dealt
// into n/2 or fewer equal slices of time (each small) and every slice is sorted. Times are >= 0.
void sort_by_time(std::vector<Stamp>& v, std::vector<Stamp>& scratch, std::vector<std::uint32_t>& slices) {
  if (std::is_sorted(v.begin(), v.end())) return;
  if (v.size() < 64) {
    std::sort(v.begin(), v.end());
    return;
  }
  const auto [low, high] = std::minmax_element(v.begin(), v.end());
  const std::int64_t first = low->first;
  int shift = 0;
  while (static_cast<std::uint64_t>(high->first - first) >> shift >= v.size() / 2) ++shift;
  const auto slice = [first, shift](const Stamp& s) { return static_cast<std::size_t>((s.first - first) >> shift); };
  slices.assign(slice(*high) + 2, 0);
  for (const Stamp& s : v) ++slices[slice(s) + 1];
  std::partial_sum(slices.begin(), slices.end(), slices.begin());
  scratch.resize(v.size());
  for (const Stamp& s : v) scratch[slices[slice(s)]++] = s;  // slices[i] ends up at the end of slice i
  std::uint32_t begin = 0;
  for (std::uint32_t end : slices) {
    if (end - begin > 1) std::sort(scratch.begin() + begin, scratch.begin() + end);
    begin = std::max(begin, end);
  }
  std::swap(v, scratch);
}

}  // namespace

MemoryPlan::MemoryPlan(const Schedule& schedule, const Program& program, Repetition repetition)
    : lanes_(static_cast<std::uint32_t>(program.lanes.size())), first_op_(program.first_op) {
  const std::vector<Lifetime> lives = lifetimes(schedule, program, repetition);
  std::vector<std::uint32_t> slot(program.buffers.size(), kNoOp);
  std::vector<std::uint32_t> order;
  for (std::uint32_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    const auto space = static_cast<std::size_t>(buffer.space);
    const auto category = static_cast<std::size_t>(buffer.category);
    used_[space] = used_[space] || buffer.resident || lives[b].first != kNoOp;
    if (held_before(buffer, repetition)) {
      resident_[space] += buffer.bytes.value;
      resident_categories_[space][category] += buffer.bytes.value;
    } else if (lives[b].first != kNoOp) {
      order.push_back(b);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&lives](std::uint32_t a, std::uint32_t b) { return lives[a].first < lives[b].first; });
  for (std::uint32_t b : order) {
    const Buffer& buffer = program.buffers[b];
    slot[b] = static_cast<std::uint32_t>(buffers_.size());
    const auto home = static_cast<std::uint16_t>(lives[b].home.valid() ? lives[b].home.value : lanes_);
    buffers_.push_back({buffer.bytes.value, lives[b].first, lives[b].last, 0, 0, b, home, static_cast<std::uint8_t>(buffer.space),
                        static_cast<std::uint8_t>(buffer.category)});
  }
  collect_uses(schedule, program, slot);
  for (std::uint32_t b = 0; b < buffers_.size(); ++b)
    if (buffers_[b].last != Lifetime::kStays) by_last_.push_back(b);
  std::stable_sort(by_last_.begin(), by_last_.end(),
                   [this](std::uint32_t a, std::uint32_t b) { return buffers_[a].last < buffers_[b].last; });
}

// One entry per (buffer, lane): space for every access first, then the used front of each buffer's part is kept. Members of a group
// may start in any order, so those of the group that begins the use have entries of their own.
void MemoryPlan::collect_uses(const Schedule& schedule, const Program& program, const std::vector<std::uint32_t>& slot) {
  const auto each_access = [&](auto&& visit) {
    for (std::uint32_t i = 0; i < program.op_count; ++i) {
      const OpId id(program.first_op.value + i);
      const Op& op = schedule.ops[id.value];
      const auto use = [&](BufferId buffer) {  // a HostWait before the life begins does not count
        const std::uint32_t s = slot[buffer.value];
        if (s != kNoOp && i >= buffers_[s].first) visit(i, static_cast<std::uint16_t>(op.lane.valid() ? op.lane.value : lanes_), s);
      };
      for (const Access& access : schedule.accesses_of(id)) use(access.buffer);
      if (op.guard.valid()) use(op.guard);
    }
  };
  std::vector<std::uint32_t> begin(buffers_.size() + 1, 0);
  each_access([&](std::uint32_t, std::uint16_t, std::uint32_t s) { ++begin[s + 1]; });
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  struct LaneUse { std::uint16_t lane; Use use; };
  std::vector<LaneUse> room(begin.back());
  std::vector<std::uint32_t> filled = begin;
  each_access([&](std::uint32_t op, std::uint16_t lane, std::uint32_t s) {
    const GroupId group = schedule.ops[program.first_op.value + op].group;
    const auto together = [&](const LaneUse& known) {
      return known.lane == lane && !(group.valid() && schedule.ops[program.first_op.value + known.use.first].group == group);
    };
    std::uint32_t at = begin[s];
    while (at < filled[s] && !together(room[at])) ++at;
    if (at < filled[s]) room[at].use.last = op;
    else room[filled[s]++] = {lane, {op, op, lane != buffers_[s].home && lane != lanes_}};  // a HostWait ends before the drop
  });
  for (std::size_t s = 0; s < buffers_.size(); ++s) {
    buffers_[s].use_begin = static_cast<std::uint32_t>(uses_.size());
    for (std::uint32_t at = begin[s]; at < filled[s]; ++at) uses_.push_back(room[at].use);
    buffers_[s].use_end = static_cast<std::uint32_t>(uses_.size());
  }
}

// When every buffer lives on the device clock, and when its bytes leave `active`: after its drop and its last use on a foreign lane.
void MemoryWalker::collect_lives(const MemoryPlan& plan, const OpTimes* times) {
  const auto& buffers = plan.buffers();
  release_.resize(buffers.size());
  start_.resize(buffers.size());
  end_.resize(buffers.size());
  starts_.clear();
  ends_.clear();
  deferred_.clear();
  for (std::uint32_t i = 0; i < buffers.size(); ++i) {
    const bool stays = buffers[i].last == Lifetime::kStays;
    const std::int64_t dropped = stays ? INT64_MAX : times[buffers[i].last].issue;
    std::int64_t start = INT64_MAX, end = 0, release = dropped;
    for (const auto* use = plan.uses_begin(buffers[i]); use != plan.uses_end(buffers[i]); ++use) {
      const std::int64_t used_until = times[use->last].end;
      start = std::min(start, times[use->first].start);
      end = std::max(end, used_until);
      if (use->foreign) release = std::max(release, used_until);
    }
    start_[i] = start;
    end_[i] = stays ? INT64_MAX : end;
    release_[i] = release;
    if (release > dropped) deferred_.emplace_back(release, i);
    if (start == end_[i]) continue;
    starts_.emplace_back(start, i);
    if (!stays) ends_.emplace_back(end, i);
  }
  sort_by_time(deferred_, scratch_, slices_);
  sort_by_time(starts_, scratch_, slices_);
  sort_by_time(ends_, scratch_, slices_);
}

// Allocations and drops in issue order. Buffers dropped while another lane still uses them are released later, in time order;
// such a release lies after the drop's issue, hence after every allocation instant up to the drop.
void MemoryWalker::host_curves(const MemoryPlan& plan, const OpTimes* times) {
  const auto& buffers = plan.buffers();
  const auto& by_last = plan.by_last();
  std::array<std::int64_t, kSpaces> allocated{}, active{}, reserved{};
  for (std::size_t s = 0; s < kSpaces; ++s) {
    allocated[s] = active[s] = reserved[s] = plan.resident(s);
    for (std::size_t c = 0; c < kCurves; ++c) peak_[s][c] = {plan.resident(s), host_.start, kNoOp};
  }
  const std::size_t lanes = plan.lanes() + 1;
  lane_active_.assign(lanes * kSpaces, 0);
  lane_high_.assign(lanes * kSpaces, 0);
  reserved_steps_.clear();
  const auto raise = [this](std::uint8_t space, Curve curve, std::int64_t bytes, std::int64_t at, std::uint32_t op) {
    Level& level = peak_[space][static_cast<std::size_t>(curve)];
    if (bytes > level.bytes) level = {bytes, at, op};
  };
  const auto release = [&](std::uint32_t index) {
    const auto& b = buffers[index];
    active[b.space] -= b.bytes;
    lane_active_[std::size_t{b.home} * kSpaces + b.space] -= b.bytes;
  };
  std::size_t next = 0, drop = 0, later = 0;
  while (next < buffers.size() || drop < by_last.size()) {
    const std::uint32_t alloc_op = next < buffers.size() ? buffers[next].first : kNoOp;
    const std::uint32_t op = drop < by_last.size() ? std::min(alloc_op, buffers[by_last[drop]].last) : alloc_op;
    if (alloc_op == op) {
      const std::int64_t at = host_.before(times, op);
      for (; later < deferred_.size() && deferred_[later].first <= at; ++later) release(deferred_[later].second);
      std::uint32_t spaces = 0;
      for (; next < buffers.size() && buffers[next].first == op; ++next) {
        const auto& b = buffers[next];
        allocated[b.space] += b.bytes;
        active[b.space] += b.bytes;
        std::int64_t& lane = lane_active_[std::size_t{b.home} * kSpaces + b.space];
        std::int64_t& high = lane_high_[std::size_t{b.home} * kSpaces + b.space];
        lane += b.bytes;
        if (lane > high) {
          reserved[b.space] += lane - high;
          high = lane;
        }
        spaces |= 1u << b.space;
      }
      for (std::uint8_t s = 0; s < kSpaces; ++s) {
        if (!(spaces & (1u << s))) continue;
        raise(s, Curve::Allocated, allocated[s], at, op);
        raise(s, Curve::Active, active[s], at, op);
        if (reserved[s] > peak_[s][static_cast<std::size_t>(Curve::Reserved)].bytes) reserved_steps_.push_back({s, at, reserved[s]});
        raise(s, Curve::Reserved, reserved[s], at, op);
      }
    }
    for (; drop < by_last.size() && buffers[by_last[drop]].last == op; ++drop) {
      const std::uint32_t index = by_last[drop];
      const auto& b = buffers[index];
      allocated[b.space] -= b.bytes;
      if (release_[index] <= times[op].issue) release(index);
    }
  }
}

void MemoryWalker::live_curve(const MemoryPlan& plan) {
  const auto& buffers = plan.buffers();
  std::array<std::int64_t, kSpaces> live{};
  for (std::size_t s = 0; s < kSpaces; ++s) live[s] = plan.resident(s);
  std::size_t e = 0;
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    const auto [at, index] = starts_[i];
    for (; e < ends_.size() && ends_[e].first <= at; ++e) live[buffers[ends_[e].second].space] -= buffers[ends_[e].second].bytes;
    const auto& b = buffers[index];
    live[b.space] += b.bytes;
    Level& level = peak_[b.space][static_cast<std::size_t>(Curve::Live)];
    if (live[b.space] > level.bytes) level = {live[b.space], at, b.first};
  }
}

// Peaks with who held the bytes then: one pass over the buffers for all curves.
void MemoryWalker::emit_peaks(const MemoryPlan& plan, RankId rank, MemoryResult& out) const {
  std::array<std::array<MemoryPeak, kCurves>, kSpaces> peaks;
  for (std::size_t s = 0; s < kSpaces; ++s) {
    for (std::size_t c = 0; c < kCurves; ++c) {
      const Level& level = peak_[s][c];
      MemoryPeak& peak = peaks[s][c];
      peak = {rank, static_cast<Space>(s), static_cast<Curve>(c), Bytes(level.bytes), at_ns(level.at), OpId(), {}};
      if (level.op != kNoOp) peak.op = OpId(plan.first_op().value + level.op);
      if (peak.curve == Curve::Reserved) continue;
      for (std::size_t k = 0; k < kCategories; ++k) peak.by_category[k] = Bytes(plan.resident_by_category(s)[k]);
    }
  }
  const auto& buffers = plan.buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto& b = buffers[i];
    const auto& levels = peak_[b.space];
    const auto add = [&](Curve curve, bool there) {
      if (there) peaks[b.space][static_cast<std::size_t>(curve)].by_category[b.category] += Bytes(b.bytes);
    };
    const Level &allocated = levels[static_cast<std::size_t>(Curve::Allocated)], &active = levels[static_cast<std::size_t>(Curve::Active)],
                &live = levels[static_cast<std::size_t>(Curve::Live)];
    add(Curve::Allocated, allocated.op != kNoOp && b.first <= allocated.op && allocated.op <= b.last);
    add(Curve::Active, active.op != kNoOp && b.first <= active.op && (active.op <= b.last || release_[i] > active.at));
    add(Curve::Live, live.op != kNoOp && start_[i] <= live.at && live.at < end_[i]);
  }
  for (std::size_t s = 0; s < kSpaces; ++s)
    if (plan.uses_space(s)) out.peaks.insert(out.peaks.end(), peaks[s].begin(), peaks[s].end());
}

// Rebuilds every curve as steps: the changes of each (space, curve, category) by time, ends first.
void MemoryWalker::emit_samples(const MemoryPlan& plan, RankId rank, const OpTimes* times, MemoryResult& out) const {
  struct Change { std::int64_t at; int order; std::uint32_t op; std::int64_t bytes; std::uint8_t category; };
  const auto& buffers = plan.buffers();
  for (std::size_t s = 0; s < kSpaces; ++s) {
    if (!plan.uses_space(s)) continue;
    out.samples.push_back({rank, static_cast<Space>(s), Curve::Reserved, kCategories, at_ns(host_.start), Bytes(plan.resident(s))});
    for (const ReservedStep& step : reserved_steps_)
      if (step.space == s)
        out.samples.push_back({rank, static_cast<Space>(s), Curve::Reserved, kCategories, at_ns(step.at), Bytes(step.bytes)});
    for (Curve curve : {Curve::Allocated, Curve::Active, Curve::Live}) {
      std::vector<Change> changes;
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        const auto& b = buffers[i];
        if (b.space != s) continue;
        const bool live = curve == Curve::Live;
        const std::int64_t from = live ? start_[i] : host_.before(times, b.first);
        changes.push_back({from, 1, b.first, b.bytes, b.category});
        if (b.last == Lifetime::kStays) continue;
        const std::int64_t to = live ? end_[i] : curve == Curve::Active ? release_[i] : times[b.last].issue;
        changes.push_back({to, 0, b.last, -b.bytes, b.category});
      }
      std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
        return a.at != b.at ? a.at < b.at : a.order < b.order;
      });
      std::array<std::int64_t, kCategories + 1> level{};
      for (std::size_t k = 0; k < kCategories; ++k) level[k] = plan.resident_by_category(s)[k];
      level[kCategories] = plan.resident(s);
      auto shown = level;
      const auto show = [&](std::int64_t at, std::size_t k) {
        out.samples.push_back({rank, static_cast<Space>(s), curve, static_cast<std::uint8_t>(k), at_ns(at), Bytes(level[k])});
        shown[k] = level[k];
      };
      for (std::size_t k = 0; k <= kCategories; ++k)
        if (level[k] != 0 || k == kCategories) show(host_.start, k);
      for (std::size_t i = 0; i < changes.size(); ++i) {
        level[changes[i].category] += changes[i].bytes;
        level[kCategories] += changes[i].bytes;
        if (i + 1 < changes.size() && changes[i + 1].at == changes[i].at) continue;
        for (std::size_t k = 0; k <= kCategories; ++k)
          if (level[k] != shown[k]) show(changes[i].at, k);
      }
    }
  }
}

void MemoryWalker::walk(const MemoryPlan& plan, RankId rank, const OpTimes* times, Detail detail, MemoryResult& out,
                        const HostClock& host) {
  host_ = host;
  collect_lives(plan, times);
  host_curves(plan, times);
  live_curve(plan);
  emit_peaks(plan, rank, out);
  if (detail == Detail::Samples) emit_samples(plan, rank, times, out);
}

}  // namespace steptwin
