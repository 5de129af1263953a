// Products of weight matrices with 17 to 64 rows of a decoding pass, on Hopper: the bits and the
// cuts of matmul.cuh, by wgmma. See tiles.cuh for the weights.
//
// Activations are read from shared memory by the tensor cores, once for the 64 weight rows of a
// warpgroup where mma reads them for 16: at 32 rows that traffic is what limits mma. Weights are
// decoded to registers, 16 rows a warp, and are the A operand. A unit is up to four row tiles of
// one format, one a warp of a warpgroup; the units of a share are dealt to the warpgroups in turn.
// As in matmul.cuh, shared memory holds the activations of `held` superblocks of the slice, a
// phase, and every warp streams its tiles through a ring of its own.
//
// A row's bits: chains of wgmma m64nNk16 give the bits of chains of mma.m16n8k16. A new chain of
// sums begins where a warp of matmul.cuh begins; what was summed before is parked, and in the end
// the pieces are added from the last to the first, as matmul.cuh's warps do.
//
// Floor: the tiles' bytes at memory speed. What limits it: instructions and their latency, about
// 330 a tile; units that are not full, and warpgroups with one unit less than others.
//
// Launch: matmul_hopper_N_FORMAT for up to N = 24, 32, 48, 64 rows; grid slices * shares, cluster
// slices, block 32 * warps, of which there need not be as many as matmul.cuh has: at most 16, 12
// where N is above 32; shared bytes
//   warps * stages * stage_bytes + held * N * 544 + (no workspace: (slices - 1) * owned * N * 64) +
//   8
#define REGISTERS_ARE_SCARCE
#include "matmul.cuh"
#include "wgmma.cuh"

