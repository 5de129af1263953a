// Products of weight matrices with 17 to 64 rows of a decoding pass, on Hopper: the bits and the
// cuts of matmul.cuh, by wgmma. See tiles.cuh for the weights.
//
// Weights are decoded to registers, 16 rows a warp, and are the A operand; the tensor cores read
// activations from shared memory, once for the 64 weight rows of a warpgroup. A unit is up to four
// row tiles of one format, one a warp of a warpgroup; the units of a share are dealt to the
// warpgroups in rounds, and in each a block goes through the superblocks of its slice.
//
// Two warps ask for what the others multiply. One streams tiles through a ring whose stage has a
// tile of every multiplying warp; it begins before the inputs are there. The other brings the
// activations, a superblock at a time, one copy each: whoever writes activations (store8) leaves
// them arranged for that, see Activation::arranged; chosen rows are arranged by a launch.
//
// A row's bits: chains of wgmma m64nNk16 give the bits of chains of mma.m16n8k16. A new chain of
// sums begins where a warp of matmul.cuh begins; what was summed before is kept in shared memory,
// and the pieces are added from the first to the last, as matmul.cuh's warps do. Sums of slices are
// parked in memory, and added in order by the block of the cluster that owns the row tile.
//
// Floor: the tiles' bytes at memory speed. What limits it: instructions and their latency, about
// 370 a tile; a tile alone takes a scheduler 545 cycles of 32 rows and 733 of 64 where three warps
// share it, 640 and 900 with all that is around it; then the ends of a launch, a sixth of it.
//
// Launch: matmul_hopper_N_FORMAT for up to N = 24, 32, 48, 64 rows; grid slices * shares, cluster
// slices, block 32 * (warps + 4), warps at most 4 * GROUPS of them multiplying; shared bytes
//   held * N * 544 + stages * warps * stage_bytes + warps * N * 64 + (held + stages) * 16
// arrange: grid (superblocks, ceil(rows / 8)), 256 threads.
#define REGISTERS_ARE_SCARCE
#include "matmul.cuh"
#include "wgmma.cuh"

// Of MatmulArgs:
//   held    stages of activations; `stages` those of tiles
//   units   [shares][most_units]: first row tile and number of row tiles of every unit; those that
//           exist come first
//   chains  [slices][tiles]: bit k: a chain of sums begins with superblock k of the slice, never
//           bit 0
//   parked  [blocks][owned * slices][N8][32 lanes]: the sums of the share's row tiles

// Chosen rows, as Activation::arranged has all.
struct ArrangeArgs {
  Activation x;
  const int* chosen;
  u8* out;
  int rows;
};

