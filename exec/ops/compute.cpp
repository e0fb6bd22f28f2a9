#include "exec/ops/compute.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Logging.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "exec/ops/segments.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

struct Row {
  std::string_view segment;
  Phase phase;
  void (*run)(Operands&);
};

// What can be executed. A recomputed forward is the forward.
constexpr Row kRows[] = {
    {"embed", Phase::Forward, embedding_forward},
    {"embed", Phase::Recompute, embedding_forward},
    {"embed", Phase::Backward, embedding_backward},
    {"embed", Phase::WeightGrad, embedding_backward},
    {"attn", Phase::Forward, [](Operands& o) { half_layer_forward(Half::Attention, o); }},
    {"attn", Phase::Recompute, [](Operands& o) { half_layer_forward(Half::Attention, o); }},
    {"attn", Phase::Backward, [](Operands& o) { half_layer_backward(Half::Attention, o); }},
    {"attn", Phase::InputGrad, [](Operands& o) { half_layer_input_grad(Half::Attention, o); }},
    {"attn", Phase::WeightGrad, [](Operands& o) { half_layer_weight_grad(Half::Attention, o); }},
    {"mlp", Phase::Forward, [](Operands& o) { half_layer_forward(Half::Mlp, o); }},
    {"mlp", Phase::Recompute, [](Operands& o) { half_layer_forward(Half::Mlp, o); }},
    {"mlp", Phase::Backward, [](Operands& o) { half_layer_backward(Half::Mlp, o); }},
    {"mlp", Phase::InputGrad, [](Operands& o) { half_layer_input_grad(Half::Mlp, o); }},
    {"mlp", Phase::WeightGrad, [](Operands& o) { half_layer_weight_grad(Half::Mlp, o); }},
    {"head", Phase::Forward, head_forward},
    {"head", Phase::Recompute, head_forward},
    {"head", Phase::Backward, head_backward},
    {"head", Phase::InputGrad, head_input_grad},
    {"head", Phase::WeightGrad, head_weight_grad},
    {"adam", Phase::Update, adam},
    {"fill", Phase::None, fill},
    {"accumulate", Phase::None, accumulate},
    {"check", Phase::None, check_finite},
    {"decide", Phase::None, decide},
    {"inspect", Phase::None, inspect},
    {"norm", Phase::Update, add_squares},
    {"factor", Phase::Update, scale_factor},
    {"rescale", Phase::Update, rescale},
    {"scale", Phase::Update, scale},
};

using SegmentFunction = void (*)(Operands&);

SegmentFunction function_of(const Schedule& schedule, OpId op, const Operands& operands) {
  const auto* compute = std::get_if<Compute>(&schedule.ops[op.value].body);
  if (compute == nullptr) operands.fail("it is not a compute op");
  if (compute->part_count != 1) operands.fail(fmt::format("it has {} parts; one is executed at a time", compute->part_count));
  const ComputePart& part = schedule.parts_of(*compute).front();
  for (const Row& row : kRows) {
    if (row.phase == part.phase && row.segment == schedule.name(part.segment)) return row.run;
  }
  operands.fail(fmt::format("no layer does phase {} of segment {}", name_of(part.phase), schedule.name(part.segment)),
                "segments: embed, attn, mlp, head (F, R, B, I, W), adam, norm, factor, rescale, scale (U), fill, accumulate, check, decide and inspect");
}

// A text of the BLAS that LibTorch is linked with; empty when it is not OpenBLAS.
std::string openblas(const char* symbol) {
  using Get = char* (*)();
  const auto get = reinterpret_cast<Get>(dlsym(RTLD_DEFAULT, symbol));
  return get == nullptr ? std::string() : std::string(get());
}

// "AVX2", "AVX512", ...: a line of the build summary, the one place where every version says it.
std::string cpu_capability() {
  constexpr std::string_view kLine = "CPU capability usage: ";
  const std::string summary = at::show_config();
  const std::size_t at = summary.find(kLine);
  if (at == std::string::npos) return {};
  return summary.substr(at + kLine.size(), summary.find('\n', at) - at - kLine.size());
}

}  // namespace

void run_compute(const Schedule& schedule, const Program&, OpId op, std::span<const BoundAccess> accesses, const StepContext& step) {
  Operands operands(schedule, op, accesses, step);
  const SegmentFunction run = function_of(schedule, op, operands);
  const c10::InferenceMode no_autograd(true);
  try {
    run(operands);
  } catch (const c10::Error& error) {
    operands.fail(fmt::format("LibTorch: {}", error.what_without_backtrace()));
  }
}

std::string library_versions() {
  return fmt::format(R"({{"torch":"{}","cpu_capability":"{}","intra_op_threads":{},"openblas":"{}","openblas_core":"{}"}})", TORCH_VERSION,
                     cpu_capability(), at::get_num_threads(), openblas("openblas_get_config"), openblas("openblas_get_corename"));
}

void set_up_library(Determinism determinism) {
  c10::initLogging();  // reads TORCH_CPP_LOG_LEVEL, which only Python programs do by themselves
  at::set_num_threads(1);  // of the calling thread; worker threads follow OMP_NUM_THREADS, which is set before the module is loaded
  at::globalContext().setDeterministicAlgorithms(determinism == Determinism::Bitwise, false);
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 2)
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // its fills cost time and hide nothing here
#endif
}

}  // namespace steptwin
