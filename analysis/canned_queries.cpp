// The canned queries: analysis/queries/*.sql, compiled into the binary.
#include "traces/embedded.h"
#include "traces/store.h"

namespace steptwin {

std::vector<CannedQuery> canned_queries() {
  std::vector<CannedQuery> queries;
  for (const EmbeddedText* file = kCannedSql; file->name != nullptr; ++file) {
    const std::string sql = file->text;
    const std::string first_line = sql.substr(0, sql.find('\n'));
    queries.push_back({file->name, first_line.size() > 3 ? first_line.substr(3) : "", sql});  // the line opens with "-- "
  }
  return queries;
}

}  // namespace steptwin
