// Keys and values: how one head of a token is rounded to the cache's type and read back, and the
// step attention takes over 64 keys at a time with matrix instructions: wgmma on Hopper, where the
// four warps of 64 queries go together, mma.sync elsewhere. Used by rotations and attentions.
//
// A stored row is f16 [dim], or blocks of 32 numbers: q8_0 {f16 d, int8 q[32]} = 34 bytes, q4_0
// {f16 d, u8 q[16]} = 18 bytes, as src/kv.rs has them. A number read back is d * q rounded to f16
// once, wherever the row lies.
#pragma once
#include "forerun.cuh"

// Keys of a tile; tiles lie at multiples of it, so committed ones are pages.
constexpr int KEYS = 64;
constexpr int QUERIES = 64;   // query rows of a block, 16 a warp
constexpr int ATTENTION_THREADS = 128;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WGMMA  // the four warps of 64 queries multiply together
#endif

__device__ __forceinline__ float infinite() { return __int_as_float(0x7f800000); }

// ------------------------------------------------------------------ instructions

// Sixteen bytes, or zeros where `bytes` is 0.
__device__ __forceinline__ void copy16(u32 to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most LEFT groups of copies are on their way.
template <int LEFT> __device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
// The same where LEFT, 4 at most, is not known when compiled.
__device__ __forceinline__ void copies_left(int count) {
  switch (count) {
    case 0: return copies_wait<0>();
    case 1: return copies_wait<1>();
    case 2: return copies_wait<2>();
    case 3: return copies_wait<3>();
    default: copies_wait<4>();
  }
}
// What the thread has stored in shared memory is seen by wgmma of threads behind a barrier. Copies
// need it not, and it would wait for all of them.
__device__ __forceinline__ void stores_done() {
#ifdef WGMMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void load_transposed(u32 (&r)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
// c[16][8] += a[16][16] b[16][8]
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// 2^x: 1 at 0, 0 at -inf.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ u32 pack(float low, float high) {
  const __half2 h = __floats2half2_rn(low, high);
  return *(const u32*)&h;
}

// ------------------------------------------------------------------ a stored row

// A warp rounds one head; x[j] of a lane is dimension 32 j + lane. A NaN makes the scale of its
// block one, so that it is seen by whoever reads the block.
__device__ __forceinline__ void encode_head(int kind, const float (&x)[8], int blocks, u8* out) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int j = 0; j < 8; j++) {
    if (j >= blocks) break;
    const float v = x[j];
    if (kind == KV_F16) {
      ((__half*)out)[32 * j + lane] = __float2half_rn(v);
      continue;
    }
    const bool nan = __ballot_sync(~0u, v != v) != 0;
    float highest = fabsf(v);
#pragma unroll
    for (int far = 16; far; far >>= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, far));
    float d;
    if (kind == KV_Q8_0) {
      d = __fdiv_rn(highest, 127.f);
    } else {  // the first of the largest, with its sign; 0 where all are
      const u32 at = __ballot_sync(~0u, fabsf(v) == highest);
      const float extreme = __shfl_sync(~0u, v, at ? __ffs(at) - 1 : 0);
      d = __fdiv_rn(highest > 0.f ? extreme : 0.f, -8.f);
    }
    const float inverse = d == 0.f ? 0.f : __fdiv_rn(1.f, d);
    const float stored = nan ? __int_as_float(0x7fc00000) : d;
    u8* block = out + j * (kind == KV_Q8_0 ? 34 : 18);
    if (lane == 0) *(__half*)block = __float2half_rn(stored);
    if (kind == KV_Q8_0) {
      block[2 + lane] = (u8)min(max(__float2int_rn(__fmul_rn(v, inverse)), -128), 127);
    } else {
      const int code = min(max(__float2int_rz(__fadd_rn(__fmul_rn(v, inverse), 8.5f)), 0), 15);
      const int upper = __shfl_down_sync(~0u, code, 16);
      if (lane < 16) block[2 + lane] = (u8)(code | upper << 4);
    }
  }
}

