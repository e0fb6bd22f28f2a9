#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "schedule/ir/limits.h"
#include "schedule/ir/part_size.h"
#include "schedule/ir/text_rules.h"
#include "schedule/ir/text_scope.h"

namespace steptwin {
namespace {

struct KindWord {
  std::string_view word;
  OpBody body;
};
constexpr std::size_t kKinds = std::variant_size_v<OpBody>;

// One body per row of OpBody, in its order, with the word it has in the text.
template <std::size_t... I>
std::array<KindWord, kKinds> all_kinds(std::index_sequence<I...>) {
  return {KindWord{kind_name(OpBody(std::in_place_index<I>)), OpBody(std::in_place_index<I>)}...};
}

const std::array<KindWord, kKinds>& kinds() {
  static const std::array<KindWord, kKinds> all = all_kinds(std::make_index_sequence<kKinds>());
  return all;
}

class OpReader {
 public:
  OpReader(TextScope& scope, LineCursor& line) : scope_(scope), s_(scope.schedule), program_(s_.programs.back()), line_(line) {}

  void read() {
    read_number();
    read_kind();
    while (!line_.at_end()) read_clause();
    if (!line_.failed()) finish();
    append();
  }

 private:
  struct Clause {
    std::string_view word;
    bool once;  // accesses may repeat
    void (OpReader::*read)();
  };
  static constexpr std::size_t kClauses = 19;
  static const Clause kTable[kClauses];

  void read_number() {
    const Token token = line_.peek();
    const std::int64_t number = line_.number("an op number", OpId::kNone - 1);
    if (line_.failed()) {
      ++scope_.next_number;
      return;
    }
    if (number != scope_.next_number) {
      line_.fail(token, "ORDER", fmt::format("expected op number {}, found {}", scope_.next_number, number),
                 "the ops of a program are numbered 0, 1, 2, ... in issue order");
    }
    scope_.next_number = number + 1;
  }

  void read_kind() {
    const Token token = line_.take();
    for (const KindWord& kind : kinds()) {
      if (!token.is_word(kind.word)) continue;
      op_.body = kind.body;
      return;
    }
    std::vector<std::string> known;
    for (const KindWord& kind : kinds()) known.emplace_back(kind.word);
    const std::string near = line_.suggestion(token.text, known);
    line_.fail(
        token, "SYNTAX", fmt::format("unknown kind of op '{}'", token.text.substr(0, 40)),
        near.empty() ? "one of compute, gather, reduce_scatter, all_reduce, broadcast, all_to_all, send, recv, copy, host_wait" : near);
  }

  void read_clause() {
    clause_ = line_.peek();
    if (clause_.kind == Token::Kind::Word) {
      if (clause_.text == "+") return line_.take(), read_further_part();
      for (std::size_t i = 0; i < kClauses; ++i) {
        const Clause& clause = kTable[i];
        if (clause_.text != clause.word) continue;
        if (clause.once && (seen_ >> i & 1u) != 0)
          return line_.fail(clause_, "SYNTAX", fmt::format("'{}' is given twice", clause_.text));
        seen_ |= 1u << i;
        line_.take();
        return (this->*clause.read)();  // not kTable[i].read: GCC 12 checks the bounds of a wrong index under -fsanitize=undefined
      }
    }
    read_label_word();
  }

  template <class Body>
  Body* only_for(const char* kind) {
    Body* body = std::get_if<Body>(&op_.body);
    if (!body) line_.fail(clause_, "SYNTAX", fmt::format("'{}' belongs to {}, not to {}", clause_.text, kind, kind_name(op_.body)));
    return body;
  }

  bool communicates() const {
    return !std::holds_alternative<Compute>(op_.body) && !std::holds_alternative<Copy>(op_.body) &&
           !std::holds_alternative<HostWait>(op_.body);
  }

  void read_on() {
    if (!communicates()) return line_.fail(clause_, "SYNTAX", fmt::format("'on' belongs to communication, not to {}", kind_name(op_.body)));
    comm_ = CommId(known_name(line_, scope_.communicators, "communicator"));
  }

