// Products of weight matrices with the rows of a decoding pass: out[n][m] = sum_k W[m][k] x[n][k]. Matrices that share
// their activations go in one launch; their row tiles are numbered through. See tiles.cuh for the weights.
//
// Grid: slices x shares blocks of `warps` warps. Block (slice, share) multiplies the share's row tiles with its slice
// of the columns; its slice of all activation rows stays in shared memory while weights stream through a ring of
// `stages` tiles per warp, see stream.cuh. A share's tiles are cut over the warps by cost, in the middle of a row tile
// too: the later warp leaves its part in shared memory, where the earlier one, which ends on that tile, adds it. With
// one format a block works out where the cuts fall; with several it reads that from `cuts`: until it knows, it cannot
// ask for weights. The slices of a share are a cluster: a finished (tile, slice) is sent into the shared memory of the
// tile's owner in the cluster, which counts the bytes that come, or, where that has no room, into `workspace`, behind
// which there is a barrier of the cluster; after the last tile a sum in order of slices remains. Without clusters
// (before sm_90, or above 8 slices) `join` is set and matmul_join adds the workspace.
//
// A launch whose tiles are all of one format has a kernel for it; `mixed` kernels choose at every tile. There a small
// matrix whose tiles are larger than the others' is read from memory directly (DIRECT), or it would set the size of all
// rings.
//
// A row's bits: slices, shares, warps and cuts follow from the matrices and the device, never from the rows, so a row's
// sums have one order in any company. Rows, N8, stages and the place of partial sums may differ.
//
// Floor: the tiles' bytes at memory speed (Q4_K 2304 per 4096 weights). What limits it: between launches 4 us at 1 row
// and 5 at 16 (the end of the one before, activations, the sum over slices); then the instructions of a tile, about 270
// at up to 8 rows and 320 at 16, of which 144 decode it: schedulers issue in four cycles of five.
//
// Launch: matmul_8 / _16 for up to 8 / 16 rows, with the format's name or `mixed`; matmul_32_mixed for up to 32; grid
// slices * shares, block 32 * warps (see THREADS), cluster slices (1 if join), shared bytes, with
// depth = ceil(ld / 256 / slices):
//   warps * stages * stage_bytes + rows * (depth * 512 + 64) + rows * (depth * 32 + 16) + warps * rows * 80
//   + (slices > 1 and no workspace: slices * owned * rows * 80) + (warps + 1) * 8
// matmul_join: grid ceil(tiles * 4 * rows / 256), block 256.
// budget: matmul_8_q4_k 255
// budget: matmul_8_q6_k 255
// budget: matmul_8_q8_0 255
// budget: matmul_8_mixed 255
// budget: matmul_16_q4_k 255
// budget: matmul_16_q6_k 255
// budget: matmul_16_q8_0 255
// budget: matmul_16_mixed 255
// budget: matmul_32_mixed 255
// budget: matmul_join 40
#include "products.cuh"
#include "stream.cuh"

constexpr int CUTS = 24;  // words of a block in `cuts`
constexpr int LD = 20;  // floats from one activation row of a 16-row partial result to the next: no bank conflicts

// What a block needs before it can ask for weights comes first: the constants of a launch are fetched line by line.
struct MatmulArgs {
  const int* cuts;    // [blocks][CUTS]: where each warp begins and the last ends, as row tile of the share << 8 |
                      // superblock of the slice, 17 of them; the slice, -, -; its first row tile, how many; its first
                      // superblock, how many
  int product_count, tiles;     // row tiles of all products
  int share_tiles, larger;      // of one format: row tiles of a share, and how many shares, the first, have one more
  int slices, stages, stage_bytes, rows;  // output rows of this launch
  int x_stride;   // bytes from one activation row to the next in shared memory: 512 a superblock + 64
  int owned;      // row tiles of a share that one block of the cluster owns, at most
  int with_sums;  // some format has mins
  int join;       // no clusters: matmul_join adds the slices
  int first_row, pad;
  MatmulProduct products[MAX_PRODUCTS];
  Activation x;
  const int* chosen;  // activation row of each output row, or null: the same
  float* workspace;   // [slices - 1][rows][16 tiles] partial sums of slices 1.., or null; slice 0 goes to out
};
static_assert(sizeof(MatmulArgs) == 368, "mirrored in src/cuda/ops/matmul.rs");

// n / d for n below 2^22, in fewer steps than the compiler's.
__device__ __forceinline__ int quotient(int n, int d) {
  int q = (int)__fdividef((float)n, (float)d);  // off by one at most
  const int rest = n - q * d;
  q += rest >= d ? 1 : rest < 0 ? -1 : 0;
  return q;
}

