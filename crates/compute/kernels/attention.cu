// Attention of decode passes: up to TEXT_ROWS rows in chains and trees of several sequences.
//
// A row at position p reads the keys below b(p) in chunks and the rest, its tail of 64 to 127 keys,
// on its own: all keys below b(p) are committed in any company, since a text has at most TEXT_ROWS
// rows in a pass. A chunk is t(p) tiles of 64 keys, so many that there are at most `parts` of them,
// and chunks lie at multiples of their length: what is added in which order follows from p alone.
//
// attention_chunks_DIM (DIM 128 or 256, the next one to head_dim) works through items that its
// blocks find for themselves, so that a captured graph serves any context:
//   (sequence and t, chunk, kv head, as many of the rows as the block's queries take), and
//   (row, kv head): a tail, from pages and from the rows of the pass. The matrix instructions' rows
//   are (row, query head) pairs, 16 a warp. It writes, for every row, head and part,
//   partial [rows][heads][parts + 2][head_dim + 4]: sum of weighted values, then highest score and
//   sum of weights;
//   part 0 is the tail, then come the chunks from the first that the row sees.
// attention_join adds the parts in that order, applies the gate and writes the activation.
//
// Floor: every committed key and value once a pass; at the 27B 4 KB a token and layer in f16, 30 us
// at 32768 tokens. Keys and values of the next tiles are on their way while one is worked on, the
// first of them before the inputs are there. What limits: short contexts the latency of one item;
// at 16 rows and 32768 tokens the work on a tile (three fifths of the time: scores and weights a
// quarter, asking for tiles a tenth) and what an item begins and ends with.
//
// Launch: attention_chunks_DIM: grid multiprocessors, block 128 or 256 (64 or 128 queries), dynamic
// shared
//         (threads / 2 + 64 slots) * 2 DIM. attention_join: grid rows x heads, block 256. parts and
//         slots: see
//         src/cuda/ops/attention.rs.
#include "attention.cuh"

typedef Directory<TEXT_ROWS> Blocks;  // more rows are attention_texts.cu's

// Lists the keys of a tail in order: committed ones by position, then those of the pass, by
// position along the row's path or, not causal, in order of rows.
struct Tail {
  // Keys: committed ones by their distance from b(p), rows of the pass as -1 - row.
  short source[TAIL_KEYS];
  int sources;
};
__device__ __forceinline__ void list_tail(Tail& t, const Blocks& d, const AttentionArgs& a,
                                          int row, int committed) {
  const int p = d.position[row], b = bound(p), start = max(lowest(p, a.window), b);
  if (a.causal) {
    for (int i = threadIdx.x; i < p - start + 1; i += blockDim.x) {
      const int at = start + i;
      t.source[i] = at < committed ? at - b : -1 - a.pass.path[row * TEXT_ROWS + at - committed];
    }
    if (threadIdx.x == 0) t.sources = p - start + 1;
  } else if (threadIdx.x < 32) {
    int count = max(0, committed - start);
    for (int i = threadIdx.x; i < count; i += 32) t.source[i] = start + i - b;
    for (int i = 0; i < a.pass.rows; i += 32) {
      const int r = i + (int)threadIdx.x;
      const bool seen = r < a.pass.rows && d.sequence[r] == d.sequence[row] &&
                        (a.window == 0 || abs(d.position[r] - p) < a.window);
      const u32 all = __ballot_sync(~0u, seen);
      if (seen) t.source[count + __popc(all & ((1u << threadIdx.x) - 1))] = -1 - r;
      count += __popc(all);
    }
    if (threadIdx.x == 0) t.sources = count;
  }
  __syncthreads();
}

// What a block works on. In shared memory: registers are short.
struct Item {
  bool tail;
  int list, count;  // rows order[list] to order[list + count]
  int head, chunk, tiles;
  Sweep sweep;      // the keys that its rows see: positions, or indices in the tail's list
  const u8* const* pages;  // pages[0] has the sweep's first tile
};

// Threads of a block. Hopper always has room for two tiles of queries (src/cuda/ops/attention.rs),
// so there the steps from one copy to the next are known.
__device__ __forceinline__ int threads() {
#ifdef WGMMA
  return 256;
#else
  return blockDim.x;
#endif
}

// A tile of f16 keys or values that lie together.
template <int DIM>
__device__ __forceinline__ void load_page(__half* tile, const u8* from, int head_dim) {
  constexpr int GROUPS = DIM / 8;
  const int group = threadIdx.x % GROUPS, row = threadIdx.x / GROUPS, step = threads() / GROUPS;
  const int bytes = group * 8 < head_dim ? 16 : 0;
  const u8* at = from + (bytes ? ((size_t)row * head_dim + group * 8) * 2 : 0);
  const u32 to = shared_address(tile);
#pragma unroll 8
  for (int i = 0; i < KEYS; i += step) {
    const u32 in_tile = step % 8 ? place(row + i, group) : place(row, group) + i * 128;
    copy16(to + in_tile, at, bytes);
    at += (size_t)step * head_dim * 2;
  }
  copies_commit();
}