  void read_to() {
    if (Send* send = only_for<Send>("send")) send->to = read_peer();
  }
  void read_from() {
    if (Recv* recv = only_for<Recv>("recv")) recv->from = read_peer();
  }
  void read_root() {
    if (Broadcast* broadcast = only_for<Broadcast>("broadcast")) broadcast->root = read_peer();
  }

  Peer read_peer() {
    has_peer_ = true;
    const Token token = line_.peek();
    std::string_view text = token.kind == Token::Kind::Word ? token.text : std::string_view();
    Peer peer;
    peer.relative = text.starts_with('+') || text.starts_with('-');
    const auto value = to_number(text.substr(peer.relative ? 1 : 0));
    if (!value || *value > static_cast<std::int64_t>(kMaxRanks)) {
      line_.expected("a member number, or +1 / -1 along the ring");
      return peer;
    }
    line_.take();
    peer.value = static_cast<std::int32_t>(text.front() == '-' ? -*value : *value);
    return peer;
  }

  std::uint32_t read_local_op(const char* what) {
    return program_.first_op.value + static_cast<std::uint32_t>(line_.number(what, OpId::kNone - 1 - program_.first_op.value));
  }

  void read_for() {
    if (HostWait* wait = only_for<HostWait>("host_wait")) wait->target = OpId(read_local_op("the number of the op waited for"));
  }

  void read_max() {
    if (AllReduce* reduce = only_for<AllReduce>("all_reduce")) reduce->reduction = AllReduce::Reduction::Max;
  }

  void read_bytes() {
    if (communicates() || std::holds_alternative<Copy>(op_.body))
      bytes_ = line_.size("the bytes moved");
    else
      line_.fail(clause_, "SYNTAX", fmt::format("'bytes' belongs to communication and copy, not to {}", kind_name(op_.body)));
  }

  void read_dtype() {
    const bool copy = std::holds_alternative<Copy>(op_.body);
    if (!communicates() && !copy)
      return line_.fail(clause_, "SYNTAX", fmt::format("'dtype' belongs to communication and copy, not to {}", kind_name(op_.body)));
    dtype_ = line_.dtype();
    if (copy && line_.take_word("to")) cast_to_ = line_.dtype();
  }

  bool fails_as_compute() {
    if (std::holds_alternative<Compute>(op_.body)) return false;
    line_.fail(clause_, "SYNTAX", fmt::format("'{}' belongs to compute, not to {}", clause_.text, kind_name(op_.body)));
    return true;
  }

  void read_work() {
    if (fails_as_compute()) return;
    ComputePart& part = parts_.empty() ? first_ : parts_.back();
    const Token token = line_.take();
    const auto number = token.kind == Token::Kind::Word && token.text.starts_with('w') ? to_number(token.text.substr(1)) : std::nullopt;
    if (!number || *number >= static_cast<std::int64_t>(s_.works.size()))
      return line_.fail(token, "UNKNOWN-NAME", fmt::format("there is no work '{}'", token.text.substr(0, 40)),
                        "works are declared before the programs: work w0");
    if (part.work.valid()) return line_.fail(token, "SYNTAX", "a part has one work");
    part.work = WorkId(static_cast<std::uint32_t>(*number));
  }

  void read_of() {
    if (fails_as_compute()) return;
    if (!parts_.empty() || first_.work.valid()) return line_.fail(clause_, "SYNTAX", "'of' begins the parts and comes once");
    parts_.emplace_back();
    all_parts_given_ = true;
  }

  void read_further_part() {
    if (fails_as_compute()) return;
    parts_.emplace_back();
  }

  // A word of the label, or of the part that is being read.
  void read_label_word() {
    const bool in_part = !parts_.empty();
    ComputePart* part = in_part ? &parts_.back() : nullptr;
    const Token token = line_.peek();
    if (token.kind == Token::Kind::Word) {
      for (Phase phase : kTextPhases)
        if (token.text.size() == 1 && token.text.front() == *name_of(phase)) return set_phase(part ? part->phase : op_.label.phase, phase);
      if (token.text.starts_with("mb") && is_label_word(token.text)) return set_tag(part ? part->micro_batch : op_.label.micro_batch, 2);
      if (token.text.front() == 'L' && is_label_word(token.text)) return set_tag(part ? part->layer : op_.label.layer, 1);
      if (!part && token.text.front() == 'c' && is_label_word(token.text)) return set_tag(op_.label.chunk, 1);
      if (!part && token.text.front() == 's' && is_label_word(token.text)) return set_tag(op_.label.slice, 1);
      if (part && is_label_word(token.text))
        return line_.fail(token, "SYNTAX", "a part has no chunk or slice: they stand in the label, before the parts");
    }
    read_segment(part ? part->segment : op_.label.segment);
  }

