#include "exec/gradient_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "exec/ops/compute.h"

namespace steptwin {
namespace {

constexpr double kRelative = 1e-5;   // of a tensor's own norm
constexpr double kSmall = 1e-3;      // of the norm of all gradients: what counts as zero in theory
constexpr double kLoss = 1e-6, kLoss16 = 1e-2;

using Values = std::vector<float>;

double norm(const Values& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}
double norm(const NamedValues& all) {
  double sum = 0;
  for (const auto& [name, values] : all) sum += norm(values) * norm(values);
  return std::sqrt(sum);
}
// NaN when the sizes differ: no allowance admits it.
double distance(const Values& a, const Values& b) {
  if (a.size() != b.size()) return std::nan("");
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return std::sqrt(sum);
}

// Of an allowance; equal values use nothing of it, even where it is zero.
double use_of(double difference, double allowed) { return difference == 0 ? 0 : difference / allowed; }

void note(GradientCheck& check, const std::string& name, double used) {
  if (!check.worst.empty() && used <= check.worst_use) return;  // NaN is worse than anything
  if (std::isnan(check.worst_use)) return;
  check.worst = name;
  check.worst_use = used;
}

void compare_losses(GradientCheck& check, const std::vector<double>& run, const std::vector<double>& plain, double allowed) {
  if (run.size() != plain.size()) check.problem = fmt::format("{} losses against {} of the plain model", run.size(), plain.size());
  for (std::size_t i = 0; i < std::min(run.size(), plain.size()); ++i) {
    const double difference = use_of(std::fabs(run[i] - plain[i]), std::fabs(plain[i]));
    if (!std::isnan(check.loss_difference) && !(difference <= check.loss_difference)) check.loss_difference = difference;
    note(check, fmt::format("loss of step {}", i + 1), difference / allowed);
  }
}

// Figures of the layers' inputs, relative to their norm.
void compare_hidden(GradientCheck& check, const NamedValues& run, const NamedValues& plain, double allowed) {
  if (run.size() != plain.size()) check.problem = fmt::format("{} hidden states against {} of the plain model", run.size(), plain.size());
  for (const auto& [name, figures] : run) {
    const auto target = plain.find(name);
    if (target != plain.end()) note(check, name, use_of(distance(figures, target->second), allowed * norm(target->second)));
  }
}

template <class Allowance>
void compare_tensors(GradientCheck& check, const Schedule& schedule, const NamedValues& run, const NamedValues& target,
                     Allowance allowance) {
  for (const auto& [name, values] : run) {
    const auto plain = target.find(drawn_as(schedule, name));
    if (plain == target.end()) {
      check.problem = fmt::format("the plain model has no gradient named {}", name);
      return;
    }
    ++check.tensors;
    note(check, name, use_of(distance(values, plain->second), allowance(plain->first, plain->second)));
  }
  for (const auto& [name, values] : target)
    if (!run.contains(name)) check.problem = fmt::format("no rank holds a gradient of {}", name);
  if (check.tensors == 0 && check.problem.empty()) check.problem = "neither run kept its gradients";
}

// Frozen parameters as every rank holds them at the end, against what they were drawn as.
void compare_frozen(GradientCheck& check, const Schedule& schedule, const ExecutionResult& run, const ExecutionResult& plain) {
  if (plain.parameters.empty()) return;
  for (const NamedValues& rank : run.parameters)
    for (const auto& [name, values] : rank) {
      const auto drawn = plain.parameters.front().find(drawn_as(schedule, name));
      if (drawn == plain.parameters.front().end()) continue;
      const bool same =
          values.size() == drawn->second.size() && std::memcmp(values.data(), drawn->second.data(), values.size() * sizeof(float)) == 0;
      if (!same) check.problem = fmt::format("the frozen parameter {} has changed", name);
    }
}

GradientCheck judged(GradientCheck check) {
  if (check.problem.empty() && !(check.worst_use <= 1))
    check.problem = fmt::format("{} differs from the plain model: {:.3g} times what is allowed", check.worst, check.worst_use);
  check.holds = check.problem.empty();
  return check;
}

}  // namespace

GradientCheck check_against_plain(const Schedule& schedule, const ExecutionResult& run, const ExecutionResult& plain, PlainDevice device) {
  const double wider = device == PlainDevice::Same ? 1 : 10;
  GradientCheck check;
  const double total = norm(plain.gradients);
  compare_losses(check, run.losses, plain.losses, wider * kLoss);
  compare_hidden(check, run.hidden, plain.hidden, wider * kRelative);
  compare_tensors(check, schedule, run.gradients, plain.gradients,
                  [&](const std::string&, const Values& g0) { return wider * kRelative * std::max(norm(g0), kSmall * total); });
  compare_frozen(check, schedule, run, plain);
  return judged(check);
}

GradientCheck check_against_plain_16bit(const Schedule& schedule, const ExecutionResult& run, const ExecutionResult& plain,
                                        const ExecutionResult& reference) {
  GradientCheck check;
  const double total = norm(reference.gradients);
  compare_losses(check, run.losses, reference.losses, kLoss16);
  compare_hidden(check, run.hidden, reference.hidden, kLoss16);
  compare_tensors(check, schedule, run.gradients, reference.gradients, [&](const std::string& name, const Values& g0) {
    const auto own = plain.gradients.find(name);
    const double theirs = own == plain.gradients.end() ? 0 : distance(own->second, g0);
    return 2 * theirs + kRelative * std::max(norm(g0), kSmall * total);
  });
  compare_frozen(check, schedule, run, plain);
  return judged(check);
}

}  // namespace steptwin
