// Help texts, made from the verb and option tables. Every line fits 80 columns.
#pragma once

#include <string>

#include "cli/commands/commands.h"

namespace steptwin {

enum class HelpDetail { Short, Long };
std::string general_help(HelpDetail detail);
std::string verb_help(const Verb& verb, HelpDetail detail);

}  // namespace steptwin
