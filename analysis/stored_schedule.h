// The parts of a stored schedule that a reader of spans needs again and again, read once: ops by id, lanes, who a peer is.
// What is read is checked against what it indexes: tables of a damaged file end in EnvironmentError (Database), not in a wrong access.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "schedule/ir/mesh.h"
#include "traces/store.h"

namespace steptwin {

struct StoredOp {
  enum class Direction : std::uint8_t { None, Send, Recv };
  std::uint32_t program = 0;
  std::int32_t lane = -1;              // -1: the issuing thread (host wait)
  std::int64_t name = 0, segment = 0;  // for StoredSchedule::text
  std::int32_t stage = -1, micro_batch = -1, layer = -1;
  std::int64_t bytes = 0, group = -1;
  std::uint32_t comm = 0;
  Peer peer;
  Direction direction = Direction::None;
};

[[noreturn]] void throw_damaged(const char* what);
// `value` when it is below `limit`; damaged otherwise.
std::size_t checked_index(std::int64_t value, std::size_t limit, const char* what);

class StoredSchedule {
 public:
  const StoredOp& op(std::uint32_t id) const;
  const std::vector<std::string>& lanes(std::uint32_t program) const { return lanes_.at(program); }
  // Index of the op's lane; the lane after the last is the issuing thread.
  std::uint32_t lane_of(const StoredOp& op) const;
  std::string_view text(std::int64_t id) const;
  RankId peer(const StoredOp& op, RankId rank) const;  // of a send or recv

 private:
  friend StoredSchedule load_schedule(const Store& store, const std::string& run, const std::string& ranks);
  struct Block {
    std::uint32_t first_op = 0;
    std::vector<StoredOp> ops;
  };
  std::vector<Block> programs_;  // [program]; empty when not asked for
  std::vector<std::vector<std::string>> lanes_;
  std::unordered_map<std::int64_t, std::string> texts_;
  std::vector<CommInstances> instances_;  // [comm]
};

// The programs of the ranks in the JSON list `ranks`. An unfinished run has none.
StoredSchedule load_schedule(const Store& store, const std::string& run, const std::string& ranks);

}  // namespace steptwin
