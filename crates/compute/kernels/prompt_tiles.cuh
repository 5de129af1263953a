// What products with many activation rows share: their arguments, and weights decoded to f16 as A
// fragments.
//
// A quantised weight is a small integer around zero times a scale (plus an offset in Q4_K and Q5_K)
// and is rounded to f16: 2e-4 to 3e-4 of the product, as much as rounding the activations costs.
// Fragments come in two orders of columns. `Chunk` is the order of the tiles: of every 32 columns a
// lane has 8 t .. 8 t + 7. `Plain` is the order in which matrix instructions read plain rows: of
// every 8 columns a lane has 2 t and 2 t + 1, so it takes a word from each of the four lanes of its
// row.
#pragma once
#include "ring.cuh"
#include "tiles.cuh"

constexpr int MAX_PRODUCTS = 8;

struct PromptProduct {
  const u8* weight;  // tiles [M / 16][K / 256], for experts [expert] of that
  const u8* copies;  // of experts: the same by slot, see places.cuh; may be null
  float* out;        // [rows][M]
  int rows;          // M
  int format;        // TileFormat
};

// The product and its row tile that a block's number along M means.
template <class Args>
__device__ __forceinline__ int find_product(const Args& a, int number, int block_rows,
                                            int& first_tile) {
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

// ------------------------------------------------------------------ instructions

__device__ __forceinline__ u8* shared_memory() {
  extern __shared__ __align__(1024) u8 memory[];
  return memory;
}
// 16 bytes to shared memory, zeros where `ok` is false.
__device__ __forceinline__ void copy16(void* to, const void* from, bool ok) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(ok ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
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
// Makes what follows from `v` be computed anew rather than kept: registers are scarcer than
// instructions.
__device__ __forceinline__ void forget(uint4& v) {
  asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w));
}
// Four matrices of 8 rows x 16 bytes: lane 8 m + r gives the address of row r of matrix m; lane 4 g
// + t gets word t of row g of each.
__device__ __forceinline__ uint4 load_matrices(const u8* p) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared_address(p))
               : "memory");
  return v;
}
__device__ __forceinline__ u32 shared_word(u32 address) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

// Where weights come from: global memory past L1, or shared memory.
struct FromGlobal {
  __device__ static __forceinline__ uint4 get(const u8* p) { return stream16(p); }
};
struct FromShared {
  __device__ static __forceinline__ uint4 get(const u8* p) { return load16(p); }
};

// ------------------------------------------------------------------ words of the other lanes of a
// row

// A lane's place in the two ways of reading 16-byte pieces [8 rows][4 lanes] so that it gets a word
// of each of its row's four. Row g reads piece m ^ (g >> 1 & 3) m-th: all 32 banks at once. Pieces
// must be 64-byte aligned.
struct Lanes {
  u32 matrix;    // offset for load_matrices
  u32 word;      // offset of the first piece
  bool one, two; // bits of g >> 1

  __device__ __forceinline__ explicit Lanes(int lane) {
    const u32 row = lane & 7, g = lane >> 2;
    matrix = row * 64 + (((u32)lane >> 3 ^ row >> 1) << 4);
    word = g * 64 + ((g >> 1) << 4);
    one = lane & 8;
    two = lane & 16;
  }
  // Undoes the turning: word j is of the row's lane j.
  __device__ __forceinline__ uint4 in_order(const uint4& v) const {
    const uint4 w = {one ? v.y : v.x, one ? v.x : v.y, one ? v.w : v.z, one ? v.z : v.w};
    return {two ? w.z : w.x, two ? w.w : w.y, two ? w.x : w.z, two ? w.y : w.w};
  }
  // Word t of the pieces at `at`.
  __device__ __forceinline__ uint4 own_words(const u8* at) const {
    return in_order(load_matrices(at + matrix));
  }
  // The word `offset` bytes into the pieces at `at`.
  __device__ __forceinline__ uint4 words(const u8* at, int offset) const {
    const u32 p = shared_address(at) + word + offset;
    return in_order(
        {shared_word(p), shared_word(p ^ 16), shared_word(p ^ 32), shared_word(p ^ 48)});
  }
};

