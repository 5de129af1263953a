// Commit: rows of a pass become part of sequences, those of several texts in one launch each. A
// text's `path` is [count, position, rows...] in device memory: the rows of the path in order of
// position, and the number of tokens committed before. All of these move bytes; only
// commit_anchors computes. Launch it before commit_tape: it reads the tape as it was.
//
// commit_kv       encoded keys and values to pages
//                 [layers][key, value][heads][PAGE_TOKENS][row_bytes]; pages[0] has `position`.
//                 Grid (most rows of a text, layers, texts), 128 threads.
// commit_tape     keys, deltas and gates of the newest 64 rows and the convolution's inputs of the
//                 newest `kernel`. Grid (min(most rows, 64), layers, texts), 256 threads.
// commit_anchors  the states after positions at[0..anchors], folded from `base` (the state after
//                 position / 32 * 32 tokens, or null). Grid (texts with anchors, which come first,
//                 times dim / 32, value_heads, layers), 256 threads, dynamic shared memory 20624
//                 bytes (sizeof FoldShared rounded up to 16). Floor: a state read and written, 302
//                 MB at 27B: 80 us.
// keep_rows       rows of a buffer to where texts keep them. Grid (rows of all texts,
//                 ceil(cols / 4096)), 256 threads.
//
// A grid may be larger than what a path needs; where it is smaller, blocks take more rows.
#include "fold.cuh"

struct KvText {
  u8* const* pages;
  const int* path;
};

struct CommitKvArgs {
  const u8* const* rows;  // [layers]: [rows][key, value][heads][row_bytes]
  const KvText* texts;
  KvLayout layout;
  int pad;
};

// The buffers of a pass that a commit of recurrent state reads, an address a layer.
struct RecurrentRows {
  const float* const* inputs;  // [rows][channels]
  const float* const* keys;    // [rows][key_heads][dim]
  const float* const* deltas;  // [rows][value_heads][dim]
  const float* const* gates;   // [rows][value_heads]
};

struct RecurrentText {
  const float* base;
  float* tape;
  const int* path;
  float* out[2];
  int at[2];
  int anchors, pad;
};

struct CommitRecurrentArgs {
  RecurrentRows rows;
  const RecurrentText* texts;
  RecurrentLayout layout;
};

struct KeptRow {
  float* to;
  u64 row;
};

struct KeepRowsArgs {
  const float* from;
  const KeptRow* rows;
  int cols;
};

static_assert(sizeof(FoldShared) <= 20624, "as launched");

constexpr int KEPT_COLUMNS = 4096;

extern __shared__ __align__(16) u8 shared_bytes[];

// Copies a token's heads in units of T, which divides row_bytes.
template <class T>
__device__ __forceinline__ void copy_token(const u8* from, u8* page, int heads, int row_bytes) {
  const int units = row_bytes / (int)sizeof(T);
  for (int i = threadIdx.x; i < heads * units; i += blockDim.x) {
    const int head = i / units, unit = i % units;
    ((T*)(page + (size_t)head * PAGE_TOKENS * row_bytes))[unit] = ((const T*)from)[i];
  }
}

KERNEL(commit_kv, 40, CommitKvArgs, 128) {
  launch_dependents();
  wait_for_inputs();
  const KvLayout& l = a.layout;
  const KvText text = a.texts[blockIdx.z];
  const int count = text.path[0], position = text.path[1], layer = blockIdx.y, heads = 2 * l.heads;
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    const u8* from = a.rows[layer] + (size_t)text.path[2 + i] * heads * l.row_bytes;
    u8* page = text.pages[(position + i) / PAGE_TOKENS - position / PAGE_TOKENS];
    page += ((size_t)layer * heads * PAGE_TOKENS + (position + i) % PAGE_TOKENS) * l.row_bytes;
    if (l.row_bytes % 16 == 0) {
      copy_token<uint4>(from, page, heads, l.row_bytes);
    } else if (l.row_bytes % 8 == 0) {
      copy_token<uint2>(from, page, heads, l.row_bytes);
    } else {
      copy_token<unsigned short>(from, page, heads, l.row_bytes);
    }
  }
}

// Copies numbers, a multiple of four of them.
__device__ __forceinline__ void copy_numbers(const float* from, float* to, int count) {
#pragma unroll 4
  for (int i = 4 * threadIdx.x; i < count; i += 4 * blockDim.x)
    *(float4*)(to + i) = *(const float4*)(from + i);
}

