// Random weights made where they are needed, so that cost can be measured without a file: tiles of
// any format filled with random bits whose scales give weights of mean about 0 and standard
// deviation `scale`. The same seed gives the same tiles. Writes every byte once: limited by memory.
// Launch: any grid, block 256; a thread takes 16-byte pieces in turn. Which bytes of a tile are
// scales: Q4_K and Q5_K d and dmin, the first 4 of every 16 in 2048..2304 (the other 12 are 6-bit
// scales and mins, any bits are valid); Q6_K d, 3328..3360 (3072..3328 are int8 scales, any are
// valid); Q8_0 d, 4096..4352; F16 has none, every half is a weight. Those of the others: `factors`.
#include "tiles.cuh"

struct FillTilesArgs {
  u8* out;
  u64 pieces;  // bytes / 16, whole tiles
  u64 seed;
  int format;
  float scale;
};

__device__ __forceinline__ u64 mix(u64 v) {  // splitmix64
  v += 0x9e3779b97f4a7c15ull;
  v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9ull;
  v = (v ^ (v >> 27)) * 0x94d049bb133111ebull;
  return v ^ (v >> 31);
}
__device__ __forceinline__ u32 half_bits(float v) { return __half_as_ushort(__float2half_rn(v)); }

__device__ __forceinline__ void fill(u32 (&word)[4], u32 value) {
  word[0] = word[1] = word[2] = word[3] = value;
}

// A piece of a tile of one of the formats in tiles_grouped.cuh. Standard deviations as below; those
// of codebooks are of their entries.
__device__ __forceinline__ void factors(int format, u32 piece, float scale, u32 (&word)[4]) {
  const u32 at = piece * 16;
  switch (format) {
    case TILE_FP8:  // below 2: no NaN
      for (int w = 0; w < 4; w++) word[w] &= 0xbfbfbfbf;
      if (at >= 4096) fill(word, __float_as_uint(scale / 0.5984f));
      break;
    case TILE_FP4:  // scales from 0.5 to 1
      if (at >= 2048)
        for (int w = 0; w < 4; w++) word[w] = (word[w] & 0x07070707) | 0x30303030;
      if (at >= 2304) fill(word, __float_as_uint(scale / 2.1445f));
      break;
    case TILE_INT4: case TILE_INT4_32:
      if (at >= 2048) fill(word, (__float_as_uint(scale / 4.6368f) & 0xffffe000) | 8);
      break;
    case TILE_IQ4:
      if (at >= 2176) fill(word, half_bits(scale / 4983.9f) * 0x00010001);
      break;
    case TILE_IQ3_S:
      if (at >= 1728) fill(word, half_bits(scale / 140.24f) * 0x00010001);
      break;
    case TILE_IQ3_XXS:
      if (at >= 1600) fill(word, half_bits(scale / 142.41f) * 0x00010001);
      break;
    default:
      if (at >= 1280) fill(word, half_bits(scale / 56.392f) * 0x00010001);
  }
}

KERNEL(fill_tiles, 40, FillTilesArgs, 256) {
  launch_dependents();
  wait_for_inputs();
  const u32 in_tile = tile_bytes(a.format) / 16;
  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < a.pieces; i += (u64)gridDim.x * 256) {
    const u64 low = mix(a.seed * 0x100000001b3ull + 2 * i),
              high = mix(a.seed * 0x100000001b3ull + 2 * i + 1);
    u32 word[4] = {(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
    const u32 piece = (u32)(i % in_tile);
    // Standard deviations of d = 1: quants, 6-bit scales and mins uniform, dmin = d times the mean
    // quant so that the mean is 0; Q6_K's scales uniform over int8.
    if (a.format == TILE_Q4_K || a.format == TILE_Q5_K) {
      const float d = a.scale / (a.format == TILE_Q4_K ? 258.3f : 526.9f),
                  mean = a.format == TILE_Q4_K ? 7.5f : 15.5f;
      if (piece >= 128 && piece < 144) word[0] = half_bits(d) | half_bits(d * mean) << 16;
    } else if (a.format == TILE_F16) {
      // Two uniform numbers a word.
#pragma unroll
      for (int w = 0; w < 4; w++) {
        const float unit = a.scale * 1.7320508f / 32768.f;
        const float x = ((int)(word[w] & 0xffff) - 32768) * unit,
                    y = ((int)(word[w] >> 16) - 32768) * unit;
        word[w] = half_bits(x) | half_bits(y) << 16;
      }
    } else if (a.format > TILE_F16) {
      factors(a.format, piece, a.scale, word);
    } else {
      const u32 d = half_bits(a.scale / (a.format == TILE_Q6_K ? 1365.7f : 73.9f));
      if (piece >= (a.format == TILE_Q6_K ? 208u : 256u))
        word[0] = word[1] = word[2] = word[3] = d | d << 16;
    }
    *(uint4*)(a.out + i * 16) = make_uint4(word[0], word[1], word[2], word[3]);
  }
}
