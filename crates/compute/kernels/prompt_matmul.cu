// Products with many activation rows: out[n][m] = sum over k of W[m][k] x[n][k], several matrices
// with the same x in one launch, formats mixed. prompt_multiply.cuh has the arithmetic; Hopper has
// a kernel of its own, prompt_hopper.cu.
//
// Limits: tensor cores. 2 rows K M flop; mma.sync gives at most about 620 Tflop/s on an H200. Bytes
// are few: a block reads (0.56 to 2) BM + 2 BN bytes a column, from L2 but for the first time.
//
// 8 warps, a warp multiplies 32 weight rows by 64 x rows. Grid [ceil(rows / BN), sum over products
// of ceil(M / BM)], BN = 64 warps_n, BM = 256 / warps_n, warps_n 1 or 2; block 256, shared 4 BN
// 128.
#include "prompt_multiply.cuh"

struct PromptArgs {
  const __half* x;  // [rows][ld], K = ld
  int ld, rows, count;
  int warps_n;      // warps side by side along the rows of x, 1 or 2
  PromptProduct products[MAX_PRODUCTS];
};

struct PlainRows {
  const __half* first;  // this thread's piece of the first row that it copies
  const __half* safe;
  int stride, n0, count;
  __device__ __forceinline__ bool there(int i) const {
    return n0 + (int)(threadIdx.x >> 3) + 32 * i < count;
  }
  __device__ __forceinline__ const __half* source(int i) const {
    return there(i) ? first + (size_t)i * stride : safe;
  }
  __device__ __forceinline__ int out(int n) const { return n0 + n < count ? n0 + n : -1; }
};

template <int N8, int ROWS>
__device__ __forceinline__ void prompt_block(const PromptArgs& a, int warps_n) {
  launch_dependents();
  u8* stages = shared_memory();
  const int tid = threadIdx.x, warp = tid >> 5;
  const int wn = warp % warps_n, wm = warp / warps_n;
  const int n0 = blockIdx.x * ROWS * 32;
  int first_tile;
  const int p = find_product(a, blockIdx.y, 256 / warps_n, first_tile);
  const PlainRows rows{a.x + (size_t)(n0 + (tid >> 3)) * a.ld + (tid & 7) * 8, a.x, a.ld * 32, n0,
                       a.rows};
  wait_for_inputs();
  const PromptProduct q = a.products[p];
#define FORERUN_CASE(F)                                                                     \
  case F:                                                                                   \
    multiply<F, N8, ROWS>(q.weight, q.out, q.rows, a.ld, first_tile, wm, wn, rows, stages); \
    break;
  switch (q.format) {
    FORERUN_CASE(TILE_Q4_K)
    FORERUN_CASE(TILE_Q5_K)
    FORERUN_CASE(TILE_Q6_K)
    FORERUN_CASE(TILE_Q8_0)
    FORERUN_CASE(TILE_F16)
    FOR_OTHER_FORMATS(FORERUN_CASE)
  }
}

KERNEL(prompt_matmul, 255, PromptArgs, 256) {
  if (a.warps_n == 2) prompt_block<8, 4>(a, 2);
  else prompt_block<8, 2>(a, 1);
}
