// Attention of decode passes with many small items: several texts, or more tails than a card has
// multiprocessors. The parts, the sums and their order are those of attention.cu, whose join adds
// them, so a row's bits are the same by either kernel.
//
// There a block works on an item, and where an item is a tile of 64 keys for one row it mostly
// waits: 12 us an item, one after the other. Here a warp has an item of up to 16 pairs of a row and
// a query head, all by itself, and those that share a multiprocessor work while one waits. Keys and
// values come 16 at a time into a small ring of the warp's own; scores of 64 keys become weights
// together, as there. Fewer warps with longer rings are slower.
//
// Keys and values of a row come by one copy, which from sm_90 on is an instruction: with copies of
// 16 bytes asking for them took as long as all the rest.
//
// Floor: every committed key and value once for every 16 pairs of a text, mostly from L2 after the
// first time. What limits: the latency of an item.
//
// Launch: attention_texts_DIM: grid multiprocessors, block 32 WARPS, dynamic shared
// WARPS * (SLOTS + 1) * 16 * (2 DIM + 16). Up to 16 query heads a key head.
#include "attention.cuh"
#include "ring.cuh"

#if __CUDA_ARCH__ >= 900

constexpr int PART = 16;   // keys that come together, and queries of an item
constexpr int PARTS = KEYS / PART;

// A part is 16 rows of DIM halves, 16 bytes more from one to the next, so that eight rows read at
// one column lie in different banks. What lies beyond head_dim is zero.
template <int DIM> struct Layout {
  static constexpr int ROW = 2 * DIM + 16, BYTES = PART * ROW;
};

typedef Directory<DECODE_ROWS> Warps;

// What a warp works on.
struct Work {
  bool tail;
  bool early;       // all keys of the first tile are committed
  int list, count;  // rows order[list] to order[list + count]
  int head, chunk, tiles;  // tiles: of a chunk
  int first_tile, end_tile, all_from, all_to;
  const u8* const* pages;  // pages[0] has the first tile
  const u8* page[2];       // the first two; a tail has no more
};

// The list of a tail's keys, as attention.cu has it: committed ones by their distance from b(p),
// rows of the pass as -1 - row. By a warp; returns how many.
__device__ __forceinline__ int list_tail(short* source, const Warps& d, const AttentionArgs& a,
                                         int row, int committed) {
  const int lane = threadIdx.x & 31, p = d.position[row], b = bound(p),
            start = max(lowest(p, a.window), b);
  int count;
  if (a.causal) {
    count = p - start + 1;
    for (int i = lane; i < count; i += 32) {
      const int at = start + i;
      source[i] = at < committed ? at - b : -1 - a.pass.path[row * TEXT_ROWS + at - committed];
    }
  } else {
    count = max(0, committed - start);
    for (int i = lane; i < count; i += 32) source[i] = start + i - b;
    for (int i = 0; i < a.pass.rows; i += 32) {
      const int r = i + lane;
      const bool seen = r < a.pass.rows && d.sequence[r] == d.sequence[row] &&
                        (a.window == 0 || abs(d.position[r] - p) < a.window);
      const u32 all = __ballot_sync(~0u, seen);
      if (seen) source[count + __popc(all & ((1u << lane) - 1))] = -1 - r;
      count += __popc(all);
    }
  }
  __syncwarp();
  return count;
}

// The item's queries, scaled so that scores are in powers of two; those that do not exist are zero.
template <int DIM>
__device__ __forceinline__ void load_queries(u8* to, const AttentionArgs& a, const Warps& d,
                                             const Work& w) {
  constexpr int GROUPS = DIM / 8;
  const int lane = threadIdx.x & 31, used = w.count * d.group;
  const float scale = a.scale * 1.44269504f;
#pragma unroll 4
  for (int i = lane; i < PART * GROUPS; i += 32) {
    const int x = i / GROUPS, group = i % GROUPS;
    float4 v[2] = {make_float4(0.f, 0.f, 0.f, 0.f), make_float4(0.f, 0.f, 0.f, 0.f)};
    if (x < used && group * 8 < a.head_dim) {
      const int row = d.order[w.list + x / d.group], head = w.head * d.group + x % d.group;
      const float4* from =
          (const float4*)(a.q + ((size_t)row * a.heads + head) * a.query_stride + group * 8);
      v[0] = from[0], v[1] = from[1];
    }
    *(uint4*)(to + x * Layout<DIM>::ROW + group * 16) =
        make_uint4(pack(v[0].x * scale, v[0].y * scale), pack(v[0].z * scale, v[0].w * scale),
                   pack(v[1].x * scale, v[1].y * scale), pack(v[1].z * scale, v[1].w * scale));
  }
}

