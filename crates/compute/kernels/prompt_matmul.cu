// Products with many activation rows: out[n][m] = sum over k of W[m][k] x[n][k], several matrices with the same x in
// one launch, and the same for experts (each expert's matrix with the rows that visit it).
//
// Weights are decoded to f16 in registers, once for all activation rows of a block, and are the A operand; f32 sums.
// A quantised weight is a small integer around zero times a scale (plus an offset in Q4_K and Q5_K) and is rounded to
// f16: 2e-4 to 3e-4 of the product, as much as rounding the activations costs. Every output is one chain of sums in the
// order of the columns: its bits depend on neither the number of rows nor the size of a block's tile.
//
// Limits: tensor cores. 2 rows K M flop; mma.sync gives at most about 620 Tflop/s on an H200, wgmma 790 measured. Bytes
// are few: a block reads (0.56 to 2) BM + 2 BN bytes a column, from L2 but for the first time.
//
// prompt_matmul (mma.sync, any card, formats mixed): 8 warps, a warp multiplies 32 weight rows by 64 x rows. x comes 64
//   columns at a time through a ring of 4 stages of shared memory (cp.async, 16-byte pieces turned so that neither side
//   has bank conflicts); weights go from global memory straight to registers, one step ahead.
//   grid [ceil(rows / BN), sum over products of ceil(M / BM)], BN = 64 warps_n, BM = 256 / warps_n, warps_n 1 or 2;
//   block 256, shared 4 BN 128.
// prompt_hopper_FORMAT, prompt_hopper_half_FORMAT (wgmma, sm_90a alone, all products of one format): two warpgroups
//   multiply 128 (half: 64) weight rows each by 128 x rows, a third brings x in the tiles' order of columns. Weights
//   come by bulk copies into a ring of each warp.
//   grid [ceil(rows / 128), sum over products of ceil(M / BM)], BM = 256 (half: 128); block 384;
//   shared 1024 + 4 16384 + ring, ring = 8 slots tile bytes (args.ring), slots at most 8 and at least 2 (half: 1).
// prompt_experts (mma.sync): grid multiprocessors (blocks loop over work), block 256,
//   shared 4 64 128 + 4 (experts + 1).
// budget: prompt_matmul 255
// budget: prompt_experts 255
// budget: prompt_hopper_q4_k 168
// budget: prompt_hopper_q5_k 168
// budget: prompt_hopper_q6_k 168
// budget: prompt_hopper_q8_0 168
// budget: prompt_hopper_half_q4_k 168
// budget: prompt_hopper_half_q5_k 168
// budget: prompt_hopper_half_q6_k 168
// budget: prompt_hopper_half_q8_0 168
// budget: prompt_hopper_half_f16 168
#include "tiles.cuh"

constexpr int MAX_PRODUCTS = 8;

struct PromptProduct {
  const u8* weight;  // tiles [M / 16][K / 256], for experts [expert] of that
  float* out;        // [rows][M]
  int rows;          // M
  int format;        // TileFormat
};
struct PromptArgs {
  const __half* x;  // [rows][ld], K = ld
  int ld, rows, count;
  int warps_n;      // prompt_matmul: warps side by side along the rows of x, 1 or 2
  int ring;         // prompt_matmul_hopper: bytes of shared memory for weight tiles
  int pad;
  PromptProduct products[MAX_PRODUCTS];
};
struct PromptExpertsArgs {
  const __half* x;
  const u32* order;   // [visits]: row * top_k + rank, by expert
  const u32* starts;  // [experts + 1]
  int ld, experts, divisor, count;  // x row of a visit is visit / divisor: top_k, or 1 where x has a row per visit
  PromptProduct products[MAX_PRODUCTS];
};
static_assert(sizeof(PromptProduct) == 24 && sizeof(PromptArgs) == 224 && sizeof(PromptExpertsArgs) == 232, "mirrored");

// ------------------------------------------------------------------ instructions

