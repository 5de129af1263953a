// The portable product of many activation rows (mma.sync, any card): a block's tile of outputs, 32
// weight rows a warp. x comes 64 columns at a time through a ring of STAGES stages of shared memory
// (cp.async, 16-byte pieces turned so that neither side has bank conflicts); weights go from global
// memory straight to registers, one step ahead, and are decoded there once for all rows of the
// block. Every output is one chain of f32 sums in the order of the columns: its bits depend on
// neither the number of rows nor the size of a block's tile.
#pragma once
#include "prompt_tiles.cuh"

constexpr int STAGES = 4;

// One block's tile: 32 weight rows a warp from row tile `first_tile` + 2 wm on, times 8 N8 rows of
// x from 8 N8 wn on. A thread copies a 16-byte piece of ROWS rows of x, 32 rows apart:
// rows.source(i), zeros unless rows.there(i); rows.out(n): the out row of the block's x row n, or
// -1.
template <int FORMAT, int N8, int ROWS, class Rows>
__device__ __forceinline__ void multiply(const u8* weight, float* out, int M, int K, int first_tile,
                                         int wm, int wn, const Rows& rows, u8* stages) {
  typedef Decode<FORMAT> D;
  constexpr int BYTES = tile_bytes(FORMAT);
  const int tid = threadIdx.x, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int tiles = (M + 15) / 16, KB = K / 256;
  const u8* tile[2];
#pragma unroll
  for (int m = 0; m < 2; m++)
    tile[m] = weight + (size_t)min(first_tile + 2 * wm + m, tiles - 1) * KB * BYTES;

  // piece p of row r lies at r 128 + 16 (p ^ 4 (r & 1)): the four lanes of a row and of the next
  // read all 32 banks
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
    head[m] = D::head(tile[m], lane);
    chunk[m] = D::chunk(tile[m], 0, lane);
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
    // The last superblock is fetched again rather than none.
    const int more = kb + 1 < KB ? BYTES : 0;
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
            chunk[m] = D::chunk(tile[m] + (c == 3 ? more : 0), (c + 1) & 3, lane);
            if (c == 3) head[m] = D::head(tile[m] + more, lane);
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
