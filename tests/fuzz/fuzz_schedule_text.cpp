// libFuzzer entry for the text form: whatever parses prints and parses to the same value, and verify judges it without a crash.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "schedule/base/error.h"
#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"

namespace {
constexpr std::uint32_t kMostRanks = 4096;  // tables per rank would make one input slow, not wrong
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace steptwin;
  Schedule schedule;
  try {
    schedule = parse_schedule({reinterpret_cast<const char*>(data), size}, "fuzz.sched");
  } catch (const InputError& error) {
    for (const Diagnostic& problem : error.problems()) (void)format_diagnostic(problem);
    return 0;
  }
  if (schedule.mesh.size() > kMostRanks) return 0;
  if (!(parse_schedule(print_schedule(schedule), "printed.sched") == schedule)) std::abort();
  for (const Diagnostic& problem : verify(schedule)) (void)format_diagnostic(problem);
  return 0;
}
