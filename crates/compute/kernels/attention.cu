// Attention of decode passes: up to 64 rows in chains and trees of several sequences.
//
// A row at position p reads the keys below b(p) in chunks and the rest, its tail of 64 to 127 keys, on its own: all
// keys below b(p) are committed in any company, since a pass is at most 64 deep. Chunks lie at fixed positions and a
// tail begins at b(p) or at the window's edge, so what is added in which order follows from p alone.
//
// attention_chunks_DIM (DIM 128 or 256, the next one to head_dim) works through items that its blocks find for
// themselves, so that a captured graph serves any context:
//   (sequence, chunk, kv head, up to 64 / (heads / kv heads) of the sequence's rows), long chunks first, and
//   (row, kv head): a tail, from pages and from the rows of the pass.
// The matrix instructions' rows are (row, query head) pairs, 16 a warp. It writes, for every row, head and part,
//   partial [rows][heads][max_chunks][head_dim + 4]: sum of weighted values, then highest score and sum of weights;
//   part 0 is the tail, then come the chunks from the first that the row sees.
// attention_join adds the parts in that order, applies the gate and writes the activation.
//
// Floor: every committed key and value once a pass; at the 27B 4 KB a token and layer in f16, 7 us at 8192 tokens.
// Within a chunk a block keeps one tile of keys or values in flight while it works on the other; short contexts are
// bound by the latency of two tiles. The join reads 25 MB at 16 rows and 8192 tokens, from L2.
//
// Launch: attention_chunks_DIM: grid 2 x multiprocessors, block 128, dynamic shared 3 * 64 * DIM * 2 (98304 or 49152).
//         attention_join: grid rows x heads, block 256, dynamic shared 8 * max_chunks.
// max_chunks: see src/cuda/ops/attention.rs.
// budget: attention_chunks_128 255
// budget: attention_chunks_256 255
// budget: attention_join 64
#include "kv.cuh"

constexpr int NEAR = 8192, SHORT_CHUNK = 128, LONG_CHUNK = 1024;
constexpr int TAIL_KEYS = 192;  // at most 126 committed ones and, not causal, 64 of the pass

__device__ __forceinline__ int chunk_of(int position) {
  return position < NEAR ? position / SHORT_CHUNK : NEAR / SHORT_CHUNK + (position - NEAR) / LONG_CHUNK;
}
__device__ __forceinline__ int chunk_begin(int chunk) {
  return chunk < NEAR / SHORT_CHUNK ? chunk * SHORT_CHUNK : NEAR + (chunk - NEAR / SHORT_CHUNK) * LONG_CHUNK;
}
// Keys below this are committed before a row at p can be in a pass.
__device__ __forceinline__ int bound(int p) { return p < DECODE_ROWS ? 0 : (p - DECODE_ROWS + 1) / KEYS * KEYS; }
__device__ __forceinline__ int lowest(int p, int window) { return window ? max(0, p - window + 1) : 0; }

// The pass, sorted: what the blocks find their items by.
struct Directory {
  int sequence[DECODE_ROWS], position[DECODE_ROWS];
  int order[DECODE_ROWS];  // rows by sequence
  int first[DECODE_ROWS], rows[DECODE_ROWS];  // of a sequence, in `order`
  int first_chunk[DECODE_ROWS], chunks[DECODE_ROWS];  // the first chunk any of its rows sees, and how many
  int source[TAIL_KEYS];   // keys of a tail: committed ones by their distance from b(p), rows of the pass as -1 - row
  int sources;
  // The item at work: rows order[list] to order[list + count]. In shared memory: registers are short.
  int list, count, head, chunk;
};

