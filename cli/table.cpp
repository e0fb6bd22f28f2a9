#include "cli/table.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cli/format.h"
#include "schedule/base/error.h"

namespace steptwin {

namespace {

using Json = nlohmann::ordered_json;
using Cell = Table::Cell;

bool is_number(const Cell& cell) { return cell.type != Table::Type::Text; }

// Line breaks and control characters would break rows of a table for people.
std::string one_line(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\n')
      result += "\\n";
    else if (c == '\r')
      result += "\\r";
    else if (c == '\t')
      result += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      result += '?';
    else
      result += c;
  }
  return result;
}

// What people read: reals with six digits, fractions of large ones dropped. csv and json keep every digit.
std::string shown(const Cell& cell) {
  return cell.type == Table::Type::Real ? six_digits(std::strtod(cell.text.c_str(), nullptr)) : one_line(cell.text);
}

std::string trim_right(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

struct Column {
  std::size_t width = 0;
  bool right = true;
};

std::vector<Column> measure(const Table& table) {
  std::vector<Column> columns;
  for (const std::string& name : table.columns) columns.push_back({display_width(name), !table.rows.empty()});
  for (const auto& row : table.rows) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      columns[c].width = std::max(columns[c].width, display_width(shown(row[c])));
      columns[c].right = columns[c].right && is_number(row[c]);
    }
  }
  return columns;
}

std::string aligned(const std::string& text, const Column& column) {
  return column.right ? pad_left(text, column.width) : pad_right(text, column.width);
}

void print_human(Output& out, const Table& table) {
  const std::vector<Column> columns = measure(table);
  std::string line;
  for (std::size_t c = 0; c < columns.size(); ++c) line += (c ? "  " : "") + aligned(table.columns[c], columns[c]);
  out.write(trim_right(line) + "\n");
  for (const auto& row : table.rows) {
    line.clear();
    for (std::size_t c = 0; c < columns.size(); ++c) line += (c ? "  " : "") + aligned(shown(row[c]), columns[c]);
    out.write(trim_right(line) + "\n");
    if (out.closed()) return;
  }
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string csv_line(const std::vector<Cell>& row) {
  std::string line;
  for (std::size_t c = 0; c < row.size(); ++c) line += (c ? "," : "") + csv_field(row[c].text);
  return line + "\n";
}

void print_csv(Output& out, const Table& table) {
  std::string line;
  for (std::size_t c = 0; c < table.columns.size(); ++c) line += (c ? "," : "") + csv_field(table.columns[c]);
  out.write(line + "\n");
  for (std::size_t r = 0; r < table.rows.size() && !out.closed(); ++r) out.write(csv_line(table.rows[r]));
}

std::string md_field(const std::string& text) {
  std::string result;
  for (const char c : one_line(text)) result += c == '|' ? std::string("\\|") : std::string(1, c);
  return result;
}

void print_md(Output& out, const Table& table) {
  const std::vector<Column> columns = measure(table);
  std::string head = "|", rule = "|";
  for (std::size_t c = 0; c < columns.size(); ++c) {
    head += " " + md_field(table.columns[c]) + " |";
    rule += columns[c].right ? "---:|" : "---|";
  }
  out.write(head + "\n" + rule + "\n");
  for (const auto& row : table.rows) {
    std::string line = "|";
    for (const Cell& cell : row) line += " " + md_field(shown(cell)) + " |";
    out.write(line + "\n");
  }
}

Json json_value(const Cell& cell) {
  switch (cell.type) {
    case Table::Type::Null:
      return nullptr;
    case Table::Type::Integer:
      return std::strtoll(cell.text.c_str(), nullptr, 10);
    case Table::Type::Real:
      return std::strtod(cell.text.c_str(), nullptr);
    case Table::Type::Text:
      return cell.text;
  }
  return nullptr;
}

// Column names made unique, so that no value of a JSON object hides another: a, a_2, a_3.
std::vector<std::string> unique_names(const std::vector<std::string>& columns) {
  std::vector<std::string> names;
  for (const std::string& column : columns) {
    std::string name = column;
    for (int n = 2; std::find(names.begin(), names.end(), name) != names.end(); ++n) name = column + "_" + std::to_string(n);
    names.push_back(name);
  }
  return names;
}

Json row_object(const std::vector<std::string>& names, const std::vector<Cell>& row) {
  Json object = Json::object();
  for (std::size_t c = 0; c < row.size(); ++c) object[names[c]] = json_value(row[c]);
  return object;
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

void print_json(Output& out, const Table& table, const std::string& schema) {
  const std::vector<std::string> names = unique_names(table.columns);
  out.write("{\"schema\":" + dump(Json(schema)) + ",\"columns\":" + dump(Json(names)) + ",\"rows\":[");
  for (std::size_t r = 0; r < table.rows.size() && !out.closed(); ++r)
    out.write((r ? ",\n" : "\n") + dump(row_object(names, table.rows[r])));
  out.write(table.rows.empty() ? "]}\n" : "\n]}\n");
}

void print_jsonl(Output& out, const Table& table) {
  const std::vector<std::string> names = unique_names(table.columns);
  for (const auto& row : table.rows) {
    out.write(dump(row_object(names, row)) + "\n");
    if (out.closed()) return;
  }
}

}  // namespace

Format parse_format(const std::string& name) {
  if (name == "table") return Format::Table;
  if (name == "csv") return Format::Csv;
  if (name == "json") return Format::Json;
  if (name == "jsonl") return Format::Jsonl;
  invariant(name == "md", "a format that the option table does not list");
  return Format::Md;
}

void print_table(Output& out, const Table& table, Format format, const std::string& schema) {
  switch (format) {
    case Format::Table:
      return print_human(out, table);
    case Format::Csv:
      return print_csv(out, table);
    case Format::Json:
      return print_json(out, table, schema);
    case Format::Jsonl:
      return print_jsonl(out, table);
    case Format::Md:
      return print_md(out, table);
  }
}

void print_row(Output& out, const std::vector<std::string>& columns, const std::vector<Table::Cell>& row, Format format) {
  if (format == Format::Csv)
    out.write(csv_line(row));
  else
    out.write(dump(row_object(unique_names(columns), row)) + "\n");
}

Table::Cell text_cell(std::string text) { return {Table::Type::Text, std::move(text)}; }
Table::Cell number_cell(std::int64_t value) { return {Table::Type::Integer, std::to_string(value)}; }
Table::Cell real_cell(double value) {
  const std::string text = exact_number(value);
  return {text.empty() ? Table::Type::Null : Table::Type::Real, text};
}

}  // namespace steptwin
