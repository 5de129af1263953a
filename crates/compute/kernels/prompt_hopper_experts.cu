// Products of many rows with the experts they visit on Hopper: each expert's matrices of one format
// with the rows that visit it, in groups of BN visits. prompt_hopper.cuh has the arithmetic. Two
// warps gather x: 16-byte pieces, turned by the row as wgmma reads them.
//
// prompt_hopper_experts_FORMAT_BN: grid multiprocessors, block and shared as in prompt_hopper.cuh.
#include "places.cuh"
#include "prompt_hopper.cuh"

struct HopperExpertsArgs {
  const __half* x;
  const u32* order;   // [visits]: row * top_k + rank, by expert
  const u32* starts;  // [experts + 1]
  const u32* places;  // [experts], see places.cuh; may be null
  int columns;        // K, a multiple of 256
  // x row of a visit is visit / divisor: top_k, or 1 where x has a row per visit.
  int experts, divisor, count;
  int slots;          // weight tiles that a warp has room for
  PromptProduct products[MAX_PRODUCTS];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// What copies of 16 bytes wrote to shared memory is seen by the tensor cores after this and a
// barrier.
__device__ __forceinline__ void store_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int BN_> struct Visits {
  static constexpr int HALVES = 2, BN = BN_, X_THREADS = 64;
  const HopperExpertsArgs& a;
  const u32* groups;  // [experts + 1]
  int blocks;         // along M

  struct Item {
    int product, first_tile, expert, visits;
    const u32* order;
    __device__ __forceinline__ Item(const Visits& work, int number) {
      product = find_product(work.a, number % work.blocks, 128 * HALVES, first_tile);
      const u32 group = number / work.blocks;
      int low = 0, high = work.a.experts;  // groups[low] <= group < groups[high]
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (work.groups[middle] <= group) low = middle;
        else high = middle;
      }
      expert = low;
      const u32 first = work.a.starts[low] + (group - work.groups[low]) * BN;
      order = work.a.order + first;
      visits = min((int)(work.a.starts[low + 1] - first), BN);
    }
    __device__ __forceinline__ int out_row(const Visits&, int n) const {
      return n < visits ? (int)order[n] : -1;
    }
  };
  __device__ __forceinline__ int count() const { return groups[a.experts] * blocks; }
  __device__ __forceinline__ const u8* tiles(const Item& item, size_t bytes) const {
    const PromptProduct& q = a.products[item.product];
    return tiles_at(q.weight, q.copies, place_of(a.places, item.expert), bytes);
  }

  // Groups of visits before each expert.
  __device__ __forceinline__ void prepare(Shared& b) const {
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x;
    wait_for_inputs();
    u32 before = 0;
    for (int base = 0; base < a.experts; base += 32) {
      const int e = base + lane;
      const u32 own = e < a.experts ? (a.starts[e + 1] - a.starts[e] + BN - 1) / BN : 0;
      u32 sum = own;
#pragma unroll
      for (int i = 1; i < 32; i *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, i);
        if (lane >= i) sum += other;
      }
      if (e < a.experts) b.groups[e] = before + sum - own;
      before += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) b.groups[a.experts] = before;
  }

  // A thread copies a piece of every eighth row. Rows behind the last visit are copies of it:
  // nobody reads the result.
  __device__ __forceinline__ void bring_x(Shared& b, int thread) const {
    constexpr int STAGES = stages_of<BN>, LATE = STAGES - 2;  // copies in flight beside the newest
    const int piece = thread & 7, row = thread >> 3;
    u8* to = b.x + row * 128 + ((piece ^ row) << 4);
    Place stage, late;
    stage.phase = 1;  // the first round finds the stages empty
    int asked = 0;
    auto land = [&]() {
      store_fence();
      barrier_arrive(b.full + late.at);
      late.next(STAGES);
    };
    for (int number = blockIdx.x, items = count(); number < items; number += gridDim.x) {
      const Item item(*this, number);
      u32 from[BN / 8];  // halves from x on
#pragma unroll
      for (int i = 0; i < BN / 8; i++)
        from[i] = item.order[min(row + 8 * i, item.visits - 1)] / (u32)a.divisor * (u32)a.columns +
                  piece * 8;
      const __half* x = a.x;
#pragma unroll 1
      for (int left = a.columns; left > 0; left -= 64, x += 64) {
        barrier_wait(b.empty + stage.at, stage.phase);
        u8* here = to + stage.at * (BN * 128);
#pragma unroll
        for (int i = 0; i < BN / 8; i++) copy16(here + i * 1024, x + from[i], true);
        copy_commit();
        stage.next(STAGES);
        if (asked++ >= LATE) {
          copy_wait<LATE>();
          land();
        }
      }
    }
    copy_wait<0>();
    for (int left = min(asked, LATE); left > 0; left--) land();
  }
};

template <int FORMAT, int BN>
__device__ __forceinline__ void experts_block(const HopperExpertsArgs& a) {
  int blocks = 0;
  for (int p = 0; p < a.count; p++) blocks += (a.products[p].rows + 255) / 256;
  hopper_block<FORMAT>(Visits<BN>{a, ((Shared*)shared_memory())->groups, blocks});
}

// One format a kernel: with several, ptxas spills.
#define EXPERTS_KERNEL(NAME, REGISTERS, FORMAT, BN) \
  KERNEL(NAME, REGISTERS, HopperExpertsArgs, 384, 1) { experts_block<FORMAT, BN>(a); }

EXPERTS_KERNEL(prompt_hopper_experts_q4_k_64, 168, TILE_Q4_K, 64)
EXPERTS_KERNEL(prompt_hopper_experts_q4_k_96, 168, TILE_Q4_K, 96)
EXPERTS_KERNEL(prompt_hopper_experts_q5_k_64, 168, TILE_Q5_K, 64)
EXPERTS_KERNEL(prompt_hopper_experts_q5_k_96, 168, TILE_Q5_K, 96)
EXPERTS_KERNEL(prompt_hopper_experts_q6_k_64, 168, TILE_Q6_K, 64)
EXPERTS_KERNEL(prompt_hopper_experts_q6_k_96, 168, TILE_Q6_K, 96)
EXPERTS_KERNEL(prompt_hopper_experts_q8_0_64, 168, TILE_Q8_0, 64)
EXPERTS_KERNEL(prompt_hopper_experts_q8_0_96, 168, TILE_Q8_0, 96)
#endif
