// Products of weight matrices with up to 16 rows of a decoding pass. See matmul.cuh.
//
// Launch: matmul_8 / _16 for up to 8 / 16 rows, with the format's name, `mixed` or `others`; grid
// slices * shares, block 32 * warps (see THREADS), cluster slices (1 if join), shared bytes as in
// matmul.cuh. matmul_join: grid ceil(tiles * 4 * rows / 256), block 256.
#include "matmul.cuh"

MATMUL_KERNEL(matmul_8_q4_k, 255, 1, TILE_Q4_K)
MATMUL_KERNEL(matmul_8_q6_k, 255, 1, TILE_Q6_K)
MATMUL_KERNEL(matmul_8_q8_0, 255, 1, TILE_Q8_0)
MATMUL_KERNEL(matmul_8_mixed, 255, 1, MIXED)
MATMUL_KERNEL(matmul_8_others, 255, 1, OTHERS)
MATMUL_KERNEL(matmul_16_q4_k, 255, 2, TILE_Q4_K)
MATMUL_KERNEL(matmul_16_q6_k, 255, 2, TILE_Q6_K)
MATMUL_KERNEL(matmul_16_q8_0, 255, 2, TILE_Q8_0)
MATMUL_KERNEL(matmul_16_mixed, 255, 2, MIXED)
MATMUL_KERNEL(matmul_16_others, 255, 2, OTHERS)

KERNEL(matmul_join, 40, MatmulArgs, 256) {
  launch_dependents();
  wait_for_inputs();
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < a.tiles * 4 * a.rows) join4(a, (i >> 2) % a.tiles, (i >> 2) / a.tiles, i & 3);
}
