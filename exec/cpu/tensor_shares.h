// Values of named tensors that several ranks hold in pieces.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "exec/backend.h"

namespace steptwin {

class TensorShares {
 public:
  bool empty() const { return tensors_.empty(); }
  // Elements [first, first + values.size()) of a tensor. A piece that is there already stays.
  void add(const std::string& name, std::int64_t elements, std::int64_t first, std::vector<float> values);
  void add(const TensorShares& other);
  std::size_t pieces() const;
  // visit(name, elements of the tensor, first element, values) for every piece.
  template <class Visit>
  void each(Visit visit) const {
    for (const auto& [name, tensor] : tensors_)
      for (const auto& [first, values] : tensor.pieces) visit(name, tensor.elements, first, values);
  }
  // Fills what `values` lacks; `known` says for each element whether it is there. Names and sizes are made as they appear.
  using Known = std::map<std::string, std::vector<bool>>;
  void fill(NamedValues& values, Known& known) const;

 private:
  struct Tensor {
    std::int64_t elements = 0;
    std::map<std::int64_t, std::vector<float>> pieces;  // [first element]
  };
  std::map<std::string, Tensor> tensors_;
};

// Every tensor of which all elements are held by someone; of elements that several hold, those of the earliest.
NamedValues whole_tensors(const std::vector<TensorShares>& shares);

}  // namespace steptwin
