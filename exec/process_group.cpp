#include "exec/process_group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "exec/peer_failure.h"
#include "schedule/base/error.h"
#include "traces/process_identity.h"

namespace steptwin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kSeparator = PeerFailure::kSeparator;
constexpr const char* kLook = "its own message says why; if it has none, it was killed: by the kernel for want of memory, or by hand";

EnvironmentError device_error(const std::string& text, const std::string& help = {}) {
  return {EnvironmentError::Kind::Device, text, help};
}

std::string key(const char* name, std::uint32_t rank) { return fmt::format("{}/{}", name, rank); }

std::string boot_of(const std::string& identity) { return identity.substr(0, identity.find(' ')); }

std::int64_t steady_ns() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

}  // namespace

ProcessGroup::ProcessGroup(Launch launch, std::unique_ptr<KvStore> store, Limits limits)
    : launch_(std::move(launch)), store_(std::move(store)), limits_(limits), watched_(launch_.world) {}

ProcessGroup::~ProcessGroup() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (lost_.load()) return;
  try {
    send_beat(true);
    if (launch_.serves_store() && !members_.empty()) wait_for_leavers();
  } catch (const std::exception&) {
    // Nobody is left who could be told.
  }
}

void ProcessGroup::wait_for_leavers() {
  const auto end = Clock::now() + limits_.leave;
  for (std::uint32_t r = 1; r < launch_.world; ++r) {
    for (;;) {
      const auto value = store_->find(key("beat", r));
      const auto beat = value ? decode(*value) : std::nullopt;
      if ((beat && beat->left) || is_gone(r) || Clock::now() > end) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

// ---- coming together -----------------------------------------------------------------------------------------------------
void ProcessGroup::join(const std::string& run) {
  const std::string where = fmt::format("{}:{}", launch_.host, launch_.port);
  if (store_->add(key("joining", launch_.rank), 1) != 1)
    throw device_error(fmt::format("another process {} has joined already: a second run uses the store at {}", launch_.rank, where),
                       "give each run its own MASTER_PORT");
  store_->set(key("joined", launch_.rank), fmt::format("{}{}{}{}{}{}{}", host_name(), kSeparator, process_identity(::getpid()), kSeparator,
                                                       ::getpid(), kSeparator, run));
  std::vector<std::string> all;
  for (std::uint32_t r = 0; r < launch_.world; ++r) all.push_back(key("joined", r));
  const auto end = Clock::now() + limits_.join;
  while (!store_->check(all)) {
    if (Clock::now() > end) {
      std::string missing;
      for (std::uint32_t r = 0; r < launch_.world; ++r)
        if (!store_->check({all[r]})) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
      throw device_error(
          fmt::format("of {} processes these have not joined within {} ms: {}", launch_.world, limits_.join.count(), missing),
          "look for their messages; all need the same MASTER_ADDR and MASTER_PORT (here " + where + ")");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  check_members(run);
}

void ProcessGroup::check_members(const std::string& run) {
  std::string lead_runs;
  for (std::uint32_t r = 0; r < launch_.world; ++r) {
    const std::vector<std::string> parts = split_fields(store_->get(key("joined", r), limits_.join), 4);
    members_.push_back({parts[0], parts[1], std::strtoll(parts[2].c_str(), nullptr, 10)});
    if (r == 0) lead_runs = parts[3];
  }
  for (Watched& watched : watched_) watched.heard = Clock::now();
  thread_ = std::thread([this] { live(); });
  if (lead_runs != run)
    throw device_error(fmt::format("process {} was started to run something else than process 0:\n  process 0: {}\n  process {}: {}",
                                   launch_.rank, lead_runs, launch_.rank, run),
                       "start all processes with the same command, files and steptwin");
  compare_clocks("begin", clock_.begin);
  clock_.end = clock_.begin;
}

void ProcessGroup::compare_clocks(const std::string& name, ClockReading& reading) {
  struct Interrupted {};
  const auto look = [this] {
    check();
    if (ending_.load() == Ending::Interrupted) throw Interrupted();
  };
  for (std::uint32_t r = 1; r < launch_.world; ++r) {
    if (shares_clock(r) || (r != launch_.rank && !leads())) continue;
    const std::string k = fmt::format("clock/{}/{}", r, name);
    try {
      if (leads()) {
        answer_clock(*store_, k, steady_ns, look);
      } else {
        reading = ask_clock(*store_, k, steady_ns, look);
      }
    } catch (const Interrupted&) {
      return;
    }
  }
}

void ProcessGroup::compare_clocks_again() { compare_clocks("end", clock_.end); }

bool ProcessGroup::shares_clock(std::uint32_t rank) const { return boot_of(members_[rank].identity) == boot_of(members_[0].identity); }

// ---- failures --------------------------------------------------------------------------------------------------------------
void ProcessGroup::check() const {
  if (!failed_.load()) return;
  std::unique_lock lock(mutex_);
  const PeerFailure failure = PeerFailure::unpack(failure_);
  lock.unlock();
  failure.rethrow();
}

void ProcessGroup::fail(const std::exception_ptr& failure) noexcept {
  try {
    if (!failed_.load()) abort(PeerFailure::of(failure, launch_.rank).pack());
  } catch (...) {
    // The store is gone too: the others notice that themselves.
  }
}

void ProcessGroup::end(Ending ending, const std::string& details) {
  const char kind = ending == Ending::Interrupted ? PeerFailure::kStopped : PeerFailure::kHangs;
  abort(PeerFailure{kind, launch_.rank, {}, details}.pack());
}

std::string ProcessGroup::ending_details() const {
  const std::lock_guard lock(mutex_);
  return details_;
}

void ProcessGroup::abort(const std::string& value) {
  if (store_->set_first("abort", value)) return note_failure(value);
  look_for_abort();
}

void ProcessGroup::note_failure(const std::string& value) {
  const std::lock_guard lock(mutex_);
  if (failed_.load() || ending_.load() != Ending::None) return;
  const PeerFailure failure = PeerFailure::unpack(value);
  if (failure.kind == PeerFailure::kStopped || failure.kind == PeerFailure::kHangs) {
    details_ = failure.text;
    ending_.store(failure.kind == PeerFailure::kStopped ? Ending::Interrupted : Ending::Deadlock);
    return;
  }
  failure_ = value;
  failed_.store(true);
}

// ---- signs of life ---------------------------------------------------------------------------------------------------------
std::string ProcessGroup::encode(const Beat& b) {
  return fmt::format("{} {} {} {} {}\n{}", b.number, b.progress, b.rounds, static_cast<int>(b.activity), b.left ? 1 : 0, b.where);
}

std::optional<ProcessGroup::Beat> ProcessGroup::decode(const std::string& text) {
  std::istringstream words(text);
  Beat beat;
  int activity = 0, left = 0;
  if (!(words >> beat.number >> beat.progress >> beat.rounds >> activity >> left)) return std::nullopt;
  beat.activity = static_cast<Activity>(activity);
  beat.left = left != 0;
  if (const std::size_t end = text.find('\n'); end != std::string::npos) beat.where = text.substr(end + 1);
  return beat;
}

void ProcessGroup::live() {
  try {
    for (;;) {
      send_beat(false);
      look_for_abort();
      for (std::uint32_t r = 0; r < launch_.world && (leads() || r == 0); ++r)
        if (r != launch_.rank) look_after(r);
      if (leads()) look_for_deadlock();
      std::unique_lock lock(mutex_);
      if (stop_.wait_for(lock, limits_.pulse, [this] { return stopping_; })) return;
    }
  } catch (const std::exception& error) {
    lost_.store(true);
    const std::string text = fmt::format("process {} can no longer reach the store: {}", launch_.rank, error.what());
    note_failure(PeerFailure{PeerFailure::kDevice, 0, kLook, text}.pack());
  }
}

void ProcessGroup::send_beat(bool left) {
  std::unique_lock lock(mutex_);
  ++beat_.number;
  beat_.left = left;
  const Beat beat = beat_;
  lock.unlock();
  store_->set(key("beat", launch_.rank), encode(beat));
}

void ProcessGroup::look_for_abort() {
  if (failed_.load() || ending_.load() != Ending::None) return;
  if (const auto value = store_->find("abort")) note_failure(*value);
}

void ProcessGroup::look_after(std::uint32_t rank) {
  Watched& watched = watched_[rank];
  const auto hear = [&] {
    const auto value = store_->find(key("beat", rank));
    const auto beat = value ? decode(*value) : std::nullopt;
    if (!beat || beat->number == watched.last.number) return;
    watched.before = watched.last;
    watched.last = *beat;
    watched.fresh = true;
    watched.heard = Clock::now();
  };
  hear();
  if (watched.last.left) return;
  const bool gone = is_gone(rank);
  if (gone) hear();  // it may have taken leave in between
  if (watched.last.left || (!gone && Clock::now() - watched.heard < limits_.silence)) return;
  const std::string who = fmt::format("pid {} on {}", members_[rank].pid, members_[rank].host);
  const std::string text =
      gone ? fmt::format("it has died ({})", who) : fmt::format("nothing was heard of it for {} ms ({})", limits_.silence.count(), who);
  const std::string& where = watched.last.where;
  abort(PeerFailure{PeerFailure::kDevice, rank, kLook, where.empty() ? text : text + "\n  " + where}.pack());
}

bool ProcessGroup::is_gone(std::uint32_t rank) const {
  const Member& member = members_[rank];
  if (member.identity.empty() || boot_of(member.identity) != boot_of(members_[launch_.rank].identity)) return false;
  return liveness_of(static_cast<pid_t>(member.pid), member.identity) == Liveness::Dead;
}

// ---- hangs -----------------------------------------------------------------------------------------------------------------
void ProcessGroup::report(Activity activity, std::uint64_t progress, const std::function<std::string()>& where) {
  const auto moment = Clock::now();
  const bool tell = moment - told_ > limits_.pulse / 2;  // told_ is the driver's alone
  if (tell) told_ = moment;
  const std::string text = tell ? where() : std::string();
  const std::lock_guard lock(mutex_);
  beat_.activity = activity;
  beat_.progress = progress;
  if (activity == Activity::Waiting) ++beat_.rounds;
  if (tell) beat_.where = text;
}

std::vector<std::string> ProcessGroup::positions() {
  std::vector<std::string> lines;
  for (std::uint32_t r = 0; r < launch_.world; ++r) {
    if (r == launch_.rank) continue;
    const auto value = store_->find(key("beat", r));
    const auto beat = value ? decode(*value) : std::nullopt;
    lines.push_back(beat && !beat->where.empty() ? beat->where : fmt::format("rank {} has not begun", r));
  }
  return lines;
}

// The run hangs when three times in a row every process has sent, since the time before, a sign of life that waited, looked for others in
// vain and got nothing done: the last of them began to wait before all the looks of the third time.
void ProcessGroup::look_for_deadlock() {
  constexpr int kTimes = 3;
  Watched& own = watched_[launch_.rank];
  own.before = own.last;
  {
    const std::lock_guard lock(mutex_);
    own.last = beat_;
  }
  own.fresh = true;
  if (!std::all_of(watched_.begin(), watched_.end(), [](const Watched& w) { return w.fresh; })) return;
  const auto still = [](const Watched& w) {
    if (w.last.activity == Activity::Done) return true;
    return w.last.activity == Activity::Waiting && w.before.activity == Activity::Waiting && w.last.progress == w.before.progress &&
           w.last.rounds > w.before.rounds;
  };
  const bool all_still = std::all_of(watched_.begin(), watched_.end(), still);
  const bool any_waits =
      std::any_of(watched_.begin(), watched_.end(), [](const Watched& w) { return w.last.activity == Activity::Waiting; });
  for (Watched& w : watched_) w.fresh = false;
  quiet_ = all_still && any_waits ? quiet_ + 1 : 0;
  if (quiet_ < kTimes || ending_.load() != Ending::None) return;
  std::string details;
  for (const Watched& w : watched_) details += (details.empty() ? "" : "\n") + w.last.where;
  end(Ending::Deadlock, details);
}

// ---- waiting ---------------------------------------------------------------------------------------------------------------
std::optional<std::string> ProcessGroup::await(const std::string& wanted, const std::atomic<bool>* stop) {
  for (auto pause = std::chrono::microseconds(200);; pause = std::min(2 * pause, std::chrono::microseconds(5000))) {
    if (auto value = store_->find(wanted)) return value;
    check();
    if (ending_.load() == Ending::Interrupted) return std::nullopt;
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) end(Ending::Interrupted);
    std::this_thread::sleep_for(pause);
  }
}

bool ProcessGroup::barrier(const std::string& name, const std::atomic<bool>* stop) {
  const std::string k = "barrier/" + name;
  if (store_->add(k, 1) == static_cast<std::int64_t>(launch_.world)) store_->set(k + "/open", "1");
  return await(k + "/open", stop).has_value();
}

void ProcessGroup::publish(const std::string& wanted, std::string_view value) {
  std::size_t pieces = 0;
  for (std::size_t at = 0; at < value.size(); at += KvStore::kMostBytes)
    store_->set(fmt::format("{}/{}", wanted, pieces++), value.substr(at, KvStore::kMostBytes));
  store_->set(wanted, fmt::format("{}", pieces));
}

std::optional<std::string> ProcessGroup::collect(const std::string& wanted, const std::atomic<bool>* stop) {
  const auto count = await(wanted, stop);
  if (!count) return std::nullopt;
  std::string value;
  for (std::size_t i = 0; i < std::strtoul(count->c_str(), nullptr, 10); ++i) {
    const std::string piece = fmt::format("{}/{}", wanted, i);
    value += store_->get(piece, limits_.silence);
    store_->erase(piece);
  }
  store_->erase(wanted);
  return value;
}

}  // namespace steptwin