#ifndef FORERUN_EMULATION
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// 16 bytes to shared memory, zeros where `ok` is false.
__device__ __forceinline__ void copy16(void* to, const void* from, bool ok) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(ok ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ uint4 stream16(const u8* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 stream8(const u8* p) {
  uint2 v;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
__device__ __forceinline__ u32 pack_half2(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// Makes what follows from `v` be computed anew rather than kept: registers are scarcer than instructions.
__device__ __forceinline__ void forget(uint4& v) { asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)); }
__device__ __forceinline__ u8* shared_memory() {
  extern __shared__ __align__(128) u8 memory[];
  return memory;
}
#endif

// ------------------------------------------------------------------ decoding to f16

// Where weights come from: global memory past L1, or shared memory.
struct FromGlobal {
  __device__ static __forceinline__ uint4 get(const u8* p) { return stream16(p); }
  __device__ static __forceinline__ uint2 get8(const u8* p) { return stream8(p); }
};
struct FromShared {
  __device__ static __forceinline__ uint4 get(const u8* p) { return load16(p); }
  __device__ static __forceinline__ uint2 get8(const u8* p) { return *(const uint2*)p; }
};

// Of each format: what a lane keeps for 256 columns (`Head`) and for 64 (`Chunk`), and the A
// fragments of one group of 32 columns, two k-steps.
template <int FORMAT> struct Decode;

__device__ __forceinline__ float byte_float(u32 word, int byte) {  // 2^23 + byte
  return __uint_as_float(permute(word, 0x4b000000, 0x7440 + byte));
}

template <int FORMAT> struct DecodeK {  // Q4_K, Q5_K
  static constexpr bool FIFTH = FORMAT == TILE_Q5_K;
  struct Head {
    uint4 rows[2];
    uint4 fifth;  // Q5_K
    __device__ __forceinline__ void renew() {
      forget(rows[0]);
      forget(rows[1]);
    }
  };
  struct Chunk {
    uint4 w;
  };
  template <class From> __device__ static __forceinline__ Head head(const u8* tile, int lane) {
    Head h;
    h.rows[0] = From::get(tile + 2048 + (lane >> 2) * 16);
    h.rows[1] = From::get(tile + 2048 + (lane >> 2) * 16 + 128);
    if (FIFTH) h.fifth = From::get(tile + 2304 + lane * 16);
    return h;
  }
  template <class From> __device__ static __forceinline__ Chunk chunk(const u8* tile, int c, int lane) {
    return {From::get(tile + c * 512 + lane * 16)};
  }
  __device__ static __forceinline__ void fragments(u32 (&a)[2][4], const Head& h, const Chunk& k, int c, int group,
                                                   int) {
    constexpr float MIDDLE = FIFTH ? 16.f : 8.f;  // weights lie around it: the offset that remains is small
    u32 scale[2], offset[2];                      // weight = (q - MIDDLE) scale + offset
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint4& r = h.rows[i];
      const float d = low_float(r.x), dmin = high_float(r.x);
      const u32 scales = c < 2 ? r.y & 0x3f3f3f3f : (r.w & 0x0f0f0f0f) | ((r.y >> 2) & 0x30303030);
      const u32 mins = c < 2 ? r.z & 0x3f3f3f3f : ((r.w >> 4) & 0x0f0f0f0f) | ((r.z >> 2) & 0x30303030);
      const float s = __fmaf_rn(byte_float(scales, 2 * (c & 1) + group), d, -8388608.f * d);
      const float m = __fmaf_rn(byte_float(mins, 2 * (c & 1) + group), dmin, -8388608.f * dmin);
      const float o = __fmaf_rn(MIDDLE, s, -m);
      scale[i] = pack_half2(s, s);
      offset[i] = pack_half2(o, o);
    }
    const u32 f = FIFTH ? word_of(h.fifth, c) : 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      // 0x6400 | q is 1024 + q; the second group's stand 4 bits up: 1024 + 16 q
      const u32 nibble = group ? 0x00f000f0 : 0x000f000f, fifth = group ? 0x01000100 : 0x00100010;
      const u32 v = word_of(k.w, i);
      u32 q0 = (v & nibble) | 0x64006400, q8 = ((v >> 8) & nibble) | 0x64006400;
      if (FIFTH) {
        q0 |= (f >> i) & fifth;
        q8 |= turn_right(f, 8 + i) & fifth;
      }
      constexpr u32 LOW = FIFTH ? 0xe410e410 : 0xe408e408;   // -(1024 + MIDDLE)
      constexpr u32 HIGH = FIFTH ? 0xd500d500 : 0xd480d480;  // -(64 + MIDDLE)
      q0 = group ? half2_fma(q0, 0x2c002c00, HIGH) : half2_add(q0, LOW);
      q8 = group ? half2_fma(q8, 0x2c002c00, HIGH) : half2_add(q8, LOW);
      a[i >> 1][2 * (i & 1)] = half2_fma(q0, scale[0], offset[0]);
      a[i >> 1][2 * (i & 1) + 1] = half2_fma(q8, scale[1], offset[1]);
    }
  }
};
template <> struct Decode<TILE_Q4_K> : DecodeK<TILE_Q4_K> {};
template <> struct Decode<TILE_Q5_K> : DecodeK<TILE_Q5_K> {};

