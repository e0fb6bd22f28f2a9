// The run-ahead limit of the issuing thread (Host::run_ahead_micro_batches = k): before the host issues the first op of an action it
// waits for the last op of the same stage's action of the same direction k actions earlier. So it is at most k forwards and
// k backwards ahead of the device. R counts to its backward; I and B are one direction, W is another.
#include <array>

#include "schedule/mechanisms/all.h"

namespace steptwin {
namespace {

class RunAhead : public Mechanism {
 public:
  explicit RunAhead(std::size_t limit) : limit_(limit) {}

  void begin(const Visits&, ProgramContext& program) override { ends_.assign(program.tensors.chunks.size(), {}); }

  void before(const Visits& visits, std::size_t i, ProgramContext& program) override {
    if (!visits[i].opens) return;
    const std::vector<OpId>& ends = series(visits[i]);
    if (ends.size() >= limit_) program.emit.host_wait(ends[ends.size() - limit_]);
  }

  void after(const Visits& visits, std::size_t i, ProgramContext& program) override {
    if (visits[i].closes) series(visits[i]).push_back(program.last_compute);
  }

 private:
  std::vector<OpId>& series(const Visit& visit) {
    const std::size_t direction = visit.phase == Phase::Forward ? 0 : visit.phase == Phase::WeightGrad ? 2 : 1;
    return ends_[static_cast<std::size_t>(visit.chunk)][direction];
  }

  std::size_t limit_;
  std::vector<std::array<std::vector<OpId>, 3>> ends_;  // [chunk][direction]: last op of every action so far
};

}  // namespace

bool run_ahead_active(const Plan& plan) { return plan.scenario->machine && plan.scenario->machine->host.run_ahead_micro_batches > 0; }

std::unique_ptr<Mechanism> make_run_ahead(const Plan& plan, ScheduleBuilder&) {
  return std::make_unique<RunAhead>(static_cast<std::size_t>(plan.scenario->machine->host.run_ahead_micro_batches));
}

}  // namespace steptwin
