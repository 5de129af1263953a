// Gated DeltaNet in one launch (deltanet.cuh has the whole): convolution, products, deltas, outputs, norm and gate of
// passes of up to DECODE_ROWS rows that fold no states.
//
// Grid (dim / 32, value_heads, sequences), 256 threads, clusters of dim / 32: the slices of a head. Dynamic shared
// memory 656 rows of the pass + 92352: keys [rows][KEY_STRIDE] and deltas [rows][SLICE] of the sequence's rows, then
// DecodeShared; keys are read beyond the last row, so something must follow. The blocks of a cluster share, row by row,
// the convolution of query and key (of few rows each takes all) and the products of keys, and each other's sums of
// squares. What they send counts down a signal of the block it goes to, so that nobody waits for more than that: a
// barrier of the cluster that orders memory would wait for the block's stores to reach the device's.
// Numbers and orders are those of the other forms.
//
// Without folded states a sequence has at most two steps: rows that start from an anchor, and rows that start from the
// next one, 32 tokens on. A group may have rows of both; the tape is numbered from the first anchor on.
//
// Floor: states, 0.7 us a layer of the 27B, and 0.5 us of FFMA a block of sixteen rows. Limited by latency, one after
// the other: the launch; the pass, then what was committed (both before the wait for the inputs); the inputs; heads;
// products and states; sums; the rows of a group, which need each other's deltas; outputs; the norm, which needs all of
// the cluster. So nothing in between may load, wait for a store, or branch from one load to the next.
// Two blocks share a multiprocessor, with 128 registers a thread; on cards with 100 KB of shared memory there is one.
// budget: deltanet_decode 232
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
};
static_assert(sizeof(DecodeArgs) == 312, "as in src/cuda/ops/deltanet.rs");

// What blocks of a cluster wait for: a group's heads, its products, its sums of squares. Of the last there are two, for
// every other group: a block may send those of a group while another still waits for those of the one before.
enum Signals { HEADS, PRODUCTS, SQUARES, SIGNALS = SQUARES + 2 };

// Rows of the sequence are numbered in the order of step_rows: parents come before their children.
struct __align__(16) DecodeShared {
  // Behind the keys of the pass, of which a group reads 16 rows though it has fewer: what is read beyond lies still.
  float queries[GROUP][KEY_STRIDE];
  // First the keys of the state of each warp and of the tape (see tape_key), then products with the state.
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
  const float* states[2];                // that rows of the first and the second step start from; null: zero
  int position;                          // of the first anchor
  u32 ancestors[GROUP];                  // rows inside the group that precede a row, a bit each
  float beta[GROUP], decay[GROUP], own[GROUP];
  float tape_gates[RECENT];
  float gates[DECODE_ROWS];
  u8 rows[DECODE_ROWS];                  // of the pass
  // Of a row of the pass:
  u8 number[DECODE_ROWS];
  u8 counts[DECODE_ROWS];                // rows since its anchor
  u8 recent[DECODE_ROWS][RECENT];        // those of them that are rows of the pass, behind those on the tape
  const float* inputs[DECODE_ROWS][TAPS];  // of the convolution, the last one its own; null before the text
};
static_assert(sizeof(DecodeShared) == 92352, "as launched");

// The key of entry i of the tape. Its 16-byte pieces are turned by i, so that eight entries side by side lie in
// different banks: piece c lies where c ^ (i & 7) would.
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
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from)
               : "memory");
#else
  *to = *from;
#endif
}

// ------------------------------------------------------------------ the phases of a group

// Where an input of the convolution lies, or nothing before the text.
__device__ __forceinline__ const float* input_of(const DecodeArgs& args, const float* tape, int tap) {
  const RecurrentLayout& l = args.net.layout;
  if (tap >= 0) return args.inputs + (size_t)tap * l.channels;
  return tap < -1 ? tape + l.tape_inputs + (u32)(-2 - tap) % TAPS * l.channels : nullptr;
}