template <> struct Decode<TILE_Q6_K> {
  struct Head {
    uint4 scales[2];
    u32 d[2];
    __device__ __forceinline__ void renew() {}
  };
  struct Chunk {
    uint4 w;
    uint2 pairs;
  };
  template <class From> __device__ static __forceinline__ Head head(const u8* tile, int lane) {
    const int g = lane >> 2;
    Head h;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      h.scales[i] = From::get(tile + 3072 + (g + 8 * i) * 16);
      h.d[i] = *(const unsigned short*)(tile + 3328 + (g + 8 * i) * 2);
    }
    return h;
  }
  template <class From> __device__ static __forceinline__ Chunk chunk(const u8* tile, int c, int lane) {
    return {From::get(tile + c * 512 + lane * 16), From::get8(tile + 2048 + (c >> 1) * 512 + lane * 16 + (c & 1) * 8)};
  }
  __device__ static __forceinline__ void fragments(u32 (&a)[2][4], const Head& h, const Chunk& k, int c, int group,
                                                   int lane) {
    u32 scale[2];  // a byte is a scale + 128; lanes t >= 2 are in columns 16 to 31 of the group, with the next byte
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const u32 four = word_of(h.scales[i], c) >> ((lane & 2) * 4);
      const float s = (byte_float(four, 2 * group) - 8388736.f) * low_float(h.d[i]);
      scale[i] = pack_half2(s, s);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 nibble = group ? 0x00f000f0 : 0x000f000f, pair = group ? 0x03000300 : 0x00300030;
      const u32 v = word_of(k.w, i), p = i >> 1 ? k.pairs.y : k.pairs.x;
      const u32 p0 = i & 1 ? p >> 2 : p, p8 = i & 1 ? turn_right(p, 10) : permute(p, 0, 0x0321);
      u32 q0 = (v & nibble) | 0x64006400 | (p0 & pair), q8 = ((v >> 8) & nibble) | 0x64006400 | (p8 & pair);
      q0 = group ? half2_fma(q0, 0x2c002c00, 0xd600d600) : half2_add(q0, 0xe420e420);
      q8 = group ? half2_fma(q8, 0x2c002c00, 0xd600d600) : half2_add(q8, 0xe420e420);
      a[i >> 1][2 * (i & 1)] = half2_mul(q0, scale[0]);
      a[i >> 1][2 * (i & 1) + 1] = half2_mul(q8, scale[1]);
    }
  }
};

template <> struct Decode<TILE_Q8_0> {
  struct Head {
    uint4 d[2];
    __device__ __forceinline__ void renew() {}
  };
  struct Chunk {
    uint4 w[2];
  };
  template <class From> __device__ static __forceinline__ Head head(const u8* tile, int lane) {
    return {{From::get(tile + 4096 + (lane >> 2) * 16), From::get(tile + 4096 + (lane >> 2) * 16 + 128)}};
  }
  template <class From> __device__ static __forceinline__ Chunk chunk(const u8* tile, int c, int lane) {
    return {{From::get(tile + 2 * c * 512 + lane * 16), From::get(tile + (2 * c + 1) * 512 + lane * 16)}};
  }
  __device__ static __forceinline__ void fragments(u32 (&a)[2][4], const Head& h, const Chunk& k, int c, int group,
                                                   int) {
    const u32 d0 = word_of(h.d[0], c), d8 = word_of(h.d[1], c);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 v = word_of(k.w[group], i);
      const u32 q0 = half2_add(permute(v, 0x64646464, 0x4140), 0xe480e480);
      const u32 q8 = half2_add(permute(v, 0x64646464, 0x4342), 0xe480e480);
      a[i >> 1][2 * (i & 1)] = half2_mul(q0, group ? twice_high(d0) : twice_low(d0));
      a[i >> 1][2 * (i & 1) + 1] = half2_mul(q8, group ? twice_high(d8) : twice_low(d8));
    }
  }
};

