// simulate --dry-run: what would be simulated and written, without doing either.
#pragma once

#include "cli/options.h"
#include "cli/session.h"
#include "cli/subject.h"

namespace steptwin {

void print_dry_run(const Subject& subject, const Options& options, Session& session);

}  // namespace steptwin
