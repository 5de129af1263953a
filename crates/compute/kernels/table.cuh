// Rows of a table that stays in the file's block order, decoded four columns at a time. A type is
// known by its number in a GGUF file (BlockType::ggml_id).
#pragma once
#include "forerun.cuh"
#include "iq3.cuh"

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
  TABLE_IQ4_NL = 20,
  TABLE_IQ3_S = 21,
  TABLE_IQ4_XS = 23,
  TABLE_BF16 = 30,
};

__constant__ signed char IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                           1,    13,   25,  38,  53,  69,  89,  113};

__device__ __forceinline__ float half_at(const u8* p) { return __half2float(*(const __half*)p); }

// Scale and min `i` of a Q4_K or Q5_K block, of 6 bits each.
__device__ __forceinline__ void k_scale(const u8* packed, int i, float& scale, float& min) {
  scale = i < 4 ? packed[i] & 63 : (packed[i + 4] & 15) | packed[i - 4] >> 6 << 4;
  min = i < 4 ? packed[i + 4] & 63 : packed[i + 4] >> 4 | packed[i] >> 6 << 4;
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
    case TABLE_IQ3_S: {
      const u8* b = row + (col >> 8) * 110;
      const int four = e >> 2;  // of which the block has 64
      const float d = half_at(b) * (2 * (b[106 + (sub >> 1)] >> (4 * (sub & 1)) & 15) + 1);
      const int entry = IQ3_GRID[b[2 + four] | (b[66 + sub] >> (four & 7) & 1) << 8];
      const int signs = b[74 + (e >> 3)] >> (e & 4);
      for (int j = 0; j < 4; j++) {
        const int magnitude = 2 * (entry >> (9 - 3 * j) & 7) + 1;
        y[j] = d * (signs >> j & 1 ? -magnitude : magnitude);
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
    default:  // the Rust side refuses other types
      for (int j = 0; j < 4; j++) y[j] = __uint_as_float(0x7fc00000u);
  }
}
