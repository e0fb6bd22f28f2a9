#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <tuple>

#include "schedule/orders/actions.h"
#include "schedule/orders/findings.h"

namespace steptwin {
namespace {

struct Cell {
  Action action;
  std::size_t rank = 0, position = 0;
};

// Collects findings up to the limit.
class Report {
 public:
  void add(const Cell& cell, const char* code, std::string text, std::string help) {
    Finding finding{cell.rank, cell.position, {}};
    finding.problem.code = code;
    finding.problem.text = fmt::format("rank {} position {}: {}", cell.rank, cell.position, text);
    finding.problem.help = std::move(help);
    if (findings_.size() < kMaxFindings) findings_.push_back(std::move(finding));
  }
  bool full() const { return findings_.size() >= kMaxFindings; }
  std::vector<Finding> take() {
    std::stable_sort(findings_.begin(), findings_.end(),
                     [](const Finding& a, const Finding& b) { return std::tie(a.rank, a.position) < std::tie(b.rank, b.position); });
    return std::move(findings_);
  }

 private:
  std::vector<Finding> findings_;
};

// Compute actions by (stage, micro-batch, rank, position). Actions with numbers below 0 are reported and left out.
std::vector<Cell> sorted_cells(const ActionGrid& grid, Report& report) {
  std::vector<Cell> cells;
  for (std::size_t rank = 0; rank < grid.size(); ++rank) {
    for (std::size_t k = 0; k < grid[rank].size(); ++k) {
      const Action& action = grid[rank][k];
      if (!is_compute(action.kind)) continue;
      if (action.stage < 0 || action.micro_batch < 0) {
        report.add({action, rank, k}, "ORDER-NUMBER", fmt::format("{} has a negative number", to_string(action)),
                   "count stages and micro-batches from 0");
      } else {
        cells.push_back({action, rank, k});
      }
    }
  }
  std::sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) {
    return std::tie(a.action.stage, a.action.micro_batch, a.rank, a.position) <
           std::tie(b.action.stage, b.action.micro_batch, b.rank, b.position);
  });
  return cells;
}

template <class Key>
std::span<const Cell> run_of(std::span<const Cell> cells, Key key) {
  std::size_t n = 1;
  while (n < cells.size() && key(cells[n]) == key(cells[0])) ++n;
  return cells.first(n);
}

// Rules 2 and 3 for the actions of one stage and micro-batch.
void check_one(std::span<const Cell> cells, Report& report) {
  const Cell* first[4] = {};
  for (const Cell& cell : cells) {
    const Cell*& slot = first[static_cast<std::size_t>(cell.action.kind)];
    if (slot) report.add(cell, "ORDER-DUPLICATE", fmt::format("{} appears twice", to_string(cell.action)), "keep one of them");
    if (!slot) slot = &cell;
  }
  const auto [f, i, w, b] = std::tuple(first[0], first[1], first[2], first[3]);
  const auto name = [&](const char* kind) { return fmt::format("{}{}{}", cells[0].action.stage, kind, cells[0].action.micro_batch); };
  const auto missing = [&](const char* kind, const char* why) {
    report.add(cells[0], "ORDER-MISSING", fmt::format("{} is missing ({})", name(kind), why),
               fmt::format("add {} to the row of stage {}", name(kind), cells[0].action.stage));
  };
  if (!f) missing("F", "every stage runs each micro-batch forward once");
  if (b && (i || w)) {
    report.add(i ? *i : *w, "ORDER-MIXED", fmt::format("{} beside {}", name("B"), i ? name("I") : name("W")),
               "use B, or I and W, not both");
  } else if (!b && !i) {
    missing(w ? "I" : "B", w ? "W needs the I of its micro-batch" : "every micro-batch runs backward once: B, or I and W");
  } else if (!b && !w) {
    missing("W", "an I needs its W");
  }
  const auto before = [&](const Cell* early, const Cell* late) {
    if (!early || !late || early->rank != late->rank || early->position < late->position) return;
    report.add(*late, "ORDER-SEQUENCE", fmt::format("{} stands before {}", to_string(late->action), to_string(early->action)), "swap them");
  };
  before(f, b);
  before(f, i);
  before(i, w);
}