  void set_phase(Phase& at, Phase phase) {
    if (at != Phase::None) return line_.fail(line_.peek(), "SYNTAX", "a second phase", "quote a segment that is called like a phase");
    at = phase;
    line_.take();
  }

  void set_tag(std::int32_t& at, std::size_t prefix) {
    const Token token = line_.peek();
    const auto value = to_number(token.text.substr(prefix));
    if (!value || *value > kMaxLabel) return line_.fail(token, "NUMBER", fmt::format("{} is too large", token.text.substr(0, 40)));
    if (at != -1) return line_.fail(token, "SYNTAX", fmt::format("a second '{}'", token.text.substr(0, prefix)));
    at = static_cast<std::int32_t>(*value);
    line_.take();
  }

  void read_segment(NameId& at) {
    const Token token = line_.peek();
    const bool name = token.kind == Token::Kind::String || (token.kind == Token::Kind::Word && is_plain_name(token.text));
    if (!name || at.valid()) {
      std::vector<std::string> known;
      for (const Clause& clause : kTable) known.emplace_back(clause.word);
      std::string near = line_.suggestion(token.text, known);
      if (near.empty() && at.valid())
        near = fmt::format("'{}' was read as the segment; clauses are words such as read, lane, after, time", s_.name(at));
      return line_.fail(token, "SYNTAX", fmt::format("expected a clause or a label, found '{}'", token.text.substr(0, 40)), near);
    }
    if (token.text.empty()) return line_.fail(token, "SYNTAX", "a segment cannot be empty");
    at = scope_.intern(token.text);
    line_.take();
  }

  void read_read() { read_accesses(scope_, line_, AccessMode::Read); }
  void read_write() { read_accesses(scope_, line_, AccessMode::Write); }
  void read_update() { read_accesses(scope_, line_, AccessMode::Update); }
  void read_hold() { read_accesses(scope_, line_, AccessMode::Hold); }
  void read_lane() { op_.lane = LaneId(known_name(line_, scope_.lanes, "lane")); }

  // Single numbers may point anywhere (verify complains with the op line); ranges must point back, which bounds them.
  void read_after() {
    const Token token = line_.peek();
    const bool single = token.kind == Token::Kind::Word && to_number(token.text).has_value();
    if (single) return deps_.push_back(OpId(read_local_op("the number of an op")));
    const auto most = std::max<std::int64_t>(scope_.next_number - 2, 0);
    for (std::int64_t local : line_.list("the ops it comes after", most, static_cast<std::size_t>(most) + 1))
      deps_.push_back(OpId(program_.first_op.value + static_cast<std::uint32_t>(local)));
  }

  void read_group() { op_.group = GroupId(static_cast<std::uint32_t>(line_.number("a group number", UINT32_MAX - 1))); }
  void read_when() { op_.guard = BufferId(known_name(line_, scope_.buffers, "buffer")); }
  void read_time() { op_.given = line_.time("a time"); }

  void finish() {
    if (communicates() && !comm_.valid()) line_.expected("'on' and a communicator");
    const bool needs_peer =
        std::holds_alternative<Send>(op_.body) || std::holds_alternative<Recv>(op_.body) || std::holds_alternative<Broadcast>(op_.body);
    if (needs_peer && !has_peer_)
      line_.expected(std::holds_alternative<Send>(op_.body)   ? "'to' and the member it sends to"
                     : std::holds_alternative<Recv>(op_.body) ? "'from' and the member that sends"
                                                              : "'root' and the member that has the data");
    const auto* wait = std::get_if<HostWait>(&op_.body);
    if (wait && !wait->target.valid()) line_.expected("'for' and the op waited for");
    if (!op_.lane.valid() && !wait) op_.lane = default_lane();
  }

