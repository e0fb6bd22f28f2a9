#include "tests/torch/execution_case.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <stdexcept>
#include <tuple>

#include "exec/gradient_check.h"
#include "exec/module.h"
#include "schedule/base/data_dir.h"
#include "schedule/ir/liveness.h"
#include "schedule/ir/verify.h"
#include "schedule/json/json_reader.h"
#include "traces/check_trace.h"

namespace steptwin::test {
namespace {

constexpr const char* kGpt = R"("family": "gpt", "positions": 32)";
constexpr const char* kLlama = R"("family": "llama", "kv_heads": 2, "ffn": 112)";

// Bits, not values: 0 and -0 differ, a NaN equals itself.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_same_values(const NamedValues& a, const NamedValues& b, const std::string& what) {
  EXPECT_EQ(a.size(), b.size()) << what;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    ASSERT_NE(other, b.end()) << what << " " << name;
    EXPECT_TRUE(same_bits(values, other->second)) << what << " " << name;
  }
}

using OpOfRank = std::pair<std::uint32_t, std::uint32_t>;
std::set<OpOfRank> ops_of_step(const Trace& trace, std::uint32_t step) {
  std::set<OpOfRank> found;
  for (const Span& span : trace.spans) {
    if (span.step != step) continue;
    EXPECT_TRUE(found.emplace(span.rank.value, span.op.value).second) << "two spans of op " << span.op.value;
  }
  return found;
}

// Of every rank of the mesh, by way of the rank that stands for it.
std::set<OpOfRank> unfolded(const Trace& trace, std::uint32_t step) {
  const std::set<OpOfRank> simulated = ops_of_step(trace, step);
  std::set<OpOfRank> found;
  for (std::uint32_t rank = 0; rank < trace.stand_in.size(); ++rank) {
    for (const auto& [stand_in, op] : simulated)
      if (trace.stand_in[rank].valid() && trace.stand_in[rank].value == stand_in) found.emplace(rank, op);
  }
  return found;
}

// (rank, space) -> bytes, op, categories of the highest point of `allocated`.
auto allocated_peaks(const Trace& trace) {
  std::map<std::pair<std::uint32_t, Space>, std::tuple<std::int64_t, OpId, std::array<Bytes, kCategories>>> peaks;
  for (const MemoryPeak& peak : trace.peaks)
    if (peak.curve == Curve::Allocated) peaks[{peak.rank.value, peak.space}] = {peak.bytes.value, peak.op, peak.by_category};
  return peaks;
}

void expect_predicted_curve(const Schedule& schedule, const ExecutionResult& run, std::size_t index) {
  const RankId rank = run.trace.simulated[index];
  const Program& program = schedule.programs[schedule.program_of_rank()[rank.value].value];
  for (std::size_t space = 0; space < kSpaces; ++space) {
    const std::vector<Bytes> curve = allocated_curve(schedule, program, static_cast<Space>(space), Repetition::First);
    const std::vector<std::int64_t>& measured = run.allocated[space][index];
    ASSERT_EQ(measured.size(), curve.size());
    for (std::size_t op = 0; op < curve.size(); ++op)
      ASSERT_EQ(measured[op], curve[op].value) << "space " << space << " rank " << rank.value << " op " << op;
  }
}

}  // namespace

std::string ExecutionCase::name() const {
  std::string text = fmt::format("{}_{}_pp{}_dp{}_m{}", order, recompute, pp, dp, micro_batches);
  if (compute != "fp32") text += "_" + compute;
  for (const Override& o : overrides) text += "_" + o.path + "_" + o.value;
  for (char& c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return text;
}

void PrintTo(const ExecutionCase& c, std::ostream* out) { *out << scenario_text(c) << ' ' << c.name(); }

std::string scenario_text(const ExecutionCase& c) {
  return fmt::format(
      R"({{"format": 1, "name": "matrix",
 "model": {{{}, "layers": 4, "hidden": 64, "heads": 4, "vocabulary": 96, "tied": {}}},
 "mesh": {{"pp": {}, "dp": {}}},
 "batch": {{"micro_batches": {}, "micro_batch_size": 2, "sequence_length": 24}},
 "precision": {{"compute": "{}", "master": "fp32", "gradient": "fp32"}},
 "schedule": {{"order": "{}"}}, "recompute": {{"mode": "{}"}}, "optimizer": {{"kind": "{}"}}, "machine": {{"preset": "cpu"}}}})",
      c.family == "gpt" ? kGpt : kLlama, c.tied, c.pp, c.dp, c.micro_batches, c.compute, c.order, c.recompute, c.optimizer);
}

