#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "exec/cuda/cuda_check.h"
#include "exec/cuda/kernels.h"
#include "schedule/base/error.h"

namespace steptwin::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 132 * 16;  // enough to fill the largest device several times; grid-stride loops do the rest

int blocks_for(std::int64_t n, std::int64_t per_block) {
  return static_cast<int>(std::clamp<std::int64_t>((n + per_block - 1) / per_block, 1, kMaxBlocks));
}

__device__ float load(const float* p) { return *p; }
__device__ float load(const __nv_bfloat16* p) { return __bfloat162float(*p); }
__device__ float load(const __half* p) { return __half2float(*p); }
__device__ void store(float* p, float v) { *p = v; }
__device__ void store(__nv_bfloat16* p, float v) { *p = __float2bfloat16_rn(v); }
__device__ void store(__half* p, float v) { *p = __float2half_rn(v); }

// Calls f with a null pointer of the element type.
template <class F>
void with_real(DType type, F f) {
  switch (type) {
    case DType::Fp32:
      return f(static_cast<float*>(nullptr));
    case DType::Bf16:
      return f(static_cast<__nv_bfloat16*>(nullptr));
    case DType::Fp16:
      return f(static_cast<__half*>(nullptr));
    case DType::Int64:
    case DType::Int32:
    case DType::Uint8:
      break;
  }
  throw InternalError("a kernel of real numbers was asked for an integer type");
}
template <class P>
using Element = std::remove_pointer_t<P>;

// ---- sums over a block ------------------------------------------------------------------------------------------------
__device__ float2 block_sum(float2 v) {
  __shared__ float2 warps[32];
  for (int offset = 16; offset > 0; offset /= 2) {
    v.x += __shfl_down_sync(0xffffffffu, v.x, offset);
    v.y += __shfl_down_sync(0xffffffffu, v.y, offset);
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, count = (blockDim.x + 31) / 32;
  __syncthreads();
  if (lane == 0) warps[warp] = v;
  __syncthreads();
  v = lane < count ? warps[lane] : float2{0, 0};
  for (int offset = 16; offset > 0; offset /= 2) {
    v.x += __shfl_xor_sync(0xffffffffu, v.x, offset);
    v.y += __shfl_xor_sync(0xffffffffu, v.y, offset);
  }
  return v;  // in every thread: all warps reduce the same 32 values
}

__device__ float block_max(float v) {
  __shared__ float warps[32];
  for (int offset = 16; offset > 0; offset /= 2) v = fmaxf(v, __shfl_down_sync(0xffffffffu, v, offset));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, count = (blockDim.x + 31) / 32;
  __syncthreads();
  if (lane == 0) warps[warp] = v;
  __syncthreads();
  v = lane < count ? warps[lane] : -INFINITY;
  for (int offset = 16; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}

// ---- norms: a block a row ---------------------------------------------------------------------------------------------
template <class T>
__global__ void norm_kernel(const T* x, const T* gain, const T* bias, T* out, float* mean, float* rstd, std::int64_t width, float epsilon) {
  const std::int64_t row = blockIdx.x;
  x += row * width, out += row * width;
  float2 s{0, 0};
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float v = load(x + i);
    s.x += v, s.y += v * v;
  }
  s = block_sum(s);
  const float n = static_cast<float>(width);
  float average = 0, variance = s.y / n;
  if (mean != nullptr) {  // two passes: the values lie in the cache, and no digits cancel
    average = s.x / n;
    float2 d{0, 0};
    for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      const float v = load(x + i) - average;
      d.x += v * v;
    }
    variance = block_sum(d).x / n;
  }
  const float inverse = rsqrtf(variance + epsilon);
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float normal = (load(x + i) - average) * inverse * load(gain + i);
    store(out + i, bias == nullptr ? normal : normal + load(bias + i));
  }
  if (threadIdx.x != 0) return;
  rstd[row] = inverse;
  if (mean != nullptr) mean[row] = average;
}

