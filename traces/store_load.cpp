// The load: a schedule and a trace become rows. Rows come in the order of their keys, so that every insert is an append.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "schedule/base/error.h"
#include "traces/bulk_insert.h"
#include "traces/op_name.h"
#include "traces/store_impl.h"

namespace steptwin {

Interner::Interner(Database& database)
    : database_(database),
      find_(database, "SELECT id FROM string WHERE value = ?1"),
      insert_(database, "INSERT INTO string(value) VALUES(?1) ON CONFLICT DO NOTHING") {}

std::int64_t Interner::id(std::string_view text) {
  const auto [entry, added] = known_.try_emplace(std::string(text), 0);
  if (!added) return entry->second;
  insert_.bind(1, std::string_view(entry->first)).run();
  find_.bind(1, std::string_view(entry->first));
  if (!find_.step()) database_.damaged("an index");  // the row is there: it was just put in
  entry->second = find_.integer(0);
  while (find_.step()) {
  }
  find_.reset();
  return entry->second;
}

namespace {

std::int64_t or_null(std::int64_t value) { return value < 0 ? kNull : value; }
template <class Tag>
std::int64_t or_null(Id<Tag> id) {
  return id.valid() ? std::int64_t{id.value} : kNull;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + "\"";
}

template <class Range, class Text>
std::string json_array(const Range& values, Text text) {
  std::string out = "[";
  for (const auto& value : values) out += (out.size() > 1 ? "," : "") + text(value);
  return out + "]";
}

std::string json_numbers(const auto& values) {
  return json_array(values, [](auto value) { return fmt::to_string(value); });
}

std::string mesh_json(const Mesh& mesh) {
  return json_array(mesh.axes, [](const Axis& axis) { return fmt::format("[{},{}]", json_string(axis.name), axis.size); });
}

std::string coordinates_text(const Mesh& mesh, RankId rank) {
  std::string text;
  const auto at = mesh.coordinates(rank);
  for (std::size_t a = 0; a < mesh.axes.size(); ++a) text += fmt::format("{}{}{}", text.empty() ? "" : " ", mesh.axes[a].name, at[a]);
  return text;
}

void store_programs(Database& database, std::int64_t id, const Schedule& schedule) {
  Statement program(database, "INSERT INTO program VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)");
  Statement lane(database, "INSERT INTO lane VALUES(?1, ?2, ?3, ?4, ?5)");
  for (std::size_t p = 0; p < schedule.programs.size(); ++p) {
    const Program& from = schedule.programs[p];
    const std::string stages = json_numbers(from.stages);
    program.bind(1, id).bind(2, static_cast<std::int64_t>(p)).bind(3, from.name);
    from.stages.empty() ? program.bind_null(4) : program.bind(4, std::int64_t{from.stages[0]});
    program.bind(5, stages).bind(6, std::int64_t{from.first_op.value}).bind(7, std::int64_t{from.op_count}).run();
    for (std::size_t l = 0; l < from.lanes.size(); ++l) {
      lane.bind(1, id).bind(2, static_cast<std::int64_t>(p)).bind(3, static_cast<std::int64_t>(l));
      lane.bind(4, from.lanes[l].name).bind(5, name_of(from.lanes[l].engine)).run();
    }
  }
}

void store_ranks(Database& database, std::int64_t id, const Schedule& schedule) {
  Statement insert(database, "INSERT INTO schedule_rank VALUES(?1, ?2, ?3, ?4)");
  const auto program_of = schedule.program_of_rank();
  for (std::uint32_t rank = 0; rank < program_of.size(); ++rank) {
    const std::string coordinates = coordinates_text(schedule.mesh, RankId(rank));
    insert.bind(1, id).bind(2, std::int64_t{rank});
    program_of[rank].valid() ? insert.bind(3, std::int64_t{program_of[rank].value}) : insert.bind_null(3);
    insert.bind(4, coordinates).run();
  }
}

void store_communicators(Database& database, std::int64_t id, const Schedule& schedule) {
  Statement insert(database, "INSERT INTO communicator VALUES(?1, ?2, ?3, ?4, ?5)");
  for (std::size_t c = 0; c < schedule.communicators.size(); ++c) {
    const Communicator& comm = schedule.communicators[c];
    const std::string axes = json_numbers(comm.axes);
    const std::string groups = json_array(comm.groups, [](const auto& group) { return json_numbers(group); });
    insert.bind(1, id).bind(2, static_cast<std::int64_t>(c)).bind(3, comm.name).bind(4, axes).bind(5, groups).run();
  }
}

struct PeerFields {
  std::int64_t peer = kNull, relative = kNull;
};

PeerFields peer_of(const OpBody& body) {
  const auto fields = [](const Peer& peer) { return PeerFields{peer.value, peer.relative ? 1 : 0}; };
  return std::visit(Overloaded{
                        [&](const Send& op) { return fields(op.to); },
                        [&](const Recv& op) { return fields(op.from); },
                        [&](const Broadcast& op) { return fields(op.root); },
                        [](const Compute&) { return PeerFields{}; },
                        [](const AllGather&) { return PeerFields{}; },
                        [](const ReduceScatter&) { return PeerFields{}; },
                        [](const AllReduce&) { return PeerFields{}; },
                        [](const AllToAll&) { return PeerFields{}; },
                        [](const Copy&) { return PeerFields{}; },
                        [](const HostWait&) { return PeerFields{}; },
                    },
                    body);
}

std::int64_t flops_of(const Schedule& schedule, const Op& op) {
  const auto* compute = std::get_if<Compute>(&op.body);
  if (compute == nullptr) return 0;
  std::int64_t sum = 0;
  for (const ComputePart& part : schedule.parts_of(*compute))
    if (part.work.valid()) sum += schedule.works[part.work.value].flops().value;
  return sum;
}

// Ids of the names of ops. Names repeat much more than they differ, so that they are looked up by number, not by text.
class OpNames {
 public:
  OpNames(Database& database, const Schedule& schedule) : schedule_(schedule), names_(database) {}