template <> struct Decode<TILE_F16> {
  struct Head {
    __device__ __forceinline__ void renew() {}
  };
  struct Chunk {
    uint4 w[2][2];
  };
  template <class From> __device__ static __forceinline__ Head head(const u8*, int) { return {}; }
  template <class From> __device__ static __forceinline__ Chunk chunk(const u8* tile, int c, int lane) {
    const u8* p = tile + 2 * c * 1024 + lane * 16;
    return {{{From::get(p), From::get(p + 512)}, {From::get(p + 1024), From::get(p + 1536)}}};
  }
  __device__ static __forceinline__ void fragments(u32 (&a)[2][4], const Head&, const Chunk& k, int, int group, int) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      a[i >> 1][2 * (i & 1)] = word_of(k.w[group][0], i);
      a[i >> 1][2 * (i & 1) + 1] = word_of(k.w[group][1], i);
    }
  }
};

// ------------------------------------------------------------------ mma.sync

constexpr int STAGES = 4;

// One block's tile: 32 weight rows a warp from row tile `first_tile` + 2 wm on, times 8 N8 rows of x from 8 N8 wn on.
// A thread copies a 16-byte piece of ROWS rows of x, 32 rows apart: rows.source(i), zeros unless rows.there(i);
// rows.out(n): the out row of the block's x row n, or -1.
template <int FORMAT, int N8, int ROWS, class Rows>
__device__ __forceinline__ void multiply(const u8* weight, float* out, int M, int K, int first_tile, int wm, int wn,
                                         const Rows& rows, u8* stages) {
  typedef Decode<FORMAT> D;
  constexpr int BYTES = tile_bytes(FORMAT);
  const int tid = threadIdx.x, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int tiles = (M + 15) / 16, KB = K / 256;
  const u8* tile[2];
#pragma unroll
  for (int m = 0; m < 2; m++) tile[m] = weight + (size_t)min(first_tile + 2 * wm + m, tiles - 1) * KB * BYTES;

  // piece p of row r lies at r 128 + 16 (p ^ 4 (r & 1)): the four lanes of a row and of the next read all 32 banks
  const int row = tid >> 3, piece = tid & 7, stage_bytes = ROWS * 32 * 128;
  u8* to = stages + row * 128 + ((piece ^ ((row & 1) << 2)) << 4);
  int ahead = 0;  // stage to fill next
  auto fetch = [&](int step) {
    if (step < KB * 4)
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        const __half* from = rows.source(i);
        copy16(to + ahead * stage_bytes + i * 32 * 128, from + step * 64, rows.there(i));
      }
    copy_commit();
    if (++ahead == STAGES) ahead = 0;
  };
  const int b_offset = (wn * N8 * 8 + g) * 128 + (((g & 1) << 2 | t) << 4);

  typename D::Head head[2];
  typename D::Chunk chunk[2];
