// The processes of one run, as one of them sees them: who takes part, whether all still go on, how a failure of one becomes known to all.
// A thread of its own sends a sign of life a few times a second and looks after the others: process 0 after all, the others after process
// 0. A process of this host that has died is found at once, one elsewhere when it has not been heard of for Limits::silence; a lost store
// counts as the loss of process 0. Whatever fails first is what every process reports. Keys (behind the prefix of the launch): joined/R,
// beat/R, abort, barrier/NAME, clock/R/..., and what users of store() add.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exec/kv_store.h"
#include "exec/launch.h"
#include "exec/shared_clock.h"

namespace steptwin {

class ProcessGroup {
 public:
  struct Limits {
    std::chrono::milliseconds join{60'000};     // for all to come
    std::chrono::milliseconds silence{10'000};  // who is not heard of for so long is dead
    std::chrono::milliseconds pulse{250};
    std::chrono::milliseconds leave{5'000};  // who serves the store stays so long for those that have not left
  };
  // How all processes end a run that nothing has failed in.
  enum class Ending : std::uint8_t { None, Interrupted, Deadlock };
  // Waiting: for other processes alone. Done: has no more to do in this run.
  enum class Activity : std::uint8_t { Working, Waiting, Done };

  ProcessGroup(Launch launch, std::unique_ptr<KvStore> store, Limits limits);
  // Takes leave; who serves the store does so last, when all others have gone (or Limits::leave has passed).
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  const Launch& launch() const { return launch_; }
  bool leads() const { return launch_.rank == 0; }
  KvStore& store() { return *store_; }

  // Waits until all are there. `run`: what this process is about to run; all must say the same. Throws EnvironmentError (Device).
  void join(const std::string& run);

  // Throws what another process has failed of: EnvironmentError or InternalError as there, "process R failed: ...". Costs nothing: call
  // often.
  void check() const;
  // For catch blocks: tells all others what this process fails of, unless it is the failure of another one. Keeps quiet about errors.
  void fail(const std::exception_ptr& failure) noexcept;
  // Ends the run of all processes so; the first ending counts.
  void end(Ending ending, const std::string& details = {});
  Ending ending() const { return ending_.load(); }
  std::string ending_details() const;  // where the ranks stood, a line each

  // What the driver does now. progress: grows with everything that it gets done. where: lines that say where its ranks stand; called now
  // and then. From processes that all wait and get nothing done process 0 concludes that the run hangs (Ending::Deadlock).
  void report(Activity activity, std::uint64_t progress, const std::function<std::string()>& where);
  std::vector<std::string> positions();  // where the ranks of the other processes stood last

  // As soon as the key is there. Nothing: the run was interrupted, or `stop` was set (which then ends the run of all). Throws as check().
  std::optional<std::string> await(const std::string& key, const std::atomic<bool>* stop = nullptr);
  bool barrier(const std::string& name, const std::atomic<bool>* stop = nullptr);                       // false: as nothing of await
  void publish(const std::string& key, std::string_view value);                                         // of any size: read it with collect
  std::optional<std::string> collect(const std::string& key, const std::atomic<bool>* stop = nullptr);  // waits, reads and erases

  // This process' clock (std::chrono::steady_clock, ns) against that of process 0.
  const ClockMap& clock() const { return clock_; }
  void compare_clocks_again();  // at the end of the run, by all processes
  struct Member {
    std::string host, identity;
    std::int64_t pid = 0;
  };
  const Member& member(std::uint32_t rank) const { return members_[rank]; }

 private:
  struct Beat {
    std::uint64_t number = 0, progress = 0, rounds = 0;
    Activity activity = Activity::Working;
    bool left = false;
    std::string where;
  };
  struct Watched {
    Beat last, before;
    std::chrono::steady_clock::time_point heard;
    bool fresh = false;  // `last` has come since look_for_deadlock looked
  };
  static std::string encode(const Beat& beat);
  static std::optional<Beat> decode(const std::string& text);
  void check_members(const std::string& run);
  void compare_clocks(const std::string& name, ClockReading& reading);
  bool shares_clock(std::uint32_t rank) const;
  void live();
  void send_beat(bool left);
  void look_for_abort();
  void look_after(std::uint32_t rank);
  bool is_gone(std::uint32_t rank) const;
  void look_for_deadlock();
  void abort(const std::string& value);
  void note_failure(const std::string& value);
  void wait_for_leavers();

  const Launch launch_;
  const std::unique_ptr<KvStore> store_;
  const Limits limits_;
  std::vector<Member> members_;
  ClockMap clock_;
  std::atomic<Ending> ending_{Ending::None};
  std::atomic<bool> failed_{false}, lost_{false};
  mutable std::mutex mutex_;  // guards what follows
  std::string failure_;       // as in the key abort
  std::string details_;
  Beat beat_;
  bool stopping_ = false;
  std::condition_variable stop_;
  std::chrono::steady_clock::time_point told_{};  // of the driver alone: when `where` was asked last
  std::vector<Watched> watched_;                  // of the thread alone, as is quiet_
  int quiet_ = 0;
  std::thread thread_;
};

}  // namespace steptwin