__device__ __forceinline__ u32 times(u32 a, u32 d) {
  const __half2 y = __hmul2(*(const __half2*)&a, *(const __half2*)&d);
  return *(const u32*)&y;
}
// Two bytes above 0x64: the halves 1024 + byte, less `bias`.
__device__ __forceinline__ u32 halves_of(u32 bytes, u32 select, u32 bias) {
  const u32 a = __byte_perm(bytes, 0x64646464u, select);
  const __half2 y = __hsub2(*(const __half2*)&a, *(const __half2*)&bias);
  return *(const u32*)&y;
}

// The 32 numbers of a stored block, given to put(group, four words) as f16, eight at a time. Blocks
// lie at even addresses: whole words are read and shifted.
template <class Put>
__device__ __forceinline__ void decode_block(int kind, const u8* block, Put put) {
  const bool odd = ((size_t)block & 2) != 0;
  const u32* words = (const u32*)(block - (odd ? 2 : 0));
  if (kind == KV_Q8_0) {
    u32 w[9];
#pragma unroll
    for (int i = 0; i < 9; i++) w[i] = words[i];
    const u32 d = __byte_perm(w[0], 0, odd ? 0x3232 : 0x1010);
#pragma unroll
    for (int i = 0; i < 8; i++)
      w[i] = (odd ? w[i + 1] : __byte_perm(w[i], w[i + 1], 0x5432)) ^ 0x80808080u;
#pragma unroll
    for (int g = 0; g < 4; g++) {
      const u32 a = w[2 * g], b = w[2 * g + 1], bias = 0x64806480u;  // 1024 + 128
      put(g,
          make_uint4(times(halves_of(a, 0x4140, bias), d), times(halves_of(a, 0x4342, bias), d),
                     times(halves_of(b, 0x4140, bias), d), times(halves_of(b, 0x4342, bias), d)));
    }
  } else {
    u32 w[5];
#pragma unroll
    for (int i = 0; i < 5; i++) w[i] = words[i];
    const u32 d = __byte_perm(w[0], 0, odd ? 0x3232 : 0x1010);
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = odd ? w[i + 1] : __byte_perm(w[i], w[i + 1], 0x5432);
#pragma unroll
    for (int g = 0; g < 4; g++) {  // low nibbles are the first sixteen numbers
      const int shift = g & 2 ? 4 : 0;
      const u32 a = w[2 * (g & 1)] >> shift & 0x0f0f0f0fu,
                b = w[2 * (g & 1) + 1] >> shift & 0x0f0f0f0fu;
      const u32 bias = 0x64086408u;  // 1024 + 8
      put(g,
          make_uint4(times(halves_of(a, 0x4140, bias), d), times(halves_of(a, 0x4342, bias), d),
                     times(halves_of(b, 0x4140, bias), d), times(halves_of(b, 0x4342, bias), d)));
    }
  }
}

// ------------------------------------------------------------------ tiles in shared memory

// A tile is [DIM / 64][64 rows][64] halves; DIM is 128 or 256, what lies beyond head_dim is zero.
// The groups of eight columns of a row are exchanged by its number, so that eight rows read at one
// column lie in different banks: what wgmma calls a swizzle of 128 bytes. Tiles begin at multiples
// of 1024 bytes.
constexpr int PANEL = KEYS * 128;  // bytes of 64 columns
__device__ __forceinline__ u32 place(int row, int group) {
  return (u32)(group / 8 * PANEL + row * 128 + (((group ^ row) & 7) << 4));
}