// Of MatmulArgs:
//   units   [shares][most_units]: first row tile and number of row tiles of every unit; those that
//   exist come first
//   chains  [slices][tiles]: bit k: a chain of sums begins with superblock k of the slice, never
//   bit 0; where the row
//           tile's first piece is parked
//   parked  [blocks][most_parked][N8][32 lanes]

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// What ordinary stores wrote to shared memory is seen by the tensor cores after this and a barrier.
__device__ __forceinline__ void store_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// acc += a row tile of each of the four warps times the activation rows, over 256 columns, in the
// order of multiply_tile in tiles.cuh. `x` and `sums` describe the superblock's activations.
template <int FORMAT, int N8>
__device__ __forceinline__ void multiply_unit(const u8* tile, u64 x, u64 sums,
                                              float (&acc)[1][N8][4]) {
  typedef Tile<FORMAT> T;
  constexpr int K16 = 2 * N8 * 8;  // 16 columns further in a descriptor
  const int lane = threadIdx.x & 31;
  float even[N8][4], odd[N8][4];
  u32 a[2][4][4];
  typename T::Head head = T::head(tile, lane);
#pragma unroll
  for (int c = 0; c < 4; c++) {
    // Read again, it would take 16 registers.
    if (FORMAT == TILE_Q6_K && c > 0) head = T::head(tile, lane);
    // The wgmma that read this buffer.
    if (!is_grouped(FORMAT) && c >= 2) warpgroup_wait<1>();
    u32(&f)[4][4] = a[c & 1];
    T::chunk(tile, head, c, lane, f);
    hold(f);
    const u64 b = x + c * 4 * K16;
    warpgroup_fence();
    if constexpr (is_grouped(FORMAT)) {
      warpgroup_mma(even, f[0], b, false);
      warpgroup_mma(odd, f[2], b + 2 * K16, false);
      warpgroup_mma(even, f[1], b + K16, true);
      warpgroup_mma(odd, f[3], b + 3 * K16, true);
      warpgroup_commit();
      float d[2], d2[2];
      T::group(tile, head, 2 * c, lane, d);
      T::group(tile, head, 2 * c + 1, lane, d2);
      warpgroup_wait<0>();
#pragma unroll
      for (int j = 0; j < N8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          acc[0][j][e] =
              __fmaf_rn(d2[e >> 1], odd[j][e], __fmaf_rn(d[e >> 1], even[j][e], acc[0][j][e]));
    } else {
      warpgroup_mma(even, f[0], b, c > 0);
      warpgroup_mma(odd, f[1], b + K16, c > 0);
      warpgroup_mma(even, f[2], b + 2 * K16, true);
      warpgroup_mma(odd, f[3], b + 3 * K16, true);
      warpgroup_commit();
    }
  }
  if constexpr (!is_grouped(FORMAT)) {
    constexpr bool MINS = FORMAT == TILE_Q4_K || FORMAT == TILE_Q5_K;
    float d[2], m[2], e4[N8][4];
    T::ends(tile, head, lane, d);
    if constexpr (MINS) {
      u32 f[4];
      T::mins(head, lane, f, m);
      // So that e4 may have the registers of the first buffer, or of both.
      warpgroup_wait<(N8 > 4 ? 0 : 1)>();
      hold(f);
      warpgroup_fence();
      warpgroup_mma(e4, f, sums, false);
      warpgroup_commit();
    }
    warpgroup_wait<0>();
#pragma unroll
    for (int j = 0; j < N8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[0][j][e] = __fmaf_rn(d[e >> 1], even[j][e] + odd[j][e], acc[0][j][e]);
        if constexpr (MINS) acc[0][j][e] = __fmaf_rn(m[e >> 1], e4[j][e], acc[0][j][e]);
      }
  }
}

// Activations of superblocks `from` to `to` of the slice, each as [32 groups of 8 columns][N
// rows][8] in the tiles' order of columns, then the sums as [2][N rows][8].
template <int N8>
__device__ __forceinline__ void bring_x(const MatmulArgs& a, const Part& b, int from, int to,
                                        u8* x) {
  constexpr int N = 8 * N8, STAGE = N * 544;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5,
            g = lane >> 2, t = lane & 3;
  // Rows that do not exist read the last one; their results are dropped.
  auto row_of = [&](int n) {
    n = a.first_row + min(n, a.rows - 1);
    return (size_t)(a.chosen ? a.chosen[n] : n);
  };
  const __half* rows[N8];
#pragma unroll
  for (int j = 0; j < N8; j++)
    rows[j] = a.x.x + row_of(8 * j + g) * a.x.ld + (b.first_k + from) * 256 + t * 8;
#pragma unroll(16 / N8)
  for (int group = warp; group < 8 * (to - from); group += warps) {
    uint4 v[N8];
#pragma unroll
    for (int j = 0; j < N8; j++) v[j] = load16(rows[j] + group * 32);
    u8* here = x + (group >> 3) * STAGE + (group & 7) * (4 * N * 16) + g * 16 + t * 4;
#pragma unroll
    for (int j = 0; j < N8; j++, here += 128) {
      *(u32*)here = v[j].x;
      *(u32*)(here + N * 16) = v[j].y;
      *(u32*)(here + 2 * N * 16) = v[j].z;
      *(u32*)(here + 3 * N * 16) = v[j].w;
    }
  }
  if (a.with_sums) {
    for (int i = threadIdx.x; i < 2 * N * (to - from); i += blockDim.x) {
      const int k = i / (2 * N), n = i % (2 * N) >> 1, half = i & 1;
      const __half* sums =
          a.x.sums + row_of(n) * (a.x.ld / 16) + (b.first_k + from + k) * 16 + half * 8;
      *(uint4*)(x + k * STAGE + N * 512 + half * N * 16 + n * 16) = load16(sums);
    }
  }
  store_fence();
}

// The sums of a row tile over one slice as a warp holds them, [N8][32 lanes][4], go to the block
// that owns it, row tile i of the share to block i % slices of the cluster, which adds them in
// order. Its own it keeps where it parked them.
template <int N8> struct Sums {
  float* parts;  // [slices - 1][owned][N8][32 lanes][4]
  u64* sent;

  __device__ __forceinline__ void put(const MatmulArgs& a, const Part& b, int tile,
                                      const float (&acc)[1][N8][4], float4* own) const {
    const int index = tile - b.first_tile, mine = quotient(index, a.slices),
              owner = index - mine * a.slices;
    if (owner == b.slice) {
#pragma unroll
      for (int j = 0; j < N8; j++)
        own[j * 32] = make_float4(acc[0][j][0], acc[0][j][1], acc[0][j][2], acc[0][j][3]);
      return;
    }
    const int from = b.slice - (b.slice > owner);
    const u32 to =
        address_in(parts + ((from * a.owned + mine) * N8 * 32 + (threadIdx.x & 31)) * 4, owner);
    const u32 signal = address_in(sent, owner);
#pragma unroll
    for (int j = 0; j < N8; j++)
      asm volatile(
          "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, "
          "%4}, [%5];" ::"r"(to + j * 512),
          "f"(acc[0][j][0]), "f"(acc[0][j][1]), "f"(acc[0][j][2]), "f"(acc[0][j][3]), "r"(signal)
          : "memory");
  }

  __device__ __forceinline__ void add(const MatmulArgs& a, const Part& b) const {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, warps = blockDim.x >> 5;
    const int mine = quotient(b.tiles - b.slice + a.slices - 1, a.slices);
    if (a.slices > 1 && threadIdx.x == 0) barrier_expect(sent, mine * (a.slices - 1) * N8 * 512);
    __syncthreads();  // what the block keeps itself is there
    if (a.slices > 1) barrier_wait(sent, 0);
#pragma unroll 1
    for (int i = threadIdx.x >> 5; i < mine; i += warps) {
      const int tile = b.first_tile + i * a.slices + b.slice,
                piece = a.chains[b.slice * a.tiles + tile].y;
      const float4* own = a.parked + ((size_t)blockIdx.x * a.most_parked + piece) * N8 * 32 + lane;
      const MatmulProduct& p = a.products[product_of(a, tile)];
      const int row = (tile - p.first_tile) * 16 + g;
#pragma unroll
      for (int j = 0; j < N8; j++) {
        const float4 kept = own[j * 32];
        float4 v = kept;
#pragma unroll 1
        for (int s = 0; s < a.slices; s++) {
          float4 w = kept;
          if (s != b.slice)
            w = load_written4(parts + (((s - (s > b.slice)) * a.owned + i) * N8 + j) * 128 +
                              lane * 4);
          v = s == 0 ? w : add4(v, w);
        }
        float* out = p.out + (size_t)(a.first_row + 8 * j + 2 * t) * p.out_stride + row;
#pragma unroll
        for (int h = 0; h < 2; h++, out += p.out_stride) {
          if (8 * j + 2 * t + h >= a.rows) continue;
          if (row < p.rows) out[0] = h ? v.y : v.x;
          if (row + 8 < p.rows) out[8] = h ? v.w : v.z;
        }
      }
    }
  }
};

template <int N8, int FORMAT> __device__ __forceinline__ void matmul_hopper(const MatmulArgs& a) {
  extern __shared__ __align__(128) u8 memory[];
  constexpr int N = 8 * N8, STAGE = N * 544;
  // `warp` is not told to be the same in all lanes: ptxas 12.9 then makes copies into the ring that
  // are no instructions.
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  launch_dependents();
  const int superblocks = a.x.ld >> 8;
  const Part b = part_of_block<FORMAT>(a);
  const int stage_bytes = FORMAT == MIXED ? a.stage_bytes : tile_bytes(FORMAT);
  Ring ring = {memory + warp * a.stages * stage_bytes, a.stages, stage_bytes};
  u8* x = memory + warps * a.stages * stage_bytes;  // [held][STAGE]
  float* parts = (float*)(x + a.held * STAGE);
  u64* sent = (u64*)(parts + (a.workspace ? 0 : (a.slices - 1) * a.owned * N8 * 128));
  const Slices slices = {nullptr, sent, a.slices > 1};
  const Sums<N8> totals = {parts, sent};
  slices.open();

  // Lane i knows unit i of this warpgroup: this warp's row tile or -1, its chains, and its format
  // << 16.
  int tile_of = -1;
  int2 chain_of = {0, 0};
  const int index = lane * (warps >> 2) + (warp >> 2);
  int2 unit = {0, 0};
  if (index < a.most_units) unit = a.units[quotient(blockIdx.x, a.slices) * a.most_units + index];
  if ((warp & 3) < unit.y) {
    tile_of = unit.x + (warp & 3);
    chain_of = a.chains[b.slice * a.tiles + tile_of];
  }
  if (FORMAT == MIXED && unit.y) chain_of.y |= a.products[product_of(a, unit.x)].format << 16;
  const int units = __popc(__ballot_sync(~0u, unit.y > 0));

  // Asking goes unit by unit, through the superblocks of a phase, then through those of the next.
  int next = 0;  // the unit, and the phase << 8
  Ahead ahead = {nullptr, 0, FORMAT};
  auto advance = [&] {
    int tile;
    do {
      if ((next & 255) == units) {
        next = (next | 255) + 1;
        if ((next >> 8) * a.held >= b.depth) return;
      }
      tile = units ? __shfl_sync(~0u, tile_of, next++ & 255) : -1;
    } while (tile < 0);
    const MatmulProduct& p = a.products[product_of(a, tile)];
    if (FORMAT == MIXED) ahead.format = p.format;
    const int from = (next >> 8) * a.held;
    ahead.at =
        p.weight + lane * 16 +
        ((size_t)(tile - p.first_tile) * superblocks + b.first_k + from) * bytes_of(ahead.format);
    ahead.left = min(a.held, b.depth - from);
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
  // Core matrices of 8 rows x 8 columns are 128 bytes; the next 8 rows 128 bytes on, the next 8
  // columns 16 N.
  const u64 layout = (u64)N << 16 | (u64)(128 / 16) << 32;
  const u64 x_matrix = layout | (shared_address(x) & 0x3ffff) >> 4;
#pragma unroll 1
  for (int from = 0, to; from < b.depth; from = to) {
    to = min(from + a.held, b.depth);
    if (from) __syncthreads();  // nobody reads the activations of the phase before any more
    bring_x<N8>(a, b, from, to, x);
    __syncthreads();
    // Every block runs: its shared memory may be written.
    if (slices.clustered && from == 0) cluster_wait();
#pragma unroll 1
    for (int i = 0; i < units; i++) {
      const int tile = __shfl_sync(~0u, tile_of, i);
      const int format = FORMAT == MIXED ? __shfl_sync(~0u, chain_of.y, i) >> 16 : FORMAT;
      const u32 begins = __shfl_sync(~0u, chain_of.x, i);
      const bool mine = tile >= 0;
      // Where the pieces of the sum are parked; that of the chain which superblock k - 1 belongs
      // to. With several formats the first place is asked for again, it would take a register.
      const int first_place = __shfl_sync(~0u, chain_of.y, i);
      auto place_of = [&](int piece) {
        const int first = FORMAT == MIXED ? __shfl_sync(~0u, chain_of.y, i) & 0xffff : first_place;
        return a.parked + ((size_t)blockIdx.x * a.most_parked + first + piece) * N8 * 32 + lane;
      };
      auto piece_before = [&](int k) { return place_of(__popc(begins & ((1u << k) - 1))); };
      float acc[1][N8][4] = {};
      auto park = [&](int k) {
        float4* at = piece_before(k);
#pragma unroll
        for (int j = 0; j < N8; j++)
          at[j * 32] = make_float4(acc[0][j][0], acc[0][j][1], acc[0][j][2], acc[0][j][3]);
      };
      auto add_parked = [&](const float4* at) {
#pragma unroll
        for (int j = 0; j < N8; j++) {
          const float4 v = at[j * 32];
          acc[0][j][0] = v.x + acc[0][j][0], acc[0][j][1] = v.y + acc[0][j][1];
          acc[0][j][2] = v.z + acc[0][j][2], acc[0][j][3] = v.w + acc[0][j][3];
        }
      };
      if (from && mine) add_parked(piece_before(from));
      // A warp without a row tile multiplies whatever lies where activations are, and drops it.
      auto direct = [&](int k) {
        if (!mine) return (const u8*)x;
        const MatmulProduct& p = a.products[product_of(a, tile)];
        return p.weight +
               ((size_t)(tile - p.first_tile) * superblocks + b.first_k + k) * bytes_of(p.format);
      };
#pragma unroll 1
      for (int k = from; k < to; k++) {
        if (begins >> k & 1) {
          park(k);
#pragma unroll
          for (int j = 0; j < N8; j++)
            acc[0][j][0] = acc[0][j][1] = acc[0][j][2] = acc[0][j][3] = 0.f;
        }
        if (mine) ring.wait();
        const u64 xk = x_matrix + (u64)((k - from) * (STAGE / 16)), sums = xk + N * 32;
        const u8* weights = mine ? ring.tile() : x;
        if constexpr (FORMAT != MIXED) {
          multiply_unit<FORMAT, N8>(weights, xk, sums, acc);
        } else {
          switch (format) {
            case TILE_Q4_K: multiply_unit<TILE_Q4_K, N8>(weights, xk, sums, acc); break;
            case TILE_Q5_K: multiply_unit<TILE_Q5_K, N8>(weights, xk, sums, acc); break;
            case TILE_Q6_K: multiply_unit<TILE_Q6_K, N8>(weights, xk, sums, acc); break;
            case TILE_Q8_0: multiply_unit<TILE_Q8_0, N8>(weights, xk, sums, acc); break;
            case TILE_F16: multiply_unit<TILE_F16, N8>(weights, xk, sums, acc); break;
#define FORERUN_CASE(F) case F: multiply_unit<F, N8>(weights, xk, sums, acc); break;
            FOR_OTHER_FORMATS(FORERUN_CASE)
#undef FORERUN_CASE
            case TILE_Q8_0 + DIRECT: multiply_unit<TILE_Q8_0, N8>(direct(k), xk, sums, acc); break;
            default: multiply_unit<TILE_F16, N8>(direct(k), xk, sums, acc);
          }
        }
        if (mine) {
          __syncwarp();
          ask<FORMAT>(ring, ahead, advance, policy);
          ring.step();
        }
      }
      if (!mine) continue;
      if (to < b.depth) {
        park(to);
        continue;
      }
#pragma unroll 1
      for (int piece = __popc(begins) - 1; piece >= 0; piece--) add_parked(place_of(piece));
      if (a.workspace) slices.put(a, b, tile, acc);
      else totals.put(a, b, tile, acc, place_of(0));
    }
  }
  if (a.workspace) slices.add(a, b);
  else totals.add(a, b);
}

#define HOPPER_KERNEL(NAME, REGISTERS, LIMIT, N8, FORMAT) \
  KERNEL(NAME, REGISTERS, MatmulArgs, LIMIT, 1) { matmul_hopper<N8, FORMAT>(a); }

HOPPER_KERNEL(matmul_hopper_24_q4_k, 128, 512, 3, TILE_Q4_K)
HOPPER_KERNEL(matmul_hopper_24_q6_k, 128, 512, 3, TILE_Q6_K)
HOPPER_KERNEL(matmul_hopper_24_mixed, 128, 512, 3, MIXED)
HOPPER_KERNEL(matmul_hopper_32_q4_k, 128, 512, 4, TILE_Q4_K)
HOPPER_KERNEL(matmul_hopper_32_q6_k, 128, 512, 4, TILE_Q6_K)
HOPPER_KERNEL(matmul_hopper_32_mixed, 128, 512, 4, MIXED)
HOPPER_KERNEL(matmul_hopper_48_q4_k, 168, 384, 6, TILE_Q4_K)
HOPPER_KERNEL(matmul_hopper_48_q6_k, 168, 384, 6, TILE_Q6_K)
HOPPER_KERNEL(matmul_hopper_48_mixed, 168, 384, 6, MIXED)
HOPPER_KERNEL(matmul_hopper_64_q4_k, 168, 384, 8, TILE_Q4_K)
HOPPER_KERNEL(matmul_hopper_64_q6_k, 168, 384, 8, TILE_Q6_K)
HOPPER_KERNEL(matmul_hopper_64_mixed, 168, 384, 8, MIXED)
#endif
