// The mesh of ranks and the communicators laid over it.
// A rank is a coordinate over named axes; its number is row-major in axis order, slowest axis first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/base/ids.h"

namespace steptwin {

struct Axis {
  std::string name;
  std::uint32_t size = 1;
  bool operator==(const Axis&) const = default;
};

struct Mesh {
  std::vector<Axis> axes;  // slowest first; default order pp, dp, cp, ep, tp

  std::uint32_t size() const;
  std::vector<std::uint32_t> coordinates(RankId rank) const;
  RankId rank(const std::vector<std::uint32_t>& coordinates) const;
  std::optional<std::size_t> axis(std::string_view name) const;
  // Coordinate of `rank` along the named axis; 0 when the mesh lacks that axis.
  std::uint32_t coordinate(RankId rank, std::string_view axis_name) const;
  bool operator==(const Mesh&) const = default;
};

// A communicator spans some axes. One instance exists per value of the other coordinates. Without `groups` an
// instance has every coordinate along the axes as a member. `groups` lists disjoint sets of row-major positions along
// the axes: each is an instance of its own; positions in no group are not members.
struct Communicator {
  std::string name;
  std::vector<std::size_t> axes;                   // indices into Mesh::axes, ascending
  std::vector<std::vector<std::uint32_t>> groups;  // empty = one group with every position
  bool operator==(const Communicator&) const = default;
};

// The instances of one communicator, expanded over the mesh.
struct CommInstances {
  static constexpr std::uint32_t kNotMember = 0xffffffffu;
  std::vector<std::vector<RankId>> members;  // [instance] -> ranks in ascending order
  std::vector<std::uint32_t> instance_of;    // [rank] -> instance or kNotMember
  std::vector<std::uint32_t> member_of;      // [rank] -> position in its instance
};

CommInstances expand(const Mesh& mesh, const Communicator& comm);

}  // namespace steptwin
