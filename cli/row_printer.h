// Rows of a running query printed as they come: csv (with a header) or jsonl. Memory does not grow with the result.
#pragma once

#include <string>
#include <vector>

#include "cli/streams.h"
#include "traces/store.h"

namespace steptwin {

enum class RowFormat { Csv, Jsonl };

class RowPrinter {
 public:
  RowPrinter(Output& out, RowFormat format) : out_(out), format_(format) {}
  void print(const Row& row);
  bool any() const { return !columns_.empty(); }

 private:
  void open(const Row& row);
  Output& out_;
  RowFormat format_;
  std::vector<std::string> columns_;
};

}  // namespace steptwin