std::vector<ExecutionCase> all_cases(const std::string& family, bool tied) {
  std::vector<ExecutionCase> cases;
  for (const char* order : {"gpipe", "1f1b"})
    for (const char* recompute : {"none", "full"})
      for (const int pp : {1, 2, 4})
        for (const int dp : {1, 2})
          for (const int micro_batches : {1, 4, 7}) cases.push_back({family, tied, order, recompute, pp, dp, micro_batches});
  return cases;
}

Rehearsal prepared(const ExecutionCase& c, std::uint32_t steps) {
  SimulateOptions options;
  options.steps = steps > 1 ? 2 : 1;
  Rehearsal rehearsal = rehearse(scenario_text(c), c.overrides, options);
  for (const Diagnostic& problem : verify(rehearsal.schedule)) throw std::runtime_error(problem.code + " " + problem.text);
  if (rehearsal.trace.outcome.status != Status::Ok) throw std::runtime_error(rehearsal.trace.outcome.text);
  return rehearsal;
}

Backend& backend() {
  static const std::unique_ptr<Backend> loaded = load_cpu_backend();
  return *loaded;
}

ExecuteOptions execute_options(std::uint32_t steps, ExecutionMode mode) {
  static const std::string text = read_text_file(data_dir() + "/scenarios/text/rehearsal.txt");
  ExecuteOptions options;
  options.mode = mode;
  options.compute_slots = mode == ExecutionMode::Threads ? 2 : 1;
  options.steps = steps;
  options.text.assign(text.begin(), text.end());
  options.deadline = std::chrono::minutes(2);  // a hang is a failure, not a time-out of the test
  options.keep_gradients = true;
  return options;
}

const ExecutionResult& plain_run(const ExecutionCase& c, std::uint32_t steps, std::uint32_t warm_up) {
  static std::map<std::string, ExecutionResult> kept;
  ExecutionCase plain = c;
  if (std::any_of(c.overrides.begin(), c.overrides.end(), [](const Override& o) { return o.path == "pipeline"; })) plain.dp *= c.pp;
  plain.order = "gpipe", plain.recompute = "none", plain.pp = 1;
  std::erase_if(plain.overrides, [](const Override& o) { return !o.path.starts_with("optimizer.") && !o.path.starts_with("model."); });
  const std::string text = scenario_text(plain);
  std::string key = fmt::format("{} {} {}", text, steps, warm_up);
  for (const Override& o : plain.overrides) key += fmt::format(" {}={}", o.path, o.value);
  const auto found = kept.find(key);
  if (found != kept.end()) return found->second;
  ExecuteOptions options = execute_options(steps);
  options.warm_up = warm_up;
  return kept[key] = backend().run_plain(rehearse(text, plain.overrides).schedule, options);
}

void expect_order(const Rehearsal& prediction, const ExecutionResult& run, std::uint32_t steps) {
  EXPECT_EQ(run.trace.outcome.status, Status::Ok) << run.trace.outcome.text;
  for (const Diagnostic& d : check_trace(prediction.schedule, run.trace, steps)) ADD_FAILURE() << "measured: " << d.code << " " << d.text;
  for (const Diagnostic& d : check_trace(prediction.schedule, prediction.trace, std::min(steps, 2u)))
    ADD_FAILURE() << "predicted: " << d.code << " " << d.text;
}

