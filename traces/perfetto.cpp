#include "traces/perfetto.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "schedule/base/error.h"
#include "traces/proto_encoder.h"

namespace steptwin {
namespace {

// Field numbers of google/perfetto protos/perfetto/trace/** (specs/ux.md 8.1, checked there at ec5d16b).
namespace trace {
constexpr std::uint32_t kPacket = 1;
}
namespace packet {
constexpr std::uint32_t kTimestamp = 8, kSequenceId = 10, kTrackEvent = 11, kInternedData = 12, kSequenceFlags = 13, kTrackDescriptor = 60,
                        kFirstPacketOnSequence = 87;
}
namespace track {
constexpr std::uint32_t kUuid = 1, kName = 2, kProcess = 3, kThread = 4, kParentUuid = 5, kCounter = 8, kSiblingOrderRank = 12,
                        kProcessOrdering = 19, kThreadOrdering = 20;
constexpr std::uint64_t kExplicit = 1;
}  // namespace track
namespace process_field {
constexpr std::uint32_t kPid = 1, kName = 6;
}
namespace thread_field {
constexpr std::uint32_t kPid = 1, kTid = 2, kName = 5;
}
namespace counter_field {
constexpr std::uint32_t kUnit = 3, kYAxisShareKey = 7;
constexpr std::uint64_t kSizeBytes = 3;
}  // namespace counter_field
namespace event {
constexpr std::uint32_t kDebugAnnotations = 4, kType = 9, kNameIid = 10, kTrackUuid = 11, kCounterValue = 30, kFlowIds = 47,
                        kTerminatingFlowIds = 48;
constexpr std::uint64_t kSliceBegin = 1, kSliceEnd = 2, kCounter = 4;
}  // namespace event
namespace annotation {
constexpr std::uint32_t kNameIid = 1, kInt = 4, kString = 6;
}
namespace interned {
constexpr std::uint32_t kEventNames = 2, kAnnotationNames = 3, kIid = 1, kText = 2;
}

constexpr std::uint64_t kSequence = 1, kStateCleared = 1, kNeedsState = 2;
constexpr std::size_t kChunk = 1 << 20;  // handed to the sink at a time

// Interned names of the annotations; iid 0 is invalid.
enum Annotation : std::uint64_t { kStage = 1, kMicroBatch, kLayer, kBytes, kOp, kSegment };
constexpr std::pair<Annotation, const char*> kAnnotations[] = {
    {kStage, "stage"}, {kMicroBatch, "micro_batch"}, {kLayer, "layer"}, {kBytes, "bytes"}, {kOp, "op"}, {kSegment, "segment"}};

// Track numbers: 0 is the root, a rank owns 2^20 of them, counters lie above all ranks.
std::uint64_t process_uuid(RankId rank) { return (std::uint64_t{rank.value} + 1) << 20; }
std::uint64_t lane_uuid(RankId rank, std::uint32_t lane) { return process_uuid(rank) + 1 + lane; }
std::uint64_t counter_uuid(std::size_t number) { return (std::uint64_t{1} << 60) + number; }
std::int64_t pid_of(RankId rank) { return std::int64_t{rank.value} + 1; }  // 0 is the idle task
std::int64_t tid_of(RankId rank, std::uint32_t lane) { return pid_of(rank) * 256 + lane; }

}  // namespace

struct PerfettoWriter::Impl {
  explicit Impl(Sink target) : sink(std::move(target)) {}

  struct OpenSlice {
    std::int64_t end_ns;
    std::uint64_t flow_in;
  };
  struct LaneState {
    std::uint64_t uuid;
    std::vector<OpenSlice> open;  // begun and not ended, outermost first
  };

  Sink sink;
  std::string out, body, event_body, scratch, pending_interned;
  bool first = true;
  std::vector<LaneState> lanes;
  std::unordered_map<std::uint64_t, std::size_t> lane_index;  // by uuid
  std::unordered_map<std::string, std::uint64_t> names;
  std::map<std::pair<RankId, std::string>, std::uint64_t, std::less<>> counters;

