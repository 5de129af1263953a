// Gated DeltaNet in prompts (deltanet.cuh has the whole): as deltanet, for passes whose sequences
// are chains. Row first_row + i has position committed + i, so that lists need not be read, and the
// anchors follow each other, so that state, deltas and gates since the anchor stay in shared
// memory.
//
// Grid (dim / 32, value_heads, sequences), 256 threads, dynamic shared memory 88448 bytes (sizeof
// PromptShared). After deltanet_products; deltanet_gate comes behind.
#include "deltanet.cuh"

struct PromptShared {
  union {
    FoldShared fold;
    float partial[WARPS][VECTORS][SLICE];
  };
  float state[WARPS][WARP_KEYS][SLICE];
  float x[WARPS][VECTORS][X_STRIDE];     // keys and queries of the group
  float earlier[RECENT][SLICE];
  float4 weights[WARPS][RECENT];
  float key_weights[GROUP][GROUP], query_weights[GROUP][GROUP];
  float2 sums[GROUP][SLICE];
  float gates[RECENT];                   // since the anchor
  float beta[GROUP], decay[GROUP], own[GROUP];
  __device__ __forceinline__ u32 ancestors_of(int n) const { return (1u << n) - 1; }
};
static_assert(sizeof(PromptShared) == 88448, "as launched");

// What is loaded ahead of a group beside its keys and queries: of the warp's rows w and w + 8.
struct Ahead {
  float to_key[2][2], to_query[2][2];  // entries lane and lane + 32 of a row's list
  float beta[2], value[2];
  float gate;                          // of the group's row of the lane's number
};

// The 32 positions from `begin` on.
struct PromptRows {
  Earlier earlier;
  PromptShared& shared;
  int begin, committed, first_row;
  __device__ __forceinline__ const float* key(int i) const {
    const int position = begin + i;
    return earlier.key(position < committed ? -2 - position : first_row + position - committed);
  }
  __device__ __forceinline__ const float* delta(int i) const { return shared.earlier[i]; }
  __device__ __forceinline__ float gate(int i) const { return shared.gates[i]; }
};

// Issues the loads of the group of `count` rows from `row` on.
__device__ __forceinline__ void fetch_ahead(Ahead& ahead, const DeltaNetArgs& a, const Block& b,
                                            PromptShared& shared, int row, int count) {
  const RecurrentLayout& l = a.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (warp * WARP_KEYS < l.dim)
    copy_vectors(shared.x[warp], a, b, [&](int n) { return n < count ? row + n : -1; });
  ahead.gate = lane < count ? a.gates[(size_t)(row + lane) * l.value_heads + b.head] : 0.f;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int own = row + warp + k * WARPS;
    ahead.beta[k] = ahead.value[k] = 0.f;
    if (warp + k * WARPS >= count) continue;
    const float* products =
        a.products + ((size_t)own * l.key_heads + b.key_head) * 2 * TAPE_TOKENS + lane;
#pragma unroll
    for (int part = 0; part < 2; part++) {
      // What lies behind the list's end is not used.
      ahead.to_key[k][part] = products[32 * part];
      ahead.to_query[k][part] = products[TAPE_TOKENS + 32 * part];
    }
    ahead.beta[k] = a.beta[(size_t)own * l.value_heads + b.head];
    ahead.value[k] = a.v[((size_t)own * l.value_heads + b.head) * l.dim + b.column + lane];
  }
}

// Weighs the rows on the list of row n of the group, of which `outside` come before the group.
__device__ __forceinline__ void weigh_ahead(const Ahead& ahead, PromptShared& shared, int n,
                                            int half, int outside) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, listed = outside + n;
  float gates[2], sums[2];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    const float inside = __shfl_sync(ALL_LANES, ahead.gate, (i - outside) & 31);
    gates[k] = i < outside ? shared.gates[i] : i <= listed ? inside : 0.f;
  }
  sum_list(sums, gates);
  const float total = entry(sums, listed), own = entry(ahead.to_query[half], listed);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    const float2 weight = decayed(ahead.to_key[half][k], ahead.to_query[half][k], sums[k], total);
    if (i < outside) {
      ((float2*)&shared.weights[warp][i])[half] = weight;
    } else if (i < listed) {
      shared.key_weights[n][i - outside] = weight.x;
      shared.query_weights[n][i - outside] = weight.y;
    }
  }
  shared.sums[n][lane].y = ahead.value[half];
  if (lane == 0) {
    shared.beta[n] = sigmoid(ahead.beta[half]);
    shared.decay[n] = expf(total);
    shared.own[n] = own;
  }
}

