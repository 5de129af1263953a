// Tiles of the formats whose factors are taken in f32 every 32 columns: see tiles.cuh for what a
// lane holds. `chunk` gives the codes as small exact f16 numbers, `group` the factors of rows g and
// g + 8 for a group of 32 columns.
//
// FP8     4224 B  as Q8_0, with e4m3 bytes as they are. At 4096: 16 x 2 f32, of 128 columns each.
// FP4     2432 B  4 chunks x 512 B, chunk c at lane * 16: word 2 (group & 1) + (row >> 3) has 8
//                 columns; byte b < 4 has column b as bits 7 (sign) and 4, 3, 2, column 4 + b as
//                 bits 5 (sign) and 6, 1, 0. At 2048: 16 x 16 e4m3 scales, of 16 columns each. At
//                 2304: 16 x 2 f32.
// INT4    2176 B  nibbles as Q4_K. At 2048: 16 x 2 words, of 128 columns each: an f32 whose low 13
//                 bits are not its own but the code of zero.
// INT4_32 2560 B  the same with 16 x 8 words, of 32 columns each.
// IQ4     2208 B  words as FP4, nibble n of a word is column n. At 2048: 16 x 8 int8 scales. At
//                 2176: 16 f16 d.
// IQ3_S   1760 B  4 chunks x 128 B of signs at lane * 4: with i = 2 s + r, that of group 2 c + k,
//                 row g + 8 e at bit 16 h + 4 (2 k + e) + i. At 512: 4 chunks x 256 B at lane * 8:
//                 word e has the bytes (k, s) = (0, 0) (0, 1) (1, 0) (1, 1), the low bits of the
//                 index of four columns. At 1536: 4 B a lane, byte c has their ninth bits, at
//                 4 e + 2 k + s. At 1664: 16 x 8 nibbles of scale. At 1728: 16 f16 d.
// IQ3_XXS 1632 B  the same without ninth bits: scales at 1536, d at 1600.
// IQ2     1312 B  signs as IQ3_S. At 512: 4 chunks x 128 B at lane * 4, the bytes (k, e) = (0, 0)
//                 (0, 1) (1, 0) (1, 1), the low bits of the index of eight columns. At 1024: 4 B a
//                 lane, byte c has the two bits above, at 2 (2 k + e). At 1152: 16 x 16 nibbles of
//                 scale. At 1280: 16 f16 d.
#pragma once
#include "codebooks.cuh"

// Two 8-bit floats (e4m3), the low 16 bits of `two`, as halves.
__device__ __forceinline__ u32 from_e4m3(u32 two) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  u32 r;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}" : "=r"(r) : "r"(two));
  return r;
#else
  // Its bits in a half's places are the value times 2^-8; NaN does not occur.
  const u32 high = permute(two, 0, 0x1404);
  return half2_mul((high & 0x80008000) | ((high >> 1) & 0x3f803f80), 0x5c005c00);
#endif
}

__device__ __forceinline__ const u8* of_row(const u8* tile, int at, int bytes, int lane,
                                            int upper) {
  return tile + at + ((lane >> 2) + 8 * upper) * bytes;
}
__device__ __forceinline__ float d_of(const u8* tile, int at, int lane, int upper) {
  return __half2float(*(const __half*)of_row(tile, at, 2, lane, upper));
}
// Bytes 2 n and 2 n + 1 as halves, 1024 more than they are.
__device__ __forceinline__ u32 halves_of(u32 bytes, int n) {
  return permute(bytes, 0x64646464, n ? 0x4342 : 0x4140);
}

struct NoHead {};

template <> struct Tile<TILE_FP8> {
  typedef NoHead Head;
  // Codes are this much larger than what f16 weights are made of.
  static constexpr bool LARGE_CODES = true;
  __device__ static __forceinline__ Head head(const u8*, int) { return {}; }
  __device__ static __forceinline__ void chunk(const u8* tile, const Head&, int c, int lane,
                                               u32 (&a)[4][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint4 w = load16(tile + (2 * c + half) * 512 + lane * 16);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32* to = a[2 * half + (i >> 1)] + 2 * (i & 1);
        to[0] = from_e4m3(word_of(w, i));
        to[1] = from_e4m3(word_of(w, i) >> 16);
      }
    }
  }
  __device__ static __forceinline__ void group(const u8* tile, const Head&, int i, int lane,
                                               float (&d)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++)
      d[r] = *(const float*)(of_row(tile, 4096, 8, lane, r) + (i >> 2) * 4);
  }
};

