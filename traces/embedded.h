// Texts compiled into the binary by cmake/embed_sql.cmake: arrays that end with a null name.
#pragma once

namespace steptwin {

struct EmbeddedText {
  const char* name;  // file name without folder and extension
  const char* text;
};

extern const EmbeddedText kSchemaSql[];  // traces/schema.sql, one entry
extern const EmbeddedText kCannedSql[];  // analysis/queries/*.sql, by name

}  // namespace steptwin
