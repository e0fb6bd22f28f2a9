// A thin layer over SQLite: a connection, a prepared statement, a transaction. Internal to traces/. Implemented in store.cpp,
// the one file that sees sqlite3.h.
// Errors: EnvironmentError (Kind::Database) with SQLite's text, the errno text where the operating system gave one, and a remedy.
// Inside a QueryScope the fault is the user's SQL, and what comes from it is InputError (code SQL; SQL-STOPPED when it took too long).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace steptwin {

class Database {
 public:
  enum class Mode : std::uint8_t { Create, ReadOnly, Immutable };
  // Busy timeout 30 s. Closing leaves the main file untouched until own() is called (it may not be ours).
  Database(const std::string& path, Mode mode);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void own();
  void execute(const std::string& sql);          // one or more statements; results are dropped
  bool try_execute(const std::string& sql);      // false when the database is busy
  std::int64_t integer(const std::string& sql);  // first column of the first row; 0 when there is none
  std::string text(const std::string& sql);      // same; empty when there is none
  std::int64_t last_rowid() const;
  std::int64_t changes() const;
  bool writable() const;
  const std::string& path() const { return path_; }
  [[noreturn]] void fail(const std::string& doing) const;
  [[noreturn]] void damaged(const std::string& what) const;  // what SQLite cannot see

 private:
  friend class Statement;
  friend class QueryScope;
  friend class Transaction;
  std::string path_;
  sqlite3* handle_ = nullptr;
  bool in_query_ = false;
};

class Statement {
 public:
  Statement(Database& database, std::string_view sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Parameters count from 1. Text must outlive the next step.
  Statement& bind(int index, std::int64_t value);
  Statement& bind(int index, double value);
  Statement& bind(int index, std::string_view value);
  Statement& bind_null(int index);
  bool step();  // true: a row is there
  void run();   // steps to the end and resets
  void reset();
  int parameters() const;

  enum class Type : std::uint8_t { Null, Integer, Real, Text };
  int columns() const;
  std::string_view name(int column) const;
  Type type(int column) const;
  std::int64_t integer(int column) const;
  double real(int column) const;
  std::string_view text(int column) const;  // valid until the next step
  bool only_reads() const;

 private:
  Database& database_;
  sqlite3_stmt* handle_ = nullptr;
};

// BEGIN IMMEDIATE (or EXCLUSIVE) ... COMMIT; rolled back when it goes out of scope without commit().
class Transaction {
 public:
  enum class Lock : std::uint8_t { Immediate, Exclusive };
  explicit Transaction(Database& database, Lock lock = Lock::Immediate);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit();

 private:
  Database& database_;
  bool open_ = true;
};

// While it lives the connection serves a user's SQL: reading only (ATTACH, writes and most PRAGMAs are refused), stopped when
// `limit` has passed (0 = never) or *stop becomes true.
class QueryScope {
 public:
  QueryScope(Database& database, std::chrono::milliseconds limit, const std::atomic<bool>* stop);
  ~QueryScope();
  QueryScope(const QueryScope&) = delete;
  QueryScope& operator=(const QueryScope&) = delete;

 private:
  static int on_progress(void* self);
  Database& database_;
  std::chrono::milliseconds limit_;
  std::chrono::steady_clock::time_point deadline_;
  const std::atomic<bool>* stop_;
};

}  // namespace steptwin