// Loads 64 keys or values. row_of(i) is where row i is stored, null for a row of zeros; `any` is a
// readable address.
template <int DIM, class RowOf>
__device__ __forceinline__ void load_tile(__half* tile, int kind, int head_dim, const u8* any,
                                          RowOf row_of) {
  if (kind == KV_F16) {
    const u32 to = shared_address(tile);
    constexpr int GROUPS = DIM / 8;
#pragma unroll 2
    for (int i = threadIdx.x; i < KEYS * GROUPS; i += blockDim.x) {
      const int row = i / GROUPS, group = i % GROUPS;
      const u8* from = row_of(row);
      const bool there = from != nullptr && group * 8 < head_dim;
      copy16(to + place(row, group), there ? from + group * 16 : any, there ? 16 : 0);
    }
  } else {
    constexpr int BLOCKS = DIM / 32;
    const int bytes = kind == KV_Q8_0 ? 34 : 18;
#pragma unroll 1
    for (int i = threadIdx.x; i < KEYS * BLOCKS; i += blockDim.x) {
      const int row = i / BLOCKS, block = i % BLOCKS;
      const u8* from = row_of(row);
      auto put = [&](int g, uint4 y) { *(uint4*)((u8*)tile + place(row, block * 4 + g)) = y; };
      if (from != nullptr && block * 32 < head_dim) {
        decode_block(kind, from + block * bytes, put);
      } else {
#pragma unroll
        for (int g = 0; g < 4; g++) put(g, make_uint4(0, 0, 0, 0));
      }
    }
    stores_done();
  }
  copies_commit();
}

// Eight columns of a query, multiplied by `scale`, as f16.
__device__ __forceinline__ void place_query(__half* tile, int row, int group, const float4& a,
                                            const float4& b, float scale) {
  *(uint4*)((u8*)tile + place(row, group)) =
      make_uint4(pack(a.x * scale, a.y * scale), pack(a.z * scale, a.w * scale),
                 pack(b.x * scale, b.y * scale), pack(b.z * scale, b.w * scale));
}
__device__ __forceinline__ void place_query(__half* tile, int row, int group, const float* q,
                                            bool there, float scale) {
  const float4 zero = make_float4(0.f, 0.f, 0.f, 0.f);
  place_query(tile, row, group, there ? ((const float4*)q)[0] : zero,
              there ? ((const float4*)q)[1] : zero, scale);
}

// ------------------------------------------------------------------ attention of 16 rows of a warp

// A lane 4g + t holds rows g and g + 8: o[n][0..1] are columns 8n + 2t, +1 of row g, o[n][2..3] of
// row g + 8.
template <int DIM> struct Rows {
  float o[DIM / 8][4];
  float highest[2], total[2];  // total: the lane's own columns only
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) o[n][e] = 0.f;
    highest[0] = highest[1] = -infinite();
    total[0] = total[1] = 0.f;
  }
  __device__ __forceinline__ void sum_totals() {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      total[h] += __shfl_xor_sync(~0u, total[h], 1);
      total[h] += __shfl_xor_sync(~0u, total[h], 2);
    }
  }
};

#ifdef WGMMA
// What wgmma reads, 16 columns or rows at a time: swizzled by 128 bytes, eight rows 1024 bytes
// apart.
__device__ __forceinline__ u64 matrix_of(u32 tile) {
  return 1ull << 62 | (u64)(1024 / 16) << 32 | (u64)(1024 / 16) << 16 | (tile & 0x3ffff) >> 4;
}
// Nothing that makes or uses these registers is moved over this.
__device__ __forceinline__ void hold(float (&x)[8][4]) {
#pragma unroll
  for (int n = 0; n < 8; n++)
    asm volatile("" : "+f"(x[n][0]), "+f"(x[n][1]), "+f"(x[n][2]), "+f"(x[n][3])::"memory");
}
#define EIGHT(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3]), "+f"(c[n + 1][0]), \
                    "+f"(c[n + 1][1]), "+f"(c[n + 1][2]), "+f"(c[n + 1][3])
#define THIRTY_TWO                                                                     \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "  \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
// c[64][64] = or += a[64][16] b[64][16]^T, both in shared memory.
__device__ __forceinline__ void multiply_tiles(float (&c)[8][4], u64 a, u64 b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " THIRTY_TWO
      ", %32, %33, p, 1, 1, 0, 0;\n}"
      : EIGHT(c, 0), EIGHT(c, 2), EIGHT(c, 4), EIGHT(c, 6)
      : "l"(a), "l"(b), "r"((u32)add)
      : "memory");
}
// c[64][64] += a[64][16] b[16][64], b in shared memory.
__device__ __forceinline__ void multiply_values(float (&c)[8][4], const u32 (&a)[4], u64 b) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " THIRTY_TWO
               ", {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
               : EIGHT(c, 0), EIGHT(c, 2), EIGHT(c, 4), EIGHT(c, 6)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory");
}
__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_end() {
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}
#endif

