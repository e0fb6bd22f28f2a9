#include "exec/comm/remote_transfer.h"

#include <fmt/format.h>

#include <algorithm>

#include "exec/comm/members.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

std::int64_t piece_count(std::int64_t bytes) {
  constexpr auto kMost = static_cast<std::int64_t>(KvStore::kMostBytes);
  return (bytes + kMost - 1) / kMost;
}

std::string piece_key(const std::string& member, std::int64_t piece) { return fmt::format("{}/{}", member, piece); }

}  // namespace

// A member's key holds the number of its bytes and is set behind the pieces, so that whoever sees it finds them.
RemoteTransfer::RemoteTransfer(KvStore& store, std::string key, const OpBody& body, std::uint32_t members, std::vector<Member> present,
                               Work work)
    : store_(store), key_(std::move(key)), body_(body), members_(members), present_(std::move(present)), work_(work) {
  for (std::uint32_t m = 0; m < members_; ++m)
    if (find(m) == nullptr && (!is_message() || m == 0)) awaited_.push_back(member_key(m));
  for (const Member& member : present_)
    if (!is_message() || member.number == 0) put(member);
}

bool RemoteTransfer::is_message() const { return is_point_to_point(body_); }

const RemoteTransfer::Member* RemoteTransfer::find(std::uint32_t number) const {
  const auto at = std::find_if(present_.begin(), present_.end(), [&](const Member& m) { return m.number == number; });
  return at == present_.end() ? nullptr : &*at;
}

std::string RemoteTransfer::member_key(std::uint32_t number) const { return fmt::format("{}/{}", key_, number); }

std::int64_t RemoteTransfer::given(std::uint32_t number) const {
  const std::int64_t bytes = bytes_of(body_).value;
  if (std::holds_alternative<AllGather>(body_)) return shard_of(bytes, number, members_).size;
  if (const auto* op = std::get_if<Broadcast>(&body_)) return op->root.resolve(0, members_) == number ? bytes : 0;
  return bytes;
}

void RemoteTransfer::put(const Member& member) {
  const bool moves = work_ == Work::Move && !(member.memory.in.empty() && member.memory.out.empty());
  const std::int64_t bytes = moves ? given(member.number) : 0;
  need(member.memory.in, bytes, "input", member.number);
  const std::string own = member_key(member.number);
  std::string data(static_cast<std::size_t>(bytes), '\0');
  const FlatView view({{reinterpret_cast<std::byte*>(data.data()), bytes}});
  copy_bytes(member.memory.in, 0, view, 0, bytes);
  for (std::int64_t piece = 0; piece < piece_count(bytes); ++piece)
    store_.set(piece_key(own, piece),
               std::string_view(data).substr(static_cast<std::size_t>(piece) * KvStore::kMostBytes, KvStore::kMostBytes));
  store_.set(own, fmt::format("{}", bytes));
}

std::string RemoteTransfer::fetch(std::uint32_t number) {
  const std::string theirs = member_key(number);
  const auto lost = [&] {
    return EnvironmentError(EnvironmentError::Kind::Device, "the data of member " + std::to_string(number) + " has left the store");
  };
  const auto size = store_.find(theirs);
  if (!size) throw lost();
  const std::int64_t bytes = std::strtoll(size->c_str(), nullptr, 10);
  std::string data;
  for (std::int64_t piece = 0; piece < piece_count(bytes); ++piece) {
    const auto part = store_.find(piece_key(theirs, piece));
    if (!part) throw lost();
    data += *part;
  }
  return data;
}

void RemoteTransfer::erase(std::uint32_t number) {
  const std::string theirs = member_key(number);
  const auto size = store_.find(theirs);
  for (std::int64_t piece = 0; size && piece < piece_count(std::strtoll(size->c_str(), nullptr, 10)); ++piece)
    store_.erase(piece_key(theirs, piece));
  store_.erase(theirs);
}

// Absent members get their results in their own processes; here these go into memory that nobody reads.
void RemoteTransfer::move(std::vector<std::string>& fetched) {
  if (work_ == Work::MeetOnly) return;
  if (std::all_of(present_.begin(), present_.end(), [](const Member& m) { return m.memory.in.empty() && m.memory.out.empty(); })) return;
  std::vector<std::byte> unread(static_cast<std::size_t>(bytes_of(body_).value));
  std::vector<MemberMemory> all(members_);
  for (std::uint32_t m = 0; m < members_; ++m) {
    if (const Member* own = find(m)) {
      all[m] = own->memory;
      continue;
    }
    all[m].in.add(reinterpret_cast<std::byte*>(fetched[m].data()), static_cast<std::int64_t>(fetched[m].size()));
    all[m].out.add(unread.data(), bytes_of(body_).value);
  }
  communicate(body_, all);
}

bool RemoteTransfer::try_finish() {
  if (is_message() && find(1) == nullptr) return !store_.check({member_key(0)});
  if (!awaited_.empty() && !store_.check(awaited_)) return false;
  std::vector<std::string> fetched(members_);
  for (std::uint32_t m = 0; m < members_; ++m)
    if (find(m) == nullptr) fetched[m] = fetch(m);
  move(fetched);
  if (is_message()) {
    erase(0);
    return true;
  }
  const std::string readers = key_ + "/readers";
  if (store_.add(readers, static_cast<std::int64_t>(present_.size())) < members_) return true;
  for (std::uint32_t m = 0; m < members_; ++m) erase(m);
  store_.erase(readers);
  return true;
}

}  // namespace steptwin