template <> struct Tile<TILE_FP4> {
  typedef NoHead Head;
  static constexpr bool LARGE_CODES = false;
  __device__ static __forceinline__ Head head(const u8*, int) { return {}; }
  __device__ static __forceinline__ void chunk(const u8* tile, const Head&, int c, int lane,
                                               u32 (&a)[4][4]) {
    const uint4 w = load16(tile + c * 512 + lane * 16);
    u32 scales[2];  // of both groups; lanes t >= 2 are in a group's columns 16 to 31
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const u32 four = load_word(of_row(tile, 2048, 16, lane, r) + 4 * c);
      scales[r] = from_e4m3(permute(four, 0, (lane & 2) ? 0x4431 : 0x4420));
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const int k = n >> 1, r = n & 1;
      const u32 v = word_of(w, n), s = k ? twice_high(scales[r]) : twice_low(scales[r]);
      // e2m1 in e4m3's places is the value times 2^-6.
      const u32 first = v & 0x9c9c9c9c, second = ((v << 2) & 0x8c8c8c8c) | ((v >> 2) & 0x10101010);
      a[2 * k][r] = half2_mul(from_e4m3(first), s);
      a[2 * k][2 + r] = half2_mul(from_e4m3(first >> 16), s);
      a[2 * k + 1][r] = half2_mul(from_e4m3(second), s);
      a[2 * k + 1][2 + r] = half2_mul(from_e4m3(second >> 16), s);
    }
  }
  __device__ static __forceinline__ void group(const u8* tile, const Head&, int i, int lane,
                                               float (&d)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++)
      d[r] = *(const float*)(of_row(tile, 2304, 8, lane, r) + (i >> 2) * 4) * 64.f;
  }
};

template <int COLUMNS> struct TileInt4 {
  typedef NoHead Head;
  static constexpr bool LARGE_CODES = false;
  __device__ static __forceinline__ Head head(const u8*, int) { return {}; }
  // The word of group i.
  __device__ static __forceinline__ u32 word(const u8* tile, int i, int lane, int upper) {
    constexpr int WORDS = 256 / COLUMNS;
    return load_word(of_row(tile, 2048, 4 * WORDS, lane, upper) + i / (8 / WORDS) * 4);
  }
  __device__ static __forceinline__ void chunk(const u8* tile, const Head&, int c, int lane,
                                               u32 (&a)[4][4]) {
    const uint4 w = load16(tile + c * 512 + lane * 16);
    u32 low[2], high[2];  // -(1024 + zero) of the first group, -(64 + zero) of the second
#pragma unroll
    for (int r = 0; r < 2; r++) {
      low[r] = (word(tile, 2 * c, lane, r) & 31) * 0x00010001 | 0xe400e400;
      high[r] = (word(tile, 2 * c + 1, lane, r) & 31) * 0x00100010 | 0xd400d400;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int s = i >> 1, r = i & 1;
      const u32 v = word_of(w, i), v8 = v >> 8;
      a[s][2 * r] = half2_add((v & 0x000f000f) | 0x64006400, low[0]);
      a[s][2 * r + 1] = half2_add((v8 & 0x000f000f) | 0x64006400, low[1]);
      a[2 + s][2 * r] = half2_fma((v & 0x00f000f0) | 0x64006400, 0x2c002c00, high[0]);
      a[2 + s][2 * r + 1] = half2_fma((v8 & 0x00f000f0) | 0x64006400, 0x2c002c00, high[1]);
    }
  }
  __device__ static __forceinline__ void group(const u8* tile, const Head&, int i, int lane,
                                               float (&d)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) d[r] = __uint_as_float(word(tile, i, lane, r) & 0xffffe000);
  }
};
template <> struct Tile<TILE_INT4> : TileInt4<128> {};
template <> struct Tile<TILE_INT4_32> : TileInt4<32> {};