__device__ __forceinline__ float2 add2(const float2& x, const float2& y) {
  return make_float2(__fadd_rn(x.x, y.x), __fadd_rn(x.y, y.y));
}

// Asks for what was committed: states, and of the tape deltas, gates and, for the block's share of the products, keys.
__device__ __forceinline__ void load_committed(DecodeShared& shared, const RecurrentLayout& l, const Block& b,
                                               const Group& g) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, position = shared.position;
  if (warp * WARP_KEYS < l.dim) {
    const float* first = shared.states[g.split == 0];
    if (first) copy_state(shared.loaded[warp].state, {first, l.dim});
    if (g.split > 0 && g.split < g.count) copy_state(shared.next_state[warp], {shared.states[1], l.dim});
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
  if (i < g.tape) copy4(&shared.tape_gates[i], b.tape + l.tape_gates + slot(i) * l.value_heads + b.head);
}

// Queries (even warps) or keys (odd ones), given their weights: of few rows all, else the block's share to all blocks
// of the cluster.
__device__ __forceinline__ void convolve_heads(const DecodeArgs& args, DecodeShared& shared, float* keys,
                                               const Block& b, const Group& g, const float4 (&weight)[TAPS]) {
  const RecurrentLayout& l = args.net.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, kind = warp & 1, slices = gridDim.x;
  const bool active = 4 * lane < l.dim;
  const int channel = (kind * l.key_heads + b.key_head) * l.dim + 4 * lane;
  const int shares = g.count > ALONE ? slices : 1;
  const float4 zero = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int n = (shares > 1 ? blockIdx.x : 0) + warp / 2 * shares; n < g.count; n += WARPS / 2 * shares) {
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

// Products of the block's share of the group's rows with the keys on their lists, to all blocks of the cluster. A lane
// has an entry of a row's list, and sums by piece of 16 bytes modulo eight.
__device__ __forceinline__ void share_products(const DeltaNetArgs& a, DecodeShared& shared, const float* keys,
                                               const Group& g) {
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
          dot4(dots[j], *(const float4*)(from + c + 4 * (j ^ turned)), *(const float4*)(key + c + 4 * j),
               *(const float4*)(query + c + 4 * j));
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

// Products of the group's keys and queries with the states their rows start from, which lie where the results go and
// behind. A state that is not there gives what nobody reads. All of the block come here: before the first result is
// stored they are done with the tape's keys, which lie there too.
__device__ __forceinline__ void through_states(DecodeShared& shared, const float* keys, const Group& g, int dim) {
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
    // Eight rows at a time, the last ones first, and those of the first step before others: they go where its state is.
#pragma unroll 1
    for (int i = g.count > GROUP / 2 ? 3 : 1; i >= 0; i--) {
      const int begin = i / 2 * GROUP / 2;
      const bool next = i % 2 == 0;
      through_state<4, 1>(partial + 2 * begin, next ? shared.next_state[warp] : state, x + begin * KEY_STRIDE,
                          2 * KEY_STRIDE, WarpDone(),
                          [&](int vector) { return (begin + vector / 2 >= g.split) == next; });
    }
  } else if (g.count > GROUP / 2) {
    through_state<8, 1>(partial, state, x, 2 * KEY_STRIDE, all_done);  // unrolled it would not fit the registers
  } else if (g.count > 2) {
    through_state<4, 2>(partial, state, x, 2 * KEY_STRIDE, all_done);
  } else {
    through_state<1, 4>(partial, state, x, 2 * KEY_STRIDE, all_done);
  }
}

// What the warp's two rows of the group (w and w + 8) are weighed with. Of a row that is not there nothing is used.
struct Weigher {
  int listed[2];       // of each row
  int outside[2];      // entries of its list outside the group
  int number[2][2];    // of entries lane and lane + 32: the row's number, -1 on the tape
  float decay[2][2];   // from the entry to the row

  // The decays, which need only the gates.
  __device__ __forceinline__ void decays(DecodeShared& shared, const Group& g) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float gates[2][2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = min(warp + r * WARPS, g.count - 1), on_tape = g.on_tape(n), row = shared.rows[g.local + n];
      listed[r] = shared.counts[row];
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int i = lane + 32 * k;
        number[r][k] = -1;
        gates[r][k] = 0.f;
        if (i <= listed[r]) {
          if (i >= on_tape) number[r][k] = i < listed[r] ? shared.number[shared.recent[row][i]] : g.local + n;
          gates[r][k] = i < on_tape ? shared.tape_gates[i + g.before(n)] : shared.gates[number[r][k]];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float sums[2];
      sum_list(sums, gates[r]);
      const float total = entry(sums, listed[r]);
#pragma unroll
      for (int k = 0; k < 2; k++) decay[r][k] = expf(__fsub_rn(total, sums[k]));
      if (lane == 0 && warp + r * WARPS < g.count) shared.decay[warp + r * WARPS] = expf(total);
    }
  }

  // Turns the products of row n, the r-th of the warp, into weights.
  __device__ __forceinline__ void weigh(DecodeShared& shared, const Group& g, int n, int r) {
    const int lane = threadIdx.x & 31;
    u32 ancestors = 0;
    outside[r] = 0;
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int i = lane + 32 * k, inside = number[r][k] - g.local;
      const bool before = i < listed[r] && inside < 0;
      if (i <= listed[r]) {
        const float2 product = shared.weights[n][i];
        const float2 weight = make_float2(__fmul_rn(product.x, decay[r][k]), __fmul_rn(product.y, decay[r][k]));
        if (before) {
          shared.weights[n][i] = weight;
        } else if (i < listed[r]) {
          shared.key_weights[inside][n] = weight.x;
          shared.query_weights[n][inside] = weight.y;
          ancestors |= 1u << inside;
        } else {
          shared.own[n] = product.y;
        }
      }
      outside[r] += __popc(__ballot_sync(ALL_LANES, before));
    }
    ancestors = __reduce_or_sync(ALL_LANES, ancestors);
    if (lane == 0) shared.ancestors[n] = ancestors;
  }
};

