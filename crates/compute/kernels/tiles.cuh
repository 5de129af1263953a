// Weight tiles: 16 rows x 256 columns of a matrix in the order the matrix instructions read them,
// and their product with a few activation rows by mma.m16n8k16, the weights as the A operand.
// src/cuda/pack.rs writes them. A matrix is tiles [rows / 16][cols / 256], both rounded up; what
// lies outside the matrix is zero.
//
// lane = 4 g + t holds rows g and g + 8 and, of every 32 columns ("group"), columns 8 t .. 8 t + 7.
// In k-step s (0, 1), register pair r (0, 1), half h that is column 8 t + 4 s + 2 r + h. With this
// order of columns the B fragments of a group are ONE 16-byte load from a plain f16 row, so
// activations need no packing.
//
// Q4_K 2304 B  4 chunks x 512 B, chunk c at lane * 16: word 2 s + r has, at bits 0-3 / 16-19 (h = 0
// / 1), row g of
//              group 2 c; 4 bits up group 2 c + 1; 8 bits up row g + 8. At 2048: 16 x 16 B, the
//              rows' GGUF headers
//              (d, dmin, 12 bytes of scales and mins). Q5_K 2816 B  as Q4_K; at 2304 the fifth
//              bits, 16 B a lane, word c for chunk c: with i = 2 s + r, row g at bit
//              16 h + i + (4 group 2 c, 8 group 2 c + 1); row g + 8 so that turning the word right
//              by 8 gives the same. Q6_K 3360 B  low nibbles as Q4_K; at 2048 two planes of high
//              pairs, 16 B a lane: 8 B for chunk 2 plane, then for the
//              next; word s: row g at bits 16 h + 2 r + (4, 8), row g + 8 as in Q5_K. At 3072: 16 x
//              16 scales + 128. At
//              3328: 16 f16 d. Q8_0 4352 B  8 groups x 512 B at lane * 16: word 2 s + r has bytes
//              (g, h = 0) (g, 1) (g + 8, 0) (g + 8, 1), + 128. At
//              4096: 16 x 8 f16 d.
// F16  8192 B  8 groups x 1024 B: row g's 8 halves at lane * 16, row g + 8's 512 B later.
// The others stand in tiles_grouped.cuh.
//
// A small integer in the low bits of a half IS the subnormal number q 2^-24: nothing is converted.
// q times a 6-bit scale is below 2048 in Q4_K and Q5_K, so exact in f16; f32 takes over with d
// 2^24, once per 256 columns. Q6_K's 12-bit products round to f16 (1.5e-4). Mins are one more mma:
// 8 integer mins times the 8 sums of 32 columns.
#pragma once
#include "forerun.cuh"

enum TileFormat {
  TILE_Q4_K = 0,
  TILE_Q5_K = 1,
  TILE_Q6_K = 2,
  TILE_Q8_0 = 3,
  TILE_F16 = 4,
  TILE_FP8 = 5,
  TILE_FP4 = 6,
  TILE_INT4 = 7,
  TILE_INT4_32 = 8,
  TILE_IQ4 = 9,
  TILE_IQ3_S = 10,
  TILE_IQ3_XXS = 11,
  TILE_IQ2 = 12,
};

// Bytes of a tile: a format's byte of these two words, + 1, thirty-twos. An array of them would be
// written to local memory by every kernel that looks one up.
__host__ __device__ constexpr int tile_bytes(int format) {
  const unsigned long long sizes = format < 8 ? 0x434b83ff87685747 : 0x283236444f;
  return (int)((sizes >> (format & 7) * 8) & 0xff) * 32 + 32;
}
static_assert(tile_bytes(TILE_Q4_K) == 2304 && tile_bytes(TILE_Q5_K) == 2816 &&
              tile_bytes(TILE_Q6_K) == 3360 && tile_bytes(TILE_Q8_0) == 4352 &&
              tile_bytes(TILE_F16) == 8192 && tile_bytes(TILE_FP8) == 4224 &&
              tile_bytes(TILE_FP4) == 2432 && tile_bytes(TILE_INT4) == 2176 &&
              tile_bytes(TILE_INT4_32) == 2560 && tile_bytes(TILE_IQ4) == 2208 &&
              tile_bytes(TILE_IQ3_S) == 1760 && tile_bytes(TILE_IQ3_XXS) == 1632 &&
              tile_bytes(TILE_IQ2) == 1312,
              "as in src/cuda/pack.rs");

