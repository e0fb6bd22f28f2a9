#include "cli/dry_run.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/memory_view.h"

namespace steptwin {

namespace {

std::string mesh_text(const Mesh& mesh) {
  std::string text;
  for (const Axis& axis : mesh.axes) text += fmt::format("{}{}{}", text.empty() ? "" : " ", axis.name, axis.size);
  return text;
}

std::uint64_t instances(const Schedule& schedule) {
  std::uint64_t sum = 0;
  for (const Program& program : schedule.programs) sum += std::uint64_t{program.op_count} * program.ranks.size();
  return sum;
}

// Ranks as ranges where they are consecutive: "0-7 16 17".
std::string rank_ranges(const std::vector<RankId>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1].value == ranks[last].value + 1) ++last;
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", ranks[i].value, last > i ? fmt::format("-{}", ranks[last].value) : "");
    i = last + 1;
  }
  return text;
}

Table program_table(const Schedule& schedule) {
  Table table{{"program", "ranks", "ops", "peak device memory"}, {}};
  for (std::uint32_t p = 0; p < schedule.programs.size(); ++p) {
    const Program& program = schedule.programs[p];
    table.rows.push_back({text_cell(program.name), text_cell(rank_ranges(program.ranks)), number_cell(program.op_count),
                          text_cell(human_bytes(device_peak(schedule, ProgramId(p)).bytes))});
  }
  return table;
}

std::string destination(const Options& options) { return options.flag("no-db") ? std::string() : database_of(options); }

void print_json(const Subject& subject, const Options& options, Session& session) {
  nlohmann::ordered_json json{{"schema", "steptwin.dry_run/1"}, {"scenario", subject.name}, {"order", subject.order}};
  json["ranks"] = subject.schedule.mesh.size();
  json["ops"] = subject.schedule.ops.size();
  json["op_instances"] = instances(subject.schedule);
  json["peak_allocated_bytes"] = largest_device_peak(subject.schedule).bytes.value;
  json["capacity_bytes"] = subject.machine ? nlohmann::ordered_json(subject.machine->device.memory.value) : nlohmann::ordered_json();
  json["schedule_digest"] = schedule_digest(subject.schedule);
  json["writes"] = destination(options).empty() ? nlohmann::ordered_json::array() : nlohmann::ordered_json::array({destination(options)});
  session.out.write(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace

void print_dry_run(const Subject& subject, const Options& options, Session& session) {
  const Format format = format_of(options);
  if (format == Format::Json || format == Format::Jsonl) return print_json(subject, options, session);
  const Schedule& schedule = subject.schedule;
  const ProgramPeak peak = largest_device_peak(schedule);
  session.out.write(
      fmt::format("{}  {}  {} ranks ({})\n", printable(subject.name), subject.order, schedule.mesh.size(), mesh_text(schedule.mesh)));
  session.out.write(fmt::format("ops     {} in {} programs, {} over all ranks\n",
                                human_count(static_cast<std::int64_t>(schedule.ops.size())), schedule.programs.size(),
                                human_count(static_cast<std::int64_t>(instances(schedule)))));
  session.out.write(fmt::format("memory  at least {} on a rank{}\n", human_bytes(peak.bytes),
                                subject.machine ? fmt::format(" of {}{}", human_bytes(subject.machine->device.memory),
                                                              peak.bytes > subject.machine->device.memory ? ": does not fit" : "")
                                                : ""));
  session.out.write(fmt::format("writes  {}\n\n", destination(options).empty() ? "nothing" : destination(options)));
  print_table(session.out, program_table(schedule), format, "steptwin.dry_run/1");
}

}  // namespace steptwin