// The item's queries, scaled so that scores are in powers of two, 64 a tile and up to the last
// group of 16 that has any. What comes from L2 comes for several at once.
template <int DIM>
__device__ __forceinline__ void load_queries(__half* queries, const AttentionArgs& a,
                                             const Blocks& d, const Item& item) {
  constexpr int GROUPS = DIM / 8, AHEAD = 4;
  const int used = item.count * d.group, end = (used + 15) / 16 * 16, step = blockDim.x / GROUPS;
  const int group = threadIdx.x % GROUPS;
  const float scale = a.scale * 1.44269504f;
  for (int first = threadIdx.x / GROUPS; first < end; first += AHEAD * step) {
    float4 v[AHEAD][2];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int x = first + i * step;
      v[i][0] = v[i][1] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (x >= used || group * 8 >= a.head_dim) continue;
      const int row = d.order[item.list + x / d.group], head = item.head * d.group + x % d.group;
      const float4* from =
          (const float4*)(a.q + ((size_t)row * a.heads + head) * a.query_stride + group * 8);
      v[i][0] = from[0];
      v[i][1] = from[1];
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int x = first + i * step;
      if (x < end)
        place_query(queries + x / QUERIES * QUERIES * DIM, x % QUERIES, group, v[i][0], v[i][1],
                    scale);
    }
  }
  stores_done();
}

// Runs the block's rows over its tiles, in order. load(i, to) loads keys (of tile i / 2, i even) or
// values into slot i % slots of the ring and commits the copies; the first slots - 1 have been
// asked for already. The lane's rows see keys from[h] to to[h]. Warps without queries (of `used`)
// only load.
template <int DIM, class Load>
__device__ __forceinline__ void sweep_ring(Rows<DIM>& rows, int slots, const __half* queries,
                                           __half* ring, int used, const Sweep& w,
                                           const int (&from)[2], const int (&to)[2],
                                           const Load& load) {
  __shared__ u64 bad;
#ifdef WGMMA
  const bool busy = (int)threadIdx.x / 128 * QUERIES < used;
#else
  const bool busy = (int)threadIdx.x / 32 * 16 < used;
#endif
  rows.clear();
  int slot = 0;  // i % slots
  // Number i, which is there when all have come here. Number i - 1 is done with then: its slot is
  // for what comes last.
  auto next = [&](int i) {
    copies_left(slots - 2);
    __syncthreads();
    load(i + slots - 1, ring + (slot ? slot - 1 : slots - 1) * KEYS * DIM);
    __half* const tile = ring + slot * KEYS * DIM;
    if (++slot == slots) slot = 0;
    return tile;
  };
  for (int i = 0; i < w.end - w.first; i++) {
    const int at = (w.first + i) * KEYS;
    const bool masked = at < w.all_from || at + KEYS > w.all_to;
    const int low[2] = {from[0] - at, from[1] - at}, high[2] = {to[0] - at, to[1] - at};
    __half* const keys = next(2 * i);
    if (masked && threadIdx.x == 0) bad = 0;
    u32 p[4][4];
    if (busy) {
      float s[8][4];
      score<DIM>(s, shared_address(queries), shared_address(keys));
      soften(rows, s, p, masked, low, high);
    }
    __half* const values = next(2 * i + 1);
    if (masked && !w.alike && cleanse_tile<DIM>(values, &bad)) {
#pragma unroll
      for (int h = 0; h < 2; h++)
        if (bad & bits_of(low[h], high[h])) rows.total[h] = __int_as_float(0x7fc00000);
    }
    if (busy) weigh(rows, p, shared_address(values));
  }
}