// What the state gives to the warp's rows from row `first` on: [row][key, query].
__device__ __forceinline__ void add_states(float (&sums)[2][2], const DecodeShared& shared, const Group& g, int dim,
                                           int first) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, parts = dim / WARP_KEYS;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int n = warp + r * WARPS;
    if (n < first || n >= g.count) continue;
    float part[WARPS][2];
#pragma unroll
    for (int w = 0; w < WARPS; w++)
#pragma unroll
      for (int x = 0; x < 2; x++) part[w][x] = shared.partial[w][2 * n + x][lane];
#pragma unroll
    for (int w = 0; w < WARPS; w++)
#pragma unroll
      for (int x = 0; x < 2; x++) sums[r][x] = w < parts ? __fadd_rn(sums[r][x], part[w][x]) : sums[r][x];
#pragma unroll
    for (int x = 0; x < 2; x++) sums[r][x] = __fmul_rn(sums[r][x], shared.decay[n]);
  }
}

// What the tape gives to one or both of the warp's rows: `entries` rows from earlier[first] on. [row][key, query].
template <bool FIRST, bool SECOND>
__device__ __forceinline__ void add_tape(float (&sums)[2][2], const DecodeShared& shared, int entries, int first) {
  constexpr int STEP = 8;  // loads go beyond the end, sums do not
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 1
  for (int begin = 0; begin < entries; begin += STEP) {
    float delta[STEP];
    float4 weights[2][STEP / 2];
#pragma unroll
    for (int i = 0; i < STEP; i++) delta[i] = shared.earlier[first + begin + i][lane];
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int i = 0; i < STEP; i += 2)
        if (r ? SECOND : FIRST) weights[r][i / 2] = *(const float4*)&shared.weights[warp + r * WARPS][begin + i];
#pragma unroll
    for (int i = 0; i < STEP; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        if (!(r ? SECOND : FIRST)) continue;
        const float4 w = weights[r][i / 2];
        const bool listed = begin + i < entries;
        sums[r][0] = listed ? __fmaf_rn(i % 2 ? w.z : w.x, delta[i], sums[r][0]) : sums[r][0];
        sums[r][1] = listed ? __fmaf_rn(i % 2 ? w.w : w.y, delta[i], sums[r][1]) : sums[r][1];
      }
  }
}

