#include "schedule/ir/matching.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

std::optional<Peer> peer_of(const OpBody& body) {
  if (const auto* send = std::get_if<Send>(&body)) return send->to;
  if (const auto* recv = std::get_if<Recv>(&body)) return recv->from;
  return std::nullopt;
}

using PeerKey = std::pair<CommId, Peer>;
using SlotPattern = std::vector<std::uint32_t>;  // [peer] -> first peer that resolves to the same member

struct Context {
  const Schedule& schedule;
  std::vector<CommInstances> comms;
  std::vector<std::uint32_t> node_of;

  std::uint32_t member(CommId comm, RankId rank) const { return comms[comm.value].member_of[rank.value]; }
  const std::vector<RankId>& members(CommId comm, RankId rank) const {
    return comms[comm.value].members[comms[comm.value].instance_of[rank.value]];
  }
  RankId peer_rank(CommId comm, Peer peer, RankId rank) const {
    const auto& all = members(comm, rank);
    return all[peer.resolve(member(comm, rank), static_cast<std::uint32_t>(all.size()))];
  }
};

std::vector<PeerKey> distinct_peers(const Schedule& schedule, const Program& program) {
  std::vector<PeerKey> peers;
  for (const Op& op : schedule.ops_of(program)) {
    const auto peer = peer_of(op.body);
    if (!peer) continue;
    const PeerKey key{comm_of(op.body), *peer};
    if (std::find(peers.begin(), peers.end(), key) == peers.end()) peers.push_back(key);
  }
  return peers;
}

SlotPattern pattern_of(const Context& context, const std::vector<PeerKey>& peers, RankId rank) {
  SlotPattern pattern(peers.size());
  for (std::uint32_t i = 0; i < peers.size(); ++i) {
    pattern[i] = i;
    const RankId target = context.peer_rank(peers[i].first, peers[i].second, rank);
    for (std::uint32_t j = 0; j < i; ++j)
      if (peers[j].first == peers[i].first && context.peer_rank(peers[j].first, peers[j].second, rank) == target) {
        pattern[i] = j;
        break;
      }
  }
  return pattern;
}

// Builds the tables of one program; a class because the passes share them.
class TableBuilder {
 public:
  TableBuilder(const Schedule& schedule, ProgramId program, const std::vector<PeerKey>& peers, const SlotPattern& pattern)
      : schedule_(schedule), program_(schedule.programs[program.value]), pattern_(pattern) {
    out_.program = program;
    out_.lanes = static_cast<std::uint32_t>(program_.lanes.size());
    out_.peers = peers;
    out_.nodes.resize(program_.op_count + 1);
  }

  ProgramTables build() {
    fill_lanes();
    fill_nodes();
    fill_dependencies();
    return std::move(out_);
  }

 private:
  std::uint32_t lane_of(std::uint32_t op) const {
    const LaneId lane = ops()[op].lane;
    return lane.valid() ? lane.value : out_.lanes;
  }
  std::span<const Op> ops() const { return schedule_.ops_of(program_); }

  void fill_lanes() {
    out_.lane_begin.assign(out_.lanes + 1, 0);
    for (const Op& op : ops())
      if (op.lane.valid()) ++out_.lane_begin[op.lane.value + 1];
    for (std::uint32_t l = 0; l < out_.lanes; ++l) out_.lane_begin[l + 1] += out_.lane_begin[l];
    out_.lane_ops.resize(out_.lane_begin[out_.lanes]);
    auto next = out_.lane_begin;
    for (std::uint32_t i = 0; i < program_.op_count; ++i)
      if (ops()[i].lane.valid()) out_.lane_ops[next[ops()[i].lane.value]++] = i;
  }

  std::uint32_t peer_slot(CommId comm, Peer peer) const {
    const auto it = std::find(out_.peers.begin(), out_.peers.end(), PeerKey{comm, peer});
    return pattern_[static_cast<std::size_t>(it - out_.peers.begin())];
  }

  std::uint32_t channel_of(const Op& op) {
    const CommId comm = comm_of(op.body);
    const auto peer = peer_of(op.body);
    const bool send = std::holds_alternative<Send>(op.body);
    const std::uint32_t slot = peer ? peer_slot(comm, *peer) : 0;
    for (std::uint32_t c = 0; c < out_.channels.size(); ++c) {
      const Channel& channel = out_.channels[c];
      if (channel.comm != comm || channel.collective == peer.has_value()) continue;
      if (channel.collective || (channel.send == send && channel.peer_slot == slot)) return c;
    }
    out_.channels.push_back({comm, !peer.has_value(), send, slot, {}});
    return static_cast<std::uint32_t>(out_.channels.size() - 1);
  }

