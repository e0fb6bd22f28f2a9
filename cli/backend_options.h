// What execute and calibrate share: which backend runs, and how.
#pragma once

#include "cli/options.h"
#include "exec/module.h"

namespace steptwin {

// --backend. Throws the usage error of an option that the chosen backend does not have.
BackendKind backend_of(const Options& options);
// --mode, --transport, --partition, --timeout, --seed, --data. Reads the text.
ExecuteOptions backend_options(const Options& options);

}  // namespace steptwin
