#include "cli/options.h"

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>

#include "cli/errors.h"

namespace steptwin {

namespace po = boost::program_options;

const std::vector<OptionSpec>& option_table() {
  static const std::vector<OptionSpec> kTable{
      {"set", 0, ValueKind::List, "PATH=VALUE", "simulate execute calibrate validate show", "override a value of the scenario: mesh.pp=8; repeatable"},
      {"machine", 0, ValueKind::Text, "NAME|FILE", "simulate execute show", "another machine: preset name or profile file"},
      {"steps", 0, ValueKind::Whole, "N", "simulate", "repetitions of the step (default: the scenario's)"},
      {"seed", 0, ValueKind::Whole, "N", "simulate", "seed of what is drawn at random, kept with the run (default 1); nothing is drawn yet"},
      {"steps", 0, ValueKind::Whole, "N", "execute", "training steps (default 1)"},
      {"warmup", 0, ValueKind::Whole, "N", "execute", "steps before the measured ones (default none)"},
      {"seed", 0, ValueKind::Whole, "N", "execute", "seed of parameters and data (default 1)"},
      {"backend", 0, ValueKind::Choice, "cpu|cuda", "execute calibrate", "what executes (default cpu)"},
      {"transport", 0, ValueKind::Choice, "auto|nccl|local", "execute calibrate", "cuda: between GPUs, or between ranks that share one (default auto)"},
      {"partition", 0, ValueKind::Whole, "N", "execute calibrate", "cuda: split the GPU's multiprocessors into N parts, one per rank"},
      {"machine", 0, ValueKind::Text, "NAME|FILE", "calibrate", "figures for what is not measured (default cpu)"},
      {"out", 'o', ValueKind::Text, "FILE", "calibrate", "the profile to write"},
      {"clock", 0, ValueKind::Choice, "wall|thread", "calibrate",
       "interp: wall time, or processor time, which a busy machine does not disturb (default wall)"},
      {"sweep", 0, ValueKind::Flag, "", "calibrate", "also messages, collectives, copies and micro-batches of many sizes"},
      {"rounds", 0, ValueKind::Whole, "N", "calibrate", "how often everything is run; the quietest round counts (default 5)"},
      {"steps", 0, ValueKind::Whole, "N", "calibrate", "measured steps a round (default 3)"},
      {"warmup", 0, ValueKind::Whole, "N", "calibrate", "steps before the measured ones in each round (default 1)"},
      {"seed", 0, ValueKind::Whole, "N", "calibrate", "seed of parameters and data (default 1)"},
      {"mode", 0, ValueKind::Choice, "interp|threads", "execute calibrate", "one thread for all ranks, or a worker per rank and lane (default interp)"},
      {"data", 0, ValueKind::Text, "FILE", "execute calibrate", "training text, read as bytes (default: a text that ships with steptwin)"},
      {"no-verify", 0, ValueKind::Flag, "", "execute", "run a schedule that verify rejects, to see what happens; one that makes no sense at all is still refused"},
      {"check", 0, ValueKind::Flag, "", "execute", "compare loss and gradients with the plain model; exit 1 when they differ"},
      {"save", 0, ValueKind::Text, "DIR", "execute", "save parameters and optimizer state there after the last step"},
      {"load", 0, ValueKind::Text, "DIR", "execute", "start from the state saved there, on any mesh"},
      {"timeout", 0, ValueKind::Whole, "S", "execute calibrate", "seconds a step may take (default no limit)"},
      {"max-error", 0, ValueKind::Text, "PERCENT", "compare", "exit 1 when step time, median op or peak memory is off by more"},
      {"engine", 0, ValueKind::Choice, "auto|replay|event", "simulate", "agenda of the simulator (default auto)"},
      {"fold", 0, ValueKind::Choice, "auto|on|off", "simulate", "simulate one rank per class of equal ranks (default auto)"},
      {"trace", 0, ValueKind::Choice, "full|summary", "simulate", "store every span and memory step, or totals only"},
      {"expect", 0, ValueKind::List, "CHECK", "simulate", "exit 1 unless it holds: 'step_ms<200'; repeatable"},
      {"allow-oom", 0, ValueKind::Flag, "", "simulate", "exit 0 even if memory does not suffice"},
      {"no-verify", 0, ValueKind::Flag, "", "simulate", "do not check the schedule first (for tests)"},
      {"no-db", 0, ValueKind::Flag, "", "simulate execute", "do not store the run"},
      {"label", 0, ValueKind::Text, "TEXT", "simulate execute", "a name for the run, usable as RUN"},
      {"dry-run", 0, ValueKind::Flag, "", "simulate", "resolve and check everything, write nothing"},
      {"resolved", 0, ValueKind::Flag, "", "show", "every value and where it comes from (default)"},
      {"order", 0, ValueKind::Flag, "", "show", "the pipeline order as a grid"},
      {"ops", 0, ValueKind::Flag, "", "show", "the operations, one a line"},
      {"memory", 0, ValueKind::Flag, "", "show", "memory per stage: closed form and derived peak"},
      {"rank", 0, ValueKind::Text, "R", "show", "with --ops: only what rank R issues"},
      {"program", 0, ValueKind::Text, "P", "show", "with --ops: only program P (pp0)"},
      {"name", 'n', ValueKind::Text, "Q", "query", "a query that ships with steptwin; takes RUN (default @last)"},
      {"list", 0, ValueKind::Flag, "", "query", "list the queries that ship with steptwin"},
      {"show", 0, ValueKind::Text, "Q", "query", "print the SQL of query Q"},
      {"file", 'f', ValueKind::Text, "FILE", "query", "read the SQL from FILE (- = standard input)"},
      {"output", 'o', ValueKind::Text, "FILE", "trace", "where to write (- = standard output)"},
      {"force", 0, ValueKind::Flag, "", "calibrate trace", "overwrite the output file"},
      {"ranks", 0, ValueKind::Text, "LIST", "trace", "ranks to draw: 0-7,16 (default all, at most 256)"},
      {"db", 0, ValueKind::Text, "FILE", "simulate execute compare query runs trace doctor", "the database (default $STEPTWIN_DB, else ./steptwin.db)"},
      {"format", 0, ValueKind::Choice, "perfetto|csv", "trace", "what to write (default perfetto)"},
      {"format", 0, ValueKind::Choice, "table|json|jsonl|csv|md", "simulate execute calibrate compare validate show query runs doctor version",
       "format of the result"},
      {"json", 0, ValueKind::Flag, "", "simulate execute calibrate compare validate show query runs doctor version", "same as --format json"},
      {"quiet", 'q', ValueKind::Flag, "", "*", "no notes and no progress on standard error"},
      {"no-progress", 0, ValueKind::Flag, "", "*", "no progress line"},
      {"color", 0, ValueKind::Choice, "auto|always|never", "*", "colour (also NO_COLOR, CLICOLOR_FORCE)"},
      {"ascii", 0, ValueKind::Flag, "", "*", "no characters outside ASCII"},
      {"help", 'h', ValueKind::Flag, "", "*", "help; -h is short, --help has everything"},
      {"version", 0, ValueKind::Flag, "", "*", "version"},
  };
  return kTable;
}

namespace {

bool applies(const OptionSpec& spec, std::string_view verb) {
  const std::string_view verbs = spec.verbs;
  if (verbs == "*") return true;
  const std::vector<std::string> words = split_words(verbs, ' ');
  return std::find(words.begin(), words.end(), verb) != words.end();
}

const OptionSpec* find_option(std::string_view name) {
  for (const OptionSpec& spec : option_table()) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

std::string dashed(const std::string& name) { return (name.size() == 1 ? "-" : "--") + name; }

[[noreturn]] void unknown_option(std::string_view verb, const std::string& typed) {
  const std::string name = typed.substr(std::min(typed.find_first_not_of('-'), typed.size()));
  const std::string word = name.substr(0, name.find('='));
  std::vector<std::string> known;
  for (const OptionSpec* spec : options_of(verb)) known.push_back(spec->name);
  const std::string near = nearest_name(word, known);
  const std::string where = verb.empty() ? "" : " for " + std::string(verb);
  if (!near.empty()) throw usage_error("unknown option " + dashed(word) + where, "did you mean --" + near + "?");
  const OptionSpec* other = find_option(word);
  if (other != nullptr && other->verbs[0] != 0) {
    throw usage_error("unknown option " + dashed(word) + where, std::string("--") + word + " belongs to: " + other->verbs);
  }
  throw usage_error("unknown option " + dashed(word) + where,
                    "steptwin help" + (verb.empty() ? "" : " " + std::string(verb)) + " lists the options");
}

void check_value(const OptionSpec& spec, const std::string& value) {
  const std::string name = std::string("--") + spec.name;
  if (spec.kind == ValueKind::Whole) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < 1 || number > INT32_MAX) {
      throw usage_error(name + " " + value + ": not a whole number from 1 to 2147483647");
    }
  }
  if (spec.kind == ValueKind::Choice) {
    const std::vector<std::string> words = split_words(spec.argument, '|');
    if (std::find(words.begin(), words.end(), value) != words.end()) return;
    const std::string near = nearest_name(value, words);
    throw usage_error(name + " " + value + ": must be one of " + spec.argument, near.empty() ? "" : "did you mean " + near + "?");
  }
  if (value.empty() && spec.kind != ValueKind::Flag) throw usage_error(name + " has an empty value", name + " " + spec.argument);
}

// "--db" or "-n": an option of any verb whose value is the next word.
bool takes_value(const std::string& word) {
  return std::any_of(option_table().begin(), option_table().end(), [&](const OptionSpec& spec) {
    const bool named = word == std::string("--") + spec.name || (spec.letter != 0 && word == std::string("-") + spec.letter);
    return named && spec.kind != ValueKind::Flag;
  });
}

po::options_description describe(std::string_view verb) {
  po::options_description description;
  for (const OptionSpec* spec : options_of(verb)) {
    const std::string names = std::string(spec->name) + (spec->letter != 0 ? std::string(",") + spec->letter : "");
    if (spec->kind == ValueKind::Flag)
      description.add_options()(names.c_str(), po::bool_switch());
    else if (spec->kind == ValueKind::List)
      description.add_options()(names.c_str(), po::value<std::vector<std::string>>()->composing());
    else
      description.add_options()(names.c_str(), po::value<std::string>());
  }
  description.add_options()("positional", po::value<std::vector<std::string>>());
  return description;
}

po::variables_map parse_with_boost(std::string_view verb, const std::vector<std::string>& arguments) {
  const po::options_description description = describe(verb);
  po::positional_options_description positional;
  positional.add("positional", -1);
  const int style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
  po::variables_map map;
  try {
    po::store(po::command_line_parser(arguments).options(description).positional(positional).style(style).run(), map);
  } catch (const po::unknown_option& error) {
    unknown_option(verb, error.get_option_name());
  } catch (const po::multiple_occurrences& error) {
    throw usage_error(error.get_option_name() + " is given more than once", "give it once");
  } catch (const po::error& error) {
    throw usage_error(error.what(), "steptwin help" + (verb.empty() ? "" : " " + std::string(verb)) + " shows how options are written");
  }
  return map;
}

}  // namespace

