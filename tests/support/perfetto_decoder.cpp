#include "tests/support/perfetto_decoder.h"

#include <algorithm>
#include <optional>

namespace steptwin::test {
namespace {

struct Field {
  std::uint32_t number = 0, wire = 0;
  std::uint64_t value = 0;  // varint and fixed64
  std::string_view bytes;   // length-delimited
};

// Fields of one message, in order; a broken message ends early with `ok` false.
struct Message {
  std::vector<Field> fields;
  bool ok = true;

  const Field* find(std::uint32_t number) const {
    for (const Field& f : fields)
      if (f.number == number) return &f;
    return nullptr;
  }
  std::int64_t integer(std::uint32_t number, std::int64_t otherwise = -1) const {
    const Field* f = find(number);
    return f != nullptr ? static_cast<std::int64_t>(f->value) : otherwise;
  }
  std::string text(std::uint32_t number) const {
    const Field* f = find(number);
    return f != nullptr ? std::string(f->bytes) : std::string();
  }
};

std::optional<std::uint64_t> take_varint(std::string_view& data) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 70 && !data.empty(); shift += 7) {
    const auto byte = static_cast<std::uint8_t>(data.front());
    data.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if ((byte & 0x80) == 0) return value;
  }
  return std::nullopt;
}

bool take_value(std::string_view& data, Field& field) {
  if (field.wire == 0) {
    const auto value = take_varint(data);
    field.value = value.value_or(0);
    return value.has_value();
  }
  if (field.wire == 1 && data.size() >= 8) {
    for (unsigned i = 0; i < 8; ++i) field.value |= std::uint64_t{static_cast<std::uint8_t>(data[i])} << (8 * i);
    data.remove_prefix(8);
    return true;
  }
  if (field.wire != 2) return false;
  const auto size = take_varint(data);
  if (!size || *size > data.size()) return false;
  field.bytes = data.substr(0, *size);
  data.remove_prefix(*size);
  return true;
}

Message parse(std::string_view data) {
  Message message;
  while (!data.empty() && message.ok) {
    const auto tag = take_varint(data);
    Field field;
    if (tag) field.number = static_cast<std::uint32_t>(*tag >> 3), field.wire = static_cast<std::uint32_t>(*tag & 7);
    message.ok = tag && take_value(data, field);
    if (message.ok) message.fields.push_back(field);
  }
  return message;
}

