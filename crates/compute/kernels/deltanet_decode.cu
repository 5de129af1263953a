// Gated DeltaNet in one launch (deltanet.cuh has the whole): convolution, products, deltas, outputs, norm and gate of
// passes of up to DECODE_ROWS rows that fold no states.
//
// Grid (dim / 32, value_heads, sequences), 256 threads, clusters of dim / 32: the slices of a head. Dynamic shared
// memory 656 rows of the pass + 92288: keys [rows][KEY_STRIDE] and deltas [rows][SLICE] of the sequence's rows, then
// DecodeShared; keys are read beyond the last row, so something must follow. Every block takes the convolution of its
// key head's query and key for itself; the blocks of a cluster share the products of keys, row by row, and each other's
// sums of squares.
// Numbers and orders are those of the other forms.
//
// Without folded states a sequence has at most two steps: rows that start from an anchor, and rows that start from the
// next one, 32 tokens on. A group may have rows of both; the tape is numbered from the first anchor on.
//
// Floor: states, 0.7 us a layer of the 27B. Limited by latency: the loads, some ten barriers, and the rows of a group,
// which need each other's deltas.
// budget: deltanet_decode 128
#include "convolve.cuh"
#include "deltanet.cuh"

constexpr int KEY_STRIDE = MAX_DIM + 4;  // four rows side by side lie in different banks
constexpr int PARTS = 16;                // sums of squares of eight columns each

struct DecodeArgs {
  DeltaNetArgs net;
  const float* inputs;  // [rows][channels]
  const float* weight;  // [TAPS][channels]
};
static_assert(sizeof(DecodeArgs) == 312, "as in src/cuda/ops/deltanet.rs");

// Rows of the sequence are numbered in the order of step_rows: parents come before their children.
struct DecodeShared {
  // Behind the keys of the pass, of which a group reads 16 rows though it has fewer: what is read beyond lies still.
  float queries[GROUP][KEY_STRIDE];
  // First each warp's keys of the state and entries 4 w to 4 w + 3 of the tape's keys, then products with the state.
  union {
    float partial[WARPS][VECTORS][SLICE];
    struct {
      float state[WARP_KEYS][SLICE];
      float tape_keys[4][MAX_DIM];
    } loaded[WARPS];
  };
  float next_state[WARPS][WARP_KEYS][SLICE];   // of the second step, in groups with rows of both
  float more_tape_keys[RECENT - 32][MAX_DIM];  // from entry 32 on
  float earlier[RECENT][SLICE];          // deltas on the tape since the first anchor
  float4 weights[WARPS][RECENT];         // products with the rows on the lists of rows w and w + 8, then their weights
  float key_weights[GROUP][GROUP], query_weights[GROUP][GROUP];
  float2 sums[GROUP][SLICE];             // later outputs
  float gate[GROUP][SLICE];              // silu(z)
  float squares[GROUP][PARTS];           // from all blocks of the cluster
  u32 ancestors[GROUP];
  float beta[GROUP], decay[GROUP], own[GROUP];
  float tape_gates[RECENT];
  float gates[DECODE_ROWS];
  u8 rows[DECODE_ROWS];                  // of the pass
  // Of a row of the pass:
  u8 number[DECODE_ROWS];
  u8 counts[DECODE_ROWS];                // rows since its anchor
  u8 recent[DECODE_ROWS][RECENT];        // those of them that are rows of the pass, behind those on the tape
  int taps[DECODE_ROWS][TAPS];           // the last one is the row itself
  __device__ __forceinline__ u32 ancestors_of(int n) const { return ancestors[n]; }
};
static_assert(sizeof(DecodeShared) == 92288, "as launched");

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

// Without clusters these serve a single slice.
// clusters begin
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
// Writes to that place in the shared memory of a block of the cluster.
__device__ __forceinline__ void send(float* to, int rank, float value) {
#if __CUDA_ARCH__ >= 900
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"((u32)__cvta_generic_to_shared(to)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#else
  *to = value;
#endif
}
// clusters end

// Where an input of the convolution lies, or nothing before the text.
__device__ __forceinline__ const float* input_of(const DecodeArgs& args, const float* tape, int tap) {
  const RecurrentLayout& l = args.net.layout;
  if (tap >= 0) return args.inputs + (size_t)tap * l.channels;
  return tap < -1 ? tape + l.tape_inputs + (-2 - tap) % l.kernel * l.channels : nullptr;
}

