// Products of experts' matrices with the rows that visit them, for decoding passes: out[visit][m] = sum over k of
// W[expert][m][k] x[row][k], several products with the same x and the same visits in one launch. See tiles.cuh.
//
// Work is cut into items: 16 rows of one product's matrix times up to 16 visits of one expert. The host does not know
// how many visits an expert has, so each block counts the items from `starts` and takes its share of them. A warp
// multiplies whole items, one after the other, all columns in order: a visit's bits depend on no other visit. The tiles
// of its items, one item behind the other, stream through a ring of its own; activations are read where they lie.
//
// Floor: the tiles of the experts that are visited, once each (a second group of visits finds them in L2): at 16 rows
// of 35B-A3B about 102 experts, 120 MB for gate and up, 88 MB for down: 27 + 20 us a layer on an H200. What limits:
// bytes in flight (the rings of a multiprocessor hold 200 KB) and the last items of each block.
//
// Launch: grid multiprocessors, block 384, shared 12 slots (slot_bytes + 8) + 4 (experts + 1), where slot_bytes is the
// largest tile of the products and slots, 1 to 8, what a block has room for.
// budget: experts 168
#include "ring.cuh"
#include "tiles.cuh"

constexpr int MAX_PRODUCTS = 8;
constexpr int WARPS = 12;
constexpr int GROUP = 16;  // visits multiplied together; with 32 registers spill

struct ExpertsProduct {
  const u8* weight;  // tiles [expert][ceil(rows / 16)][ld / 256]
  float* out;        // [visits][rows]
  int rows, format;
};
struct ExpertsArgs {
  ExpertsProduct products[MAX_PRODUCTS];
  Activation x;
  const u32* order;   // [visits]: row * top_k + rank, by expert
  const u32* starts;  // [experts + 1]
  int experts, divisor, count;  // x row of a visit is visit / divisor: top_k, or 1 where x has a row per visit
  int slots, slot_bytes, pad;
};
static_assert(sizeof(ExpertsProduct) == 24 && sizeof(ExpertsArgs) == 264, "mirrored in src/cuda/ops/experts.rs");

#ifndef FORERUN_EMULATION
__device__ __forceinline__ u8* shared_memory() {
  extern __shared__ __align__(128) u8 memory[];
  return memory;
}
// A tile into shared memory; lanes of a warp call this together.
__device__ __forceinline__ void copy_tile(u8* to, const u8* from, int bytes, u64* barrier, int lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    barrier_expect(barrier, bytes);
    copy_stream(to, from, bytes, barrier);
  }
#else
  copy_pieces(to, from, bytes, barrier, lane);
#endif
}
__device__ __forceinline__ void barriers_ready() {
#if __CUDA_ARCH__ >= 900
  barrier_init_fence();
#endif
}
#if __CUDA_ARCH__ >= 900
constexpr int ARRIVALS = 1;
#else
constexpr int ARRIVALS = 32;
#endif
#endif

// Where a warp stands in the list of items: groups of visits in order of their expert, and in each all row tiles of all
// products.
struct Cursor {
  u32 group;
  int expert, product, tile;  // tile: of that product

  __device__ __forceinline__ void settle(const ExpertsArgs& a, const u32* groups) {
    for (;;) {
      const int tiles = (a.products[product].rows + 15) / 16;
      if (tile < tiles) break;
      tile -= tiles;
      if (++product == a.count) {
        product = 0;
        group++;
      }
    }
    while (expert + 1 < a.experts && groups[expert + 1] <= group) expert++;
  }
  __device__ __forceinline__ const u8* tiles(const ExpertsArgs& a, int columns) const {
    const ExpertsProduct& p = a.products[product];
    return p.weight + ((size_t)expert * ((p.rows + 15) / 16) + tile) * columns * tile_bytes(p.format);
  }
};

// A warp's ring of tiles.
struct Ring {
  u8* slots;
  u64* barriers;
  int count, bytes;
  int slot;    // the next tile to multiply with
  u32 parity;
  int filled;  // where the next tile goes

