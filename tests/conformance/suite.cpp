#include "tests/conformance/suite.h"

#include <fmt/format.h>

#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"
#include "traces/check_trace.h"

namespace steptwin::test {
namespace {

// Writes the ops of one program, numbering them.
class ProgramText {
 public:
  explicit ProgramText(std::string head) : text_(std::move(head)) {}
  std::uint32_t op(const std::string& clauses) {
    text_ += fmt::format("  {} {}\n", ops_, clauses);
    return ops_++;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::uint32_t ops_ = 0;
};

constexpr const char* kLanes = "  lane run compute\n  lane net network\n  lane back network\n  lane up copy_up\n  lane down copy_down\n";
constexpr const char* kBuffers = R"(  buffer x activation 24B layout l
  buffer y activation 24B layout l
  buffer s activation 8B layout s
  buffer g activation 24B layout l
  buffer h activation pinned 24B layout l
  buffer d activation 24B layout l
  buffer ok 4B layout one
  buffer t param layout l resident
  buffer q activation 24B layout l
  buffer z activation 24B layout l
)";

// Rank 0 reads nothing from behind, the last one sends nothing on.
void pipeline_ops(ProgramText& p, int rank, int ranks) {
  std::string free;  // the compute op that reads x must be done before x is received again
  for (int mb = 0; mb < 2; ++mb) {
    const bool first = rank == 0, last = rank == ranks - 1;
    std::string input, after;
    if (!first) {
      after = fmt::format(" after {}", p.op(fmt::format("recv on pp from -1 dtype fp32 mb{} write x lane net{}", mb, free)));
      input = "read x ";
    }
    const std::uint32_t compute = p.op(fmt::format("compute F stage mb{} {}write y lane run{}", mb, input, after));
    free = fmt::format(" after {}", compute);
    if (!last)
      p.op(fmt::format("host_wait for {}", p.op(fmt::format("send on pp to +1 dtype fp32 mb{} read y lane back after {}", mb, compute))));
  }
}

void collective_ops(ProgramText& p, int rank) {
  const std::uint32_t x = p.op("compute F fill write x lane run");
  const std::uint32_t scatter = p.op(fmt::format("reduce_scatter on world dtype fp32 read x write s lane net after {}", x));
  const std::uint32_t gather = p.op(fmt::format("gather on world dtype fp32 read s write g lane net after {}", scatter));
  const std::uint32_t down = p.op(fmt::format("copy read g write h lane down after {}", gather));
  p.op(fmt::format("host_wait for {}", down));
  const std::uint32_t up = p.op(fmt::format("copy read h write d lane up after {}", down));
  const std::uint32_t root =
      p.op(fmt::format("broadcast on world root 1 dtype fp32 {} d lane net after {}", rank == 1 ? "read" : "write", up));
  const std::uint32_t exchange = p.op(fmt::format("all_to_all on world dtype fp32 read d write q lane net after {}", root));
  const std::uint32_t right = p.op(fmt::format("send on ring to +1 dtype fp32 read q lane net after {} group 0", exchange));
  p.op("recv on ring from -1 dtype fp32 write z lane net group 0");
  const std::uint32_t flag = p.op("compute U flag write ok lane run");
  const std::uint32_t agreed = p.op(fmt::format("all_reduce on world max dtype fp32 update ok lane net after {}", flag));
  const std::uint32_t sum = p.op(fmt::format("compute U add read z write t lane run after {} when ok", agreed));
  p.op(fmt::format("all_reduce on world dtype fp32 update t lane net after {},{} when ok", right, sum));
}

}  // namespace

void Conformance::SetUp() {
  if (!GetParam().reason_to_skip.empty()) GTEST_SKIP() << GetParam().reason_to_skip;
}

ExecutionResult Conformance::run(const Schedule& schedule, std::uint32_t steps) const {
  ExecutionResult result = GetParam().run(schedule, conformance_options(steps));
  EXPECT_EQ(result.trace.outcome.status, Status::Ok) << result.trace.outcome.text;
  for (const Diagnostic& d : check_trace(schedule, result.trace, steps)) ADD_FAILURE() << d.code << " " << d.text;
  return result;
}

void Conformance::expect_t(const ExecutionResult& result, const std::vector<std::vector<float>>& of_rank) const {
  if (!executes()) return;
  ASSERT_EQ(result.parameters.size(), of_rank.size());
  for (std::size_t r = 0; r < of_rank.size(); ++r) EXPECT_EQ(result.parameters[r].at("t"), of_rank[r]) << "rank " << r;
}

ExecuteOptions conformance_options(std::uint32_t steps) {
  ExecuteOptions options;
  options.compute_slots = 2;
  options.steps = steps;
  options.keep_gradients = true;
  return options;
}

Schedule sound_schedule(const std::string& text) {
  Schedule schedule = parse_schedule(text, "conformance");
  for (const Diagnostic& d : verify(schedule))
    if (d.severity == Severity::Error) ADD_FAILURE() << format_diagnostic(d) << "\n" << text;
  return schedule;
}

std::string name_of_row(const testing::TestParamInfo<BackendUnderTest>& row) { return row.param.name; }

std::string one_op_per_rank(std::uint32_t ranks, const std::vector<int>& sizes, const std::string& buffers, const std::string& op) {
  std::string text = fmt::format("mesh pp {}\ncomm c axes pp\n", ranks);
  for (const int size : sizes) text += fmt::format("layout l{}\n  tensor t fp32 {} at 0\n", size, size);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    ProgramText program(fmt::format("program p{} ranks {}\n  lane run compute\n  lane net network\n{}", r, r, buffers));
    for (std::uint32_t k = 0; k < r; ++k) program.op("compute F idle lane run");
    program.op("compute F fill write x lane run");
    program.op(fmt::format("{} lane net after {}", op, r));
    text += program.text();
  }
  return text;
}

Schedule every_kind() {
  constexpr int kRanks = 3;
  std::string text = "mesh pp 3\ncomm pp axes pp\ncomm world axes pp\ncomm ring axes pp\n";
  text += "layout l\n  tensor t fp32 6 at 0\nlayout s\n  tensor s fp32 2 at 0\nlayout one\n  tensor one fp32 1 at 0\n";
  for (int rank = 0; rank < kRanks; ++rank) {
    ProgramText program(fmt::format("program r{} ranks {}\n{}{}", rank, rank, kLanes, kBuffers));
    pipeline_ops(program, rank, kRanks);
    collective_ops(program, rank);
    text += program.text();
  }
  return sound_schedule(text);
}

}  // namespace steptwin::test
