// Products of weight matrices with 17 to 32 rows of a decoding pass, on Hopper: the bits of matmul.cu, the weights read
// once. See tiles.cuh for the weights, matmul.cu for what is computed.
//
// Weights are decoded to registers, 16 rows a warp, and are the A operand of wgmma; activations are read by the tensor
// cores from shared memory. Three warpgroups multiply. Each has up to UNITS units, four row tiles of one format, whose
// sums stay in registers while the columns go by, a superblock of 256 at a time. Three warps of a fourth warpgroup
// bring the activations, 8 rows x 32 columns at a time, into the order that wgmma and the tiles want; the last one
// brings weights, a ring of `slots` tiles for each multiplying warp. A share of row tiles that is too large for the
// registers is worked off in rounds. `spread` blocks, a cluster, take a slice of the columns each, or one block takes
// them all.
//
// A row's bits: chains of wgmma m64nNk16 give the bits of chains of mma.m16n8k16. Sums of a superblock are those of
// multiply_tile; superblocks are added in chains that begin where a warp of matmul.cu begins (`chains`), the pieces of
// a slice are joined from the last to the first, and slices are added in order.
//
// Floor: the tiles' bytes at memory speed; instruction issue limits (about 360 a step of a unit).
//
// Launch: matmul_wide_24_FORMAT / _32_FORMAT for up to 24 / 32 rows; grid shares * spread, cluster spread, block 512,
// shared bytes, with N = 24 / 32: N * (X_STAGES * 544 + RAW_STAGES * 576) + 12 * slots * slot_bytes
//   + (spread - 1) * owned * N * 64 + 2 * (X_STAGES + 12 * slots) * 8
// budget: matmul_wide_24_q4_k 128
// budget: matmul_wide_24_q6_k 128
// budget: matmul_wide_24_mixed 128
// budget: matmul_wide_32_q4_k 128
// budget: matmul_wide_32_q6_k 128
// budget: matmul_wide_32_mixed 128
#include "products.cuh"
#include "ring.cuh"
#include "tiles.cuh"
#include "wgmma.cuh"

constexpr int MIXED = -1;
constexpr int GROUPS = 3;       // warpgroups that multiply; one more brings activations and weights
constexpr int X_WARPS = 3;      // of the latter, for activations; the last is for weights
constexpr int UNITS = 3;        // units a warpgroup works on side by side
constexpr int PIECES = 4;       // of a slice's sum, at most
constexpr int X_STAGES = 3;     // superblocks of activations, arranged
constexpr int RAW_STAGES = 2;   // and as they come
constexpr int HALF_F16 = 4096;  // an F16 tile passes through the ring in two halves

struct WideArgs {
  MatmulProduct products[MAX_PRODUCTS];
  Activation x;
  const int* chosen;  // activation row of each output row, or null: the same
  const u32* chains;  // [tiles][4]: bit k: a new chain of sums begins with superblock k
  const int2* work;   // [shares][rounds][GROUPS][UNITS]: first row tile; number of row tiles + 256 * warp of the first
  int product_count, tiles, first_row, rows;
  int slices, spread, rounds;  // spread: blocks of a cluster that share the slices, `slices` or 1
  int slots, slot_bytes;       // of a warp's ring
  int owned;                   // row tiles that one block of a cluster adds up, at most
};
static_assert(sizeof(WideArgs) == 352, "mirrored in src/cuda/ops/matmul/wide.rs");

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FORERUN_EMULATION)

// ------------------------------------------------------------------ instructions

#ifndef FORERUN_EMULATION  // an emulator on the CPU brings its own
__device__ __forceinline__ void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
// What ordinary stores wrote to shared memory is seen by the tensor cores after this and a barrier.
__device__ __forceinline__ void store_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
template <int N> __device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
// Without a branch: one between wgmma in flight makes ptxas wait for each of them.
__device__ __forceinline__ void barrier_arrive_if(u64* b, bool yes) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared.b64 _, [%0];\n}" ::"r"(
                   shared_address(b)),
               "r"((u32)yes)
               : "memory");
}
__device__ __forceinline__ void store_in4(u32 address, const float (&v)[4]) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(v[0]), "f"(v[1]), "f"(v[2]),
               "f"(v[3])
               : "memory");
}
#endif

// ------------------------------------------------------------------ one step