// Whether factors are taken in f32 every 32 columns, by `group`, rather than once, by `ends`.
__host__ __device__ constexpr bool is_grouped(int format) {
  return format == TILE_Q8_0 || format > TILE_F16;
}

// What a switch over the formats of tiles has beside those of llama.cpp's usual files.
#define FOR_OTHER_FORMATS(CASE) \
  CASE(TILE_FP8)                \
  CASE(TILE_FP4)                \
  CASE(TILE_INT4)               \
  CASE(TILE_INT4_32)            \
  CASE(TILE_IQ4)                \
  CASE(TILE_IQ3_S)              \
  CASE(TILE_IQ3_XXS)            \
  CASE(TILE_IQ2)

// ------------------------------------------------------------------ instructions

__device__ __forceinline__ u32 permute(u32 a, u32 b, u32 selector) {
  return __byte_perm(a, b, selector);
}
__device__ __forceinline__ u32 turn_right(u32 a, int bits) { return __funnelshift_r(a, a, bits); }
__device__ __forceinline__ u32 half2_mul(u32 a, u32 b) {
  u32 r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ u32 half2_add(u32 a, u32 b) {
  u32 r;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ u32 half2_fma(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// Both halves of the result are the low (high) half of `a`; folds into the operand of the
// instruction that uses it.
__device__ __forceinline__ u32 twice_low(u32 a) {
  u32 r;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(r) : "r"(a));
  return r;
}
__device__ __forceinline__ u32 twice_high(u32 a) {
  u32 r;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(r) : "r"(a));
  return r;
}
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A constant that stays in a register: as a number it is made anew for every instruction that has
// no room for one. Grids of these kernels have one layer. Not where REGISTERS_ARE_SCARCE.
#ifdef REGISTERS_ARE_SCARCE
__device__ __forceinline__ u32 kept(u32 constant) { return constant; }
#else
__device__ __forceinline__ u32 kept(u32 constant) { return constant + (gridDim.z - 1); }
#endif

__device__ __forceinline__ uint4 load16(const void* p) { return *(const uint4*)p; }
__device__ __forceinline__ u32 load_word(const void* p) { return *(const u32*)p; }
__device__ __forceinline__ u32 word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ float low_float(u32 h) {
  return __half2float(__ushort_as_half(h & 0xffff));
}
__device__ __forceinline__ float high_float(u32 h) {
  return __half2float(__ushort_as_half(h >> 16));
}

// ------------------------------------------------------------------ decoding Each format gives:
// `Head`, what a lane keeps of a tile; `chunk`, the A fragments of 64 columns, k-steps 0 and 1 for
// the first 32 and 2 and 3 for the others; and the f32 factors that remain, as `ends` or per group.

template <int FORMAT> struct Tile;

// Q4_K and Q5_K differ by the fifth bits only.
template <int FORMAT> struct TileK {
  struct Head {
    uint4 rows[2];     // GGUF headers of rows g and g + 8
    u32 scales[2][2];  // [row][groups 0-3, 4-7]
    uint4 fifth;
  };
  __device__ static __forceinline__ Head head(const u8* tile, int lane) {
    Head h;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      h.rows[i] = load16(tile + 2048 + ((lane >> 2) + 8 * i) * 16);
      h.scales[i][0] = h.rows[i].y & 0x3f3f3f3f;
      h.scales[i][1] = (h.rows[i].w & 0x0f0f0f0f) | ((h.rows[i].y >> 2) & 0x30303030);
    }
    if (FORMAT == TILE_Q5_K) h.fifth = load16(tile + 2304 + lane * 16);
    return h;
  }
  typedef uint4 Words;
  __device__ static __forceinline__ Words words(const u8* tile, int c, int lane) {
    return load16(tile + c * 512 + lane * 16);
  }
  __device__ static __forceinline__ void chunk(const u8* tile, const Head& h, int c, int lane,
                                               u32 (&a)[4][4]) {
    decode(words(tile, c, lane), h, c, lane, a);
  }
  __device__ static __forceinline__ void decode(const Words& w, const Head& h, int c, int lane,
                                                u32 (&a)[4][4]) {
    // Scales of the two groups; the second's nibbles stand 4 bits up, hence / 16.
    u32 low[2], high[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      // 1024 + {low, high}.
      const u32 s = permute(h.scales[i][c >> 1], 0x64646464, kept((c & 1) ? 0x4342 : 0x4140));
      const u32 scaled = half2_fma(s, kept(0x2c003c00), 0xd400e400);
      low[i] = twice_low(scaled);
      high[i] = twice_high(scaled);
    }
    const u32 f = FORMAT == TILE_Q5_K ? word_of(h.fifth, c) : 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {  // i = 2 s + r
      const int s = i >> 1, r = i & 1;
      const u32 v = word_of(w, i), v8 = v >> 8;
      u32 l0 = v & 0x000f000f, l8 = v8 & 0x000f000f, h0 = v & 0x00f000f0, h8 = v8 & 0x00f000f0;
      if (FORMAT == TILE_Q5_K) {
        const u32 f0 = f >> i, f8 = turn_right(f, 8 + i);
        l0 |= f0 & 0x00100010;
        l8 |= f8 & 0x00100010;
        h0 |= f0 & 0x01000100;
        h8 |= f8 & 0x01000100;
      }
      a[s][2 * r] = half2_mul(l0, low[0]);
      a[s][2 * r + 1] = half2_mul(l8, low[1]);
      a[2 + s][2 * r] = half2_mul(h0, high[0]);
      a[2 + s][2 * r + 1] = half2_mul(h8, high[1]);
    }
  }
  __device__ static __forceinline__ void ends(const u8*, const Head& h, int, float (&d)[2]) {
    d[0] = low_float(h.rows[0].x) * 16777216.f;
    d[1] = low_float(h.rows[1].x) * 16777216.f;
  }
  // The mins as an A fragment, the same for the high and the low halves of the sums, and their
  // factors.
  __device__ static __forceinline__ void mins(const Head& h, int lane, u32 (&a)[4], float (&d)[2]) {
    const int t = lane & 3;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const u32 first = h.rows[i].z & 0x3f3f3f3f;
      const u32 last = ((h.rows[i].w >> 4) & 0x0f0f0f0f) | ((h.rows[i].z >> 2) & 0x30303030);
      a[i] = permute(t < 2 ? first : last, 0, (t & 1) ? 0x4342 : 0x4140);
      a[i + 2] = a[i];
      d[i] = high_float(h.rows[i].x) * -16777216.f;
    }
  }
};
template <> struct Tile<TILE_Q4_K> : TileK<TILE_Q4_K> {};
template <> struct Tile<TILE_Q5_K> : TileK<TILE_Q5_K> {};

