// Frozen parameters: patterns over the names of parameters, and what is left to compute of a segment's backward.
//
// A pattern is a parameter's name in which `*` stands for any run of characters, dots too, and a segment of the form `a-b` (between dots)
// for every whole number from a to b: "layers.0-3.*", "*.bias", "embed.token.weight". It must match the whole name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace steptwin {

bool matches_name(std::string_view pattern, std::string_view name);
// A pattern that comes nearest to one that matches none of the names and does match; empty: none is near.
std::string nearest_pattern(const std::string& pattern, const std::vector<std::string>& names);

// Which gradients the backward of a segment computes: autograd's rule. As it stands after construction: all of them.
struct WantedGradients {
  bool input = true;                // something below the segment is trained; never of the embedding: token ids have no gradient
  bool parameters = true;           // of one of its own at least
  std::vector<std::string> frozen;  // ends of the names of those that have none: "qkv.weight"; "weight" of the head, tied or not

  bool any() const { return input || parameters; }  // else the segment has no backward
  bool of(std::string_view end) const;
  bool operator==(const WantedGradients&) const = default;
};

}  // namespace steptwin
