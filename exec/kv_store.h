// KvStore: the keys and values through which the processes of a run talk: who is there, NCCL's ids, failures, results, and the data of
// transfers where nothing faster moves it. Values are bytes. No call blocks for longer than a round trip: waiting is polling, so that
// whoever waits can look after other things too. All calls may come from several threads. What fails throws EnvironmentError (Device): the
// store cannot be reached.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace steptwin {

class KvStore {
 public:
  // Some stores take no more than 8 MiB at a time; larger values are cut by whoever sets them.
  static constexpr std::size_t kMostBytes = 1 << 20;

  virtual ~KvStore() = default;
  virtual void set(const std::string& key, std::string_view value) = 0;
  virtual std::optional<std::string> find(const std::string& key) = 0;         // nothing: the key is not there
  virtual bool check(const std::vector<std::string>& keys) = 0;                // all of them are there
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;   // a counter that starts at 0; its new value
  virtual bool set_first(const std::string& key, std::string_view value) = 0;  // false: the key was there, and stays as it is
  virtual void erase(const std::string& key) = 0;

  // As soon as it is there. Throws EnvironmentError (Device) naming the key when the limit has passed.
  std::string get(const std::string& key, std::chrono::milliseconds limit);
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds limit);
};

}  // namespace steptwin
