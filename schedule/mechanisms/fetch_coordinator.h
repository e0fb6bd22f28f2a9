// Which parameters are gathered and freed around every use of a segment: the rules of DeepSpeed's ZeRO-3 coordinator (specs/schedules.md
// 5.4), with the trace complete from the start. Decisions alone: no buffers, no ops, no clock. Sizes are elements.
//
// A trace is the uses of segments in order; a use names the parameters that its segment needs. The future queue is the trace flattened to
// parameters.
//   enter   gathers what the use misses. Drops its parameters from the queue, then takes from the queue while what is taken is less than
//           min(live limit - live, prefetch limit), tested before each parameter, so the last one may exceed it: a parameter that is there
//           is passed over, one that is missing is gathered ahead.
//   leave   frees each parameter of the use unless it is persistent; or a later use of it has been dropped from the queue (prefetch has
//           passed over it, so nothing would gather it in time); or it occurs again in a use that begins less than `reuse` elements behind
//           this one, counting all parameters of the uses between, persistent ones too.
// Persistent parameters are always there and never counted as live. Behind its last use in the trace every other parameter is freed.
// The live limit holds back prefetch alone: what a use needs is gathered, and what is reused soon is kept, whatever is live.
// DeepSpeed's test for a passed-over use leaves out the very next use (it compares with that use's number), which shows with reuse 0
// alone; here the next use counts too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace steptwin {

struct FetchLimits {
  std::int64_t prefetch = 0, live = 0, reuse = 0;
};

struct FetchedParameter {
  std::int64_t elements = 0;
  bool persistent = false;
};

class FetchCoordinator {
 public:
  using Uses = std::vector<std::vector<std::size_t>>;  // [use]: parameters, ascending, none twice

  // Indices of `uses` are into `parameters`.
  FetchCoordinator(std::vector<FetchedParameter> parameters, FetchLimits limits);

  // A new trace: nothing but persistent parameters may be there, which holds at the beginning and behind a trace that was walked to its
  // end.
  void begin(Uses uses);

  struct Fetch {
    std::vector<std::size_t> now, ahead;  // parameters, in the order of the trace
  };
  // Of the trace's next use. enter and leave alternate.
  Fetch enter();
  std::vector<std::size_t> leave();

  bool here(std::size_t parameter) const { return parameters_[parameter].persistent || state_[parameter].here; }
  std::int64_t live() const { return live_; }

 private:
  struct State {
    bool here = false;
    std::size_t passed = 0;  // 1 + the latest use that has been dropped from the queue
  };
  struct Queued {
    std::size_t use = 0, parameter = 0;
  };

  void drop();
  bool gather(std::size_t parameter);
  std::vector<std::size_t> prefetch();
  bool soon(std::size_t parameter) const;

  const std::vector<FetchedParameter> parameters_;
  const FetchLimits limits_;
  Uses uses_;
  std::vector<State> state_;   // [parameter]
  std::vector<Queued> queue_;  // the whole trace
  std::size_t head_ = 0;       // of the queue
  std::size_t use_ = 0;        // the next, or between enter and leave the current one
  std::int64_t live_ = 0;
};

}  // namespace steptwin
