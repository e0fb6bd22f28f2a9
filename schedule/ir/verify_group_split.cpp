// GROUP-SPLIT: rank x holds two messages with rank y in one group A; y holds them in group B1 and, behind it on the same lane,
// in B2; and B1 also waits for a message that x issues behind A on A's lane. Then A waits for B2, B2 for B1 and B1 for A.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "schedule/ir/verify_checks.h"

namespace steptwin {
namespace {

// A message seen from x.
struct Entry {
  RankId x, y;
  OpId op_x, op_y;
};

class SplitChecker {
 public:
  SplitChecker(const Schedule& schedule, const std::vector<GroupedMessage>& messages, Findings& findings)
      : s_(schedule), findings_(findings) {
    for (const GroupedMessage& m : messages) {
      entries_.push_back({m.ranks[0], m.ranks[1], m.ops[0], m.ops[1]});
      entries_.push_back({m.ranks[1], m.ranks[0], m.ops[1], m.ops[0]});
    }
    for (const Entry& e : entries_) {
      if (!group(e.op_y).valid()) continue;
      OpId& last = last_partner_.try_emplace({e.y, group(e.op_y), e.x, s_.ops[e.op_x.value].lane}, e.op_x).first->second;
      last = std::max(last, e.op_x);
    }
  }

  void check() {
    const auto key = [this](const Entry& e) { return std::tuple(e.x, group(e.op_x), e.y, e.op_y); };
    std::sort(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) { return key(a) < key(b); });
    for (std::size_t i = 0; i < entries_.size() && !findings_.full();) {
      std::size_t j = i + 1;
      const auto same = [&](const Entry& e) {
        return e.x == entries_[i].x && group(e.op_x) == group(entries_[i].op_x) && e.y == entries_[i].y;
      };
      while (j < entries_.size() && same(entries_[j])) ++j;
      if (group(entries_[i].op_x).valid()) check_group({entries_.data() + i, j - i});
      i = j;
    }
  }

 private:
  GroupId group(OpId op) const { return s_.ops[op.value].group; }
  LaneId lane(OpId op) const { return s_.ops[op.value].lane; }

  void check_group(std::span<const Entry> whole) {
    const Entry& late = whole.back();  // in the last group on y
    OpId end_of_a;
    for (const Entry& e : whole) end_of_a = end_of_a.valid() ? std::max(end_of_a, e.op_x) : e.op_x;
    for (const Entry& e : whole) {
      if (!group(e.op_y).valid() || group(e.op_y) == group(late.op_y) || lane(e.op_y) != lane(late.op_y)) continue;
      const auto last = last_partner_.find({e.y, group(e.op_y), e.x, lane(e.op_x)});
      if (last == last_partner_.end() || last->second <= end_of_a || group(last->second) == group(e.op_x)) continue;
      if (!reported_.insert(std::minmax(e.x, e.y)).second) return;  // seen from both sides: say it once
      const OpId related[] = {e.op_x, late.op_x, e.op_y, late.op_y};
      return findings_.at_op(
          last->second, "GROUP-SPLIT",
          fmt::format(
              "rank {} has two messages with rank {} in group {}, but there they are split over group {} and {} behind it, and group {} "
              "waits for this op behind group {}",
              e.x.value, e.y.value, group(e.op_x).value, group(e.op_y).value, findings_.op_name(late.op_y), group(e.op_y).value,
              group(e.op_x).value),
          "group the same messages on both sides", related);
    }
  }

  const Schedule& s_;
  Findings& findings_;
  std::vector<Entry> entries_;
  std::map<std::tuple<RankId, GroupId, RankId, LaneId>, OpId> last_partner_;  // (y, group on y, x, lane on x) -> last op of x in it
  std::set<std::pair<RankId, RankId>> reported_;
};

}  // namespace

void check_group_split(const Schedule& s, const std::vector<GroupedMessage>& messages, Findings& findings) {
  SplitChecker(s, messages, findings).check();
}

}  // namespace steptwin