#pragma unroll
  for (int m = 0; m < 2; m++) {
    head[m] = D::template head<FromGlobal>(tile[m], lane);
    chunk[m] = D::template chunk<FromGlobal>(tile[m], 0, lane);
  }
  for (int i = 0; i < STAGES - 1; i++) fetch(i);
  float acc[2][N8][4];
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int j = 0; j < N8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) acc[m][j][e] = 0.f;

  int stage = 0;
  for (int kb = 0; kb < KB; kb++) {
    const int more = kb + 1 < KB ? BYTES : 0;  // the last superblock is fetched again rather than none
#pragma unroll 1  // a smaller body keeps fewer registers
    for (int c = 0; c < 4; c++) {
      copy_wait<STAGES - 2>();
      __syncthreads();  // this step's x is there, and every warp is done with the stage filled next
      fetch(kb * 4 + c + STAGES - 1);
      const u8* x = stages + stage * stage_bytes;
      head[0].renew();
      head[1].renew();
#pragma unroll
      for (int group = 0; group < 2; group++) {
        u32 a[2][2][4];
#pragma unroll
        for (int m = 0; m < 2; m++) {
          D::fragments(a[m], head[m], chunk[m], c, group, lane);
          if (group == 1) {
            chunk[m] = D::template chunk<FromGlobal>(tile[m] + (c == 3 ? more : 0), (c + 1) & 3, lane);
            if (c == 3) head[m] = D::template head<FromGlobal>(tile[m] + more, lane);
          }
        }
#pragma unroll
        for (int j = 0; j < N8; j++) {
          const uint4 b = load16(x + (b_offset ^ (group * 64)) + j * 1024);
#pragma unroll
          for (int m = 0; m < 2; m++) mma(acc[m][j], a[m][0], b.x, b.y);
#pragma unroll
          for (int m = 0; m < 2; m++) mma(acc[m][j], a[m][1], b.z, b.w);
        }
      }
      if (++stage == STAGES) stage = 0;
    }
#pragma unroll
    for (int m = 0; m < 2; m++) tile[m] += BYTES;
  }
  copy_wait<0>();
#pragma unroll
  for (int j = 0; j < N8; j++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int n = rows.out((wn * N8 + j) * 8 + 2 * t + i);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int r = (first_tile + 2 * wm + (e >> 1)) * 16 + g + 8 * (e & 1);
        if (r < M && n >= 0) out[(size_t)n * M + r] = acc[e >> 1][j][2 * (e & 1) + i];
      }
    }
}

// The product and its row tile that a block's number along M means.
template <class Args>
__device__ __forceinline__ int find_product(const Args& a, int number, int block_rows, int& first_tile) {
  int p = 0;
  while (p + 1 < a.count) {
    const int blocks = (a.products[p].rows + block_rows - 1) / block_rows;
    if (number < blocks) break;
    number -= blocks;
    p++;
  }
  first_tile = number * (block_rows / 16);
  return p;
}

struct PlainRows {
  const __half* first;  // this thread's piece of the first row that it copies
  const __half* safe;
  int stride, n0, count;
  __device__ __forceinline__ bool there(int i) const { return n0 + (int)(threadIdx.x >> 3) + 32 * i < count; }
  __device__ __forceinline__ const __half* source(int i) const { return there(i) ? first + (size_t)i * stride : safe; }
  __device__ __forceinline__ int out(int n) const { return n0 + n < count ? n0 + n : -1; }
};

template <int N8, int ROWS>
__device__ __forceinline__ void prompt_block(const PromptArgs& a, int warps_n) {
  launch_dependents();
  u8* stages = shared_memory();
  const int tid = threadIdx.x, warp = tid >> 5;
  const int wn = warp % warps_n, wm = warp / warps_n;
  const int n0 = blockIdx.x * ROWS * 32;
  int first_tile;
  const int p = find_product(a, blockIdx.y, 256 / warps_n, first_tile);
  const PlainRows rows{a.x + (size_t)(n0 + (tid >> 3)) * a.ld + (tid & 7) * 8, a.x, a.ld * 32, n0, a.rows};
  wait_for_inputs();
  const PromptProduct q = a.products[p];
#define FORERUN_CASE(F) \
  case F: multiply<F, N8, ROWS>(q.weight, q.out, q.rows, a.ld, first_tile, wm, wn, rows, stages); break
  switch (q.format) {
    FORERUN_CASE(TILE_Q4_K);
    FORERUN_CASE(TILE_Q5_K);
    FORERUN_CASE(TILE_Q6_K);
    FORERUN_CASE(TILE_Q8_0);
    FORERUN_CASE(TILE_F16);
  }
}

extern "C" __global__ void __launch_bounds__(256) prompt_matmul(const __grid_constant__ PromptArgs a) {
  if (a.warps_n == 2) prompt_block<8, 4>(a, 2);
  else prompt_block<8, 2>(a, 1);
}

// ------------------------------------------------------------------ experts

constexpr int GROUP = 64;  // visits of one expert multiplied together