// What rows of earlier groups give to the warp's r-th row, n of the group: those between the tape and the group.
__device__ __forceinline__ void add_groups(float (&sums)[2], const DecodeShared& shared, const float* deltas,
                                           const Weigher& weigher, int n, int r, int begin) {
  constexpr int STEP = 4;
  const int lane = threadIdx.x & 31;
#pragma unroll 1
  for (; begin < weigher.outside[r]; begin += STEP) {
    float delta[STEP];
    float2 weights[STEP];
#pragma unroll
    for (int i = 0; i < STEP; i++) {
      const int at = min(begin + i, RECENT - 1);
      const int number = __shfl_sync(ALL_LANES, at < 32 ? weigher.number[r][0] : weigher.number[r][1], at & 31);
      delta[i] = deltas[max(number, 0) * SLICE + lane];
      weights[i] = shared.weights[n][at];
    }
#pragma unroll
    for (int i = 0; i < STEP; i++) {
      const bool listed = begin + i < weigher.outside[r];
      sums[0] = listed ? __fmaf_rn(weights[i].x, delta[i], sums[0]) : sums[0];
      sums[1] = listed ? __fmaf_rn(weights[i].y, delta[i], sums[1]) : sums[1];
    }
  }
}

// d of rows BEGIN to BEGIN + HALF of the group, a column a lane, to deltas [count][SLICE]. Once a d is known it is
// added to the sums of all rows behind it: for each the order is that of the list, and they do not wait for each other.
constexpr int HALF = GROUP / 2;
template <int BEGIN>
__device__ __forceinline__ void solve_half(float (&d)[HALF], const DecodeShared& shared, float* deltas, int count,
                                           u32 ancestors) {
  const int lane = threadIdx.x & 31;
  float sum[HALF], v[HALF];
#pragma unroll
  for (int n = 0; n < HALF; n++) {
    const float2 known = shared.sums[BEGIN + n][lane];
    sum[n] = known.x;
    v[n] = known.y;
  }
  const auto add = [&](int j, int first, float x) {
    const u32 descendants = __ballot_sync(ALL_LANES, ancestors >> j & 1) >> BEGIN;
    float weights[HALF];  // whatever lies there where row j is no ancestor
#pragma unroll
    for (int n = 0; n < HALF; n += 4)
      if (n + 4 > first) *(float4*)(weights + n) = *(const float4*)&shared.key_weights[j][BEGIN + n];
#pragma unroll
    for (int n = first; n < HALF; n++) sum[n] = descendants >> n & 1 ? __fmaf_rn(weights[n], x, sum[n]) : sum[n];
  };
  if (BEGIN > 0) {
#pragma unroll
    for (int j = 0; j < HALF; j++) add(j, 0, d[j]);
  }
#pragma unroll
  for (int n = 0; n < HALF; n++) {
    d[n] = __fmul_rn(shared.beta[BEGIN + n], __fsub_rn(v[n], sum[n]));
    if (n + 1 < HALF) add(BEGIN + n, n + 1, d[n]);
  }
#pragma unroll
  for (int n = 0; n < HALF; n++)
    if (BEGIN + n < count) deltas[(BEGIN + n) * SLICE + lane] = d[n];
}
__device__ __forceinline__ void solve_group(float* deltas, const DecodeShared& shared, int count) {
  const int lane = threadIdx.x & 31;
  if (count == 1) {
    const float2 known = shared.sums[0][lane];
    deltas[lane] = __fmul_rn(shared.beta[0], __fsub_rn(known.y, known.x));
    return;
  }
  const u32 ancestors = lane < count ? shared.ancestors[lane] : 0;
  float d[HALF];
  solve_half<0>(d, shared, deltas, count, ancestors);
  if (count > HALF) solve_half<HALF>(d, shared, deltas, count, ancestors);
}

