// Causal attention of prompts: the rows of each sequence are a chain of positions committed + i and
// lie together.
//
// A block takes one query head and the rows of 64 positions that begin at a multiple of 64, 16 a
// warp, and runs over tiles of 64 keys at multiples of 64 in order: committed ones from pages,
// others from the rows of the pass. A tile outside what a row sees leaves it as it is, so its bits
// do not depend on how the prompt was cut. Work: 4 head_dim flops a query head, row and key; K and
// V are read once a block, from L2. Bound by matrix instructions and shared memory (72 KB read for
// 1 Mflop of a warp); two blocks a multiprocessor where it has the memory, one loads while the
// other multiplies.
//
// Launch: prompt_attention_DIM (DIM 128 or 256, the next one to head_dim): grid heads x (rows / 64
// + 2 sequences), block 128, dynamic shared 3 * 64 * DIM * 2 (98304 or 49152). Blocks that find no
// rows end at once.
#include "kv.cuh"

// What a block works on. In shared memory: registers are short.
struct Block {
  const u8* const* pages;
  int first_page, committed, end, first_row;
  int base, low, high;  // its 64 positions, and those of them that have rows
};

template <int DIM> __device__ __forceinline__ void attend(const AttentionArgs& a, __half* queries) {
  __half *keys = queries + QUERIES * DIM, *values = keys + KEYS * DIM;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const int kv_heads = a.layout.heads, head = blockIdx.x, kv_head = head / (a.heads / kv_heads);
  const int row_bytes = a.layout.row_bytes;
  const float scale = a.scale * 1.44269504f;  // scores in powers of two

  // Which sequence and 64 positions; those with the most keys first.
  int left = gridDim.y - 1 - blockIdx.y, s = 0, blocks = 0;
  for (; s < a.pass.sequence_count; s++) {
    const int begin = a.pass.sequences[s].committed, rows = a.pass.sequences[s].rows;
    blocks = rows > 0 ? (begin + rows - 1) / QUERIES - begin / QUERIES + 1 : 0;
    if (left < blocks) break;
    left -= blocks;
  }
  if (s == a.pass.sequence_count) return;
  __shared__ Block block;
  if (threadIdx.x == 0) {
    const Sequence& sequence = a.pass.sequences[s];
    const int committed = sequence.committed, end = committed + sequence.rows;
    const int base = (committed / QUERIES + left) * QUERIES;
    block = {sequence.pages[a.cache],
             sequence.first_page[a.cache],
             committed,
             end,
             sequence.first_row,
             base,
             max(base, committed),
             min(base + QUERIES, end)};
  }
  __syncthreads();
  auto lowest = [&](int p) { return a.window ? max(0, p - a.window + 1) : 0; };

  const Sweep w = {lowest(block.low) / KEYS, block.base / KEYS + 1, lowest(block.high - 1),
                   block.low + 1, false};
  const u32 key_part = ((u32)a.layer * 2 * kv_heads + kv_head) * KEYS * row_bytes;
  const u32 value_part = key_part + (u32)kv_heads * KEYS * row_bytes;
  auto page_of = [&](int tile) -> const u8* {
    return tile * KEYS < block.committed ? block.pages[tile - block.first_page] : nullptr;
  };
  const u8 *page = nullptr, *next = page_of(w.first);  // of this tile and the one after it
  auto load = [&](int tile, int part, __half* to) {
    if (part == 0) page = next;
    const u8* in_page = page + (part ? value_part : key_part);
    const u8* in_pass =
        a.kv + ((size_t)block.first_row * 2 * kv_heads + part * kv_heads + kv_head) * row_bytes;
    const size_t stride = (size_t)2 * kv_heads * row_bytes;
    load_tile<DIM>(to, a.layout.kind, a.head_dim, a.kv, [&](int i) -> const u8* {
      const int p = tile * KEYS + i;
      if (p < block.committed) return in_page + (size_t)i * row_bytes;
      return p < block.end ? in_pass + (size_t)(p - block.committed) * stride : nullptr;
    });
    if (part == 1 && tile + 1 < w.end) next = page_of(tile + 1);
  };
  load(w.first, 0, keys);
  load(w.first, 1, values);
  for (int i = threadIdx.x; i < QUERIES * (DIM / 8); i += ATTENTION_THREADS) {
    const int p = block.base + i / (DIM / 8), col = i % (DIM / 8) * 8;
    const bool there = p >= block.low && p < block.high && col < a.head_dim;
    const int row = there ? block.first_row + p - block.committed : 0;
    const float* q = a.q + ((size_t)row * a.heads + head) * a.query_stride + col;
    place_query(queries, i / (DIM / 8), col / 8, q, there, scale);
  }
  stores_done();
  int from[2], to[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int p = block.base + warp * 16 + lane / 4 + 8 * h;
    from[h] = p >= block.low && p < block.high ? lowest(p) : 0;
    to[h] = p >= block.low && p < block.high ? p + 1 : 0;
  }
  const bool busy = block.base + warp * 16 < block.high && block.base + warp * 16 + 16 > block.low;
  Rows<DIM> rows;
  rows.clear();
  sweep<DIM>(rows, queries, keys, values, busy, w, from, to, load);
  if (!busy) return;
  rows.sum_totals();

  // Through shared memory, [64][DIM] floats over both tiles, to eight columns a lane.
  float* out = (float*)keys;
  auto at = [&](int row, int group) { return out + row * DIM + ((group ^ (row & 7)) << 3); };
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = warp * 16 + lane / 4 + 8 * h;
    const float factor = 1.f / rows.total[h];
#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
      *(float2*)(at(row, n) + 2 * (lane & 3)) =
          make_float2(rows.o[n][2 * h] * factor, rows.o[n][2 * h + 1] * factor);
  }
  __syncwarp();
  const int groups = a.head_dim / 8;
  for (int i = lane; i < 16 * groups; i += 32) {
    const int x = warp * 16 + i / groups, group = i % groups, p = block.base + x;
    if (p < block.low || p >= block.high) continue;
    const int row = block.first_row + p - block.committed;
    const float4 u = ((const float4*)at(x, group))[0], v = ((const float4*)at(x, group))[1];
    float y[8] = {u.x, u.y, u.z, u.w, v.x, v.y, v.z, v.w};
    if (a.gated) {
      const float* gate =
          a.q + ((size_t)row * a.heads + head) * a.query_stride + a.head_dim + group * 8;
      const float4 g = ((const float4*)gate)[0], k = ((const float4*)gate)[1];
      const float z[8] = {g.x, g.y, g.z, g.w, k.x, k.y, k.z, k.w};
#pragma unroll
      for (int j = 0; j < 8; j++) y[j] *= 1.f / (1.f + expf(-z[j]));
    }
    store8(a.out, row, head * a.head_dim + group * 8, y);
  }
}

KERNEL(prompt_attention_128, 255, AttentionArgs, ATTENTION_THREADS, 2) {
  extern __shared__ __align__(1024) __half tiles[];
  launch_dependents();
  wait_for_inputs();
  attend<128>(a, tiles);
}
KERNEL(prompt_attention_256, 255, AttentionArgs, ATTENTION_THREADS, 2) {
  extern __shared__ __align__(1024) __half tiles[];
  launch_dependents();
  wait_for_inputs();
  attend<256>(a, tiles);
}
