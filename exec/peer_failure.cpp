#include "exec/peer_failure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

struct KindLetter {
  EnvironmentError::Kind kind;
  char letter;
};
constexpr std::array<KindLetter, 4> kKinds{{{EnvironmentError::Kind::File, PeerFailure::kFile},
                                            {EnvironmentError::Kind::Database, PeerFailure::kDatabase},
                                            {EnvironmentError::Kind::Device, PeerFailure::kDevice},
                                            {EnvironmentError::Kind::Memory, PeerFailure::kMemory}}};

}  // namespace

std::vector<std::string> split_fields(const std::string& text, std::size_t count) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  while (parts.size() + 1 < count) {
    const std::size_t end = text.find(PeerFailure::kSeparator, at);
    if (end == std::string::npos) break;
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  parts.push_back(text.substr(at));
  parts.resize(count);
  return parts;
}

PeerFailure PeerFailure::of(const std::exception_ptr& exception, std::uint32_t process) {
  try {
    std::rethrow_exception(exception);
  } catch (const EnvironmentError& error) {
    const auto row = std::find_if(kKinds.begin(), kKinds.end(), [&](const KindLetter& k) { return k.kind == error.kind(); });
    return {row->letter, process, error.help(), error.what()};
  } catch (const InternalError& error) {
    return {kInternal, process, {}, error.what()};
  } catch (const std::exception& error) {
    return {kDevice, process, {}, error.what()};
  } catch (...) {
    return {kDevice, process, {}, "an error of unknown kind"};
  }
}

std::string PeerFailure::pack() const {
  return fmt::format("{}{}{}{}{}{}{}", kind, kSeparator, process, kSeparator, help, kSeparator, text);
}

PeerFailure PeerFailure::unpack(const std::string& value) {
  const std::vector<std::string> parts = split_fields(value, 4);
  return {parts[0].empty() ? kDevice : parts[0].front(), static_cast<std::uint32_t>(std::strtoul(parts[1].c_str(), nullptr, 10)), parts[2],
          parts[3]};
}

void PeerFailure::rethrow() const {
  const std::string what = fmt::format("process {} failed: {}", process, text);
  if (kind == kInternal) throw InternalError(what);
  const auto row = std::find_if(kKinds.begin(), kKinds.end(), [&](const KindLetter& k) { return k.letter == kind; });
  throw EnvironmentError(row == kKinds.end() ? EnvironmentError::Kind::Device : row->kind, what, help);
}

}  // namespace steptwin