// ------------------------------------------------------------------ decoding

// Of each format: what a lane keeps for 256 columns (`Head`) and for 64 (`Chunk` or `Plain`), and
// the A fragments of one group of 32 columns, two k-steps.
template <int FORMAT> struct Decode;  // at the end for most of them

__device__ __forceinline__ float byte_float(u32 word, int byte) {  // 2^23 + byte
  return __uint_as_float(permute(word, 0x4b000000, 0x7440 + byte));
}
__device__ __forceinline__ u32 turn_byte(u32 v) { return permute(v, 0, 0x0321); }

template <int FORMAT> struct DecodeK {  // Q4_K, Q5_K
  static constexpr bool FIFTH = FORMAT == TILE_Q5_K;
  struct Head {
    uint4 rows[2];
    uint4 fifth;  // Q5_K, for Chunk
    __device__ __forceinline__ void renew() {
      forget(rows[0]);
      forget(rows[1]);
    }
  };
  struct Chunk {
    uint4 w;
  };
  struct Plain {
    uint4 w, fifth;
  };
  // What lane t works out for its row's four lanes: scales and offsets of chunk t, of both groups.
  struct Ready {
    u32 scale[2], offset[2];  // of rows g and g + 8
  };

  template <class From> __device__ static __forceinline__ Head rows(const u8* tile, int lane) {
    Head h;
    h.rows[0] = From::get(tile + 2048 + (lane >> 2) * 16);
    h.rows[1] = From::get(tile + 2048 + (lane >> 2) * 16 + 128);
    return h;
  }
  __device__ static __forceinline__ Head head(const u8* tile, int lane) {
    Head h = rows<FromGlobal>(tile, lane);
    if (FIFTH) h.fifth = stream16(tile + 2304 + lane * 16);
    return h;
  }
  __device__ static __forceinline__ Chunk chunk(const u8* tile, int c, int lane) {
    return {stream16(tile + c * 512 + lane * 16)};
  }
  __device__ static __forceinline__ Plain plain(const u8* tile, int c, const Lanes& lanes,
                                                int lane) {
    Plain k;
    k.w = lanes.own_words(tile + c * 512);
    if (FIFTH) {
      const uint4 f = lanes.words(tile + 2304, c * 4);
      const int t = lane & 3;
      k.fifth = {turn_right(f.x, t), turn_right(f.y, t), turn_right(f.z, t), turn_right(f.w, t)};
    }
    return k;
  }
  // Weights lie around it: the offset that remains is small.
  static constexpr float MIDDLE = FIFTH ? 16.f : 8.f;

  // weight = (q - MIDDLE) scale + offset; of group `group` of chunk c.
  __device__ static __forceinline__ void factors(const uint4& r, int c, int group, float& scale,
                                                 float& offset) {
    const float d = low_float(r.x), dmin = high_float(r.x);
    const u32 scales = c < 2 ? r.y & 0x3f3f3f3f : (r.w & 0x0f0f0f0f) | ((r.y >> 2) & 0x30303030);
    const u32 mins =
        c < 2 ? r.z & 0x3f3f3f3f : ((r.w >> 4) & 0x0f0f0f0f) | ((r.z >> 2) & 0x30303030);
    scale = __fmaf_rn(byte_float(scales, 2 * (c & 1) + group), d, -8388608.f * d);
    offset = __fmaf_rn(MIDDLE, scale,
                       -__fmaf_rn(byte_float(mins, 2 * (c & 1) + group), dmin, -8388608.f * dmin));
  }
  __device__ static __forceinline__ Ready ready(const u8* tile, int lane) {
    const Head h = rows<FromShared>(tile, lane);
    Ready ready;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float s[2], o[2];
      factors(h.rows[i], lane & 3, 0, s[0], o[0]);
      factors(h.rows[i], lane & 3, 1, s[1], o[1]);
      ready.scale[i] = pack_half2(s[0], s[1]);
      ready.offset[i] = pack_half2(o[0], o[1]);
    }
    return ready;
  }
  __device__ static __forceinline__ Ready plain_head(const u8*, const Ready& r, int c, int lane) {
    const int from = (lane & 28) | c;
    return {{__shfl_sync(~0u, r.scale[0], from), __shfl_sync(~0u, r.scale[1], from)},
            {__shfl_sync(~0u, r.offset[0], from), __shfl_sync(~0u, r.offset[1], from)}};
  }
  __device__ static __forceinline__ void fragments(u32 (&a)[2][4], const Head& h, const Chunk& k,
                                                   int c, int group, int) {
    Ready r;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float s, o;
      factors(h.rows[i], c, group, s, o);
      r.scale[i] = pack_half2(s, s);
      r.offset[i] = pack_half2(o, o);
    }
    decode(a, r, k, [&](int i) { return turn_right(word_of(h.fifth, c), i); }, group);
  }
  __device__ static __forceinline__ void fragments(u32 (&a)[2][4], const Ready& r, const Plain& k,
                                                   int, int group, int) {
    decode(a, r, k, [&](int i) { return word_of(k.fifth, i); }, group);
  }
  // `fifth(i)`: fifth bits of word i, where row g's stand 4 (first group) and 8 bits up, row g +
  // 8's 8 bits further around.
  template <class Words, class Fifth>
  __device__ static __forceinline__ void decode(u32 (&a)[2][4], const Ready& r, const Words& k,
                                                const Fifth& fifth, int group) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      // 0x6400 | q is 1024 + q; the second group's stand 4 bits up: 1024 + 16 q
      const u32 nibble = group ? 0x00f000f0 : 0x000f000f, high = group ? 0x01000100 : 0x00100010;
      const u32 v = word_of(k.w, i);
      u32 q0 = (v & nibble) | 0x64006400, q8 = ((v >> 8) & nibble) | 0x64006400;
      if (FIFTH) {
        const u32 f = fifth(i);
        q0 |= f & high;
        q8 |= turn_byte(f) & high;
      }
      constexpr u32 LOW = FIFTH ? 0xe410e410 : 0xe408e408;   // -(1024 + MIDDLE)
      constexpr u32 HIGH = FIFTH ? 0xd500d500 : 0xd480d480;  // -(64 + MIDDLE)
      q0 = group ? half2_fma(q0, 0x2c002c00, HIGH) : half2_add(q0, LOW);
      q8 = group ? half2_fma(q8, 0x2c002c00, HIGH) : half2_add(q8, LOW);
      a[i >> 1][2 * (i & 1)] =
          half2_fma(q0, of_group(r.scale[0], group), of_group(r.offset[0], group));
      a[i >> 1][2 * (i & 1) + 1] =
          half2_fma(q8, of_group(r.scale[1], group), of_group(r.offset[1], group));
    }
  }
  __device__ static __forceinline__ u32 of_group(u32 v, int group) {
    return group ? twice_high(v) : twice_low(v);
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
  struct Plain {
    uint4 w, pairs;
  };
  template <class From> __device__ static __forceinline__ Head rows(const u8* tile, int lane) {
    const int g = lane >> 2;
    Head h;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      h.scales[i] = From::get(tile + 3072 + (g + 8 * i) * 16);
      h.d[i] = *(const unsigned short*)(tile + 3328 + (g + 8 * i) * 2);
    }
    return h;
  }
  __device__ static __forceinline__ Head head(const u8* tile, int lane) {
    return rows<FromGlobal>(tile, lane);
  }
  struct Ready {};
  __device__ static __forceinline__ Ready ready(const u8*, int) { return {}; }
  __device__ static __forceinline__ Head plain_head(const u8* tile, const Ready&, int, int lane) {
    return rows<FromShared>(tile, lane);
  }
  __device__ static __forceinline__ Chunk chunk(const u8* tile, int c, int lane) {
    return {stream16(tile + c * 512 + lane * 16),
            stream8(tile + 2048 + (c >> 1) * 512 + lane * 16 + (c & 1) * 8)};
  }
  __device__ static __forceinline__ Plain plain(const u8* tile, int c, const Lanes& lanes,
                                                int lane) {
    const uint4 p = lanes.words(tile + 2048 + (c >> 1) * 512, (c & 1) * 8 + (lane & 2) * 2);
    const int turn = (lane & 1) * 2;
    return {lanes.own_words(tile + c * 512),
            {turn_right(p.x, turn), turn_right(p.y, turn), turn_right(p.z, turn),
             turn_right(p.w, turn)}};
  }
  // High pairs of word i, as DecodeK::fifth.
  __device__ static __forceinline__ u32 pairs(const Chunk& k, int i) {
    const u32 p = i >> 1 ? k.pairs.y : k.pairs.x;
    return i & 1 ? turn_right(p, 2) : p;
  }
  __device__ static __forceinline__ u32 pairs(const Plain& k, int i) { return word_of(k.pairs, i); }
  // Scales of 16 columns, of both k-steps: tiles have lanes t >= 2 in columns 16 to 31, plain rows
  // the second k-step.
  __device__ static __forceinline__ u32 scales(const Chunk&, u32 four, int group, int lane) {
    return permute(four >> ((lane & 2) * 4), 0x64646464, group ? 0x4242 : 0x4040);
  }
  __device__ static __forceinline__ u32 scales(const Plain&, u32 four, int group, int) {
    return permute(four, 0x64646464, group ? 0x4342 : 0x4140);
  }

  template <class Words>
  __device__ static __forceinline__ void fragments(u32 (&a)[2][4], const Head& h, const Words& k,
                                                   int c, int group, int lane) {
    u32 scale[2];  // a byte is a scale + 128: 0x6400 | byte = 1024 + byte, less 1152
#pragma unroll
    for (int i = 0; i < 2; i++)
      scale[i] = half2_mul(half2_add(scales(k, word_of(h.scales[i], c), group, lane), 0xe480e480),
                           twice_low(h.d[i]));
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 nibble = group ? 0x00f000f0 : 0x000f000f, pair = group ? 0x03000300 : 0x00300030;
      const u32 v = word_of(k.w, i), p = pairs(k, i);
      // First the nibble among the bits of `p`, then those that are wanted: two instructions.
      const u32 v0 = (v & nibble) | (p & ~nibble),
                v8 = ((v >> 8) & nibble) | (turn_byte(p) & ~nibble);
      u32 q0 = (v0 & (nibble | pair)) | 0x64006400, q8 = (v8 & (nibble | pair)) | 0x64006400;
      q0 = group ? half2_fma(q0, 0x2c002c00, 0xd600d600) : half2_add(q0, 0xe420e420);
      q8 = group ? half2_fma(q8, 0x2c002c00, 0xd600d600) : half2_add(q8, 0xe420e420);
      a[i >> 1][2 * (i & 1)] = half2_mul(q0, i >> 1 ? twice_high(scale[0]) : twice_low(scale[0]));
      a[i >> 1][2 * (i & 1) + 1] =
          half2_mul(q8, i >> 1 ? twice_high(scale[1]) : twice_low(scale[1]));
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
  typedef Chunk Plain;
  template <class From> __device__ static __forceinline__ Head rows(const u8* tile, int lane) {
    return {{From::get(tile + 4096 + (lane >> 2) * 16),
             From::get(tile + 4096 + (lane >> 2) * 16 + 128)}};
  }
  __device__ static __forceinline__ Head head(const u8* tile, int lane) {
    return rows<FromGlobal>(tile, lane);
  }
  struct Ready {};
  __device__ static __forceinline__ Ready ready(const u8*, int) { return {}; }
  __device__ static __forceinline__ Head plain_head(const u8* tile, const Ready&, int, int lane) {
    return rows<FromShared>(tile, lane);
  }
  __device__ static __forceinline__ Chunk chunk(const u8* tile, int c, int lane) {
    return {
        {stream16(tile + 2 * c * 512 + lane * 16), stream16(tile + (2 * c + 1) * 512 + lane * 16)}};
  }
  __device__ static __forceinline__ Plain plain(const u8* tile, int c, const Lanes& lanes, int) {
    return {{lanes.own_words(tile + 2 * c * 512), lanes.own_words(tile + (2 * c + 1) * 512)}};
  }
  __device__ static __forceinline__ void fragments(u32 (&a)[2][4], const Head& h, const Chunk& k,
                                                   int c, int group, int) {
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
  typedef Chunk Plain;
  __device__ static __forceinline__ Head head(const u8*, int) { return {}; }
  struct Ready {};
  __device__ static __forceinline__ Ready ready(const u8*, int) { return {}; }
  __device__ static __forceinline__ Head plain_head(const u8*, const Ready&, int, int) {
    return {};
  }
  __device__ static __forceinline__ Chunk chunk(const u8* tile, int c, int lane) {
    const u8* p = tile + 2 * c * 1024 + lane * 16;
    return {{{stream16(p), stream16(p + 512)}, {stream16(p + 1024), stream16(p + 1536)}}};
  }
  __device__ static __forceinline__ Plain plain(const u8* tile, int c, const Lanes& lanes, int) {
    const u8* p = tile + 2 * c * 1024;
    return {{{lanes.own_words(p), lanes.own_words(p + 512)},
             {lanes.own_words(p + 1024), lanes.own_words(p + 1536)}}};
  }
  __device__ static __forceinline__ void fragments(u32 (&a)[2][4], const Head&, const Chunk& k, int,
                                                   int group, int) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      a[i >> 1][2 * (i & 1)] = word_of(k.w[group][0], i);
      a[i >> 1][2 * (i & 1) + 1] = word_of(k.w[group][1], i);
    }
  }
};

