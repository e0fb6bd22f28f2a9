#include "exec/module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <vector>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "libsteptwin_cpu.so";

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

void set_thread_environment() {
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) ::setenv(name, "1", 1);
  if (cpu_has_avx2()) ::setenv("OPENBLAS_CORETYPE", "Haswell", 0);
}

EnvironmentError missing_module() {
  std::string folders;
  for (const fs::path& folder : module_folders()) folders += (folders.empty() ? "" : ", ") + folder.string();
  return {EnvironmentError::Kind::Device, fmt::format("{} was not found in {}: this steptwin was built without LibTorch", kModule, folders),
          "apt install libtorch-dev and build again (cmake finds it), or set STEPTWIN_MODULE_DIR to the folder that holds the module"};
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
  ExecutionResult run_plain(const Schedule& schedule, const ExecuteOptions& options) override {
    return guarded([&] { return inner_.run_plain(schedule, options); });
  }

 private:
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
  Backend& inner_;
};

}  // namespace

std::string cpu_module_path() {
  std::error_code ignored;
  for (const fs::path& folder : module_folders())
    if (fs::exists(folder / kModule, ignored)) return (folder / kModule).string();
  return {};
}

std::unique_ptr<Backend> load_cpu_backend() {
  const std::string path = cpu_module_path();
  if (path.empty()) throw missing_module();
  set_thread_environment();
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr)
    throw EnvironmentError(EnvironmentError::Kind::Device, fmt::format("{} cannot be loaded: {}", path, ::dlerror()),
                           "apt install libtorch-dev (the module needs its libraries), or build again");
  using Entry = Backend* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(module, "steptwin_backend"));
  if (entry == nullptr)
    throw EnvironmentError(EnvironmentError::Kind::Device, fmt::format("{} is no execution module of steptwin", path), "build again");
  return std::make_unique<GuardedBackend>(*entry());
}

}  // namespace steptwin