// o of row n of the group, a column a lane: `sum` and what the row itself and the rows before it in the group give, of
// which there are at most BEFORE.
template <int BEFORE>
__device__ __forceinline__ float output_of(const DecodeShared& shared, const float* deltas, int n, float sum) {
  const int lane = threadIdx.x & 31;
  const u32 ancestors = shared.ancestors[n];
  const float own = shared.own[n], last = deltas[n * SLICE + lane];
  if (ancestors) {
    float weights[BEFORE], delta[BEFORE];  // whatever lies there where row j is no ancestor
#pragma unroll
    for (int j = 0; j < BEFORE; j += 4) *(float4*)(weights + j) = *(const float4*)&shared.query_weights[n][j];
#pragma unroll
    for (int j = 0; j < BEFORE - 1; j++) delta[j] = deltas[j * SLICE + lane];
#pragma unroll
    for (int j = 0; j < BEFORE - 1; j++)
      if (ancestors >> j & 1) sum = __fmaf_rn(weights[j], delta[j], sum);
  }
  return __fmaf_rn(own, last, sum);
}

// Blocks a multiprocessor has room for: one where it has 100 KB of shared memory.
#if __CUDA_ARCH__ >= 1200
constexpr int RESIDENT = 1;
#else
constexpr int RESIDENT = 2;
#endif