__device__ __forceinline__ void survey(Directory& d, const AttentionArgs& a) {
  const int i = threadIdx.x, rows = a.pass.rows;
  if (i < rows) {
    d.sequence[i] = a.pass.sequence_of[i];
    d.position[i] = a.pass.positions[i];
  }
  __syncthreads();
  if (i < rows) {
    int before = 0;
    const int own = d.sequence[i];
#pragma unroll 8
    for (int r = 0; r < rows; r++) before += d.sequence[r] < own || (d.sequence[r] == own && r < i);
    d.order[before] = i;
  }
  if (i < a.pass.sequence_count) {
    int first = 0, count = 0, from = 0x7fffffff, to = 0;
#pragma unroll 8
    for (int r = 0; r < rows; r++) {
      first += d.sequence[r] < i;
      if (d.sequence[r] != i) continue;
      count++;
      from = min(from, lowest(d.position[r], a.window));
      to = max(to, bound(d.position[r]));
    }
    d.first[i] = first;
    d.rows[i] = count;
    d.first_chunk[i] = from < to ? chunk_of(from) : 0;
    d.chunks[i] = from < to ? chunk_of(to - 1) + 1 - chunk_of(from) : 0;
  }
  __syncthreads();
}

// Lists the keys of a tail in order: committed ones by position, then those of the pass, by position along the row's
// path or, not causal, in order of rows.
__device__ __forceinline__ void list_tail(Directory& d, const AttentionArgs& a, int row, int sequence, int committed) {
  const int p = d.position[row], b = bound(p), start = max(lowest(p, a.window), b);
  if (a.causal) {
    for (int i = threadIdx.x; i < p - start + 1; i += ATTENTION_THREADS) {
      const int at = start + i;
      d.source[i] = at < committed ? at - b : -1 - a.pass.path[row * DECODE_ROWS + at - committed];
    }
    if (threadIdx.x == 0) d.sources = p - start + 1;
  } else if (threadIdx.x < 32) {
    int count = max(0, committed - start);
    for (int i = threadIdx.x; i < count; i += 32) d.source[i] = start + i - b;
    const int first = d.first[sequence], rows = d.rows[sequence];
    for (int i = 0; i < rows; i += 32) {
      const int r = i + (int)threadIdx.x < rows ? d.order[first + i + threadIdx.x] : -1;
      const bool seen = r >= 0 && (a.window == 0 || abs(d.position[r] - p) < a.window);
      const u32 all = __ballot_sync(~0u, seen);
      if (seen) d.source[count + __popc(all & ((1u << threadIdx.x) - 1))] = -1 - r;
      count += __popc(all);
    }
    if (threadIdx.x == 0) d.sources = count;
  }
  __syncthreads();
}

