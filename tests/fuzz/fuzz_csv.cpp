// libFuzzer entry for the schedule CSV reader: any bytes give a valid list or an InputError; a valid list survives the writer, and
// lowering it either works or says why it cannot.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "schedule/base/error.h"
#include "schedule/orders/orders.h"

namespace {

void check(std::string_view text, steptwin::CsvFormat format) {
  using namespace steptwin;
  ActionGrid grid;
  try {
    grid = read_csv(text, "fuzz.csv", format);
  } catch (const InputError& error) {
    if (error.problems().empty()) std::abort();
    for (const Diagnostic& problem : error.problems()) format_diagnostic(problem);
    return;
  }
  if (!check_actions(grid).empty()) std::abort();
  if (read_csv(write_csv(grid), "again.csv", format) != grid) std::abort();
  if (format != CsvFormat::ComputeOnly) return;
  try {
    if (!check_actions(lower_messages(grid)).empty()) std::abort();
  } catch (const InputError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(text, steptwin::CsvFormat::ComputeOnly);
  check(text, steptwin::CsvFormat::ComputeComms);
  return 0;
}
