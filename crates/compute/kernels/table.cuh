// Rows of a table that stays in the file's block order, decoded four columns at a time. A type is
// known by its number (BlockType::number).
#pragma once
#include "codebooks.cuh"
#include "forerun.cuh"

enum TableType {
  TABLE_F32 = 0,
  TABLE_F16 = 1,
  TABLE_Q4_0 = 2,
  TABLE_Q4_1 = 3,
  TABLE_Q5_0 = 6,
  TABLE_Q5_1 = 7,
  TABLE_Q8_0 = 8,
  TABLE_Q2_K = 10,
  TABLE_Q3_K = 11,
  TABLE_Q4_K = 12,
  TABLE_Q5_K = 13,
  TABLE_Q6_K = 14,
  TABLE_IQ2_XXS = 16,
  TABLE_IQ2_XS = 17,
  TABLE_IQ3_XXS = 18,
  TABLE_IQ1_S = 19,
  TABLE_IQ4_NL = 20,
  TABLE_IQ3_S = 21,
  TABLE_IQ2_S = 22,
  TABLE_IQ4_XS = 23,
  TABLE_IQ1_M = 29,
  TABLE_BF16 = 30,
  TABLE_TQ1_0 = 34,
  TABLE_TQ2_0 = 35,
  TABLE_MXFP4 = 39,
  TABLE_NVFP4 = 40,
  TABLE_FP8 = 1000,
  TABLE_FP4 = 1001,
  TABLE_INT4 = 1002,
  TABLE_INT4_32 = 1003,
  TABLE_INT8 = 1004,
};

__constant__ signed char IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                           1,    13,   25,  38,  53,  69,  89,  113};

// 4-bit floats, doubled.
__constant__ signed char FP4_DOUBLED[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};

__device__ __forceinline__ float half_at(const u8* p) { return __half2float(*(const __half*)p); }

// Scale and min `i` of a Q4_K or Q5_K block, of 6 bits each.
__device__ __forceinline__ void k_scale(const u8* packed, int i, float& scale, float& min) {
  scale = i < 4 ? packed[i] & 63 : (packed[i + 4] & 15) | packed[i - 4] >> 6 << 4;
  min = i < 4 ? packed[i + 4] & 63 : packed[i + 4] >> 4 | packed[i] >> 6 << 4;
}

__device__ __forceinline__ u32 word_at(const u8* p) {  // of any alignment
  return p[0] | p[1] << 8 | p[2] << 16 | (u32)p[3] << 24;
}
__device__ __forceinline__ float single_at(const u8* p) { return __uint_as_float(word_at(p)); }