template <> struct Tile<TILE_Q6_K> {
  struct Head {
    uint4 scales[2];
    uint4 pairs[2];
  };
  __device__ static __forceinline__ Head head(const u8* tile, int lane) {
    Head h;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      h.scales[i] = load16(tile + 3072 + ((lane >> 2) + 8 * i) * 16);
      h.pairs[i] = load16(tile + 2048 + i * 512 + lane * 16);
    }
    return h;
  }
  typedef uint4 Words;
  __device__ static __forceinline__ Words words(const u8* tile, int c, int lane) {
    return load16(tile + c * 512 + lane * 16);
  }
  __device__ static __forceinline__ void chunk(const u8* tile, const Head& h, int c, int lane,
                                               u32 (&a)[4][4]) {
    decode(words(tile, c, lane), h, c, lane, a);
  }
  __device__ static __forceinline__ void decode(const Words& w, const Head& h, int c, int lane,
                                                u32 (&a)[4][4]) {
    u32 d[2], z[2];  // per row {scale of the first group, of the second / 16}, and -32 times each
#pragma unroll
    for (int i = 0; i < 2; i++) {
      // A byte is a scale + 128: 0x6400 | byte = 1024 + byte, less 1152. Lanes t >= 2 are in a
      // group's columns 16-31.
      const u32 four = word_of(h.scales[i], c);
      const u32 first = half2_add(permute(four, 0x64646464, kept(0x4140)), 0xe480e480);
      const u32 second = half2_add(permute(four, 0x64646464, kept(0x4342)), 0xe480e480);
      d[i] = half2_mul(permute(first, second, (lane & 2) ? 0x7632 : 0x5410), 0x2c003c00);
      z[i] = half2_mul(d[i], 0x82008020);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int s = i >> 1, r = i & 1;
      const u32 v = word_of(w, i), v8 = v >> 8;
      const u32 p = word_of(h.pairs[c >> 1], 2 * (c & 1) + s);
      const u32 p0 = r ? p >> 2 : p, p8 = r ? turn_right(p, 10) : permute(p, 0, 0x0321);
      a[s][2 * r] =
          half2_fma((v & 0x000f000f) | (p0 & 0x00300030), twice_low(d[0]), twice_low(z[0]));
      a[s][2 * r + 1] =
          half2_fma((v8 & 0x000f000f) | (p8 & 0x00300030), twice_low(d[1]), twice_low(z[1]));
      a[2 + s][2 * r] =
          half2_fma((v & 0x00f000f0) | (p0 & 0x03000300), twice_high(d[0]), twice_high(z[0]));
      a[2 + s][2 * r + 1] =
          half2_fma((v8 & 0x00f000f0) | (p8 & 0x03000300), twice_high(d[1]), twice_high(z[1]));
    }
  }
  __device__ static __forceinline__ void ends(const u8* tile, const Head&, int lane,
                                              float (&d)[2]) {
    const __half* p = (const __half*)(tile + 3328) + (lane >> 2);
    d[0] = __half2float(p[0]) * 16777216.f;
    d[1] = __half2float(p[8]) * 16777216.f;
  }
};

