// What the kernels of decode passes' attention share: how the keys of a row are cut, and how blocks
// find what to work on. See attention.cu.
#pragma once
#include "kv.cuh"

// At most a text's rows and a tile of committed keys and, not causal, all rows of the text.
constexpr int TAIL_KEYS = 2 * TEXT_ROWS + KEYS;
constexpr int JOIN_PARTS = 72;  // parts + 2 at most

// Keys below this are committed before a row at p can be in a pass.
__device__ __forceinline__ int bound(int p) {
  return p < TEXT_ROWS ? 0 : (p - TEXT_ROWS + 1) / KEYS * KEYS;
}
__device__ __forceinline__ int lowest(int p, int window) {
  return window ? max(0, p - window + 1) : 0;
}
// Tiles of a chunk.
__device__ __forceinline__ int chunk_tiles(int p, const AttentionArgs& a) {
  int tiles = bound(p) / KEYS;
  if (a.window) tiles = min(tiles, a.window / KEYS + 1);
  return max(1, (tiles + a.parts - 1) / a.parts);
}

// Rows of a sequence whose chunks have one length: stream 2 s has those of sequence s whose chunks
// are short, 2 s + 1 those whose chunks are a tile longer.
struct Stream {
  u8 first, rows;             // in Directory::order
  u8 parts, rows_of_part;     // items that its rows are dealt to
  short first_chunk, chunks;  // the first that any of its rows sees, and how many
};

// A pass of up to ROWS rows, sorted: what the blocks find their items by.
template <int ROWS> struct Directory {
  int position[ROWS];
  short tiles[ROWS];  // of a chunk
  u8 sequence[ROWS];
  u8 order[ROWS];     // rows by stream
  Stream streams[2 * ROWS];
  int items[2 * ROWS + 1];  // of all streams before
  int group, chunk_items;
};
static_assert(TEXT_ROWS < 256 && DECODE_ROWS <= 256, "rows are bytes");

// By all threads of a block. An item takes up to `queries` pairs of a row and a query head.
template <int ROWS>
__device__ __forceinline__ void survey(Directory<ROWS>& d, const AttentionArgs& a, int queries) {
  const int rows = a.pass.rows, streams = 2 * a.pass.sequence_count, kv_heads = a.layout.heads;
  const int group = a.heads / kv_heads, rows_per_item = queries / group;
  if (threadIdx.x == 0) d.group = group;
  for (int i = threadIdx.x; i < rows; i += blockDim.x) {
    d.sequence[i] = a.pass.sequence_of[i];
    d.position[i] = a.pass.positions[i];
    d.tiles[i] = chunk_tiles(d.position[i], a);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows; i += blockDim.x) {
    int before = 0;
    const int sequence = d.sequence[i], tiles = d.tiles[i];
#pragma unroll 8
    for (int r = 0; r < rows; r++) {
      const bool same = d.sequence[r] == sequence;
      before += d.sequence[r] < sequence ||
                (same && (d.tiles[r] < tiles || (d.tiles[r] == tiles && r < i)));
    }
    d.order[before] = i;
  }
  for (int stream = threadIdx.x; stream < streams; stream += blockDim.x) {
    int before = 0, least = 0x7fffffff, first = 0, count = 0, from = 0x7fffffff, to = 0, tiles = 1;
#pragma unroll 8
    for (int r = 0; r < rows; r++)
      if (d.sequence[r] == stream / 2) least = min(least, d.tiles[r]);
#pragma unroll 8
    for (int r = 0; r < rows; r++) {
      const bool longer = d.tiles[r] > least;
      before += d.sequence[r] < stream / 2;
      if (d.sequence[r] != stream / 2) continue;
      first += stream % 2 && !longer;
      if (longer != (stream % 2 != 0)) continue;
      count++;
      tiles = d.tiles[r];
      from = min(from, lowest(d.position[r], a.window));
      to = max(to, bound(d.position[r]));
    }
    const int length = tiles * KEYS, parts = (count + rows_per_item - 1) / rows_per_item;
    const int first_chunk = from < to ? from / length : 0,
              chunks = from < to ? (to - 1) / length + 1 - first_chunk : 0;
    d.streams[stream] = {(u8)(before + first), (u8)count, (u8)parts,
                         (u8)(count ? (count + parts - 1) / parts : 0),
                         (short)first_chunk, (short)chunks};
    d.items[stream + 1] = chunks * kv_heads * parts;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int before = 0;
    for (int first = 0; first < streams; first += 32) {
      const int s = first + (int)threadIdx.x, own = s < streams ? d.items[s + 1] : 0;
      int sum = own;
#pragma unroll
      for (int far = 1; far < 32; far *= 2) {
        const int other = __shfl_up_sync(~0u, sum, far);
        if ((int)threadIdx.x >= far) sum += other;
      }
      if (s < streams) d.items[s + 1] = before + sum;
      before += __shfl_sync(~0u, sum, 31);
    }
    if (threadIdx.x == 0) d.items[0] = 0, d.chunk_items = before;
  }
  __syncthreads();
}

// The rows of a chunk that an item has, and whose.
struct Found {
  int list, count, head, chunk;
};
// Item `number` of the chunks, by all lanes of a warp.
template <int ROWS>
__device__ __forceinline__ Found find_chunk(const Directory<ROWS>& d, const AttentionArgs& a,
                                            int number) {
  const int lane = threadIdx.x & 31, streams = 2 * a.pass.sequence_count,
            kv_heads = a.layout.heads;
  int s = -1;  // the last stream that begins at or before it
  for (int first = 0; first < streams; first += 32) {
    const bool before = first + lane < streams && d.items[first + lane] <= number;
    const int count = __popc(__ballot_sync(~0u, before));
    s += count;
    if (count < 32) break;
  }
  const Stream stream = d.streams[s];
  const int left = number - d.items[s], part = left % stream.parts, rest = left / stream.parts;
  Found f;
  f.head = rest % kv_heads;
  f.chunk = stream.first_chunk + stream.chunks - 1 - rest / kv_heads;
  f.list = stream.first + part * stream.rows_of_part;
  f.count = min((int)stream.rows_of_part, stream.rows - part * stream.rows_of_part);
  return f;
}