  void fill_communication(OpNode& node, std::uint32_t i, GroupId group) {
    const Op& op = ops()[i];
    node.kind = is_point_to_point(op.body) ? OpNode::Kind::Message : OpNode::Kind::Collective;
    const std::uint32_t index = channel_of(op);
    invariant(index < 0xffff, "fewer than 65535 channels a program");
    node.channel = static_cast<std::uint16_t>(index);
    auto& fifo = out_.channels[node.channel].ops;
    node.sequence = static_cast<std::uint32_t>(fifo.size());
    if (!fifo.empty() && group.valid() && ops()[fifo.back()].group == group) set(node, OpNode::kFollows);
    else if (!fifo.empty() && lane_of(fifo.back()) != node.lane) watch(fifo.back());
    fifo.push_back(i);
  }

  void fill_nodes() {
    GroupId previous_group;
    for (std::uint32_t i = 0; i < program_.op_count; ++i) {
      const Op& op = ops()[i];
      OpNode& node = out_.nodes[i];
      node.lane = static_cast<std::uint8_t>(lane_of(i));
      if (std::holds_alternative<Compute>(op.body)) set(node, OpNode::kCompute);
      if (op.group.valid()) set(node, OpNode::kGrouped);
      if (op.group.valid() && op.group != previous_group) set(node, OpNode::kGroupFirst);
      previous_group = op.group;
      if (comm_of(op.body).valid()) fill_communication(node, i, op.group);
      if (const auto* wait = std::get_if<HostWait>(&op.body)) {
        node.kind = OpNode::Kind::HostWait;
        node.sequence = wait->target.value - program_.first_op.value;
        watch(node.sequence);
      }
    }
  }

  void fill_dependencies() {
    for (std::uint32_t i = 0; i < program_.op_count; ++i) {
      OpNode& node = out_.nodes[i];
      node.dep_begin = static_cast<std::uint32_t>(out_.deps.size());
      for (OpId dep : schedule_.deps_of(OpId(program_.first_op.value + i))) {
        const std::uint32_t local = dep.value - program_.first_op.value;
        if (lane_of(local) == node.lane) continue;  // the lane's FIFO says it already
        out_.deps.push_back(local);
        watch(local);
      }
    }
    out_.nodes[program_.op_count].dep_begin = static_cast<std::uint32_t>(out_.deps.size());
  }

  static void set(OpNode& node, std::uint8_t flag) { node.flags = static_cast<std::uint8_t>((node.flags | flag) & 63); }
  void watch(std::uint32_t op) { set(out_.nodes[op], OpNode::kWatched); }

  const Schedule& schedule_;
  const Program& program_;
  const SlotPattern& pattern_;
  ProgramTables out_;
};

CommShape shape_of(const Context& context, const std::vector<RankId>& members) {
  CommShape shape{static_cast<std::uint32_t>(members.size()), 1, static_cast<std::uint32_t>(members.size())};
  if (context.node_of.empty()) return shape;
  std::vector<std::uint32_t> nodes;
  for (RankId rank : members) nodes.push_back(context.node_of[rank.value]);
  std::sort(nodes.begin(), nodes.end());
  shape.nodes = 0, shape.members_per_node = 0;
  for (std::size_t i = 0; i < nodes.size();) {
    std::size_t j = i;
    while (j < nodes.size() && nodes[j] == nodes[i]) ++j;
    ++shape.nodes;
    shape.members_per_node = std::max(shape.members_per_node, static_cast<std::uint32_t>(j - i));
    i = j;
  }
  return shape;
}

std::uint32_t find_channel(const Context& context, const ProgramTables& tables, RankId of, CommId comm, bool send, RankId peer) {
  for (std::uint32_t c = 0; c < tables.channels.size(); ++c) {
    const Channel& channel = tables.channels[c];
    if (channel.collective || channel.comm != comm || channel.send != send) continue;
    if (context.peer_rank(comm, tables.peers[channel.peer_slot].second, of) == peer) return c;
  }
  return Counterpart::kNobody;
}

// Assigns tables to ranks and refines classes until stable.
class Classifier {
 public:
  Classifier(const Context& context, Folding folding, Matching& out) : context_(context), folding_(folding), out_(out) {}

  void run() {
    assign_tables();
    shape_instances();
    if (folding_ == Folding::None) {
      for (std::uint32_t r = 0; r < tables_of_.size(); ++r) class_of_[r] = tables_of_[r] == kNone ? kNone : r;
    } else {
      while (refine()) {
      }
    }
    number_ranks();
  }