std::vector<const OptionSpec*> options_of(std::string_view verb) {
  std::vector<const OptionSpec*> result;
  for (const OptionSpec& spec : option_table()) {
    if (applies(spec, verb)) result.push_back(&spec);
  }
  return result;
}

Options parse_options(std::string_view verb, const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument.rfind("--positional", 0) == 0) unknown_option(verb, "positional");  // Boost needs the name, users may not
  }
  const po::variables_map map = parse_with_boost(verb, arguments);
  Options options;
  for (const OptionSpec* spec : options_of(verb)) {
    const auto found = map.find(spec->name);
    if (found == map.end() || found->second.empty()) continue;
    std::vector<std::string>& values = options.values_[spec->name];
    if (spec->kind == ValueKind::Flag) {
      if (found->second.as<bool>()) values.emplace_back("on");
    } else if (spec->kind == ValueKind::List) {
      values = found->second.as<std::vector<std::string>>();
    } else {
      values.push_back(found->second.as<std::string>());
    }
    for (const std::string& value : values) check_value(*spec, value);
  }
  if (map.count("positional") != 0) options.positionals_ = map["positional"].as<std::vector<std::string>>();
  return options;
}

bool Options::given(const char* name) const {
  invariant(find_option(name) != nullptr, "an option that the table does not list");
  const auto found = values_.find(std::string_view(name));
  return found != values_.end() && !found->second.empty();
}

