#include "exec/cpu/recorder.h"

#include <algorithm>

namespace steptwin {

Recorder::Recorder(const Schedule& schedule, const Matching& matching, std::vector<RankMemory>& memories, std::uint32_t warm_up,
                   std::function<std::int64_t()> now)
    : schedule_(schedule),
      matching_(matching),
      memories_(memories),
      warm_up_(warm_up),
      now_(std::move(now)),
      ranks_(memories.size()) {
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    for (auto& of_space : allocated_) of_space.emplace_back(program(r).op_count);
    memories_[r].pool().listen([this, r](const BufferPool::Change& change) { changed(r, change); });
  }
}

const Program& Recorder::program(std::uint32_t rank) const {
  return schedule_.programs[matching_.tables[matching_.ranks[rank].tables].program.value];
}

void Recorder::begin_step(std::uint32_t rank, std::uint32_t step) {
  if (step != warm_up_) return;
  ranks_[rank].measuring = true;
  open_curves(rank);
}

// The level every curve starts from: the resident buffers.
void Recorder::open_curves(std::uint32_t rank) {
  const BufferPool& pool = memories_[rank].pool();
  const SimTime at = at_ns(now_());
  for (std::size_t s = 0; s < kSpaces; ++s) {
    const auto space = static_cast<Space>(s);
    const bool used =
        std::any_of(program(rank).buffers.begin(), program(rank).buffers.end(), [&](const Buffer& b) { return b.space == space; });
    if (!used) continue;
    for (const Curve curve : {Curve::Allocated, Curve::Active}) {
      const auto& levels = pool.categories(space, curve);
      for (std::uint8_t c = 0; c < kCategories; ++c)
        if (levels[c] != 0) ranks_[rank].samples.push_back({matching_.ranks[rank].rank, space, curve, c, at, Bytes(levels[c])});
      std::int64_t total = 0;
      for (const std::int64_t bytes : levels) total += bytes;
      ranks_[rank].samples.push_back({matching_.ranks[rank].rank, space, curve, kCategories, at, Bytes(total)});
      raise_peak(rank, space, curve, total);
    }
    ranks_[rank].samples.push_back({matching_.ranks[rank].rank, space, Curve::Reserved, kCategories, at, Bytes(pool.reserved(space))});
    raise_peak(rank, space, Curve::Reserved, pool.reserved(space));
  }
}

void Recorder::changed(std::uint32_t rank, const BufferPool::Change& change) {
  RankRecord& record = ranks_[rank];
  if (!record.measuring) return;
  const SimTime at = at_ns(now_());
  const RankId id = matching_.ranks[rank].rank;
  if (change.curve != Curve::Reserved)
    record.samples.push_back({id, change.space, change.curve, static_cast<std::uint8_t>(change.category), at, Bytes(change.in_category)});
  record.samples.push_back({id, change.space, change.curve, kCategories, at, Bytes(change.total)});
  raise_peak(rank, change.space, change.curve, change.total);
}

void Recorder::raise_peak(std::uint32_t rank, Space space, Curve curve, std::int64_t bytes) {
  RankRecord& record = ranks_[rank];
  auto peak =
      std::find_if(record.peaks.begin(), record.peaks.end(), [&](const MemoryPeak& p) { return p.space == space && p.curve == curve; });
  if (peak == record.peaks.end()) {
    peak = record.peaks.insert(record.peaks.end(), MemoryPeak{});
    peak->rank = matching_.ranks[rank].rank, peak->space = space, peak->curve = curve;
  } else if (bytes <= peak->bytes.value) {
    return;
  }
  peak->bytes = Bytes(bytes);
  peak->at = at_ns(now_());
  peak->op = record.current;
  if (curve == Curve::Reserved) return;
  const auto& levels = memories_[rank].pool().categories(space, curve);
  for (std::size_t c = 0; c < kCategories; ++c) peak->by_category[c] = Bytes(levels[c]);
}

void Recorder::marked(std::uint32_t rank, std::uint32_t step, std::uint32_t op) {
  for (std::size_t s = 0; s < kSpaces && step == warm_up_; ++s)
    allocated_[s][rank][op] = memories_[rank].pool().allocated(static_cast<Space>(s));
  const std::uint32_t next = op + 1 < program(rank).op_count ? op + 1 : op;
  ranks_[rank].current = OpId(program(rank).first_op.value + next);  // whose allocations come now
}

void Recorder::append_span(std::uint32_t rank, std::uint32_t step, std::uint32_t op, const OpTimes& t) {
  ranks_[rank].spans.push_back({step - warm_up_, matching_.ranks[rank].rank, OpId(program(rank).first_op.value + op), at_ns(t.issue),
                                at_ns(t.ready), at_ns(t.start), at_ns(t.end)});
}

void Recorder::step_done(std::uint32_t rank, std::uint32_t step, const OpTimes* times) {
  if (step < warm_up_) return;
  for (std::uint32_t op = 0; op < program(rank).op_count; ++op) append_span(rank, step, op, times[op]);
}

void Recorder::partial_step(std::uint32_t rank, std::uint32_t step, const OpTimes* times,
                            const std::function<bool(std::uint32_t)>& has_ended) {
  if (step < warm_up_) return;
  for (std::uint32_t op = 0; op < program(rank).op_count; ++op)
    if (has_ended(op)) append_span(rank, step, op, times[op]);
}

std::vector<RankPart> Recorder::take_parts() {
  std::vector<RankPart> parts(ranks_.size());
  for (std::uint32_t r = 0; r < parts.size(); ++r) {
    parts[r].rank = matching_.ranks[r].rank;
    parts[r].spans = std::move(ranks_[r].spans);
    parts[r].samples = std::move(ranks_[r].samples);
    parts[r].peaks = std::move(ranks_[r].peaks);
    for (std::size_t s = 0; s < kSpaces; ++s) parts[r].allocated[s] = std::move(allocated_[s][r]);
  }
  return parts;
}

}  // namespace steptwin