template <> struct Tile<TILE_Q8_0> {
  struct Head {
    uint4 d[2];
  };
  __device__ static __forceinline__ Head head(const u8* tile, int lane) {
    return {{load16(tile + 4096 + (lane >> 2) * 16), load16(tile + 4096 + (lane >> 2) * 16 + 128)}};
  }
  struct Words {
    uint4 of[2];
  };
  __device__ static __forceinline__ Words words(const u8* tile, int c, int lane) {
    const u8* p = tile + 2 * c * 512 + lane * 16;
    return {{load16(p), load16(p + 512)}};
  }
  __device__ static __forceinline__ void chunk(const u8* tile, const Head& h, int c, int lane,
                                               u32 (&a)[4][4]) {
    decode(words(tile, c, lane), h, c, lane, a);
  }
  __device__ static __forceinline__ void decode(const Words& words, const Head&, int, int,
                                                u32 (&a)[4][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint4 w = words.of[half];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32* to = a[2 * half + (i >> 1)] + 2 * (i & 1);
        to[0] = half2_add(permute(word_of(w, i), 0x64646464, kept(0x4140)), 0xe480e480);
        to[1] = half2_add(permute(word_of(w, i), 0x64646464, kept(0x4342)), 0xe480e480);
      }
    }
  }
  // Factors of group `i` of rows g and g + 8.
  __device__ static __forceinline__ void group(const u8*, const Head& h, int i, int,
                                               float (&d)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const u32 two = word_of(h.d[r], i >> 1);
      d[r] = (i & 1) ? high_float(two) : low_float(two);
    }
  }
};

template <> struct Tile<TILE_F16> {
  struct Head {};
  struct Words {};
  __device__ static __forceinline__ Head head(const u8*, int) { return {}; }
  __device__ static __forceinline__ void chunk(const u8* tile, const Head&, int c, int lane,
                                               u32 (&a)[4][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const u8* p = tile + (2 * c + half) * 1024 + lane * 16;
      const uint4 v = load16(p), v8 = load16(p + 512);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        a[2 * half + (i >> 1)][2 * (i & 1)] = word_of(v, i);
        a[2 * half + (i >> 1)][2 * (i & 1) + 1] = word_of(v8, i);
      }
    }
  }
  __device__ static __forceinline__ void ends(const u8*, const Head&, int, float (&d)[2]) {
    d[0] = d[1] = 1.f;
  }
};

#include "tiles_grouped.cuh"

