// A run of several processes without processes: each is a thread with an execution of its own, and they know of each other only through a
// store.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "exec/cpu/execution.h"
#include "exec/process_group.h"
#include "schedule/base/error.h"

namespace steptwin::test {

struct SharedMap {
  std::mutex mutex;
  std::map<std::string, std::string> values;
  std::atomic<bool> broken{false};  // as if whoever serves it had died
};

class MemoryStore : public KvStore {
  template <class Call>
  auto at(Call call) {
    if (map_->broken) throw EnvironmentError(EnvironmentError::Kind::Device, "connection reset");
    const std::lock_guard lock(map_->mutex);
    return call(map_->values);
  }

 public:
  explicit MemoryStore(std::shared_ptr<SharedMap> map) : map_(std::move(map)) {}
  void set(const std::string& key, std::string_view value) override {
    at([&](auto& values) { values[key] = value; });
  }
  std::optional<std::string> find(const std::string& key) override {
    return at([&](auto& values) { return values.contains(key) ? std::optional(values[key]) : std::nullopt; });
  }
  bool check(const std::vector<std::string>& keys) override {
    return at([&](auto& values) { return std::all_of(keys.begin(), keys.end(), [&](const auto& key) { return values.contains(key); }); });
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return at([&](auto& values) {
      const std::int64_t sum = (values.contains(key) ? std::stoll(values[key]) : 0) + amount;
      values[key] = std::to_string(sum);
      return sum;
    });
  }
  bool set_first(const std::string& key, std::string_view value) override {
    return at([&](auto& values) { return values.emplace(key, value).second; });
  }
  void erase(const std::string& key) override {
    at([&](auto& values) { values.erase(key); });
  }

 private:
  std::shared_ptr<SharedMap> map_;
};

inline constexpr ProcessGroup::Limits kTestLimits{std::chrono::milliseconds(20'000), std::chrono::milliseconds(5'000),
                                                  std::chrono::milliseconds(2)};

inline Launch launch_of(std::uint32_t rank, std::uint32_t world) {
  Launch launch;
  launch.rank = launch.local_rank = rank;
  launch.world = world;
  launch.host = "test";
  return launch;
}

struct ProcessEnd {
  ExecutionResult result;
  std::exception_ptr failure;
};

// One process per rank of the mesh; [process].
using StoreOf = std::function<std::unique_ptr<KvStore>(std::uint32_t process)>;
inline std::vector<ProcessEnd> run_processes(const Schedule& schedule, const ExecuteOptions& options, const StoreOf& store_of) {
  const auto world = static_cast<std::uint32_t>(schedule.mesh.size());
  std::vector<ProcessEnd> ends(world);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      ProcessGroup group(launch_of(rank, world), store_of(rank), kTestLimits);
      try {
        group.join("a test");
        ExecuteOptions own = options;
        own.mode = ExecutionMode::Interp;
        own.group = &group;
        ends[rank].result = execute_on_cpu(schedule, own);
      } catch (...) {
        ends[rank].failure = std::current_exception();
        group.fail(ends[rank].failure);
      }
      try {
        group.barrier("the end");  // as the command line does, so that nobody is missed before all are done
      } catch (const std::exception&) {
        // A failure: all know it.
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

inline std::vector<ProcessEnd> run_processes(const Schedule& schedule, const ExecuteOptions& options, std::shared_ptr<SharedMap> map) {
  return run_processes(schedule, options, [map](std::uint32_t) { return std::make_unique<MemoryStore>(map); });
}

// What process 0 has, or throws.
inline ExecutionResult run_as_processes(const Schedule& schedule, const ExecuteOptions& options) {
  const auto map = std::make_shared<SharedMap>();
  std::vector<ProcessEnd> ends = run_processes(schedule, options, map);
  if (ends.front().failure) std::rethrow_exception(ends.front().failure);
  return std::move(ends.front().result);
}

}  // namespace steptwin::test
