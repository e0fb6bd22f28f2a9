#include "exec/backend.h"

namespace steptwin {

const char* name_of(ExecutionMode mode) {
  switch (mode) {
    case ExecutionMode::Interp: return "interp";
    case ExecutionMode::Threads: return "threads";
    case ExecutionMode::Streams: return "streams";
  }
  return "";
}

}  // namespace steptwin