// acc += a row tile of each of the four warps times the activation rows, over 256 columns. In the order of
// multiply_tile in tiles.cuh. `x` and `sums` describe the superblock's activations. `free` is called when the weights
// have been read, `second` gives the second half of an F16 tile.
template <int FORMAT, int N8, class Free>
__device__ __forceinline__ void step(const u8* tile, const u8* second, u64 x, u64 sums, float (&acc)[N8][4], int lane,
                                     const Free& free) {
  typedef Tile<FORMAT> T;
  constexpr int K16 = 2 * N8 * 8;  // 16 columns further in a descriptor
  float even[N8][4], odd[N8][4];
  u32 a[2][4][4];
  typename T::Head head = T::head(tile, lane);
#pragma unroll
  for (int c = 0; c < 4; c++) {
    if (FORMAT == TILE_Q6_K && c > 0) head = T::head(tile, lane);  // read again, it would take 16 registers
    if (FORMAT != TILE_Q8_0 && c >= 2) warpgroup_wait<1>();  // the wgmma that read this buffer
    u32(&f)[4][4] = a[c & 1];
    T::chunk(FORMAT == TILE_F16 && c >= 2 ? second - HALF_F16 : tile, head, c, lane, f);
    hold(f);
    const u64 b = x + c * 4 * K16;
    warpgroup_fence();
    if constexpr (FORMAT == TILE_Q8_0) {
      warpgroup_mma(even, f[0], b, false);
      warpgroup_mma(odd, f[2], b + 2 * K16, false);
      warpgroup_mma(even, f[1], b + K16, true);
      warpgroup_mma(odd, f[3], b + 3 * K16, true);
      warpgroup_commit();
      float d[2], d2[2];
      T::group(head, 2 * c, d);
      T::group(head, 2 * c + 1, d2);
      warpgroup_wait<0>();
#pragma unroll
      for (int j = 0; j < N8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          acc[j][e] = __fmaf_rn(d2[e >> 1], odd[j][e], __fmaf_rn(d[e >> 1], even[j][e], acc[j][e]));
    } else {
      warpgroup_mma(even, f[0], b, c > 0);
      warpgroup_mma(odd, f[1], b + K16, c > 0);
      warpgroup_mma(even, f[2], b + 2 * K16, true);
      warpgroup_mma(odd, f[3], b + 3 * K16, true);
      warpgroup_commit();
    }
  }
  if constexpr (FORMAT == TILE_Q8_0) {
    free();
  } else {
    float d[2], m[2], e4[N8][4];
    T::ends(tile, head, lane, d);
    if constexpr (FORMAT == TILE_Q4_K || FORMAT == TILE_Q5_K) {
      u32 f[4];
      T::mins(head, lane, f, m);
      warpgroup_wait<1>();  // so that e4 may have the registers of the first buffer
      hold(f);
      warpgroup_fence();
      warpgroup_mma(e4, f, sums, false);
      warpgroup_commit();
    }
    free();
    warpgroup_wait<0>();
#pragma unroll
    for (int j = 0; j < N8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[j][e] = __fmaf_rn(d[e >> 1], even[j][e] + odd[j][e], acc[j][e]);
        if constexpr (FORMAT == TILE_Q4_K || FORMAT == TILE_Q5_K) acc[j][e] = __fmaf_rn(m[e >> 1], e4[j][e], acc[j][e]);
      }
  }
}

// ------------------------------------------------------------------ the block

struct Place {  // of a block in the launch
  int first_k, depth, share, slice;
};

// Activations: every superblock of the block's columns, once a round. They come as rows and are arranged as
// [32 groups of 8 columns][8 N8 rows][8] in the tiles' order of columns, then the sums as [2][8 N8 rows][8]. Warp w has
// groups of 32 columns w, w + 3, w + 6; the last has the sums instead of its third. A lane arranges what it copied.
template <int N8>
__device__ __forceinline__ void bring_x(const WideArgs& a, const Place& p, u8* raw, u8* stages, u64* full, u64* empty,
                                        int warp, int lane) {
  constexpr int N = 8 * N8, STAGE = N * 544, COPIES = 3 * N8;
  const int t = lane & 3, g = lane >> 2, total = p.depth * a.rounds;
  // Rows that do not exist read the last one; their results are dropped.
  auto row_of = [&](int n) { n = a.first_row + min(n, a.rows - 1); return (size_t)(a.chosen ? a.chosen[n] : n); };
  const __half* x[N8];
#pragma unroll
  for (int j = 0; j < N8; j++) x[j] = a.x.x + row_of(8 * j + g) * a.x.ld + t * 8 + warp * 32;
  const __half* sums[2];
#pragma unroll
  for (int q = 0; q < 2; q++) sums[q] = a.x.sums + row_of((q * 32 + lane) >> 1) * (a.x.ld / 16) + (lane & 1) * 8;
  u8* mine = raw + warp * RAW_STAGES * COPIES * 512 + lane * 16;
  int ahead_k = p.first_k, ahead = 0, stage = 0, from_stage = 0;
  auto ask = [&](int stage) {
    if (ahead < total) {
      u8* to = mine + stage * COPIES * 512;
#pragma unroll
      for (int i = 0; i < 3; i++) {
        if (warp + 3 * i < 8) {
#pragma unroll
          for (int j = 0; j < N8; j++) copy16(to + (i * N8 + j) * 512, x[j] + ahead_k * 256 + i * 96);
        } else {
#pragma unroll
          for (int q = 0; q < 2; q++)
            if (q * 32 + lane < 2 * N) copy16(to + (i * N8 + q) * 512, sums[q] + ahead_k * 16);
        }
      }
      if (++ahead_k == p.first_k + p.depth) ahead_k = p.first_k;
      ahead++;
    }
    copy_commit();
  };
  for (int i = 0; i < RAW_STAGES; i++) ask(i);
  u32 parity = 1;  // the first round finds the stages empty
  for (int k = 0; k < total; k++) {
    copy_wait<RAW_STAGES - 1>();
    barrier_wait(empty + stage, parity);
    const u8* from = mine + from_stage * COPIES * 512;
    u8* to = stages + stage * STAGE;
#pragma unroll
    for (int i = 0; i < 3; i++) {
      if (warp + 3 * i < 8) {
#pragma unroll
        for (int j = 0; j < N8; j++) {
          const uint4 v = load16(from + (i * N8 + j) * 512);
          u8* here = to + (warp + 3 * i) * (4 * N * 16) + j * 128 + g * 16 + t * 4;
          *(u32*)here = v.x;
          *(u32*)(here + N * 16) = v.y;
          *(u32*)(here + 2 * N * 16) = v.z;
          *(u32*)(here + 3 * N * 16) = v.w;
        }
      } else {
#pragma unroll
        for (int q = 0; q < 2; q++)
          if (q * 32 + lane < 2 * N)
            *(uint4*)(to + N * 512 + (lane & 1) * N * 16 + ((q * 32 + lane) >> 1) * 16) =
                load16(from + (i * N8 + q) * 512);
      }
    }
    store_fence();
    __syncwarp();
    if (lane == 0) barrier_arrive(full + stage);
    ask(from_stage);
    if (++from_stage == RAW_STAGES) from_stage = 0;
    if (++stage == X_STAGES) stage = 0, parity ^= 1;
  }
}

// Weights: lane i fills the ring of multiplying warp i, all lanes in step.
__device__ __forceinline__ void bring_weights(const WideArgs& a, const Place& p, u8* rings, u64* full, u64* empty,
                                              int lane) {
  const int superblocks = a.x.ld >> 8;
  u8* ring = rings + lane * a.slots * a.slot_bytes;
  full += lane * a.slots;
  empty += lane * a.slots;
  int slot = 0;
  u32 parity = 1;
  if (lane >= GROUPS * 4) return;
  for (int round = 0; round < a.rounds; round++) {
    const u8* from[UNITS];
    int bytes[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      const int2 w = a.work[((p.share * a.rounds + round) * GROUPS + (lane >> 2)) * UNITS + u];
      const int i = ((lane & 3) - (w.y >> 8)) & 3;
      bytes[u] = 0;
      if (i < (w.y & 255)) {
        const MatmulProduct& q = a.products[product_of(a, w.x + i)];
        bytes[u] = tile_bytes(q.format);
        from[u] = q.weight + ((size_t)(w.x + i - q.first_tile) * superblocks + p.first_k) * bytes[u];
      }
    }
    for (int left = p.depth; left > 0; left--)
#pragma unroll
      for (int u = 0; u < UNITS; u++)
        for (int rest = bytes[u]; rest > 0;) {
          const int copied = rest == 2 * HALF_F16 ? HALF_F16 : bytes[u] == 2 * HALF_F16 ? rest : bytes[u];
          barrier_wait(empty + slot, parity);
          barrier_expect(full + slot, copied);
          copy_stream(ring + slot * a.slot_bytes, from[u], copied, full + slot);
          from[u] += copied;
          rest -= copied;
          if (++slot == a.slots) slot = 0, parity ^= 1;
        }
  }
}

template <int N8, int ONLY>
__device__ __forceinline__ void multiply(const WideArgs& a, const Place& p, u8* stages, u64* x_full, u64* x_empty,
                                         u8* rings, u64* full, u64* empty, float* parts, int warp, int lane) {
  constexpr int N = 8 * N8, STAGE = N * 544;
  const int superblocks = a.x.ld >> 8, g = lane >> 2, t = lane & 3;
  u8* ring = rings + warp * a.slots * a.slot_bytes;
  full += warp * a.slots;
  empty += warp * a.slots;
  // Core matrices of 8 rows x 8 columns are 128 bytes; the next 8 rows 128 bytes on, the next 8 columns 16 N.
  const u64 layout = (u64)N << 16 | (u64)(128 / 16) << 32;
  const u64 x_matrix = layout | (shared_address(stages) & 0x3ffff) >> 4;
  int slot = 0, stage = 0;
  u32 parity = 0, x_parity = 0;
  float kept[UNITS][PIECES][N8][4];  // pieces of a row tile's sum, and first what the slices before gave
  for (int round = 0; round < a.rounds; round++) {
    int format[UNITS];
    bool any[UNITS], mine[UNITS];
    u32 pieces = 0x01010101;  // a byte a unit: where its next piece is kept
    float acc[UNITS][N8][4];
    const int2* work = a.work + ((p.share * a.rounds + round) * GROUPS + (warp >> 2)) * UNITS;
    auto tile_of = [&](int unit) {  // this warp's, or -1
      const int2 w = work[unit];
      const int i = ((warp & 3) - (w.y >> 8)) & 3;
      return __shfl_sync(~0u, i < (w.y & 255) ? w.x + i : -1, 0);  // the compiler learns that all lanes have the same
    };
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      const int first = __shfl_sync(~0u, work[u].y & 255 ? work[u].x : -1, 0);
      any[u] = first >= 0;
      mine[u] = tile_of(u) >= 0;
      format[u] = any[u] ? a.products[product_of(a, first)].format : 0;
#pragma unroll
      for (int j = 0; j < N8; j++) acc[u][j][0] = acc[u][j][1] = acc[u][j][2] = acc[u][j][3] = 0.f;
    }
    // What is rare is written once for all units, or the code would not stay in the instruction cache.
    auto take = [&](float (&v)[N8][4], int unit) {
#pragma unroll
      for (int u = 0; u < UNITS; u++)
        if (u == unit)
#pragma unroll
          for (int j = 0; j < N8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) v[j][e] = acc[u][j][e];
    };
    auto give = [&](const float (&v)[N8][4], int unit) {
#pragma unroll
      for (int u = 0; u < UNITS; u++)
        if (u == unit)
#pragma unroll
          for (int j = 0; j < N8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[u][j][e] = v[j][e];
    };
    auto join = [&](float (&v)[N8][4], int unit, bool first) {  // the pieces of a slice, and the slices before
#pragma unroll 1
      for (int i = (pieces >> 8 * unit & 255) - 1; i >= (first ? 1 : 0); i--)
#pragma unroll
        for (int j = 0; j < N8; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) v[j][e] = kept[unit][i][j][e] + v[j][e];
      pieces = (pieces & ~(255u << 8 * unit)) | 1u << 8 * unit;
    };
    int slice = p.slice, slice_end = superblocks * (slice + 1) / a.slices;
    auto begins = [&](int unit, int k) {  // of 32 superblocks: a chain begins
      const int tile = tile_of(unit);
      return __shfl_sync(~0u, tile >= 0 ? a.chains[tile * 4 + (k >> 5)] : 0, 0);
    };
    u32 events = 0;  // in one of the tiles
#pragma unroll 1
    for (int k = p.first_k; k < p.first_k + p.depth; k++) {
      if ((k & 31) == 0 || k == p.first_k) {
        events = 0;
#pragma unroll
        for (int u = 0; u < UNITS; u++) events |= begins(u, k);
      }
      if (k == slice_end || (events >> (k & 31) & 1)) {
        const bool ends = k == slice_end;
#pragma unroll 1
        for (int unit = 0; unit < UNITS; unit++) {
          if (!ends && !(begins(unit, k) >> (k & 31) & 1)) continue;
          float v[N8][4];
          take(v, unit);
          if (ends) join(v, unit, slice == 0);
          const int at = ends ? 0 : pieces >> 8 * unit & 255;
          if (!ends) pieces += 1u << 8 * unit;
#pragma unroll
          for (int j = 0; j < N8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
              kept[unit][at][j][e] = v[j][e];
              v[j][e] = 0.f;
            }
          give(v, unit);
        }
        if (ends) {
          slice++;
          slice_end = superblocks * (slice + 1) / a.slices;
        }
      }
      barrier_wait(x_full + stage, x_parity);
      const u64 x = x_matrix + (u64)(stage * (STAGE / 16)), sums = x + N * 32;
#pragma unroll
      for (int u = 0; u < UNITS; u++) {
        if (!any[u]) continue;
        const int first_slot = slot;
        const bool halves = (ONLY < 0 || ONLY == TILE_F16) && format[u] == TILE_F16;
        if (mine[u]) {
          barrier_wait(full + slot, parity);
          if (++slot == a.slots) slot = 0, parity ^= 1;
          if (halves) {
            barrier_wait(full + slot, parity);
            if (++slot == a.slots) slot = 0, parity ^= 1;
          }
        }
        const int second_slot = first_slot + 1 == a.slots ? 0 : first_slot + 1;
        const u8 *weights = ring + first_slot * a.slot_bytes, *second = ring + second_slot * a.slot_bytes;
        const bool leave = mine[u] && lane == 0;
        auto free = [&]() {
          __syncwarp();
          barrier_arrive_if(empty + first_slot, leave);
          barrier_arrive_if(empty + second_slot, leave && halves);
        };
        if constexpr (ONLY >= 0) {
          step<ONLY, N8>(weights, second, x, sums, acc[u], lane, free);
        } else {
          switch (format[u]) {
            case TILE_Q4_K: step<TILE_Q4_K, N8>(weights, second, x, sums, acc[u], lane, free); break;
            case TILE_Q5_K: step<TILE_Q5_K, N8>(weights, second, x, sums, acc[u], lane, free); break;
            case TILE_Q6_K: step<TILE_Q6_K, N8>(weights, second, x, sums, acc[u], lane, free); break;
            case TILE_Q8_0: step<TILE_Q8_0, N8>(weights, second, x, sums, acc[u], lane, free); break;
            default: step<TILE_F16, N8>(weights, second, x, sums, acc[u], lane, free);
          }
        }
      }
      barrier_arrive_if(x_empty + stage, lane == 0);
      if (++stage == X_STAGES) {
        stage = 0;
        x_parity ^= 1;
      }
    }
    // Tile i of a cluster's blocks is owned by rank i % spread: the others send their sums, it adds them in order.
    if (a.spread > 1) cluster_wait();  // every block of the cluster runs: its shared memory may be written
    u32 write = 0;
#pragma unroll
    for (int u = 0; u < UNITS; u++) write |= (u32)mine[u] << u;
#pragma unroll 1
    for (int unit = 0; unit < UNITS; unit++) {
      if (!(write >> unit & 1)) continue;
      float v[N8][4];
      take(v, unit);
      join(v, unit, a.spread > 1 || slice == 0);
      const int i = unit * GROUPS * 4 + warp, owner = i % a.spread;
      if (owner == p.slice) {
#pragma unroll
        for (int j = 0; j < N8; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) kept[unit][0][j][e] = v[j][e];
        continue;
      }
      write &= ~(1u << unit);
      const int from = p.slice - (p.slice > owner);
      const u32 to = address_in(parts + ((from * a.owned + i / a.spread) * N8 * 32 + lane) * 4, owner);
#pragma unroll
      for (int j = 0; j < N8; j++) store_in4(to + j * 512, v[j]);
    }
    if (a.spread > 1) {
      cluster_arrive();
      cluster_wait();
    }
#pragma unroll 1
    for (int unit = 0; unit < UNITS; unit++) {
      if (!(write >> unit & 1)) continue;
      float v[N8][4];
#pragma unroll
      for (int j = 0; j < N8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) v[j][e] = kept[unit][0][j][e];
      if (a.spread > 1) {
        const int i = unit * GROUPS * 4 + warp;
        const float* from = parts + (i / a.spread * N8 * 32 + lane) * 4;
#pragma unroll
        for (int j = 0; j < N8; j++) {
          float4 sum = make_float4(v[j][0], v[j][1], v[j][2], v[j][3]);
          const float4 own = sum;
#pragma unroll 1
          for (int s = 0; s < a.spread; s++) {
            float4 w = own;
            if (s != p.slice) w = load_written4(from + ((s - (s > p.slice)) * a.owned * N8 + j) * 128);
            sum = s == 0 ? w : make_float4(sum.x + w.x, sum.y + w.y, sum.z + w.z, sum.w + w.w);
          }
          v[j][0] = sum.x;
          v[j][1] = sum.y;
          v[j][2] = sum.z;
          v[j][3] = sum.w;
        }
      }
      const int at = tile_of(unit);
      const MatmulProduct& q = a.products[product_of(a, at)];
      const int row = (at - q.first_tile) * 16 + g;
      float* out = q.out + (size_t)(a.first_row + 2 * t) * q.out_stride + row;
#pragma unroll
      for (int j = 0; j < N8; j++, out += 8 * (size_t)q.out_stride)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          if (8 * j + 2 * t + h >= a.rows) continue;
          float* to = h ? out + q.out_stride : out;
          if (row < q.rows) to[0] = v[j][h];
          if (row + 8 < q.rows) to[8] = v[j][2 + h];
        }
    }
  }
}