template <> struct Tile<TILE_IQ4> {
  typedef NoHead Head;
  static constexpr bool LARGE_CODES = false;
  __device__ static __forceinline__ Head head(const u8*, int) { return {}; }
  // Four nibbles as bytes of IQ4's table, 128 more than they are. `high` has 0x3210 and, four bits
  // apart, 4 where the nibble's top bit is set.
  __device__ static __forceinline__ u32 lookup(u32 nibbles, u32 high) {
    return permute(permute(0x3f2d1801, 0x766a5d4f, nibbles),
                   permute(0xa6998d81, 0xf1d9c5b5, nibbles), high);
  }
  __device__ static __forceinline__ void chunk(const u8* tile, const Head&, int c, int lane,
                                               u32 (&a)[4][4]) {
    const uint4 w = load16(tile + c * 512 + lane * 16);
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const int k = n >> 1, r = n & 1;
      const u32 v = word_of(w, n);
      const u32 low = v & 0x77777777, high = ((v >> 1) & 0x44444444) | 0x32103210;
      const u32 first = lookup(low, high), second = lookup(low >> 16, high >> 16);
      a[2 * k][r] = half2_add(halves_of(first, 0), 0xe480e480);
      a[2 * k][2 + r] = half2_add(halves_of(first, 1), 0xe480e480);
      a[2 * k + 1][r] = half2_add(halves_of(second, 0), 0xe480e480);
      a[2 * k + 1][2 + r] = half2_add(halves_of(second, 1), 0xe480e480);
    }
  }
  __device__ static __forceinline__ void group(const u8* tile, const Head&, int i, int lane,
                                               float (&d)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const signed char* scales = (const signed char*)of_row(tile, 2048, 8, lane, r);
      d[r] = d_of(tile, 2176, lane, r) * (float)scales[i];
    }
  }
};

// The sign of word `i` of group k and row e, in its place.
__device__ __forceinline__ u32 sign_of(u32 signs, int k, int e, int i) {
  return (signs << (15 - 4 * (2 * k + e) - i)) & 0x80008000;
}

#ifdef SHARED_BOOK
// A kernel of one format has its codebook in shared memory: an entry is four halves, four times
// over, so that lanes seldom meet in a bank.
constexpr int COPIES = 4;
template <int ENTRIES> __device__ __forceinline__ uint2* shared_book() {
  __shared__ __align__(16) uint2 book[ENTRIES * COPIES];
  return book;
}
#endif

template <int FORMAT> struct TileIq3 {
  static constexpr bool NINTH = FORMAT == TILE_IQ3_S, LARGE_CODES = false;
  static constexpr int ENTRIES = NINTH ? 512 : 256, SCALES = NINTH ? 1664 : 1536, D = SCALES + 64;
  struct Head {
    u32 scales[2], ninth;
    float d[2];
  };
  __device__ static __forceinline__ Head head(const u8* tile, int lane) {
    Head h;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      h.scales[r] = load_word(of_row(tile, SCALES, 4, lane, r));
      h.d[r] = d_of(tile, D, lane, r) * (NINTH ? 1.f : 0.25f);
    }
    h.ninth = NINTH ? load_word(tile + 1536 + lane * 4) : 0;
    return h;
  }
  // Four magnitudes as halves.
  __device__ static __forceinline__ uint2 magnitudes(u32 index) {
    const u32 bytes = NINTH ? permute(0x07050301, 0x0f0d0b09, IQ3_S_BOOK.entries[index])
                            : permute(0x1c140c04, 0x3e342c24, IQ3_XXS_BOOK.entries[index & 255]);
    return make_uint2(half2_add(halves_of(bytes, 0), 0xe400e400),
                      half2_add(halves_of(bytes, 1), 0xe400e400));
  }
  // Those of index n of a word of four, whose ninth bit is bit `at` of `ninth`.
  __device__ static __forceinline__ uint2 lookup(u32 word, int n, u32 ninth, int at, int lane) {
#ifdef SHARED_BOOK
    static_assert(COPIES == 4, "entries are 32 bytes apart");
    u32 place = (n ? word >> (8 * n - 5) : word << 5) & 0x1fe0;
    if (NINTH) place |= (ninth << (13 - at)) & 0x2000;
    const u32 own = (lane & 3) * 8;
    return *(const uint2*)((const u8*)shared_book<ENTRIES>() + (place | own));
#else
    u32 index = (word >> (8 * n)) & 255;
    if (NINTH) index |= ((ninth >> at) & 1) << 8;
    return magnitudes(index);
#endif
  }
  __device__ static __forceinline__ void chunk(const u8* tile, const Head& h, int c, int lane,
                                               u32 (&a)[4][4]) {
    const uint2 indices = *(const uint2*)(tile + 512 + c * 256 + lane * 8);
    const u32 signs = load_word(tile + c * 128 + lane * 4), ninth = h.ninth >> (8 * c);
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
      for (int k = 0; k < 2; k++)
#pragma unroll
        for (int s = 0; s < 2; s++) {
          const int n = 2 * k + s;
          const uint2 four = lookup(e ? indices.y : indices.x, n, ninth, 4 * e + n, lane);
          a[n][e] = four.x ^ sign_of(signs, k, e, 2 * s);
          a[n][2 + e] = four.y ^ sign_of(signs, k, e, 2 * s + 1);
        }
  }
  __device__ static __forceinline__ void group(const u8*, const Head& h, int i, int,
                                               float (&d)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      // 2^23 + 2 scale + 1, less 2^23: exact, and cheaper than a conversion.
      const u32 odd = (turn_right(h.scales[r], (4 * i + 31) & 31) & 0x1e) | 0x4b000001;
      d[r] = h.d[r] * (__uint_as_float(odd) - 8388608.f);
    }
  }
};
template <> struct Tile<TILE_IQ3_S> : TileIq3<TILE_IQ3_S> {};
template <> struct Tile<TILE_IQ3_XXS> : TileIq3<TILE_IQ3_XXS> {};