struct VisitRows {
  const __half* from[2];
  const u32* visits;
  int count;
  __device__ __forceinline__ bool there(int i) const { return (int)(threadIdx.x >> 3) + 32 * i < count; }
  __device__ __forceinline__ const __half* source(int i) const { return from[i]; }
  __device__ __forceinline__ int out(int n) const { return n < count ? (int)visits[n] : -1; }
};

extern "C" __global__ void __launch_bounds__(256) prompt_experts(const __grid_constant__ PromptExpertsArgs a) {
  launch_dependents();
  u8* stages = shared_memory();
  u32* groups = (u32*)(stages + STAGES * GROUP * 128);  // [experts + 1]: groups of visits before each expert
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
    const size_t expert_tiles = (size_t)((q.rows + 15) / 16) * (a.ld / 256) * low;
#undef FORERUN_CASE
#define FORERUN_CASE(F)                                                                                        \
  case F:                                                                                                      \
    multiply<F, 8, 2>(q.weight + expert_tiles * tile_bytes(F), q.out, q.rows, a.ld, first_tile, warp, 0, rows, \
                      stages);                                                                                 \
    break
    switch (q.format) {
      FORERUN_CASE(TILE_Q4_K);
      FORERUN_CASE(TILE_Q5_K);
      FORERUN_CASE(TILE_Q6_K);
      FORERUN_CASE(TILE_Q8_0);
      FORERUN_CASE(TILE_F16);
    }
    __syncthreads();  // every warp is done with the stages
  }
}

// ------------------------------------------------------------------ wgmma

