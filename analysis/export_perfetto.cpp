#include "analysis/export_perfetto.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "analysis/stored_schedule.h"
#include "schedule/base/error.h"
#include "traces/perfetto.h"

namespace steptwin {
namespace {

struct StoredSpan {
  std::uint32_t step, id;
  std::int64_t start_ns, end_ns;
  const StoredOp* op;
};

// Messages from one rank to another on one communicator, numbered in order.
struct Channel {
  std::uint32_t comm;
  RankId from, to;
  auto operator<=>(const Channel&) const = default;
};

// The number of a message in its channel joins its two ends.
struct Message {
  std::size_t span;  // index into the rank's spans
  Channel channel;
  std::size_t number;
  bool sends;
};

// Which ends of the messages of a channel were seen.
struct Traffic {
  std::uint64_t first_flow = 0;
  std::size_t sent = 0, received = 0;
};

// "pp1 dp0 · stage 1" from the stored coordinates and stages ("[1]").
std::string describe(std::string_view coordinates, std::string_view stages) {
  const std::string_view list = stages.size() > 2 ? stages.substr(1, stages.size() - 2) : std::string_view();
  if (list.empty()) return std::string(coordinates);
  return fmt::format("{} · {} {}", coordinates, list.find(',') == list.npos ? "stage" : "stages", list);
}

class Exporter {
 public:
  Exporter(const Store& store, std::int64_t run_id, const std::function<void(std::string_view)>& sink)
      : store_(store), run_(std::to_string(run_id)), writer_(sink) {}

  PerfettoResult run(const PerfettoExport& options) {
    choose_ranks(options.ranks);
    schedule_ = load_schedule(store_, run_, stand_ins());
    for (const RankId rank : result_.ranks) note_messages(rank);
    number_flows();
    // Lanes that only send come first: an arrow must leave before it arrives, also when both take no time.
    for (const RankId rank : result_.ranks) write_rank(rank, Part::SendingLanes);
    for (const RankId rank : result_.ranks) write_rank(rank, Part::OtherLanes);
    writer_.finish();
    if (result_.slices == 0)
      result_.warnings.push_back("the run holds no spans: it was stored with --trace summary, or ended before any op did");
    return std::move(result_);
  }

 private:
  void choose_ranks(const std::vector<RankId>& wanted) {
    std::vector<RankId> simulated;
    store_.for_each("SELECT rank, stand_in, coordinates, stages, program FROM rank_summary WHERE run_id = ?1 ORDER BY rank", {run_},
                    [&](const Row& row) {
                      if (row.integer(0) != static_cast<std::int64_t>(stand_in_.size())) throw_damaged("the list of ranks");
                      const RankId rank(static_cast<std::uint32_t>(row.integer(0)));
                      const RankId stand_in(
                          static_cast<std::uint32_t>(checked_index(row.integer(1), UINT32_MAX, "the stand-in of a rank")));
                      stand_in_.push_back(stand_in);
                      describe_.push_back(describe(row.text(2), row.text(3)));
                      if (rank == stand_in) simulated.push_back(rank);
                    });
    if (wanted.empty()) return choose_default(simulated);
    for (const RankId rank : wanted) require_rank(rank);
    result_.ranks = wanted;
    std::sort(result_.ranks.begin(), result_.ranks.end());
    result_.ranks.erase(std::unique(result_.ranks.begin(), result_.ranks.end()), result_.ranks.end());
  }

  void choose_default(std::vector<RankId> simulated) {
    if (simulated.size() > kDefaultRanks) {
      result_.warnings.push_back(
          fmt::format("the first {} of {} simulated ranks were exported; choose others with --ranks", kDefaultRanks, simulated.size()));
      simulated.resize(kDefaultRanks);
    }
    result_.ranks = std::move(simulated);
  }