template <int DIM> __device__ __forceinline__ void attend(const AttentionArgs& a, __half* queries) {
  __shared__ Blocks d;
  __shared__ Tail tail;
  __shared__ Item item;
  __half* const ring = queries + blockDim.x / 2 * DIM;
  const int kv_heads = a.layout.heads, row_bytes = a.layout.row_bytes;
  // The pass was there before the first kernel began.
  survey(d, a, blockDim.x / 2);
  const int items = d.chunk_items + a.pass.rows * kv_heads;

  bool waited = false;
  for (int number = blockIdx.x; number < items; number += gridDim.x) {
    Item next;
    next.tail = number >= d.chunk_items;
    next.chunk = 0;
    if (next.tail) {
      next.list = (number - d.chunk_items) / kv_heads;
      next.count = 1;
      next.head = (number - d.chunk_items) % kv_heads;
    } else {
      const Found found = find_chunk(d, a, number);
      next.head = found.head, next.chunk = found.chunk;
      next.list = found.list, next.count = found.count;
    }
    const int first_row = d.order[next.list];
    const Sequence& sequence = a.pass.sequences[d.sequence[first_row]];
    const int committed = sequence.committed, first_page = sequence.first_page[a.cache];
    next.pages = sequence.pages[a.cache];
    next.tiles = d.tiles[first_row];
    __syncthreads();  // the item before is done with
    if (next.tail) {
      list_tail(tail, d, a, first_row, committed);
      next.sweep = {0, (tail.sources + KEYS - 1) / KEYS, 0, tail.sources, true};
      // Of those, the two from b(p) on are read.
      next.pages += bound(d.position[first_row]) / KEYS - first_page;
      if (!waited) wait_for_inputs();  // some keys are from this pass
      waited = true;
    } else {
      int first = 0x7fffffff, last = 0;
      next.sweep = {0, 0, 0, 0x7fffffff, false};
      const int chunk_from = next.chunk * next.tiles * KEYS,
                chunk_to = chunk_from + next.tiles * KEYS;
      for (int i = 0; i < next.count; i++) {
        const int p = d.position[d.order[next.list + i]];
        const int from = max(lowest(p, a.window), chunk_from), to = min(bound(p), chunk_to);
        next.sweep.all_from = max(next.sweep.all_from, from);
        next.sweep.all_to = min(next.sweep.all_to, to);
        if (from >= to) continue;
        first = min(first, from);
        last = max(last, to);
      }
      if (first >= last) continue;
      next.sweep.first = first / KEYS;
      next.sweep.end = (last + KEYS - 1) / KEYS;
      next.pages += next.sweep.first - first_page;
    }
    if (threadIdx.x == 0) item = next;
    __syncthreads();
    const u32 in_layer = (u32)(a.layer * 2 * kv_heads + item.head) * KEYS * row_bytes;
    const u32 to_values = (u32)kv_heads * KEYS * row_bytes;
    const int tiles = item.sweep.end - item.sweep.first;
    // Whole pages of f16, most of a long text, have a loop of their own: little code, and addresses
    // a tile ahead.
    const bool whole = !item.tail && a.layout.kind == KV_F16;
    const u8 *page = nullptr, *next_page = whole ? item.pages[0] : nullptr;
    auto load_whole = [&](int i, __half* to) {
      const int tile = i >> 1;
      if (tile >= tiles) return copies_commit();
      if (!(i & 1)) {
        page = next_page + in_layer;
        next_page = item.pages[min(tile + 1, tiles - 1)];
      }
      load_page<DIM>(to, i & 1 ? page + to_values : page, a.head_dim);
    };
    auto load_any = [&](int i, __half* to) {
      const int tile = i >> 1, part = i & 1;
      if (tile >= tiles) return copies_commit();
      const u32 in_page = in_layer + (part ? to_values : 0);
      const u8* rows = item.tail ? a.kv + (size_t)(part * kv_heads + item.head) * row_bytes
                                 : item.pages[tile] + in_page;
      load_tile<DIM>(to, a.layout.kind, a.head_dim, a.kv, [&](int row) -> const u8* {
        if (!item.tail) return rows + (size_t)row * row_bytes;
        const int entry = tile * KEYS + row;
        if (entry >= tail.sources) return nullptr;
        const int source = tail.source[entry];
        if (source < 0) return rows + (size_t)(-1 - source) * 2 * kv_heads * row_bytes;
        return item.pages[source / KEYS] + in_page + (size_t)(source % KEYS) * row_bytes;
      });
    };
    for (int i = 0; i < a.slots - 1; i++) {
      __half* const to = ring + i * KEYS * DIM;
      if (whole) load_whole(i, to);
      else load_any(i, to);
    }
    if (!waited) wait_for_inputs();
    waited = true;

    const int group = d.group, used = item.count * group, lane = threadIdx.x & 31,
              first = threadIdx.x / 32 * 16;
    load_queries<DIM>(queries, a, d, item);
    int from[2], to[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int x = first + lane / 4 + 8 * h, length = item.tiles * KEYS;
      from[h] = to[h] = 0;
      if (x >= used) continue;
      const int p = d.position[d.order[item.list + x / group]];
      from[h] = item.tail ? 0 : max(lowest(p, a.window), item.chunk * length);
      to[h] = item.tail ? tail.sources : min(bound(p), (item.chunk + 1) * length);
    }
    Rows<DIM> rows;
    const __half* own = queries + first / QUERIES * QUERIES * DIM;
    if (whole) sweep_ring<DIM>(rows, a.slots, own, ring, used, item.sweep, from, to, load_whole);
    else sweep_ring<DIM>(rows, a.slots, own, ring, used, item.sweep, from, to, load_any);
    rows.sum_totals();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if (from[h] >= to[h]) continue;
      const int x = first + lane / 4 + 8 * h, row = d.order[item.list + x / d.group];
      const int part =
          item.tail ? 0 : 1 + item.chunk - lowest(d.position[row], a.window) / (item.tiles * KEYS);
      const size_t at =
          ((size_t)row * a.heads + item.head * d.group + x % d.group) * (a.parts + 2) + part;
      float* out = a.partial + at * (a.head_dim + 4);
#pragma unroll
      for (int n = 0; n < DIM / 8; n++)
        if (8 * n < a.head_dim)
          *(float2*)(out + 8 * n + 2 * (lane & 3)) =
              make_float2(rows.o[n][2 * h], rows.o[n][2 * h + 1]);
      if ((lane & 3) == 0)
        *(float2*)(out + a.head_dim) = make_float2(rows.highest[h], rows.total[h]);
    }
  }
}

