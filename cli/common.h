// What several verbs share: the result format asked for, the database as named by the user.
#pragma once

#include <string>

#include "cli/options.h"
#include "cli/session.h"
#include "cli/table.h"
#include "schedule/base/error.h"
#include "traces/store.h"

namespace steptwin {

Format format_of(const Options& options);         // --json, else --format, else table
std::string database_of(const Options& options);  // --db, else $STEPTWIN_DB, else ./steptwin.db

// Opens for reading; prints "database PATH" and the store's warnings on standard error.
Store open_for_reading(const Options& options, const Session& session);
void print_warnings(const Store& store, const Session& session);

// For a handler around SQL of the tool's own, which fails only on damaged tables: such an error is the database's (exit 6), not the
// user's (exit 2). Any other error goes on as it is.
[[noreturn]] void rethrow_own_sql_error(const InputError& error, const std::string& database);

}  // namespace steptwin
