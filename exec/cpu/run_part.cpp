#include "exec/cpu/run_part.h"

#include <cstring>
#include <type_traits>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

class Packer {
 public:
  template <class T>
  void value(const T& v) {
    static_assert(std::is_trivially_copyable_v<T>);
    out_.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  template <class T>
  void values(const std::vector<T>& all) {
    static_assert(std::is_trivially_copyable_v<T>);
    value(static_cast<std::uint64_t>(all.size()));
    if (!all.empty()) out_.append(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(T));
  }
  void text(const std::string& t) { values(std::vector<char>(t.begin(), t.end())); }
  void shares(const TensorShares& shares) {
    value(static_cast<std::uint64_t>(shares.pieces()));
    shares.each([&](const std::string& name, std::int64_t elements, std::int64_t first, const std::vector<float>& piece) {
      text(name), value(elements), value(first), values(piece);
    });
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class Unpacker {
 public:
  explicit Unpacker(const std::string& in) : in_(in) {}
  template <class T>
  T value() {
    T v{};
    bytes(&v, sizeof v);
    return v;
  }
  template <class T>
  std::vector<T> values() {
    const auto count = value<std::uint64_t>();
    invariant(count <= in_.size() / sizeof(T), "a packed list lies inside its bytes");
    std::vector<T> all(static_cast<std::size_t>(count));
    bytes(all.data(), all.size() * sizeof(T));
    return all;
  }
  std::string text() {
    const std::vector<char> t = values<char>();
    return {t.begin(), t.end()};
  }
  TensorShares shares() {
    TensorShares shares;
    for (auto left = value<std::uint64_t>(); left > 0; --left) {
      const std::string name = text();
      const auto elements = value<std::int64_t>(), first = value<std::int64_t>();
      shares.add(name, elements, first, values<float>());
    }
    return shares;
  }

 private:
  void bytes(void* to, std::size_t size) {
    invariant(size <= in_.size() - at_, "a packed value lies inside its bytes");
    if (size > 0) std::memcpy(to, in_.data() + at_, size);
    at_ += size;
  }
  const std::string& in_;
  std::size_t at_ = 0;
};

}  // namespace

std::string pack(const RankPart& part) {
  Packer out;
  out.value(part.rank);
  out.values(part.spans), out.values(part.samples), out.values(part.peaks);
  for (const auto& of_space : part.allocated) out.values(of_space);
  out.value(static_cast<std::uint64_t>(part.losses.size()));
  for (const auto& step : part.losses) out.values(step);
  out.shares(part.gradients), out.shares(part.hidden);
  out.value(static_cast<std::uint64_t>(part.parameters.size()));
  for (const auto& [buffer, shares] : part.parameters) out.value(buffer), out.shares(shares);
  return out.take();
}

RankPart unpack_rank_part(const std::string& packed) {
  Unpacker in(packed);
  RankPart part;
  part.rank = in.value<RankId>();
  part.spans = in.values<Span>(), part.samples = in.values<MemorySample>(), part.peaks = in.values<MemoryPeak>();
  for (auto& of_space : part.allocated) of_space = in.values<std::int64_t>();
  for (auto left = in.value<std::uint64_t>(); left > 0; --left) part.losses.push_back(in.values<float>());
  part.gradients = in.shares(), part.hidden = in.shares();
  for (auto left = in.value<std::uint64_t>(); left > 0; --left) {
    const auto buffer = in.value<std::uint32_t>();
    part.parameters.emplace(buffer, in.shares());
  }
  return part;
}

}  // namespace steptwin
