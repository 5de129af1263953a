// How a warp works through tiles: they come into a ring of its own, by copies of 16 bytes a lane,
// and are multiplied in the order they were asked for. Every step asks for one more tile, or for
// none, so steps count what is waited for.
#pragma once
#include "ring.cuh"
#include "tiles.cuh"

// Added to a format: its tiles do not pass through the ring (Q8_0 and F16)
constexpr int DIRECT = 16;
constexpr int MIXED = -1;   // no format: tiles have several, of those most files have
constexpr int OTHERS = -2;  // several, among them ones of FOR_OTHER_FORMATS
__host__ __device__ constexpr bool is_mixed(int format) { return format < 0; }

__device__ __forceinline__ int bytes_of(int format) { return tile_bytes(format & (DIRECT - 1)); }

// What comes next: `left` tiles of a row tile, from `at` on.
struct Ahead {
  const u8* at;  // this lane's part of the tile
  int left, format;
};

struct Ring {
  u8* base;       // [stages][stage_bytes]
  int stages, stage_bytes;  // 2 to 4 stages
  int place = 0;  // of the tile that is multiplied next, in bytes

  __device__ __forceinline__ const u8* tile() const { return base + place; }
  __device__ __forceinline__ void step() {
    place += stage_bytes;
    if (place == stages * stage_bytes) place = 0;
  }
  // Until the next tile is there: all but the newest stages - 1 groups of copies.
  __device__ __forceinline__ void wait() const {
    if (stages == 2) copies_pending<1>();
    else if (stages == 3) copies_pending<2>();
    else copies_pending<3>();
    __syncwarp();
  }
};

// One lane's part of a tile.
template <int BYTES> __device__ __forceinline__ void copy_tile(u32 to, const u8* from, u64 policy) {
#pragma unroll
  for (int at = 0; at + 512 <= BYTES; at += 512) copy_streamed(to + at, from + at, policy);
  constexpr int REST = BYTES % 512, AT = BYTES - REST;
  if constexpr (REST > 0)
    copy_streamed_if((threadIdx.x & 31) < REST / 16, to + AT, from + AT, policy);
}
__device__ __forceinline__ void copy_tile(u32 to, const u8* from, int bytes, u64 policy) {
#pragma unroll 1
  for (int at = (threadIdx.x & 31) * 16; at < bytes; at += 512, to += 512, from += 512)
    copy_streamed(to, from, policy);
}

// Asks for the next tile, into the ring's place; `advance` goes on to the next row tile. FORMAT is
// that of the tile multiplied last, which the next one mostly has too; MIXED if it is not known.
template <int FORMAT, class Advance>
__device__ __forceinline__ void ask(const Ring& ring, Ahead& ahead, const Advance& advance,
                                    u64 policy) {
  if (ahead.left) {
    const u32 to = shared_address(ring.base + ring.place) + (threadIdx.x & 31) * 16;
    constexpr int BYTES = tile_bytes(is_mixed(FORMAT) ? 0 : FORMAT);
    if (!is_mixed(FORMAT) && ahead.format == FORMAT) {
      copy_tile<BYTES>(to, ahead.at, policy);
      ahead.at += BYTES;
    } else {
      const int bytes = bytes_of(ahead.format);
      if (!(ahead.format & DIRECT)) copy_tile(to, ahead.at, bytes, policy);
      ahead.at += bytes;
    }
    if (--ahead.left == 0) advance();
  }
  copies_begun();
}

// Where a lane finds its columns of activation rows g, g + 8, ... and their sums: see
// multiply_tile.
struct Rows {
  const __half *x, *sums;
  int x_step, sums_step;  // from one to the next, in halves
  __device__ __forceinline__ void next() { x += 256, sums += 16; }
};

