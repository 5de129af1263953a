// pairs: for each row with logits, whose candidates are the first `count` numbers of its row of
// `candidates`, count x count scores behind them: score[a][b] = sum over r of predecessors[p_a][r]
// * gates[r] * successors[c_b][r]. p_a are the candidates of the chosen row before, where that is
// the row before on the path; else all of them are the token of the row before, or the row's own.
//
// Floor: 7 rows of 16 candidates, rank 256 in BF16: 2 x 16 rows of 512 bytes each: 0.11 MB of a
// table from memory: one latency. A block takes 256 pairs of a row, four threads one: a quarter of
// the columns each, added in order. Codebook rows are decoded to shared memory, as many columns at
// a time as have room.
// Launch: grid [chosen rows, ceil(count^2 / 256)], block 1024. count <= 64, rank a multiple of 32.
#include "table.cuh"

constexpr int THREADS = 1024;
constexpr int PAIRS = 256;   // of a block
constexpr int MAX_COUNT = 64;
constexpr int HELD = 4096;  // numbers of a side in shared memory

struct Codebook {
  const u8* rows;
  int ty, row_bytes;
};

struct PairsArgs {
  Pass pass;
  float* candidates;   // [chosen][stride]
  const float* gates;  // [chosen][rank], or null
  Codebook before, after;
  int count, stride, rank;
};

KERNEL(pairs, 64, PairsArgs, THREADS) {
  // Rows are padded by four numbers, so that those of different candidates lie in other banks.
  __shared__ __align__(16) float left[HELD + 4 * MAX_COUNT], right[HELD + 4 * MAX_COUNT];
  __shared__ int ids[2][MAX_COUNT];
  __shared__ float quarters[THREADS];
  launch_dependents();
  const int i = blockIdx.x, count = a.count;
  const int row = a.pass.chosen[i], before = a.pass.taps[row * 3 + 2];
  const bool chosen = i > 0 && before >= 0 && a.pass.chosen[i - 1] == before;
  const int token = a.pass.tokens[before >= 0 ? before : row];
  wait_for_inputs();
  if (threadIdx.x < count) {
    const float* list = a.candidates + (size_t)i * a.stride + threadIdx.x;
    ids[0][threadIdx.x] = chosen ? (int)*(list - a.stride) : token;
    ids[1][threadIdx.x] = (int)*list;
  }
  const int pair = blockIdx.y * PAIRS + threadIdx.x % PAIRS, quarter = threadIdx.x / PAIRS;
  float score = 0.f;
  int span = HELD / count & ~31;
  if (span > a.rank) span = a.rank;
  for (int first = 0; first < a.rank; first += span) {
    const int cols = a.rank - first < span ? a.rank - first : span;
    const int quads = cols / 4, ld = span + 4;
    __syncthreads();
#pragma unroll 1
    for (int at = threadIdx.x; at < 2 * count * quads; at += THREADS) {
      const int side = at >= count * quads, in = at - side * count * quads;
      const int which = in / quads, col = in % quads * 4;
      const Codebook& book = side ? a.after : a.before;
      float y[4];
      decode4(book.ty, book.rows + (size_t)ids[side][which] * book.row_bytes, first + col, y);
      if (!side && a.gates) {
        const float4 g = *(const float4*)(a.gates + (size_t)i * a.rank + first + col);
        y[0] *= g.x, y[1] *= g.y, y[2] *= g.z, y[3] *= g.w;
      }
      *(float4*)((side ? right : left) + which * ld + col) = make_float4(y[0], y[1], y[2], y[3]);
    }
    __syncthreads();
    if (pair < count * count) {
      const float4* x = (const float4*)(left + pair / count * ld);
      const float4* y = (const float4*)(right + pair % count * ld);
      float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
      // Spans are whole groups of 32 columns, so of 8 quads.
#pragma unroll 4
      for (int q = quarter * (quads / 4); q < (quarter + 1) * (quads / 4); q++) {
        const float4 u = x[q], v = y[q];
        sum.x = fmaf(u.x, v.x, sum.x), sum.y = fmaf(u.y, v.y, sum.y);
        sum.z = fmaf(u.z, v.z, sum.z), sum.w = fmaf(u.w, v.w, sum.w);
      }
      score += sum.x + sum.y + (sum.z + sum.w);
    }
  }
  quarters[threadIdx.x] = score;
  __syncthreads();
  if (quarter == 0 && pair < count * count) {
    for (int q = 1; q < 4; q++) score += quarters[q * PAIRS + threadIdx.x];
    a.candidates[(size_t)i * a.stride + 2 * count + pair] = score;
  }
}
