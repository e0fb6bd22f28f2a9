// Reads a Perfetto trace the way the viewer's importer does: packets in stable time order, one stack of open slices a track, an end
// closes the innermost, a flow must leave before it arrives. Written from the format's field numbers alone; shares no code with the
// writer. Anything odd becomes an entry of `problems`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace steptwin::test {

struct DecodedSlice {
  std::uint64_t track = 0;
  std::string name;
  std::int64_t start_ns = 0, end_ns = -1;
  std::size_t depth = 0;
  std::map<std::string, std::int64_t> numbers;
  std::map<std::string, std::string> texts;
};

struct DecodedTrack {
  std::uint64_t uuid = 0, parent = 0;
  std::string name;  // of a process, thread or counter
  std::int64_t pid = -1, tid = -1, order = -1;
  bool is_process = false, is_thread = false, is_counter = false;
  std::int64_t counter_unit = -1;
};

struct DecodedFlow {
  std::size_t from, to;  // indices into slices
};

struct DecodedTrace {
  bool explicit_processes = false, explicit_threads = false;
  std::vector<DecodedTrack> tracks;  // in the order declared
  std::vector<DecodedSlice> slices;
  std::vector<DecodedFlow> flows;
  std::map<std::uint64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> counters;  // by track: (time, value)
  std::vector<std::string> problems;
  const DecodedTrack* track(std::uint64_t uuid) const;
};

DecodedTrace decode_perfetto(std::string_view file);

}  // namespace steptwin::test
