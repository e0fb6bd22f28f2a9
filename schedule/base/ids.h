// Typed indices. An Id<Tag> is a 32-bit index into one vector; ids of different tags do not mix.
// A default-constructed id is "none" and compares equal to no valid index.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace steptwin {

template <class Tag>
struct Id {
  static constexpr std::uint32_t kNone = 0xffffffffu;
  std::uint32_t value = kNone;

  constexpr Id() = default;
  constexpr explicit Id(std::uint32_t v) : value(v) {}
  constexpr bool valid() const { return value != kNone; }
  constexpr auto operator<=>(const Id&) const = default;
};

using OpId = Id<struct OpTag>;            // dense over a schedule, program after program, in issue order
using BufferId = Id<struct BufferTag>;    // index into Program::buffers
using LaneId = Id<struct LaneTag>;        // index into Program::lanes
using GroupId = Id<struct GroupTag>;      // number of a communication group, local to its program
using ProgramId = Id<struct ProgramTag>;  // index into Schedule::programs
using CommId = Id<struct CommTag>;        // index into Schedule::communicators
using LayoutId = Id<struct LayoutTag>;    // index into Schedule::layouts
using WorkId = Id<struct WorkTag>;        // index into Schedule::works
using NameId = Id<struct NameTag>;        // index into Schedule::names (interned strings)
using RankId = Id<struct RankTag>;        // row-major number of a mesh coordinate

}  // namespace steptwin

template <class Tag>
struct std::hash<steptwin::Id<Tag>> {
  std::size_t operator()(steptwin::Id<Tag> id) const noexcept { return std::hash<std::uint32_t>{}(id.value); }
};
