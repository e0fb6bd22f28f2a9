// Pipeline orders: (p, m, v, options) -> per rank the list of compute actions. One file per order, one row in the table in orders.cpp.
// specs/schedules.md 0-2. Naming: F forward, I input gradient, W weight gradient, B = I then W in one action.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/base/diagnostic.h"

namespace steptwin {

enum class ActionKind : std::uint8_t { F, I, W, B, SendF, RecvF, SendB, RecvB, Unshard, Reshard, ReduceGrad };

struct Action {
  ActionKind kind = ActionKind::F;
  std::int32_t stage = 0;
  std::int32_t micro_batch = -1;  // -1 for Unshard, Reshard, ReduceGrad
  bool operator==(const Action&) const = default;
};

using ActionList = std::vector<Action>;         // of one pipeline rank, issue order
using ActionGrid = std::vector<ActionList>;     // [pipeline rank]

struct OrderOptions {
  std::int32_t ranks = 1;          // p
  std::int32_t micro_batches = 1;  // m
  std::int32_t chunks = 1;         // v
  std::vector<std::int64_t> warm_up;        // 1f1b: forwards before the first backward, per rank; empty = min(m, p-1-r)
  bool backward_descending = false;         // gpipe: backward in descending micro-batch order
};

struct OrderEntry {
  const char* name;
  ActionGrid (*make)(const OrderOptions& options);
  std::int32_t (*chunks)(const OrderOptions& options);            // chunks per rank the order uses
  // Closed form of the bubble (makespan) for equal stages without communication, in units of tF+tB times; -1 = none. e.g. (p-1)/(m+p-1).
  double (*bubble_rate)(const OrderOptions& options);
};

const std::vector<OrderEntry>& order_table();
const OrderEntry* find_order(const std::string& name);

// Rules 1-4 of specs/schedules.md 1.4 (compute actions): each stage on one rank, F once, B once or I and W once, F before I/B before W. Empty = valid.
std::vector<Diagnostic> check_actions(const ActionGrid& grid);
// Appends messages in PyTorch's order (schedules.md 6.3 e). Throws InputError when the list cannot progress.
ActionGrid lower_messages(const ActionGrid& grid);
// Time-step grid for people: one row per rank (`show --order`).
std::string order_grid(const ActionGrid& grid);

// PyTorch schedule CSV (schedules.md 6.1, 6.2): text, not files. Reader accepts current and legacy dialect and reports file:line:column (line = rank row).
enum class CsvFormat : std::uint8_t { ComputeOnly, ComputeComms };
std::string write_csv(const ActionGrid& grid);  // CRLF line ends, as PyTorch writes
ActionGrid read_csv(std::string_view text, const std::string& file, CsvFormat format);
std::string to_string(const Action& action);    // "3F7", "0SEND_F0", "2UNSHARD"

}  // namespace steptwin