// An 8-bit float: its bits in an f32's places are the value times 2^-120.
__device__ __forceinline__ float e4m3(u32 byte) {
  const float v = __uint_as_float((byte & 0x7f) << 20) * __uint_as_float((127u + 120u) << 23);
  const float signed_v = byte & 0x80 ? -v : v;
  return (byte & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u) : signed_v;
}
// ggml's scale of NVFP4: no sign, and its NaN is zero.
__device__ __forceinline__ float unsigned_e4m3(u32 byte) {
  return byte == 0x7f ? 0.f : (byte & 0x7f) == 0x7f ? 480.f : e4m3(byte & 0x7f);
}
// The signs of eight elements from seven: their number is even.
__device__ __forceinline__ int eight_signs(u32 seven) {
  seven &= 127;
  return seven | (__popc(seven) & 1) << 7;
}
// Half of a power of two.
__device__ __forceinline__ float half_of_power(u32 e) {
  return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

// Four elements of a codebook's entry, whose signs are the low four bits.
__device__ __forceinline__ void signed4(float d, const int (&magnitudes)[4], int signs,
                                        float (&y)[4]) {
  for (int j = 0; j < 4; j++) y[j] = d * (signs >> j & 1 ? -magnitudes[j] : magnitudes[j]);
}
// Four digits of an entry of IQ2, from digit `from` on.
__device__ __forceinline__ void iq2(float d, u32 entry, int from, int signs, float (&y)[4]) {
  int magnitudes[4];
  for (int j = 0; j < 4; j++) {
    const u32 digit = entry >> (4 * (from + j)) & 15;
    magnitudes[j] = digit == 0 ? 8 : digit == 1 ? 25 : 43;
  }
  signed4(d, magnitudes, signs >> from, y);
}
__device__ __forceinline__ void iq1(float d, u32 index, bool down, int from, float (&y)[4]) {
  const u32 entry = IQ1_S_BOOK.entries[index];
  for (int j = 0; j < 4; j++) {
    const int digit = entry >> (4 * (from + j)) & 15;
    y[j] = d * (8 * (digit - 1) + (down ? -1 : 1));
  }
}

// The types whose elements come from codebooks, or are -1, 0 and 1.
__device__ __forceinline__ void decode4_codebook(int type, const u8* row, int col, float (&y)[4]) {
  const int e = col & 255, sub = e >> 5, eight = e >> 3, from = e & 4;
  switch (type) {
    case TABLE_IQ3_S: case TABLE_IQ3_XXS: {
      const bool s = type == TABLE_IQ3_S;
      const u8* b = row + (col >> 8) * (s ? 110 : 98);
      const int four = e >> 2;  // of which the block has 64
      int scale, signs, index = b[2 + four], magnitudes[4];
      if (s) {
        scale = b[106 + (sub >> 1)] >> (4 * (sub & 1)) & 15;
        signs = b[74 + eight];
        index |= (b[66 + sub] >> (four & 7) & 1) << 8;
      } else {
        const u32 word = word_at(b + 66 + 4 * sub);
        scale = word >> 28;
        signs = eight_signs(word >> (7 * (eight & 3)));
      }
      for (int j = 0; j < 4; j++) {
        const int entry = s ? IQ3_S_BOOK.entries[index] : IQ3_XXS_BOOK.entries[index];
        const int digit = entry >> (4 * j) & 15;
        magnitudes[j] = s ? 2 * digit + 1 : digit == 7 ? 62 : 8 * digit + 4;
      }
      signed4(half_at(b) * (s ? 1.f : 0.25f) * (2 * scale + 1), magnitudes, signs >> from, y);
      break;
    }
    case TABLE_IQ2_XXS: {
      const u8* b = row + (col >> 8) * 66;
      const u32 word = word_at(b + 2 + 8 * sub + 4);
      iq2(half_at(b) * 0.125f * (2 * (int)(word >> 28) + 1),
          IQ2_XXS_BOOK.entries[b[2 + 8 * sub + (eight & 3)]], from,
          eight_signs(word >> (7 * (eight & 3))), y);
      break;
    }
    case TABLE_IQ2_XS: {
      const u8* b = row + (col >> 8) * 74;
      const int word = b[2 + 2 * eight] | b[3 + 2 * eight] << 8;
      const int scale = b[66 + (e >> 5)] >> (4 * (e >> 4 & 1)) & 15;
      iq2(half_at(b) * 0.125f * (2 * scale + 1), IQ2_XS_BOOK.entries[word & 511], from,
          eight_signs(word >> 9), y);
      break;
    }
    case TABLE_IQ2_S: {
      const u8* b = row + (col >> 8) * 82;
      const int index = b[2 + eight] | (b[66 + sub] >> (2 * (eight & 3)) & 3) << 8;
      const int scale = b[74 + (e >> 5)] >> (4 * (e >> 4 & 1)) & 15;
      iq2(half_at(b) * 0.125f * (2 * scale + 1), IQ2_S_BOOK.entries[index], from, b[34 + eight], y);
      break;
    }
    case TABLE_IQ1_S: {
      const u8* b = row + (col >> 8) * 50;
      const int high = b[34 + 2 * sub] | b[35 + 2 * sub] << 8;
      iq1(half_at(b) * 0.125f * (2 * (high >> 12 & 7) + 1),
          b[2 + eight] | (high >> (3 * (eight & 3)) & 7) << 8, high >> 15, from, y);
      break;
    }
    case TABLE_IQ1_M: {
      const u8* b = row + (col >> 8) * 56;
      const int bits = b[49] >> 4 | (b[51] >> 4) << 4 | (b[53] >> 4) << 8 | (b[55] >> 4) << 12;
      const int s = e >> 4, word = b[48 + 2 * (s >> 2)] | b[49 + 2 * (s >> 2)] << 8;
      const int high = b[32 + (eight >> 1)] >> (4 * (eight & 1));
      const float d = __half2float(__ushort_as_half((unsigned short)bits));
      iq1(d * 0.125f * (2 * (word >> (3 * (s & 3)) & 7) + 1), b[eight] | (high & 7) << 8, high & 8,
          from, y);
      break;
    }
    case TABLE_TQ1_0: {
      const u8* b = row + (col >> 8) * 54;
      const float d = half_at(b + 52);
      for (int j = 0; j < 4; j++) {
        const int n = e + j;
        const int at = n < 160 ? n & 31 : n < 240 ? 32 + (n & 15) : 48 + (n & 3);
        int digit = n < 160 ? n >> 5 : n < 240 ? (n - 160) >> 4 : (n - 240) >> 2, fraction = b[at];
        for (; digit > 0; digit--) fraction = fraction * 3 & 255;
        y[j] = d * ((fraction * 3 >> 8) - 1);
      }
      break;
    }
    default: {  // TQ2_0
      const u8* b = row + (col >> 8) * 66;
      const float d = half_at(b + 64);
      for (int j = 0; j < 4; j++)
        y[j] = d * ((b[32 * (e >> 7) + (e & 31) + j] >> (2 * (sub & 3)) & 3) - 1);
    }
  }
}

// The types of small floats, and of integers as Hugging Face folders have them.
__device__ __forceinline__ void decode4_folder(int type, const u8* row, int col, float (&y)[4]) {
  const int i = col & 31, at = col & 127;
  switch (type) {
    case TABLE_MXFP4: {
      const u8* b = row + (col >> 5) * 17;
      const float d = half_of_power(b[0]);
      for (int j = 0; j < 4; j++)
        y[j] = d * FP4_DOUBLED[b[1 + (i & 15) + j] >> (4 * (i >> 4)) & 15];
      break;
    }
    case TABLE_NVFP4: {
      const u8* b = row + (col >> 6) * 36;
      const int n = col & 63, s = n >> 4;
      const float d = unsigned_e4m3(b[s]) * 0.5f;
      for (int j = 0; j < 4; j++)
        y[j] = d * FP4_DOUBLED[b[4 + 8 * s + (n & 7) + j] >> (4 * (n >> 3 & 1)) & 15];
      break;
    }
    case TABLE_FP4: {
      const u8* b = row + (col >> 7) * 76;
      const float d = e4m3(b[4 + (at >> 4)]) * 0.5f;
      for (int j = 0; j < 4; j++) {
        const int q = b[12 + ((at + j) >> 1)] >> (4 * (j & 1)) & 15;
        y[j] = single_at(b) * (d * FP4_DOUBLED[q]);
      }
      break;
    }
    case TABLE_FP8: {
      const u8* b = row + (col >> 7) * 132;
      for (int j = 0; j < 4; j++) y[j] = single_at(b) * e4m3(b[4 + at + j]);
      break;
    }
    case TABLE_INT8: {
      const u8* b = row + (col >> 7) * 132;
      for (int j = 0; j < 4; j++) y[j] = single_at(b) * (signed char)b[4 + at + j];
      break;
    }
    default: {  // INT4 and INT4_32
      const bool large = type == TABLE_INT4;
      const u8* b = large ? row + (col >> 7) * 68 : row + (col >> 5) * 20;
      const u32 head = word_at(b);
      const float scale = __uint_as_float(head & 0xffffe000u);
      for (int j = 0; j < 4; j++) {
        const int q = b[4 + (((large ? at : i) + j) >> 1)] >> (4 * (j & 1)) & 15;
        y[j] = scale * (q - (int)(head & 31));
      }
    }
  }
}

// Columns col..col+3 of a row.
__device__ __forceinline__ void decode4(int type, const u8* row, int col, float (&y)[4]) {
  const int i = col & 31;             // in a block of 32
  const int e = col & 255;            // in a block of 256
  const int sub = e >> 5, high = 4 * (i >> 4);
  switch (type) {
    case TABLE_F32:
      for (int j = 0; j < 4; j++) y[j] = ((const float*)row)[col + j];
      break;
    case TABLE_F16:
      for (int j = 0; j < 4; j++) y[j] = half_at(row + 2 * (col + j));
      break;
    case TABLE_BF16:
      for (int j = 0; j < 4; j++)
        y[j] = __uint_as_float((u32)((const unsigned short*)row)[col + j] << 16);
      break;
    case TABLE_Q4_0: case TABLE_Q4_1: case TABLE_IQ4_NL: {
      const u8* b = row + (col >> 5) * (type == TABLE_Q4_1 ? 20 : 18);
      const u8* qs = b + (type == TABLE_Q4_1 ? 4 : 2) + (i & 15);
      const float d = half_at(b);
      for (int j = 0; j < 4; j++) {
        const int q = qs[j] >> high & 15;
        y[j] = type == TABLE_Q4_0   ? d * (q - 8)
               : type == TABLE_Q4_1 ? d * q + half_at(b + 2)
                                    : d * IQ4_VALUES[q];
      }
      break;
    }
    case TABLE_Q5_0: case TABLE_Q5_1: {
      const u8* b = row + (col >> 5) * (type == TABLE_Q5_0 ? 22 : 24);
      const u8* qh = b + (type == TABLE_Q5_0 ? 2 : 4);
      const float d = half_at(b);
      for (int j = 0; j < 4; j++) {
        const int q = (qh[4 + (i & 15) + j] >> high & 15) | (qh[(i + j) >> 3] >> ((i + j) & 7) & 1)
                                                                << 4;
        y[j] = type == TABLE_Q5_0 ? d * (q - 16) : d * q + half_at(b + 2);
      }
      break;
    }
    case TABLE_Q8_0: {
      const u8* b = row + (col >> 5) * 34;
      const float d = half_at(b);
      for (int j = 0; j < 4; j++) y[j] = d * (signed char)b[2 + i + j];
      break;
    }
    case TABLE_Q2_K: {
      const u8* b = row + (col >> 8) * 84;
      const u8 scale = b[e >> 4];
      const float d = half_at(b + 80) * (scale & 15), min = half_at(b + 82) * (scale >> 4);
      for (int j = 0; j < 4; j++)
        y[j] = d * (b[16 + 32 * (e >> 7) + i + j] >> (2 * (sub & 3)) & 3) - min;
      break;
    }
    case TABLE_Q3_K: {
      const u8* b = row + (col >> 8) * 110;
      const int s = e >> 4;
      const int scale =
          (b[96 + (s & 7)] >> (4 * (s >> 3)) & 15) | (b[104 + (s & 3)] >> (2 * (s >> 2)) & 3) << 4;
      const float d = half_at(b + 108) * (scale - 32);
      for (int j = 0; j < 4; j++) {
        const int low = b[32 + 32 * (e >> 7) + i + j] >> (2 * (sub & 3)) & 3;
        y[j] = d * (low - (b[i + j] >> sub & 1 ? 0 : 4));
      }
      break;
    }
    case TABLE_Q4_K: case TABLE_Q5_K: {
      const bool five = type == TABLE_Q5_K;
      const u8* b = row + (col >> 8) * (five ? 176 : 144);
      const u8* qs = b + (five ? 48 : 16) + 32 * (sub >> 1) + i;
      float scale, min;
      k_scale(b + 4, sub, scale, min);
      const float d = half_at(b) * scale;
      min *= half_at(b + 2);
      for (int j = 0; j < 4; j++) {
        const int q =
            (qs[j] >> (4 * (sub & 1)) & 15) | (five ? (b[16 + i + j] >> sub & 1) << 4 : 0);
        y[j] = d * q - min;
      }
      break;
    }
    case TABLE_Q6_K: {
      const u8* b = row + (col >> 8) * 210;
      const int half = e >> 7, at = e & 127;
      const float d = half_at(b + 208) * (signed char)b[192 + (e >> 4)];
      for (int j = 0; j < 4; j++) {
        const int low = b[64 * half + (at & 63) + j] >> (4 * (at >> 6)) & 15;
        const int top = b[128 + 32 * half + i + j] >> (2 * (at >> 5)) & 3;
        y[j] = d * ((low | top << 4) - 32);
      }
      break;
    }
    case TABLE_IQ4_XS: {
      const u8* b = row + (col >> 8) * 136;
      const int scale = (b[4 + (sub >> 1)] >> (4 * (sub & 1)) & 15) |
                        (b[2 + (sub >> 2)] >> (2 * (sub & 3)) & 3) << 4;
      const float d = half_at(b) * (scale - 32);
      for (int j = 0; j < 4; j++)
        y[j] = d * IQ4_VALUES[b[8 + 16 * sub + (i & 15) + j] >> high & 15];
      break;
    }
    case TABLE_IQ3_S: case TABLE_IQ3_XXS: case TABLE_IQ2_XXS: case TABLE_IQ2_XS: case TABLE_IQ2_S:
    case TABLE_IQ1_S: case TABLE_IQ1_M: case TABLE_TQ1_0: case TABLE_TQ2_0:
      decode4_codebook(type, row, col, y);
      break;
    case TABLE_MXFP4: case TABLE_NVFP4: case TABLE_FP4: case TABLE_FP8: case TABLE_INT4:
    case TABLE_INT4_32: case TABLE_INT8:
      decode4_folder(type, row, col, y);
      break;
    default:  // the Rust side refuses other types
      for (int j = 0; j < 4; j++) y[j] = __uint_as_float(0x7fc00000u);
  }
}
