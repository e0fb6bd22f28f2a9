// A table in the format the user asked for. Table for people (aligned, numbers right), csv (RFC 4180, \n line ends, NULL = empty),
// json ({"schema", "columns", "rows": [objects]}), jsonl (one object a row), md. Values are printed as stored, full precision.
#pragma once

#include <string>
#include <vector>

#include "cli/streams.h"
#include "traces/store.h"

namespace steptwin {

enum class Format { Table, Csv, Json, Jsonl, Md };
Format parse_format(const std::string& name);  // one of table csv json jsonl md (the option table has checked it)

// `schema` names the JSON document: "steptwin.query/1".
void print_table(Output& out, const Table& table, Format format, const std::string& schema);

// One row without any header, csv or jsonl.
void print_row(Output& out, const std::vector<std::string>& columns, const std::vector<Table::Cell>& row, Format format);

Table::Cell text_cell(std::string text);
Table::Cell number_cell(std::int64_t value);
Table::Cell real_cell(double value);

}  // namespace steptwin
