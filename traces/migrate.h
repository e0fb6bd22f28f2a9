// The version of a database file: what is ours, what is not, and how an older one is brought up to date. Internal to traces/.
#pragma once

#include <cstdint>
#include <span>

#include "traces/database.h"

namespace steptwin {

inline constexpr std::int64_t kApplicationId = 1398036302;  // 0x5354574E, "STWN"
inline constexpr std::int64_t kSchemaVersion = 2;

// One step forward: from version `from` to from + 1.
struct Migration {
  std::int64_t from;
  const char* sql;
};

enum class Contents : std::uint8_t { Empty, Ours };
// Throws EnvironmentError for a file that is no database, a foreign database, or one of a newer version than `version`.
Contents check_contents(Database& database, std::int64_t version = kSchemaVersion);

// Makes an empty file a database of ours. Several processes may do so at once: one creates, the others find it done.
void create_schema(Database& database);

// Applies the steps that lie between the file's version and `version`, inside one exclusive transaction; the version is read again
// once the lock is held, so that two processes that migrate at once are safe.
void migrate(Database& database, std::span<const Migration> steps, std::int64_t version = kSchemaVersion);

// All steps this binary knows, oldest first.
std::span<const Migration> known_migrations();

}  // namespace steptwin
