// Products of weight matrices with 33 to 64 rows of a decoding pass, on Hopper: the bits of matmul.cu, the weights read
// once. See tiles.cuh for the weights, matmul.cu for what is computed, matmul_wide.cu for 17 to 32 rows.
//
// Weights are decoded to registers, 16 rows a warp, and are the A operand of wgmma; activations are read by the tensor
// cores from shared memory, where one copy a superblock of 256 columns brings them as arrange.cu laid them out. A unit
// is four row tiles of one format, one a warp of a warpgroup. Steps, a superblock of a unit each, are dealt to the
// three warpgroups in turn, superblock by superblock: so all have the same number to within one. A tile's sum waits in
// shared memory (`park`) from one superblock to the next, and a count a tile hands it from warp to warp; only the
// addition waits for it, not the product. What has no room there is worked off in rounds. Every warp has a ring of
// `slots` tiles and asks for the next tile itself as soon as one is decoded; the last warp that has done with a
// superblock of activations asks for a later one. The blocks of a cluster take a slice of the columns each.
//
// A row's bits: chains of wgmma m64nNk16 give the bits of chains of mma.m16n8k16. Sums of a superblock are those of
// multiply_tile; superblocks are added in chains that begin where a warp of matmul.cu begins (`cuts`), the pieces of
// a slice are joined from the last to the first, and slices are added in order.
//
// Floor: the tiles' bytes at memory speed. What limits it: instruction issue, about 400 a step and a warp, and 2 to 3
// us of launch, first copies and last sums.
//
// Launch: matmul_tall_N_FORMAT for up to N rows, N = 48, 64; grid shares * slices, cluster slices, block 384; shared
// bytes
//   x_stages * N * 544 + 12 * slots * slot_bytes + (parked + (pieces in shared memory)) * N * 64
//   + (2 * x_stages + 12 * slots + 4 * units + 4) * 8
// budget: matmul_tall_48_q4_k 168
// budget: matmul_tall_48_q6_k 168
// budget: matmul_tall_48_mixed 168
// budget: matmul_tall_64_q4_k 168
// budget: matmul_tall_64_q6_k 168
// budget: matmul_tall_64_mixed 168
#include "products.cuh"
#include "ring.cuh"
#include "tiles.cuh"
#include "wgmma.cuh"

constexpr int MIXED = -1;
constexpr int WARPGROUPS = 3, WARPS = 4 * WARPGROUPS;
constexpr int QUARTER_F16 = 2048;   // an F16 tile passes through the ring in four parts
constexpr int X_BYTES = 4352;       // of 8 rows of a superblock: 32 core matrices, then two of sums
constexpr u64 STREAMED = 0x12f0000000000000;  // what streamed() in ring.cuh gives
constexpr int X_BLOCKS = 8;         // of 8 rows, of a superblock in memory

struct TallArgs {
  MatmulProduct products[MAX_PRODUCTS];
  const u8* x;       // arranged: [superblocks][X_BLOCKS][X_BYTES]
  const int2* cuts;  // [slices][tiles]: x: bit k: a new chain of sums begins with superblock k of the slice, never bit
                     // 0; y: where the tile's first piece is kept
  const int4* work;  // [shares][rounds][units]: first row tile, number of row tiles, where the first is parked,
                     // product; row tiles follow each other, the units that exist come first, a round has no more
                     // than the one before
  float* kept;       // [blocks][pieces][N8][32 lanes][4]: pieces of sums, or null: in shared memory
  int product_count, tiles, superblocks;
  int rows;    // of the pass
  int slices;  // of the columns: the blocks of a cluster
  int rounds, units;  // units of a round, at most
  int x_stages, slots, slot_bytes, parked;
  int pieces;  // of sums that a block keeps
};
static_assert(sizeof(TallArgs) == 336, "mirrored in src/cuda/ops/matmul/tall.rs");

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FORERUN_EMULATION)

// ------------------------------------------------------------------ instructions

