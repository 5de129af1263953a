// deltanet_decode.cu, a group of rows from what is in memory to products: of its keys and queries
// with each other, with the tape's keys and with the states its rows start from.
#pragma once
#include "deltanet_block.cuh"

// Where an input of the convolution lies, or nothing before the text.
__device__ __forceinline__ const float* input_of(const DecodeArgs& args, const float* tape,
                                                 int tap) {
  const RecurrentLayout& l = args.net.layout;
  if (tap >= 0) return args.inputs + (size_t)tap * l.channels;
  return tap < -1 ? tape + l.tape_inputs + (u32)(-2 - tap) % TAPS * l.channels : nullptr;
}

__device__ __forceinline__ float2 add2(const float2& x, const float2& y) {
  return make_float2(__fadd_rn(x.x, y.x), __fadd_rn(x.y, y.y));
}

// Asks for what was committed: states, and of the tape deltas, gates and, for the block's share of
// the products, keys.
__device__ __forceinline__ void load_committed(DecodeShared& shared, const RecurrentLayout& l,
                                               const Block& b, const Group& g) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, position = shared.position;
  if (warp * WARP_KEYS < l.dim) {
    const float* first = shared.states[g.split == 0];
    if (first) copy_state(shared.loaded[warp].state, {first, l.dim});
    if (g.split > 0 && g.split < g.count)
      copy_state(shared.next_state[warp], {shared.states[1], l.dim});
  }
  const auto slot = [&](int i) { return (u32)(position + i) % TAPE_TOKENS; };
  const float* const deltas = b.tape + l.tape_deltas + b.head * l.dim + b.column + tile_column();
#pragma unroll 1
  for (int i = threadIdx.x / 8; i < g.tape; i += FOLD_THREADS / 8)
    copy16(&shared.earlier[i][tile_column()], deltas + slot(i) * l.value_heads * l.dim);
  const float* const keys = b.tape + b.key_head * l.dim + 4 * lane;
  if ((int)blockIdx.x < g.count && 4 * lane < l.dim) {
#pragma unroll 2
    for (int i = warp; i < g.tape; i += WARPS)
      copy16(tape_key(shared, i) + 4 * (lane ^ (i & 7)), keys + slot(i) * l.key_heads * l.dim);
  }
  const int i = threadIdx.x;
  if (i < g.tape)
    copy4(&shared.tape_gates[i], b.tape + l.tape_gates + slot(i) * l.value_heads + b.head);
}

// Queries (even warps) or keys (odd ones), given their weights: of few rows all, else the block's
// share to all blocks of the cluster.
__device__ __forceinline__ void convolve_heads(const DecodeArgs& args, DecodeShared& shared,
                                               float* keys, const Block& b, const Group& g,
                                               const float4 (&weight)[TAPS]) {
  const RecurrentLayout& l = args.net.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, kind = warp & 1, slices = gridDim.x;
  const bool active = 4 * lane < l.dim;
  const int channel = (kind * l.key_heads + b.key_head) * l.dim + 4 * lane;
  const int shares = g.count > ALONE ? slices : 1;
  const float4 zero = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int n = (shares > 1 ? blockIdx.x : 0) + warp / 2 * shares; n < g.count;
       n += WARPS / 2 * shares) {
    const int row = shared.rows[g.local + n];
    float4 x[TAPS];
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
      const float* from = shared.inputs[row][j];
      x[j] = from && active ? *(const float4*)(from + channel) : zero;
    }
    float4 y = convolve_taps(x, weight);
    y = unit_head(active ? silu4(y) : zero, kind == 0, l.dim);
    float* to = (kind == 0 ? shared.queries[n] : keys + (g.local + n) * KEY_STRIDE) + 4 * lane;
    if (shares == 1) {
      *(float4*)to = y;
    } else {  // with the zeros behind a head of fewer columns
#pragma unroll
      for (int rank = 0; rank < MAX_DIM / SLICE; rank++)
        if (rank < slices) send4(to, rank, y, &shared.signals[HEADS]);
    }
    // One of the blocks that share the key keeps it for the commit.
    if (kind == 1 && active && b.head < l.key_heads && n % slices == (int)blockIdx.x) {
      const size_t at = ((size_t)row * l.key_heads + b.key_head) * l.dim;
      *(float4*)((float*)args.net.keys + at + 4 * lane) = y;
    }
  }
}

