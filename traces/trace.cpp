#include "traces/trace.h"

#include <algorithm>
#include <tuple>

#include "schedule/base/digest.h"

namespace steptwin {
namespace {

auto span_key(const Span& s) { return std::tuple(s.rank, s.step, s.op); }

void add_span(Hash64& hash, const Span& s) {
  hash.add(s.step);
  hash.add(s.rank.value);
  hash.add(s.op.value);
  hash.add_signed(ns(s.issue));
  hash.add_signed(ns(s.ready));
  hash.add_signed(ns(s.start));
  hash.add_signed(ns(s.end));
}

void add_spans(Hash64& hash, const std::vector<Span>& spans) {
  const auto before = [](const Span& a, const Span& b) { return span_key(a) < span_key(b); };
  if (std::is_sorted(spans.begin(), spans.end(), before)) {
    for (const Span& s : spans) add_span(hash, s);
    return;
  }
  std::vector<Span> sorted = spans;
  std::sort(sorted.begin(), sorted.end(), before);
  for (const Span& s : sorted) add_span(hash, s);
}

void add_breakdowns(Hash64& hash, std::vector<RankBreakdown> rows) {
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  for (const RankBreakdown& r : rows) {
    hash.add(r.rank.value);
    for (const Duration d : {r.compute, r.exposed_communication, r.bubble, r.other, r.work, r.rank_span}) hash.add_signed(ns(d));
  }
}

void add_peaks(Hash64& hash, std::vector<MemoryPeak> peaks) {
  std::sort(peaks.begin(), peaks.end(), [](const MemoryPeak& a, const MemoryPeak& b) {
    return std::tuple(a.rank, a.space, a.curve) < std::tuple(b.rank, b.space, b.curve);
  });
  for (const MemoryPeak& p : peaks) {
    hash.add(p.rank.value);
    hash.add(static_cast<std::uint64_t>(p.space));
    hash.add(static_cast<std::uint64_t>(p.curve));
    hash.add_signed(p.bytes.value);
    hash.add_signed(ns(p.at));
    hash.add(p.op.value);
  }
}

}  // namespace

const char* name_of(Curve curve) {
  switch (curve) {
    case Curve::Allocated:
      return "allocated";
    case Curve::Active:
      return "active";
    case Curve::Reserved:
      return "reserved";
    case Curve::Live:
      return "live";
  }
  return "?";
}

const char* name_of(Status status) {
  switch (status) {
    case Status::Running:
      return "running";
    case Status::Ok:
      return "ok";
    case Status::OutOfMemory:
      return "oom";
    case Status::Deadlock:
      return "deadlock";
    case Status::Error:
      return "error";
    case Status::Interrupted:
      return "interrupted";
  }
  return "?";
}

const char* name_of(Provenance provenance) {
  switch (provenance) {
    case Provenance::Given:
      return "given";
    case Provenance::Analytic:
      return "analytic";
    case Provenance::Interpolated:
      return "interpolated";
    case Provenance::Measured:
      return "measured";
  }
  return "?";
}

std::string Trace::digest() const {
  Hash64 hash;
  hash.add(static_cast<std::uint64_t>(outcome.status));
  hash.add_signed(ns(step_time));
  hash.add_signed(ns(makespan));
  if (!spans.empty()) {
    add_spans(hash, spans);
  } else {
    add_breakdowns(hash, breakdowns);
    add_peaks(hash, peaks);
  }
  return hash.hex();
}

}  // namespace steptwin
