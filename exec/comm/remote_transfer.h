// One transfer whose members several processes run, over their store: every member puts what it gives under a key, whoever needs it reads
// it, and the data of a collective is put together in each process by communicate(), so bits are those of one process. A message is a
// rendezvous: it ends for the sender when the receiver has read and erased it. The last reader of a collective erases it. Not fast: for
// runs without a GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/comm/local.h"
#include "exec/kv_store.h"

namespace steptwin {

class RemoteTransfer {
 public:
  struct Member {
    std::uint32_t number = 0;  // on the communicator; of a message 0: the sender, 1: the receiver
    MemberMemory memory;
  };
  enum class Work : std::uint8_t { Move, MeetOnly };  // MeetOnly: the guard says no

  // Puts what the present members give under keys that begin with `key`: the same at all members, and no other transfer's. `members`: of
  // the whole op. `body` and what the memories view must live until the end. Throws EnvironmentError (Device).
  RemoteTransfer(KvStore& store, std::string key, const OpBody& body, std::uint32_t members, std::vector<Member> present, Work work);
  // True once: the data of the present members has moved. Does not wait.
  bool try_finish();

 private:
  bool is_message() const;
  const Member* find(std::uint32_t number) const;
  std::int64_t given(std::uint32_t number) const;  // bytes
  std::string member_key(std::uint32_t number) const;
  void put(const Member& member);
  std::string fetch(std::uint32_t number);
  void erase(std::uint32_t number);
  void move(std::vector<std::string>& fetched);

  KvStore& store_;
  const std::string key_;
  const OpBody& body_;
  const std::uint32_t members_;
  std::vector<Member> present_;
  const Work work_;
  std::vector<std::string> awaited_;  // keys
};

}  // namespace steptwin
