// Products of weight matrices with 17 to 32 rows of a decoding pass, in phases. See matmul.cuh;
// matmul_hopper.cu is what Hopper uses.
//
// What limits it: activations are read from shared memory for every 16 weight rows, 16 KB a tile at
// 32 rows.
//
// Launch: matmul_24 / _32 for up to 24 / 32 rows, with the format's name or `mixed`; otherwise as
// in matmul.cu. The accumulators of 32 rows leave registers for 8 warps.
#define REGISTERS_ARE_SCARCE
#include "matmul.cuh"

MATMUL_KERNEL(matmul_24_q4_k, 255, 3, TILE_Q4_K)
MATMUL_KERNEL(matmul_24_q6_k, 255, 3, TILE_Q6_K)
MATMUL_KERNEL(matmul_24_mixed, 255, 3, MIXED)
#ifndef WARPS_16
MATMUL_KERNEL(matmul_32_q4_k, 255, 4, TILE_Q4_K)
MATMUL_KERNEL(matmul_32_q6_k, 255, 4, TILE_Q6_K)
MATMUL_KERNEL(matmul_32_mixed, 255, 4, MIXED)
#endif