  LaneId default_lane() {
    const Engine engine = communicates() ? Engine::Network : Engine::Compute;
    const auto fits = [engine](const Lane& lane) { return lane.engine == engine; };
    const bool one = !std::holds_alternative<Copy>(op_.body) && std::count_if(program_.lanes.begin(), program_.lanes.end(), fits) == 1;
    if (!one) line_.expected("'lane' and the lane it runs on", "it may be left out when one lane of the fitting engine exists");
    if (!one) return LaneId();
    return LaneId(static_cast<std::uint32_t>(std::find_if(program_.lanes.begin(), program_.lanes.end(), fits) - program_.lanes.begin()));
  }

  void fill_payload() {
    const std::span<const Access> accesses(s_.accesses.data() + s_.access_offsets.back(), s_.accesses.size() - s_.access_offsets.back());
    const Payload implied = implied_payload(s_, program_, op_.body, accesses);
    const auto fill = [&](auto& body) {
      body.comm = comm_;
      body.bytes = bytes_.value_or(implied.bytes);
      body.dtype = dtype_.value_or(implied.dtype);
    };
    std::visit(Overloaded{
                   [&](Compute& body) { fill_parts(body); },
                   [&](Copy& body) {
                     body.bytes = bytes_.value_or(implied.bytes);
                     body.from = dtype_.value_or(implied.dtype);
                     body.to = cast_to_ ? *cast_to_ : implied.to.value_or(body.from);
                   },
                   [](HostWait&) {},
                   [&](AllGather& body) { fill(body); },
                   [&](ReduceScatter& body) { fill(body); },
                   [&](AllReduce& body) { fill(body); },
                   [&](Broadcast& body) { fill(body); },
                   [&](AllToAll& body) { fill(body); },
                   [&](Send& body) { fill(body); },
                   [&](Recv& body) { fill(body); },
               },
               op_.body);
  }

  void fill_parts(Compute& body) {
    body.first_part = static_cast<std::uint32_t>(s_.parts.size());
    const Label& label = op_.label;
    if (!all_parts_given_) s_.parts.push_back({label.phase, label.segment, label.layer, label.micro_batch, first_.work});
    s_.parts.insert(s_.parts.end(), parts_.begin(), parts_.end());
    body.part_count = static_cast<std::uint32_t>(s_.parts.size()) - body.first_part;
  }

  void append() {
    fill_payload();
    s_.ops.push_back(op_);
    s_.access_offsets.push_back(static_cast<std::uint32_t>(s_.accesses.size()));
    s_.deps.insert(s_.deps.end(), deps_.begin(), deps_.end());
    s_.dep_offsets.push_back(static_cast<std::uint32_t>(s_.deps.size()));
    ++program_.op_count;
  }

  TextScope& scope_;
  Schedule& s_;
  Program& program_;
  LineCursor& line_;
  Op op_;
  CommId comm_;
  std::optional<Bytes> bytes_;
  std::optional<DType> dtype_, cast_to_;
  ComputePart first_;               // only its work: the rest is the label's
  std::vector<ComputePart> parts_;  // explicit parts
  std::vector<OpId> deps_;
  Token clause_;
  std::uint32_t seen_ = 0;
  bool has_peer_ = false;
  bool all_parts_given_ = false;
};

const OpReader::Clause OpReader::kTable[kClauses] = {
    {"read", false, &OpReader::read_read}, {"write", false, &OpReader::read_write}, {"update", false, &OpReader::read_update},
    {"hold", false, &OpReader::read_hold}, {"lane", true, &OpReader::read_lane},    {"after", true, &OpReader::read_after},
    {"on", true, &OpReader::read_on},      {"to", true, &OpReader::read_to},        {"from", true, &OpReader::read_from},
    {"root", true, &OpReader::read_root},  {"work", false, &OpReader::read_work},   {"of", true, &OpReader::read_of},
    {"max", true, &OpReader::read_max},    {"bytes", true, &OpReader::read_bytes},  {"dtype", true, &OpReader::read_dtype},
    {"for", true, &OpReader::read_for},    {"group", true, &OpReader::read_group},  {"when", true, &OpReader::read_when},
    {"time", true, &OpReader::read_time},
};

}  // namespace

void read_op(TextScope& scope, LineCursor& line) { OpReader(scope, line).read(); }

}  // namespace steptwin
