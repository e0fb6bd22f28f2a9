#include "exec/kv_store.h"

#include <fmt/format.h>

#include <thread>

#include "schedule/base/error.h"

namespace steptwin {

std::string KvStore::get(const std::string& key, std::chrono::milliseconds limit) {
  wait({key}, limit);
  std::optional<std::string> value = find(key);
  if (!value)
    throw EnvironmentError(EnvironmentError::Kind::Device, fmt::format("the key {} of the store was erased while it was read", key));
  return std::move(*value);
}

void KvStore::wait(const std::vector<std::string>& keys, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!check(keys)) {
    if (std::chrono::steady_clock::now() >= end)
      throw EnvironmentError(EnvironmentError::Kind::Device,
                             fmt::format("the key {} of the store was not set within {} ms", keys.front(), limit.count()));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace steptwin