KERNEL(commit_tape, 48, CommitRecurrentArgs, 256) {
  launch_dependents();
  wait_for_inputs();
  const RecurrentLayout& l = a.layout;
  const int* path = a.texts[blockIdx.z].path;
  const int count = path[0], position = path[1], layer = blockIdx.y;
  float* tape = a.texts[blockIdx.z].tape + (size_t)layer * l.tape_layer;
  const int keys = l.key_heads * l.dim, deltas = l.value_heads * l.dim;
  for (int i = max(0, count - TAPE_TOKENS) + blockIdx.x; i < count; i += gridDim.x) {
    const int row = path[2 + i], slot = (position + i) % TAPE_TOKENS;
    copy_numbers(a.rows.keys[layer] + (size_t)row * keys, tape + slot * keys, keys);
    copy_numbers(a.rows.deltas[layer] + (size_t)row * deltas, tape + l.tape_deltas + slot * deltas,
                 deltas);
    for (int h = threadIdx.x; h < l.value_heads; h += blockDim.x)
      tape[l.tape_gates + slot * l.value_heads + h] =
          a.rows.gates[layer][(size_t)row * l.value_heads + h];
    if (i >= count - l.kernel) {
      float* to = tape + l.tape_inputs + (position + i) % l.kernel * l.channels;
      copy_numbers(a.rows.inputs[layer] + (size_t)row * l.channels, to, l.channels);
    }
  }
}

// The 32 rows from `begin` on: those before the path lie on the tape.
struct CommittedRows {
  const CommitRecurrentArgs& a;
  const float* tape;
  const int* path;
  int begin, head, column;
  __device__ __forceinline__ const float* at(const float* const* rows, int tape_at, int width,
                                             int i) const {
    const int layer = blockIdx.z, position = path[1];
    if (begin + i < position)
      return tape + (size_t)layer * a.layout.tape_layer + tape_at +
             (begin + i) % TAPE_TOKENS * width;
    return rows[layer] + (size_t)path[2 + begin + i - position] * width;
  }
  __device__ __forceinline__ const float* key(int i) const {
    return at(a.rows.keys, 0, a.layout.key_heads * a.layout.dim, i) +
           head % a.layout.key_heads * a.layout.dim;
  }
  __device__ __forceinline__ const float* delta(int i) const {
    const int width = a.layout.value_heads * a.layout.dim;
    return at(a.rows.deltas, a.layout.tape_deltas, width, i) + head * a.layout.dim + column;
  }
  __device__ __forceinline__ float gate(int i) const {
    return at(a.rows.gates, a.layout.tape_gates, a.layout.value_heads, i)[head];
  }
};

KERNEL(commit_anchors, 96, CommitRecurrentArgs, FOLD_THREADS) {
  launch_dependents();
  wait_for_inputs();
  FoldShared& shared = *(FoldShared*)shared_bytes;
  const RecurrentLayout& l = a.layout;
  const int slices = l.dim / SLICE, head = blockIdx.y, column = blockIdx.x % slices * SLICE;
  const RecurrentText& text = a.texts[blockIdx.x / slices];
  const int* path = text.path;
  const size_t at = ((size_t)blockIdx.z * l.value_heads + head) * l.dim * l.dim + column;
  int newest = 0;
  for (int i = 0; i < text.anchors; i++) newest = max(newest, text.at[i]);
  float4 tile[4];
  load_tile(tile, StateView{text.base ? text.base + at : nullptr, l.dim}, l.dim);
  const int position = path[1], end = min(newest, position + path[0]);
  for (int begin = position / ANCHOR_TOKENS * ANCHOR_TOKENS; begin + ANCHOR_TOKENS <= end;
       begin += ANCHOR_TOKENS) {
    fold(tile, CommittedRows{a, text.tape, path, begin, head, column}, l.dim, shared);
    for (int i = 0; i < text.anchors; i++)
      if (text.at[i] == begin + ANCHOR_TOKENS) store_tile(tile, text.out[i] + at, l.dim, l.dim);
  }
}

KERNEL(keep_rows, 40, KeepRowsArgs, 256) {
  launch_dependents();
  wait_for_inputs();
  const KeptRow kept = a.rows[blockIdx.x];
  const int first = blockIdx.y * KEPT_COLUMNS;
  copy_numbers(a.from + kept.row * a.cols + first, kept.to + first,
               min(KEPT_COLUMNS, a.cols - first));
}