// The formats of tiles_grouped.cuh: what `Tile` gives, in f16 with its factors. Plain rows take it
// by exchanges within the four lanes of a row.
template <int FORMAT> struct Decode {
  typedef Tile<FORMAT> T;
  struct Head : T::Head {
    __device__ __forceinline__ Head() {}
    __device__ __forceinline__ Head(const typename T::Head& h) : T::Head(h) {}
    __device__ __forceinline__ void renew() {}
  };
  struct Chunk {
    const u8* tile;
  };
  struct Plain {
    const u8* tile;
  };
  struct Ready {};
  __device__ static __forceinline__ Head head(const u8* tile, int lane) {
    return T::head(tile, lane);
  }
  __device__ static __forceinline__ Ready ready(const u8*, int) { return {}; }
  __device__ static __forceinline__ Head plain_head(const u8* tile, const Ready&, int, int lane) {
    return T::head(tile, lane);
  }
  __device__ static __forceinline__ Chunk chunk(const u8* tile, int, int) { return {tile}; }
  __device__ static __forceinline__ Plain plain(const u8* tile, int, const Lanes&, int) {
    return {tile};
  }
  __device__ static __forceinline__ void fragments(u32 (&a)[2][4], const Head& h, const Chunk& k,
                                                   int c, int group, int lane) {
    u32 all[4][4];
    float d[2];
    T::chunk(k.tile, h, c, lane, all);
    T::group(k.tile, h, 2 * c + group, lane, d);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      // Large codes are divided by 256 first: a factor that small would not be a normal half.
      const float factor = T::LARGE_CODES ? d[r] * 256.f : d[r];
      const u32 scale = pack_half2(factor, factor);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 code = all[2 * group + (i >> 1)][2 * (i & 1) + r];
        if (T::LARGE_CODES) code = half2_mul(code, 0x1c001c00);
        a[i >> 1][2 * (i & 1) + r] = half2_mul(code, scale);
      }
    }
  }
  __device__ static __forceinline__ void fragments(u32 (&a)[2][4], const Head& h, const Plain& k,
                                                   int c, int group, int lane) {
    fragments(a, h, Chunk{k.tile}, c, group, lane);
    // Word i of lane t and word t of lane i change places.
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          if (i & bit) continue;
          u32 &low = a[i >> 1][2 * (i & 1) + r], &high = a[(i + bit) >> 1][2 * ((i + bit) & 1) + r];
          const bool upper = lane & bit;
          const u32 other = __shfl_xor_sync(~0u, upper ? low : high, bit);
          low = upper ? other : low;
          high = upper ? high : other;
        }
  }
};
