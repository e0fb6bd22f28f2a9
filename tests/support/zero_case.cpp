#include "tests/support/zero_case.h"

#include <fmt/format.h>

#include "schedule/compile.h"
#include "schedule/ir/liveness.h"
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

Schedule compiled_pipeline(const BatchPipelineCase& p) {
  ZeroCase c;
  c.zero = p.zero;
  c.layers = p.layers, c.pp = p.pp, c.dp = p.dp, c.micro_batches = p.batches;
  c.recompute = p.recompute, c.order = "gpipe";
  std::vector<Override> overrides = {{"batch.micro_batch_size", std::to_string(p.samples)},
                                     {"pipeline", fmt::format(R"({{"form": "bmtrain", "micro_batches": {}}})", p.pieces)}};
  overrides.insert(overrides.end(), p.more.begin(), p.more.end());
  return compiled(c, overrides);
}

std::int64_t hidden_of_the_pipeline(const BatchPipelineCase& p) { return p.samples * p.pp * 16 * 60 * 2; }  // bf16

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

bool on(const Schedule& s, const Op& op, const char* comm) {
  const CommId id = comm_of(op.body);
  return id.valid() && s.communicators[id.value].name == comm;
}

std::string name_of_op(const Schedule& s, const Op& op) {
  const std::string load = load_name(s, op), segment(s.name(op.label.segment));
  const bool forward = op.label.phase == Phase::Forward;
  if (!load.empty()) return load;
  if (std::holds_alternative<Send>(op.body)) return fmt::format("S{}>", op.label.micro_batch);
  if (std::holds_alternative<Recv>(op.body)) return fmt::format("<R{}", op.label.micro_batch);
  if (const auto* broadcast = std::get_if<Broadcast>(&op.body)) return fmt::format("BC{}", broadcast->root.value);
  if (on(s, op, "pp.batch")) return forward ? "AGhidden" : "AGgradient";
  if (segment == "hidden") return fmt::format("H{}", op.label.layer);
  if (!std::holds_alternative<Compute>(op.body)) return {};
  if (segment == "inspect") return segment;
  if (segment == "embed" || segment == "head") return segment + (forward ? "" : "'");
  if (forward && segment == "mlp") return fmt::format("F{}", op.label.micro_batch);
  return op.label.phase == Phase::Backward && segment == "attn" ? fmt::format("FB{}", op.label.micro_batch) : "";
}

std::string program_text(const Schedule& s, std::size_t program) {
  std::string text;
  for (const Op& op : s.ops_of(s.programs[program])) {
    if (op.label.phase == Phase::Update) continue;
    const std::string name = name_of_op(s, op);
    if (!name.empty()) text += (text.empty() ? "" : " ") + name;
  }
  return text;
}

std::int64_t alive(const Schedule& s, const Program& program, std::uint32_t op, const CountOfBuffer& counts) {
  const std::vector<Lifetime> lives = lifetimes(s, program);
  std::int64_t sum = 0;
  for (std::size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (!buffer.resident && lives[b].first <= op && op <= lives[b].last) sum += counts(buffer);
  }
  return sum;
}

bool of_block(const Schedule& s, const Buffer& buffer) {
  return buffer.layout.valid() && s.layouts[buffer.layout.value].name.starts_with("layers.");
}

std::string load_program(const Schedule& s) {
  std::string text;
  for (const Op& op : s.ops_of(s.programs[0])) {
    const bool head = op.label.phase == Phase::Backward && s.name(op.label.segment) == "head" && std::holds_alternative<Compute>(op.body);
    const std::string name = head ? "|" : load_name(s, op);
    if (!name.empty()) text += (text.empty() ? "" : " ") + name;
  }
  return text;
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
