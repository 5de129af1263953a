// The causal convolution of four taps, as convolve and deltanet_decode take it.
#pragma once
#include "fold.cuh"

constexpr int TAPS = 4;

__device__ __forceinline__ float silu(float x) { return x / (1.f + expf(-x)); }
__device__ __forceinline__ float4 silu4(const float4& x) {
  return make_float4(silu(x.x), silu(x.y), silu(x.z), silu(x.w));
}

// Four channels of a row from their inputs, the oldest first.
__device__ __forceinline__ float4 convolve_taps(const float4 (&x)[TAPS],
                                                const float4 (&weight)[TAPS]) {
  float4 y = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
  for (int j = 0; j < TAPS; j++) {
    y.x = __fmaf_rn(x[j].x, weight[j].x, y.x);
    y.y = __fmaf_rn(x[j].y, weight[j].y, y.y);
    y.z = __fmaf_rn(x[j].z, weight[j].z, y.z);
    y.w = __fmaf_rn(x[j].w, weight[j].w, y.w);
  }
  return y;
}

// A query or key head of length one, queries divided by sqrt(dim) too: four columns a lane.
__device__ __forceinline__ float4 unit_head(const float4& y, bool query, int dim) {
  float squares =
      __fmaf_rn(y.w, y.w, __fmaf_rn(y.z, y.z, __fmaf_rn(y.y, y.y, __fmul_rn(y.x, y.x))));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(ALL_LANES, squares, step);
  const float factor = (query ? 1.f / sqrtf((float)dim) : 1.f) / sqrtf(squares + 1e-6f);
  return make_float4(y.x * factor, y.y * factor, y.z * factor, y.w * factor);
}