template <int N8, int ONLY> __device__ __forceinline__ void matmul_wide(const WideArgs& a) {
  extern __shared__ __align__(128) u8 memory[];
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, superblocks = a.x.ld >> 8;
  Place p;
  p.slice = a.spread > 1 ? blockIdx.x % a.spread : 0;
  p.share = blockIdx.x / a.spread;
  p.first_k = a.spread > 1 ? superblocks * p.slice / a.slices : 0;
  p.depth = (a.spread > 1 ? superblocks * (p.slice + 1) / a.slices : superblocks) - p.first_k;

  u8* stages = memory;                                         // [X_STAGES][8 N8 * 544]
  u8* raw = stages + X_STAGES * N8 * 8 * 544;                  // [3 warps][RAW_STAGES][3 N8][32 lanes][16 bytes]
  u8* rings = raw + RAW_STAGES * N8 * 8 * 576;                 // [12 warps][slots][slot_bytes]
  float* parts = (float*)(rings + GROUPS * 4 * a.slots * a.slot_bytes);  // [spread - 1][owned][N8][32 lanes][4]
  u64* barriers = (u64*)(parts + (a.spread - 1) * a.owned * N8 * 128);
  u64 *x_full = barriers, *x_empty = x_full + X_STAGES;
  u64* full = x_empty + X_STAGES;
  u64* empty = full + GROUPS * 4 * a.slots;
  launch_dependents();
  if (lane == 0) {
    for (u64* b = barriers + warp; b < empty + GROUPS * 4 * a.slots; b += GROUPS * 4 + 4)
      barrier_init(b, b < x_empty ? X_WARPS : b < full ? GROUPS * 4 : 1);
    barrier_init_fence();
  }
  __syncthreads();
  if (a.spread > 1) cluster_arrive();
  if (warp >= GROUPS * 4) {
    fewer_registers<56>();
    if (warp == GROUPS * 4 + 3) {
      bring_weights(a, p, rings, full, empty, lane);
    } else {
      wait_for_inputs();
      bring_x<N8>(a, p, raw, stages, x_full, x_empty, warp - GROUPS * 4, lane);
    }
    __syncwarp();
    if (a.spread > 1) {
      cluster_wait();
      cluster_arrive();
      cluster_wait();
    }
  } else {
    more_registers<152>();
    multiply<N8, ONLY>(a, p, stages, x_full, x_empty, rings, full, empty, parts, warp, lane);
  }
}

#define WIDE(NAME, N8, ONLY)                                                                       \
  extern "C" __global__ void __launch_bounds__(512, 1) NAME(const __grid_constant__ WideArgs a) {   \
    matmul_wide<N8, ONLY>(a);                                                                      \
  }
WIDE(matmul_wide_24_q4_k, 3, TILE_Q4_K)
WIDE(matmul_wide_24_q6_k, 3, TILE_Q6_K)
WIDE(matmul_wide_24_mixed, 3, MIXED)
WIDE(matmul_wide_32_q4_k, 4, TILE_Q4_K)
WIDE(matmul_wide_32_q6_k, 4, TILE_Q6_K)
WIDE(matmul_wide_32_mixed, 4, MIXED)
#endif