// With n = (x - mean) * rstd and g = dy * gain: dx = rstd * (g - mean(g) - n * mean(g * n)); RMSNorm lacks the mean(g) term.
template <class T>
__global__ void norm_backward_kernel(const T* dy, const T* x, const T* gain, const float* mean, const float* rstd, const T* residual, T* dx,
                                     std::int64_t width) {
  const std::int64_t row = blockIdx.x, at = row * width;
  const float average = mean == nullptr ? 0 : mean[row], inverse = rstd[row];
  float2 s{0, 0};
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float g = load(dy + at + i) * load(gain + i), normal = (load(x + at + i) - average) * inverse;
    s.x += g, s.y += g * normal;
  }
  s = block_sum(s);
  const float n = static_cast<float>(width), mean_g = mean == nullptr ? 0 : s.x / n, mean_gn = s.y / n;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float g = load(dy + at + i) * load(gain + i), normal = (load(x + at + i) - average) * inverse;
    const float through = inverse * (g - mean_g - normal * mean_gn);
    store(dx + at + i, residual == nullptr ? through : through + load(residual + at + i));
  }
}

// Column sums of dy * n and dy over a slice of rows: block (c, p) takes 32 columns and the rows p, p + P, ...
template <class T>
__global__ void norm_sums_kernel(const T* dy, const T* x, const float* mean, const float* rstd, float* partial, std::int64_t rows,
                                 std::int64_t width) {
  __shared__ float2 tile[8][33];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float2 s{0, 0};
  if (column < width) {
    for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * 8 + threadIdx.y; row < rows;
         row += static_cast<std::int64_t>(gridDim.y) * 8) {
      const float d = load(dy + row * width + column);
      const float normal = (load(x + row * width + column) - (mean == nullptr ? 0 : mean[row])) * rstd[row];
      s.x += d * normal, s.y += d;
    }
  }
  tile[threadIdx.y][threadIdx.x] = s;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int k = 1; k < 8; ++k) s.x += tile[k][threadIdx.x].x, s.y += tile[k][threadIdx.x].y;
  const std::int64_t vectors = mean == nullptr ? 1 : 2;
  partial[(blockIdx.y * vectors) * width + column] = s.x;
  if (vectors == 2) partial[(blockIdx.y * vectors + 1) * width + column] = s.y;
}

// ---- element by element -----------------------------------------------------------------------------------------------
template <class T>
__global__ void swiglu_kernel(std::int64_t n, const T* gate, const T* up, T* out) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const float g = load(gate + i);
    store(out + i, g / (1 + __expf(-g)) * load(up + i));
  }
}

template <class T>
__global__ void swiglu_backward_kernel(std::int64_t n, const T* dy, const T* gate, const T* up, T* dgate, T* dup) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const float g = load(gate + i), d = load(dy + i), sigmoid = 1 / (1 + __expf(-g));
    store(dup + i, g * sigmoid * d);
    store(dgate + i, d * load(up + i) * sigmoid * (1 + g * (1 - sigmoid)));
  }
}

// A block a position: its angles are computed once, in double, and serve all heads.
template <class T>
__global__ void rotate_kernel(T* t, std::int64_t positions, std::int64_t s, std::int64_t heads, std::int64_t d, double base, float sign) {
  extern __shared__ float2 turns[];  // (cos, sin) of every pair
  const std::int64_t half = d / 2;
  for (std::int64_t position = blockIdx.x; position < positions; position += gridDim.x) {
    __syncthreads();
    for (std::int64_t pair = threadIdx.x; pair < half; pair += blockDim.x) {
      const double angle = static_cast<double>(position % s) * exp2(-2.0 * static_cast<double>(pair) / static_cast<double>(d) * log2(base));
      turns[pair] = {static_cast<float>(cos(angle)), sign * static_cast<float>(sin(angle))};
    }
    __syncthreads();
    T* row = t + position * heads * d;
    for (std::int64_t i = threadIdx.x; i < heads * half; i += blockDim.x) {
      const std::int64_t pair = i % half;
      T* low = row + i / half * d + pair;
      T* high = low + half;
      const float a = load(low), b = load(high);
      store(low, a * turns[pair].x - b * turns[pair].y);
      store(high, b * turns[pair].x + a * turns[pair].y);
    }
  }
}

template <class T>
__global__ void softmax_loss_kernel(const T* scores, std::int64_t stride, std::int64_t width, const std::int64_t* targets, float* softmax,
                                    float* row_loss) {
  const std::int64_t row = blockIdx.x;
  const T* in = scores + row * stride;
  float* p = softmax + row * width;
  // One pass: each thread keeps the largest score it has seen and its sum of exponentials relative to that.
  float top = -INFINITY, sum = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float v = load(in + i);
    if (v > top) sum *= expf(top - v), top = v;
    sum += expf(v - top);
  }
  const float all_top = block_max(top);
  const float total = block_sum({top == -INFINITY ? 0 : sum * expf(top - all_top), 0}).x;
  const float picked = load(in + targets[row]) - all_top;
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) p[i] = expf(load(in + i) - all_top) / total;
  if (threadIdx.x == 0) row_loss[row] = logf(total) - picked;
}

