// block_conv: out[r][c] = sum over t < taps of (base[t][c] + coefficients[r][first + t * groups + c
// / group]) * x[r - t][c], where r - t is the row t before r on its path in this pass; what lies
// before the pass counts as nothing. `out` is an activation, or plain numbers.
// conv_norm: x += the same; norm_out = x / sqrt(mean(x^2) + eps) * weight.
//
// Floor: 8 rows of 5120 with 2 taps: 0.16 MB read, as much written, 40 KB of base kernel, all in
// L2. Latency limits it: a thread takes 8 columns and has all its loads in flight at once.
// Launch: block_conv: grid [ceil(cols / 1024), rows], block 128; conv_norm: grid [rows], block
// ceil(cols / 256) * 32 (cols <= 8192). cols is a multiple of 32, group one of 16. No dynamic
// shared memory.
#include "forerun.cuh"

constexpr int REACH = 3;  // rows before a row that a pass knows

struct BlockConvArgs {
  Pass pass;
  const float* x;
  const float* base;
  const float* coefficients;
  float* plain;  // null where `out` is meant
  Activation out;
  int cols, taps, group, stride, first;
};

struct ConvNormArgs {
  BlockConvArgs conv;
  float* x;
  const float* weight;
  Activation out;
  float eps;
};

__device__ __forceinline__ void read8(const float* from, float (&v)[8]) {
  const float4 p = ((const float4*)from)[0], q = ((const float4*)from)[1];
  v[0] = p.x, v[1] = p.y, v[2] = p.z, v[3] = p.w, v[4] = q.x, v[5] = q.y, v[6] = q.z, v[7] = q.w;
}

__device__ __forceinline__ void write8(float* to, const float (&v)[8]) {
  ((float4*)to)[0] = make_float4(v[0], v[1], v[2], v[3]);
  ((float4*)to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// Adds tap t, which reads row `from`, to eight columns.
__device__ __forceinline__ void add_tap(const BlockConvArgs& a, int row, int from, int t, int col,
                                        float (&y)[8]) {
  const float* of_tap = a.coefficients + (size_t)row * a.stride + a.first + t * (a.cols / a.group);
  float base[8], x[8];
  read8(a.base + (size_t)t * a.cols + col, base);
  read8(a.x + (size_t)from * a.cols + col, x);
  const float dynamic = of_tap[col / a.group];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float factor = base[i] + dynamic;
    // Without a sum before it a row that only reads itself keeps its bits.
    y[i] = t == 0 ? factor * x[i] : fmaf(factor, x[i], y[i]);
  }
}

__device__ __forceinline__ void convolve8(const BlockConvArgs& a, int row, int col, float (&y)[8]) {
  add_tap(a, row, row, 0, col, y);
  for (int t = 1; t < a.taps; t++) {
    const int from = a.pass.taps[row * REACH + REACH - t];
    if (from >= 0) add_tap(a, row, from, t, col, y);
  }
}

KERNEL(block_conv, 64, BlockConvArgs, 128) {
  launch_dependents();
  const int row = blockIdx.y, col = (blockIdx.x * 128 + threadIdx.x) * 8;
  wait_for_inputs();
  if (col >= a.cols) return;  // whole groups of 32 columns: four lanes leave together
  float y[8];
  convolve8(a, row, col, y);
  if (a.plain) {
    write8(a.plain + (size_t)row * a.cols + col, y);
  } else {
    store8(a.out, row, col, y);
  }
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

KERNEL(conv_norm, 64, ConvNormArgs, 1024) {
  __shared__ float sums[32];
  launch_dependents();
  const int row = blockIdx.x, col = threadIdx.x * 8, lane = threadIdx.x & 31, cols = a.conv.cols;
  const bool active = col < cols;
  float x[8] = {};
  wait_for_inputs();
  if (active) {
    float y[8];
    convolve8(a.conv, row, col, y);
    float* at = a.x + (size_t)row * cols + col;
    read8(at, x);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] += y[i];
    write8(at, x);
  }
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) sum = fmaf(x[i], x[i], sum);
  sum = warp_sum(sum);
  if (lane == 0) sums[threadIdx.x >> 5] = sum;
  __syncthreads();
  sum = warp_sum(lane < (int)(blockDim.x >> 5) ? sums[lane] : 0.f);
  const float factor = 1.f / sqrtf(sum / cols + a.eps);
  if (!active) return;  // whole groups of 32 columns: four lanes leave together
  float weight[8];
  read8(a.weight + col, weight);
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = x[i] * factor * weight[i];
  store8(a.out, row, col, x);
}