constexpr int X_STAGES = 4, X_BYTES = 128 * 128, MAX_SLOTS = 8;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FORERUN_EMULATION)
#ifndef FORERUN_EMULATION
__device__ __forceinline__ void barrier_init(u64* b, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(u64* b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u64* b) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// Without a branch: one between wgmma in flight makes ptxas wait for each of them.
__device__ __forceinline__ void barrier_arrive_if(u64* b, bool yes) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared.b64 _, [%0];\n}" ::"r"(
                   shared_address(b)),
               "r"((u32)yes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(u64* b, u32 phase) {
  asm volatile(
      "{\n.reg .pred p;\nW_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra W_%=;\n}\n" ::"r"(
          shared_address(b)),
      "r"(phase)
      : "memory");
}
__device__ __forceinline__ void copy_tile(void* to, const void* from, u32 bytes, u64* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(b))
               : "memory");
}
// What ordinary stores wrote to shared memory is seen by the tensor cores after this and a barrier.
__device__ __forceinline__ void store_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Registers that wgmma reads are ready here: their making must not be moved between the wgmma.
__device__ __forceinline__ void hold(u32 (&a)[2][2][4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32(&f)[4] = a[i >> 1][i & 1];
    asm volatile("" : "+r"(f[0]), "+r"(f[1]), "+r"(f[2]), "+r"(f[3])::"memory");
  }
}
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
template <int N> __device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
// c += a b: 64 weight rows, of which a warp holds 16, times 128 rows of x in shared memory, 16 columns.
__device__ __forceinline__ void warpgroup_mma(float (&c)[64], const u32 (&a)[4], u64 b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
      :
        "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
        "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
        "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#endif

// A consumer warp: row tiles row_tile + 4 h (h < HALVES) of its warpgroup's, times the block's 128 rows of x. The 64
// columns of a step are four wgmma for each h. A fragments are decoded into one of two buffers while the wgmma of the
// other run; sums stay in the registers that wgmma adds to.
template <int FORMAT, int HALVES>
__device__ __forceinline__ void consume(const PromptProduct& q, int K, int rows, int n0, int first_tile, u8* x_stages,
                                        u8* ring, int slots, u64* full, u64* empty, u64* landed) {
  typedef Decode<FORMAT> D;
  constexpr int BYTES = tile_bytes(FORMAT);
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, KB = K / 256;
  const int tiles = (q.rows + 15) / 16;
  const u8* tile[HALVES];
#pragma unroll
  for (int h = 0; h < HALVES; h++) tile[h] = q.weight + (size_t)min(first_tile + 4 * h, tiles - 1) * KB * BYTES;

  // The ring takes tiles in the order (superblock, h).
  int asked = 0, ask_slot = 0;  // by lane 0
  auto ask = [&]() {
    if (asked < KB * HALVES) {
      const u8* from = (HALVES == 2 && (asked & 1) ? tile[HALVES - 1] : tile[0]) + (size_t)(asked / HALVES) * BYTES;
      barrier_expect(landed + ask_slot, BYTES);
      copy_tile(ring + ask_slot * BYTES, from, BYTES, landed + ask_slot);
      asked++;
      if (++ask_slot == slots) ask_slot = 0;
    }
  };
  if (lane == 0)
    for (int i = 0; i < slots; i++) ask();

  float acc[HALVES][64];
#pragma unroll
  for (int h = 0; h < HALVES; h++)
#pragma unroll
    for (int i = 0; i < 64; i++) acc[h][i] = 0.f;
  // Core matrices of 8 rows x 8 columns are 128 bytes; the next 8 rows 128 bytes on, the next 8 columns 2048.
  const u64 layout = (u64)(2048 / 16) << 16 | (u64)(128 / 16) << 32;
  const u64 x_matrix = layout | (shared_address(x_stages) & 0x3ffff) >> 4;

  // A round is two units of four wgmma, each with its own buffer of fragments: both halves of a step, or two steps.
  constexpr int STEPS = HALVES == 2 ? 1 : 2;
  u32 a[2][2][2][4];
  int slot = 0, stage = 0;
  u32 slot_phase = 0, stage_phase = 0;
#pragma unroll 1
  for (int kb = 0; kb < KB; kb++) {
    const u8* at[HALVES];
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      barrier_wait(landed + slot, slot_phase);
      at[h] = ring + slot * BYTES;
      slot = slot + 1 == slots ? 0 : slot + 1;
      slot_phase ^= slot == 0;
    }
#pragma unroll
    for (int step = 0; step < 4; step += STEPS) {
#pragma unroll
      for (int i = 0; i < STEPS; i++) barrier_wait(full + stage + i, stage_phase);
      const u64 x = x_matrix + (u64)(stage * (X_BYTES / 16));
#pragma unroll
      for (int u = 0; u < 2; u++) {
        const int c = step + (HALVES == 2 ? 0 : u);
        const u8* tile = at[HALVES == 2 ? u : 0];
        warpgroup_wait<1>();  // the wgmma that read this buffer
        const typename D::Head head = D::template head<FromShared>(tile, lane);
        const typename D::Chunk chunk = D::template chunk<FromShared>(tile, c, lane);
        if (u == 1)           // so those of the round before are done
#pragma unroll
          for (int i = 0; i < STEPS; i++)
            barrier_arrive_if(empty + ((stage - STEPS + i) & (X_STAGES - 1)), lane == 0 && kb + step > 0);
        D::fragments(a[u][0], head, chunk, c, 0, lane);
        D::fragments(a[u][1], head, chunk, c, 1, lane);
        hold(a[u]);
        warpgroup_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
          warpgroup_mma(acc[HALVES == 2 ? u : 0], a[u][k >> 1][k & 1],
                        x + (HALVES == 2 ? 0 : u) * (X_BYTES / 16) + k * 256);
        warpgroup_commit();
      }
      stage = (stage + STEPS) & (X_STAGES - 1);
      stage_phase ^= stage == 0;
    }
    __syncwarp();  // every lane has read the tiles
    if (lane == 0)
      for (int h = 0; h < HALVES; h++) ask();
  }
  warpgroup_wait<0>();
#pragma unroll
  for (int h = 0; h < HALVES; h++)
#pragma unroll
    for (int i = 0; i < 64; i++) {
      const int n = n0 + (i >> 2) * 8 + 2 * t + (i & 1), r = (first_tile + 4 * h) * 16 + g + 8 * (i >> 1 & 1);
      if (r < q.rows && n < rows) q.out[(size_t)n * q.rows + r] = acc[h][i];
    }
}

