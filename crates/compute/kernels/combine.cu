// combine: out[r] = sum over ranks k, in order, of weights[r][k] * experts[r * top_k + k], and,
// where there is a shared expert, + sigmoid(shared_gate[r]) * shared[r].
//
// Floor: 4 (top_k + 2) bytes a number; 16 rows of 2048 with 8 experts: 1.3 MB, all in L2. Latency
// limits it: a thread takes 4 columns and has the loads of 8 experts in flight. Launch: grid
// [ceil(cols / 512), rows], block 128, no shared memory. cols is a multiple of 4.
#include "forerun.cuh"

__device__ __forceinline__ void add_scaled(float4& sum, float weight, const float4& v) {
  sum.x = fmaf(weight, v.x, sum.x);
  sum.y = fmaf(weight, v.y, sum.y);
  sum.z = fmaf(weight, v.z, sum.z);
  sum.w = fmaf(weight, v.w, sum.w);
}

KERNEL(combine, 72, CombineArgs, 128) {
  launch_dependents();
  const int row = blockIdx.y, col = (blockIdx.x * 128 + threadIdx.x) * 4;
  wait_for_inputs();
  if (col >= a.cols) return;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f), shared = sum;
  float gate = 0.f;
  if (a.shared) {
    shared = *(const float4*)(a.shared + (size_t)row * a.cols + col);
    gate = 1.f / (1.f + expf(-a.shared_gate[row]));
  }
  const float* weights = a.weights + (size_t)row * a.top_k;
  const float* experts = a.experts + (size_t)row * a.top_k * a.cols + col;
#pragma unroll 8
  for (int k = 0; k < a.top_k; k++)
    add_scaled(sum, weights[k], *(const float4*)(experts + (size_t)k * a.cols));
  if (a.shared) add_scaled(sum, gate, shared);
  *(float4*)(a.out + (size_t)row * a.cols + col) = sum;
}
