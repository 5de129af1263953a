// What stands between products and works on rows: the residual sum with its norm, and swiglu. They are kernels of their
// own, and where all blocks of a product run at once also its epilogue: the blocks meet when their outputs are written,
// and share the rows. Both ways the same code with the same order of sums, so the same bits.
#pragma once
#include "forerun.cuh"

#ifndef FORERUN_EMULATION  // an emulator on the CPU brings its own
// What other blocks of this launch may have written: from L2, never a stale line of L1.
__device__ __forceinline__ float4 read_written4(const float* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

// The blocks of a launch meet, all of which run at once: one thread of each arrives when the block's writes are done
// (behind __syncthreads), and waits before anything of other blocks is read (__syncthreads follows); a block that reads
// nothing need not wait. The last to arrive turns the counter's highest bit and leaves the others zero, so a counter is
// never reset and serves launches of any size, one after the other: a launch arrives only when the one before it has
// ended, which griddepcontrol.wait tells.
constexpr u32 MET = 0x80000000u;
__device__ __forceinline__ u32 grid_arrive(u32* counter, u32 blocks) {
  u32 before;
  const u32 more = blockIdx.x == 0 ? MET - (blocks - 1) : 1;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(more) : "memory");
  return before;
}
__device__ __forceinline__ void grid_wait(const u32* counter, u32 before) {
  u32 now;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
  while (((now ^ before) & MET) == 0);
}
#endif

__device__ __forceinline__ void unpack8(const float4& p, const float4& q, float (&v)[8]) {
  v[0] = p.x, v[1] = p.y, v[2] = p.z, v[3] = p.w, v[4] = q.x, v[5] = q.y, v[6] = q.z, v[7] = q.w;
}
__device__ __forceinline__ void read8(const float* from, float (&v)[8]) {
  unpack8(((const float4*)from)[0], ((const float4*)from)[1], v);
}
__device__ __forceinline__ void read_written8(const float* from, float (&v)[8]) {
  unpack8(read_written4(from), read_written4(from + 4), v);
}
__device__ __forceinline__ void write8(float* to, const float (&v)[8]) {
  ((float4*)to)[0] = make_float4(v[0], v[1], v[2], v[3]);
  ((float4*)to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// ------------------------------------------------------------------ norm

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

// A row's columns in groups of eight go round the threads of a block, CHUNKS times at most. This thread's, zero beyond
// the row.
template <int CHUNKS>
__device__ __forceinline__ void read_columns(const float* from, int cols, float (&v)[CHUNKS][8]) {
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    const int col = (c * blockDim.x + threadIdx.x) * 8;
#pragma unroll
    for (int i = 0; i < 8; i++) v[c][i] = 0.f;
    if (col < cols) read8(from + col, v[c]);
  }
}

// One row, by a block. `x` and `weight` are as read_columns left them, `sums` is shared memory for 32 floats. Each 256
// columns, the groups of one warp, are summed first: how many warps there are does not matter.
template <int CHUNKS>
__device__ __forceinline__ void norm_row(const NormArgs& a, int row, float (&x)[CHUNKS][8],
                                         const float (&weight)[CHUNKS][8], float* sums) {
  const int lane = threadIdx.x & 31, parts = (a.cols + 255) >> 8;
  if (a.add) {
    float add[CHUNKS][8];  // all loads are on their way before the first store
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      const int col = (c * blockDim.x + threadIdx.x) * 8;
      if (col < a.cols) read_written8(a.add + (size_t)row * a.cols + col, add[c]);
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      const int col = (c * blockDim.x + threadIdx.x) * 8;
      if (col >= a.cols) continue;
#pragma unroll
      for (int i = 0; i < 8; i++) x[c][i] += add[c][i];
      write8(a.x + (size_t)row * a.cols + col, x[c]);
    }
  }
  if (a.tap) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      const int col = (c * blockDim.x + threadIdx.x) * 8;
      if (col < a.cols) write8(a.tap + (size_t)row * a.tap_stride + a.tap_offset + col, x[c]);
    }
  }
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    const int part = (c * blockDim.x + threadIdx.x) >> 5;
    if (part >= parts) continue;
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(x[c][i], x[c][i], sum);
    sum = warp_sum(sum);
    if (lane == 0) sums[part] = sum;
  }
  __syncthreads();
  const float sum = warp_sum(lane < parts ? sums[lane] : 0.f);
  const float factor = 1.f / sqrtf(sum / a.cols + a.eps);
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    const int col = (c * blockDim.x + threadIdx.x) * 8;
    if (col >= a.cols) continue;  // whole groups of 32 columns: four lanes go on together
#pragma unroll
    for (int i = 0; i < 8; i++) x[c][i] = x[c][i] * factor * weight[c][i];
    store8(a.out, row, a.offset + col, x[c]);
  }
}

// ------------------------------------------------------------------ swiglu

// Eight columns of a row; four lanes together, as store8 asks.
__device__ __forceinline__ void swiglu8(const SwiGluArgs& a, int row, int col) {
  const size_t at = (size_t)row * a.out.cols + col;
  float g[8], u[8], v[8];
  read_written8(a.gate + at, g);
  read_written8(a.up + at, u);
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = g[i] * (1.f / (1.f + expf(-g[i]))) * u[i];
  store8(a.out, row, col, v);
}
