#include "exec/comm/tcp_store.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

using std::chrono::milliseconds;

// Runs calls one after the other on a thread. A call that does not come back is left behind with its thread, which owns all it needs.
class Errands {
 public:
  Errands() : queue_(std::make_shared<Queue>()) {
    std::thread([queue = queue_] { serve(*queue); }).detach();
  }
  ~Errands() {
    const std::lock_guard lock(queue_->mutex);
    queue_->over = true;
    queue_->wake.notify_one();
  }

  // Nothing: it has not come back within the limit.
  template <class Call>
  auto run(Call call, milliseconds limit) -> std::optional<decltype(call())> {
    auto task = std::make_shared<std::packaged_task<decltype(call())()>>(std::move(call));
    auto result = task->get_future();
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->calls.push_back([task] { (*task)(); });
      queue_->wake.notify_one();
    }
    if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
    return result.get();
  }

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<std::function<void()>> calls;
    bool over = false;
  };
  static void serve(Queue& queue) {
    std::unique_lock lock(queue.mutex);
    for (;;) {
      queue.wake.wait(lock, [&] { return queue.over || !queue.calls.empty(); });
      if (queue.calls.empty()) return;
      const auto call = std::move(queue.calls.front());
      queue.calls.pop_front();
      lock.unlock();
      call();
      lock.lock();
    }
  }
  std::shared_ptr<Queue> queue_;
};

// c10's messages carry a backtrace behind the first line.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::vector<std::uint8_t> bytes(std::string_view text) { return {text.begin(), text.end()}; }
std::string text(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

class TcpKvStore final : public KvStore {
 public:
  TcpKvStore(const Launch& launch, milliseconds limit) : prefix_(launch.prefix), place_(fmt::format("{}:{}", launch.host, launch.port)) {
    c10::initLogging();  // reads TORCH_CPP_LOG_LEVEL; Python would have called it
    c10d::TCPStoreOptions options;
    options.port = launch.port;
    options.isServer = launch.serves_store();
    options.waitWorkers = false;  // ProcessGroup::join says who is missing
    options.timeout = limit;
    const auto open = [host = launch.host, options] {
      auto store = options.isServer ? std::make_shared<c10d::TCPStore>(host, options) : connected(host, options);
      store->check({"steptwin"});  // whatever listens there must answer
      return store;
    };
    try {
      const auto opened = errands_.run(open, limit + milliseconds(500));
      if (!opened) throw refusal(fmt::format("no store answers at {} within {} ms", place_, limit.count()), launch);
      store_ = *opened;
    } catch (const EnvironmentError&) {
      throw;
    } catch (const std::exception& error) {
      throw refusal(first_line(error.what()), launch);
    }
    limit_ = std::clamp(limit, milliseconds(10'000), milliseconds(30'000));
  }
  ~TcpKvStore() override {
    const auto close = [store = std::move(store_)]() mutable { return store.reset(), true; };
    try {
      errands_.run(close, milliseconds(2000));  // the server's last act, on the thread that may hang
    } catch (const std::exception&) {
      // It is gone either way.
    }
  }

  void set(const std::string& key, std::string_view value) override {
    call([key = prefix_ + key, value = bytes(value)](c10d::TCPStore& store) { return store.set(key, value), true; });
  }
  std::optional<std::string> find(const std::string& key) override {
    return call([key = prefix_ + key](c10d::TCPStore& store) -> std::optional<std::string> {
      if (!store.check({key})) return std::nullopt;
      return text(store.get(key));
    });
  }
  bool check(const std::vector<std::string>& keys) override {
    std::vector<std::string> full;
    for (const std::string& key : keys) full.push_back(prefix_ + key);
    return call([full = std::move(full)](c10d::TCPStore& store) { return store.check(full); });
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return call([key = prefix_ + key, amount](c10d::TCPStore& store) { return store.add(key, amount); });
  }
  bool set_first(const std::string& key, std::string_view value) override {
    return call([key = prefix_ + key, value = bytes(value)](c10d::TCPStore& store) { return store.compareSet(key, {}, value) == value; });
  }
  void erase(const std::string& key) override {
    call([key = prefix_ + key](c10d::TCPStore& store) { return store.deleteKey(key); });
  }

 private:
  // TCPStore looks again after a second where nobody serves it yet; short attempts are sooner there.
  static std::shared_ptr<c10d::TCPStore> connected(const std::string& host, c10d::TCPStoreOptions options) {
    const milliseconds limit = options.timeout;
    const auto end = std::chrono::steady_clock::now() + limit;
    for (options.timeout = milliseconds(200);; options.timeout = std::min(2 * options.timeout, limit)) {
      try {
        auto store = std::make_shared<c10d::TCPStore>(host, options);
        store->setTimeout(limit);
        return store;
      } catch (const std::exception&) {
        if (std::chrono::steady_clock::now() > end) throw;
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
  }

  EnvironmentError refusal(const std::string& reason, const Launch& launch) const {
    if (launch.serves_store())
      return {EnvironmentError::Kind::Device, fmt::format("process 0 cannot serve the store of the run at {}: {}", place_, reason),
              "set MASTER_PORT, alike for all processes, to a free port of this host"};
    const std::string text = fmt::format("process {} cannot reach the store of the run: {}", launch.rank, reason);
    if (launch.agent_store)
      return {
          EnvironmentError::Kind::Device, text,
          fmt::format(
              "torchrun serves it at {}; if that is of another LibTorch, start `env TORCHELASTIC_USE_AGENT_STORE=False MASTER_PORT=PORT "
              "steptwin ...` with it, with a free port of process 0's host",
              place_)};
    return {EnvironmentError::Kind::Device, text,
            fmt::format("process 0 serves it at {} (MASTER_ADDR:MASTER_PORT): its own message says why it does not", place_)};
  }

  template <class Call>
  auto call(Call call) -> decltype(call(std::declval<c10d::TCPStore&>())) {
    try {
      auto result = errands_.run([store = store_, call = std::move(call)] { return call(*store); }, limit_);
      if (result) return std::move(*result);
    } catch (const std::exception& error) {
      throw EnvironmentError(EnvironmentError::Kind::Device,
                             fmt::format("the store of the run at {} is lost: {}", place_, first_line(error.what())),
                             "process 0 serves it: its own message says why it ended");
    }
    throw EnvironmentError(EnvironmentError::Kind::Device,
                           fmt::format("the store of the run at {} has not answered for {} ms", place_, limit_.count()),
                           "process 0 serves it: look for its message, or whether its host can still be reached");
  }

  const std::string prefix_, place_;
  milliseconds limit_{0};
  Errands errands_;
  std::shared_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::unique_ptr<KvStore> tcp_store(const Launch& launch, std::chrono::milliseconds limit) {
  return std::make_unique<TcpKvStore>(launch, limit);
}

}  // namespace steptwin