  void require_rank(RankId rank) const {
    if (rank.value < stand_in_.size()) return;
    Diagnostic problem;
    problem.code = "RANK";
    problem.text = fmt::format("the run has no rank {}", rank.value);
    problem.help =
        stand_in_.empty() ? "it was not finished and holds no ranks" : fmt::format("its ranks are 0 to {}", stand_in_.size() - 1);
    throw InputError(problem);
  }

  // The ranks whose spans are read, as a JSON list for SQL.
  std::string stand_ins() const {
    std::vector<std::uint32_t> list;
    for (const RankId rank : result_.ranks) list.push_back(stand_in_[rank.value].value);
    return fmt::format("[{}]", fmt::join(list, ","));
  }

  std::vector<StoredSpan> spans_of(RankId rank) const {
    std::vector<StoredSpan> spans;
    store_.for_each("SELECT step, op, start_ns, end_ns FROM span WHERE run_id = ?1 AND rank = ?2 ORDER BY step, op",
                    {run_, std::to_string(stand_in_[rank.value].value)}, [&](const Row& row) {
                      const auto id = static_cast<std::uint32_t>(row.integer(1));
                      spans.push_back({static_cast<std::uint32_t>(row.integer(0)), id, row.integer(2), row.integer(3), &schedule_.op(id)});
                    });
    return spans;
  }

  // The messages of a rank, in issue order.
  std::vector<Message> messages_of(RankId rank, const std::vector<StoredSpan>& spans) const {
    std::map<Channel, std::size_t> sent, received;
    std::vector<Message> messages;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const StoredOp& op = *spans[i].op;
      if (op.direction == StoredOp::Direction::None) continue;
      const bool sends = op.direction == StoredOp::Direction::Send;
      const RankId peer = schedule_.peer(op, rank);
      const Channel channel{op.comm, sends ? rank : peer, sends ? peer : rank};
      messages.push_back({i, channel, (sends ? sent : received)[channel]++, sends});
    }
    return messages;
  }

  void note_messages(RankId rank) {
    for (const Message& message : messages_of(rank, spans_of(rank))) {
      Traffic& traffic = traffic_[message.channel];
      (message.sends ? traffic.sent : traffic.received) = message.number + 1;
    }
  }

  void number_flows() {
    std::uint64_t next = 1;
    for (auto& [channel, traffic] : traffic_) {
      traffic.first_flow = next;
      next += std::min(traffic.sent, traffic.received);
    }
  }

  // 0 when the other end is not shown.
  std::uint64_t flow_of(const Message& message) const {
    const Traffic& traffic = traffic_.at(message.channel);
    return message.number < std::min(traffic.sent, traffic.received) ? traffic.first_flow + message.number : 0;
  }

  enum class Part : std::uint8_t { SendingLanes, OtherLanes };

  void write_rank(RankId rank, Part part) {
    std::vector<StoredSpan> spans = spans_of(rank);
    std::vector<std::uint64_t> out(spans.size()), in(spans.size());
    for (const Message& message : messages_of(rank, spans)) (message.sends ? out : in)[message.span] = flow_of(message);
    extend_to_group_ends(spans);
    if (part == Part::SendingLanes) declare(rank, spans);
    write_slices(rank, lanes_of(part, spans), spans, out, in);
    if (part == Part::OtherLanes) write_counters(rank);
  }

  // [lane] does it belong to this part?
  std::vector<bool> lanes_of(Part part, const std::vector<StoredSpan>& spans) const {
    std::vector<bool> sends, receives;
    for (const StoredSpan& span : spans) {
      const StoredOp& op = *span.op;
      const std::size_t lane = schedule_.lane_of(op);
      if (lane >= sends.size()) sends.resize(lane + 1), receives.resize(lane + 1);
      if (op.direction == StoredOp::Direction::Send) sends[lane] = true;
      if (op.direction == StoredOp::Direction::Recv) receives[lane] = true;
    }
    for (std::size_t lane = 0; lane < sends.size(); ++lane) sends[lane] = (sends[lane] && !receives[lane]) == (part == Part::SendingLanes);
    return sends;
  }