  void put_packet() {
    ProtoEncoder(out).bytes(trace::kPacket, body);
    body.clear();
    if (out.size() >= kChunk) flush();
  }

  void flush() {
    if (!out.empty()) sink(out);
    out.clear();
  }

  void put_descriptor() {
    ProtoEncoder(body).bytes(packet::kTrackDescriptor, scratch);
    put_packet();
  }

  // Sends event_body as an event at `at`; the first packet of the sequence declares its state empty.
  void put_event(std::int64_t at) {
    ProtoEncoder encode(body);
    encode.integer(packet::kTimestamp, at);
    encode.uint(packet::kSequenceId, kSequence);
    encode.bytes(packet::kTrackEvent, event_body);
    if (first) add_annotation_names();
    if (!pending_interned.empty()) encode.bytes(packet::kInternedData, pending_interned);
    pending_interned.clear();
    encode.uint(packet::kSequenceFlags, first ? kStateCleared : kNeedsState);
    if (first) encode.uint(packet::kFirstPacketOnSequence, 1);
    first = false;
    event_body.clear();
    put_packet();
  }

  void intern(std::uint32_t field, std::uint64_t iid, std::string_view text) {
    std::string entry;
    ProtoEncoder encode(entry);
    encode.uint(interned::kIid, iid);
    encode.bytes(interned::kText, text);
    ProtoEncoder(pending_interned).bytes(field, entry);
  }

  void add_annotation_names() {
    for (const auto& [iid, text] : kAnnotations) intern(interned::kAnnotationNames, iid, text);
  }

  std::uint64_t name_iid(std::string_view text) {
    const auto [entry, added] = names.try_emplace(std::string(text), names.size() + 1);
    if (added) intern(interned::kEventNames, entry->second, text);
    return entry->second;
  }

  void annotate(Annotation name, std::int64_t value) {
    scratch.clear();
    ProtoEncoder encode(scratch);
    encode.uint(annotation::kNameIid, name);
    encode.integer(annotation::kInt, value);
    ProtoEncoder(event_body).bytes(event::kDebugAnnotations, scratch);
  }

  void annotate_segment(std::string_view text) {
    scratch.clear();
    ProtoEncoder encode(scratch);
    encode.uint(annotation::kNameIid, kSegment);
    encode.bytes(annotation::kString, text);
    ProtoEncoder(event_body).bytes(event::kDebugAnnotations, scratch);
  }

  void end_slices_until(LaneState& lane, std::int64_t at) {
    while (!lane.open.empty() && lane.open.back().end_ns <= at) {
      const auto [end_ns, flow_in] = lane.open.back();
      ProtoEncoder encode(event_body);
      encode.uint(event::kType, event::kSliceEnd);
      encode.uint(event::kTrackUuid, lane.uuid);
      if (flow_in != 0) encode.fixed64(event::kTerminatingFlowIds, flow_in);
      put_event(end_ns);
      lane.open.pop_back();
    }
  }

  void put_begin(const PerfettoSource::Slice& slice, std::uint64_t uuid) {
    ProtoEncoder encode(event_body);
    encode.uint(event::kType, event::kSliceBegin);
    encode.uint(event::kTrackUuid, uuid);
    encode.uint(event::kNameIid, name_iid(slice.name));
    if (slice.stage >= 0) annotate(kStage, slice.stage);
    if (slice.micro_batch >= 0) annotate(kMicroBatch, slice.micro_batch);
    if (slice.layer >= 0) annotate(kLayer, slice.layer);
    if (slice.bytes > 0) annotate(kBytes, slice.bytes);
    annotate(kOp, slice.op);
    if (!slice.segment.empty()) annotate_segment(slice.segment);
    if (slice.flow_out != 0) encode.fixed64(event::kFlowIds, slice.flow_out);
    put_event(slice.start_ns);
  }