// Queries (even warps) or keys (odd ones) of the group's rows, into shared memory.
__device__ __forceinline__ void convolve_heads(const DecodeArgs& args, DecodeShared& shared, float* keys,
                                               const Block& b, int local, int count) {
  const RecurrentLayout& l = args.net.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, kind = warp & 1;
  const bool active = 4 * lane < l.dim;
  const int channel = (kind * l.key_heads + b.key_head) * l.dim + 4 * lane;
  const float4 zero = make_float4(0.f, 0.f, 0.f, 0.f);
  float4 weight[TAPS];
#pragma unroll
  for (int j = 0; j < TAPS; j++)
    weight[j] = active ? *(const float4*)(args.weight + (size_t)j * l.channels + channel) : zero;
  for (int begin = warp / 2; begin < count; begin += WARPS) {
    float4 x[2][TAPS];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int n = begin + k * WARPS / 2;
#pragma unroll
      for (int j = 0; j < TAPS; j++) {
        x[k][j] = zero;
        if (n < count && active) {
          const float* from = input_of(args, b.tape, shared.taps[shared.rows[local + n]][j]);
          if (from) x[k][j] = *(const float4*)(from + channel);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int n = begin + k * WARPS / 2;
      if (n >= count) break;
      float4 y = convolve_taps(x[k], weight);
      y = unit_head(active ? silu4(y) : zero, kind == 0, l.dim);
      *(float4*)((kind == 0 ? shared.queries[n] : keys + (local + n) * KEY_STRIDE) + 4 * lane) = y;
      // One of the blocks that share the key keeps it for the commit.
      if (kind == 1 && active && b.head < l.key_heads && n % gridDim.x == blockIdx.x) {
        const size_t at = ((size_t)shared.rows[local + n] * l.key_heads + b.key_head) * l.dim;
        *(float4*)((float*)args.net.keys + at + 4 * lane) = y;
      }
    }
  }
}

// Products of the block's share of the group's rows with the keys on their lists, to all blocks of the cluster. Eight
// lanes share a key; a warp has entries 4 w to 4 w + 3 of the lists, and those 32 further on.
__device__ __forceinline__ void share_products(const DeltaNetArgs& a, DecodeShared& shared, const float* keys,
                                               const Group& g) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, part = lane & 7, slices = gridDim.x;
  for (int n = blockIdx.x; n < g.count; n += slices) {
    const int row = shared.rows[g.local + n], listed = shared.counts[row];
    if (4 * warp > listed) continue;
    const float* own = keys + (g.local + n) * KEY_STRIDE + 4 * part;
    float4 key[MAX_DIM / 32], query[MAX_DIM / 32];
#pragma unroll
    for (int c = 0; c < MAX_DIM / 32; c++) {
      key[c] = *(const float4*)(own + 32 * c);
      query[c] = *(const float4*)&shared.queries[n][4 * part + 32 * c];
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int i = 32 * k + 4 * warp + lane / 8, at = i + g.before(n);
      if (32 * k + 4 * warp > listed) break;
      const float* from = own;
      if (at < g.tape) {
        from = (at < 32 ? shared.loaded[warp].tape_keys[lane / 8] : shared.more_tape_keys[at - 32]) + 4 * part;
      } else if (i < listed) {
        from = keys + shared.number[shared.recent[row][i]] * KEY_STRIDE + 4 * part;
      }
      float2 dot = make_float2(0.f, 0.f);
#pragma unroll
      for (int c = 0; c < MAX_DIM / 32; c++) {
        float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
        if (32 * c < a.layout.dim) x = *(const float4*)(from + 32 * c);
        dot4(dot, x, key[c], query[c]);
      }
      // Lanes 0 to 3 of the eight add up the product with the key, the others that with the query.
      const bool second = part >= 4;
      const float other = __shfl_xor_sync(ALL_LANES, second ? dot.x : dot.y, 4);
      float sum = __fadd_rn(second ? dot.y : dot.x, other);
      sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, 2));
      sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, 1));
      if (i <= listed && (part & 3) < slices)
        send((float*)&shared.weights[n % WARPS][i] + n / WARPS * 2 + second, part & 3, sum);
    }
  }
}

