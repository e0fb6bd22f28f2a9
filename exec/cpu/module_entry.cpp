// The door of the CPU execution module.
#include "exec/comm/tcp_store.h"
#include "exec/cpu/execution.h"
#include "exec/cpu/plain_model.h"
#include "exec/cpu/workspace_meter.h"
#include "exec/environment_json.h"

namespace steptwin {
namespace {

// The switches in force, then what the libraries say of themselves.
std::string environment_json() {
  return "{\"variables\": " +
         environment_variables_json({"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "ONEDNN_MAX_CPU_ISA",
                                     "DNNL_MAX_CPU_ISA"}) +
         ", \"library\": " + library_versions() + "}";
}

class CpuBackend final : public Backend {
 public:
  CpuBackend() {
    install_workspace_meter();
    set_up_library(Determinism::Bitwise);
  }
  std::string name() const override { return "cpu"; }
  std::string environment() const override { return environment_json(); }
  ExecutionResult run(const Schedule& schedule, const ExecuteOptions& options) override {
    reset_workspace_peak();
    ExecutionResult result = execute_on_cpu(schedule, options);
    result.workspace_peak = workspace_peak();
    result.environment_json = environment_json();
    return result;
  }
  std::unique_ptr<KvStore> connect(const Launch& launch, std::chrono::milliseconds limit) override { return tcp_store(launch, limit); }
  ExecutionResult run_plain(const Schedule& schedule, const ExecuteOptions& options) override { return run_plain_model(schedule, options); }
};

}  // namespace
}  // namespace steptwin

extern "C" steptwin::Backend* steptwin_backend() {
  static steptwin::CpuBackend backend;
  return &backend;
}