void expect_every_op_matched(const Rehearsal& prediction, const ExecutionResult& run, std::uint32_t steps) {
  std::size_t ops = 0;
  for (const Program& program : prediction.schedule.programs) ops += program.ranks.size() * program.op_count;
  const std::set<OpOfRank> predicted = unfolded(prediction.trace, std::min(steps, 2u) - 1);
  EXPECT_EQ(predicted.size(), ops);
  for (std::uint32_t step = 0; step < steps; ++step) EXPECT_EQ(ops_of_step(run.trace, step), predicted) << "step " << step;
}

void expect_predicted_memory(const Rehearsal& prediction, const ExecutionResult& run) {
  const Schedule& schedule = prediction.schedule;
  ASSERT_EQ(run.allocated[0].size(), schedule.mesh.size());
  ASSERT_EQ(run.trace.simulated.size(), schedule.mesh.size());
  for (std::size_t i = 0; i < run.allocated[0].size(); ++i) expect_predicted_curve(schedule, run, i);
  const auto predicted = allocated_peaks(prediction.trace), measured = allocated_peaks(run.trace);
  std::size_t expected = 0;  // a rank need not use every space
  for (const RankId stand_in : prediction.trace.stand_in)
    for (const auto& [place, peak] : predicted) expected += place.first == stand_in.value ? 1 : 0;
  ASSERT_EQ(measured.size(), expected);
  for (const auto& [place, peak] : measured) {
    const auto found = predicted.find({prediction.trace.stand_in[place.first].value, place.second});
    ASSERT_NE(found, predicted.end());
    EXPECT_TRUE(found->second == peak) << "rank " << place.first << ": peak of " << std::get<0>(peak) << " at op "
                                       << std::get<1>(peak).value << ", predicted " << std::get<0>(found->second) << " at op "
                                       << std::get<1>(found->second).value;
  }
}

void expect_equal_copies(const Rehearsal& prediction, const ExecutionResult& run) {
  const Mesh& mesh = prediction.schedule.mesh;
  ASSERT_EQ(run.parameters.size(), mesh.size());
  NamedValues seen;
  for (const NamedValues& rank : run.parameters) {
    for (const auto& [name, values] : rank) {
      const bool tied_copy = name == "head.weight" && prediction.scenario.model.tied;
      const auto [first, fresh] = seen.emplace(tied_copy ? "embed.token.weight" : name, values);
      EXPECT_TRUE(fresh || same_bits(first->second, values)) << name;
    }
  }
}

void expect_as_predicted(const Rehearsal& prediction, const ExecutionResult& run, std::uint32_t steps) {
  expect_order(prediction, run, steps);
  expect_every_op_matched(prediction, run, steps);
  expect_predicted_memory(prediction, run);
  expect_equal_copies(prediction, run);
}

void expect_plain_results(const Rehearsal& prediction, const ExecutionResult& run, const ExecutionResult& plain) {
  const GradientCheck check = check_against_plain(prediction.schedule, run, plain);
  EXPECT_TRUE(check.holds) << check.problem;
  EXPECT_EQ(check.tensors, run.gradients.size());
  EXPECT_EQ(run.losses.size(), plain.losses.size());
}

void expect_close_to_fp32(const Rehearsal& prediction, const ExecutionResult& run, const ExecutionCase& c, std::uint32_t steps) {
  ExecutionCase wide = c;
  wide.compute = "fp32";
  const ExecutionResult &narrow = plain_run(c, steps), &reference = plain_run(wide, steps);
  const GradientCheck check = check_against_plain_16bit(prediction.schedule, run, narrow, reference);
  EXPECT_TRUE(check.holds) << check.problem;
}

void expect_same_bits(const ExecutionResult& a, const ExecutionResult& b) {
  ASSERT_FALSE(a.gradients.empty());
  ASSERT_EQ(a.losses.size(), b.losses.size());
  EXPECT_EQ(std::memcmp(a.losses.data(), b.losses.data(), a.losses.size() * sizeof(double)), 0);
  expect_same_values(a.gradients, b.gradients, "gradient");
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (std::size_t rank = 0; rank < a.parameters.size(); ++rank)
    expect_same_values(a.parameters[rank], b.parameters[rank], fmt::format("rank {} parameter", rank));
}

}  // namespace steptwin::test