// Puts the codebook of a kernel's one format into shared memory; a barrier of the block follows.
template <int FORMAT> __device__ __forceinline__ void fill_book() {
#ifdef SHARED_BOOK
  if constexpr (FORMAT == TILE_IQ3_S || FORMAT == TILE_IQ3_XXS) {
    for (int i = threadIdx.x; i < Tile<FORMAT>::ENTRIES; i += blockDim.x) {
      const uint2 four = Tile<FORMAT>::magnitudes(i);
      uint4* to = (uint4*)(shared_book<Tile<FORMAT>::ENTRIES>() + COPIES * i);
      to[0] = to[1] = make_uint4(four.x, four.y, four.x, four.y);
    }
  }
#endif
}

template <> struct Tile<TILE_IQ2> {
  typedef NoHead Head;
  static constexpr bool LARGE_CODES = false;
  __device__ static __forceinline__ Head head(const u8*, int) { return {}; }
  __device__ static __forceinline__ void chunk(const u8* tile, const Head&, int c, int lane,
                                               u32 (&a)[4][4]) {
    const u32 signs = load_word(tile + c * 128 + lane * 4);
    const u32 low = load_word(tile + 512 + c * 128 + lane * 4), above = tile[1024 + lane * 4 + c];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      // Scales of 16 columns: lanes t >= 2 are in a group's columns 16 to 31.
      const u32 scales = *(const unsigned short*)(of_row(tile, 1152, 8, lane, e) + 2 * c);
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const u32 odd = 2 * ((scales >> (8 * k + (lane & 2) * 2)) & 15) + 1;
        // 1024 + odd, less 1024.
        const u32 scale = half2_add(odd * 0x00010001 | 0x64006400, 0xe400e400);
        const u32 less = half2_mul(scale, 0xe400e400);
        const int n = 2 * k + e;
        const u32 index = ((low >> (8 * n)) & 255) | ((above >> (2 * n)) & 3) << 8;
        const u32 entry = IQ2_S_BOOK.entries[index];
        const u32 eight[2] = {permute(0x002b1908, 0, entry), permute(0x002b1908, 0, entry >> 16)};
#pragma unroll
        for (int i = 0; i < 4; i++)
          a[2 * k + (i >> 1)][2 * (i & 1) + e] =
              half2_fma(halves_of(eight[i >> 1], i & 1), scale, less) ^ sign_of(signs, k, e, i);
      }
    }
  }
  __device__ static __forceinline__ void group(const u8* tile, const Head&, int, int lane,
                                               float (&d)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) d[r] = d_of(tile, 1280, lane, r) * 0.125f;
  }
};
