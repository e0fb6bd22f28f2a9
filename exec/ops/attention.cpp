#include <ATen/ATen.h>

#include "exec/ops/attention.h"
#include "exec/ops/dropout.h"

namespace steptwin::parts {
namespace {

// Grouped heads: query heads that share a key head are stacked in one matmul, [b*kv, group*s, d].
class Composed {
 public:
  explicit Composed(const AttentionTensors& t)
      : t_(t), b_(t.q.size(0)), s_(t.q.size(1)), heads_(t.q.size(2)), d_(t.q.size(3)), kv_(t.k.size(2)), group_(heads_ / kv_),
        scale_(1.0 / std::sqrt(static_cast<double>(d_))) {}

  void forward() const;
  std::array<at::Tensor, 3> backward(const at::Tensor& d_core) const;

 private:
  at::Tensor query_heads(const at::Tensor& t) const {  // [b, s, heads, d] -> [b*kv, group*s, d]
    return t.view({b_, s_, kv_, group_, d_}).permute({0, 2, 3, 1, 4}).reshape({b_ * kv_, group_ * s_, d_});
  }
  at::Tensor key_heads(const at::Tensor& t) const {  // [b, s, kv, d] -> [b*kv, s, d]
    return t.permute({0, 2, 1, 3}).reshape({b_ * kv_, s_, d_});
  }
  at::Tensor from_query_heads(const at::Tensor& t) const {
    return t.view({b_, kv_, group_, s_, d_}).permute({0, 3, 1, 2, 4}).reshape({b_, s_, heads_, d_});
  }
  at::Tensor from_key_heads(const at::Tensor& t) const {
    return t.view({b_, kv_, s_, d_}).permute({0, 2, 1, 3}).reshape({b_, s_, kv_, d_});
  }
  at::Tensor scores() const;         // fp32 [b, a, s, s], scaled, -inf above the diagonal
  at::Tensor probabilities() const;  // fp32, as forward made them, from what is saved
  at::Tensor stacked(const at::Tensor& scores) const { return scores.view({b_ * kv_, group_ * s_, s_}); }
  bool flash() const { return t_.form == AttentionTensors::Form::Flash; }

  const AttentionTensors& t_;
  std::int64_t b_, s_, heads_, d_, kv_, group_;
  double scale_;
};

at::Tensor Composed::scores() const {
  at::Tensor scores = at::bmm(query_heads(t_.q), key_heads(t_.k).transpose(1, 2)).to(at::kFloat).view({b_, heads_, s_, s_});
  const at::Tensor future = at::ones({s_, s_}, t_.q.options().dtype(at::kBool)).triu(1);
  return scores.mul_(scale_).masked_fill_(future, -std::numeric_limits<double>::infinity());
}

void Composed::forward() const {
  at::Tensor p = scores(), statistics = t_.statistics, core = t_.core;
  const at::Tensor top = p.amax(-1, true);
  p.sub_(top).exp_();
  const at::Tensor sum = p.sum(-1, true);
  p.div_(sum);
  if (flash()) {
    statistics.copy_(sum.log().add_(top).squeeze(-1));
  } else {
    statistics.copy_(p);
  }
  at::Tensor taken = stacked(p).to(core.scalar_type());
  if (t_.mask.defined()) {
    at::Tensor dropped = t_.dropped;
    dropped.copy_(drop(p, t_.mask, t_.dropout));
    taken = stacked(dropped);
  }
  core.copy_(from_query_heads(at::bmm(taken, key_heads(t_.v))));
}

at::Tensor Composed::probabilities() const {
  if (!flash()) return t_.statistics.to(at::kFloat);
  return scores().sub_(t_.statistics.unsqueeze(-1)).exp_();
}

// ds = p * (dp - rowsum(dO * O)): the row sum equals that of dp * p, with dropout too, whose mask and scale are in dp.
std::array<at::Tensor, 3> Composed::backward(const at::Tensor& d_core) const {
  const at::ScalarType type = t_.core.scalar_type();
  const at::Tensor p = stacked(probabilities()), d_out = query_heads(d_core);
  const at::Tensor row_sum = at::mul(d_out.to(at::kFloat), query_heads(t_.core).to(at::kFloat)).sum(-1, true);
  const at::Tensor dv = at::bmm((t_.mask.defined() ? stacked(t_.dropped) : p.to(type)).transpose(1, 2), d_out);
  at::Tensor ds = at::bmm(d_out, key_heads(t_.v).transpose(1, 2)).to(at::kFloat);
  if (t_.mask.defined()) ds = drop(ds, stacked(t_.mask), t_.dropout);
  ds = ds.sub_(row_sum).mul_(p).mul_(scale_).to(type);
  return {from_query_heads(at::bmm(ds, key_heads(t_.k))), from_key_heads(at::bmm(ds.transpose(1, 2), query_heads(t_.q))),
          from_key_heads(dv)};
}

}  // namespace

void composed_attention(const AttentionTensors& t) { Composed(t).forward(); }
std::array<at::Tensor, 3> composed_attention_backward(const AttentionTensors& t, const at::Tensor& d_core) {
  return Composed(t).backward(d_core);
}

}  // namespace steptwin::parts
