// The door to SQLite: everything that needs sqlite3.h.
#include <sqlite3.h>

#include <cerrno>
#include <cstring>

#include "schedule/base/error.h"
#include "traces/database.h"

namespace steptwin {
namespace {

constexpr int kBusyTimeoutMs = 30000;         // 8 writers on one host waited 0.5 s at most (specs/ux.md 11.1)
constexpr int kProgressInstructions = 20000;  // about 1 ms between looks at the clock

bool is_users_fault(int primary) {
  switch (primary) {
    case SQLITE_ERROR:
    case SQLITE_INTERRUPT:
    case SQLITE_AUTH:
    case SQLITE_RANGE:
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG:
    case SQLITE_CONSTRAINT:
    case SQLITE_READONLY:
      return true;
    default:
      return false;
  }
}

std::string reason_text(int code, int system_errno, const char* sqlite_text) {
  if ((code & 0xff) == SQLITE_FULL) system_errno = ENOSPC;  // SQLite forgets the errno of this one
  const bool known = system_errno != 0 && (code & 0xff) != SQLITE_BUSY && (code & 0xff) != SQLITE_NOTADB;
  return known ? std::string(sqlite_text) + " (" + std::strerror(system_errno) + ")" : sqlite_text;
}

std::string help_for(int code) {
  switch (code & 0xff) {
    case SQLITE_FULL:
      return "free some space there, or put the database on another disk with --db FILE or STEPTWIN_DB";
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "another process has held the database for 30 s; try again when it is done";
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
      return "name another file with --db FILE; this one was left as it is";
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_IOERR:
      return "name a database in a directory that you may write with --db FILE or STEPTWIN_DB";
    default:
      return {};
  }
}

// Refuses what SQLite counts as reading although it reaches outside the database or changes the connection. Statements that write are
// refused after compiling (only_reads): table functions such as json_each declare a table of their own while they compile.
int authorize(void*, int action, const char* first, const char* second, const char*, const char*) {
  const auto is = [](const char* text, const char* word) { return text != nullptr && std::strcmp(text, word) == 0; };
  switch (action) {
    case SQLITE_ATTACH:
    case SQLITE_DETACH:
    case SQLITE_TRANSACTION:
    case SQLITE_SAVEPOINT:
      return SQLITE_DENY;
    case SQLITE_FUNCTION:
      return is(second, "load_extension") ? SQLITE_DENY : SQLITE_OK;
    case SQLITE_PRAGMA:
      for (const char* allowed : {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "compile_options"})
        if (is(first, allowed)) return SQLITE_OK;
      return (is(first, "user_version") || is(first, "application_id")) && second == nullptr ? SQLITE_OK : SQLITE_DENY;
    default:
      return SQLITE_OK;
  }
}

Diagnostic sql_fault(int code, std::string text) {
  Diagnostic problem;
  problem.code = "SQL";
  problem.text = "the query failed: " + text;
  switch (code & 0xff) {
    case SQLITE_INTERRUPT:
      problem.code = "SQL-STOPPED";
      problem.help = "narrow it down (WHERE run_id = ..., LIMIT), or allow it more time";
      break;
    case SQLITE_AUTH:
    case SQLITE_READONLY:
      problem.help = "queries only read: SELECT, WITH, EXPLAIN and PRAGMA table_info";
      break;
    default:
      problem.help = "the views are listed in traces/SCHEMA.md; SELECT name FROM sqlite_schema WHERE type = 'view' shows them";
  }
  return problem;
}

}  // namespace

Database::Database(const std::string& path, Mode mode) : path_(path) {
  // No mutex: a Store is not for several threads at once.
  int flags = SQLITE_OPEN_NOMUTEX;
  flags |= mode == Mode::Create ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY;
  std::string target = path;
  if (mode == Mode::Immutable) {
    target = "file:";
    for (const char c : path) target += c == '%' ? "%25" : c == '?' ? "%3f" : c == '#' ? "%23" : std::string(1, c);
    target += "?immutable=1";
    flags |= SQLITE_OPEN_URI;
  }
  const int code = sqlite3_open_v2(target.c_str(), &handle_, flags, nullptr);
  if (code != SQLITE_OK) {
    const std::string reason = reason_text(code, handle_ ? sqlite3_system_errno(handle_) : 0, sqlite3_errstr(code));
    sqlite3_close_v2(handle_);
    throw EnvironmentError(EnvironmentError::Kind::Database, "cannot open the database " + path + ": " + reason, help_for(code));
  }
  sqlite3_extended_result_codes(handle_, 1);
  sqlite3_busy_timeout(handle_, kBusyTimeoutMs);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
}

Database::~Database() { sqlite3_close_v2(handle_); }

void Database::own() { sqlite3_db_config(handle_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, nullptr); }

void Database::execute(const std::string& sql) {
  if (sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) fail("cannot use");
}

void Database::damaged(const std::string& what) const {
  throw EnvironmentError(EnvironmentError::Kind::Database, "the database " + path_ + " is damaged: " + what + " makes no sense",
                         "steptwin runs check tells more; name another file with --db FILE");
}

bool Database::try_execute(const std::string& sql) {
  const int code = sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr) & 0xff;
  if (code == SQLITE_BUSY || code == SQLITE_LOCKED) return false;
  if (code != SQLITE_OK) fail("cannot use");
  return true;
}

std::int64_t Database::integer(const std::string& sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.integer(0) : 0;
}

std::string Database::text(const std::string& sql) {
  Statement statement(*this, sql);
  return statement.step() ? std::string(statement.text(0)) : std::string();
}

std::int64_t Database::last_rowid() const { return sqlite3_last_insert_rowid(handle_); }
std::int64_t Database::changes() const { return sqlite3_changes64(handle_); }
bool Database::writable() const { return sqlite3_db_readonly(handle_, "main") == 0; }