// ------------------------------------------------------------------ product acc[m][j] += MT tiles
// that follow each other in memory (rows) times N8 x 8 activation rows, over 256 columns. acc[m][j]
// is an mma result: elements 0, 1 are row g of the tile and activation rows 8 j + 2 t, + 1; 2, 3
// row g + 8. x[j]: this lane's columns of activation row 8 j + g, so Activation::x of that row and
// these 256 columns + 8 t. sums[j]: its sums of these 256 columns + 2 t, 16 halves a row (read for
// Q4_K and Q5_K). Shared or global memory; x wants rows 64 bytes mod 128 apart in shared memory,
// sums 16 mod 32. The order of all sums is the same for every N8 and MT. A smaller UNROLL takes
// fewer registers, for Q8_0 and F16.
template <int FORMAT, int N8, int MT, int UNROLL = 4>
__device__ __forceinline__ void multiply_tile(const u8* tile, const __half* const (&x)[N8],
                                              const __half* const (&sums)[N8],
                                              float (&acc)[MT][N8][4], int lane) {
  constexpr int BYTES = tile_bytes(FORMAT);
  typedef Tile<FORMAT> T;
  float even[MT][N8][4], odd[MT][N8][4];  // two chains: consecutive mma do not wait for each other
  typename T::Head head[MT];
#pragma unroll
  for (int m = 0; m < MT; m++) {
    head[m] = T::head(tile + m * BYTES, lane);
#pragma unroll
    for (int j = 0; j < N8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) even[m][j][e] = odd[m][j][e] = 0.f;
  }
#pragma unroll UNROLL
  for (int c = 0; c < 4; c++) {
    uint4 b[N8][2];
#pragma unroll
    for (int j = 0; j < N8; j++) {
      b[j][0] = load16(x[j] + c * 64);
      b[j][1] = load16(x[j] + c * 64 + 32);
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
      u32 a[4][4];
      T::chunk(tile + m * BYTES, head[m], c, lane, a);
      if constexpr (is_grouped(FORMAT)) {
        float d[2], d2[2];
        T::group(tile + m * BYTES, head[m], 2 * c, lane, d);
        T::group(tile + m * BYTES, head[m], 2 * c + 1, lane, d2);
#pragma unroll
        for (int j = 0; j < N8; j++) {
          float first[4] = {0.f, 0.f, 0.f, 0.f}, second[4] = {0.f, 0.f, 0.f, 0.f};
          mma(first, a[0], b[j][0].x, b[j][0].y);
          mma(second, a[2], b[j][1].x, b[j][1].y);
          mma(first, a[1], b[j][0].z, b[j][0].w);
          mma(second, a[3], b[j][1].z, b[j][1].w);
#pragma unroll
          for (int e = 0; e < 4; e++)
            acc[m][j][e] =
                __fmaf_rn(d2[e >> 1], second[e], __fmaf_rn(d[e >> 1], first[e], acc[m][j][e]));
        }
      } else {
#pragma unroll
        for (int j = 0; j < N8; j++) {
          mma(even[m][j], a[0], b[j][0].x, b[j][0].y);
          mma(odd[m][j], a[1], b[j][0].z, b[j][0].w);
          mma(even[m][j], a[2], b[j][1].x, b[j][1].y);
          mma(odd[m][j], a[3], b[j][1].z, b[j][1].w);
        }
      }
    }
  }
  if constexpr (!is_grouped(FORMAT)) {
#pragma unroll
    for (int m = 0; m < MT; m++) {
      float d[2];
      T::ends(tile + m * BYTES, head[m], lane, d);
#pragma unroll
      for (int j = 0; j < N8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          acc[m][j][e] = __fmaf_rn(d[e >> 1], even[m][j][e] + odd[m][j][e], acc[m][j][e]);
      if constexpr (FORMAT == TILE_Q4_K || FORMAT == TILE_Q5_K) {
        u32 a[4];
        T::mins(head[m], lane, a, d);
#pragma unroll
        for (int j = 0; j < N8; j++) {
          float e4[4] = {0.f, 0.f, 0.f, 0.f};
          mma(e4, a, load_word(sums[j]), load_word(sums[j] + 8));
#pragma unroll
          for (int e = 0; e < 4; e++) acc[m][j][e] = __fmaf_rn(d[e >> 1], e4[e], acc[m][j][e]);
        }
      }
    }
  }
}
