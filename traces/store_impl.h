// What a Store holds. Internal to traces/.
#pragma once

#include <string>
#include <unordered_map>

#include "traces/database.h"
#include "traces/store.h"

namespace steptwin {

struct Store::Impl {
  Impl(const std::string& path, Access access);

  Database database;
  std::vector<std::string> warnings;
  std::chrono::milliseconds query_limit{60000};
  const std::atomic<bool>* stop = nullptr;
};

// Writes the data of one run inside the caller's transaction. The schedule is written only when its digest is new.
// Returns the schedule's row id.
std::int64_t store_schedule(Database& database, const Schedule& schedule, const std::string& digest);
void store_trace(Database& database, std::int64_t run_id, const Schedule& schedule, const Trace& trace);

// Ids of the strings of a database, interned on demand; lives inside one transaction.
class Interner {
 public:
  explicit Interner(Database& database);
  std::int64_t id(std::string_view text);

 private:
  Database& database_;
  Statement find_, insert_;
  std::unordered_map<std::string, std::int64_t> known_;
};

}  // namespace steptwin
