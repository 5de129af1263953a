// The Hadamard transform of a head, as src/hadamard.rs has it: same additions, same order.
#pragma once
#include "forerun.cuh"

constexpr int MAX_DIM = 256;  // of a head

// By all lanes of a warp; x[j] of a lane is dimension 32 j + lane, of `blocks` * 32, and 0 beyond.
__device__ __forceinline__ void hadamard(float (&x)[8], int blocks) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int far = 1; far < 32; far *= 2)
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float other = __shfl_xor_sync(~0u, x[j], far);
      x[j] = lane & far ? other - x[j] : x[j] + other;
    }
#pragma unroll
  for (int far = 1; far < 8; far *= 2) {
    if (blocks % (2 * far) != 0) break;  // runs of the largest power of two that divides the width
#pragma unroll
    for (int j = 0; j < 8; j++) {
      if (j & far) continue;
      const float a = x[j], b = x[j + far];
      x[j] = a + b;
      x[j + far] = a - b;
    }
  }
  const float scale = 1.f / sqrtf((float)(32 * (blocks & -blocks)));
#pragma unroll
  for (int j = 0; j < 8; j++) x[j] *= scale;
}