  const std::vector<std::uint32_t>& tables_of() const { return tables_of_; }
  const CommShape& shape(CommId comm, std::uint32_t instance) const { return shapes_[comm.value][instance]; }

 private:
  static constexpr std::uint32_t kNone = Counterpart::kNobody;

  void assign_tables() {
    const Schedule& schedule = context_.schedule;
    tables_of_.assign(schedule.mesh.size(), kNone);
    for (std::uint32_t p = 0; p < schedule.programs.size(); ++p) {
      const auto peers = distinct_peers(schedule, schedule.programs[p]);
      std::map<SlotPattern, std::uint32_t> known;
      for (RankId rank : schedule.programs[p].ranks) {
        const SlotPattern pattern = pattern_of(context_, peers, rank);
        const auto [it, fresh] = known.try_emplace(pattern, static_cast<std::uint32_t>(out_.tables.size()));
        if (fresh) out_.tables.push_back(TableBuilder(schedule, ProgramId(p), peers, it->first).build());
        tables_of_[rank.value] = it->second;
      }
    }
    class_of_ = tables_of_;
  }

  void shape_instances() {
    shapes_.resize(context_.comms.size());
    for (std::size_t c = 0; c < context_.comms.size(); ++c)
      for (const auto& members : context_.comms[c].members) shapes_[c].push_back(shape_of(context_, members));
  }

  bool same_node(RankId a, RankId b) const { return context_.node_of.empty() || context_.node_of[a.value] == context_.node_of[b.value]; }

  // Message channel: the channel of the other rank that it meets. Two ranks may send to one class and yet meet different FIFOs there.
  std::uint32_t channel_met(RankId rank, RankId other, const Channel& channel) const {
    const std::uint32_t tables = tables_of_[other.value];
    return tables == kNone ? kNone : find_channel(context_, out_.tables[tables], other, channel.comm, !channel.send, rank);
  }

  // What a rank's channels look like from its class: what they meet, in which classes, over which network levels.
  std::vector<std::uint32_t> signature(RankId rank, std::map<std::vector<std::uint32_t>, std::uint32_t>& instance_ids,
                                       std::vector<std::vector<std::uint32_t>>& instance_signature) const {
    std::vector<std::uint32_t> out{class_of_[rank.value]};
    for (const Channel& channel : out_.tables[tables_of_[rank.value]].channels) {
      if (!channel.collective) {
        const auto& [comm, peer] = out_.tables[tables_of_[rank.value]].peers[channel.peer_slot];
        const RankId other = context_.peer_rank(comm, peer, rank);
        out.push_back(class_of_[other.value]);
        out.push_back(channel_met(rank, other, channel));
        out.push_back(same_node(rank, other) ? 1 : 0);
        continue;
      }
      const std::uint32_t instance = context_.comms[channel.comm.value].instance_of[rank.value];
      std::uint32_t& id = instance_signature[channel.comm.value][instance];
      if (id == kNone) {
        const CommShape& s = shapes_[channel.comm.value][instance];
        std::vector<std::uint32_t> key{channel.comm.value, s.members, s.nodes, s.members_per_node};
        for (RankId member : context_.comms[channel.comm.value].members[instance]) key.push_back(class_of_[member.value]);
        id = instance_ids.try_emplace(std::move(key), static_cast<std::uint32_t>(instance_ids.size())).first->second;
      }
      out.push_back(id);
    }
    return out;
  }

  bool refine() {
    std::map<std::vector<std::uint32_t>, std::uint32_t> ids, instance_ids;
    std::vector<std::vector<std::uint32_t>> instance_signature;
    for (const auto& comm : context_.comms) instance_signature.emplace_back(comm.members.size(), kNone);
    std::vector<std::uint32_t> next(class_of_.size(), kNone);
    for (std::uint32_t r = 0; r < class_of_.size(); ++r) {
      if (class_of_[r] == kNone) continue;
      next[r] = ids.try_emplace(signature(RankId(r), instance_ids, instance_signature), static_cast<std::uint32_t>(ids.size())).first->second;
    }
    const bool changed = ids.size() != classes_;
    classes_ = ids.size();
    class_of_ = std::move(next);
    return changed;
  }

  void number_ranks() {
    std::unordered_map<std::uint32_t, std::uint32_t> index;
    out_.stand_in.assign(class_of_.size(), kNone);
    for (std::uint32_t r = 0; r < class_of_.size(); ++r) {
      if (class_of_[r] == kNone) continue;
      const auto [it, fresh] = index.try_emplace(class_of_[r], static_cast<std::uint32_t>(out_.ranks.size()));
      if (fresh) out_.ranks.push_back({RankId(r), tables_of_[r], {}});
      out_.stand_in[r] = it->second;
    }
  }

