#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "schedule/base/error.h"
#include "schedule/orders/actions.h"
#include "schedule/orders/findings.h"

namespace steptwin {
namespace {

// Stage and micro-batch numbers above this are refused: a typing error, and no table may grow with it.
constexpr std::int32_t kMaxNumber = 1'000'000;

// A cell of the file, unquoted and trimmed. Positions count bytes until they are reported as code points.
struct Cell {
  std::string text;
  std::size_t line = 0, first = 0, length = 0;
};

// A cell that is an action. full_backward: written BW (legacy dialect).
struct ParsedCell {
  Action action;
  bool full_backward = false;
  Cell cell;
};

int code_points(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; }));
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& file, CsvFormat format) : file_(file), format_(format) { split_lines(text); }

  ActionGrid read() {
    for (std::size_t line = 0; line < lines_.size(); ++line) read_row(line);
    if (lines_.empty())
      report({"", 0, 0, 0}, "CSV-EMPTY", "no rows: a schedule has one row per rank", "write one line of actions for every rank");
    fail_if_any();
    apply_dialect();
    fail_if_any();
    ActionGrid grid(rows_.size());
    for (std::size_t rank = 0; rank < rows_.size(); ++rank)
      for (const ParsedCell& parsed : rows_[rank]) grid[rank].push_back(parsed.action);
    for (Finding& finding : find_problems(grid)) place_finding(finding);
    fail_if_any();
    return grid;
  }

 private:
  // LF and CRLF; a byte order mark and empty lines at the end are dropped.
  void split_lines(std::string_view text) {
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      if (line.ends_with('\r')) line.remove_suffix(1);
      lines_.push_back(line);
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    while (!lines_.empty() && lines_.back().find_first_not_of(" \t\r") == std::string_view::npos) lines_.pop_back();
  }

  void report(const Cell& cell, const char* code, std::string text, std::string help) {
    if (problems_.size() >= kMaxFindings) return;
    Diagnostic problem;
    problem.code = code;
    problem.text = std::move(text);
    problem.help = std::move(help);
    const std::string_view line = cell.line < lines_.size() ? lines_[cell.line] : std::string_view();
    problem.place = {file_,
                     static_cast<int>(cell.line) + 1,
                     code_points(line.substr(0, cell.first)) + 1,
                     code_points(line.substr(std::min(cell.first, line.size()), cell.length)),
                     "",
                     std::string(line)};
    problems_.push_back(std::move(problem));
  }

  void fail_if_any() {
    if (!problems_.empty()) throw InputError(std::move(problems_));
  }

  void read_row(std::size_t line) {
    rows_.emplace_back();
    std::vector<Cell> cells = split_cells(line);
    while (!cells.empty() && cells.back().text.empty()) cells.pop_back();
    if (cells.empty())
      report({"", line, 0, 0}, "CSV-ROW", fmt::format("row {} has no action", line),
             "row number = rank: every rank has a row with actions");
    for (Cell& cell : cells) {
      if (!cell.text.empty())
        read_cell(cell);
      else if (format_ == CsvFormat::ComputeComms)
        report(cell, "CSV-CELL", "an empty cell in a list with messages", "remove it: idle slots belong to compute-only lists");
    }
  }

  std::vector<Cell> split_cells(std::size_t line) {
    std::vector<Cell> cells;
    std::size_t at = 0;
    do {
      cells.push_back(next_cell(line, at));
    } while (at != 0);
    return cells;
  }

  // Reads the cell at `at` and moves `at` behind its comma; 0 = it was the last one.
  Cell next_cell(std::size_t line, std::size_t& at) {
    const std::string_view text = lines_[line];
    std::size_t first = std::min(text.find_first_not_of(" \t", at), text.size());
    if (first < text.size() && text[first] == '"') return quoted_cell(line, first, at);
    const std::size_t comma = std::min(text.find(',', at), text.size());
    first = std::min(first, comma);
    std::string_view body = text.substr(first, comma - first);
    body = body.substr(0, body.find_last_not_of(" \t") + 1);
    at = comma < text.size() ? comma + 1 : 0;
    return {std::string(body), line, first, body.size()};
  }

  Cell quoted_cell(std::size_t line, std::size_t first, std::size_t& at) {
    const std::string_view text = lines_[line];
    Cell cell{"", line, first, 0};
    std::size_t i = first + 1;
    for (; i < text.size(); ++i) {
      if (text[i] == '"' && i + 1 < text.size() && text[i + 1] == '"')
        ++i;
      else if (text[i] == '"')
        break;
      cell.text += text[i];
    }
    const bool closed = i < text.size();
    const std::size_t comma = std::min(text.find(',', std::min(i, text.size())), text.size());
    cell.length = std::min(i + 1, text.size()) - first;
    if (!closed)
      report(cell, "CSV-QUOTE", "a quoted cell does not end on its line", "close the quote");
    else if (text.substr(i + 1, comma - i - 1).find_first_not_of(" \t") != std::string_view::npos)
      report(cell, "CSV-QUOTE", "text behind a closing quote", "put a comma behind the quote");
    const std::size_t begin = cell.text.find_first_not_of(" \t");
    cell.text = begin == std::string::npos ? "" : cell.text.substr(begin, cell.text.find_last_not_of(" \t") + 1 - begin);
    at = comma < text.size() ? comma + 1 : 0;
    return cell;
  }

  void read_cell(const Cell& cell) {
    std::string_view rest = cell.text;
    const auto stage = take_number(rest);
    const std::size_t letters = std::min(rest.find_first_of("0123456789"), rest.size());
    const std::string_view type = rest.substr(0, letters);
    rest.remove_prefix(letters);
    const auto micro_batch = take_number(rest);
    const auto kind = kind_of(type);
    const char* form = "write <stage><TYPE><micro-batch>, such as 3F7, 0SEND_F0 or 2UNSHARD";
    if (cell.text.find("OVERLAP") != std::string::npos || cell.text[0] == '(') {
      report(cell, "CSV-OVERLAP", fmt::format("'{}': overlapped pairs are not supported", cell.text),
             "list the two actions one after the other");
    } else if (!stage || !kind || !rest.empty()) {
      report(cell, "CSV-CELL", fmt::format("'{}' is no action", cell.text), form);
    } else if (*stage > kMaxNumber || micro_batch.value_or(0) > kMaxNumber) {
      report(cell, "CSV-CELL", fmt::format("'{}': a number above {}", cell.text, kMaxNumber), "use smaller numbers");
    } else if (has_micro_batch(*kind) != micro_batch.has_value()) {
      report(cell, "CSV-CELL", fmt::format("'{}' {} a micro-batch", cell.text, micro_batch ? "takes no" : "lacks"), form);
    } else if (format_ == CsvFormat::ComputeOnly && !is_compute(*kind)) {
      report(cell, "CSV-FORMAT", fmt::format("rank {} position {}: {} in a compute-only list", cell.line, rows_.back().size(), cell.text),
             "remove it, or read the file as a list with messages");
    } else {
      rows_.back().push_back({{*kind, *stage, micro_batch.value_or(-1)}, type == "BW", cell});
    }
  }

  // Leading digits, saturated just above kMaxNumber; none when there is no digit.
  static std::optional<std::int32_t> take_number(std::string_view& text) {
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    if (digits == 0) return std::nullopt;
    std::int32_t value = 0;
    for (const char c : text.substr(0, digits)) value = std::min(kMaxNumber + 1, value * 10 + (c - '0'));
    text.remove_prefix(digits);
    return value;
  }

  static std::optional<ActionKind> kind_of(std::string_view type) {
    if (type == "BW") return ActionKind::B;
    for (int k = 0; k <= static_cast<int>(ActionKind::ReduceGrad); ++k) {
      if (type == name_of(static_cast<ActionKind>(k))) return static_cast<ActionKind>(k);
    }
    return std::nullopt;
  }

  // First cell that satisfies the condition.
  template <class Condition>
  const ParsedCell* first_where(Condition condition) const {
    for (const auto& row : rows_) {
      const auto it = std::find_if(row.begin(), row.end(), condition);
      if (it != row.end()) return &*it;
    }
    return nullptr;
  }

  // Rule 4 of specs/schedules.md 6.2: as many W as B on every stage.
  bool splits_every_backward() const {
    std::vector<std::int64_t> difference;
    bool any = false;
    for (const auto& row : rows_) {
      for (const ParsedCell& parsed : row) {
        const auto stage = static_cast<std::size_t>(parsed.action.stage);
        if (stage >= difference.size()) difference.resize(stage + 1, 0);
        if (parsed.action.kind == ActionKind::B) ++difference[stage];
        if (parsed.action.kind != ActionKind::W) continue;
        --difference[stage];
        any = true;
      }
    }
    return any && std::all_of(difference.begin(), difference.end(), [](std::int64_t d) { return d == 0; });
  }

  // specs/schedules.md 6.2, first match wins. Legacy: B means I, BW means B.
  void apply_dialect() {
    const ParsedCell* full = first_where([](const ParsedCell& c) { return c.full_backward; });
    const ParsedCell* input = first_where([](const ParsedCell& c) { return c.action.kind == ActionKind::I; });
    if (full && input) {
      report(full->cell, "CSV-DIALECT", fmt::format("mixed dialects: '{}' (late 2024) beside '{}'", full->cell.text, input->cell.text),
             "write full backward as B and input gradient as I");
      return;
    }
    if (!full && (input || !splits_every_backward())) return;
    for (auto& row : rows_) {
      for (ParsedCell& parsed : row) {
        if (parsed.action.kind == ActionKind::B && !parsed.full_backward) parsed.action.kind = ActionKind::I;
      }
    }
  }

  void place_finding(Finding& finding) {
    Cell cell{"", finding.rank, 0, 0};
    const auto& row = rows_[finding.rank];
    if (finding.position < row.size()) cell = row[finding.position].cell;
    report(cell, finding.problem.code.c_str(), std::move(finding.problem.text), std::move(finding.problem.help));
  }

  const std::string& file_;
  CsvFormat format_;
  std::vector<std::string_view> lines_;
  std::vector<std::vector<ParsedCell>> rows_;
  std::vector<Diagnostic> problems_;
};

}  // namespace

ActionGrid read_csv(std::string_view text, const std::string& file, CsvFormat format) { return Reader(text, file, format).read(); }

}  // namespace steptwin