// Writes four rows of a product for one activation row; rows beyond the matrix do not exist.
__device__ __forceinline__ void write4(const MatmulProduct& p, int n, int row, const float4& v) {
  float* out = p.out + (size_t)n * p.out_stride + row;
  if (row + 4 <= p.rows && ((size_t)out & 15) == 0) {
    *(float4*)out = v;
  } else {
    if (row < p.rows) out[0] = v.x;
    if (row + 1 < p.rows) out[1] = v.y;
    if (row + 2 < p.rows) out[2] = v.z;
    if (row + 3 < p.rows) out[3] = v.w;
  }
}
__device__ __forceinline__ float4 add4(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

#if __CUDA_ARCH__ < 900
__device__ __forceinline__ float load_written(const float* p) { return *p; }
__device__ __forceinline__ float4 load_written4(const float* p) { return *(const float4*)p; }
#endif

// Four rows of a tile for activation row n of the launch: out holds slice 0, the workspace the others.
__device__ __forceinline__ void join4(const MatmulArgs& a, int tile, int n, int quarter) {
  const MatmulProduct& p = a.products[product_of(a, tile)];
  const int row = (tile - p.first_tile) * 16 + quarter * 4;
  const float* out = p.out + (size_t)(a.first_row + n) * p.out_stride + row;
  float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
  if (row < p.rows) v.x = load_written(out);
  if (row + 1 < p.rows) v.y = load_written(out + 1);
  if (row + 2 < p.rows) v.z = load_written(out + 2);
  if (row + 3 < p.rows) v.w = load_written(out + 3);
  const float* part = a.workspace + ((size_t)n * a.tiles + tile) * 16 + quarter * 4;
  for (int i = 1; i < a.slices; i++, part += (size_t)a.rows * a.tiles * 16) v = add4(v, load_written4(part));
  write4(p, a.first_row + n, row, v);
}

template <int N8, int FORMAT>
__device__ __forceinline__ void matmul(const MatmulArgs& a) {
  extern __shared__ __align__(128) u8 memory[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const bool clustered = a.slices > 1 && !a.join;
  // The lines of constants that are needed soon: they come while others are waited for.
  asm volatile("" ::"l"(a.products[0].weight), "r"(a.x.ld), "l"(a.x.x), "l"(a.workspace));
  launch_dependents();
  const int superblocks = a.x.ld >> 8;
  int at, slice, first_tile, tiles, first_k, depth;  // lane w: where warp w begins
  if constexpr (FORMAT == MIXED) {
    const int* cuts = a.cuts + blockIdx.x * CUTS;
    const int4 part = *(const int4*)(cuts + 20);
    at = cuts[min(lane, warps)], slice = cuts[17];
    first_tile = part.x, tiles = part.y, first_k = part.z, depth = part.w;
  } else {
    const int share = quotient(blockIdx.x, a.slices);
    slice = blockIdx.x - share * a.slices;
    first_tile = share * a.share_tiles + min(share, a.larger), tiles = a.share_tiles + (share < a.larger);
    first_k = quotient(superblocks * slice, a.slices);
    depth = quotient(superblocks * (slice + 1), a.slices) - first_k;
    const int step = quotient(tiles * depth * min(lane, warps), warps), tile = quotient(step, depth);
    at = tile << 8 | (step - tile * depth);
  }

  const int stage_bytes = FORMAT == MIXED ? a.stage_bytes : tile_bytes(FORMAT);
  const int x_stride = a.x_stride, sums_stride = (x_stride >> 4) + 12, result = a.rows * LD;
  Ring ring = {memory + warp * a.stages * stage_bytes, a.stages, stage_bytes};
  u8* x = memory + warps * a.stages * stage_bytes;          // [rows][x_stride]
  u8* sums = x + a.rows * x_stride;                         // [rows][sums_stride]
  float* left = (float*)(sums + a.rows * sums_stride);      // [warps][rows][LD]: ends of row tiles, for the warp before
  float* parts = left + warps * result;                     // [slices][owned][rows][LD]
  u64* ended = (u64*)(parts + (clustered && !a.workspace ? a.slices * a.owned * result : 0));  // [warps]: of `left`
  u64* sent = ended + warps;                                // what others of the cluster send to this block is there
#if __CUDA_ARCH__ >= 900
  if (clustered) {
    if (threadIdx.x == 0) {
      barrier_init(sent, 1);
      barrier_init_fence();
    }
    __syncwarp();
    cluster_arrive_relaxed();
  }
#endif

  if (lane == 0) barrier_init(ended + warp, 32);

  // This warp's steps, one superblock of a row tile each, and the warp whose first step follows its last.
  const int begin = __shfl_sync(~0u, at, warp), end = __shfl_sync(~0u, at, warp + 1);
  const int after = __shfl_down_sync(~0u, at, 1);
  const u32 busy = __ballot_sync(~0u, lane < warps && at < after);
  const int next_warp = __ffs(busy >> (warp + 1)) + warp;
  int k = begin & 255, tile = first_tile + (begin >> 8);
  int steps = ((end >> 8) - (begin >> 8)) * depth + (end & 255) - k;

  // What is asked for next: the rest of this warp's row tile, then `unasked` steps from row tile `ahead_tile` on.
  int unasked = steps, ahead_tile = tile, ahead_k = k;
  Ahead ahead = {nullptr, 0, FORMAT};
  auto advance = [&] {
    if (!unasked) return;
    const MatmulProduct& p = a.products[product_of(a, ahead_tile)];
    if (FORMAT == MIXED) ahead.format = p.format;
    ahead.at = p.weight + lane * 16 +
               ((size_t)(ahead_tile++ - p.first_tile) * superblocks + first_k + ahead_k) * bytes_of(ahead.format);
    ahead.left = min(depth - ahead_k, unasked);
    unasked -= ahead.left;
    ahead_k = 0;
  };
  advance();
  const u64 policy = streamed();
#pragma unroll 1
  for (int i = 0; i < a.stages; i++) {
    ask<FORMAT>(ring, ahead, advance, policy);
    ring.step();
  }

  // Weights are on their way; activations come from the kernel before this one.
  wait_for_inputs();
  // A warp asks for a row, 16 bytes a lane: that is there sooner than what one lane asks for in whole rows.
  const int x_pieces = depth * 32, row_pieces = x_pieces + (a.with_sums ? depth * 2 : 0);
#pragma unroll 1
  for (int n = warp; n < a.rows; n += warps) {
    const size_t row = a.chosen ? a.chosen[a.first_row + n] : a.first_row + n;
    const __half* from = a.x.x + row * a.x.ld + first_k * 256 + lane * 8;
    const __half* sums_from = a.x.sums + row * (a.x.ld / 16) + first_k * 16 - x_pieces * 8 + lane * 8;
    const u32 to = shared_address(x + n * x_stride) + lane * 16;
    const u32 sums_to = shared_address(sums + n * sums_stride) - x_pieces * 16 + lane * 16;
#pragma unroll 4
    for (int piece = 0; piece < row_pieces - lane; piece += 32) {
      const bool of_x = piece + lane < x_pieces;
      copy_piece((of_x ? to : sums_to) + piece * 16, (of_x ? from : sums_from) + piece * 8);
    }
  }
  copies_done();
  __syncthreads();  // and barriers are initialised
#if __CUDA_ARCH__ >= 900
  if (clustered) cluster_wait();  // every block of the cluster runs: its shared memory may be written
#endif

  const int g = lane >> 2, t = lane & 3;
  bool from_start = k == 0;  // this warp holds the first columns of the row tile
  while (steps) {
    const MatmulProduct& p = a.products[product_of(a, tile)];
    const int count = min(depth - k, steps);
    const __half *xs[N8], *ss[N8];  // of activation rows that do not exist, the last one's; their results are dropped
    float acc[1][N8][4];
#pragma unroll
    for (int j = 0; j < N8; j++) {
      const int n = min(j * 8 + g, a.rows - 1);
      xs[j] = (const __half*)(x + n * x_stride + t * 16 + k * 512);
      ss[j] = (const __half*)(sums + n * sums_stride + t * 4 + k * 32);
      acc[0][j][0] = acc[0][j][1] = acc[0][j][2] = acc[0][j][3] = 0.f;
    }
    if constexpr (FORMAT != MIXED) {
      multiply_tiles<FORMAT, N8>(ring, count, xs, ss, acc, ahead, advance, policy);
    } else {
      const u8* from = p.weight + ((size_t)(tile - p.first_tile) * superblocks + first_k + k) * bytes_of(p.format);
      multiply_tiles_of<N8>(p.format, from, ring, count, xs, ss, acc, ahead, advance, policy);
    }
    steps -= count;
    k += count;

    // The row tile ends, or this warp's part of it: the rest was the first thing the next warp computed.
    if (k < depth) {
      barrier_wait(ended + next_warp, 0);
      const float* rest = left + next_warp * result + g;
#pragma unroll
      for (int j = 0; j < N8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          acc[0][j][e] += rest[min(j * 8 + 2 * t + (e & 1), a.rows - 1) * LD + (e >> 1) * 8];
    }
    auto each = [&](auto put) {  // put(activation row, row of the tile, number)
#pragma unroll
      for (int j = 0; j < N8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) put(j * 8 + 2 * t + (e & 1), g + (e >> 1) * 8, acc[0][j][e]);
    };
    const int row = (tile - p.first_tile) * 16;
    if (!from_start) {
      float* to = left + warp * result;
      each([&](int n, int i, float v) {
        if (n < a.rows) to[n * LD + i] = v;
      });
      barrier_arrive(ended + warp);
#if __CUDA_ARCH__ >= 900
    } else if (clustered && !a.workspace) {
      const int index = tile - first_tile, mine = quotient(index, a.slices), owner = index - mine * a.slices;
      const u32 to = address_in(parts + (slice * a.owned + mine) * result, owner), signal = address_in(sent, owner);
      each([&](int n, int i, float v) { send_to_if(n < a.rows, to + (n * LD + i) * 4, v, signal); });
#endif
    } else if (slice == 0) {
      float* to = p.out + (size_t)a.first_row * p.out_stride + row;
      each([&](int n, int i, float v) {
        if (n < a.rows && row + i < p.rows) to[(size_t)n * p.out_stride + i] = v;
      });
    } else {
      float* to = a.workspace + ((size_t)(slice - 1) * a.rows * a.tiles + tile) * 16;
      each([&](int n, int i, float v) {
        if (n < a.rows) to[(size_t)n * a.tiles * 16 + i] = v;
      });
    }
    from_start = true;
    k = 0;
    tile++;
  }

#if __CUDA_ARCH__ >= 900
  if (!clustered) return;
  // This block owns the share's row tiles slice, slice + slices, ...
  const int mine = quotient(tiles - slice + a.slices - 1, a.slices);
  if (a.workspace) {
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  } else {
    if (threadIdx.x == 0) barrier_expect(sent, mine * a.slices * a.rows * 64);
    barrier_wait(sent, 0);
  }
  for (int i = threadIdx.x; i < mine * a.rows * 4; i += blockDim.x) {
    const int quarter = i & 3, index = quotient(i >> 2, a.rows), n = (i >> 2) - index * a.rows;
    const int at = first_tile + index * a.slices + slice;
    if (a.workspace) {
      join4(a, at, n, quarter);
    } else {
      const float* part = parts + index * result + n * LD + quarter * 4;
      float4 v = load_written4(part);
      for (int s = 1; s < a.slices; s++) v = add4(v, load_written4(part + s * a.owned * result));
      const MatmulProduct& p = a.products[product_of(a, at)];
      write4(p, a.first_row + n, (at - p.first_tile) * 16 + quarter * 4, v);
    }
  }
#endif
}

// 16 warps where shared memory has room for their rings; the accumulators of 32 rows leave registers for 8 only.
#if __CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
constexpr int THREADS = 512;
#else
constexpr int THREADS = 256;
#endif

#define MATMUL(NAME, LIMIT, N8, FORMAT) \
  extern "C" __global__ void __launch_bounds__(LIMIT, 1) NAME(const __grid_constant__ MatmulArgs a) { \
    matmul<N8, FORMAT>(a); \
  }
MATMUL(matmul_8_q4_k, THREADS, 1, TILE_Q4_K)
MATMUL(matmul_8_q6_k, THREADS, 1, TILE_Q6_K)
MATMUL(matmul_8_q8_0, THREADS, 1, TILE_Q8_0)
MATMUL(matmul_8_mixed, THREADS, 1, MIXED)
MATMUL(matmul_16_q4_k, THREADS, 2, TILE_Q4_K)
MATMUL(matmul_16_q6_k, THREADS, 2, TILE_Q6_K)
MATMUL(matmul_16_q8_0, THREADS, 2, TILE_Q8_0)
MATMUL(matmul_16_mixed, THREADS, 2, MIXED)
MATMUL(matmul_32_mixed, 256, 4, MIXED)

extern "C" __global__ void __launch_bounds__(256) matmul_join(const __grid_constant__ MatmulArgs a) {
  launch_dependents();
  wait_for_inputs();
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < a.tiles * 4 * a.rows) join4(a, (i >> 2) % a.tiles, (i >> 2) / a.tiles, i & 3);
}