extern "C" __global__ void __launch_bounds__(FOLD_THREADS, RESIDENT) deltanet_decode(
    const __grid_constant__ DecodeArgs args) {
  launch_dependents();
  const DeltaNetArgs& a = args.net;
  const RecurrentLayout& l = a.layout;
  float* const keys = (float*)shared_bytes;
  float* const deltas = keys + a.pass.rows * KEY_STRIDE;
  DecodeShared& shared = *(DecodeShared*)(deltas + a.pass.rows * SLICE);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, slices = gridDim.x;
  const Sequence& sequence = a.pass.sequences[blockIdx.z];
  Block b = this_block(a);
  // A sequence that is alone has everything from the beginning on: then no load waits for another.
  const bool alone = a.pass.sequence_count == 1;
  const Step& step = a.pass.steps[alone ? 0 : sequence.first_step];
  const int rows = alone ? a.pass.rows : sequence.rows;
  const int first_row = alone || rows == 0 ? 0 : step.first_row;
  const int position = rows ? step.position : 0, source = rows ? step.source : 0;
  const int split = rows && sequence.steps > 1 ? step.rows : rows, committed = sequence.committed;
  const float *older = sequence.older, *anchor = sequence.anchor;
  if (threadIdx.x == 0) make_signals(shared.signals, SIGNALS);
  cluster_arrive();

  // The pass, what was committed, and weights were there before the first kernel began: a copy, for which a kernel
  // waits however it is launched, lies between the last commit and the pass.
  Group g;
  g.tape = rows ? max(0, committed - position) : 0;
  g.local = 0;
  if ((int)threadIdx.x < rows) {
    const int row = a.pass.step_rows[first_row + threadIdx.x];
    shared.rows[threadIdx.x] = row;
    shared.number[row] = threadIdx.x;
  }
  if ((int)threadIdx.x < a.pass.rows) shared.counts[threadIdx.x] = a.pass.recent_count[threadIdx.x];
  if ((int)threadIdx.x / TAPS < a.pass.rows) {
    const int row = threadIdx.x / TAPS, j = threadIdx.x % TAPS;
    shared.inputs[row][j] = input_of(args, b.tape, j < TAPS - 1 ? a.pass.taps[row * (TAPS - 1) + j] : row);
  }
#pragma unroll 2
  for (int row = warp; row < a.pass.rows; row += WARPS)
#pragma unroll
    for (int j = lane; j < RECENT; j += 32) shared.recent[row][j] = a.pass.recent[row * TAPE_TOKENS + j];
  if (threadIdx.x == 0) {
    const size_t at = ((size_t)a.layer * l.value_heads + b.head) * l.dim * l.dim + b.column;
    const float* first = source == 2 ? anchor : source == 1 ? older : nullptr;
    shared.position = position;
    shared.states[0] = first ? first + at : nullptr;
    shared.states[1] = anchor ? anchor + at : nullptr;
  }
  // The convolution's inputs on the tape are only brought nearer.
  if (threadIdx.x < 12 * (TAPS - 1)) {
    const int kind = threadIdx.x / (4 * (TAPS - 1)), piece = threadIdx.x % 4 * SLICE;
    const int at = committed - 1 - (int)threadIdx.x / 4 % (TAPS - 1);
    const int channel = kind < 2 ? (kind * l.key_heads + b.key_head) * l.dim : (2 * l.key_heads + b.head) * l.dim;
    if (at >= 0 && piece < l.dim) prefetch_line(input_of(args, b.tape, -2 - at) + channel + piece);
  }
  __syncthreads();
  cluster_wait();

  for (int group = 0; g.local < rows; group++, g.local += GROUP) {
    const int local = g.local, count = g.count = min(GROUP, rows - local);
    g.split = min(max(split - local, 0), count);
    const bool shares = count > ALONE && slices > 1;
    b.renew();

    // Loads first.
    load_committed(shared, l, b, g);
    const int value_channel = (2 * l.key_heads + b.head) * l.dim + b.column + lane;
    float4 head_weight[TAPS];
    float value_weight[TAPS];
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
      const float* weight = args.weight + (size_t)j * l.channels;
      const int channel = ((warp & 1) * l.key_heads + b.key_head) * l.dim + 4 * lane;
      head_weight[j] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (4 * lane < l.dim) head_weight[j] = *(const float4*)(weight + channel);
      value_weight[j] = weight[value_channel];
    }
    const float dt_bias = a.dt_bias[b.head], gate_factor = a.decay[b.head];
    // What will come from the cluster.
    if (warp == 0) {
      const u32 bytes = lane < count ? (shared.counts[shared.rows[local + lane]] + 1) * sizeof(float2) : 0;
      const u32 total = __reduce_add_sync(ALL_LANES, bytes);
      if (lane == 0) {
        if (shares) expect(&shared.signals[HEADS], count * 2 * MAX_DIM * sizeof(float));
        expect(&shared.signals[PRODUCTS], total);
        expect(&shared.signals[SQUARES + group % 2], count * slices * 4 * sizeof(float));
      }
    }
    if (group == 0) wait_for_inputs();
    // The warp's own rows of the group, a column a lane; and a row a lane, by the last warp.
    float value[2][TAPS], gate[2], alpha = 0.f, beta = 0.f;
    const int gated = warp == WARPS - 1 && lane < count ? shared.rows[local + lane] * l.value_heads + b.head : -1;
    if (gated >= 0) {
      alpha = a.alpha[gated];
      beta = a.beta[gated];
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = warp + r * WARPS;
      gate[r] = 0.f;
#pragma unroll
      for (int j = 0; j < TAPS; j++) value[r][j] = 0.f;
      if (n < count) {
        const int row = shared.rows[local + n];
        gate[r] = a.z[(row * l.value_heads + b.head) * l.dim + b.column + lane];
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
          const float* from = shared.inputs[row][j];
          if (from) value[r][j] = from[value_channel];
        }
      }
    }
    convolve_heads(args, shared, keys, b, g, head_weight);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = warp + r * WARPS;
      if (n >= count) continue;
      float y = 0.f;