// Products of the block's share of the group's rows with the keys on their lists, to all blocks of
// the cluster. A lane has an entry of a row's list, and sums by piece of 16 bytes modulo eight.
__device__ __forceinline__ void share_products(const DeltaNetArgs& a, DecodeShared& shared,
                                               const float* keys, const Group& g) {
  const int slices = gridDim.x;
#pragma unroll 1
  for (int pair = threadIdx.x; ; pair += FOLD_THREADS) {
    const int i = pair % RECENT, n = blockIdx.x + pair / RECENT * slices;
    if (n >= g.count) break;
    const int row = shared.rows[g.local + n], listed = shared.counts[row], at = i + g.before(n);
    if (i > listed) continue;
    const float* key = keys + (g.local + n) * KEY_STRIDE;
    const float* query = shared.queries[n];
    const float* from = key;
    int turned = 0;
    if (at < g.tape) {
      from = tape_key(shared, at);
      turned = at & 7;
    } else if (i < listed) {
      from = keys + shared.number[shared.recent[row][i]] * KEY_STRIDE;
    }
    float2 dots[8] = {};
    // Four pieces at a time: eight would not fit the registers.
#pragma unroll
    for (int half = 0; half < 8; half += 4)
#pragma unroll 1
      for (int c = 0; c < a.layout.dim; c += 32)
#pragma unroll
        for (int j = half; j < half + 4; j++)
          dot4(dots[j], *(const float4*)(from + c + 4 * (j ^ turned)),
               *(const float4*)(key + c + 4 * j), *(const float4*)(query + c + 4 * j));
    // Other forms add the zeros behind a head of fewer columns: no zero is below zero then.
    if (a.layout.dim < MAX_DIM) {
#pragma unroll
      for (int j = 0; j < 8; j++) dots[j] = add2(dots[j], make_float2(0.f, 0.f));
    }
    const float2 even = add2(add2(dots[0], dots[4]), add2(dots[2], dots[6]));
    const float2 odd = add2(add2(dots[1], dots[5]), add2(dots[3], dots[7]));
    const float2 product = add2(even, odd);
#pragma unroll
    for (int rank = 0; rank < MAX_DIM / SLICE; rank++)
      if (rank < slices) send2(&shared.weights[n][i], rank, product, &shared.signals[PRODUCTS]);
  }
}

// Products of the group's keys and queries with the states their rows start from, which lie where
// the results go and behind. A state that is not there gives what nobody reads. All of the block
// come here: before the first result is stored they are done with the tape's keys, which lie there
// too.
__device__ __forceinline__ void through_states(DecodeShared& shared, const float* keys,
                                               const Group& g, int dim) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float (*const partial)[SLICE] = shared.partial[warp];
  const float (*const state)[SLICE] = shared.loaded[warp].state;
  // Lanes 8 g on have vectors g, g + 4, ...: keys if g is even, else queries, of every other row.
  const float* first = lane / 8 & 1 ? shared.queries[0] : keys + g.local * KEY_STRIDE;
  const float* x = first + lane / 16 * KEY_STRIDE + warp * WARP_KEYS;
  const auto all_done = [] { __syncthreads(); };
  if (warp * WARP_KEYS >= dim) {
    all_done();
  } else if (g.split > 0 && g.split < g.count) {
    all_done();
    // Eight rows at a time, the last ones first, and those of the first step before others: they go
    // where its state is.
#pragma unroll 1
    for (int i = g.count > GROUP / 2 ? 3 : 1; i >= 0; i--) {
      const int begin = i / 2 * GROUP / 2;
      const bool next = i % 2 == 0;
      through_state<4, 1>(partial + 2 * begin, next ? shared.next_state[warp] : state,
                          x + begin * KEY_STRIDE, 2 * KEY_STRIDE, WarpDone(),
                          [&](int vector) { return (begin + vector / 2 >= g.split) == next; });
    }
  } else if (g.count > GROUP / 2) {
    // Unrolled it would not fit the registers.
    through_state<8, 1>(partial, state, x, 2 * KEY_STRIDE, all_done);
  } else if (g.count > 2) {
    through_state<4, 2>(partial, state, x, 2 * KEY_STRIDE, all_done);
  } else {
    through_state<1, 4>(partial, state, x, 2 * KEY_STRIDE, all_done);
  }
}