// The producing warpgroup: x, 64 columns a stage as [8 columns][128 rows][8], where the four 4-byte words of a lane's
// 16 bytes go to four groups of 8 columns: the order of columns in weight tiles.
__device__ __forceinline__ void produce(const PromptArgs& a, int n0, u8* x_stages, u64* full, u64* empty) {
  const int p = threadIdx.x & 127, t = p & 3, row = p >> 2, steps = a.ld / 64;
  const __half* first = a.x + (size_t)(n0 + row) * a.ld + t * 8;
  uint4 v[8];
  auto read = [&](int step) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      v[i] = n0 + row + 32 * (i >> 1) < a.rows ? load16(first + (size_t)(i >> 1) * 32 * a.ld + step * 64 + (i & 1) * 32)
                                               : make_uint4(0, 0, 0, 0);
  };
  read(0);
  int stage = 0;
  u32 phase = 1;  // the first round finds the stages empty
  for (int step = 0; step < steps; step++) {
    barrier_wait(empty + stage, phase);
    u8* to = x_stages + stage * X_BYTES + row * 16 + t * 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u8* here = to + (i & 1) * 4 * 2048 + (i >> 1) * 32 * 16;
      *(u32*)here = v[i].x;
      *(u32*)(here + 2048) = v[i].y;
      *(u32*)(here + 4096) = v[i].z;
      *(u32*)(here + 6144) = v[i].w;
    }
    store_fence();
    barrier_arrive(full + stage);
    if (step + 1 < steps) read(step + 1);
    if (++stage == X_STAGES) {
      stage = 0;
      phase ^= 1;
    }
  }
}

template <int FORMAT, int HALVES> __device__ __forceinline__ void hopper_block(const PromptArgs& a) {
  launch_dependents();
  u64* barriers = (u64*)shared_memory();
  u64 *full = barriers, *empty = barriers + X_STAGES, *landed = barriers + 2 * X_STAGES;
  u8* x_stages = shared_memory() + 1024;
  u8* rings = x_stages + X_STAGES * X_BYTES;
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < X_STAGES; i++) {
      barrier_init(full + i, 128);
      barrier_init(empty + i, 8);
    }
    for (int i = 0; i < 8 * MAX_SLOTS; i++) barrier_init(landed + i, 1);
    barrier_init_fence();
  }
  __syncthreads();
  const int n0 = blockIdx.x * 128;
  int first_tile;
  const int p = find_product(a, blockIdx.y, 128 * HALVES, first_tile);
  wait_for_inputs();
  if (warp >= 8) {
    fewer_registers<56>();  // 128 x 56 + 256 x 224 = 384 x 168, what the block has
    produce(a, n0, x_stages, full, empty);
  } else {
    more_registers<224>();
    const PromptProduct q = a.products[p];
    first_tile += (warp >> 2) * 4 * HALVES + (warp & 3);
    const int slots = min(a.ring / (8 * tile_bytes(FORMAT)), MAX_SLOTS);
    u8* ring = rings + warp * slots * tile_bytes(FORMAT);
    consume<FORMAT, HALVES>(q, a.ld, a.rows, n0, first_tile, x_stages, ring, slots, full, empty,
                            landed + warp * MAX_SLOTS);
  }
}

// One format a kernel: with several, ptxas spills.
#define FORERUN_HOPPER(NAME, FORMAT, HALVES)                                                                  \
  extern "C" __global__ void __launch_bounds__(384, 1) NAME(const __grid_constant__ PromptArgs a) {            \
    hopper_block<FORMAT, HALVES>(a);                                                                          \
  }
FORERUN_HOPPER(prompt_hopper_q4_k, TILE_Q4_K, 2)
FORERUN_HOPPER(prompt_hopper_q5_k, TILE_Q5_K, 2)
FORERUN_HOPPER(prompt_hopper_q6_k, TILE_Q6_K, 2)
FORERUN_HOPPER(prompt_hopper_q8_0, TILE_Q8_0, 2)
FORERUN_HOPPER(prompt_hopper_half_q4_k, TILE_Q4_K, 1)
FORERUN_HOPPER(prompt_hopper_half_q5_k, TILE_Q5_K, 1)
FORERUN_HOPPER(prompt_hopper_half_q6_k, TILE_Q6_K, 1)
FORERUN_HOPPER(prompt_hopper_half_q8_0, TILE_Q8_0, 1)
FORERUN_HOPPER(prompt_hopper_half_f16, TILE_F16, 1)
#endif
