#include "exec/cpu/failure.h"

#include <fmt/format.h>

#include <new>

#include "schedule/base/error.h"
#include "schedule/ir/text.h"

namespace steptwin {

void rethrow_from(const std::string& where) {
  const std::string place = where + ": ";
  try {
    throw;
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(error.kind(), place + error.what(), error.help());
  } catch (const InternalError& error) {
    throw InternalError(place + error.what());
  } catch (const std::bad_alloc&) {
    throw EnvironmentError(EnvironmentError::Kind::Memory, place + "this computer has no memory left",
                           "a smaller model or batch, or fewer ranks");
  } catch (const std::exception& error) {
    throw EnvironmentError(EnvironmentError::Kind::Device, place + error.what());
  }
}

void rethrow_from(const Schedule& schedule, RankId rank, OpId op, std::uint32_t step) {
  rethrow_from(fmt::format("rank {} failed at op `{}` of step {}", rank.value, print_op(schedule, op), step));
}

}  // namespace steptwin
