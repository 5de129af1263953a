// Causal depthwise convolution of four taps along each row's path, SiLU, and the L2 norm of query
// and key heads: inputs [rows][channels] to q and keys [rows][key_heads][dim] and v
// [rows][value_heads][dim]. The weight is [4][channels], oldest tap first.
//
// Grid: (heads / 8 rounded up, blocks of rows), heads = 2 key_heads + value_heads; block y takes
// rows_per = rows / gridDim.y (rounded up) rows from y rows_per on, so that the weight is read once
// for them. Block: 288 threads: eight warps with a head each, and one that brings the states and
// the tape that deltanet reads to the L2. No shared memory.
//
// Floor: channels x 4 bytes x (2 rows + taps on the tape + 4 of weight): 1.5 MB at 16 rows of the
// 27B, 0.4 us; limited by the latency of three dependent loads (taps, tape, inputs).
#include "convolve.cuh"

constexpr int HEADS = 8;  // of a block

__device__ __forceinline__ void prefetch(const float* from, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// Pieces of 4 KB of one sequence's states and tape, shared by the warps that serve it.
__device__ __forceinline__ void prefetch_state(const ConvolveArgs& a) {
  constexpr int PIECE = 1024;  // floats
  const RecurrentLayout& l = a.layout;
  const int count = a.pass.sequence_count, number = blockIdx.y % count;
  const int share = blockIdx.y / count * gridDim.x + blockIdx.x;
  const int shares = (gridDim.y - number + count - 1) / count * gridDim.x;
  const int begin = share * 32 + (threadIdx.x & 31), stride = shares * 32;
  const Sequence& sequence = a.pass.sequences[number];
  const int steps = sequence.steps, first = sequence.first_step;
  if (steps == 0 || sequence.committed == 0) return;
  const int layer_len = l.value_heads * l.dim * l.dim;  // a multiple of PIECE
  for (int s = 0; s < steps && s < 2; s++) {
    const int source = a.pass.steps[first + s].source;
    const float* state = source == 1 ? sequence.older : source == 2 ? sequence.anchor : nullptr;
    if (!state) continue;
    state += (size_t)a.layer * layer_len;
    for (int piece = begin; piece < layer_len / PIECE; piece += stride)
      prefetch(state + piece * PIECE, 4 * PIECE);
  }
  const float* tape = sequence.tape + (size_t)a.layer * l.tape_layer;
  const int keys = l.key_heads * l.dim, deltas = l.value_heads * l.dim;
  const int key_pieces = (keys + PIECE - 1) / PIECE,
            pieces = key_pieces + (deltas + PIECE - 1) / PIECE;
  const int from = a.pass.steps[first].position, positions = sequence.committed - from;
  for (int i = begin; i < positions * pieces; i += stride) {
    const int slot = (from + i / pieces) % TAPE_TOKENS, piece = i % pieces;
    if (piece < key_pieces) {
      prefetch(tape + slot * keys + piece * PIECE, 4 * min(PIECE, keys - piece * PIECE));
    } else {
      const int at = (piece - key_pieces) * PIECE;
      prefetch(tape + l.tape_deltas + slot * deltas + at, 4 * min(PIECE, deltas - at));
    }
  }
}

KERNEL(convolve, 64, ConvolveArgs, 32 * (HEADS + 1)) {
  launch_dependents();
  const RecurrentLayout& l = a.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (warp == HEADS) {
    wait_for_inputs();
    prefetch_state(a);
    return;
  }
  const int head = blockIdx.x * HEADS + warp;
  if (head >= 2 * l.key_heads + l.value_heads) return;
  const bool active = 4 * lane < l.dim;
  const int channel = head * l.dim + 4 * lane;
  float4 weight[TAPS];
#pragma unroll
  for (int j = 0; j < TAPS; j++) {
    weight[j] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (active) weight[j] = *(const float4*)(a.weight + (size_t)j * l.channels + channel);
  }
  const int kind = head / l.key_heads;  // 0 query, 1 key, else value
  wait_for_inputs();
  const int rows_per = (a.pass.rows + gridDim.y - 1) / gridDim.y;
  const int end = min(a.pass.rows, (int)(blockIdx.y + 1) * rows_per);
  for (int row = blockIdx.y * rows_per; row < end; row++) {
    const float* tape = a.pass.sequences[a.pass.sequence_of[row]].tape;
    float4 y = make_float4(0.f, 0.f, 0.f, 0.f);
    if (active) {
      float4 x[TAPS];
#pragma unroll
      for (int j = 0; j < TAPS; j++) {
        const int tap = j < TAPS - 1 ? a.pass.taps[row * 3 + j] : row;
        x[j] = make_float4(0.f, 0.f, 0.f, 0.f);
        if (tap >= 0) {
          x[j] = *(const float4*)(a.inputs + (size_t)tap * l.channels + channel);
        } else if (tap < -1) {
          const int slot = (-2 - tap) % l.kernel;
          x[j] = *(const float4*)(tape + (size_t)a.layer * l.tape_layer + l.tape_inputs +
                                  slot * l.channels + channel);
        }
      }
      y = silu4(convolve_taps(x, weight));
    }
    float* out = a.v + (size_t)row * l.value_heads * l.dim + channel - 2 * l.key_heads * l.dim;
    if (kind < 2) {
      y = unit_head(y, kind == 0, l.dim);
      out = (kind == 0 ? a.q : a.keys) + (size_t)row * l.key_heads * l.dim + channel -
            kind * l.key_heads * l.dim;
    }
    if (active) *(float4*)out = y;
  }
}