// Rule 2 over one stage: no micro-batch left out; rule 1: one rank.
void check_stage(std::span<const Cell> cells, std::int32_t micro_batches, Report& report) {
  const auto elsewhere = std::find_if(cells.begin(), cells.end(), [&](const Cell& c) { return c.rank != cells[0].rank; });
  if (elsewhere != cells.end()) {
    report.add(*elsewhere, "ORDER-STAGE",
               fmt::format("{}: stage {} is also on rank {}", to_string(elsewhere->action), elsewhere->action.stage, cells[0].rank),
               "every stage lives on one rank");
    return;
  }
  std::int32_t expected = 0;
  const Cell at_stage = cells[0];
  for (std::span<const Cell> rest = cells; !rest.empty() && !report.full();) {
    const auto group = run_of(rest, [](const Cell& c) { return c.action.micro_batch; });
    const std::int32_t present = group[0].action.micro_batch;
    if (present > expected)
      report.add(group[0], "ORDER-MISSING",
                 fmt::format("stage {} lacks micro-batches {} to {}", at_stage.action.stage, expected, present - 1),
                 "number micro-batches without gaps");
    expected = present + 1;
    check_one(group, report);
    rest = rest.subspan(group.size());
  }
  if (expected < micro_batches)
    report.add(at_stage, "ORDER-MISSING",
               fmt::format("stage {} lacks micro-batches {} to {}", at_stage.action.stage, expected, micro_batches - 1),
               "give every stage the same micro-batches");
}

void check_compute(const ActionGrid& grid, Report& report) {
  const std::vector<Cell> cells = sorted_cells(grid, report);
  const std::int32_t micro_batches = micro_batch_count(grid);
  std::int32_t expected = 0;
  for (std::span<const Cell> rest = cells; !rest.empty() && !report.full();) {
    const auto group = run_of(rest, [](const Cell& c) { return c.action.stage; });
    if (group[0].action.stage > expected)
      report.add(group[0], "ORDER-STAGE", fmt::format("stages {} to {} are on no rank", expected, group[0].action.stage - 1),
                 "number stages from 0 without gaps");
    expected = group[0].action.stage + 1;
    check_stage(group, micro_batches, report);
    rest = rest.subspan(group.size());
  }
  for (std::size_t rank = 0; rank < grid.size(); ++rank) {
    const bool works = std::any_of(grid[rank].begin(), grid[rank].end(), [](const Action& a) { return is_compute(a.kind); });
    if (!works)
      report.add({{}, rank, 0}, "ORDER-STAGE", "no compute action: every rank holds a stage", "give the rank a stage, or remove its row");
  }
}

// One side of a message, or the compute action that makes (Producer) or needs (Consumer) it.
enum class Role : std::uint8_t { Producer, Consumer, Send, Recv };
struct Side {
  bool forward = false;
  std::int32_t from_stage = 0, micro_batch = 0;
  Role role = Role::Send;
  Cell cell;
  auto key() const { return std::tie(forward, from_stage, micro_batch); }
};

Side side_of(const Cell& cell, Role role) {
  const ActionKind kind = cell.action.kind;
  const bool forward = kind == ActionKind::F || kind == ActionKind::SendF || kind == ActionKind::RecvF;
  const bool receives = role == Role::Consumer || role == Role::Recv;
  const std::int32_t step = forward ? -1 : 1;
  return {forward, cell.action.stage + (receives ? step : 0), cell.action.micro_batch, role, cell};
}

std::vector<Side> message_sides(const ActionGrid& grid) {
  const std::vector<std::int32_t> ranks = stage_ranks(grid);
  std::vector<Side> sides;
  for (std::size_t rank = 0; rank < grid.size(); ++rank) {
    for (std::size_t k = 0; k < grid[rank].size(); ++k) {
      const Cell cell{grid[rank][k], rank, k};
      if (message_after(cell.action, ranks).exists()) sides.push_back(side_of(cell, Role::Producer));
      if (message_before(cell.action, ranks).exists()) sides.push_back(side_of(cell, Role::Consumer));
      if (!is_message(cell.action.kind)) continue;
      const bool sends = cell.action.kind == ActionKind::SendF || cell.action.kind == ActionKind::SendB;
      sides.push_back(side_of(cell, sends ? Role::Send : Role::Recv));
    }
  }
  std::stable_sort(sides.begin(), sides.end(), [](const Side& a, const Side& b) { return a.key() < b.key(); });
  return sides;
}