#ifndef FORERUN_EMULATION  // an emulator on the CPU brings its own
// If `yes`, asks for `bytes`, which may be none. Without a branch: one between wgmma in flight makes ptxas wait for
// each of them. All lanes call it with the same arguments: for one lane's own ptxas would make a loop over lanes.
__device__ __forceinline__ void ask(void* to, const u8* from, u32 bytes, u64* barrier, u64 policy, bool yes) {
  asm volatile(
      "{\n.reg .pred e, p, q;\nelect.sync _|e, 0xffffffff;\nsetp.ne.and.u32 p, %5, 0, e;\nsetp.ne.and.u32 q, %2, 0, p;\n"
      "@p mbarrier.arrive.expect_tx.shared.b64 _, [%3], %2;\n"
      "@q cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;\n}" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy), "r"((u32)yes)
      : "memory");
}
// How many have had their turn, by whose turn it is: the number itself, a barrier's parity would not tell who is two
// behind.
__device__ __forceinline__ void turn_wait(u32* done, u32 before) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .u32 v;\nW_%=:\nld.acquire.cta.shared.u32 v, [%0];\nsetp.ne.u32 p, v, %1;\n@p bra W_%=;\n}\n" ::"r"(
          shared_address(done)),
      "r"(before)
      : "memory");
}
__device__ __forceinline__ void turn_done(u32* done, u32 now, bool yes) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.release.cta.shared.u32 [%0], %1;\n}" ::"r"(
                   shared_address(done)),
               "r"(now), "r"((u32)yes)
               : "memory");
}
// Barriers that blocks of a cluster arrive at; what was written before is seen by who waits.
__device__ __forceinline__ void barrier_arrive_in(u64* b, int rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address_in(b, rank)) : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(u64* b, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nW_%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@!p bra W_%=;\n}\n" ::
          "r"(shared_address(b)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ float4 load_in4(u32 address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
#endif

// ------------------------------------------------------------------ one step

struct Place {  // of a block in the launch; in shared memory, or it takes registers
  int first_k, share, slice;
};

// A warp's steps: those of its warpgroup, WARPGROUPS apart, superblock by superblock and unit by unit.
struct Steps {
  int n, unit, k;  // n: units of the round

  __device__ __forceinline__ void begin(int units, int first) {  // there is one
    n = units;
    k = first / n, unit = first % n;
  }
  __device__ __forceinline__ void next() {
    unit += WARPGROUPS;
#pragma unroll
    for (int i = 0; i < WARPGROUPS; i++) {
      const bool over = unit >= n;
      unit -= over ? n : 0;
      k += over;
    }
  }
};

// A warp's ring of weights: a slot for every step, or for a quarter of an F16 tile. A warp without a tile in a unit has
// an empty slot; nobody looks at the result.
template <int ONLY> struct Ring {
  const TallArgs& a;
  Place& p;
  u8* tiles;
  u64* full;
  int warp, lane, depth;
  int slot;  // and the parity of its barrier << 16
  // What is asked for next.
  Steps ahead;
  int round, part, empty;  // empty: slots before `slot` that nothing was asked for
  const u8* from;          // lane u: this warp's tile of unit u, at the block's first superblock, or null
  int bytes;               // of a tile of unit u

  __device__ __forceinline__ void ask_for(int at) {
    const u64 f = __shfl_sync(~0u, (u64)from, ahead.unit);
    int size = ONLY == MIXED ? 0 : tile_bytes(ONLY), copied = size, at_part = 0;
    if (ONLY == MIXED) {
      size = __shfl_sync(~0u, bytes, ahead.unit);
      copied = size == tile_bytes(TILE_F16) ? QUARTER_F16 : size;
      at_part = part * QUARTER_F16;
    }
    ask(tiles + at * a.slot_bytes, (const u8*)f + ahead.k * size + at_part, f ? copied : 0, full + at, STREAMED,
        ahead.k < depth);
  }
  __device__ __forceinline__ void advance() {
    if (ONLY == MIXED) {
      const bool again = ++part < 4 && __shfl_sync(~0u, bytes, ahead.unit) == tile_bytes(TILE_F16);
      const Steps before = ahead;
      ahead.next();
      if (again) ahead = before;
      else part = 0;
    } else {
      ahead.next();
    }
  }
  // Fills what is empty; opens the next round. Not while products are under way.
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    while (empty) {
      if (ahead.k >= depth) {
        if (round + 1 >= a.rounds) return;
        round++;
        int units = 0;
        bytes = 0, from = nullptr;
        if (lane < a.units) {
          const int4 w = a.work[(p.share * a.rounds + round) * a.units + lane];
          units = w.y > 0;
          if (units) {
            bytes = tile_bytes(ONLY == MIXED ? a.products[w.w].format : ONLY);
            if ((warp & 3) < w.y) {
              const MatmulProduct& q = a.products[product_of(a, w.x + (warp & 3))];  // not always the unit's first
              from = q.weight + ((size_t)(w.x + (warp & 3) - q.first_tile) * a.superblocks + p.first_k) * bytes;
            }
          }
        }
        units = __popc(__ballot_sync(~0u, units));
        part = 0;
        if (units == 0) {
          round = a.rounds;
          return;
        }
        ahead.begin(units, warp >> 2);
        continue;
      }
      const int at = (slot & 0xffff) - empty;
      ask_for(at < 0 ? at + a.slots : at);
      advance();
      empty--;
    }
  }
  __device__ __forceinline__ const u8* take() {
    barrier_wait(full + (slot & 0xffff), slot >> 16);
    return tiles + (slot & 0xffff) * a.slot_bytes;
  }
  __device__ __forceinline__ void leave() {  // without a branch
    __syncwarp();
    ask_for(slot & 0xffff);
    empty += ahead.k >= depth;
    advance();
    slot++;
    slot = (slot & 0xffff) == a.slots ? ~slot & 1 << 16 : slot;
  }
};

constexpr int K16 = 256 / 16, SUMS = 4096 / 16;  // in a descriptor: 16 columns further, and the sums

// park += a row tile of each of the four warps times the activation rows, over 256 columns, in the order of
// multiply_tile in tiles.cuh. `x` describes the superblock's activations; `before` waits until the park is this warp's.
template <int FORMAT, int N8, class R, class B>
__device__ __forceinline__ void step(R& ring, bool mine, u64 x, float* park, int lane, B before) {
  typedef Tile<FORMAT> T;
  float even[N8][4], odd[N8][4];
  constexpr int BUFFERS = FORMAT == TILE_Q8_0 || FORMAT == TILE_F16 ? 1 : 2;
  u32 a[BUFFERS][4][4];
  const u8* tile = ring.take();
  typename T::Head head;
  if constexpr (FORMAT != TILE_F16) head = T::head(tile, lane);
  // Replaces every number that is parked by what `plus` makes of it.
  auto add = [&](auto plus) {
    if (!mine) return;
#pragma unroll
    for (int j = 0; j < N8; j++) {
      const float4 v = *(const float4*)(park + j * 128);
      float sum[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int e = 0; e < 4; e++) sum[e] = plus(sum[e], j, e);
      *(float4*)(park + j * 128) = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
  };
#pragma unroll(BUFFERS == 1 ? 1 : 4)
  for (int c = 0; c < 4; c++) {
    // Read again where it would take too many registers.
    if ((FORMAT == TILE_Q6_K || FORMAT == TILE_Q5_K) && c > 0) head = T::head(tile, lane);
    if (FORMAT == TILE_F16 && c > 0) tile = ring.take();
    if (BUFFERS == 2 && c >= 2) warpgroup_wait<1>();  // the wgmma that read this buffer
    u32(&f)[4][4] = a[c % BUFFERS];
    T::chunk(FORMAT == TILE_F16 ? tile - c * QUARTER_F16 : tile, head, c, lane, f);
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
      if (c == 0) before();
      add([&](float sum, int j, int e) {
        return __fmaf_rn(d2[e >> 1], odd[j][e], __fmaf_rn(d[e >> 1], even[j][e], sum));
      });
    } else {
      warpgroup_mma(even, f[0], b, c > 0);
      warpgroup_mma(odd, f[1], b + K16, c > 0);
      warpgroup_mma(even, f[2], b + 2 * K16, true);
      warpgroup_mma(odd, f[3], b + 3 * K16, true);
      warpgroup_commit();
      if constexpr (FORMAT == TILE_F16) {
        warpgroup_wait<0>();
        if (c < 3) ring.leave();
      }
    }
  }
  if constexpr (FORMAT == TILE_Q8_0) {
    ring.leave();
  } else {
    constexpr bool MINS = FORMAT == TILE_Q4_K || FORMAT == TILE_Q5_K;
    float d[2], m[2], e4[MINS ? N8 : 1][4];
    T::ends(tile, head, lane, d);
    if constexpr (MINS) {
      u32 f[4];
      T::mins(head, lane, f, m);
      warpgroup_wait<0>();  // so that e4 may have the registers of both buffers
      hold(f);
      warpgroup_fence();
      warpgroup_mma(e4, f, x + SUMS, false);
      warpgroup_commit();
    }
    ring.leave();
    warpgroup_wait<0>();
    before();
    add([&](float sum, int j, int e) {
      sum = __fmaf_rn(d[e >> 1], even[j][e] + odd[j][e], sum);
      if constexpr (MINS) sum = __fmaf_rn(m[e >> 1], e4[j][e], sum);
      return sum;
    });
  }
}

// ------------------------------------------------------------------ the block

// Asks for superblock `k` of the activations, by one lane.
template <int N8>
__device__ __forceinline__ void bring_x(const TallArgs& a, Place& p, int k, u8* to, u64* full) {
  barrier_expect(full, N8 * X_BYTES);
  copy_bulk(to, a.x + (size_t)(p.first_k + k) * X_BLOCKS * X_BYTES, N8 * X_BYTES, full);
}

template <int N8, int ONLY>
__device__ __forceinline__ void multiply(const TallArgs& a, Place& p, u8* stages, float* parks, float* kept,
                                         u64* barriers, Ring<ONLY>& ring, int warp, int lane) {
  constexpr int STAGE = N8 * X_BYTES, PARK = N8 * 128;  // floats of a parked tile: [N8][32 lanes][4]
  const int g = lane >> 2, t = lane & 3, depth = ring.depth;
  u64* x_full = barriers;
  u32* x_done = (u32*)(x_full + a.x_stages);  // [x_stages]: warps that have done with it
  u64* turn = x_full + 2 * a.x_stages + WARPS * a.slots;  // [units][4]: superblocks that the park has, of all rounds
  u64 *summed = turn + 4 * a.units, *added = summed + 1;
  // Core matrices of 8 rows x 8 columns are 128 bytes; the next 8 columns 128 bytes on, the next 8 rows X_BYTES.
  const u64 x_matrix =
      (u64)(128 / 16) << 16 | (u64)(X_BYTES / 16) << 32 | (u64)((shared_address(stages) & 0x3ffff) >> 4);
  int x_at = 0;  // the stage, and the parity of its barrier << 16
  // Eight activation rows of a tile.
  auto write = [&](int tile, int j, const float4& v) {
    const MatmulProduct& q = a.products[product_of(a, tile)];
    const int row = (tile - q.first_tile) * 16 + g;
    float* out = q.out + (size_t)(8 * j + 2 * t) * q.out_stride + row;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if (8 * j + 2 * t + h >= a.rows) continue;
      float* to = h ? out + q.out_stride : out;
      if (row < q.rows) to[0] = h ? v.y : v.x;
      if (row + 8 < q.rows) to[8] = h ? v.w : v.z;
    }
  };

#pragma unroll 1
  for (int round = 0; round < a.rounds; round++) {
    // Lane u knows where this warp's tile of unit u is parked, or -1 if there is none, times 8, plus the product, and
    // where chains of sums begin.
    // What is seldom needed is read again: it would take registers.
    auto work = [&](int unit) { return a.work[(p.share * a.rounds + round) * a.units + unit]; };
    auto cut_of = [&](int first) { return a.cuts[p.slice * a.tiles + first + (warp & 3)]; };
    int4 w = {0, 0, 0, 0};
    if (lane < a.units) w = work(lane);
    const int place = ((warp & 3) < w.y ? w.z + (warp & 3) : -1) * MAX_PRODUCTS + w.w;
    const u32 begins = place >= 0 ? cut_of(w.x).x : 0;
    auto of = [&](int v, int unit) { return __shfl_sync(~0u, v, unit); };
    Steps at;
    at.begin(__popc(__ballot_sync(~0u, w.y > 0)), warp >> 2);
    int passed = 0;  // superblocks of the round
    auto pass = [&]() {
      const int stage = x_at & 0xffff;
      barrier_wait(x_full + stage, x_at >> 16);
      __syncwarp();
      const int ahead = passed + a.x_stages;  // what comes in its place, perhaps of a later round
      if (lane == 0 && ahead < (a.rounds - round) * depth) {
        __threadfence_block();
        if (atomicInc(x_done + stage, WARPS - 1) == WARPS - 1) {
          __threadfence_block();
          bring_x<N8>(a, p, ahead % depth, stages + stage * STAGE, x_full + stage);
        }
      }
      x_at++;
      if (stage + 1 == a.x_stages) x_at = ~x_at & 1 << 16;
      passed++;
    };
#pragma unroll 1
    while (passed < min(at.k, depth)) pass();
#pragma unroll 1
    while (at.k < depth) {
      const int k = at.k, unit = at.unit;
      const int unit_place = of(place, unit), where = unit_place >> 3;
      const bool mine = where >= 0;
      float* park = parks + where * PARK + lane * 4;
      u32* my_turn = (u32*)(turn + 4 * unit + (warp & 3));
      // What is parked and the pieces before it, from the last to the first: of `COUNT` times eight activation rows.
      auto join = [&](auto& v, int j0) {
        constexpr int COUNT = sizeof(v) / sizeof(float4);
        const int first = cut_of(work(unit).x).y;
#pragma unroll
        for (int j = 0; j < COUNT; j++) v[j] = *(const float4*)(park + (j0 + j) * 128);
#pragma unroll 1
        for (int i = first + __popc(of(begins, unit)) - 1; i >= first; i--) {
          const float* piece = kept + i * PARK + lane * 4 + j0 * 128;
#pragma unroll
          for (int j = 0; j < COUNT; j++) {
            const float4 w = *(const float4*)(piece + j * 128);
            v[j] = make_float4(w.x + v[j].x, w.y + v[j].y, w.z + v[j].z, w.w + v[j].w);
          }
        }
      };
      // The park is this warp's. Where a chain of sums begins, what is there becomes a piece.
      auto before = [&]() {
        turn_wait(my_turn, round * depth + k);
        const u32 bits = of(begins, unit);
        if (!mine || !(k == 0 || (bits >> k & 1))) return;
        float* piece = kept + (cut_of(work(unit).x).y + __popc(bits & ((1u << k) - 1))) * PARK + lane * 4;
#pragma unroll 1
        for (int j = 0; j < N8; j++) {
          if (k > 0) *(float4*)(piece + j * 128) = *(const float4*)(park + j * 128);
          *(float4*)(park + j * 128) = make_float4(0.f, 0.f, 0.f, 0.f);
        }
      };
      barrier_wait(x_full + (x_at & 0xffff), x_at >> 16);
      const u64 x = x_matrix + (u64)((x_at & 0xffff) * (STAGE / 16));
      if constexpr (ONLY >= 0) {
        step<ONLY, N8>(ring, mine, x, park, lane, before);
      } else {
        switch (a.products[unit_place & 7].format) {
          case TILE_Q4_K: step<TILE_Q4_K, N8>(ring, mine, x, park, lane, before); break;
          case TILE_Q5_K: step<TILE_Q5_K, N8>(ring, mine, x, park, lane, before); break;
          case TILE_Q6_K: step<TILE_Q6_K, N8>(ring, mine, x, park, lane, before); break;
          case TILE_Q8_0: step<TILE_Q8_0, N8>(ring, mine, x, park, lane, before); break;
          default: step<TILE_F16, N8>(ring, mine, x, park, lane, before);
        }
      }
      if (k + 1 == depth && mine) {
        if (a.slices == 1) {
#pragma unroll 1
          for (int j = 0; j < N8; j++) {
            float4 v[1];
            join(v, j);
            write(work(unit).x + (warp & 3), j, v[0]);
          }
        } else if (of(begins, unit)) {
          float4 v[N8];
          join(v, 0);
#pragma unroll
          for (int j = 0; j < N8; j++) *(float4*)(park + j * 128) = v[j];
        }
      }
      __syncwarp();
      turn_done(my_turn, round * depth + k + 1, lane == 0);
      at.next();
      if (ring.empty) ring.fill();
#pragma unroll 1
      while (passed < min(at.k, depth)) pass();
    }
#pragma unroll 1
    while (passed < depth) pass();
    if (a.slices == 1) continue;

    // Blocks of a cluster leave their sums where they are; tile i is added up and written by rank i % slices.
    if (round == 0) cluster_wait();  // every block has made its barriers
    __syncwarp();
    if (lane < a.slices) barrier_arrive_in(summed, lane);
    barrier_wait_cluster(summed, round & 1);
    const int first_tile = work(0).x;
    const int4 last = work(at.n - 1);
    const int tiles = last.z + last.y;
#pragma unroll 1
    for (int i = warp; ; i += WARPS) {
      const int tile_at = (i / N8) * a.slices + p.slice, j = i % N8;
      if (tile_at >= tiles) break;
      const float* park = parks + tile_at * PARK + j * 128 + lane * 4;
      float4 v = load_in4(address_in(park, 0));
#pragma unroll 2
      for (int s = 1; s < a.slices; s++) {
        const float4 w = load_in4(address_in(park, s));
        v = make_float4(v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w);
      }
      write(first_tile + tile_at, j, v);
    }
    __syncwarp();  // nobody reads this block's sums any more
    if (lane < a.slices) barrier_arrive_in(added, lane);
    barrier_wait_cluster(added, round & 1);
  }
}

