#include "schedule/orders/grid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "schedule/base/error.h"
#include "schedule/orders/actions.h"

namespace steptwin {
namespace {

std::int64_t length_of(ActionKind kind) { return kind == ActionKind::B ? 2 : 1; }

ActionGrid compute_only(const ActionGrid& grid) {
  ActionGrid out(grid.size());
  for (std::size_t rank = 0; rank < grid.size(); ++rank)
    std::copy_if(grid[rank].begin(), grid[rank].end(), std::back_inserter(out[rank]), [](const Action& a) { return is_compute(a.kind); });
  return out;
}

// Places actions as soon as their inputs and their rank allow; a rank that waits is visited again when its input arrives.
class Replay {
 public:
  Replay(const ActionGrid& grid, UnitReplay& out)
      : grid_(grid), out_(out), ranks_(stage_ranks(grid)), micro_batches_(micro_batch_count(grid)) {
    const std::size_t edges = ranks_.size() * static_cast<std::size_t>(micro_batches_);
    forward_end_.assign(edges, -1);
    backward_end_.assign(edges, -1);
    clock_.assign(grid.size(), 0);
    out_.start.resize(grid.size());
  }

  void run() {
    std::vector<std::size_t> todo;
    for (std::size_t rank = grid_.size(); rank-- > 0;) todo.push_back(rank);
    while (!todo.empty()) {
      const std::size_t rank = todo.back();
      todo.pop_back();
      while (advance(rank)) wake(grid_[rank][out_.start[rank].size() - 1], todo);
    }
    for (std::size_t rank = 0; rank < grid_.size(); ++rank) {
      out_.stalled = out_.stalled || out_.start[rank].size() < grid_[rank].size();
      out_.start[rank].resize(grid_[rank].size(), -1);
    }
  }

 private:
  std::size_t edge(std::int32_t stage, std::int32_t micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(micro_batches_) + static_cast<std::size_t>(micro_batch);
  }

  // End of the work on another stage that the action needs; 0 = none, -1 = not yet placed.
  std::int64_t arrival(const Action& a) const {
    if (a.kind == ActionKind::F) return a.stage == 0 ? 0 : forward_end_[edge(a.stage - 1, a.micro_batch)];
    if (!is_backward(a.kind) || a.stage + 1 == static_cast<std::int32_t>(ranks_.size())) return 0;
    return backward_end_[edge(a.stage + 1, a.micro_batch)];
  }

  bool advance(std::size_t rank) {
    const std::size_t k = out_.start[rank].size();
    if (k == grid_[rank].size()) return false;
    const Action& action = grid_[rank][k];
    const std::int64_t arrived = arrival(action);
    if (arrived < 0) return false;
    const std::int64_t start = std::max(arrived, clock_[rank]);
    out_.start[rank].push_back(start);
    clock_[rank] = start + length_of(action.kind);
    if (action.kind == ActionKind::F) forward_end_[edge(action.stage, action.micro_batch)] = clock_[rank];
    if (is_backward(action.kind)) backward_end_[edge(action.stage, action.micro_batch)] = clock_[rank];
    return true;
  }

  void wake(const Action& action, std::vector<std::size_t>& todo) const {
    const Message message = message_after(action, ranks_);
    if (message.exists()) todo.push_back(static_cast<std::size_t>(message.to));
  }

