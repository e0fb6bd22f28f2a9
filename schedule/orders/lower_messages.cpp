#include <fmt/format.h>

#include <algorithm>

#include "schedule/base/error.h"
#include "schedule/orders/actions.h"
#include "schedule/orders/findings.h"

namespace steptwin {
namespace {

// specs/schedules.md 6.3 (e): passes over the ranks in ascending order, at most one queue entry per rank and pass. A SEND goes
// directly behind its producer and the RECV to the end of the peer's list at that moment, so all lists follow one global order.
class Lowering {
 public:
  Lowering(const ActionGrid& grid, ActionGrid& out)
      : grid_(grid), out_(out), ranks_(stage_ranks(grid)), micro_batches_(micro_batch_count(grid)) {
    out_.assign(grid.size(), {});
    next_.assign(grid.size(), 0);
    const std::size_t edges = ranks_.size() * static_cast<std::size_t>(micro_batches_);
    input_known_.assign(edges, 0);
    gradient_known_.assign(edges, 0);
    for (const ActionList& list : grid) left_ += list.size();
  }

  bool run() {
    while (left_ > 0) {
      const std::size_t before = left_;
      for (std::size_t rank = 0; rank < grid_.size(); ++rank) step(rank);
      if (left_ == before) return false;
    }
    return true;
  }

 private:
  std::size_t edge(std::int32_t stage, std::int32_t micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(micro_batches_) + static_cast<std::size_t>(micro_batch);
  }

  bool ready(const Action& action) const {
    if (action.kind == ActionKind::F) return action.stage == 0 || input_known_[edge(action.stage, action.micro_batch)];
    if (!is_backward(action.kind)) return true;
    return action.stage + 1 == static_cast<std::int32_t>(ranks_.size()) || gradient_known_[edge(action.stage, action.micro_batch)];
  }

  // The consumer's rank knows the result from now on: by its own compute, or by the RECV that was just placed.
  void publish(const Action& action) {
    if (action.kind == ActionKind::F && action.stage + 1 < static_cast<std::int32_t>(ranks_.size()))
      input_known_[edge(action.stage + 1, action.micro_batch)] = 1;
    if (is_backward(action.kind) && action.stage > 0) gradient_known_[edge(action.stage - 1, action.micro_batch)] = 1;
  }

  void step(std::size_t rank) {
    if (next_[rank] == grid_[rank].size()) return;
    const Action& head = grid_[rank][next_[rank]];
    if (!ready(head)) return;
    ++next_[rank];
    --left_;
    out_[rank].push_back(head);
    publish(head);
    const Message message = message_after(head, ranks_);
    if (!message.exists()) return;
    out_[rank].push_back(message.send);
    out_[static_cast<std::size_t>(message.to)].push_back(message.recv);
  }

  const ActionGrid& grid_;
  ActionGrid& out_;
  std::vector<std::int32_t> ranks_;
  std::int32_t micro_batches_;
  std::vector<std::size_t> next_;
  std::vector<std::uint8_t> input_known_, gradient_known_;  // [stage * m + micro-batch]
  std::size_t left_ = 0;
};

[[noreturn]] void refuse_progress(const ActionGrid& grid, const ActionGrid& placed) {
  Diagnostic problem;
  problem.code = "ORDER-PROGRESS";
  problem.text = "malformed compute schedule: messages cannot be placed, every rank waits for another one";
  problem.help = "a rank must not wait for a result that is listed behind an action waiting for its own";
  for (std::size_t rank = 0; rank < grid.size() && problem.details.size() < kMaxFindings; ++rank) {
    std::size_t done = 0;
    for (const Action& action : placed[rank]) done += is_message(action.kind) ? 0 : 1;
    if (done < grid[rank].size())
      problem.details.push_back(fmt::format("rank {} stands at #{} {}", rank, done, to_string(grid[rank][done])));
  }
  throw InputError(problem);
}

}  // namespace

bool place_messages_globally(const ActionGrid& grid, ActionGrid& out) { return Lowering(grid, out).run(); }

ActionGrid lower_messages(const ActionGrid& grid) {
  std::vector<Diagnostic> problems = check_actions(grid);
  if (!problems.empty()) throw InputError(std::move(problems));
  for (std::size_t rank = 0; rank < grid.size(); ++rank) {
    for (std::size_t k = 0; k < grid[rank].size(); ++k) {
      if (!is_message(grid[rank][k].kind)) continue;
      Diagnostic problem;
      problem.code = "ORDER-LOWERED";
      problem.text = fmt::format("rank {} position {}: {} in a list that is to be given its messages", rank, k, to_string(grid[rank][k]));
      problem.help = "lower a compute-only list, or use this one as it is";
      throw InputError(problem);
    }
  }
  ActionGrid out;
  if (!place_messages_globally(grid, out)) refuse_progress(grid, out);
  return out;
}

}  // namespace steptwin
