#include "schedule/model/flat_storage.h"

#include <algorithm>

#include "schedule/base/error.h"
#include "schedule/model/kernels.h"

namespace steptwin {
namespace {

std::string key_of(const StoredParameter& p) {
  return std::string(name_of(p.dtype)) + (p.requires_grad ? "_grad" : "_nograd") + (p.group.empty() ? "" : "_g_" + p.group);
}

void append(FlatGroup& group, const StoredParameter& parameter, std::int64_t alignment) {
  group.offsets.push_back(group.total);
  group.parameters.push_back(parameter);
  group.total = (group.total + parameter.elements() + alignment - 1) / alignment * alignment;
}

}  // namespace

std::int64_t StoredParameter::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

std::vector<FlatGroup> flat_groups(const std::vector<StoredParameter>& parameters) {
  std::vector<FlatGroup> groups;
  for (const StoredParameter& parameter : parameters) {
    const std::string key = key_of(parameter);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const FlatGroup& g) { return g.key == key; });
    if (group == groups.end()) group = groups.insert(group, {key, parameter.dtype, parameter.requires_grad, {}, {}, 0});
    append(*group, parameter, kTensorAlignment / size_of(parameter.dtype));
  }
  return groups;
}

FlatGroup stand_alone_group(const StoredParameter& parameter) {
  FlatGroup group{key_of(parameter), parameter.dtype, parameter.requires_grad, {}, {}, 0};
  append(group, parameter, 1);
  return group;
}

Sharding sharding_of(const FlatGroup& group, std::int64_t ranks) {
  invariant(ranks > 0, "a group is cut for at least one rank");
  const std::int64_t partition = (group.total + ranks - 1) / ranks;
  return {ranks, partition, partition * ranks};
}

}  // namespace steptwin
