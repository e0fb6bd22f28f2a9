#include "exec/cpu/failure.h"

#include <new>

#include "schedule/base/error.h"

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
    throw EnvironmentError(EnvironmentError::Kind::Memory, place + "this computer has no memory left", "a smaller model or batch, or fewer ranks");
  } catch (const std::exception& error) {
    throw EnvironmentError(EnvironmentError::Kind::Device, place + error.what());
  }
}

}  // namespace steptwin
