// Products of weight matrices with the rows of a decoding pass: out[n][m] = sum_k W[m][k] x[n][k].
// Matrices that share their activations go in one launch; their row tiles are numbered through. See
// tiles.cuh for the weights.
//
// Grid: slices x shares blocks of `warps` warps. Block (slice, share) multiplies the share's row
// tiles with its slice of the columns; its slice of all activation rows stays in shared memory
// while weights stream through a ring of `stages` tiles per warp, see stream.cuh. A share's tiles
// are cut over the warps by cost, in the middle of a row tile too: later warps leave their parts
// in shared memory, where the one that has the tile's beginning adds them in order. With one format
// a block works out where the cuts fall; with several it reads that from `cuts`: until it knows, it
// cannot ask for weights. The slices of a share are a cluster: a finished (tile, slice) is sent
// into the shared memory of the tile's owner in the cluster, which counts the bytes that come, or,
// where that has no room, into `workspace`, behind which there is a barrier of the cluster; after
// the last tile a sum in order of slices remains. Without clusters (before sm_90, or above 8
// slices) `join` is set and matmul_join adds the workspace.
//
// A launch whose tiles are all of one format has a kernel for it; `mixed` kernels choose at every
// tile. There a small matrix whose tiles are larger than the others' is read from memory directly
// (DIRECT), or it would set the size of all rings.
//
// A row's bits: slices, shares, warps and cuts follow from the matrices and the device, never from
// the rows, so a row's sums have one order in any company. Rows, N8, stages and the place of
// partial sums may differ.
//
// Floor: the tiles' bytes at memory speed (Q4_K 2304 per 4096 weights). What limits it: between
// launches 4 us at 1 row and 5 at 16 (the end of the one before, activations, the sum over slices);
// then the instructions of a tile, about 270 at up to 8 rows and 320 at 16, of which 144 decode it:
// schedulers issue in four cycles of five.
//
// More than 16 rows go in phases: shared memory holds the activations of `held` superblocks of the
// slice, all warps go through their row tiles for those columns, leave the sums in memory
// (`parked`), and take them up again when the next activations are there. Sums are taken in the
// same order as without phases; a row tile's end waits for the last phase.
//
// Shared bytes of a block, with x_rows the rows, rounded up to 8 where there are more than 8, and
// held the depth of a slice, ceil(ld / 256 / slices), where there are no phases:
//   warps * stages * stage_bytes + x_rows * (held * 512 + 64) + x_rows * (held * 32 + 16) + warps *
//   rows * 80
//   + (slices > 1 and no workspace: slices * owned * rows * 80) + (warps + 1) * 8
#pragma once
#include "products.cuh"
#include "stream.cuh"

constexpr int CUTS = 24;  // words of a block in `cuts`
// Floats from one activation row of a 16-row partial result to the next: no bank conflicts.
constexpr int LD = 20;

// What a block needs before it can ask for weights comes first: the constants of a launch are
// fetched line by line.
struct MatmulArgs {
  // [blocks][CUTS]: where each warp begins and the last ends, as row tile of the share << 8 |
  // superblock of the slice, 17 of them; the slice, -, -; its first row tile, how many; its first
  // superblock, how many.
  const int* cuts;
  int product_count, tiles;     // row tiles of all products
  // Of one format: row tiles of a share, and how many shares, the first, have one more.
  int share_tiles, larger;
  int slices, stages, stage_bytes, rows;  // output rows of this launch
  // Bytes from one activation row to the next in shared memory: 512 a superblock held + 64.
  int x_stride;
  int owned;      // row tiles of a share that one block of the cluster owns, at most
  int with_sums;  // some format has mins
  int join;       // no clusters: matmul_join adds the slices
  int first_row;
  // Superblocks of activations in shared memory, where a launch has more than 16 rows.
  int held;
  MatmulProduct products[MAX_PRODUCTS];
  Activation x;
  const int* chosen;  // activation row of each output row, or null: the same
  // [slices - 1][rows][16 tiles] partial sums of slices 1.., or null; slice 0 goes to out.
  float* workspace;
  // [blocks][warps][most_parked][N8][32 lanes]: sums of row tiles between two phases.
  float4* parked;
  int most_parked, most_units;
  const int2* units;  // these are matmul_hopper.cu's
  const u32* chains;
};

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