class Reader {
 public:
  DecodedTrace run(std::string_view file) {
    const Message all = parse(file);
    if (!all.ok) problem("the file is cut or broken");
    for (const Field& field : all.fields) {
      if (field.number != 1 || field.wire != 2)
        problem("a top-level field that is no packet");
      else
        read_packet(parse(field.bytes));
    }
    std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) { return a.at < b.at; });
    for (const Event& event : events_) play(event);
    for (const auto& [track, open] : open_)
      if (!open.empty()) problem("a slice never ends: " + trace_.slices[open.back()].name);
    for (const auto& [id, slice] : leaving_) problem("flow " + std::to_string(id) + " never arrives");
    return std::move(trace_);
  }

 private:
  struct Event {
    std::int64_t at;
    Message message;
    std::string name;
  };

  void problem(const std::string& text) { trace_.problems.push_back(text); }

  void read_packet(const Message& packet) {
    if (!packet.ok) return problem("a broken packet");
    if (const Field* descriptor = packet.find(60)) return read_descriptor(parse(descriptor->bytes));
    const Field* event = packet.find(11);
    if (event == nullptr) return problem("a packet of no known kind");
    check_sequence(packet);
    if (const Field* interned = packet.find(12)) read_interned(parse(interned->bytes));
    Message message = parse(event->bytes);
    std::string name;
    if (const Field* iid = message.find(10)) {
      if (!names_.contains(iid->value)) problem("an event name that was not interned");
      name = names_[iid->value];
    }
    events_.push_back({packet.integer(8), std::move(message), name});
  }

  // One sequence; the first packet clears its state, the others need it.
  void check_sequence(const Message& packet) {
    if (packet.integer(10) != 1) problem("an event outside sequence 1");
    if (packet.integer(13) != (first_event_ ? 1 : 2)) problem("wrong sequence flags");
    if (packet.find(8) == nullptr || packet.find(8)->wire != 0) problem("an event without time");
    first_event_ = false;
  }

  void read_interned(const Message& data) {
    for (const Field& field : data.fields) {
      const Message entry = parse(field.bytes);
      auto& names = field.number == 2 ? names_ : annotations_;
      if (field.number != 2 && field.number != 3) problem("unknown interned data");
      if (entry.integer(1, 0) == 0) problem("iid 0 is invalid");
      if (!names.emplace(entry.integer(1, 0), entry.text(2)).second) problem("a name was interned twice");
    }
  }

  void read_descriptor(const Message& d) {
    if (d.integer(1) == 0) {
      trace_.explicit_processes = d.integer(19) == 1;
      trace_.explicit_threads = d.integer(20) == 1;
      return;
    }
    DecodedTrack track;
    track.uuid = static_cast<std::uint64_t>(d.integer(1));
    track.parent = static_cast<std::uint64_t>(d.integer(5, 0));
    track.order = d.integer(12);
    track.name = d.text(2);
    if (const Field* process = d.find(3)) read_process(parse(process->bytes), track);
    if (const Field* thread = d.find(4)) read_thread(parse(thread->bytes), track);
    if (const Field* counter = d.find(8)) track.is_counter = true, track.counter_unit = parse(counter->bytes).integer(3);
    if (trace_.track(track.uuid) != nullptr) problem("a track was declared twice");
    trace_.tracks.push_back(track);
  }

  static void read_process(const Message& m, DecodedTrack& track) {
    track.is_process = true;
    track.pid = m.integer(1);
    track.name = m.text(6);
  }
  static void read_thread(const Message& m, DecodedTrack& track) {
    track.is_thread = true;
    track.pid = m.integer(1);
    track.tid = m.integer(2);
    track.name = m.text(5);
  }

  void play(const Event& event) {
    const auto track = static_cast<std::uint64_t>(event.message.integer(11, 0));
    if (trace_.track(track) == nullptr) return problem("an event on a track that was not declared");
    switch (event.message.integer(9)) {
      case 1:
        return begin(event, track);
      case 2:
        return end(event, track);
      case 4:
        trace_.counters[track].emplace_back(event.at, event.message.integer(30, 0));
        return;
      default:
        problem("an event of unknown type");
    }
  }

  void begin(const Event& event, std::uint64_t track) {
    auto& open = open_[track];
    DecodedSlice slice;
    slice.track = track;
    slice.name = event.name;
    slice.start_ns = event.at;
    slice.depth = open.size();
    read_annotations(event.message, slice);
    open.push_back(trace_.slices.size());
    trace_.slices.push_back(std::move(slice));
    follow_flows(event.message, open.back());
  }

  void end(const Event& event, std::uint64_t track) {
    auto& open = open_[track];
    if (open.empty()) return problem("an end without a begin");
    trace_.slices[open.back()].end_ns = event.at;
    follow_flows(event.message, open.back());
    open.pop_back();
  }

  void read_annotations(const Message& event, DecodedSlice& slice) {
    for (const Field& field : event.fields) {
      if (field.number != 4) continue;
      const Message annotation = parse(field.bytes);
      const std::string name = annotations_[static_cast<std::uint64_t>(annotation.integer(1, 0))];
      if (name.empty()) problem("an annotation without a name");
      if (annotation.find(6) != nullptr)
        slice.texts[name] = annotation.text(6);
      else
        slice.numbers[name] = annotation.integer(4);
    }
  }

  void follow_flows(const Message& event, std::size_t slice) {
    for (const Field& field : event.fields) {
      if (field.number != 47 && field.number != 48) continue;
      if (field.wire != 1) problem("a flow id that is no fixed64");
      if (field.number == 47) {
        if (!leaving_.emplace(field.value, slice).second) problem("a flow leaves twice");
        continue;
      }
      const auto from = leaving_.find(field.value);
      if (from == leaving_.end()) {
        problem("flow " + std::to_string(field.value) + " arrives before it leaves");
        continue;
      }
      trace_.flows.push_back({from->second, slice});
      leaving_.erase(from);
    }
  }

  DecodedTrace trace_;
  std::vector<Event> events_;
  std::map<std::uint64_t, std::string> names_, annotations_;
  std::map<std::uint64_t, std::vector<std::size_t>> open_;
  std::map<std::uint64_t, std::size_t> leaving_;
  bool first_event_ = true;
};

}  // namespace

const DecodedTrack* DecodedTrace::track(std::uint64_t uuid) const {
  for (const DecodedTrack& t : tracks)
    if (t.uuid == uuid) return &t;
  return nullptr;
}

DecodedTrace decode_perfetto(std::string_view file) { return Reader().run(file); }

}  // namespace steptwin::test
