#include "exec/backend.h"

#include "exec/kv_store.h"
#include "exec/launch.h"
#include "schedule/base/error.h"

namespace steptwin {

const char* name_of(ExecutionMode mode) {
  switch (mode) {
    case ExecutionMode::Interp: return "interp";
    case ExecutionMode::Threads: return "threads";
    case ExecutionMode::Streams: return "streams";
  }
  return "";
}

std::unique_ptr<KvStore> Backend::connect(const Launch&, std::chrono::milliseconds) {
  throw EnvironmentError(EnvironmentError::Kind::Device, "the backend " + name() + " runs in one process");
}

}  // namespace steptwin
