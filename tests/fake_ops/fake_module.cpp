// An execution module without LibTorch: the CPU backend on the fake ops. Tests of the command line load it through STEPTWIN_MODULE_DIR.
#include "exec/cpu/execution.h"
#include "exec/ops/compute.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

class FakeBackend final : public Backend {
 public:
  std::string name() const override { return "fake"; }
  std::string environment() const override { return library_versions(); }
  ExecutionResult run(const Schedule& schedule, const ExecuteOptions& options) override { return execute_on_cpu(schedule, options); }
  ExecutionResult run_plain(const Schedule&, const ExecuteOptions&) override {
    throw EnvironmentError(EnvironmentError::Kind::Device, "the fake module has no plain model");
  }
};

}  // namespace
}  // namespace steptwin

extern "C" steptwin::Backend* steptwin_backend() {
  static steptwin::FakeBackend backend;
  return &backend;
}