  const ActionGrid& grid_;
  UnitReplay& out_;
  std::vector<std::int32_t> ranks_;
  std::int32_t micro_batches_;
  std::vector<std::int64_t> forward_end_, backward_end_, clock_;
};

std::int64_t peak_in_flight(const ActionList& list, ActionKind closing) {
  std::int64_t now = 0, peak = 0;
  for (const Action& action : list) {
    if (action.kind == ActionKind::F) peak = std::max(peak, ++now);
    if (action.kind == closing || action.kind == ActionKind::B) --now;
  }
  return peak;
}

void measure(const ActionGrid& grid, UnitReplay& out) {
  std::int64_t first = INT64_MAX, last = 0;
  for (std::size_t rank = 0; rank < grid.size(); ++rank) {
    std::int64_t work = 0, end = 0;
    for (std::size_t k = 0; k < grid[rank].size() && out.start[rank][k] >= 0; ++k) {
      work += length_of(grid[rank][k].kind);
      end = out.start[rank][k] + length_of(grid[rank][k].kind);
    }
    out.work.push_back(work);
    out.peak_until_w.push_back(peak_in_flight(grid[rank], ActionKind::W));
    out.peak_until_i.push_back(peak_in_flight(grid[rank], ActionKind::I));
    if (work == 0) continue;
    first = std::min(first, out.start[rank][0]);
    last = std::max(last, end);
    out.span = std::max(out.span, end - out.start[rank][0]);
  }
  out.makespan = first == INT64_MAX ? 0 : last - first;
}

// "F3"; the second chunk of a rank in lower case, further ones with their stage: "5F3".
std::string cell_text(const Action& action, std::size_t chunk) {
  std::string text = fmt::format("{}{}", name_of(action.kind), action.micro_batch);
  if (chunk == 1) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return chunk > 1 ? to_string(action) : text;
}

std::size_t chunk_of(const ActionList& list, std::int32_t stage) {
  std::vector<std::int32_t> seen;
  for (const Action& action : list) {
    if (std::find(seen.begin(), seen.end(), action.stage) == seen.end()) seen.push_back(action.stage);
  }
  std::sort(seen.begin(), seen.end());
  return static_cast<std::size_t>(std::find(seen.begin(), seen.end(), stage) - seen.begin());
}

std::string row_text(const ActionList& list, const std::vector<std::int64_t>& start, std::int64_t end, std::size_t width) {
  std::vector<std::string> slots(static_cast<std::size_t>(end), ".");
  std::string waiting;
  std::vector<std::pair<std::int32_t, std::size_t>> chunks;
  for (std::size_t k = 0; k < list.size(); ++k) {
    auto known = std::find_if(chunks.begin(), chunks.end(), [&](const auto& c) { return c.first == list[k].stage; });
    if (known == chunks.end()) known = chunks.insert(chunks.end(), {list[k].stage, chunk_of(list, list[k].stage)});
    if (start[k] < 0) {
      if (waiting.empty()) waiting = fmt::format(" waits at {}", to_string(list[k]));
      continue;
    }
    slots[static_cast<std::size_t>(start[k])] = cell_text(list[k], known->second);
    if (length_of(list[k].kind) == 2) slots[static_cast<std::size_t>(start[k]) + 1] = "-";
  }
  std::string row;
  for (const std::string& slot : slots) row += fmt::format("{:<{}}", slot, width);
  row.erase(row.find_last_not_of(' ') + 1);
  return row + waiting;
}

}  // namespace

UnitReplay replay_units(const ActionGrid& grid) {
  const ActionGrid computes = compute_only(grid);
  UnitReplay out;
  Replay(computes, out).run();
  measure(computes, out);
  return out;
}

std::string order_grid(const ActionGrid& grid) {
  std::vector<Diagnostic> problems = check_actions(grid);
  if (!problems.empty()) throw InputError(std::move(problems));
  const UnitReplay replay = replay_units(grid);
  const ActionGrid computes = compute_only(grid);
  std::size_t width = 4;
  for (const ActionList& list : computes)
    for (const Action& action : list)
      width = std::max(width, to_string(action).size() - (list.size() ? std::to_string(action.stage).size() : 0) + 1);
  const std::size_t label = std::to_string(grid.size() - 1).size();
  std::string text;
  for (std::size_t rank = 0; rank < computes.size(); ++rank)
    text += fmt::format("r{:<{}}|{}\n", rank, label, row_text(computes[rank], replay.start[rank], replay.makespan, width));
  if (replay.stalled) return text + "stalled: every rank waits for another one\n";
  return text + fmt::format("makespan {}  span {}  work {}  peak until W [{}]  until I [{}]\n", replay.makespan, replay.span,
                            replay.work[0], fmt::join(replay.peak_until_w, ", "), fmt::join(replay.peak_until_i, ", "));
}

}  // namespace steptwin