// Products of the group's keys and queries with the states their rows start from, which lie where the results go and
// behind. A state that is not there gives what nobody reads.
__device__ __forceinline__ void through_states(DecodeShared& shared, const float* keys, const Group& g) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float (*const partial)[SLICE] = shared.partial[warp];
  const float (*const state)[SLICE] = shared.loaded[warp].state;
  // Lanes 8 g on have vectors g, g + 4, ...: keys if g is even, else queries, of every other row.
  const float* first = lane / 8 & 1 ? shared.queries[0] : keys + g.local * KEY_STRIDE;
  const float* x = first + lane / 16 * KEY_STRIDE + warp * WARP_KEYS;
  if (g.split > 0 && g.split < g.count) {
    // Eight rows at a time, the last ones first, and those of the first step before others: they go where its state is.
#pragma unroll 1
    for (int i = g.count > GROUP / 2 ? 3 : 1; i >= 0; i--) {
      const int begin = i / 2 * GROUP / 2;
      const bool next = i % 2 == 0;
      through_state<1, 1>(partial + 2 * begin, next ? shared.next_state[warp] : state, x + begin * KEY_STRIDE,
                          2 * KEY_STRIDE, [&](int vector) { return (begin + vector / 2 >= g.split) == next; });
    }
  } else if (g.count > GROUP / 2) {
    through_state<2, 1>(partial, state, x, 2 * KEY_STRIDE);  // unrolled it would not fit the registers
  } else {
    through_state<1, 4>(partial, state, x, 2 * KEY_STRIDE);
  }
}

// Turns the products of row n of the group into weights. Gives the number of entries of its list outside the group.
__device__ __forceinline__ int weigh_decode(DecodeShared& shared, const Group& g, int n) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, local = g.local;
  const int row = shared.rows[local + n], listed = shared.counts[row], on_tape = g.on_tape(n);
  float2* const products = (float2*)shared.weights[warp] + n / WARPS;
  float gates[2], sums[2], to_key[2], to_query[2];
  int number[2];  // of the entry's row; -1 on the tape
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    gates[k] = to_key[k] = to_query[k] = 0.f;
    number[k] = -1;
    if (i <= listed) {
      if (i >= on_tape) number[k] = i < listed ? shared.number[shared.recent[row][i]] : local + n;
      gates[k] = i < on_tape ? shared.tape_gates[i + g.before(n)] : shared.gates[number[k]];
      to_key[k] = products[2 * i].x;
      to_query[k] = products[2 * i].y;
    }
  }
  sum_list(sums, gates);
  const float total = entry(sums, listed), own = entry(to_query, listed);
  u32 ancestors = 0;
  int outside = 0;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    const bool before = i < listed && number[k] < local;
    const float2 weight = decayed(to_key[k], to_query[k], sums[k], total);
    if (before) products[2 * i] = weight;
    if (i < listed && !before) {
      shared.key_weights[n][number[k] - local] = weight.x;
      shared.query_weights[n][number[k] - local] = weight.y;
      ancestors |= 1u << (number[k] - local);
    }
    outside += __popc(__ballot_sync(ALL_LANES, before));
  }
  ancestors = __reduce_or_sync(ALL_LANES, ancestors);
  if (lane == 0) {
    shared.ancestors[n] = ancestors;
    shared.decay[n] = expf(total);
    shared.own[n] = own;
  }
  return outside;
}