// Four rows of a tile for activation row n of the launch: out holds slice 0, the workspace the
// others.
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
  for (int i = 1; i < a.slices; i++, part += (size_t)a.rows * a.tiles * 16)
    v = add4(v, load_written4(part));
  write4(p, a.first_row + n, row, v);
}

// A block's part of the work: row tiles of a share, superblocks of a slice.
struct Part {
  int slice, first_tile, tiles, first_k, depth;
  int at;  // lane w: where warp w begins, as in `cuts`
};

template <int FORMAT> __device__ __forceinline__ Part part_of_block(const MatmulArgs& a) {
  const int lane = threadIdx.x & 31, warps = blockDim.x >> 5, superblocks = a.x.ld >> 8;
  Part b;
  if constexpr (is_mixed(FORMAT)) {
    const int* cuts = a.cuts + blockIdx.x * CUTS;
    const int4 part = *(const int4*)(cuts + 20);
    b.at = cuts[min(lane, warps)], b.slice = cuts[17];
    b.first_tile = part.x, b.tiles = part.y, b.first_k = part.z, b.depth = part.w;
  } else {
    const int share = quotient(blockIdx.x, a.slices);
    b.slice = blockIdx.x - share * a.slices;
    b.first_tile = share * a.share_tiles + min(share, a.larger),
    b.tiles = a.share_tiles + (share < a.larger);
    b.first_k = quotient(superblocks * b.slice, a.slices);
    b.depth = quotient(superblocks * (b.slice + 1), a.slices) - b.first_k;
    const int step = quotient(b.tiles * b.depth * min(lane, warps), warps),
              tile = quotient(step, b.depth);
    b.at = tile << 8 | (step - tile * b.depth);
  }
  return b;
}

// Where the slices of a row tile are added.
struct Slices {
  float* parts;    // [slices][owned][rows][LD], if there is no workspace
  u64* sent;       // what others of the cluster send to this block is there
  bool clustered;

  // Says that this block runs. Before the first `put` the block waits for the others of the
  // cluster.
  __device__ __forceinline__ void open() const {
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
  }

  // A row tile's sum over this slice.
  template <int N8>
  __device__ __forceinline__ void put(const MatmulArgs& a, const Part& b, int tile,
                                      const float (&acc)[1][N8][4]) const {
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, result = a.rows * LD;
    const MatmulProduct& p = a.products[product_of(a, tile)];
    const int row = (tile - p.first_tile) * 16;
    auto each = [&](auto one) {  // one(activation row, row of the tile, number)
#pragma unroll
      for (int j = 0; j < N8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) one(j * 8 + 2 * t + (e & 1), g + (e >> 1) * 8, acc[0][j][e]);
    };
#if __CUDA_ARCH__ >= 900
    if (clustered && !a.workspace) {
      const int index = tile - b.first_tile, mine = quotient(index, a.slices),
                owner = index - mine * a.slices;
      const u32 to = address_in(parts + (b.slice * a.owned + mine) * result, owner),
                signal = address_in(sent, owner);
      each(
          [&](int n, int i, float v) { send_to_if(n < a.rows, to + (n * LD + i) * 4, v, signal); });
      return;
    }
#endif
    if (b.slice == 0) {
      float* to = p.out + (size_t)a.first_row * p.out_stride + row;
      each([&](int n, int i, float v) {
        if (n < a.rows && row + i < p.rows) to[(size_t)n * p.out_stride + i] = v;
      });
    } else {
      float* to = a.workspace + ((size_t)(b.slice - 1) * a.rows * a.tiles + tile) * 16;
      each([&](int n, int i, float v) {
        if (n < a.rows) to[(size_t)n * a.tiles * 16 + i] = v;
      });
    }
  }