// Scores of the queries with 16 keys: n = 2 part and 2 part + 1 of those of a tile.
template <int DIM>
__device__ __forceinline__ void score_part(float (&low)[4], float (&high)[4], u32 queries,
                                           u32 keys) {
  const int lane = threadIdx.x & 31, key = (lane & 7) + (lane >> 4) * 8;
  const u32 q = queries + (lane & 15) * Layout<DIM>::ROW + (lane >> 4) * 16,
            k_row = keys + key * Layout<DIM>::ROW + (lane >> 3 & 1) * 16;
#pragma unroll
  for (int e = 0; e < 4; e++) low[e] = high[e] = 0.f;
#pragma unroll
  for (int k = 0; k < DIM / 16; k++) {
    u32 a[4], b[4];
    load_matrices(a, q + k * 32);
    load_matrices(b, k_row + k * 32);
    multiply(low, a, b[0], b[1]);
    multiply(high, a, b[2], b[3]);
  }
}

// o += p values, of 16 keys.
template <int DIM>
__device__ __forceinline__ void weigh_part(Rows<DIM>& rows, const u32 (&p)[4], u32 values) {
  const int lane = threadIdx.x & 31;
  const u32 row = values + (lane & 15) * Layout<DIM>::ROW + (lane >> 4) * 16;
#pragma unroll
  for (int n = 0; n < DIM / 16; n++) {
    u32 b[4];
    load_transposed(b, row + n * 32);
    multiply(rows.o[2 * n], p, b[0], b[1]);
    multiply(rows.o[2 * n + 1], p, b[2], b[3]);
  }
}

// As cleanse_tile of kv.cuh: which of 16 values are not finite, as bits; those become zeros.
template <int DIM> __device__ __forceinline__ u32 cleanse_part(u8* values) {
  u32 bad = 0;
#pragma unroll 1
  for (int i = threadIdx.x & 31; i < PART * DIM / 8; i += 32) {
    uint4& at = *(uint4*)(values + i / (DIM / 8) * Layout<DIM>::ROW + i % (DIM / 8) * 16);
    uint4 x = at;
    const bool a = cleanse(x.x), b = cleanse(x.y), c = cleanse(x.z), d = cleanse(x.w);
    if (!(a || b || c || d)) continue;
    at = x;
    bad |= 1u << (i / (DIM / 8));
  }
  if (bad) stores_done();
  bad = __reduce_or_sync(~0u, bad);
  __syncwarp();
  return bad;
}

// Item `number`: tails come first, since they are longest.
__device__ __forceinline__ bool work_of(Work& w, short* source, const Warps& d,
                                        const AttentionArgs& a, int number) {
  const int kv_heads = a.layout.heads, tails = a.pass.rows * kv_heads;
  w.tail = number < tails;
  w.chunk = 0;
  if (w.tail) {
    w.list = number / kv_heads, w.count = 1, w.head = number % kv_heads;
  } else {
    const Found f = find_chunk(d, a, number - tails);
    w.list = f.list, w.count = f.count, w.head = f.head, w.chunk = f.chunk;
  }
  const int row = d.order[w.list];
  const Sequence& sequence = a.pass.sequences[d.sequence[row]];
  const int committed = sequence.committed, first_page = sequence.first_page[a.cache];
  w.pages = sequence.pages[a.cache];
  w.tiles = d.tiles[row];
  w.early = true;
  if (w.tail) {
    const int start = max(lowest(d.position[row], a.window), bound(d.position[row]));
    w.early = committed - start >= KEYS;
    w.all_from = 0, w.all_to = list_tail(source, d, a, row, committed);
    w.first_tile = 0, w.end_tile = (w.all_to + KEYS - 1) / KEYS;
    w.pages += bound(d.position[row]) / KEYS - first_page;
    const int last = (committed - 1 - bound(d.position[row])) / KEYS;
    w.page[0] = last >= 0 && committed > 0 ? w.pages[0] : nullptr;
    w.page[1] = last >= 1 ? w.pages[1] : nullptr;
    return true;
  }
  int first = 0x7fffffff, last = 0;
  w.all_from = 0, w.all_to = 0x7fffffff;
  const int chunk_from = w.chunk * w.tiles * KEYS, chunk_to = chunk_from + w.tiles * KEYS;
  for (int i = 0; i < w.count; i++) {
    const int p = d.position[d.order[w.list + i]];
    const int from = max(lowest(p, a.window), chunk_from), to = min(bound(p), chunk_to);
    w.all_from = max(w.all_from, from);
    w.all_to = min(w.all_to, to);
    if (from >= to) continue;
    first = min(first, from);
    last = max(last, to);
  }
  w.first_tile = first / KEYS;
  w.end_tile = (last + KEYS - 1) / KEYS;
  w.pages += w.first_tile - first_page;
  if (first >= last) return false;
  w.page[0] = w.pages[0];
  w.page[1] = w.end_tile - w.first_tile > 1 ? w.pages[1] : nullptr;
  return true;
}

