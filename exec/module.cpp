#include "exec/module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <vector>

#include "exec/kv_store.h"
#include "exec/launch.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

namespace fs = std::filesystem;

// A row per backend: its module, and how to get it.
struct ModuleRow {
  BackendKind kind;
  const char* file;
  const char* library;
  const char* remedy;
};
constexpr ModuleRow kModules[] = {
    {BackendKind::Cpu, "libsteptwin_cpu.so", "LibTorch", "apt install libtorch-dev and build again (cmake finds it)"},
    {BackendKind::Cuda, "libsteptwin_cuda.so", "CUDA",
     "install the CUDA 13 toolkit, NCCL and a torch wheel with CUDA (pip install torch==2.11.0), and build again with -DSTEPTWIN_CUDA=ON"},
};
const ModuleRow& row_of(BackendKind kind) { return kModules[static_cast<std::size_t>(kind)]; }

std::vector<fs::path> module_folders() {
  if (const char* stated = std::getenv("STEPTWIN_MODULE_DIR"); stated != nullptr && *stated != '\0') return {stated};
  std::error_code failure;
  const fs::path folder = fs::read_symlink("/proc/self/exe", failure).parent_path();
  if (failure) return {};
  return {folder, folder.parent_path() / "lib" / "steptwin"};
}

bool cpu_has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0;
#else
  return false;
#endif
}

bool cpu_has_avx512_core() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
#else
  return false;
#endif
}

// oneDNN's names of what is not below AVX512_CORE; letters of either case.
bool is_below_avx512_core(std::string isa) {
  std::transform(isa.begin(), isa.end(), isa.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  for (const char* const enough : {"AVX512_CORE", "AVX10", "ALL", "DEFAULT"})
    if (isa.starts_with(enough)) return false;
  return true;
}

// One code path for all runs on a machine: bf16 products add up in another order below AVX512_CORE.
void raise_onednn_isa() {
  for (const char* const name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    const char* const stated = std::getenv(name);
    if (stated != nullptr && is_below_avx512_core(stated)) ::setenv(name, "AVX512_CORE", 1);
  }
}

void set_environment(BackendKind kind) {
  if (cpu_has_avx512_core()) raise_onednn_isa();
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) ::setenv(name, "1", 1);
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);
  if (cpu_has_avx2()) ::setenv("OPENBLAS_CORETYPE", "Haswell", 0);
  if (kind != BackendKind::Cuda) return;
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

EnvironmentError missing_module(const ModuleRow& row) {
  std::string folders;
  for (const fs::path& folder : module_folders()) folders += (folders.empty() ? "" : ", ") + folder.string();
  const char* const stated = std::getenv("STEPTWIN_MODULE_DIR");
  if (stated != nullptr && *stated != '\0')
    return {EnvironmentError::Kind::Device, fmt::format("{} was not found in {}, where STEPTWIN_MODULE_DIR says it is", row.file, folders),
            fmt::format("unset STEPTWIN_MODULE_DIR to use the module beside steptwin; if there is none: {}", row.remedy)};
  return {EnvironmentError::Kind::Device,
          fmt::format("{} was not found in {}: this steptwin was built without {}", row.file, folders, row.library),
          fmt::format("{}, or set STEPTWIN_MODULE_DIR to the folder that holds the module", row.remedy)};
}

class GuardedBackend final : public Backend {
 public:
  explicit GuardedBackend(Backend& inner) : inner_(inner) {}
  std::string name() const override {
    return guarded([this] { return inner_.name(); });
  }
  std::string environment() const override {
    return guarded([this] { return inner_.environment(); });
  }
  ExecutionResult run(const Schedule& schedule, const ExecuteOptions& options) override {
    return guarded([&] { return inner_.run(schedule, options); });
  }
  std::vector<RunFact> probe() override {
    return guarded([this] { return inner_.probe(); });
  }
  ExecutionResult run_plain(const Schedule& schedule, const ExecuteOptions& options) override {
    return guarded([&] { return inner_.run_plain(schedule, options); });
  }
  std::unique_ptr<KvStore> connect(const Launch& launch, std::chrono::milliseconds limit) override {
    return guarded([&] { return inner_.connect(launch, limit); });
  }

  template <class Call>
  static auto guarded(Call call) -> decltype(call()) {
    try {
      return call();
    } catch (const EnvironmentError& error) {
      throw EnvironmentError(error.kind(), error.what(), error.help());
    } catch (const InternalError& error) {
      throw InternalError(error.what());
    } catch (const std::bad_alloc&) {
      throw EnvironmentError(EnvironmentError::Kind::Memory, "this computer has no memory left for this execution",
                             "a smaller model or batch, or fewer ranks");
    } catch (const std::exception& error) {
      throw EnvironmentError(EnvironmentError::Kind::Device, error.what());
    }
  }

 private:
  Backend& inner_;
};

}  // namespace

std::string module_path(BackendKind kind) {
  std::error_code ignored;
  for (const fs::path& folder : module_folders())
    if (fs::exists(folder / row_of(kind).file, ignored)) return (folder / row_of(kind).file).string();
  return {};
}

std::unique_ptr<Backend> load_backend(BackendKind kind) {
  const std::string path = module_path(kind);
  if (path.empty()) throw missing_module(row_of(kind));
  set_environment(kind);
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr)
    throw EnvironmentError(EnvironmentError::Kind::Device, fmt::format("{} cannot be loaded: {}", path, ::dlerror()),
                           fmt::format("the module needs the libraries it was built with: {}", row_of(kind).remedy));
  using Entry = Backend* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(module, "steptwin_backend"));
  if (entry == nullptr)
    throw EnvironmentError(EnvironmentError::Kind::Device, fmt::format("{} is no execution module of steptwin", path), "build again");
  return std::make_unique<GuardedBackend>(*GuardedBackend::guarded(entry));
}

}  // namespace steptwin