// s[n][e]: scores of the warp's 16 queries with keys 8n + 2t, +1 of the tile. `queries` is the tile
// of the four warps.
template <int DIM> __device__ __forceinline__ void score(float (&s)[8][4], u32 queries, u32 keys) {
#ifdef WGMMA
  const u64 q = matrix_of(queries), k = matrix_of(keys);
  hold(s);
  products_begin();
#pragma unroll
  for (int i = 0; i < DIM / 16; i++) {
    const int at = i / 4 * (PANEL / 16) + i % 4 * 2;
    multiply_tiles(s, q + at, k + at, i > 0);
  }
  products_end();
  hold(s);
#else
  const int lane = threadIdx.x & 31;
  const int key = (lane & 7) + (lane >> 4) * 8;
  const u32 q_row = queries + (threadIdx.x / 32 % 4 * 16 + (lane & 15)) * 128,
            k_row = keys + key * 128;
  const int q_group = (lane >> 4) ^ (lane & 7), k_group = (lane >> 3 & 1) ^ (lane & 7);
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) s[n][e] = 0.f;
#pragma unroll
  for (int k = 0; k < DIM / 16; k++) {
    u32 a[4];
    load_matrices(a, q_row + ((q_group ^ (2 * k & 7)) << 4) + k / 4 * PANEL);
#pragma unroll
    for (int n = 0; n < 4; n++) {
      u32 b[4];
      load_matrices(b, k_row + n * 16 * 128 + ((k_group ^ (2 * k & 7)) << 4) + k / 4 * PANEL);
      multiply(s[2 * n], a, b[0], b[1]);
      multiply(s[2 * n + 1], a, b[2], b[3]);
    }
  }
#endif
}

// Scores to weights, rounded to f16 as the left side of the product with the values. With `masked`,
// row h sees the keys from[h] to to[h] of the tile. A row that sees none stays as it is.
template <int DIM>
__device__ __forceinline__ void soften(Rows<DIM>& rows, float (&s)[8][4], u32 (&p)[4][4],
                                       bool masked, const int (&from)[2], const int (&to)[2]) {
  const int t = threadIdx.x & 3;
  if (masked) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int key = 8 * n + 2 * t + (e & 1);
        if (key < from[e >> 1] || key >= to[e >> 1]) s[n][e] = -infinite();
      }
  }
  float base[2], keep[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float highest = rows.highest[h];
#pragma unroll
    for (int n = 0; n < 8; n++) highest = fmaxf(highest, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
    base[h] = highest == -infinite() ? 0.f : highest;
    keep[h] = power_of_two(rows.highest[h] - base[h]);
    rows.highest[h] = highest;
    float total = 0.f;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; e++) {
        s[n][e] = power_of_two(s[n][e] - base[h]);
        total += s[n][e];
      }
    rows.total[h] = rows.total[h] * keep[h] + total;
  }
  // Mostly the highest score stays what it was.
  if (__any_sync(~0u, keep[0] != 1.f || keep[1] != 1.f)) {
#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) rows.o[n][e] *= keep[e >> 1];
  }
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      p[k][i] = pack(s[2 * k + (i >> 1)][2 * (i & 1)], s[2 * k + (i >> 1)][2 * (i & 1) + 1]);
}

// o += p values.
template <int DIM>
__device__ __forceinline__ void weigh(Rows<DIM>& rows, const u32 (&p)[4][4], u32 values) {
#ifdef WGMMA
  const u64 v = matrix_of(values);
#pragma unroll
  for (int n = 0; n < DIM / 64; n++) hold(*(float(*)[8][4])rows.o[8 * n]);
  products_begin();
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int n = 0; n < DIM / 64; n++)
      multiply_values(*(float (*)[8][4])rows.o[8 * n], p[k],
                      v + n * (PANEL / 16) + k * (16 * 128 / 16));
  products_end();
#pragma unroll
  for (int n = 0; n < DIM / 64; n++) hold(*(float(*)[8][4])rows.o[8 * n]);
