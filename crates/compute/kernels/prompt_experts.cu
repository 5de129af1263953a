// Products of many rows with the experts they visit: each expert's matrices with the rows that
// visit it, in groups of
// 64. prompt_multiply.cuh has the arithmetic.
//
// Grid multiprocessors (blocks loop over groups and 256 weight rows), block 256, shared 4 64 128 +
// 4 (experts + 1).
#include "places.cuh"
#include "prompt_multiply.cuh"

struct PromptExpertsArgs {
  const __half* x;
  const u32* order;   // [visits]: row * top_k + rank, by expert
  const u32* starts;  // [experts + 1]
  const u32* places;  // [experts], see places.cuh; may be null
  // x row of a visit is visit / divisor: top_k, or 1 where x has a row per visit.
  int ld, experts, divisor, count;
  PromptProduct products[MAX_PRODUCTS];
};

constexpr int GROUP = 64;  // visits of one expert multiplied together

struct VisitRows {
  const __half* from[2];
  const u32* visits;
  int count;
  __device__ __forceinline__ bool there(int i) const {
    return (int)(threadIdx.x >> 3) + 32 * i < count;
  }
  __device__ __forceinline__ const __half* source(int i) const { return from[i]; }
  __device__ __forceinline__ int out(int n) const { return n < count ? (int)visits[n] : -1; }
};

template <bool OTHERS> __device__ __forceinline__ void multiply_visits(const PromptExpertsArgs& a) {
  launch_dependents();
  u8* stages = shared_memory();
  // [experts + 1]: groups of visits before each expert.
  u32* groups = (u32*)(stages + STAGES * GROUP * 128);
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
  wait_for_inputs();
  if (warp == 0) {
    u32 before = 0;
    for (int base = 0; base < a.experts; base += 32) {
      const int e = base + lane;
      const u32 own = e < a.experts ? (a.starts[e + 1] - a.starts[e] + GROUP - 1) / GROUP : 0;
      u32 sum = own;
#pragma unroll
      for (int i = 1; i < 32; i *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, i);
        if (lane >= i) sum += other;
      }
      if (e < a.experts) groups[e] = before + sum - own;
      before += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) groups[a.experts] = before;
  }
  __syncthreads();
  int blocks = 0;  // along M
  for (int p = 0; p < a.count; p++) blocks += (a.products[p].rows + 255) / 256;
  const u32 total = groups[a.experts] * blocks;
  for (u32 item = blockIdx.x; item < total; item += gridDim.x) {
    const u32 group = item / blocks;
    int first_tile;
    const int p = find_product(a, item % blocks, 256, first_tile);
    int low = 0, high = a.experts;  // groups[low] <= group < groups[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (groups[middle] <= group) low = middle;
      else high = middle;
    }
    const u32 first = a.starts[low] + (group - groups[low]) * GROUP;
    const int count = min((int)(a.starts[low + 1] - first), GROUP);
    VisitRows rows{{}, a.order + first, count};
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const u32 visit = rows.visits[min((tid >> 3) + 32 * i, count - 1)];
      rows.from[i] = a.x + (size_t)(visit / (u32)a.divisor) * a.ld + (tid & 7) * 8;
    }
    const PromptProduct q = a.products[p];
    const u32 expert_tiles = (q.rows + 15) / 16 * (a.ld / 256), place = place_of(a.places, low);
    const u8* from = is_hot(place) ? q.copies : q.weight;
    const size_t before = (size_t)expert_tiles * number_of(place);
#define FORERUN_CASE(F)                                                                        \
  case F:                                                                                      \
    multiply<F, 8, 2>(from + before * tile_bytes(F), q.out, q.rows, a.ld, first_tile, warp, 0, \
                      rows, stages);                                                           \
    break;
    switch (q.format) {
      FORERUN_CASE(TILE_Q4_K)
      FORERUN_CASE(TILE_Q5_K)
      FORERUN_CASE(TILE_Q6_K)
      FORERUN_CASE(TILE_Q8_0)
      FORERUN_CASE(TILE_F16)
      default:
        if constexpr (OTHERS) {
          switch (q.format) { FOR_OTHER_FORMATS(FORERUN_CASE) }
        }
    }
    __syncthreads();  // every warp is done with the stages
  }
}

KERNEL(prompt_experts, 255, PromptExpertsArgs, 256) { multiply_visits<false>(a); }
KERNEL(prompt_experts_others, 255, PromptExpertsArgs, 256) { multiply_visits<true>(a); }
