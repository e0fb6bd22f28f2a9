#include "schedule/ir/mesh.h"

#include <algorithm>

namespace steptwin {

std::uint32_t Mesh::size() const {
  std::uint32_t n = 1;
  for (const Axis& axis : axes) n *= axis.size;
  return n;
}

std::vector<std::uint32_t> Mesh::coordinates(RankId rank) const {
  std::vector<std::uint32_t> out(axes.size());
  std::uint32_t rest = rank.value;
  for (std::size_t i = axes.size(); i-- > 0;) {
    out[i] = rest % axes[i].size;
    rest /= axes[i].size;
  }
  return out;
}

RankId Mesh::rank(const std::vector<std::uint32_t>& coordinates) const {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < axes.size(); ++i) number = number * axes[i].size + coordinates[i];
  return RankId(number);
}

std::optional<std::size_t> Mesh::axis(std::string_view name) const {
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (axes[i].name == name) return i;
  return std::nullopt;
}

std::uint32_t Mesh::coordinate(RankId rank, std::string_view axis_name) const {
  const auto index = axis(axis_name);
  return index ? coordinates(rank)[*index] : 0;
}

CommInstances expand(const Mesh& mesh, const Communicator& comm) {
  const std::uint32_t ranks = mesh.size();
  CommInstances out;
  out.instance_of.assign(ranks, CommInstances::kNotMember);
  out.member_of.assign(ranks, CommInstances::kNotMember);
  std::uint32_t positions = 1;
  for (std::size_t a : comm.axes) positions *= mesh.axes[a].size;
  // group of a position along the axes; without groups everything is group 0
  std::vector<std::uint32_t> group_of(positions, comm.groups.empty() ? 0 : CommInstances::kNotMember);
  for (std::size_t g = 0; g < comm.groups.size(); ++g)
    for (std::uint32_t position : comm.groups[g])
      if (position < positions) group_of[position] = static_cast<std::uint32_t>(g);
  const std::uint32_t groups = comm.groups.empty() ? 1 : static_cast<std::uint32_t>(comm.groups.size());
  std::vector<std::uint32_t> instance_index((ranks / positions) * groups, CommInstances::kNotMember);
  std::vector<bool> along(mesh.axes.size(), false);
  for (std::size_t a : comm.axes) along[a] = true;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const auto c = mesh.coordinates(RankId(r));
    std::uint32_t position = 0, other = 0;
    for (std::size_t a = 0; a < mesh.axes.size(); ++a) {
      std::uint32_t& number = along[a] ? position : other;
      number = number * mesh.axes[a].size + c[a];
    }
    if (group_of[position] == CommInstances::kNotMember) continue;
    std::uint32_t& instance = instance_index[other * groups + group_of[position]];
    if (instance == CommInstances::kNotMember) {
      instance = static_cast<std::uint32_t>(out.members.size());
      out.members.emplace_back();
    }
    out.instance_of[r] = instance;
    out.member_of[r] = static_cast<std::uint32_t>(out.members[instance].size());
    out.members[instance].push_back(RankId(r));
  }
  return out;
}

}  // namespace steptwin