  std::uint64_t counter_track(const PerfettoSource::Counter& counter) {
    const auto known = counters.find(std::pair<RankId, std::string>(counter.rank, counter.name));
    if (known != counters.end()) return known->second;
    const std::uint64_t uuid = counter_uuid(counters.size());
    counters.emplace(std::pair(counter.rank, std::string(counter.name)), uuid);
    std::string unit;
    ProtoEncoder(unit).uint(counter_field::kUnit, counter_field::kSizeBytes);
    ProtoEncoder(unit).bytes(counter_field::kYAxisShareKey, "memory");
    scratch.clear();
    ProtoEncoder encode(scratch);
    encode.uint(track::kUuid, uuid);
    encode.uint(track::kParentUuid, process_uuid(counter.rank));
    encode.bytes(track::kName, counter.name);
    encode.bytes(track::kCounter, unit);
    put_descriptor();
    return uuid;
  }
};

PerfettoWriter::PerfettoWriter(Sink sink) : impl_(std::make_unique<Impl>(std::move(sink))) {
  // Without a root track that asks for explicit ordering the viewer ignores sibling_order_rank: rank 10 before rank 2.
  ProtoEncoder encode(impl_->scratch);
  encode.uint(track::kUuid, 0);
  encode.uint(track::kProcessOrdering, track::kExplicit);
  encode.uint(track::kThreadOrdering, track::kExplicit);
  impl_->put_descriptor();
}

PerfettoWriter::~PerfettoWriter() = default;
PerfettoWriter::PerfettoWriter(PerfettoWriter&&) noexcept = default;

void PerfettoWriter::process(RankId rank, const std::string& name) {
  std::string fields;
  ProtoEncoder(fields).integer(process_field::kPid, pid_of(rank));
  ProtoEncoder(fields).bytes(process_field::kName, name);
  impl_->scratch.clear();
  ProtoEncoder encode(impl_->scratch);
  encode.uint(track::kUuid, process_uuid(rank));
  encode.bytes(track::kProcess, fields);
  encode.integer(track::kSiblingOrderRank, rank.value);
  impl_->put_descriptor();
}

void PerfettoWriter::lane(const PerfettoSource::Lane& lane) {
  std::string fields;
  ProtoEncoder(fields).integer(thread_field::kPid, pid_of(lane.rank));
  ProtoEncoder(fields).integer(thread_field::kTid, tid_of(lane.rank, lane.lane));
  ProtoEncoder(fields).bytes(thread_field::kName, lane.name);
  const std::uint64_t uuid = lane_uuid(lane.rank, lane.lane);
  impl_->scratch.clear();
  ProtoEncoder encode(impl_->scratch);
  encode.uint(track::kUuid, uuid);
  encode.uint(track::kParentUuid, process_uuid(lane.rank));
  encode.bytes(track::kThread, fields);
  encode.integer(track::kSiblingOrderRank, lane.lane);
  impl_->put_descriptor();
  impl_->lane_index[uuid] = impl_->lanes.size();
  impl_->lanes.push_back({uuid, {}});
}

void PerfettoWriter::slice(const PerfettoSource::Slice& slice) {
  const auto known = impl_->lane_index.find(lane_uuid(slice.rank, slice.lane));
  invariant(known != impl_->lane_index.end(), "perfetto: a lane is declared before its slices");
  Impl::LaneState& lane = impl_->lanes[known->second];
  impl_->end_slices_until(lane, slice.start_ns);
  impl_->put_begin(slice, lane.uuid);
  const std::int64_t end_ns = lane.open.empty() ? slice.end_ns : std::min(slice.end_ns, lane.open.back().end_ns);
  lane.open.push_back({end_ns, slice.flow_in});
}

void PerfettoWriter::counter(const PerfettoSource::Counter& counter) {
  const std::uint64_t uuid = impl_->counter_track(counter);
  ProtoEncoder encode(impl_->event_body);
  encode.uint(event::kType, event::kCounter);
  encode.uint(event::kTrackUuid, uuid);
  encode.integer(event::kCounterValue, counter.bytes);
  impl_->put_event(counter.at_ns);
}

void PerfettoWriter::finish() {
  for (Impl::LaneState& lane : impl_->lanes) impl_->end_slices_until(lane, INT64_MAX);
  impl_->flush();
}

}  // namespace steptwin