bool Options::flag(const char* name) const { return given(name); }

std::string Options::text(const char* name, const std::string& fallback) const {
  return given(name) ? values_.find(std::string_view(name))->second.front() : fallback;
}

std::int64_t Options::whole(const char* name, std::int64_t fallback) const {
  return given(name) ? std::stoll(values_.find(std::string_view(name))->second.front()) : fallback;
}

const std::vector<std::string>& Options::list(const char* name) const {
  static const std::vector<std::string> kNone;
  return given(name) ? values_.find(std::string_view(name))->second : kNone;
}

SplitArguments split_arguments(const std::vector<std::string>& arguments) {
  SplitArguments split;
  std::size_t at = 0;
  for (; at < arguments.size(); ++at) {
    const std::string& word = arguments[at];
    if (word.empty() || word[0] != '-' || word == "-") break;
    split.before.push_back(word);
    if (takes_value(word) && at + 1 < arguments.size()) split.before.push_back(arguments[++at]);
  }
  if (at < arguments.size()) split.verb = arguments[at++];
  split.after.assign(arguments.begin() + static_cast<std::ptrdiff_t>(std::min(at, arguments.size())), arguments.end());
  return split;
}

std::vector<std::string> split_words(std::string_view text, char separator) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (end > 0) words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

}  // namespace steptwin