  // Adds the slices of the row tiles that this block owns: the share's slice, slice + slices, ...
  __device__ __forceinline__ void add(const MatmulArgs& a, const Part& b) const {
#if __CUDA_ARCH__ >= 900
    if (!clustered) return;
    const int mine = quotient(b.tiles - b.slice + a.slices - 1, a.slices), result = a.rows * LD;
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
      const int at = b.first_tile + index * a.slices + b.slice;
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
};

template <int N8, int FORMAT>
__device__ __forceinline__ void matmul(const MatmulArgs& a) {
  extern __shared__ __align__(128) u8 memory[];
  constexpr bool PHASES = N8 > 2;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  // The lines of constants that are needed soon: they come while others are waited for.
  asm volatile("" ::"l"(a.products[0].weight), "r"(a.x.ld), "l"(a.x.x), "l"(a.workspace));
  launch_dependents();
  const int superblocks = a.x.ld >> 8;
  const Part b = part_of_block<FORMAT>(a);
  const int depth = b.depth;

  const int stage_bytes = is_mixed(FORMAT) ? a.stage_bytes : tile_bytes(FORMAT);
  const int x_stride = a.x_stride, sums_stride = (x_stride >> 4) + 12, result = a.rows * LD;
  // Those that do not exist hold anything: their results are dropped.
  const int x_rows = N8 == 1 ? a.rows : 8 * N8;
  Ring ring = {memory + warp * a.stages * stage_bytes, a.stages, stage_bytes};
  u8* x = memory + warps * a.stages * stage_bytes;          // [x_rows][x_stride]
  u8* sums = x + x_rows * x_stride;                         // [x_rows][sums_stride]
  // [warps][rows][LD]: ends of row tiles, for the warp before.
  float* left = (float*)(sums + x_rows * sums_stride);
  Slices slices = {left + warps * result, nullptr, a.slices > 1 && !a.join};
  // [warps].
  u64* ended =
      (u64*)(slices.parts + (slices.clustered && !a.workspace ? a.slices * a.owned * result : 0));
  slices.sent = ended + warps;
  slices.open();
  if (lane == 0) barrier_init(ended + warp, 32);

  // This warp's steps, one superblock of a row tile each, numbered as in `cuts`, and the warp whose
  // first step follows its last. Its part of a row tile ends at superblock `stop`.
  const int begin = __shfl_sync(~0u, b.at, warp), end = __shfl_sync(~0u, b.at, warp + 1);
  const int after = __shfl_down_sync(~0u, b.at, 1);
  const u32 busy = __ballot_sync(~0u, lane < warps && b.at < after);
  auto stop = [&](int step) { return (step | 255) < end ? depth : end & 255; };
  auto next_tile = [](int step) { return (step | 255) + 1; };

  // Asking goes row tile by row tile; in phases, through those superblocks of each that lie in the
  // phase.
  int next = begin, next_from = 0;
  Ahead ahead = {nullptr, 0, FORMAT};
  auto advance = [&] {
    int tile, from, count;
    do {
      if (next >= end) {
        next_from += a.held;
        if (!PHASES || next_from >= depth) return;
        next = begin;
      }
      tile = b.first_tile + (next >> 8);
      from = PHASES ? max(next & 255, next_from) : next & 255;
      count = (PHASES ? min(stop(next), next_from + a.held) : stop(next)) - from;
      next = next_tile(next);
    } while (PHASES && count <= 0);
    const MatmulProduct& p = a.products[product_of(a, tile)];
    if (is_mixed(FORMAT)) ahead.format = p.format;
    ahead.at =
        p.weight + lane * 16 +
        ((size_t)(tile - p.first_tile) * superblocks + b.first_k + from) * bytes_of(ahead.format);
    ahead.left = count;
  };
  if (begin < end) advance();
  const u64 policy = streamed();
#pragma unroll 1
  for (int i = 0; i < a.stages; i++) {
    ask<FORMAT>(ring, ahead, advance, policy);
    ring.step();
  }

  // Weights are on their way; activations come from the kernel before this one.
  fill_book<FORMAT>();
  wait_for_inputs();
  const int g = lane >> 2, t = lane & 3;
  // Superblocks of the slice whose activations are here.
  int from = 0, to = PHASES ? min(a.held, depth) : depth;
#pragma unroll 1
  for (;;) {
    // A warp asks for a row, 16 bytes a lane: that is there sooner than what one lane asks for in
    // whole rows.
    const int x_pieces = (to - from) * 32,
              row_pieces = x_pieces + (a.with_sums ? (to - from) * 2 : 0);
#pragma unroll 1
    for (int n = warp; n < a.rows; n += warps) {
      const size_t row = a.chosen ? a.chosen[a.first_row + n] : a.first_row + n;
      const __half* x_from = a.x.x + row * a.x.ld + (b.first_k + from) * 256 + lane * 8;
      const __half* sums_from =
          a.x.sums + row * (a.x.ld / 16) + (b.first_k + from) * 16 - x_pieces * 8 + lane * 8;
      const u32 x_to = shared_address(x + n * x_stride) + lane * 16;
      const u32 sums_to = shared_address(sums + n * sums_stride) - x_pieces * 16 + lane * 16;
#pragma unroll 4
      for (int piece = 0; piece < row_pieces - lane; piece += 32) {
        const bool of_x = piece + lane < x_pieces;
        copy_piece((of_x ? x_to : sums_to) + piece * 16, (of_x ? x_from : sums_from) + piece * 8);
      }
    }
    copies_done();
    __syncthreads();  // and barriers are initialised, and a codebook is there
#if __CUDA_ARCH__ >= 900
    // Every block runs: its shared memory may be written.
    if (slices.clustered && from == 0) cluster_wait();
#endif

#pragma unroll 1
    for (int step = begin; step < end; step = next_tile(step)) {
      const int k = step & 255, tile = b.first_tile + (step >> 8);
      const int now = PHASES ? max(k, from) : k,
                count = (PHASES ? min(stop(step), to) : stop(step)) - now;
      if (PHASES && count <= 0 && to < depth) continue;
      const int n = N8 == 1 ? min(g, a.rows - 1) : g;
      Rows rows = {(const __half*)(x + n * x_stride + t * 16 + (now - from) * 512),
                   (const __half*)(sums + n * sums_stride + t * 4 + (now - from) * 32),
                   x_stride * 4, sums_stride * 4};
      float acc[1][N8][4] = {};
      auto parked = [&](int j) -> float4& {
        const size_t place =
            (size_t)(blockIdx.x * warps + warp) * a.most_parked + (step >> 8) - (begin >> 8);
        return a.parked[(place * N8 + j) * 32 + lane];
      };
      if (PHASES && k < from) {
#pragma unroll
        for (int j = 0; j < N8; j++) {
          const float4 v = parked(j);
          acc[0][j][0] = v.x, acc[0][j][1] = v.y, acc[0][j][2] = v.z, acc[0][j][3] = v.w;
        }
      }
      if (PHASES && count <= 0) {
        // This warp's part of the row tile ended in a phase before.
      } else if constexpr (!is_mixed(FORMAT)) {
        multiply_tiles<FORMAT, N8>(ring, count, rows, acc, ahead, advance, policy);
      } else {
        const MatmulProduct& p = a.products[product_of(a, tile)];
        const u8* weights =
            p.weight +
            ((size_t)(tile - p.first_tile) * superblocks + b.first_k + now) * bytes_of(p.format);
        multiply_tiles_of<FORMAT, N8>(p.format, weights, ring, count, rows, acc, ahead, advance,
                                      policy);
      }
      if (PHASES && to < depth) {
#pragma unroll
        for (int j = 0; j < N8; j++)
          parked(j) = make_float4(acc[0][j][0], acc[0][j][1], acc[0][j][2], acc[0][j][3]);
        continue;
      }
      // The row tile ends, or this warp's part of it: what is left of it was the first thing that
      // the next warps computed. Whoever has its beginning adds that in order.
      if (k == 0 && stop(step) < depth) {
        int other = warp, other_end;
        do {
          other = __ffs(busy >> (other + 1)) + other;
          other_end = __shfl_sync(~0u, b.at, other + 1);
          barrier_wait(ended + other, 0);
          const float* rest = left + other * result + g;
#pragma unroll
          for (int j = 0; j < N8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
              acc[0][j][e] += rest[min(j * 8 + 2 * t + (e & 1), a.rows - 1) * LD + (e >> 1) * 8];
        } while (other_end < next_tile(step));
      }
      if (k == 0) {
        slices.put(a, b, tile, acc);
      } else {
        float* to = left + warp * result + g;
#pragma unroll
        for (int j = 0; j < N8; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const int n = j * 8 + 2 * t + (e & 1);
            if (n < a.rows) to[n * LD + (e >> 1) * 8] = acc[0][j][e];
          }
        barrier_arrive(ended + warp);
      }
    }
    if (!PHASES || to == depth) break;
    from = to;
    to = min(to + a.held, depth);
    __syncthreads();  // nobody reads the activations of this phase any more
  }
  slices.add(a, b);
}

// 16 warps where shared memory has room for their rings.
#if __CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
#define WARPS_16
constexpr int THREADS = 512;
#else
constexpr int THREADS = 256;
#endif

#define MATMUL_KERNEL(NAME, REGISTERS, N8, FORMAT) \
  KERNEL(NAME, REGISTERS, MatmulArgs, THREADS, 1) { matmul<N8, FORMAT>(a); }