  std::int64_t kind(const Op& op) {
    return cached(kinds_, op.body.index(), [&] { return std::string(kind_name(op.body)); });
  }
  std::int64_t phase(const Op& op) {
    return cached(phases_, static_cast<std::size_t>(op.label.phase), [&] { return std::string(name_of(op.label.phase)); });
  }
  std::int64_t segment(NameId id) {
    return cached(segments_, id.valid() ? id.value + 1 : 0, [&] { return std::string(schedule_.name(id)); });
  }

  std::int64_t short_form(const Op& op) {  // the name depends on kind, phase, segment and micro-batch only
    const ShortKey key{op.body.index() << 8 | static_cast<std::size_t>(op.label.phase), op.label.segment.value, op.label.micro_batch};
    const auto [entry, added] = short_forms_.try_emplace(key, 0);
    if (added) entry->second = names_.id(short_name(schedule_, op));
    return entry->second;
  }

 private:
  struct ShortKey {
    std::size_t form;
    std::uint32_t segment;
    std::int32_t micro_batch;
    bool operator==(const ShortKey&) const = default;
  };
  struct ShortHash {
    std::size_t operator()(const ShortKey& k) const {
      return (k.form * 0x9e3779b97f4a7c15ull + k.segment) * 0x9e3779b97f4a7c15ull + static_cast<std::uint32_t>(k.micro_batch);
    }
  };

  std::int64_t cached(std::vector<std::int64_t>& ids, std::size_t index, auto text) {
    if (index >= ids.size()) ids.resize(index + 1);
    if (ids[index] == 0) ids[index] = names_.id(text());  // row ids start at 1
    return ids[index];
  }

  const Schedule& schedule_;
  Interner names_;
  std::vector<std::int64_t> kinds_, phases_, segments_;
  std::unordered_map<ShortKey, std::int64_t, ShortHash> short_forms_;
};

void store_ops(Database& database, std::int64_t id, const Schedule& schedule) {
  OpNames names(database, schedule);
  BulkInsert<21> insert(database, "op");
  std::uint32_t number = 0;
  for (std::size_t p = 0; p < schedule.programs.size(); ++p) {
    const Program& program = schedule.programs[p];
    for (const Op& op : schedule.ops_of(program)) {
      const auto [peer, relative] = peer_of(op.body);
      const auto* wait = std::get_if<HostWait>(&op.body);
      const Label& label = op.label;
      insert.add({id,
                  number++,
                  static_cast<std::int64_t>(p),
                  or_null(op.lane),
                  names.kind(op),
                  names.phase(op),
                  names.short_form(op),
                  names.segment(label.segment),
                  or_null(schedule.stage_of(program, op)),
                  or_null(label.chunk),
                  or_null(label.micro_batch),
                  or_null(label.layer),
                  or_null(label.slice),
                  bytes_of(op.body).value,
                  flops_of(schedule, op),
                  or_null(comm_of(op.body)),
                  peer,
                  relative,
                  or_null(op.group),
                  op.guard.valid() ? 1 : 0,
                  wait != nullptr ? or_null(wait->target) : kNull});
    }
  }
  insert.finish();
}

void store_stand_ins(Database& database, std::int64_t run, const Schedule& schedule, const Trace& trace) {
  BulkInsert<3> insert(database, "rank");
  const std::uint32_t ranks = std::max(schedule.mesh.size(), static_cast<std::uint32_t>(trace.stand_in.size()));
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const bool mapped = rank < trace.stand_in.size() && trace.stand_in[rank].valid();
    insert.add({run, rank, mapped ? trace.stand_in[rank].value : rank});
  }
  insert.finish();
}

// Visits the values in key order; sorts only what is not sorted yet.
template <class T, class Key, class Visit>
void in_order(const std::vector<T>& values, Key key, Visit visit) {
  const auto less = [&](const T& a, const T& b) { return key(a) < key(b); };
  if (std::is_sorted(values.begin(), values.end(), less)) {
    for (const T& value : values) visit(value);
    return;
  }
  std::vector<std::uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return less(values[a], values[b]); });
  for (const std::uint32_t index : order) visit(values[index]);
}