void Database::fail(const std::string& doing) const {
  const int code = sqlite3_extended_errcode(handle_);
  if (in_query_ && is_users_fault(code & 0xff)) throw InputError(sql_fault(code, sqlite3_errmsg(handle_)));
  const std::string reason = reason_text(code, sqlite3_system_errno(handle_), sqlite3_errmsg(handle_));
  throw EnvironmentError(EnvironmentError::Kind::Database, doing + " the database " + path_ + ": " + reason, help_for(code));
}

Statement::Statement(Database& database, std::string_view sql) : database_(database) {
  const char* tail = nullptr;
  if (sqlite3_prepare_v2(database.handle_, sql.data(), static_cast<int>(sql.size()), &handle_, &tail) != SQLITE_OK)
    database.fail("cannot read");
  if (!database.in_query_) return;
  // Another statement behind the first one? Blanks, comments and semicolons compile to nothing.
  sqlite3_stmt* second = nullptr;
  while (tail != nullptr && tail < sql.data() + sql.size() && second == nullptr) {
    const char* begin = tail;
    const int left = static_cast<int>(sql.data() + sql.size() - begin);
    if (sqlite3_prepare_v2(database.handle_, begin, left, &second, &tail) != SQLITE_OK || tail == begin) break;
  }
  const bool several = second != nullptr, nothing = handle_ == nullptr, writes = !nothing && !only_reads();
  sqlite3_finalize(second);
  if (!several && !nothing && !writes) return;
  sqlite3_finalize(handle_);
  throw InputError(writes ? sql_fault(SQLITE_READONLY, "it would write")
                          : sql_fault(SQLITE_ERROR, several ? "it holds more than one statement" : "it is empty"));
}

Statement::~Statement() { sqlite3_finalize(handle_); }

Statement& Statement::bind(int index, std::int64_t value) {
  if (sqlite3_bind_int64(handle_, index, value) != SQLITE_OK) database_.fail("cannot use");
  return *this;
}
Statement& Statement::bind(int index, double value) {
  if (sqlite3_bind_double(handle_, index, value) != SQLITE_OK) database_.fail("cannot use");
  return *this;
}
Statement& Statement::bind(int index, std::string_view value) {
  const char* data = value.data() != nullptr ? value.data() : "";
  if (sqlite3_bind_text(handle_, index, data, static_cast<int>(value.size()), SQLITE_STATIC) != SQLITE_OK) database_.fail("cannot use");
  return *this;
}
Statement& Statement::bind_null(int index) {
  if (sqlite3_bind_null(handle_, index) != SQLITE_OK) database_.fail("cannot use");
  return *this;
}

bool Statement::step() {
  const int code = sqlite3_step(handle_);
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) database_.fail(only_reads() ? "cannot read" : "cannot write");
  return false;
}

void Statement::run() {
  while (step()) {
  }
  sqlite3_reset(handle_);
}

void Statement::reset() { sqlite3_reset(handle_); }

int Statement::parameters() const { return sqlite3_bind_parameter_count(handle_); }
int Statement::columns() const { return sqlite3_column_count(handle_); }
std::string_view Statement::name(int column) const { return sqlite3_column_name(handle_, column); }

Statement::Type Statement::type(int column) const {
  switch (sqlite3_column_type(handle_, column)) {
    case SQLITE_INTEGER:
      return Type::Integer;
    case SQLITE_FLOAT:
      return Type::Real;
    case SQLITE_NULL:
      return Type::Null;
    default:
      return Type::Text;
  }
}

std::int64_t Statement::integer(int column) const { return sqlite3_column_int64(handle_, column); }
double Statement::real(int column) const { return sqlite3_column_double(handle_, column); }

std::string_view Statement::text(int column) const {
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(handle_, column));
  return data == nullptr ? std::string_view() : std::string_view(data, static_cast<std::size_t>(sqlite3_column_bytes(handle_, column)));
}

bool Statement::only_reads() const { return sqlite3_stmt_readonly(handle_) != 0; }

Transaction::Transaction(Database& database, Lock lock) : database_(database) {
  database.execute(lock == Lock::Immediate ? "BEGIN IMMEDIATE" : "BEGIN EXCLUSIVE");
}

Transaction::~Transaction() {
  if (open_) sqlite3_exec(database_.handle_, "ROLLBACK", nullptr, nullptr, nullptr);  // SQLite may have rolled back already
}

void Transaction::commit() {
  if (sqlite3_exec(database_.handle_, "COMMIT", nullptr, nullptr, nullptr) != SQLITE_OK) database_.fail("cannot write");
  open_ = false;
}

QueryScope::QueryScope(Database& database, std::chrono::milliseconds limit, const std::atomic<bool>* stop)
    : database_(database), limit_(limit), deadline_(std::chrono::steady_clock::now() + limit), stop_(stop) {
  database_.in_query_ = true;
  sqlite3_set_authorizer(database_.handle_, authorize, nullptr);
  sqlite3_progress_handler(database_.handle_, kProgressInstructions, on_progress, this);
}

QueryScope::~QueryScope() {
  sqlite3_progress_handler(database_.handle_, 0, nullptr, nullptr);
  sqlite3_set_authorizer(database_.handle_, nullptr, nullptr);
  database_.in_query_ = false;
}

int QueryScope::on_progress(void* self) {
  const auto& scope = *static_cast<QueryScope*>(self);
  if (scope.stop_ != nullptr && scope.stop_->load(std::memory_order_relaxed)) return 1;
  return scope.limit_.count() > 0 && std::chrono::steady_clock::now() > scope.deadline_ ? 1 : 0;
}

}  // namespace steptwin