  // Members of a group are consecutive, on one lane, and end together for whoever comes after.
  void extend_to_group_ends(std::vector<StoredSpan>& spans) const {
    for (std::size_t begin = 0; begin < spans.size();) {
      const std::int64_t group = spans[begin].op->group;
      std::size_t end = begin + 1;
      std::int64_t last = spans[begin].end_ns;
      while (group >= 0 && end < spans.size() && spans[end].step == spans[begin].step && spans[end].op->group == group)
        last = std::max(last, spans[end++].end_ns);
      for (std::size_t i = begin; i < end; ++i) spans[i].end_ns = last;
      begin = end;
    }
  }

  void declare(RankId rank, const std::vector<StoredSpan>& spans) {
    const std::size_t digits = fmt::to_string(result_.ranks.back().value).size();
    writer_.process(rank, fmt::format("rank {:0{}} · {}", rank.value, digits, describe_[rank.value]));
    if (spans.empty()) return;
    const std::uint32_t program = spans.front().op->program;
    const auto& lanes = schedule_.lanes(program);
    const std::size_t width = lanes.size() >= 10 ? 2 : 1;
    for (std::uint32_t lane = 0; lane < lanes.size(); ++lane)
      writer_.lane({rank, lane, fmt::format("{:0{}} {}", lane, width, lanes[lane])});
    writer_.lane({rank, static_cast<std::uint32_t>(lanes.size()), fmt::format("{:0{}} host", lanes.size(), width)});
  }

  void write_slices(RankId rank, const std::vector<bool>& lanes, const std::vector<StoredSpan>& spans,
                    const std::vector<std::uint64_t>& out, const std::vector<std::uint64_t>& in) {
    std::vector<std::uint32_t> order;
    const auto lane_of = [&](std::uint32_t i) { return schedule_.lane_of(*spans[i].op); };
    for (std::uint32_t i = 0; i < spans.size(); ++i)
      if (lanes[lane_of(i)]) order.push_back(i);
    // A lane is a FIFO, so that issue order is time order, except for members of a group: they start in any order and end together.
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::tuple(lane_of(a), spans[a].start_ns, a) < std::tuple(lane_of(b), spans[b].start_ns, b);
    });
    for (const std::uint32_t i : order) {
      const StoredOp& op = *spans[i].op;
      writer_.slice({rank, lane_of(i), schedule_.text(op.name), spans[i].start_ns, spans[i].end_ns, op.stage, op.micro_batch, op.layer,
                     op.bytes, spans[i].id, out[i], in[i], schedule_.text(op.segment)});
      if (out[i] != 0) ++result_.flows;
    }
    result_.slices += order.size();
  }

  void write_counters(RankId rank) {
    store_.for_each("SELECT space, curve, category, at_ns, bytes FROM memory_samples WHERE run_id = ?1 AND rank = ?2 ORDER BY seq",
                    {run_, std::to_string(stand_in_[rank.value].value)}, [&](const Row& row) {
                      counter_name_ = fmt::format("{} {} {}", row.text(0), row.text(1), row.text(2));
                      writer_.counter({rank, counter_name_, row.integer(3), row.integer(4)});
                      ++result_.counter_values;
                    });
  }

  const Store& store_;
  std::string run_, counter_name_;
  PerfettoWriter writer_;
  PerfettoResult result_;
  std::vector<RankId> stand_in_;       // [rank]
  std::vector<std::string> describe_;  // [rank]
  StoredSchedule schedule_;
  std::map<Channel, Traffic> traffic_;
};

}  // namespace

PerfettoResult export_perfetto(const Store& store, std::int64_t run_id, const std::function<void(std::string_view)>& sink,
                               const PerfettoExport& options) {
  return Exporter(store, run_id, sink).run(options);
}

}  // namespace steptwin
