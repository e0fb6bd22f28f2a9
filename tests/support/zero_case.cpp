#include "tests/support/zero_case.h"

#include <fmt/format.h>

#include "schedule/compile.h"
#include "schedule/ir/verify.h"
#include "sim/cost/stated.h"
#include "sim/simulate.h"

namespace steptwin::test {
namespace {

bool is_fill(const Schedule& s, const Op& op) { return s.name(op.label.segment) == "fill"; }

}  // namespace

Schedule compiled(const ZeroCase& c, const std::vector<Override>& overrides) {
  const std::string mode = c.recompute == kEveryTwo ? c.recompute : "\"" + c.recompute + "\"";
  return compile(
      parse_scenario(fmt::format(R"({{"format": 1, "model": {{"family": "gpt", "positions": 32, "layers": {}, "hidden": 60, "heads": 4,
 "vocabulary": 97, "tied": {}}},
 "mesh": {{"pp": {}, "dp": {}}}, "batch": {{"micro_batches": {}, "sequence_length": 16}}, "zero": {{{}}}, "recompute": {{"mode": {}}},
 "precision": {{"compute": "{}", "gradient": "{}"}}, "schedule": {{"order": "{}"}}, "machine": {{"preset": "cpu"}}}})",
                                 c.layers, c.tied, c.pp, c.dp, c.micro_batches, c.zero, mode, c.compute, c.gradient, c.order),
                     "zero.json", overrides));
}

std::string problems_of(const Schedule& schedule) {
  std::string text;
  for (const Diagnostic& d : verify(schedule))
    if (d.severity == Severity::Error) text += format_diagnostic(d) + "\n";
  return text;
}

std::string load_name(const Schedule& s, const Op& op) {
  if (op.label.layer < 0 || !op.lane.valid()) return {};
  const char* kind = std::holds_alternative<AllGather>(op.body)       ? "AG"
                     : std::holds_alternative<ReduceScatter>(op.body) ? "RS"
                     : is_fill(s, op)                                 ? "Z"
                                                                      : nullptr;
  return kind == nullptr ? std::string() : kind + std::to_string(op.label.layer);
}

Schedule without_dependency(const Schedule& s, std::size_t index) {
  Schedule out = s;
  out.deps.erase(out.deps.begin() + static_cast<std::ptrdiff_t>(index));
  for (std::uint32_t& offset : out.dep_offsets)
    if (offset > index) --offset;
  return out;
}

bool may_be_redundant(const Schedule& s, OpId op) {
  const auto segment = s.name(s.ops[op.value].label.segment);
  return segment == "accumulate" || segment == "adam" || s.ops[op.value].group.valid();
}

Trace simulated(const Schedule& s) { return simulate(s, StatedCosts(), nullptr); }

}  // namespace steptwin::test
