// Questions to the store: a user's read-only SQL, and which run a name means.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "schedule/base/error.h"
#include "traces/store_impl.h"

namespace steptwin {
namespace {

// Text that is exactly how a number prints is bound as that number, so that it also works where no column gives it a type.
void bind_parameter(Statement& statement, int index, const std::string& text) {
  const char* end = text.data() + text.size();
  std::int64_t whole = 0;
  double real = 0;
  if (std::from_chars(text.data(), end, whole).ec == std::errc{} && fmt::to_string(whole) == text)
    statement.bind(index, whole);
  else if (std::from_chars(text.data(), end, real).ec == std::errc{} && fmt::to_string(real) == text)
    statement.bind(index, real);
  else
    statement.bind(index, std::string_view(text));
}

void bind_parameters(Statement& statement, const std::vector<std::string>& parameters) {
  const int wanted = std::min(statement.parameters(), static_cast<int>(parameters.size()));
  for (int i = 0; i < wanted; ++i) bind_parameter(statement, i + 1, parameters[static_cast<std::size_t>(i)]);
}

// SQLite prints reals with 15 digits; the shortest text that reads back as the same value keeps them whole.
std::string real_text(double value) {
  std::string text = fmt::to_string(value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

Table::Cell cell_of(const Row& row, int column) {
  const Table::Type type = row.type(column);
  return {type, type == Table::Type::Real ? real_text(row.real(column)) : std::string(row.text(column))};
}

[[noreturn]] void bad_reference(const std::string& text, const std::string& help) {
  Diagnostic problem;
  problem.code = "RUN";
  problem.text = text;
  problem.help = help;
  throw InputError(problem);
}

std::vector<std::string> column(const Store& store, const std::string& sql, const std::vector<std::string>& parameters) {
  std::vector<std::string> values;
  store.for_each(sql, parameters, [&](const Row& row) { values.emplace_back(row.text(0)); });
  return values;
}

// SQL that selects the ids a reference may mean, most specific meaning first.
std::vector<std::string> meanings(const std::string& reference) {
  if (reference == "@last") return {"SELECT max(id) FROM runs WHERE status <> 'running'"};
  if (reference == "@last-sim") return {"SELECT max(id) FROM runs WHERE status <> 'running' AND kind = 'sim'"};
  if (reference == "@last-exec") return {"SELECT max(id) FROM runs WHERE status <> 'running' AND kind = 'exec'"};
  const auto all = [&](auto holds) {
    return std::all_of(reference.begin(), reference.end(), [&](unsigned char c) { return holds(c) != 0; });
  };
  std::vector<std::string> list;
  if (all([](unsigned char c) { return std::isdigit(c); })) list.emplace_back("SELECT id FROM runs WHERE id = ?1");
  list.emplace_back("SELECT id FROM runs WHERE label = ?1 || '' ORDER BY id");
  if (all([](unsigned char c) { return std::isxdigit(c); }))
    list.emplace_back("SELECT id FROM runs WHERE substr(uid, 1, length(?1)) = lower(?1) ORDER BY id");
  return list;
}

}  // namespace

int Row::columns() const { return statement_.columns(); }
std::string_view Row::name(int column) const { return statement_.name(column); }
Table::Type Row::type(int column) const {
  switch (statement_.type(column)) {
    case Statement::Type::Null:
      return Table::Type::Null;
    case Statement::Type::Integer:
      return Table::Type::Integer;
    case Statement::Type::Real:
      return Table::Type::Real;
    case Statement::Type::Text:
      return Table::Type::Text;
  }
  return Table::Type::Null;
}
std::int64_t Row::integer(int column) const { return statement_.integer(column); }
double Row::real(int column) const { return statement_.real(column); }
std::string_view Row::text(int column) const { return statement_.text(column); }

void Store::for_each(const std::string& sql, const std::vector<std::string>& parameters,
                     const std::function<void(const Row&)>& each) const {
  const QueryScope scope(impl_->database, impl_->query_limit, impl_->stop);
  Statement statement(impl_->database, sql);
  bind_parameters(statement, parameters);
  const Row row(statement);
  while (statement.step()) each(row);
}

Table Store::query(const std::string& sql, const std::vector<std::string>& parameters) const {
  Table table;
  const QueryScope scope(impl_->database, impl_->query_limit, impl_->stop);
  Statement statement(impl_->database, sql);
  bind_parameters(statement, parameters);
  for (int c = 0; c < statement.columns(); ++c) table.columns.emplace_back(statement.name(c));
  const Row row(statement);
  while (statement.step()) {
    auto& cells = table.rows.emplace_back();
    for (int c = 0; c < row.columns(); ++c) cells.push_back(cell_of(row, c));
  }
  return table;
}

void Store::set_query_limits(std::chrono::milliseconds timeout, const std::atomic<bool>* stop) {
  impl_->query_limit = timeout;
  impl_->stop = stop;
}

std::int64_t Store::resolve(const std::string& reference) const {
  for (const std::string& sql : meanings(reference)) {
    auto found = column(*this, sql, {reference});
    std::erase(found, "");
    if (found.size() == 1) return std::stoll(found.front());
    if (found.size() > 1) {
      bad_reference(fmt::format("'{}' means {} runs: {}", reference, found.size(), fmt::join(found, ", ")),
                    "give the id, or more digits of the uid: `steptwin runs list` lists them");
    }
  }
  const auto labels =
      column(*this, "SELECT DISTINCT label FROM runs WHERE label IS NOT NULL UNION ALL SELECT uid FROM runs LIMIT 10000", {});
  std::vector<std::string> known = {"@last", "@last-sim", "@last-exec"};
  known.insert(known.end(), labels.begin(), labels.end());
  const std::string near = nearest_name(reference, known);
  const std::string newest = query("SELECT max(id) FROM runs").rows[0][0].text;
  if (newest.empty())
    bad_reference(fmt::format("there is no run '{}': {} holds no runs yet", reference, path()), "make one: steptwin simulate SCENARIO");
  const std::string hint = near.empty() || near == reference ? "the newest run is " + newest : "did you mean '" + near + "'?";
  bad_reference(fmt::format("there is no run '{}'", reference), hint + " (`steptwin runs list` lists them)");
}

}  // namespace steptwin
