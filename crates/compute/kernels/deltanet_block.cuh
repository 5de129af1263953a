// What a block of deltanet_decode.cu holds in shared memory, which rows it works on at a time, and
// how it asks for few bytes.
#pragma once
#include "convolve.cuh"
#include "deltanet.cuh"
#include "signals.cuh"

constexpr int KEY_STRIDE = MAX_DIM + 4;  // four rows side by side lie in different banks
constexpr int PARTS = 16;                // sums of squares of eight columns each
constexpr int ALONE = WARPS / 2;         // so many rows a block convolves for itself: a warp a head

struct DecodeArgs {
  DeltaNetArgs net;
  const float* inputs;  // [rows][channels]
  const float* weight;  // [TAPS][channels]
  int most_rows;        // that a sequence has, or more
};

// What blocks of a cluster wait for: a group's heads, its products, its sums of squares. Of the
// last there are two, for every other group: a block may send those of a group while another still
// waits for those of the one before.
enum Signals { HEADS, PRODUCTS, SQUARES, SIGNALS = SQUARES + 2 };

// Rows of the sequence are numbered in the order of step_rows: parents come before their children.
struct __align__(16) DecodeShared {
  // Behind the keys of the sequence, of which a group reads 16 rows though it has fewer: what is
  // read beyond lies still.
  float queries[GROUP][KEY_STRIDE];
  // First the keys of the state of each warp and of the tape (see tape_key), then products with the
  // state.
  union {
    float partial[WARPS][VECTORS][SLICE];
    struct {
      float state[WARP_KEYS][SLICE];
      float tape_keys[4][MAX_DIM];
    } loaded[WARPS];
  };
  float next_state[WARPS][WARP_KEYS][SLICE];   // of the second step, in groups with rows of both
  float more_tape_keys[RECENT - 32][MAX_DIM];
  float earlier[RECENT][SLICE];          // deltas on the tape since the first anchor
  float2 weights[GROUP][RECENT];         // products with the rows on lists, then their weights
  float key_weights[GROUP][GROUP];       // [ancestor][row], inside the group
  float query_weights[GROUP][GROUP];     // [row][ancestor]
  float2 sums[GROUP][SLICE];             // what is known of the sum for d, and v; later outputs
  float squares[2][GROUP][PARTS];        // from all blocks of the cluster
  u64 signals[SIGNALS];
  // That rows of the first and the second step start from; null: zero.
  const float* states[2];
  int position;                          // of the first anchor
  u32 ancestors[GROUP];                  // rows inside the group that precede a row, a bit each
  float beta[GROUP], decay[GROUP], own[GROUP];
  float tape_gates[RECENT];
  float gates[TEXT_ROWS];
  u8 rows[TEXT_ROWS];                  // of the pass
  // Of a row of the pass:
  u8 number[TEXT_ROWS];
  u8 counts[TEXT_ROWS];                // rows since its anchor
  // Those of them that are rows of the pass, behind those on the tape.
  u8 recent[TEXT_ROWS][RECENT];
  // Of the convolution, the last one its own; null before the text.
  const float* inputs[TEXT_ROWS][TAPS];
};
static_assert(sizeof(DecodeShared) == 92352, "as launched");

// The key of entry i of the tape. Its 16-byte pieces are turned by i, so that eight entries side by
// side lie in different banks: piece c lies where c ^ (i & 7) would.
__device__ __forceinline__ float* tape_key(DecodeShared& shared, int i) {
  return i < 32 ? shared.loaded[i / 4].tape_keys[i % 4] : shared.more_tape_keys[i - 32];
}

// What a block does with a group.
struct Group {
  int local, count;     // numbers of its rows
  int split;            // rows of it that belong to the first step
  int tape;             // rows on the tape since the first anchor
  // What lies before row n's anchor on the tape, and behind it.
  __device__ __forceinline__ int before(int n) const { return n < split ? 0 : ANCHOR_TOKENS; }
  __device__ __forceinline__ int on_tape(int n) const { return max(0, tape - before(n)); }
};

__device__ __forceinline__ void prefetch_line(const float* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#endif
}
// Four bytes, as copy16.
__device__ __forceinline__ void copy4(float* to, const float* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((u32)__cvta_generic_to_shared(to)),
               "l"(from)
               : "memory");
#else
  *to = *from;
#endif
}
