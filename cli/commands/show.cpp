// steptwin show: what a scenario means, without running it.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/errors.h"
#include "cli/memory_view.h"
#include "cli/subject.h"
#include "schedule/compile.h"
#include "schedule/ir/text.h"

namespace steptwin {

namespace {

SubjectRequest request_of(const Options& options) {
  return {options.positionals().front(), parse_overrides(options.list("set")), options.text("machine"), {}};
}

void print_notes(const std::vector<Diagnostic>& notes, const Session& session) {
  for (const Diagnostic& note : notes) session.messages.diagnostic(note);
}

Exit show_resolved(const Options& options, Session& session) {
  const Scenario scenario = read_scenario(request_of(options));
  print_notes(scenario.notes, session);
  session.out.write(format_of(options) == Format::Json ? scenario.canonical_json : resolved_listing(scenario));
  if (format_of(options) == Format::Json) session.out.write("\n");
  return Exit::Ok;
}

void refuse_save(const Scenario& scenario, const char* view, const char* lacks) {
  if (scenario.task == RunTask::Save)
    throw usage_error(fmt::format("--{}: a checkpoint save has no {}", view, lacks), "show --ops prints it; or --set run.task=step");
}

Exit show_order(const Options& options, Session& session) {
  const Scenario scenario = read_scenario(request_of(options));
  refuse_save(scenario, "order", "micro-batches");
  const ActionGrid grid = scenario_actions(scenario);
  print_notes(scenario.notes, session);
  if (format_of(options) == Format::Csv) {
    session.out.write(write_csv(grid));
    return Exit::Ok;
  }
  session.out.write(order_grid(grid));
  session.messages.note(
      "F forward 1 slot, B backward 2 (I input gradient 1, W weight gradient 1), . idle, messages free; work: of one rank;\n"
      "peak: micro-batches held at once by each rank, freed by W (B), or by I (B)");
  return Exit::Ok;
}

// The program that --program or --rank names; none = all.
ProgramId chosen_program(const Options& options, const Schedule& schedule) {
  if (options.given("program")) {
    const std::string name = options.text("program");
    std::vector<std::string> known;
    for (std::uint32_t p = 0; p < schedule.programs.size(); ++p) {
      if (schedule.programs[p].name == name) return ProgramId(p);
      known.push_back(schedule.programs[p].name);
    }
    const std::string near = nearest_name(name, known);
    throw usage_error("no program is called " + name, near.empty() ? "show --ops prints all programs" : "did you mean " + near + "?");
  }
  if (!options.given("rank")) return {};
  const std::string word = options.text("rank");
  std::uint32_t rank = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), rank);
  const std::vector<ProgramId> programs = schedule.program_of_rank();
  if (error != std::errc() || end != word.data() + word.size() || rank >= programs.size()) {
    throw usage_error(fmt::format("--rank {}: not a rank", word),
                      fmt::format("ranks are 0 to {}", std::max<std::size_t>(programs.size(), 1) - 1));
  }
  if (!programs[rank].valid()) throw usage_error(fmt::format("rank {} issues nothing", rank));
  return programs[rank];
}

void print_program(const Schedule& schedule, const Program& program, Output& out) {
  std::string ranks;
  for (std::size_t i = 0; i < program.ranks.size() && i < 8; ++i) ranks += fmt::format(" {}", program.ranks[i].value);
  out.write(fmt::format("program {}  {} ops  ranks{}{}\n", program.name, program.op_count, ranks, program.ranks.size() > 8 ? " ..." : ""));
  for (std::uint32_t k = 0; k < program.op_count && !out.closed(); ++k)
    out.write(print_op(schedule, OpId(program.first_op.value + k)) + "\n");
}

Exit show_ops(const Options& options, Session& session) {
  const Subject subject = load_subject(request_of(options));
  const ProgramId chosen = chosen_program(options, subject.schedule);
  if (chosen.valid()) {
    print_program(subject.schedule, subject.schedule.programs[chosen.value], session.out);
  } else {
    session.out.write(print_schedule(subject.schedule));  // reads back: steptwin simulate FILE.sched
  }
  return Exit::Ok;
}

Exit show_memory(const Options& options, Session& session) {
  const Subject subject = load_subject(request_of(options));
  if (!subject.scenario)
    throw usage_error(subject.file + " is a schedule text: it has no stages to compare with closed forms",
                      "simulate prints its memory peaks");
  refuse_save(*subject.scenario, "memory", "activations to compare with closed forms");
  Table table = memory_table(*subject.scenario, subject.schedule);
  if (format_of(options) == Format::Table) {
    table.columns = {"stage", "memory", "closed form", "derived"};
    for (auto& row : table.rows) {
      for (const std::size_t c : {2u, 3u}) {
        if (row[c].type == Table::Type::Integer) row[c].text = human_bytes(Bytes(std::stoll(row[c].text)));
      }
    }
  }
  print_table(session.out, table, format_of(options), "steptwin.memory/1");
  session.messages.note(
      "closed form: transformer layers only. derived: at the peak of the schedule; other: received activations, workspace, inputs;\n"
      "the last stage also keeps the logits");
  return Exit::Ok;
}

}  // namespace

Exit run_show(const Options& options, Session& session) {
  int views = 0;
  for (const char* view : {"resolved", "order", "ops", "memory"}) views += options.flag(view);
  if (views > 1) throw usage_error("one view at a time", "give one of --resolved, --order, --ops, --memory");
  if (!options.flag("ops") && (options.given("rank") || options.given("program")))
    throw usage_error("--rank and --program belong to --ops");
  if (options.flag("order")) return show_order(options, session);
  if (options.flag("ops")) return show_ops(options, session);
  if (options.flag("memory")) return show_memory(options, session);
  return show_resolved(options, session);
}

}  // namespace steptwin