KERNEL(arrange, 40, ArrangeArgs, 256) {
  launch_dependents();
  wait_for_inputs();
  const int k = blockIdx.x, lane = threadIdx.x & 31, n = blockIdx.y * 8 + (threadIdx.x >> 5);
  if (n >= a.rows) return;
  const size_t row = a.chosen[n];
  const uint4 v = load16(a.x.x + row * a.x.ld + k * 256 + lane * 8);
  u32* to = (u32*)arranged_at(a.out, n, k * 256 + lane * 8);
  to[0] = v.x, to[32] = v.y, to[64] = v.z, to[96] = v.w;
  if (lane < 2)
    *(uint4*)(arranged_at(a.out, n, k * 256) + 4096 + lane * 128) =
        load16(a.x.sums + row * (a.x.ld / 16) + k * 16 + lane * 8);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Core matrices of 8 rows x 8 columns are 128 bytes; the next 8 columns follow, the next 8 rows are
// ARRANGED_BYTES on. The part of a descriptor that changes is 32 bits, and the same in all lanes.
__device__ __forceinline__ u64 matrix_at(u32 low) {
  return (u64)(ARRANGED_BYTES / 16) << 32 | low;
}

constexpr int K16 = 2 * 128 / 16;  // 16 columns further in a descriptor

// acc += a row tile of each of the four warps times the activation rows, over 256 columns, in the
// order of multiply_tile in tiles.cuh. `x` describes the superblock's activations. `done` is called
// when neither they nor the tile are read any more.
template <int FORMAT, int N8, class Done>
__device__ __forceinline__ void multiply_unit(const u8* tile, u32 x, float (&acc)[N8][4],
                                              const Done& done) {
  typedef Tile<FORMAT> T;
  const int lane = threadIdx.x & 31;
  // Words of the next 64 columns are asked for while these are decoded, where registers allow.
  constexpr bool AHEAD = FORMAT != TILE_F16 && (N8 <= 4 || (is_grouped(FORMAT) && N8 <= 6));
  // Tiles that come straight from memory are asked for as a whole.
  constexpr int BUFFERS = FORMAT == TILE_F16 ? 4 : 2;
  float even[N8][4], odd[N8][4];
  u32 a[BUFFERS][4][4];
  typename T::Head head = T::head(tile, lane);
  typename T::Words next;
  if constexpr (AHEAD) next = T::words(tile, 0, lane);
  if constexpr (FORMAT == TILE_F16)
#pragma unroll
    for (int c = 0; c < BUFFERS; c++) T::chunk(tile, head, c, lane, a[c]);
#pragma unroll
  for (int c = 0; c < 4; c++) {
    // Read again, it would take 16 registers.
    if (FORMAT == TILE_Q6_K && c > 0) head = T::head(tile, lane);
    const typename T::Words now = next;
    if constexpr (AHEAD)
      if (c < 3) next = T::words(tile, c + 1, lane);
    // The wgmma that read this buffer.
    if (!is_grouped(FORMAT) && c >= BUFFERS) warpgroup_wait<1>();
    u32(&f)[4][4] = a[c % BUFFERS];
    if constexpr (AHEAD) T::decode(now, head, c, lane, f);
    else if (FORMAT != TILE_F16 || c >= BUFFERS) T::chunk(tile, head, c, lane, f);
    hold(f);
    const auto b = [&](int i) { return matrix_at(x + (4 * c + i) * K16); };
    warpgroup_fence();
    if constexpr (is_grouped(FORMAT)) {
      warpgroup_mma(even, f[0], b(0), false);
      warpgroup_mma(odd, f[2], b(2), false);
      warpgroup_mma(even, f[1], b(1), true);
      warpgroup_mma(odd, f[3], b(3), true);
      warpgroup_commit();
      float d[2], d2[2];
      T::group(tile, head, 2 * c, lane, d);
      T::group(tile, head, 2 * c + 1, lane, d2);
      warpgroup_wait<0>();
      if (c == 3) done();
#pragma unroll
      for (int j = 0; j < N8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          acc[j][e] = __fmaf_rn(d2[e >> 1], odd[j][e], __fmaf_rn(d[e >> 1], even[j][e], acc[j][e]));
    } else {
      warpgroup_mma(even, f[0], b(0), c > 0);
      warpgroup_mma(odd, f[1], b(1), c > 0);
      warpgroup_mma(even, f[2], b(2), true);
      warpgroup_mma(odd, f[3], b(3), true);
      warpgroup_commit();
    }
  }
  if constexpr (!is_grouped(FORMAT)) {
    constexpr bool MINS = FORMAT == TILE_Q4_K || FORMAT == TILE_Q5_K;
    float d[2], m[2], e4[N8][4];
    if constexpr (!MINS || N8 <= 4) T::ends(tile, head, lane, d);
    if constexpr (MINS) {
      u32 f[4];
      if (N8 > 4) head = T::head(tile, lane);  // it would take eight registers
      if constexpr (N8 > 4) T::ends(tile, head, lane, d);
      T::mins(head, lane, f, m);
      // So that e4 may have the registers of the first buffer, or of both.
      warpgroup_wait<(N8 > 4 ? 0 : 1)>();
      hold(f);
      warpgroup_fence();
      warpgroup_mma(e4, f, matrix_at(x + 16 * K16), false);
      warpgroup_commit();
    }
    warpgroup_wait<0>();
    done();
#pragma unroll
    for (int j = 0; j < N8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[j][e] = __fmaf_rn(d[e >> 1], even[j][e] + odd[j][e], acc[j][e]);
        if constexpr (MINS) acc[j][e] = __fmaf_rn(m[e >> 1], e4[j][e], acc[j][e]);
      }
  }
}

// Stages that warps fill and others empty, in turn.
struct Stages {
  u64* full;  // [count], then as many that say where stages are empty
  int count, at = 0;
  u32 turn = 0;  // whose lowest bit is the parity of the filling waited for

  __device__ __forceinline__ void step() {
    if (++at == count) at = 0, turn ^= 1;
  }
  __device__ __forceinline__ void wait_full() const { barrier_wait(full + at, turn); }
  __device__ __forceinline__ void wait_empty() const { barrier_wait(full + count + at, turn ^ 1); }
  // By all lanes of a warp: what they read here may be overwritten. Each says so itself, as
  // racecheck wants to see it, which cannot follow one that speaks for its warp.
  __device__ __forceinline__ void leave() const { barrier_arrive(full + count + at); }
};

// What the warps of a block share of a launch.
template <int N8, int FORMAT> struct Block {
  static constexpr int X_BYTES = N8 * ARRANGED_BYTES;
  const MatmulArgs& a;
  Part part;
  int warps, groups, units, stage_bytes;
  const int2* share_units;
  u8 *x, *tiles;
  float4* kept;  // [warps][N8][32 lanes]: what a row tile's chains before this one came to
  Stages of_x, of_tiles;

  __device__ __forceinline__ Block(const MatmulArgs& args, u8* memory) : a(args) {
    warps = (blockDim.x >> 5) - 4, groups = warps >> 2;
    part = part_of_block<FORMAT>(a);
    stage_bytes = FORMAT == MIXED ? a.stage_bytes : tile_bytes(FORMAT);
    x = memory, tiles = x + a.held * X_BYTES;
    kept = (float4*)(tiles + a.stages * warps * stage_bytes);
    u64* barriers = (u64*)(kept + warps * N8 * 32);
    of_x = {barriers, a.held};
    of_tiles = {barriers + 2 * a.held, a.stages};
    share_units = a.units + quotient(blockIdx.x, a.slices) * a.most_units;
    if (threadIdx.x == 0) {
      for (int i = 0; i < a.held; i++)
        barrier_init(of_x.full + i, 1), barrier_init(of_x.full + a.held + i, 32 * warps);
      for (int i = 0; i < a.stages; i++)
        barrier_init(of_tiles.full + i, 1), barrier_init(of_tiles.full + a.stages + i, 32 * warps);
      barrier_init_fence();
    }
    if constexpr (FORMAT == MIXED) {
      const int lane = threadIdx.x & 31;
      units = 0;
      for (int i = 0; i < a.most_units; i += 32)
        units += __popc(__ballot_sync(~0u, i + lane < a.most_units && share_units[i + lane].y > 0));
    } else {
      units = (part.tiles + 3) >> 2;
    }
    __syncthreads();
  }

  // First row tile and number of them. Of one format they follow from the share: until a block
  // knows them, it cannot ask for weights.
  __device__ __forceinline__ int2 unit(int i) const {
    if (i >= units) return make_int2(0, 0);
    if constexpr (FORMAT == MIXED) return share_units[i];
    return make_int2(part.first_tile + 4 * i, min(4, part.tiles - 4 * i));
  }
  // The row tile of a warp, or -1.
  __device__ __forceinline__ int tile_of(int i, int warp) const {
    const int2 unit = this->unit(i);
    return (warp & 3) < unit.y ? unit.x + (warp & 3) : -1;
  }
  __device__ __forceinline__ float4* parked(int block, int place) const {
    return a.parked + ((size_t)block * a.owned * a.slices + place) * N8 * 32 + (threadIdx.x & 31);
  }
  // Where a tile lies, from the first superblock of the slice on.
  __device__ __forceinline__ const u8* weights(int tile) const {
    const MatmulProduct& p = a.products[product_of(a, tile)];
    const int format = FORMAT == MIXED ? p.format : FORMAT;
    return p.weight +
           ((size_t)(tile - p.first_tile) * (a.x.ld >> 8) + part.first_k) * bytes_of(format);
  }

  // One warp asks for tiles, a lane for those of a multiplying warp.
  __device__ __forceinline__ void stream_tiles() {
    const int lane = threadIdx.x & 31;
    const u64 policy = streamed();
#pragma unroll 1
    for (int first = 0; first < units; first += groups) {
      const int tile = tile_of(first + (lane >> 2), lane);
      const u8* from = nullptr;
      int bytes = 0;
      if (lane < warps && tile >= 0) {
        const int format = FORMAT == MIXED ? a.products[product_of(a, tile)].format : FORMAT;
        if (!(format & DIRECT)) bytes = bytes_of(format);
        from = weights(tile);
        // To be read directly: not from memory, with a wait for each superblock.
        if (!bytes) prefetch(from, part.depth * bytes_of(format));
      }
      const u32 total = __reduce_add_sync(~0u, bytes);
#pragma unroll 1
      for (int k = 0; k < part.depth; k++) {
        of_tiles.wait_empty();
        u64* const full = of_tiles.full + of_tiles.at;
        if (lane == 0) barrier_expect(full, total);
        __syncwarp();
        if (bytes) {
          u8* const to = tiles + (of_tiles.at * warps + lane) * stage_bytes;
          copy_stream(to, from, bytes, full, policy);
          from += bytes;
        }
        of_tiles.step();
      }
    }
  }

  // One lane asks for activations.
  __device__ __forceinline__ void stream_x() {
    constexpr size_t EIGHTS = DECODE_ROWS / 8;
    const u8* const from =
        a.x.arranged + (part.first_k * EIGHTS + a.first_row / 8) * ARRANGED_BYTES;
#pragma unroll 1
    for (int first = 0; first < units; first += groups)
#pragma unroll 1
      for (int k = 0; k < part.depth; k++) {
        of_x.wait_empty();
        u64* const full = of_x.full + of_x.at;
        barrier_expect(full, X_BYTES);
        copy_bulk(x + of_x.at * X_BYTES, from + k * EIGHTS * ARRANGED_BYTES, X_BYTES, full);
        of_x.step();
      }
  }

  // Where the chains of sums of a row tile begin.
  __device__ __forceinline__ u32 chains(int tile) const {
    return tile < 0 ? 0 : a.chains[part.slice * a.tiles + tile];
  }

  // The others multiply.
  __device__ __forceinline__ void multiply() {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    // Core matrices of 8 rows x 8 columns are 128 bytes; the next 8 columns follow, the next 8 rows
    // are ARRANGED_BYTES on.
    const u32 x_matrix = 128 / 16 << 16 | (shared_address(x) & 0x3ffff) >> 4;
    const u8* const own = tiles + warp * stage_bytes;
    float4* const mine = kept + warp * N8 * 32 + lane;
    int i = warp >> 2, tile = tile_of(i, warp);
    u32 begins = chains(tile);
    wait_for_inputs();  // what is parked may still be read by the launch before
#pragma unroll 1
    for (; i - (warp >> 2) < units; i += groups) {
      if (i >= units) {  // in the last round
#pragma unroll 1
        for (int k = 0; k < part.depth; k++) {
          of_tiles.wait_full(), of_tiles.leave(), of_tiles.step();
          of_x.wait_full(), of_x.leave(), of_x.step();
        }
        break;
      }
      const int format = FORMAT == MIXED ? a.products[product_of(a, unit(i).x)].format : FORMAT;
      float acc[N8][4];
#pragma unroll
      for (int j = 0; j < N8; j++) acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0.f;
      const auto join = [&](int j) {
        float(&v)[4] = acc[j];
        const float4 b = mine[j * 32];
        v[0] = b.x + v[0], v[1] = b.y + v[1], v[2] = b.z + v[2], v[3] = b.w + v[3];
      };
#pragma unroll 1
      for (int k = 0; k < part.depth; k++) {
        if (begins >> k & 1) {
          const bool is_first = (begins & ((1u << k) - 1)) == 0;
#pragma unroll
          for (int j = 0; j < N8; j++) {
            if (!is_first) join(j);
            float(&v)[4] = acc[j];
            mine[j * 32] = make_float4(v[0], v[1], v[2], v[3]);
            v[0] = v[1] = v[2] = v[3] = 0.f;
          }
        }
        of_tiles.wait_full();
        of_x.wait_full();
        const u32 xk = __shfl_sync(~0u, x_matrix + of_x.at * (X_BYTES / 16), 0);
        const u8* here = own + of_tiles.at * warps * stage_bytes;
        const auto done = [&] { of_tiles.leave(); };
        if constexpr (FORMAT != MIXED) {
          multiply_unit<FORMAT, N8>(here, xk, acc, done);
        } else {
          // A warp without a row tile multiplies whatever lies there, and drops it. A direct tile
          // is larger than a slot, and the last slot ends where shared memory does.
          if (format & DIRECT)
            here = tile < 0 ? tiles : weights(tile) + (size_t)k * bytes_of(format);
          switch (format & (DIRECT - 1)) {
            case TILE_Q4_K: multiply_unit<TILE_Q4_K, N8>(here, xk, acc, done); break;
            case TILE_Q5_K: multiply_unit<TILE_Q5_K, N8>(here, xk, acc, done); break;
            case TILE_Q6_K: multiply_unit<TILE_Q6_K, N8>(here, xk, acc, done); break;
            case TILE_Q8_0: multiply_unit<TILE_Q8_0, N8>(here, xk, acc, done); break;
            default: multiply_unit<TILE_F16, N8>(here, xk, acc, done);
          }
        }
        of_tiles.step();
        of_x.leave();
        of_x.step();
      }
      if (begins)
#pragma unroll
        for (int j = 0; j < N8; j++) join(j);
      if (tile >= 0) {
        float4* at = parked(blockIdx.x, tile - part.first_tile);
#pragma unroll
        for (int j = 0; j < N8; j++)
          at[j * 32] = make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
      }
      tile = tile_of(i + groups, warp), begins = chains(tile);
    }
  }

  // Adds the slices of the row tiles that this block owns: the share's slice, slice + slices, ...
  __device__ __forceinline__ void add() const {
    constexpr int BATCH = N8 > 4 ? 2 : 4;  // slices that are asked for together
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll 1
    for (int i = (threadIdx.x >> 5) * a.slices + part.slice; i < part.tiles;
         i += warps * a.slices) {
      const int tile = part.first_tile + i;
      const MatmulProduct& p = a.products[product_of(a, tile)];
      float4 v[N8];
#pragma unroll 1
      for (int s = 0; s < a.slices; s += BATCH) {
        float4 w[BATCH][N8];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
          if (b > 0 && s + b >= a.slices) break;
          const float4* from = parked(blockIdx.x - part.slice + s + b, i);
#pragma unroll
          for (int j = 0; j < N8; j++) w[b][j] = __ldcg(from + j * 32);  // written by other blocks
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
          if (b > 0 && s + b >= a.slices) break;
#pragma unroll
          for (int j = 0; j < N8; j++) v[j] = s + b == 0 ? w[b][j] : add4(v[j], w[b][j]);
        }
      }
      const int row = (tile - p.first_tile) * 16 + g;
#pragma unroll
      for (int j = 0; j < N8; j++) {
        float* out = p.out + (size_t)(a.first_row + 8 * j + 2 * t) * p.out_stride + row;
#pragma unroll
        for (int h = 0; h < 2; h++, out += p.out_stride) {
          if (8 * j + 2 * t + h >= a.rows) continue;
          if (row < p.rows) out[0] = h ? v[j].y : v[j].x;
          if (row + 8 < p.rows) out[8] = h ? v[j].w : v[j].z;
        }
      }
    }
  }
};

// All of a cluster have parked what they have.
__device__ __forceinline__ void meet(bool clustered) {
  __syncwarp();
  if (clustered) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
}

template <int N8, int FORMAT, int GROUPS>
__device__ __forceinline__ void matmul_hopper(const MatmulArgs& a) {
  extern __shared__ __align__(128) u8 memory[];
  // What a block has: 40 + 2 x 232 = 3 x 168, 32 + 3 x 160 = 4 x 128, more than 40 + 3 x 152.
  constexpr bool LARGE = N8 > 6 || FORMAT == MIXED;
  launch_dependents();
  Block<N8, FORMAT> block(a, memory);
  const int warp = threadIdx.x >> 5;
  if (warp >= block.warps) {
    fewer_registers<(LARGE && GROUPS == 3 ? 32 : 40)>();
    if (warp == block.warps) {
      block.stream_tiles();
    } else if (warp == block.warps + 1) {
      wait_for_inputs();
      if ((threadIdx.x & 31) == 0) block.stream_x();
    }
    meet(a.slices > 1);
  } else {
    more_registers<(GROUPS == 2 ? 232 : LARGE ? 160 : 152)>();
    block.multiply();
    meet(a.slices > 1);
    block.add();
  }
}

// Sums of 64 rows and tiles of any format leave registers for two warpgroups.
#define HOPPER_KERNEL(NAME, REGISTERS, N8, FORMAT, GROUPS)     \
  KERNEL(NAME, REGISTERS, MatmulArgs, 128 * GROUPS + 128, 1) { \
    matmul_hopper<N8, FORMAT, GROUPS>(a);                      \
  }

HOPPER_KERNEL(matmul_hopper_24_q4_k, 128, 3, TILE_Q4_K, 3)
HOPPER_KERNEL(matmul_hopper_24_q6_k, 128, 3, TILE_Q6_K, 3)
HOPPER_KERNEL(matmul_hopper_24_q8_0, 128, 3, TILE_Q8_0, 3)
HOPPER_KERNEL(matmul_hopper_24_mixed, 128, 3, MIXED, 3)
HOPPER_KERNEL(matmul_hopper_32_q4_k, 128, 4, TILE_Q4_K, 3)
HOPPER_KERNEL(matmul_hopper_32_q6_k, 128, 4, TILE_Q6_K, 3)
HOPPER_KERNEL(matmul_hopper_32_q8_0, 128, 4, TILE_Q8_0, 3)
HOPPER_KERNEL(matmul_hopper_32_mixed, 128, 4, MIXED, 3)
HOPPER_KERNEL(matmul_hopper_48_q4_k, 128, 6, TILE_Q4_K, 3)
HOPPER_KERNEL(matmul_hopper_48_q6_k, 128, 6, TILE_Q6_K, 3)
HOPPER_KERNEL(matmul_hopper_48_q8_0, 128, 6, TILE_Q8_0, 3)
HOPPER_KERNEL(matmul_hopper_48_mixed, 168, 6, MIXED, 2)
HOPPER_KERNEL(matmul_hopper_64_q4_k, 128, 8, TILE_Q4_K, 3)
HOPPER_KERNEL(matmul_hopper_64_q6_k, 128, 8, TILE_Q6_K, 3)
HOPPER_KERNEL(matmul_hopper_64_q8_0, 128, 8, TILE_Q8_0, 3)
HOPPER_KERNEL(matmul_hopper_64_mixed, 168, 8, MIXED, 2)
#endif
