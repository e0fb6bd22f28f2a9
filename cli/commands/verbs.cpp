#include "cli/commands/commands.h"

namespace steptwin {

namespace {

constexpr std::size_t kAny = 1000;

}  // namespace

const std::vector<Verb>& verb_table() {
  static const std::vector<Verb> kTable{
      {"simulate", "SCENARIO|FILE.sched|-", "predict one step: time, bubble, communication, memory",
       "Compiles the scenario into a schedule, checks it, simulates it and stores the\nrun. A file NAME.sched holds a schedule in text "
       "form. - reads standard input.\n"
       "--expect takes a name of the --json summary, or a short form with a unit:\nstep_ms, step_s, bubble_pct, mfu_pct, peak_mem_gib. "
       "tokens_per_second counts all\nranks together, tokens_per_second_per_rank one.\n",
       "steptwin simulate scenarios/gpt2_pp4.json\n"
       "steptwin simulate s.json --set batch.micro_batches=16 --json\n"
       "steptwin simulate s.json --expect 'step_ms<200' --no-db\n",
       1, 1, "SCENARIO", run_simulate},
      {"execute", "SCENARIO|FILE.sched", "run the same schedule for real on the CPU: real tensors, real gradients",
       "Simulates the scenario, then runs the very schedule with LibTorch, all ranks in\nthis process, and stores both runs; compare "
       "joins them op by op.\n",
       "steptwin execute scenarios/gpt2_pp4_small.json --warmup 1 --steps 5\n"
       "steptwin execute s.json --check\n"
       "steptwin compare @last-sim @last-exec\n",
       1, 1, "SCENARIO", run_execute},
      {"calibrate", "[SCENARIO...]", "measure what ops take here, into a machine profile for simulate",
       "Runs the scenarios for real, several rounds of several steps, and tabulates what\ntheir compute ops, messages, collectives and copies took, by shape. --sweep adds\n"
       "messages, collectives and copies of 1 KiB to 16 MiB, and the scenarios at other\nmicro-batch sizes. simulate --machine PROFILE then uses these times: an exact\n"
       "shape as measured, one between two measured ones interpolated, any other by the\nanalytic model, with a warning.\n",
       "steptwin calibrate scenarios/gpt2_pp4_small.json --out here.json\n"
       "steptwin simulate scenarios/gpt2_pp4_small.json --machine ./here.json\n"
       "steptwin calibrate --sweep --out links.json\n",
       0, kAny, "", run_calibrate},
      {"compare", "RUN RUN", "a prediction beside a measured run, op by op",
       "One run is a prediction, the other an execution of the same schedule, in either\norder; or give the execution alone. Errors are\n"
       "(predicted - measured) / measured.\n",
       "steptwin compare @last-exec\n"
       "steptwin compare @last-sim @last-exec --max-error 10\n",
       1, 2, "RUN", run_compare},
      {"validate", "SCENARIO...", "check files and print every problem",
       "Reads each scenario or schedule text, compiles it and verifies the schedule.\nExit 1 when a file has errors.\n",
       "steptwin validate scenarios/*.json\n", 1, kAny, "SCENARIO", run_validate},
      {"show", "SCENARIO|FILE.sched|-", "what a scenario means, without running it",
       "One view a call: --resolved (default), --order, --ops or --memory.\n",
       "steptwin show s.json --order\n"
       "steptwin show s.json --ops --rank 2\n"
       "steptwin show s.json --memory\n",
       1, 1, "SCENARIO", run_show},
      {"query", "SQL | --name Q [RUN]", "ask the database (read-only)",
       "The views are described in traces/SCHEMA.md. RUN is an id, the first digits\nof a uid, a label, @last, @last-sim or @last-exec.\n",
       "steptwin query 'select * from runs'\n"
       "steptwin query --list\n"
       "steptwin query --name NAME @last --format csv\n",
       0, 2, "SQL", run_query},
      {"runs", "list | show RUN | rm RUN | check | gc", "list, show and remove stored runs; care for the database",
       "list   every run, oldest first\nshow   one run: its row, metrics and ranks\nrm     remove a run and all that belongs to it\n"
       "check  integrity of the database\ngc     mark runs whose process died as interrupted\n",
       "steptwin runs list\n"
       "steptwin runs show @last\n",
       1, 2, "one of list, show, rm, check, gc", run_runs},
      {"trace", "export RUN [-o FILE]", "write the timeline of a run for other tools",
       "perfetto: drag the file onto ui.perfetto.dev (nothing is uploaded).\ncsv: the spans, one a line.\n",
       "steptwin trace export @last -o gpt2.pftrace\n"
       "steptwin trace export @last --format csv -o -\n",
       1, 2, "export RUN", run_trace},
      {"doctor", "", "what was compiled in and what is found here", "", "steptwin doctor\n", 0, 0, "", run_doctor},
      {"version", "", "version in one line", "", "steptwin version --json\n", 0, 0, "", run_version},
      {"help", "[COMMAND]", "help on a command", "", "steptwin help simulate\n", 0, 1, "", run_help},
  };
  return kTable;
}

const Verb* find_verb(std::string_view name) {
  for (const Verb& verb : verb_table()) {
    if (verb.name == name) return &verb;
  }
  return nullptr;
}

}  // namespace steptwin