template <int DIM> __device__ __forceinline__ void attend(const AttentionArgs& a, Directory& d, __half* queries) {
  __half *keys = queries + QUERIES * DIM, *values = keys + KEYS * DIM;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const int kv_heads = a.layout.heads, group = a.heads / kv_heads, row_bytes = a.layout.row_bytes;
  const int rows_per_item = QUERIES / group;
  const float scale = a.scale * 1.44269504f;  // scores in powers of two
  survey(d, a);
  int chunk_items = 0;
  for (int s = 0; s < a.pass.sequence_count; s++)
    chunk_items += d.chunks[s] * kv_heads * ((d.rows[s] + rows_per_item - 1) / rows_per_item);

  for (int item = blockIdx.x; item < chunk_items + a.pass.rows * kv_heads; item += gridDim.x) {
    const bool tail = item >= chunk_items;
    int s = 0, list, count, head, chunk = 0;
    if (tail) {
      list = (item - chunk_items) / kv_heads;
      count = 1;
      head = (item - chunk_items) % kv_heads;
      s = d.sequence[d.order[list]];
    } else {
      int left = item, parts;
      for (;; s++) {
        parts = (d.rows[s] + rows_per_item - 1) / rows_per_item;
        if (left < d.chunks[s] * kv_heads * parts) break;
        left -= d.chunks[s] * kv_heads * parts;
      }
      const int part = left % parts;
      head = left / parts % kv_heads;
      chunk = d.first_chunk[s] + d.chunks[s] - 1 - left / (parts * kv_heads);
      list = d.first[s] + part * rows_per_item;
      count = min(rows_per_item, d.rows[s] - part * rows_per_item);
    }
    __syncthreads();  // the item before is done with
    if (threadIdx.x == 0) {
      d.list = list;
      d.count = count;
      d.head = head;
      d.chunk = chunk;
    }
    __syncthreads();
    const Sequence& sequence = a.pass.sequences[s];
    const u8* const* pages = sequence.pages[a.cache];
    const int first_page = sequence.first_page[a.cache], committed = sequence.committed;
    const int chunk_from = chunk_begin(chunk), chunk_to = chunk_begin(chunk + 1);

    // The keys that the item's rows see: positions, or indices in the tail's list.
    Sweep w;
    // The pages of this tile and of the one after it; of a tail the two from b(p) on.
    const u8 *page = nullptr, *next = nullptr;
    if (tail) {
      const int row = d.order[list], p = d.position[row], b = bound(p), start = max(lowest(p, a.window), b);
      if (start < min(committed, b + KEYS)) page = pages[b / KEYS - first_page];
      if (committed > b + KEYS) next = pages[b / KEYS + 1 - first_page];
      list_tail(d, a, row, s, committed);
      w = {0, (d.sources + KEYS - 1) / KEYS, 0, d.sources, true};
    } else {
      int first = 0x7fffffff, last = 0;
      w = {0, 0, 0, 0x7fffffff, false};
      for (int i = 0; i < count; i++) {
        const int p = d.position[d.order[list + i]];
        const int from = max(lowest(p, a.window), chunk_from), to = min(bound(p), chunk_to);
        w.all_from = max(w.all_from, from);
        w.all_to = min(w.all_to, to);
        if (from >= to) continue;
        first = min(first, from);
        last = max(last, to);
      }
      if (first >= last) continue;
      w.first = first / KEYS;
      w.end = (last + KEYS - 1) / KEYS;
      next = pages[w.first - first_page];
    }
    auto load = [&](int tile, int part, __half* to) {
      const u32 in_page = (u32)((a.layer * 2 + part) * kv_heads + d.head) * KEYS * row_bytes;
      if (tail) {
        const u8* rows = a.kv + (size_t)(part * kv_heads + d.head) * row_bytes;
        load_tile<DIM>(to, a.layout.kind, a.head_dim, a.kv, [&](int i) -> const u8* {
          const int slot = tile * KEYS + i;
          if (slot >= d.sources) return nullptr;
          const int source = d.source[slot];
          if (source < 0) return rows + (size_t)(-1 - source) * 2 * kv_heads * row_bytes;
          return (source < KEYS ? page : next) + in_page + (size_t)(source % KEYS) * row_bytes;
        });
      } else {
        if (part == 0) page = next;
        const u8* rows = page + in_page;
        load_tile<DIM>(to, a.layout.kind, a.head_dim, a.kv, [&](int i) { return rows + (size_t)i * row_bytes; });
        if (part == 1 && tile + 1 < w.end) next = pages[tile + 1 - first_page];
      }
    };
    load(w.first, 0, keys);
    load(w.first, 1, values);

    const bool busy = warp * 16 < d.count * group;
    const int used = min(QUERIES, (d.count * group + 15) / 16 * 16);
    for (int i = threadIdx.x; i < used * (DIM / 8); i += ATTENTION_THREADS) {
      const int x = i / (DIM / 8), col = i % (DIM / 8) * 8;
      const bool there = x < d.count * group && col < a.head_dim;
      const int row = there ? d.order[d.list + x / group] : 0;
      const float* q = a.q + ((size_t)row * a.heads + d.head * group + x % group) * a.query_stride + col;
      place_query<DIM>(queries, x, col / 8, q, there, scale);
    }
    int from[2], to[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int x = warp * 16 + lane / 4 + 8 * h;
      from[h] = to[h] = 0;
      if (x >= d.count * group) continue;
      const int p = d.position[d.order[d.list + x / group]];
      from[h] = tail ? 0 : max(lowest(p, a.window), chunk_begin(d.chunk));
      to[h] = tail ? d.sources : min(bound(p), chunk_begin(d.chunk + 1));
    }
    Rows<DIM> rows;
    rows.clear();
    sweep<DIM>(rows, queries, keys, values, busy, w, from, to, load);
    if (!busy) continue;
    rows.sum_totals();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if (from[h] >= to[h]) continue;
      const int x = warp * 16 + lane / 4 + 8 * h, row = d.order[d.list + x / group];
      const int part = tail ? 0 : 1 + d.chunk - chunk_of(lowest(d.position[row], a.window));
      const size_t at = ((size_t)row * a.heads + d.head * group + x % group) * a.max_chunks + part;
      float* out = a.partial + at * (a.head_dim + 4);
#pragma unroll
      for (int n = 0; n < DIM / 8; n++)
        if (8 * n < a.head_dim)
          *(float2*)(out + 8 * n + 2 * (lane & 3)) = make_float2(rows.o[n][2 * h], rows.o[n][2 * h + 1]);
      if ((lane & 3) == 0) *(float2*)(out + a.head_dim) = make_float2(rows.highest[h], rows.total[h]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, 2)
    attention_chunks_128(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(128) __half tiles[];
  __shared__ Directory directory;
  launch_dependents();
  wait_for_inputs();
  attend<128>(a, directory, tiles);
}
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, 2)
    attention_chunks_256(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(128) __half tiles[];
  __shared__ Directory directory;
  launch_dependents();
  wait_for_inputs();
  attend<256>(a, directory, tiles);
}

extern "C" __global__ void __launch_bounds__(256) attention_join(const __grid_constant__ AttentionArgs a) {
  extern __shared__ float weights[];  // [max_chunks], then [max_chunks] sums of weights
  __shared__ float4 sums[4][64];
  launch_dependents();
  wait_for_inputs();
  const int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x & 31;
  const int p = a.pass.positions[row], from = lowest(p, a.window), to = bound(p);
  const int parts = from < to ? 2 + chunk_of(to - 1) - chunk_of(from) : 1, stride = a.head_dim + 4;
  const float* in = a.partial + ((size_t)row * a.heads + head) * a.max_chunks * stride;
  float* totals = weights + a.max_chunks;
  for (int i = threadIdx.x; i < parts; i += 256) {
    const float2 x = *(const float2*)(in + (size_t)i * stride + a.head_dim);
    weights[i] = x.x;
    totals[i] = x.y;
  }
  __syncthreads();
  float highest = -infinite();
  for (int i = lane; i < parts; i += 32) highest = fmaxf(highest, weights[i]);
#pragma unroll
  for (int far = 16; far; far >>= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, far));
  if (highest == -infinite()) highest = 0.f;
  float total = 0.f;
  for (int i = lane; i < parts; i += 32) total += power_of_two(weights[i] - highest) * totals[i];
#pragma unroll
  for (int far = 16; far; far >>= 1) total += __shfl_xor_sync(~0u, total, far);

  // Four groups of threads take every fourth part; each thread four columns.
  const int which = threadIdx.x / 64, col = threadIdx.x % 64 * 4;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  if (col < a.head_dim) {
#pragma unroll 4
    for (int i = which; i < parts; i += 4) {
      const float w = power_of_two(weights[i] - highest);
      const float4 x = *(const float4*)(in + (size_t)i * stride + col);
      sum.x += w * x.x;
      sum.y += w * x.y;
      sum.z += w * x.z;
      sum.w += w * x.w;
    }
  }
  sums[which][threadIdx.x % 64] = sum;
  __syncthreads();
  if (threadIdx.x * 8 >= a.head_dim) return;
  float y[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    auto at = [&](int part) { return ((const float*)sums[part])[threadIdx.x * 8 + i]; };
    y[i] = ((at(0) + at(1)) + (at(2) + at(3))) / total;
  }
  if (a.gated) {
    const float* gate = a.q + ((size_t)row * a.heads + head) * a.query_stride + a.head_dim + threadIdx.x * 8;
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] *= 1.f / (1.f + expf(-gate[i]));
  }
  store8(a.out, row, head * a.head_dim + threadIdx.x * 8, y);
}
