// swiglu: out = silu(gate) * up, as an activation.
//
// Floor: 8 bytes read and 6.1 written a number; 16 rows of 17408: 3.9 MB, all in L2, about 1 us.
// Latency of the four loads and the launch limit it, so every thread has all its loads in flight at
// once and there are 17 blocks a row. Launch: grid [ceil(cols / 1024), rows], block 128, no shared
// memory. A thread takes 8 columns.
#include "forerun.cuh"

KERNEL(swiglu, 48, SwiGluArgs, 128) {
  launch_dependents();
  const int row = blockIdx.y, col = (blockIdx.x * 128 + threadIdx.x) * 8;
  wait_for_inputs();
  if (col >= a.out.cols) return;  // whole groups of 32 columns: four lanes leave together
  const size_t at = (size_t)row * a.out.cols + col;
  const float4* gate = (const float4*)(a.gate + at);
  const float4* up = (const float4*)(a.up + at);
  const float4 g0 = gate[0], g1 = gate[1], u0 = up[0], u1 = up[1];
  const float g[8] = {g0.x, g0.y, g0.z, g0.w, g1.x, g1.y, g1.z, g1.w};
  const float u[8] = {u0.x, u0.y, u0.z, u0.w, u1.x, u1.y, u1.z, u1.w};
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = g[i] * (1.f / (1.f + expf(-g[i]))) * u[i];
  store8(a.out, row, col, v);
}