extern "C" __global__ void __launch_bounds__(FOLD_THREADS, 2) deltanet_decode(
    const __grid_constant__ DecodeArgs args) {
  launch_dependents();
  cluster_arrive();  // waited for before the first write to another block
  const DeltaNetArgs& a = args.net;
  const RecurrentLayout& l = a.layout;
  float* const keys = (float*)shared_bytes;
  float* const deltas = keys + a.pass.rows * KEY_STRIDE;
  DecodeShared& shared = *(DecodeShared*)(deltas + a.pass.rows * SLICE);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const Sequence& sequence = a.pass.sequences[blockIdx.z];
  Block b = this_block(a);
  // A sequence that is alone has everything from the beginning on: then no load waits for another.
  const bool alone = a.pass.sequence_count == 1;
  const Step& step = a.pass.steps[alone ? 0 : sequence.first_step];
  const int rows = alone ? a.pass.rows : sequence.rows;
  const int first_row = alone || rows == 0 ? 0 : step.first_row;

  // The pass was there before the first kernel began, so were weights; states and tape are only brought nearer.
  for (int i = threadIdx.x; i < rows; i += FOLD_THREADS) {
    const int row = a.pass.step_rows[first_row + i];
    shared.rows[i] = row;
    shared.number[row] = i;
  }
  for (int row = threadIdx.x; row < a.pass.rows; row += FOLD_THREADS) {
    shared.counts[row] = a.pass.recent_count[row];
#pragma unroll
    for (int j = 0; j < TAPS; j++) shared.taps[row][j] = j < TAPS - 1 ? a.pass.taps[row * 3 + j] : row;
  }
#pragma unroll 2
  for (int row = warp; row < a.pass.rows; row += WARPS)
#pragma unroll
    for (int j = lane; j < RECENT; j += 32) shared.recent[row][j] = a.pass.recent[row * TAPE_TOKENS + j];
  const float norm = a.norm[b.column + lane];
  shared.squares[threadIdx.x / PARTS][threadIdx.x % PARTS] = 0.f;
  if (threadIdx.x < 12 * TAPS) {
    const int kind = threadIdx.x / (4 * TAPS), piece = threadIdx.x % 4 * SLICE;
    const int channel = kind < 2 ? (kind * l.key_heads + b.key_head) * l.dim : (2 * l.key_heads + b.head) * l.dim;
    if (piece < l.dim) prefetch_line(args.weight + (size_t)(threadIdx.x / 4 % TAPS) * l.channels + channel + piece);
  }
  Group g;
  const int position = rows ? step.position : 0, split = rows && sequence.steps > 1 ? step.rows : rows;
  g.tape = rows ? max(0, sequence.committed - position) : 0;
  const int source = rows ? step.source : 0;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const StateView state = state_of(a, b, k == 0 ? source : split < rows ? 2 : 0);
    if (state.at && threadIdx.x < l.dim) prefetch_line(state.at + (size_t)threadIdx.x * state.stride);
  }
  if ((int)threadIdx.x / 4 < g.tape) {
    const Earlier earlier{a, b};
    const int tap = -2 - position - (int)threadIdx.x / 4, piece = threadIdx.x & 3;
    if (piece * SLICE < l.dim) prefetch_line(earlier.key(tap) + piece * SLICE);
    if (piece == 0) prefetch_line(earlier.delta(tap));
  }
  cluster_wait();
  wait_for_inputs();

  __syncthreads();
  for (g.local = 0; g.local < rows; g.local += GROUP) {
    const int local = g.local, count = g.count = min(GROUP, rows - local);
    g.split = min(max(split - local, 0), count);
    const bool multiplies = warp * WARP_KEYS < l.dim;
    b.renew();
    const Earlier earlier{a, b};

    // Loads first: states and deltas into shared memory, keys of the tape for the block's share of the products.
    const StateView state = state_of(a, b, g.split > 0 ? source : 2);
    const bool has_state = state.at != nullptr;
    if (multiplies && has_state) copy_state(shared.loaded[warp].state, state);
    if (multiplies && g.split > 0 && g.split < count) copy_state(shared.next_state[warp], state_of(a, b, 2));
    for (int i = threadIdx.x / 8; i < g.tape; i += FOLD_THREADS / 8)
      copy16(&shared.earlier[i][tile_column()], earlier.delta(-2 - position - i) + tile_column());
#pragma unroll
    for (int k = 0; k < RECENT; k += 32) {
      const int i = k + 4 * warp + lane / 8;
      float* to = k ? shared.more_tape_keys[(i - 32) % 16] : shared.loaded[warp].tape_keys[lane / 8];
      if (i < g.tape && (int)blockIdx.x < count)
        for (int c = 4 * (lane & 7); c < l.dim; c += 32) copy16(to + c, earlier.key(-2 - position - i) + c);
    }
    if ((int)threadIdx.x < g.tape) shared.tape_gates[threadIdx.x] = earlier.gate(-2 - position - threadIdx.x);
    const int gated = (int)threadIdx.x - 64;
    if (gated >= 0 && gated < count) {
      const int at = shared.rows[local + gated] * l.value_heads + b.head;
      const float gate = gate_of(a, shared.rows[local + gated], b.head);
      shared.gates[local + gated] = gate;
      shared.beta[gated] = sigmoid(a.beta[at]);
      if (blockIdx.x == 0) a.gates[at] = gate;
    }
    // The warp's own rows of the group, a column a lane.
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int n = warp + k * WARPS;
      if (n >= count) continue;
      const float z = a.z[(shared.rows[local + n] * l.value_heads + b.head) * l.dim + b.column + lane];
      const int channel = (2 * l.key_heads + b.head) * l.dim + b.column + lane;
      float x[TAPS], w[TAPS], y = 0.f;
#pragma unroll
      for (int j = 0; j < TAPS; j++) {
        const float* from = input_of(args, b.tape, shared.taps[shared.rows[local + n]][j]);
        x[j] = from ? from[channel] : 0.f;
        w[j] = args.weight[(size_t)j * l.channels + channel];
      }
#pragma unroll
      for (int j = 0; j < TAPS; j++) y = __fmaf_rn(x[j], w[j], y);
      shared.sums[n][lane].y = silu(y);
      shared.gate[n][lane] = z * sigmoid(z);
    }
    convolve_heads(args, shared, keys, b, local, count);
    wait_for_copies();
    __syncthreads();

    share_products(a, shared, keys, g);
    cluster_arrive();
    __syncwarp();
    if (multiplies) through_states(shared, keys, g);
    cluster_wait();
    int outside[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < 2; k++)
      if (warp + k * WARPS < count) outside[k] = weigh_decode(shared, g, warp + k * WARPS);
    __syncthreads();

    // What the state and the rows outside the group give, a column a lane: [row][key, query].
    float sums[2][2] = {};
    // Only the first anchor may be before the text, where the state is zero.
    if (has_state || g.split < count) add_state(sums, shared, count, l.dim, has_state ? 0 : g.split);
    const bool together = g.before(warp) == g.before(warp + WARPS) || warp + WARPS >= count;
    if (warp < count && together) add_earlier(sums, shared, g.on_tape(warp), g.before(warp));
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int n = warp + k * WARPS;
      const float2* weights = (const float2*)shared.weights[warp] + k;
      const int on_tape = g.on_tape(n);
      for (int i = together ? on_tape : 0; i < outside[k]; i++) {
        const float* delta = i < on_tape ? shared.earlier[g.before(n) + i]
                                         : deltas + shared.number[shared.recent[shared.rows[local + n]][i]] * SLICE;
        const float2 w = weights[2 * i];
        sums[k][0] = __fmaf_rn(w.x, delta[lane], sums[k][0]);
        sums[k][1] = __fmaf_rn(w.y, delta[lane], sums[k][1]);
      }
      shared.sums[n][lane].x = sums[k][0];
    }
    __syncthreads();

    float* const group_deltas = deltas + local * SLICE;
    if (warp == 0) solve(group_deltas, shared, count);
    __syncthreads();

    float out[2] = {};
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int n = warp + k * WARPS;
      if (n >= count) continue;
      const size_t at = (shared.rows[local + n] * l.value_heads + b.head) * l.dim + b.column + lane;
      a.deltas[at] = group_deltas[n * SLICE + lane];
      out[k] = output(shared, group_deltas, n, sums[k][1]);
      float squares = 0.f;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const float x = __shfl_sync(ALL_LANES, out[k], (lane & 24) + j);
        squares = __fmaf_rn(x, x, squares);
      }
      if ((lane & 7) < (int)gridDim.x) send(&shared.squares[n][4 * blockIdx.x + lane / 8], lane & 7, squares);
    }
    cluster_arrive();
    cluster_wait();

#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int n = warp + k * WARPS;
      if (n >= count) continue;
      float squares = shared.squares[n][lane % PARTS];
#pragma unroll
      for (int step = 8; step > 0; step /= 2) squares = __fadd_rn(squares, __shfl_xor_sync(ALL_LANES, squares, step));
      const float factor = 1.f / sqrtf(squares / (float)l.dim + a.eps);
      ((float*)shared.sums[n])[lane] = out[k] * factor * norm * shared.gate[n][lane];
    }
    __syncwarp();
    // Four lanes have a row, eight columns each.
    const int n = warp + lane / 4 * WARPS;
    if (lane < 8 && n < count) {
      float y[8];
      *(float4*)y = *(const float4*)((const float*)shared.sums[n] + 8 * (lane & 3));
      *(float4*)(y + 4) = *(const float4*)((const float*)shared.sums[n] + 8 * (lane & 3) + 4);
      store8(a.out, shared.rows[local + n], b.head * l.dim + b.column + 8 * (lane & 3), y);
    }
    __syncwarp();
  }
}