template <int FORMAT, int N8, int MT, int UNROLL>
__device__ __forceinline__ void multiply_tile(const u8* tile, const Rows& rows,
                                              float (&acc)[MT][N8][4], int lane) {
  const __half *x[N8], *sums[N8];
#pragma unroll
  for (int j = 0; j < N8; j++)
    x[j] = rows.x + j * rows.x_step, sums[j] = rows.sums + j * rows.sums_step;
  multiply_tile<FORMAT, N8, MT, UNROLL>(tile, x, sums, acc, lane);
}

// `count` tiles that follow each other times N8 x 8 activation rows; acc as for multiply_tile.
template <int FORMAT, int N8, class Advance>
__device__ __forceinline__ void multiply_tiles(Ring& ring, int count, Rows& rows,
                                               float (&acc)[1][N8][4], Ahead& ahead,
                                               const Advance& advance, u64 policy) {
  constexpr bool LARGE = is_grouped(FORMAT) || FORMAT == TILE_F16;
  constexpr int UNROLL = !LARGE ? 4 : N8 > 2 ? 1 : 2;  // how many registers that takes
#pragma unroll 1
  do {
    ring.wait();
    multiply_tile<FORMAT, N8, 1, UNROLL>(ring.tile(), rows, acc, threadIdx.x & 31);
    __syncwarp();
    ask<FORMAT>(ring, ahead, advance, policy);
    ring.step();
    rows.next();
  } while (--count);
}

// The same of a format that is read from memory directly, when it is multiplied: what the ring has
// for it is empty.
template <int FORMAT, int N8, class Advance>
__device__ __forceinline__ void multiply_direct(Ring& ring, const u8* from, int count, Rows& rows,
                                                float (&acc)[1][N8][4], Ahead& ahead,
                                                const Advance& advance, u64 policy) {
#pragma unroll 1
  do {
    multiply_tile<FORMAT, N8, 1, 1>(from, rows, acc, threadIdx.x & 31);
    ask<MIXED>(ring, ahead, advance, policy);
    ring.step();
    from += tile_bytes(FORMAT);
    rows.next();
  } while (--count);
}

// Tiles of whatever format they have; `from` is where they lie. With all formats in one switch the
// usual ones are a tenth slower, so FORMAT says whether it has the others.
template <int FORMAT, int N8, class Advance>
__device__ __forceinline__ void multiply_tiles_of(int format, const u8* from, Ring& ring, int count,
                                                  Rows& rows, float (&acc)[1][N8][4], Ahead& ahead,
                                                  const Advance& advance, u64 policy) {
  switch (format) {
    case TILE_Q4_K:
      multiply_tiles<TILE_Q4_K, N8>(ring, count, rows, acc, ahead, advance, policy);
      break;
    case TILE_Q5_K:
      multiply_tiles<TILE_Q5_K, N8>(ring, count, rows, acc, ahead, advance, policy);
      break;
    case TILE_Q6_K:
      multiply_tiles<TILE_Q6_K, N8>(ring, count, rows, acc, ahead, advance, policy);
      break;
    case TILE_Q8_0:
      multiply_tiles<TILE_Q8_0, N8>(ring, count, rows, acc, ahead, advance, policy);
      break;
    case TILE_F16:
      multiply_tiles<TILE_F16, N8>(ring, count, rows, acc, ahead, advance, policy);
      break;
    case TILE_Q8_0 + DIRECT:
      multiply_direct<TILE_Q8_0, N8>(ring, from, count, rows, acc, ahead, advance, policy);
      break;
    default:
      if constexpr (FORMAT == OTHERS) {
#define FORERUN_CASE(F)                                                    \
  case F:                                                                  \
    multiply_tiles<F, N8>(ring, count, rows, acc, ahead, advance, policy); \
    return;
        switch (format) { FOR_OTHER_FORMATS(FORERUN_CASE) }
#undef FORERUN_CASE
      }
      multiply_direct<TILE_F16, N8>(ring, from, count, rows, acc, ahead, advance, policy);
  }
}