// Rule 5 for the sides of one message.
void check_message(std::span<const Side> sides, Report& report) {
  const Side* role[4] = {};
  for (const Side& side : sides) {
    const Side*& slot = role[static_cast<std::size_t>(side.role)];
    if (slot) report.add(side.cell, "DUP-SEND", fmt::format("{} appears twice", to_string(side.cell.action)), "keep one of them");
    if (!slot) slot = &side;
  }
  const auto [producer, consumer, send, recv] = std::tuple(role[0], role[1], role[2], role[3]);
  if (!producer || !consumer) {
    const Side& stray = send ? *send : *recv;
    report.add(stray.cell, "SELF", fmt::format("{}: no message crosses ranks there", to_string(stray.cell.action)), "remove it");
    return;
  }
  if (!send)
    report.add(producer->cell, "MISSING-SEND",
               fmt::format("the result of {} is never sent to rank {}", to_string(producer->cell.action), consumer->cell.rank),
               "add the SEND behind it");
  if (!recv)
    report.add(consumer->cell, "MISSING-RECV",
               fmt::format("{} needs a result of rank {} that is never received", to_string(consumer->cell.action), producer->cell.rank),
               "add the RECV before it");
  if (send && (send->cell.rank != producer->cell.rank || send->cell.position < producer->cell.position))
    report.add(send->cell, "ORDER-SEQUENCE",
               fmt::format("{} does not stand behind {} on rank {}", to_string(send->cell.action), to_string(producer->cell.action),
                           producer->cell.rank),
               "move it");
  if (recv && (recv->cell.rank != consumer->cell.rank || recv->cell.position > consumer->cell.position))
    report.add(recv->cell, "ORDER-SEQUENCE",
               fmt::format("{} does not stand before {} on rank {}", to_string(recv->cell.action), to_string(consumer->cell.action),
                           consumer->cell.rank),
               "move it");
}

bool has_messages(const ActionGrid& grid) {
  return std::any_of(grid.begin(), grid.end(), [](const ActionList& list) {
    return std::any_of(list.begin(), list.end(), [](const Action& a) { return is_message(a.kind); });
  });
}

void check_messages(const ActionGrid& grid, Report& report) {
  const std::vector<Side> sides = message_sides(grid);
  for (std::size_t i = 0; i < sides.size() && !report.full();) {
    std::size_t end = i + 1;
    while (end < sides.size() && sides[end].key() == sides[i].key()) ++end;
    check_message(std::span(sides).subspan(i, end - i), report);
    i = end;
  }
}

// Three ranks and three cells either side, the cell marked.
std::vector<std::string> neighbourhood(const ActionGrid& grid, std::size_t rank, std::size_t position) {
  std::vector<std::string> lines;
  const std::size_t first = position > 3 ? position - 3 : 0;
  for (std::size_t r = rank > 3 ? rank - 3 : 0; r < std::min(grid.size(), rank + 4); ++r) {
    std::string line = fmt::format("{} rank {} #{}:", r == rank ? "->" : "  ", r, first);
    for (std::size_t k = first; k < std::min(grid[r].size(), position + 4); ++k)
      line += r == rank && k == position ? fmt::format(" [{}]", to_string(grid[r][k])) : " " + to_string(grid[r][k]);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

std::vector<Finding> find_problems(const ActionGrid& grid) {
  Report report;
  check_compute(grid, report);
  std::vector<Finding> findings = report.take();
  if (!findings.empty() || !has_messages(grid)) return findings;
  check_messages(grid, report);
  return report.take();
}

std::vector<Diagnostic> check_actions(const ActionGrid& grid) {
  std::vector<Diagnostic> out;
  for (Finding& finding : find_problems(grid)) {
    finding.problem.details = neighbourhood(grid, finding.rank, finding.position);
    out.push_back(std::move(finding.problem));
  }
  return out;
}

}  // namespace steptwin
