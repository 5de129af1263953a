// Products with many activation rows on Hopper (wgmma, sm_90a alone): out[n][m] = sum over k of
// W[m][k] x[n][k], several matrices of one format with the same x in one launch. prompt_hopper.cuh
// has the arithmetic. x comes by tensor copies that one lane asks for. Tiles that fill the last
// wave of blocks matter as much as the rate: hence several BN.
//
// prompt_hopper_FORMAT_BN: BM 256 (HALVES 2); prompt_hopper_half_FORMAT: BM 128, BN 128.
//   grid min(multiprocessors, tiles), block 384, shared as in prompt_hopper.cuh.
#include "prompt_hopper.cuh"

struct alignas(64) TensorMap {  // as the driver writes it
  u64 words[16];
};
struct HopperArgs {
  // [rows][K] halves, boxes of 64 columns and BN rows, pieces of 16 bytes turned by the row.
  TensorMap x;
  int columns;  // K, a multiple of 256
  int rows, count;
  int slots;    // weight tiles that a warp has room for
  PromptProduct products[MAX_PRODUCTS];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// A box of x, from column `column` of row `row` on. Rows that are not there become zeros.
__device__ __forceinline__ void copy_box(void* to, const TensorMap& x, int column, int row,
                                         u64* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
               "l"(&x), "r"(shared_address(barrier)), "r"(column), "r"(row)
               : "memory");
}

template <int HALVES_, int BN_> struct Rows {
  static constexpr int HALVES = HALVES_, BN = BN_, X_THREADS = 1;
  const HopperArgs& a;

  struct Item {
    int product, first_tile, n0;
    __device__ __forceinline__ Item(const Rows& work, int number) {
      const int across = (work.a.rows + BN - 1) / BN;
      product = find_product(work.a, number / across, 128 * HALVES, first_tile);
      n0 = number % across * BN;
    }
    __device__ __forceinline__ int out_row(const Rows& work, int n) const {
      return n0 + n < work.a.rows ? n0 + n : -1;
    }
  };
  __device__ __forceinline__ int count() const {
    int blocks = 0;
    for (int p = 0; p < a.count; p++)
      blocks += (a.products[p].rows + 128 * HALVES - 1) / (128 * HALVES);
    return blocks * ((a.rows + BN - 1) / BN);
  }
  __device__ __forceinline__ const u8* tiles(const Item& item, size_t) const {
    return a.products[item.product].weight;
  }
  __device__ __forceinline__ void prepare(Shared&) const {}
  __device__ __forceinline__ void bring_x(Shared& b, int) const {
    Place stage;
    stage.phase = 1;  // the first round finds the stages empty
    for (int number = blockIdx.x, items = count(); number < items; number += gridDim.x) {
      const int n0 = Item(*this, number).n0;
#pragma unroll 1
      for (int column = 0; column < a.columns; column += 64) {
        barrier_wait(b.empty + stage.at, stage.phase);
        barrier_expect(b.full + stage.at, BN * 128);
        copy_box(b.x + stage.at * (BN * 128), a.x, column, n0, b.full + stage.at);
        stage.next(stages_of<BN>);
      }
    }
  }
};

// One format a kernel: with several, ptxas spills.
#define PROMPT_KERNEL(NAME, REGISTERS, FORMAT, HALVES, BN) \
  KERNEL(NAME, REGISTERS, HopperArgs, 384, 1) { hopper_block<FORMAT>(Rows<HALVES, BN>{a}); }

PROMPT_KERNEL(prompt_hopper_q4_k_96, 168, TILE_Q4_K, 2, 96)
PROMPT_KERNEL(prompt_hopper_q4_k_128, 168, TILE_Q4_K, 2, 128)
PROMPT_KERNEL(prompt_hopper_q4_k_160, 168, TILE_Q4_K, 2, 160)
PROMPT_KERNEL(prompt_hopper_half_q4_k, 168, TILE_Q4_K, 1, 128)
PROMPT_KERNEL(prompt_hopper_q5_k_96, 168, TILE_Q5_K, 2, 96)
PROMPT_KERNEL(prompt_hopper_q5_k_128, 168, TILE_Q5_K, 2, 128)
PROMPT_KERNEL(prompt_hopper_q5_k_160, 168, TILE_Q5_K, 2, 160)
PROMPT_KERNEL(prompt_hopper_half_q5_k, 168, TILE_Q5_K, 1, 128)
PROMPT_KERNEL(prompt_hopper_q6_k_96, 168, TILE_Q6_K, 2, 96)
PROMPT_KERNEL(prompt_hopper_q6_k_128, 168, TILE_Q6_K, 2, 128)
PROMPT_KERNEL(prompt_hopper_q6_k_160, 168, TILE_Q6_K, 2, 160)
PROMPT_KERNEL(prompt_hopper_half_q6_k, 168, TILE_Q6_K, 1, 128)
PROMPT_KERNEL(prompt_hopper_q8_0_96, 168, TILE_Q8_0, 2, 96)
PROMPT_KERNEL(prompt_hopper_q8_0_128, 168, TILE_Q8_0, 2, 128)
PROMPT_KERNEL(prompt_hopper_q8_0_160, 168, TILE_Q8_0, 2, 160)
PROMPT_KERNEL(prompt_hopper_half_q8_0, 168, TILE_Q8_0, 1, 128)
PROMPT_KERNEL(prompt_hopper_half_f16, 168, TILE_F16, 1, 128)
PROMPT_KERNEL(prompt_hopper_half_fp8, 168, TILE_FP8, 1, 128)
PROMPT_KERNEL(prompt_hopper_half_fp4, 168, TILE_FP4, 1, 128)
PROMPT_KERNEL(prompt_hopper_half_int4, 168, TILE_INT4, 1, 128)
PROMPT_KERNEL(prompt_hopper_half_int4_32, 168, TILE_INT4_32, 1, 128)
PROMPT_KERNEL(prompt_hopper_half_iq4, 168, TILE_IQ4, 1, 128)
PROMPT_KERNEL(prompt_hopper_half_iq3_s, 168, TILE_IQ3_S, 1, 128)
PROMPT_KERNEL(prompt_hopper_half_iq3_xxs, 168, TILE_IQ3_XXS, 1, 128)
PROMPT_KERNEL(prompt_hopper_half_iq2, 168, TILE_IQ2, 1, 128)
#endif