  const Context& context_;
  const Folding folding_;
  Matching& out_;
  std::vector<std::uint32_t> tables_of_, class_of_;
  std::vector<std::vector<CommShape>> shapes_;
  std::size_t classes_ = 0;
};

std::uint32_t collective_channel(const ProgramTables& tables, CommId comm) {
  for (std::uint32_t c = 0; c < tables.channels.size(); ++c)
    if (tables.channels[c].collective && tables.channels[c].comm == comm) return c;
  return Counterpart::kNobody;
}

Counterpart message_counterpart(const Context& context, const Matching& matching, const SimRank& rank, const Channel& channel) {
  const auto& [comm, peer] = matching.tables[rank.tables].peers[channel.peer_slot];
  const RankId other = context.peer_rank(comm, peer, rank.rank);
  Counterpart out;
  const bool same_node = context.node_of.empty() || context.node_of[rank.rank.value] == context.node_of[other.value];
  out.shape = {2, same_node ? 1u : 2u, same_node ? 2u : 1u};
  const std::uint32_t stand_in = matching.stand_in[other.value];
  if (stand_in == Counterpart::kNobody) return out;
  const SimRank& simulated = matching.ranks[stand_in];
  // The stand-in's channel is found by the peer that the real counterpart sees: tables are shared inside a class.
  const std::uint32_t found = find_channel(context, matching.tables[simulated.tables], other, comm, !channel.send, rank.rank);
  if (found == Counterpart::kNobody) return out;
  out.rank = stand_in, out.channel = found;
  return out;
}

// Instances are numbered by (communicator, stand-ins of the members by position).
class InstanceTable {
 public:
  InstanceTable(const Context& context, Matching& matching) : context_(context), matching_(matching) {
    for (const auto& comm : context.comms) cached_.emplace_back(comm.members.size(), Counterpart::kNobody);
  }

  std::uint32_t of(const SimRank& rank, CommId comm) {
    std::uint32_t& cached = cached_[comm.value][context_.comms[comm.value].instance_of[rank.rank.value]];
    if (cached == Counterpart::kNobody) cached = number(rank, comm);
    return cached;
  }

 private:
  std::uint32_t number(const SimRank& rank, CommId comm) {
    std::vector<std::uint32_t> key{comm.value};
    for (RankId member : context_.members(comm, rank.rank)) key.push_back(matching_.stand_in[member.value]);
    const auto [it, fresh] = known_.try_emplace(key, static_cast<std::uint32_t>(matching_.instances.size()));
    if (fresh) matching_.instances.push_back({comm, members_of(key, comm)});
    return it->second;
  }

  std::vector<InstanceMember> members_of(const std::vector<std::uint32_t>& key, CommId comm) const {
    std::vector<std::uint32_t> distinct(key.begin() + 1, key.end());
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::vector<InstanceMember> out;
    for (std::uint32_t r : distinct) {
      const std::uint32_t channel = r == Counterpart::kNobody ? r : collective_channel(matching_.tables[matching_.ranks[r].tables], comm);
      out.push_back({r, channel});  // kNobody: a member that never issues on the communicator; the collective can never start
    }
    return out;
  }

  const Context& context_;
  Matching& matching_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> known_;
  std::vector<std::vector<std::uint32_t>> cached_;  // [communicator][real instance]
};

}  // namespace

Matching match(const Schedule& schedule, Folding folding, const std::vector<std::uint32_t>& node_of) {
  Context context{schedule, {}, node_of};
  for (const Communicator& comm : schedule.communicators) context.comms.push_back(expand(schedule.mesh, comm));
  for (const Program& program : schedule.programs) invariant(program.lanes.size() < 255, "fewer than 255 lanes a program");
  Matching out;
  Classifier classifier(context, folding, out);
  classifier.run();
  InstanceTable instances(context, out);
  for (SimRank& rank : out.ranks) {
    for (const Channel& channel : out.tables[rank.tables].channels) {
      if (channel.collective) {
        const std::uint32_t instance = context.comms[channel.comm.value].instance_of[rank.rank.value];
        rank.counterparts.push_back({instances.of(rank, channel.comm), Counterpart::kNobody, classifier.shape(channel.comm, instance)});
      } else {
        rank.counterparts.push_back(message_counterpart(context, out, rank, channel));
      }
    }
  }
  return out;
}

}  // namespace steptwin
