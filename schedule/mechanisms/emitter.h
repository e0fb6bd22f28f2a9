// Appends ops to the current program and derives their dependencies from what they access: an op that reads a buffer waits for
// its last writer, one that writes also for the readers since, when these ran on another lane (a lane is a FIFO by itself). One
// dependency per lane is enough, and none where the lane has waited for that op before. So no program built through it has a race.
// Parts are ignored: two ops on different lanes that touch different parts of one buffer are ordered too.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schedule/ir/builder.h"

namespace steptwin {

class Emitter {
 public:
  explicit Emitter(ScheduleBuilder& builder) : builder_(&builder) {}

  void begin_program(std::string name, std::vector<RankId> ranks, std::vector<std::int32_t> stages);
  LaneId lane(std::string name, Engine engine, Priority priority = Priority::Normal);
  // A device buffer; only resident ones have names.
  BufferId buffer(Category category, Bytes bytes, LayoutId layout = {});
  BufferId resident(std::string_view name, Category category, Bytes bytes, LayoutId layout = {}, Space space = Space::Device);
  BufferId on_host(Category category, Bytes bytes, LayoutId layout);  // pageable
  GroupId new_group() { return builder_->new_group(); }

  OpId compute(LaneId lane, const Label& label, WorkId work, const std::vector<Access>& accesses);
  OpId op(Op op, const std::vector<Access>& accesses);
  OpId host_wait(OpId target);
  // The lane's last op of this program; none = it has none.
  OpId last_on(LaneId lane) const { return last_[lane.value]; }
  // The next op also waits for the last writer of the buffer, without touching it.
  void next_waits_for(BufferId buffer) { extra_ = buffer; }
  // The next op also waits for an earlier op, which stands on `lane`. Several calls add up.
  void next_follows(OpId op, LaneId lane) { follows_.emplace_back(op, lane); }

  ScheduleBuilder& builder() { return *builder_; }

 private:
  static constexpr std::size_t kMaxLanes = 12;
  using Ends = std::array<std::uint32_t, kMaxLanes>;  // per lane: op id + 1; 0 = none
  struct Use {
    std::uint32_t writer = 0;  // op id + 1
    std::uint8_t writer_lane = 0;
    Ends readers{};  // since the last write
  };

  std::vector<OpId> dependencies(LaneId lane, const std::vector<Access>& accesses);
  void note(OpId op, LaneId lane, const std::vector<Access>& accesses);

  ScheduleBuilder* builder_;
  std::vector<Use> uses_;                // [buffer of the current program]
  std::array<Ends, kMaxLanes> known_{};  // [lane]: ops of other lanes it has waited for
  std::array<OpId, kMaxLanes> last_;           // [lane]
  std::size_t lanes_ = 0;
  BufferId extra_;
  std::vector<std::pair<OpId, LaneId>> follows_;
};

}  // namespace steptwin