template <class T>
__global__ void softmax_loss_backward_kernel(const float* softmax, std::int64_t rows, std::int64_t width, const std::int64_t* targets,
                                             float scale, T* out, std::int64_t stride) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const std::int64_t target = targets[row];
    for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x)
      store(out + row * stride + i, (softmax[row * width + i] - (i == target ? 1.f : 0.f)) * scale);
    for (std::int64_t i = width + threadIdx.x; i < stride; i += blockDim.x) store(out + row * stride + i, 0.f);
  }
}

template <class G, class P, class S>
__global__ void adam_kernel(AdamArguments a, const G* gradient, P* param, S* first, S* second) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.n;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const float g = load(gradient + i);
    float w = a.master == nullptr ? load(param + i) : a.master[i];
    const float m = a.beta1 * load(first + i) + a.rest1 * g;
    const float v = a.beta2 * load(second + i) + a.rest2 * g * g;
    w -= a.step_size * m / (sqrtf(v * a.second_correction) + a.epsilon);
    store(first + i, m);
    store(second + i, v);
    if (a.master != nullptr) a.master[i] = w;
    store(param + i, w);
  }
}

template <class To, class From>
__global__ void convert_kernel(To* to, const From* from, std::int64_t n) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x)
    store(to + i, load(from + i));
}

template <class T>
__global__ void combine_reals_kernel(CombineArguments a, T*) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.n;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    float sum = load(static_cast<const T*>(a.from[0]) + i);
    for (int k = 1; k < a.inputs; ++k) {
      const float v = load(static_cast<const T*>(a.from[k]) + i);
      sum = a.maximum ? fmaxf(sum, v) : sum + v;
    }
    for (int o = 0; o < a.outputs; ++o) store(static_cast<T*>(a.to[o]) + i, sum);
  }
}

template <class T>
__global__ void combine_integers_kernel(CombineArguments a, T*) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.n;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    T sum = static_cast<const T*>(a.from[0])[i];
    for (int k = 1; k < a.inputs; ++k) {
      const T v = static_cast<const T*>(a.from[k])[i];
      sum = a.maximum ? (v > sum ? v : sum) : static_cast<T>(sum + v);
    }
    for (int o = 0; o < a.outputs; ++o) static_cast<T*>(a.to[o])[i] = sum;
  }
}

int row_threads(std::int64_t width) { return width >= 4096 ? 512 : width >= 1024 ? 256 : 128; }
void launched() { cuda_check(cudaGetLastError(), "launch a kernel"); }

}  // namespace

void norm(const NormArguments& a, void* out, cudaStream_t stream) {
  if (a.rows == 0) return;
  with_real(a.type, [&](auto* null) {
    using T = Element<decltype(null)>;
    norm_kernel<T><<<static_cast<unsigned>(a.rows), row_threads(a.width), 0, stream>>>(
        static_cast<const T*>(a.x), static_cast<const T*>(a.gain), static_cast<const T*>(a.bias), static_cast<T*>(out), a.mean, a.rstd,
        a.width, a.epsilon);
  });
  launched();
}

std::int64_t norm_partial_rows(std::int64_t rows) { return std::clamp<std::int64_t>(rows / 64, 1, 64); }

void norm_backward(const NormArguments& a, const void* dy, const void* residual, void* dx, float* partial, cudaStream_t stream) {
  if (a.rows == 0) return;
  with_real(a.type, [&](auto* null) {
    using T = Element<decltype(null)>;
    const auto *d = static_cast<const T*>(dy), *x = static_cast<const T*>(a.x);
    const dim3 grid(static_cast<unsigned>((a.width + 31) / 32), static_cast<unsigned>(norm_partial_rows(a.rows)));
    norm_sums_kernel<T><<<grid, dim3(32, 8), 0, stream>>>(d, x, a.mean, a.rstd, partial, a.rows, a.width);  // first: dx may lie over dy
    norm_backward_kernel<T><<<static_cast<unsigned>(a.rows), row_threads(a.width), 0, stream>>>(
        d, x, static_cast<const T*>(a.gain), a.mean, a.rstd, static_cast<const T*>(residual), static_cast<T*>(dx), a.width);
  });
  launched();
}