KERNEL(attention_chunks_128, 255, AttentionArgs, 256, 1) {
  extern __shared__ __align__(1024) __half tiles[];
  launch_dependents();
  attend<128>(a, tiles);
}
KERNEL(attention_chunks_256, 255, AttentionArgs, 256, 1) {
  extern __shared__ __align__(1024) __half tiles[];
  launch_dependents();
  attend<256>(a, tiles);
}

// Four groups of threads take every fourth part, each thread four columns.
KERNEL(attention_join, 80, AttentionArgs, 256) {
  constexpr int BATCH = 9;
  __shared__ float highest_of[JOIN_PARTS], total_of[JOIN_PARTS];
  __shared__ float4 sums[4][64];
  launch_dependents();
  const int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x & 31, which = threadIdx.x / 64;
  const int p = a.pass.positions[row], from = lowest(p, a.window), to = bound(p);
  const int length = chunk_tiles(p, a) * KEYS, stride = a.head_dim + 4, col = threadIdx.x % 64 * 4;
  const int parts = from < to ? 2 + (to - 1) / length - from / length : 1;
  const float* in = a.partial + ((size_t)row * a.heads + head) * (a.parts + 2) * stride;
  wait_for_inputs();
  // Everything is asked for before anything is looked at.
  float2 mine = make_float2(0.f, 0.f);
  if ((int)threadIdx.x < parts)
    mine = *(const float2*)(in + (size_t)threadIdx.x * stride + a.head_dim);
  float4 x[BATCH];
  const auto read = [&](int begin) {
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      const int part = 4 * (begin + i) + which;
      if (part < parts && col < a.head_dim)
        x[i] = *(const float4*)(in + (size_t)part * stride + col);
    }
  };
  read(0);
  float gate[8];
  if (a.gated && threadIdx.x * 8 < a.head_dim) {
    const float* from =
        a.q + ((size_t)row * a.heads + head) * a.query_stride + a.head_dim + threadIdx.x * 8;
    *(float4*)gate = *(const float4*)from;
    *(float4*)(gate + 4) = *(const float4*)(from + 4);
  }
  if ((int)threadIdx.x < parts) highest_of[threadIdx.x] = mine.x, total_of[threadIdx.x] = mine.y;
  __syncthreads();
  float highest = -infinite();
  for (int i = lane; i < parts; i += 32) highest = fmaxf(highest, highest_of[i]);
#pragma unroll
  for (int far = 16; far; far >>= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, far));
  if (highest == -infinite()) highest = 0.f;
  float total = 0.f;
  for (int i = lane; i < parts; i += 32)
    total += power_of_two(highest_of[i] - highest) * total_of[i];
#pragma unroll
  for (int far = 16; far; far >>= 1) total += __shfl_xor_sync(~0u, total, far);
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int begin = 0; 4 * begin < parts; begin += BATCH) {
    if (begin) read(begin);
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      const int part = 4 * (begin + i) + which;
      if (part >= parts || col >= a.head_dim) break;
      const float w = power_of_two(highest_of[part] - highest);
      sum.x += w * x[i].x;
      sum.y += w * x[i].y;
      sum.z += w * x[i].z;
      sum.w += w * x[i].w;
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
    if (a.gated) y[i] *= 1.f / (1.f + expf(-gate[i]));
  }
  store8(a.out, row, head * a.head_dim + threadIdx.x * 8, y);
}