#pragma unroll
      for (int j = 0; j < TAPS; j++) y = __fmaf_rn(value[r][j], value_weight[j], y);
      shared.sums[n][lane].y = silu(y);
      gate[r] = gate[r] * sigmoid(gate[r]);
    }
    if (gated >= 0) {
      const float log_decay = gate_of(alpha, dt_bias, gate_factor);
      shared.gates[local + lane] = log_decay;
      shared.beta[lane] = sigmoid(beta);
      if (blockIdx.x == 0) a.gates[gated] = log_decay;
    }
    wait_for_copies();
    __syncthreads();
    if (shares) wait_for(&shared.signals[HEADS], group);  // groups before had more rows

    share_products(a, shared, keys, g);
    through_states(shared, keys, g, l.dim);
    Weigher weigher;
    weigher.decays(shared, g);
    wait_for(&shared.signals[PRODUCTS], group);
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (warp + r * WARPS < count) weigher.weigh(shared, g, warp + r * WARPS, r);
    __syncthreads();

    // What the state and the rows outside the group give, a column a lane: [row][key, query].
    float sums[2][2] = {};
    // Only the first anchor may be before the text, where the state is zero.
    const bool has_state = shared.states[g.split == 0] != nullptr;
    if (has_state || g.split < count) add_states(sums, shared, g, l.dim, has_state ? 0 : g.split);
    if (warp + WARPS >= count) {
      add_tape<true, false>(sums, shared, warp < count ? g.on_tape(warp) : 0, g.before(warp));
    } else if (g.before(warp) == g.before(warp + WARPS)) {
      add_tape<true, true>(sums, shared, g.on_tape(warp), g.before(warp));
    } else {
      add_tape<true, false>(sums, shared, g.on_tape(warp), g.before(warp));
      add_tape<false, true>(sums, shared, g.on_tape(warp + WARPS), g.before(warp + WARPS));
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = warp + r * WARPS;
      if (n >= count) continue;
      add_groups(sums[r], shared, deltas, weigher, n, r, g.on_tape(n));
      shared.sums[n][lane].x = sums[r][0];
    }
    __syncthreads();

    float* const group_deltas = deltas + local * SLICE;
    if (warp == 0) solve_group(group_deltas, shared, count);
    __syncthreads();

    float out[2] = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = warp + r * WARPS;
      if (n >= count) continue;
      out[r] = r == 0 ? output_of<HALF>(shared, group_deltas, n, sums[r][1])
                      : output_of<GROUP>(shared, group_deltas, n, sums[r][1]);
      float squares = 0.f;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const float x = __shfl_sync(ALL_LANES, out[r], (lane & 24) + j);
        squares = __fmaf_rn(x, x, squares);
      }
      float* const to = &shared.squares[group % 2][n][4 * blockIdx.x + lane / 8];
      if ((lane & 7) < slices) send(to, lane & 7, squares, &shared.signals[SQUARES + group % 2]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = warp + r * WARPS;
      if (n >= count) continue;
      const size_t at = (shared.rows[local + n] * l.value_heads + b.head) * l.dim + b.column + lane;
      a.deltas[at] = group_deltas[n * SLICE + lane];
    }
    const float norm = a.norm[b.column + lane];
    wait_for(&shared.signals[SQUARES + group % 2], group / 2);

#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = warp + r * WARPS;
      if (n >= count) continue;
      float squares = lane % PARTS < 4 * slices ? shared.squares[group % 2][n][lane % PARTS] : 0.f;
#pragma unroll
      for (int step = 8; step > 0; step /= 2) squares = __fadd_rn(squares, __shfl_xor_sync(ALL_LANES, squares, step));
      const float factor = 1.f / sqrtf(squares / (float)l.dim + a.eps);
      ((float*)shared.sums[n])[lane] = out[r] * factor * norm * gate[r];
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