void swiglu(DType type, std::int64_t n, const void* gate, const void* up, void* out, cudaStream_t stream) {
  with_real(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    swiglu_kernel<T>
        <<<blocks_for(n, kThreads), kThreads, 0, stream>>>(n, static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<T*>(out));
  });
  launched();
}

void swiglu_backward(DType type, std::int64_t n, const void* dy, const void* gate, const void* up, void* dgate, void* dup,
                     cudaStream_t stream) {
  with_real(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    swiglu_backward_kernel<T><<<blocks_for(n, kThreads), kThreads, 0, stream>>>(
        n, static_cast<const T*>(dy), static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<T*>(dgate), static_cast<T*>(dup));
  });
  launched();
}

void rotate(DType type, void* t, std::int64_t batch, std::int64_t s, std::int64_t heads, std::int64_t d, double base, float sign,
            cudaStream_t stream) {
  with_real(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    rotate_kernel<T><<<blocks_for(batch * s, 1), kThreads, sizeof(float2) * static_cast<std::size_t>(d / 2), stream>>>(
        static_cast<T*>(t), batch * s, s, heads, d, base, sign);
  });
  launched();
}

void softmax_loss(DType type, const void* scores, std::int64_t stride, std::int64_t rows, std::int64_t width, const std::int64_t* targets,
                  float* softmax, float* row_loss, cudaStream_t stream) {
  with_real(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    softmax_loss_kernel<T>
        <<<static_cast<unsigned>(rows), 1024, 0, stream>>>(static_cast<const T*>(scores), stride, width, targets, softmax, row_loss);
  });
  launched();
}

void softmax_loss_backward(DType type, const float* softmax, std::int64_t rows, std::int64_t width, const std::int64_t* targets,
                           float scale, void* out, std::int64_t stride, cudaStream_t stream) {
  with_real(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    softmax_loss_backward_kernel<T>
        <<<blocks_for(rows, 1), 512, 0, stream>>>(softmax, rows, width, targets, scale, static_cast<T*>(out), stride);
  });
  launched();
}

void adam(const AdamArguments& a, cudaStream_t stream) {
  if (a.n == 0) return;
  with_real(a.gradient_type, [&](auto* g) {
    with_real(a.param_type, [&](auto* p) {
      with_real(a.state_type, [&](auto* s) {
        using G = Element<decltype(g)>;
        using P = Element<decltype(p)>;
        using S = Element<decltype(s)>;
        adam_kernel<G, P, S><<<blocks_for(a.n, kThreads), kThreads, 0, stream>>>(
            a, static_cast<const G*>(a.gradient), static_cast<P*>(a.param), static_cast<S*>(a.first), static_cast<S*>(a.second));
      });
    });
  });
  launched();
}

void convert(void* to, DType to_type, const void* from, DType from_type, std::int64_t n, cudaStream_t stream) {
  if (n == 0) return;
  with_real(to_type, [&](auto* t) {
    with_real(from_type, [&](auto* f) {
      using To = Element<decltype(t)>;
      using From = Element<decltype(f)>;
      convert_kernel<To, From><<<blocks_for(n, kThreads), kThreads, 0, stream>>>(static_cast<To*>(to), static_cast<const From*>(from), n);
    });
  });
  launched();
}

void combine(const CombineArguments& a, cudaStream_t stream) {
  if (a.n == 0) return;
  invariant(a.inputs >= 1 && a.inputs <= kMaxMembers && a.outputs <= kMaxMembers, "a reduction over at most 16 members");
  const int blocks = blocks_for(a.n, kThreads);
  switch (a.type) {
    case DType::Fp32:
    case DType::Bf16:
    case DType::Fp16:
      with_real(a.type, [&](auto* null) { combine_reals_kernel<<<blocks, kThreads, 0, stream>>>(a, null); });
      break;
    case DType::Int64:
      combine_integers_kernel<<<blocks, kThreads, 0, stream>>>(a, static_cast<std::int64_t*>(nullptr));
      break;
    case DType::Int32:
      combine_integers_kernel<<<blocks, kThreads, 0, stream>>>(a, static_cast<std::int32_t*>(nullptr));
      break;
    case DType::Uint8:
      combine_integers_kernel<<<blocks, kThreads, 0, stream>>>(a, static_cast<std::uint8_t*>(nullptr));
      break;
  }
  launched();
}

}  // namespace steptwin::kernels
