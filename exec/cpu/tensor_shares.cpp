#include "exec/cpu/tensor_shares.h"

#include <algorithm>

namespace steptwin {

void TensorShares::add(const std::string& name, std::int64_t elements, std::int64_t first, std::vector<float> values) {
  Tensor& tensor = tensors_[name];
  tensor.elements = elements;
  tensor.pieces.emplace(first, std::move(values));
}

void TensorShares::add(const TensorShares& other) {
  other.each([this](const std::string& name, std::int64_t elements, std::int64_t first, const std::vector<float>& values) {
    add(name, elements, first, values);
  });
}

std::size_t TensorShares::pieces() const {
  std::size_t count = 0;
  each([&](const auto&...) { ++count; });
  return count;
}

void TensorShares::fill(NamedValues& values, Known& known) const {
  for (const auto& [name, tensor] : tensors_) {
    std::vector<float>& into = values[name];
    std::vector<bool>& there = known[name];
    into.resize(static_cast<std::size_t>(tensor.elements));
    there.resize(static_cast<std::size_t>(tensor.elements));
    for (const auto& [first, piece] : tensor.pieces) {
      for (std::size_t i = 0; i < piece.size(); ++i) {
        const std::size_t at = static_cast<std::size_t>(first) + i;
        if (!there[at]) into[at] = piece[i], there[at] = true;
      }
    }
  }
}

NamedValues whole_tensors(const std::vector<TensorShares>& shares) {
  NamedValues values;
  TensorShares::Known known;
  for (const TensorShares& share : shares) share.fill(values, known);
  std::erase_if(values, [&](const auto& tensor) {
    const std::vector<bool>& there = known[tensor.first];
    return std::find(there.begin(), there.end(), false) != there.end();
  });
  return values;
}

}  // namespace steptwin