  __device__ __forceinline__ const u8* wait() {
    barrier_wait(barriers + slot, parity);
    return slots + slot * bytes;
  }
  __device__ __forceinline__ void next() {
    if (++slot == count) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// What is asked for ahead of use.
struct Asked {
  Cursor at;
  const u8* from;
  int column, tile;  // next superblock, and bytes of a tile
  int left;          // items, this one included
};

__device__ __forceinline__ void ask(const ExpertsArgs& a, const u32* groups, int columns, Asked& s, Ring& ring,
                                    int lane) {
  if (s.left == 0) return;
  copy_tile(ring.slots + ring.filled * ring.bytes, s.from, s.tile, ring.barriers + ring.filled, lane);
  if (++ring.filled == ring.count) ring.filled = 0;
  s.from += s.tile;
  if (++s.column == columns) {
    s.column = 0;
    if (--s.left) {
      s.at.tile += WARPS;
      s.at.settle(a, groups);
      s.from = s.at.tiles(a, columns);
      s.tile = tile_bytes(a.products[s.at.product].format);
    }
  }
}

template <int FORMAT, int N8>
__device__ __forceinline__ void multiply_item(const ExpertsArgs& a, const u32* groups, int columns, const Cursor& at,
                                              const u32* visits, int count, Asked& asked, Ring& ring, int lane) {
  const int g = lane >> 2, t = lane & 3;
  const __half *x[N8], *sums[N8];
  float acc[1][N8][4];
#pragma unroll
  for (int j = 0; j < N8; j++) {
    const size_t row = visits[min(j * 8 + g, count - 1)] / (u32)a.divisor;
    x[j] = a.x.x + row * a.x.ld + 8 * t;
    sums[j] = a.x.sums + row * (a.x.ld / 16) + 2 * t;
#pragma unroll
    for (int e = 0; e < 4; e++) acc[0][j][e] = 0.f;
  }
  for (int k = 0; k < columns; k++) {
    multiply_tile<FORMAT, N8, 1>(ring.wait(), x, sums, acc, lane);
    __syncwarp();  // every lane has read the tile
    ring.next();
    ask(a, groups, columns, asked, ring, lane);
#pragma unroll
    for (int j = 0; j < N8; j++) {
      x[j] += 256;
      sums[j] += 16;
    }
  }
  const ExpertsProduct& p = a.products[at.product];
#pragma unroll
  for (int j = 0; j < N8; j++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int n = j * 8 + 2 * t + i, row = at.tile * 16 + g;
      if (n >= count) continue;
      float* out = p.out + (size_t)visits[n] * p.rows + row;
      if (row < p.rows) out[0] = acc[0][j][i];
      if (row + 8 < p.rows) out[8] = acc[0][j][2 + i];
    }
}

template <int FORMAT>
__device__ __forceinline__ void multiply_item(const ExpertsArgs& a, const u32* groups, int columns, const Cursor& at,
                                              const u32* visits, int count, Asked& asked, Ring& ring, int lane) {
  if (count <= 8) multiply_item<FORMAT, 1>(a, groups, columns, at, visits, count, asked, ring, lane);
  else multiply_item<FORMAT, 2>(a, groups, columns, at, visits, count, asked, ring, lane);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) experts(const __grid_constant__ ExpertsArgs a) {
  launch_dependents();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, columns = a.x.ld / 256;
  u8* memory = shared_memory();
  u64* barriers = (u64*)(memory + WARPS * a.slots * a.slot_bytes);
  u32* groups = (u32*)(barriers + WARPS * a.slots);  // [experts + 1]: groups of visits before each expert
  Ring ring{memory + warp * a.slots * a.slot_bytes, barriers + warp * a.slots, a.slots, a.slot_bytes, 0, 0, 0};
  if (lane == 0) {
    for (int i = 0; i < a.slots; i++) barrier_init(ring.barriers + i, ARRIVALS);
    barriers_ready();
  }
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

  u32 tiles = 0;
  for (int p = 0; p < a.count; p++) tiles += (a.products[p].rows + 15) / 16;
  const u64 total = (u64)groups[a.experts] * tiles;
  const u64 first = total * blockIdx.x / gridDim.x + warp, end = total * (blockIdx.x + 1) / gridDim.x;
  if (first >= end) return;
  Cursor at;
  at.group = (u32)(first / tiles);
  at.product = 0;
  at.tile = (int)(first % tiles);
  int low = 0, high = a.experts;  // groups[low] <= at.group < groups[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (groups[middle] <= at.group) low = middle;
    else high = middle;
  }
  at.expert = low;
  at.settle(a, groups);
  int left = (int)((end - first + WARPS - 1) / WARPS);
  Asked asked{at, at.tiles(a, columns), 0, tile_bytes(a.products[at.product].format), left};
  for (int i = 0; i < a.slots; i++) ask(a, groups, columns, asked, ring, lane);

  for (; left > 0; left--) {
    const u32 visit = a.starts[at.expert] + (at.group - groups[at.expert]) * GROUP;
    const int count = min((int)(a.starts[at.expert + 1] - visit), GROUP);
    const u32* visits = a.order + visit;
    switch (a.products[at.product].format) {
      case TILE_Q4_K: multiply_item<TILE_Q4_K>(a, groups, columns, at, visits, count, asked, ring, lane); break;
      case TILE_Q5_K: multiply_item<TILE_Q5_K>(a, groups, columns, at, visits, count, asked, ring, lane); break;
      case TILE_Q6_K: multiply_item<TILE_Q6_K>(a, groups, columns, at, visits, count, asked, ring, lane); break;
      case TILE_Q8_0: multiply_item<TILE_Q8_0>(a, groups, columns, at, visits, count, asked, ring, lane); break;
      case TILE_F16: multiply_item<TILE_F16>(a, groups, columns, at, visits, count, asked, ring, lane); break;
    }
    at.tile += WARPS;
    at.settle(a, groups);
  }
}