template <int N8, int ONLY> __device__ __forceinline__ void matmul_tall(const TallArgs& a) {
  extern __shared__ __align__(128) u8 memory[];
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  launch_dependents();
  u8* stages = memory;                                          // [x_stages][N8][X_BYTES]
  float* parks = (float*)(stages + a.x_stages * N8 * X_BYTES);  // [parked][N8][32 lanes][4]
  float* kept = parks + a.parked * N8 * 128;                    // [pieces][N8][32 lanes][4]
  u8* rings = (u8*)(kept + (a.kept ? 0 : a.pieces * N8 * 128));    // [WARPS][slots][slot_bytes]
  u64* barriers = (u64*)(rings + WARPS * a.slots * a.slot_bytes);  // x full, x done, full, turns, summed, added; Place
  if (a.kept) kept = a.kept + (size_t)blockIdx.x * a.pieces * N8 * 128;
  const int others = 2 * a.x_stages + 4 * a.units + 2;
  Place& p = *(Place*)(barriers + WARPS * a.slots + others);
  const int slice = blockIdx.x % a.slices, first_k = a.superblocks * slice / a.slices;
  const int depth = a.superblocks * (slice + 1) / a.slices - first_k;
  if (lane == 0) p = {first_k, (int)(blockIdx.x / a.slices), slice};  // every warp the same
  Ring<ONLY> ring = {a, p};
  // A warp's own barriers, and its first tiles.
  ring.tiles = rings + warp * a.slots * a.slot_bytes;
  ring.full = barriers + 2 * a.x_stages + warp * a.slots;
  ring.warp = warp, ring.lane = lane, ring.depth = depth, ring.slot = 0;
  ring.round = -1, ring.part = 0, ring.empty = a.slots, ring.ahead.k = depth;
  if (lane < a.slots) barrier_init(ring.full + lane, 1);
  barrier_init_fence();
  __syncwarp();
  ring.fill();
  if ((int)threadIdx.x < others) {
    const int i = threadIdx.x;
    u64* barrier = barriers + i + (i < 2 * a.x_stages ? 0 : WARPS * a.slots);
    if (i >= a.x_stages && i < others - 2) *barrier = 0;  // counts
    else barrier_init(barrier, i < a.x_stages ? 1 : WARPS * a.slices);
    barrier_init_fence();
  }
  __syncthreads();
  if (a.slices > 1) cluster_arrive();
  if (warp == 0) {  // activations come from the kernel before this one
    wait_for_inputs();
    if (lane < a.x_stages && lane < depth * a.rounds)
      bring_x<N8>(a, p, lane % depth, stages + lane * N8 * X_BYTES, barriers + lane);
    __syncwarp();
  }
  multiply<N8, ONLY>(a, p, stages, parks, kept, barriers, ring, warp, lane);
}

#define TALL(NAME, N8, ONLY)                                                                              \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) NAME(const __grid_constant__ TallArgs a) {  \
    matmul_tall<N8, ONLY>(a);                                                                             \
  }
TALL(matmul_tall_48_q4_k, 6, TILE_Q4_K)
TALL(matmul_tall_48_q6_k, 6, TILE_Q6_K)
TALL(matmul_tall_48_mixed, 6, MIXED)
TALL(matmul_tall_64_q4_k, 8, TILE_Q4_K)
TALL(matmul_tall_64_q6_k, 8, TILE_Q6_K)
TALL(matmul_tall_64_mixed, 8, MIXED)
#endif