KERNEL(deltanet_prompt, 128, DeltaNetArgs, FOLD_THREADS, 2) {
  launch_dependents();
  const RecurrentLayout& l = a.layout;
  PromptShared& shared = *(PromptShared*)shared_bytes;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  wait_for_inputs();
  const Sequence& sequence = a.pass.sequences[blockIdx.z];
  Block b = this_block(a);
  const int committed = sequence.committed, first_row = sequence.first_row,
            end = committed + sequence.rows;
  if (committed == end) return;
  const int newest = committed / ANCHOR_TOKENS * ANCHOR_TOKENS;
  // The anchor of a position lies 16 to 47 tokens before it, or at the beginning.
  int anchor = committed < GROUP ? 0 : (committed - GROUP) / ANCHOR_TOKENS * ANCHOR_TOKENS;
  bool has_state = false;
  Ahead ahead;
  fetch_ahead(ahead, a, b, shared, first_row, min(GROUP, min(anchor + RECENT, end) - committed));
  for (int i = threadIdx.x / 8; i < committed - anchor; i += FOLD_THREADS / 8)
    copy16(&shared.earlier[i][tile_column()], Earlier{a, b}.delta(-2 - anchor - i) + tile_column());
  if ((int)threadIdx.x < committed - anchor)
    shared.gates[threadIdx.x] = Earlier{a, b}.gate(-2 - anchor - (int)threadIdx.x);

  for (int begin = committed; begin < end; anchor += ANCHOR_TOKENS) {
    // The state at the anchor. Every warp reads and writes its own keys of it.
    if (anchor > newest) {
      float4 tile[4];
      load_tile(tile, StateView{has_state ? shared.state[0][0] : nullptr, SLICE}, l.dim);
      fold(tile, PromptRows{Earlier{a, b}, shared, anchor - ANCHOR_TOKENS, committed, first_row},
           l.dim, shared.fold);
      store_tile(tile, shared.state[0][0], SLICE, l.dim);
      has_state = true;
    } else {
      const StateView from = state_of(a, b, anchor == 0 ? 0 : anchor == newest ? 2 : 1);
      has_state = from.at != nullptr;
      __syncwarp();
      if (has_state && warp * WARP_KEYS < l.dim) copy_state(shared.state[warp], from);
      __syncthreads();
    }
    if (begin > committed) {
      // Deltas and gates from the new anchor on.
      if (threadIdx.x < GROUP * 8) {
        const int i = threadIdx.x / 8;
        *(float4*)&shared.earlier[i][tile_column()] =
            *(const float4*)&shared.earlier[i + ANCHOR_TOKENS][tile_column()];
      }
      if (threadIdx.x < GROUP)
        shared.gates[threadIdx.x] = shared.gates[threadIdx.x + ANCHOR_TOKENS];
    }
    __syncthreads();

    const int stop = min(anchor + RECENT, end);
    for (; begin < stop; begin += GROUP) {
      b.renew();
      const int count = min(GROUP, stop - begin), outside = begin - anchor,
                row = first_row + begin - committed;
      if (warp < count) weigh_ahead(ahead, shared, warp, 0, outside);
      if (warp + WARPS < count) weigh_ahead(ahead, shared, warp + WARPS, 1, outside);
      const float gate = ahead.gate;
      wait_for_copies();
      __syncwarp();
      if (has_state && warp * WARP_KEYS < l.dim) {
        // Eight rows at a time: sixteen would read the state once less and not fit the registers.
        for (int begin = 0; begin < 2 * count; begin += GROUP)
          through_state<4, 2>(shared.partial[warp] + begin, shared.state[warp],
                              shared.x[warp][begin + lane / 8], 4 * X_STRIDE);
      }
      __syncthreads();
      if (warp == WARPS - 1 && lane < count) shared.gates[outside + lane] = gate;
      const int next = begin + count;
      if (next < end) {
        const int next_stop =
            next < anchor + RECENT ? stop : min(anchor + ANCHOR_TOKENS + RECENT, end);
        fetch_ahead(ahead, a, b, shared, row + count, min(GROUP, next_stop - next));
      }

      // What the state and the rows outside the group give, a column a lane: [row][key, query].
      float sums[2][2] = {};
      if (has_state) add_state(sums, shared, count, l.dim);
      if (warp < count) add_earlier(sums, shared, outside);
      shared.sums[warp][lane].x = sums[0][0];
      shared.sums[warp + WARPS][lane].x = sums[1][0];
      __syncthreads();

      if (warp == 0) solve(shared.earlier[outside], shared, count);
      __syncthreads();

#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int n = warp + k * WARPS;
        if (n >= count) continue;
        const size_t at = ((size_t)(row + n) * l.value_heads + b.head) * l.dim + b.column + lane;
        a.deltas[at] = shared.earlier[outside + n][lane];
        a.out.numbers[at] = output(shared, shared.earlier[outside], n, sums[k][1]);
      }
      __syncwarp();  // the weights that every lane has read are the next group's now
    }
    // `begin` may have gone past the last row of the step.
    begin = stop;
  }
}
