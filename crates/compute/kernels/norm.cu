// rms_norm: x += add; tap = x; out[offset..] = x / sqrt(mean(x^2) + eps) * weight. `add` and `tap`
// may be null; x is written only with `add`.
//
// Floor: 16 rows of 5120 with add: 0.65 MB read, 0.83 MB written, all in L2. What limits it is the
// chain launch, load, one reduction, store: a thread takes 8 columns and keeps them in registers,
// so a row is read once and there is one barrier. The order of the sum follows from the columns
// alone. Launch: grid [rows], block ceil(cols / 256) * 32 (cols <= 8192, a multiple of 32), no
// dynamic shared memory.
#include "forerun.cuh"

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

__device__ __forceinline__ void read8(const float* from, float (&v)[8]) {
  const float4 p = ((const float4*)from)[0], q = ((const float4*)from)[1];
  v[0] = p.x, v[1] = p.y, v[2] = p.z, v[3] = p.w, v[4] = q.x, v[5] = q.y, v[6] = q.z, v[7] = q.w;
}

__device__ __forceinline__ void write8(float* to, const float (&v)[8]) {
  ((float4*)to)[0] = make_float4(v[0], v[1], v[2], v[3]);
  ((float4*)to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

KERNEL(rms_norm, 40, NormArgs, 1024) {
  __shared__ float sums[32];
  launch_dependents();
  const int row = blockIdx.x, col = threadIdx.x * 8, lane = threadIdx.x & 31;
  const bool active = col < a.cols;
  float x[8] = {}, weight[8] = {};
  if (active) read8(a.weight + col, weight);  // not written by kernels, so it need not wait
  wait_for_inputs();
  if (active) {
    const size_t at = (size_t)row * a.cols + col;
    read8(a.x + at, x);
    if (a.add) {
      float add[8];
      read8(a.add + at, add);
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] += add[i];
      write8(a.x + at, x);
    }
    if (a.tap) write8(a.tap + (size_t)row * a.tap_stride + a.tap_offset + col, x);
  }
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) sum = fmaf(x[i], x[i], sum);
  sum = warp_sum(sum);
  if (lane == 0) sums[threadIdx.x >> 5] = sum;
  __syncthreads();
  sum = warp_sum(lane < (int)(blockDim.x >> 5) ? sums[lane] : 0.f);
  const float factor = 1.f / sqrtf(sum / a.cols + a.eps);
  if (!active) return;  // whole groups of 32 columns: four lanes leave together
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = x[i] * factor * weight[i];
  store8(a.out, row, a.offset + col, x);
}