void store_spans(Database& database, std::int64_t run, const std::vector<Span>& spans) {
  BulkInsert<8> insert(database, "span");
  in_order(
      spans, [](const Span& s) { return std::tuple(s.rank, s.step, s.op); },
      [&](const Span& s) {
        insert.add({run, s.rank.value, s.step, s.op.value, ns(s.issue), ns(s.ready), ns(s.start), ns(s.end)});
      });
  insert.finish();
}

void store_breakdowns(Database& database, std::int64_t run, const std::vector<RankBreakdown>& breakdowns) {
  BulkInsert<8> insert(database, "breakdown");
  in_order(
      breakdowns, [](const RankBreakdown& b) { return b.rank; },
      [&](const RankBreakdown& b) {
        insert.add({run, b.rank.value, ns(b.compute), ns(b.exposed_communication), ns(b.bubble), ns(b.other), ns(b.work), ns(b.rank_span)});
      });
  insert.finish();
}

void store_samples(Database& database, std::int64_t run, const std::vector<MemorySample>& samples) {
  Interner names(database);
  std::array<std::int64_t, kSpaces> spaces{};
  std::array<std::int64_t, kCurves> curves{};
  std::array<std::int64_t, kCategories + 1> categories{};
  for (std::size_t i = 0; i < kSpaces; ++i) spaces[i] = names.id(name_of(static_cast<Space>(i)));
  for (std::size_t i = 0; i < kCurves; ++i) curves[i] = names.id(name_of(static_cast<Curve>(i)));
  for (std::size_t i = 0; i < kCategories; ++i) categories[i] = names.id(name_of(static_cast<Category>(i)));
  categories[kCategories] = names.id("total");
  BulkInsert<8> insert(database, "memory_sample");
  std::int64_t seq = 0;
  RankId rank;
  in_order(
      samples, [](const MemorySample& m) { return m.rank; },
      [&](const MemorySample& m) {
        seq = m.rank == rank ? seq + 1 : 0;
        rank = m.rank;
        insert.add({run, m.rank.value, seq, spaces[static_cast<std::size_t>(m.space)], curves[static_cast<std::size_t>(m.curve)],
                    categories[m.category_index], ns(m.at), m.bytes.value});
      });
  insert.finish();
}

void store_peaks(Database& database, std::int64_t run, const std::vector<MemoryPeak>& peaks) {
  Statement peak(database, "INSERT INTO peak VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)");
  Statement part(database, "INSERT INTO peak_category VALUES(?1, ?2, ?3, ?4, ?5, ?6)");
  for (const MemoryPeak& p : peaks) {
    peak.bind(1, run).bind(2, std::int64_t{p.rank.value}).bind(3, name_of(p.space)).bind(4, name_of(p.curve));
    peak.bind(5, p.bytes.value).bind(6, ns(p.at));
    p.op.valid() ? peak.bind(7, std::int64_t{p.op.value}) : peak.bind_null(7);
    peak.run();
    for (std::size_t c = 0; c < kCategories; ++c) {
      if (p.by_category[c].value == 0) continue;
      part.bind(1, run).bind(2, std::int64_t{p.rank.value}).bind(3, name_of(p.space)).bind(4, name_of(p.curve));
      part.bind(5, name_of(static_cast<Category>(c))).bind(6, p.by_category[c].value).run();
    }
  }
}

}  // namespace

std::int64_t store_schedule(Database& database, const Schedule& schedule, const std::string& digest) {
  Statement find(database, "SELECT id FROM schedule WHERE digest = ?1");
  if (find.bind(1, digest).step()) return find.integer(0);
  const std::string mesh = mesh_json(schedule.mesh);
  Statement insert(database, "INSERT INTO schedule(digest, ranks, ops, mesh) VALUES(?1, ?2, ?3, ?4)");
  insert.bind(1, digest)
      .bind(2, std::int64_t{schedule.mesh.size()})
      .bind(3, static_cast<std::int64_t>(schedule.ops.size()))
      .bind(4, mesh)
      .run();
  const std::int64_t id = database.last_rowid();
  store_programs(database, id, schedule);
  store_ranks(database, id, schedule);
  store_communicators(database, id, schedule);
  store_ops(database, id, schedule);
  return id;
}

void store_trace(Database& database, std::int64_t run_id, const Schedule& schedule, const Trace& trace) {
  store_stand_ins(database, run_id, schedule, trace);
  store_spans(database, run_id, trace.spans);
  store_breakdowns(database, run_id, trace.breakdowns);
  store_samples(database, run_id, trace.samples);
  store_peaks(database, run_id, trace.peaks);
}

}  // namespace steptwin
