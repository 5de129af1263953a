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

// What eight columns of a row are made of. What no kernel writes is there before the inputs: which
// rows are read, and the base kernel of the first two taps.
struct Taps {
  int from[REACH + 1];  // row of each tap; -1: none
  float base[2][8];

  __device__ __forceinline__ void find(const BlockConvArgs& a, int row, int col) {
    from[0] = row;
#pragma unroll
    for (int t = 1; t <= REACH; t++)
      from[t] = t < a.taps ? a.pass.taps[row * REACH + REACH - t] : -1;
    if (col >= a.cols) return;
    read8(a.base + col, base[0]);
    if (a.taps > 1) read8(a.base + a.cols + col, base[1]);
  }

  // Taps in order, and for two of them all is asked for before anything is looked at.
  __device__ __forceinline__ void convolve(const BlockConvArgs& a, int row, int col,
                                           float (&y)[8]) {
    const int groups = a.cols / a.group;
    const float* dynamic = a.coefficients + (size_t)row * a.stride + a.first + col / a.group;
    float x[2][8], factor[2];
    factor[0] = dynamic[0];
    read8(a.x + (size_t)row * a.cols + col, x[0]);
    if (from[1] >= 0) {
      factor[1] = dynamic[groups];
      read8(a.x + (size_t)from[1] * a.cols + col, x[1]);
    }
    // Without a sum before it a row that only reads itself keeps its bits.
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = (base[0][i] + factor[0]) * x[0][i];
    if (from[1] >= 0) add(base[1], factor[1], x[1], y);
#pragma unroll
    for (int t = 2; t <= REACH; t++) {
      if (from[t] < 0) continue;
      read8(a.base + (size_t)t * a.cols + col, base[0]);
      read8(a.x + (size_t)from[t] * a.cols + col, x[0]);
      add(base[0], dynamic[t * groups], x[0], y);
    }
  }

  __device__ static __forceinline__ void add(const float (&base)[8], float dynamic,
                                             const float (&x)[8], float (&y)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = fmaf(base[i] + dynamic, x[i], y[i]);
  }
};

KERNEL(block_conv, 64, BlockConvArgs, 128) {
  launch_dependents();
  const int row = blockIdx.y, col = (blockIdx.x * 128 + threadIdx.x) * 8;
  Taps taps;
  taps.find(a, row, col);
  wait_for_inputs();
  if (col >= a.cols) return;  // whole groups of 32 columns: four lanes leave together
  float y[8];
  taps.convolve(a, row, col, y);
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
  float x[8] = {}, weight[8] = {};
  Taps taps;
  taps.find(a.conv, row, col);
  if (active) read8(a.weight + col, weight);
  wait_for_inputs();
  if (active) {
    float y[8];
    float* at = a.x + (size_t)row * cols + col;
    read8(at, x);
    taps.convolve(a.conv, row, col, y);
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
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = x[i] * factor * weight[i];
  store8(a.out, row, col, x);
}
