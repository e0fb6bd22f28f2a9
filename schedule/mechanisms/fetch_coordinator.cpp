#include "schedule/mechanisms/fetch_coordinator.h"

#include <algorithm>
#include <utility>

#include "schedule/base/error.h"

namespace steptwin {

FetchCoordinator::FetchCoordinator(std::vector<FetchedParameter> parameters, FetchLimits limits)
    : parameters_(std::move(parameters)), limits_(limits) {}

void FetchCoordinator::begin(Uses uses) {
  invariant(live_ == 0, "a trace begins with nothing gathered");
  uses_ = std::move(uses);
  state_.assign(parameters_.size(), {});
  queue_.clear();
  for (std::size_t use = 0; use < uses_.size(); ++use)
    for (const std::size_t parameter : uses_[use]) queue_.push_back({use, parameter});
  head_ = use_ = 0;
}

FetchCoordinator::Fetch FetchCoordinator::enter() {
  Fetch fetch;
  for (const std::size_t parameter : uses_[use_])
    if (gather(parameter)) fetch.now.push_back(parameter);
  while (head_ < queue_.size() && queue_[head_].use <= use_) drop();
  fetch.ahead = prefetch();
  return fetch;
}

std::vector<std::size_t> FetchCoordinator::leave() {
  std::vector<std::size_t> freed;
  const std::size_t use = use_++;
  for (const std::size_t parameter : uses_[use]) {
    if (parameters_[parameter].persistent || state_[parameter].passed > use + 1 || soon(parameter)) continue;
    state_[parameter].here = false;
    live_ -= parameters_[parameter].elements;
    freed.push_back(parameter);
  }
  return freed;
}

void FetchCoordinator::drop() {
  const Queued& first = queue_[head_++];
  state_[first.parameter].passed = first.use + 1;
}

bool FetchCoordinator::gather(std::size_t parameter) {
  if (here(parameter)) return false;
  state_[parameter].here = true;
  live_ += parameters_[parameter].elements;
  return true;
}

std::vector<std::size_t> FetchCoordinator::prefetch() {
  std::vector<std::size_t> taken;
  const std::int64_t most = std::min(limits_.live - live_, limits_.prefetch);
  std::int64_t elements = 0;
  while (head_ < queue_.size() && elements < most) {
    const std::size_t parameter = queue_[head_].parameter;
    drop();
    if (!gather(parameter)) continue;
    elements += parameters_[parameter].elements;
    taken.push_back(parameter);
  }
  return taken;
}

// Whether one of the uses from use_ on that begin within the reuse distance has the parameter.
bool FetchCoordinator::soon(std::size_t parameter) const {
  std::int64_t distance = 0;
  for (std::size_t use = use_; use < uses_.size() && distance < limits_.reuse; ++use) {
    for (const std::size_t other : uses_[use]) {
      if (other == parameter) return true;
      distance += parameters_[other].elements;
    }
  }
  return false;
}

}  // namespace steptwin
