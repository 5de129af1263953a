// Activations in the order that matmul_tall.cu multiplies them in, for passes of 33 to 64 rows.
//
// out: [ld / 256][8 blocks of 8 rows][4352 bytes]: 32 core matrices [8 rows][8 columns], then the sums as two of them,
// high and low halves. Of every 32 columns, core matrix i has columns 8 t + 2 i, + 1 for t = 0..3: the tiles' order of
// columns. Rows that do not exist in the last block are the last row again.
//
// Floor: a few hundred KB of L2; what limits it is the launch. Launch: grid [ld / 256][blocks of 8 rows], block 256.
// budget: arrange 32
#include "forerun.cuh"

struct ArrangeArgs {
  Activation x;
  const int* chosen;  // activation row of each row, or null: the same
  u8* out;
  int rows, pad;
};
static_assert(sizeof(ArrangeArgs) == 56, "mirrored in src/cuda/ops/matmul/tall.rs");

extern "C" __global__ void __launch_bounds__(256) arrange(const __grid_constant__ ArrangeArgs a) {
  const int lane = threadIdx.x & 31, group = threadIdx.x >> 5, t = lane & 3, g = lane >> 2;
  launch_dependents();
  wait_for_inputs();
  auto row_of = [&](int n) { n = min((int)blockIdx.y * 8 + n, a.rows - 1); return (size_t)(a.chosen ? a.chosen[n] : n); };
  u8* out = a.out + (blockIdx.x * 8 + blockIdx.y) * 4352;
  const uint4 v = *(const uint4*)(a.x.x + row_of(g) * a.x.ld + blockIdx.x * 256 + group * 32 + t * 8);
  // Four lanes have four words each; lane t takes word t of each.
  const u32 mine[4] = {v.x, v.y, v.z, v.w};
  u32 all[4] = {0, 0, 0, 0};
#pragma unroll
  for (int d = 0; d < 4; d++) {
    const int to = t ^ d;
    const u32 sent = to == 0 ? mine[0] : to == 1 ? mine[1] : to == 2 ? mine[2] : mine[3];
    const u32 got = d ? __shfl_xor_sync(~0u, sent, d) : sent;
#pragma unroll
    for (int i = 0; i < 4; i++) all[i] = to == i ? got : all[i];
  }
  *(uint4*)(out + (group * 4 + t) * 128 + g * 16) = make_uint4(all[0], all[1], all[2], all[3]);
  if (threadIdx.x < 16) {
    const int n = threadIdx.x >> 1, half = threadIdx.x & 1;
    const __half* from = a.x.sums + row_of(n) * (a.x.ld / 16) + blockIdx.x * 16 + half * 8;
    *(uint4*)(out + 4096 + half * 128 + n * 16) = *(const uint4*)from;
  }
}