#else
  const int lane = threadIdx.x & 31;
  const u32 row = values + (lane & 15) * 128;
  const int group = (lane >> 4) ^ (lane & 7);
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int n = 0; n < DIM / 16; n++) {
      u32 b[4];
      load_transposed(b, row + k * 16 * 128 + ((group ^ (2 * n & 7)) << 4) + n / 4 * PANEL);
      multiply(rows.o[2 * n], p[k], b[0], b[1]);
      multiply(rows.o[2 * n + 1], p[k], b[2], b[3]);
    }
#endif
}

// Zeroes the halves that are infinite or NaN.
__device__ __forceinline__ bool cleanse(u32& h) {
  const u32 was = h;
  if ((h & 0x7c00u) == 0x7c00u) h &= 0xffff0000u;
  if ((h & 0x7c000000u) == 0x7c000000u) h &= 0x0000ffffu;
  return h != was;
}

// A weight of 0 times NaN is NaN: takes what is not finite out of a tile of values that some rows
// must not see. Bit i of `bad` stands for key i.
template <int DIM> __device__ __forceinline__ bool cleanse_tile(__half* values, u64* bad) {
  bool found = false;
#pragma unroll 1
  for (int i = threadIdx.x; i < KEYS * DIM / 8; i += blockDim.x) {
    uint4 x = ((const uint4*)values)[i];
    const bool a = cleanse(x.x), b = cleanse(x.y), c = cleanse(x.z), d = cleanse(x.w);
    if (!(a || b || c || d)) continue;
    ((uint4*)values)[i] = x;
    atomicOr(bad, 1ull << (i / 8 % KEYS));
    found = true;
  }
  if (found) stores_done();
  return __syncthreads_or(found) != 0;
}
// Keys low up to high of a tile, as bits.
__device__ __forceinline__ u64 bits_of(int low, int high) {
  const int from = max(low, 0), to = min(high, KEYS);
  return from < to ? ~0ull >> (KEYS - (to - from)) << from : 0;
}

// What a block sweeps over: tiles `first` up to `end`; keys from all_from to all_to are seen by all
// its rows, keys outside by some or none. `alike`: by none.
struct Sweep {
  int first, end, all_from, all_to;
  bool alike;
};

// Runs the block's rows over its tiles, in order. load(tile, part, to) loads keys (0) or values (1)
// and commits the copies; the first keys and values have been loaded already, values last, and
// queries stored. The lane's rows see keys from[h] to to[h]. Warps without rows (`busy` false) only
// load. Ends with all of shared memory free.
template <int DIM, class Load>
__device__ __forceinline__ void sweep(Rows<DIM>& rows, __half* queries, __half* keys,
                                      __half* values, bool busy, const Sweep& w,
                                      const int (&from)[2], const int (&to)[2], Load load) {
  __shared__ u64 bad;
#ifdef WGMMA
  busy = true;  // with the others
#endif
  const u32 q = shared_address(queries), k = shared_address(keys), v = shared_address(values);
  copies_wait<1>();
  __syncthreads();
  for (int tile = w.first; tile < w.end; tile++) {
    const int at = tile * KEYS;
    const bool masked = at < w.all_from || at + KEYS > w.all_to;
    const int low[2] = {from[0] - at, from[1] - at}, high[2] = {to[0] - at, to[1] - at};
    u32 p[4][4];
    if (masked && threadIdx.x == 0) bad = 0;
    if (tile != w.first) load(tile, 1, values);
    if (busy) {
      float s[8][4];
      score<DIM>(s, q, k);
      soften(rows, s, p, masked, low, high);
    }
    copies_wait<0>();
    __syncthreads();
    if (tile + 1 < w.end) load(tile + 1, 0, keys);
    if (masked && !w.alike && cleanse_tile<DIM>(values, &bad)) {
#pragma unroll
      for (int h = 0; h < 2; h++)
        if (bad & bits_of(low[h], high[h])) rows.total[h] = __int_as_float(0x7fc00000);
    }
    if (busy) weigh(rows, p, v);
    copies_wait<0>();
    __syncthreads();
  }
}