// Rows of other types than f16 are brought and decoded at once: lane i has row i of `count`. It is
// for passes of more rows than blocks take; nothing is asked for ahead.
template <int DIM>
__device__ __forceinline__ void decode_rows(u8* to, const AttentionArgs& a, const u8* from,
                                            int count, u64* full) {
  const int lane = threadIdx.x & 31;
  const int kind = a.layout.kind, bytes = kind == KV_Q8_0 ? 34 : 18;
  u8* const part = (u8*)__shfl_sync(~0u, (u64)to, 0);
#pragma unroll 1
  for (int row = 0; row < PART; row++) {
    const u8* const stored = (const u8*)__shfl_sync(~0u, (u64)from, row);
    if (lane * 32 >= a.head_dim) continue;
    uint4* const at = (uint4*)(part + row * Layout<DIM>::ROW + lane * 64);
    if (row < count) decode_block(kind, stored + lane * bytes, [&](int g, uint4 y) { at[g] = y; });
    else at[0] = at[1] = at[2] = at[3] = make_uint4(0, 0, 0, 0);
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(full);
}

// WARPS of a block, one block a multiprocessor, and SLOTS: parts that a ring holds.
template <int DIM, int WARPS, int SLOTS>
__device__ __forceinline__ void attend(const AttentionArgs& a, u8* memory) {
  static_assert(SLOTS <= 2 * PARTS + 1, "what is asked for early is of the first tile");
  constexpr int ROW = Layout<DIM>::ROW, BYTES = Layout<DIM>::BYTES;
  __shared__ Warps d;
  __shared__ short sources_of[WARPS][TAIL_KEYS];
  __shared__ Work works[WARPS];
  __shared__ u64 barriers[WARPS][SLOTS];
  survey(d, a, PART);  // the pass was there before the first kernel began
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, kv_heads = a.layout.heads,
            row_bytes = a.layout.row_bytes;
  u8* const queries = memory + warp * (SLOTS + 1) * BYTES;
  u8* const ring = queries + BYTES;
  u64* const full = barriers[warp];
  if (lane < SLOTS) barrier_init(full + lane, 1);
  // Copies bring head_dim columns of a row.
  for (int i = lane; a.head_dim < DIM && i < SLOTS * PART; i += 32)
    for (int at = 2 * a.head_dim; at < 2 * DIM; at += 16)
      *(uint4*)(ring + i * ROW + at) = make_uint4(0, 0, 0, 0);
  barrier_init_fence();
  stores_done();
  __syncwarp();
  u32 asked = 0, taken = 0;  // parts
  short* const source = sources_of[warp];
  const int items = a.pass.rows * kv_heads + d.chunk_items;
  bool waited = false;
#pragma unroll 1
  for (int number = warp * gridDim.x + blockIdx.x; number < items; number += WARPS * gridDim.x) {
    // In shared memory: registers are short.
    Work& w = works[warp];
    const u8 *page, *next_page;
    {
      Work found;
      const bool any = work_of(found, source, d, a, number);
      if (lane == 0) w = found;
      page = found.page[0], next_page = found.page[1];
      __syncwarp();
      if (!any) continue;
    }
    const u32 in_layer = (u32)(a.layer * 2 * kv_heads + w.head) * KEYS * row_bytes,
              to_values = (u32)kv_heads * KEYS * row_bytes;
    const int tiles = w.end_tile - w.first_tile;
    // Sixteen keys (i / 4 even) or values of tile i / 8: a row a lane.
    auto load = [&](int i) {
      const int tile = i / (2 * PARTS), part = i % PARTS, of_values = i / PARTS & 1;
      if (tile >= tiles) return;
      // Of whole pages the addresses are known a tile ahead.
      if (!w.tail && tile > 0 && i % (2 * PARTS) == 0) {
        page = next_page;
        if (tile + 1 < tiles) next_page = w.pages[tile + 1];
      }
      const u32 slot = asked++ % SLOTS, in_page = in_layer + (of_values ? to_values : 0);
      const int entry = part * PART + lane, key = tile * KEYS + entry;
      u8* const to = ring + slot * BYTES + lane * ROW;
      const u8* from = page + in_page + (size_t)entry * row_bytes;
      int count = PART;
      if (w.tail) {
        count = min(max(w.all_to - (key - lane), 0), PART);
        if (lane < count) {
          const int s = source[key];
          const u8* const rows = a.kv + (size_t)(of_values * kv_heads + w.head) * row_bytes;
          from = s < 0 ? rows + (size_t)(-1 - s) * 2 * kv_heads * row_bytes
                       : (s < KEYS ? page : next_page) + in_page + (size_t)(s % KEYS) * row_bytes;
        }
      }
      if (a.layout.kind != KV_F16) return decode_rows<DIM>(to, a, from, count, full + slot);
      if (lane == 0) barrier_expect(full + slot, count * row_bytes);
      __syncwarp();
      if (lane < count) {
        copy_bulk(to, from, row_bytes, full + slot);
      } else if (lane < PART) {
        for (int at = 0; at < row_bytes; at += 16) *(uint4*)(to + at) = make_uint4(0, 0, 0, 0);
        stores_done();
      }
    };
    if (!waited && !w.early) wait_for_inputs();  // some keys are from this pass
    for (int i = 0; i < SLOTS - 1; i++) load(i);
    if (!waited && w.early) wait_for_inputs();
    waited = true;

    const int used = w.count * d.group, length = w.tiles * KEYS;
    load_queries<DIM>(queries, a, d, w);
    int from[2], to[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int x = lane / 4 + 8 * h;
      from[h] = to[h] = 0;
      if (x >= used) continue;
      const int p = d.position[d.order[w.list + x / d.group]];
      from[h] = w.tail ? 0 : max(lowest(p, a.window), w.chunk * length);
      to[h] = w.tail ? w.all_to : min(bound(p), (w.chunk + 1) * length);
    }
    Rows<DIM> rows;
    rows.clear();
    // Part i, when it is there; what was there before it is done with then.
    auto next = [&](int i) {
      const u32 slot = taken % SLOTS;
      barrier_wait(full + slot, taken++ / SLOTS & 1);
      __syncwarp();
      load(i + SLOTS - 1);
      return ring + slot * BYTES;
    };
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
      const int at = (w.first_tile + tile) * KEYS, first = tile * 2 * PARTS;
      const bool masked = at < w.all_from || at + KEYS > w.all_to;
      const int low[2] = {from[0] - at, from[1] - at}, high[2] = {to[0] - at, to[1] - at};
      float s[8][4];
      u32 p[4][4];
#pragma unroll
      for (int i = 0; i < PARTS; i++)
        score_part<DIM>(s[2 * i], s[2 * i + 1], shared_address(queries),
                        shared_address(next(first + i)));
      soften(rows, s, p, masked, low, high);
#pragma unroll
      for (int i = 0; i < PARTS; i++) {
        u8* const values = next(first + PARTS + i);
        if (masked && !w.tail) {
          const u64 bad = (u64)cleanse_part<DIM>(values) << (i * PART);
#pragma unroll
          for (int h = 0; h < 2; h++)
            if (bad & bits_of(low[h], high[h])) rows.total[h] = __int_as_float(0x7fc00000);
        }
        weigh_part(rows, p[i], shared_address(values));
      }
    }
    rows.sum_totals();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if (from[h] >= to[h]) continue;
      const int x = lane / 4 + 8 * h, row = d.order[w.list + x / d.group];
      const int part =
          w.tail ? 0 : 1 + w.chunk - lowest(d.position[row], a.window) / length;
      const size_t place =
          ((size_t)row * a.heads + w.head * d.group + x % d.group) * (a.parts + 2) + part;
      float* out = a.partial + place * (a.head_dim + 4);
#pragma unroll
      for (int n = 0; n < DIM / 8; n++)
        if (8 * n < a.head_dim)
          *(float2*)(out + 8 * n + 2 * (lane & 3)) =
              make_float2(rows.o[n][2 * h], rows.o[n][2 * h + 1]);
      if ((lane & 3) == 0)
        *(float2*)(out + a.head_dim) = make_float2(rows.highest[h], rows.total[h]);
    }
    __syncwarp();  // queries and lists are done with
  }
}

#define ATTENTION_KERNEL(NAME, REGISTERS, DIM, WARPS, SLOTS) \
  KERNEL(NAME, REGISTERS, AttentionArgs, 32 * WARPS, 1) {    \
    extern __shared__ __align__(1024) u8 parts[];            \
    launch_dependents();                                     \
    attend<DIM, WARPS, SLOTS>(a, parts);                     \
  }

ATTENTION_KERNEL(attention_texts_128, 168, 128, 12, 3)
ATTENTION_KERNEL(attention_texts_256, 255, 256, 8, 2)
#endif
