#include "cli/row_printer.h"

#include "cli/table.h"

namespace steptwin {

void RowPrinter::open(const Row& row) {
  for (int c = 0; c < row.columns(); ++c) columns_.emplace_back(row.name(c));
  if (format_ == RowFormat::Csv) print_table(out_, {columns_, {}}, Format::Csv, {});
}

void RowPrinter::print(const Row& row) {
  if (!any()) open(row);
  std::vector<Table::Cell> cells;
  cells.reserve(columns_.size());
  for (int c = 0; c < row.columns(); ++c) cells.push_back({row.type(c), std::string(row.text(c))});
  print_row(out_, columns_, cells, format_ == RowFormat::Csv ? Format::Csv : Format::Jsonl);
}

}  // namespace steptwin
