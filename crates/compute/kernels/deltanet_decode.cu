// Gated DeltaNet in one launch (deltanet.cuh has the whole): convolution, products, deltas, outputs, norm and gate of
// passes of up to DECODE_ROWS rows that fold no states.
//
// Grid (dim / 32, value_heads, sequences), 256 threads, clusters of dim / 32: the slices of a head. Dynamic shared
// memory 656 rows of the pass + 91296: keys [rows][KEY_STRIDE] and deltas [rows][SLICE] of the sequence's rows, then
// DecodeShared; keys are read beyond the last row, so something must follow. The blocks of a cluster share, row by row,
// the convolution of query and key (of few rows each takes all) and the products of keys, and each other's sums of
// squares. What they send counts down a signal of the block it goes to, so that nobody waits for more than that: a
// barrier of the cluster that orders memory would wait for the block's stores to reach the device's.
// Numbers and orders are those of the other forms.
//
// Without folded states a sequence has at most two steps: rows that start from an anchor, and rows that start from the
// next one, 32 tokens on. A group may have rows of both; the tape is numbered from the first anchor on.
//
// Floor: states, 0.7 us a layer of the 27B. Limited by latency, one after the other: the launch, the pass and then
// what was committed (both before the wait for the inputs), the inputs, and about 3000 cycles of a group of one row,
// 6000 of one of sixteen: heads, products and states, sums, rows that need each other's deltas, outputs, norm.
// budget: deltanet_decode 128
#include "convolve.cuh"
#include "deltanet.cuh"

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
  float2 weights[GROUP][RECENT];         // products of keys and queries with the rows on their lists, then their weights
  float key_weights[GROUP][GROUP];       // [ancestor][row], inside the group
  float query_weights[GROUP][GROUP];     // [row][ancestor]
  float2 sums[GROUP][SLICE];             // what is known of the sum for d, and v; later outputs
  float squares[2][GROUP][PARTS];        // from all blocks of the cluster
  u64 signals[SIGNALS];
  u32 ancestors[GROUP];                  // rows inside the group that precede a row, a bit each
  float beta[GROUP], decay[GROUP], own[GROUP];
  float tape_gates[RECENT];
  float gates[DECODE_ROWS];
  u8 rows[DECODE_ROWS];                  // of the pass
  // Of a row of the pass:
  u8 number[DECODE_ROWS];
  u8 counts[DECODE_ROWS];                // rows since its anchor
  u8 recent[DECODE_ROWS][RECENT];        // those of them that are rows of the pass, behind those on the tape
  int taps[DECODE_ROWS][TAPS];           // the last one is the row itself
};
static_assert(sizeof(DecodeShared) == 91296, "as launched");

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

// ------------------------------------------------------------------ the cluster

// A signal is an mbarrier of one arrival, that of the block's own thread which says how many bytes will come. Without
// clusters, which these kernels are not launched without, they only compile.
// clusters begin
__device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// By one thread; then all of the block arrive, and wait before the first of them sends.
__device__ __forceinline__ void make_signals(u64* signals) {
#if __CUDA_ARCH__ >= 900
#pragma unroll
  for (int i = 0; i < SIGNALS; i++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(signals + i)));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
// So many bytes will come, once.
__device__ __forceinline__ void expect(u64* signal, u32 bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(signal)), "r"(bytes)
               : "memory");
#endif
}
// Until what was expected has come, the phase-th time (of which only odd or even matters).
__device__ __forceinline__ void wait_for(u64* signal, u32 phase) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n\t"
      ".reg .pred done;\n\t"
      "again:\n\t"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n\t"
      "@!done bra again;\n\t"
      "}" ::"r"(shared_address(signal)), "r"(phase & 1)
      : "memory");
#endif
}
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ u32 address_in(u32 address, int rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
#endif
// Writes to that place in the shared memory of a block of the cluster, which its signal counts.
__device__ __forceinline__ void send(float* to, int rank, float x, u64* signal) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                   address_in(shared_address(to), rank)),
               "f"(x), "r"(address_in(shared_address(signal), rank))
               : "memory");
#else
  *to = x;
#endif
}
__device__ __forceinline__ void send4(void* to, int rank, const float4& x, u64* signal) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   address_in(shared_address(to), rank)),
               "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(address_in(shared_address(signal), rank))
               : "memory");
#else
  *(float4*)to = x;
#endif
}
// clusters end

// ------------------------------------------------------------------ the phases of a group

// Where an input of the convolution lies, or nothing before the text.
__device__ __forceinline__ const float* input_of(const DecodeArgs& args, const float* tape, int tap) {
  const RecurrentLayout& l = args.net.layout;
  if (tap >= 0) return args.inputs + (size_t)tap * l.channels;
  return tap < -1 ? tape + l.tape_inputs + (u32)(-2 - tap) % TAPS * l.channels : nullptr;
}

// Asks for what was committed: states, and of the tape deltas, gates and, for the block's share of the products, keys.
__device__ __forceinline__ void load_committed(DecodeShared& shared, const DeltaNetArgs& a, const Block& b,
                                               const Group& g, int source, int position) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, dim = a.layout.dim;
  const Earlier earlier{a, b};
  if (warp * WARP_KEYS < dim) {
    const StateView state = state_of(a, b, g.split > 0 ? source : 2);
    if (state.at) copy_state(shared.loaded[warp].state, state);
    if (g.split > 0 && g.split < g.count) copy_state(shared.next_state[warp], state_of(a, b, 2));
  }
#pragma unroll 1
  for (int i = threadIdx.x / 8; i < g.tape; i += FOLD_THREADS / 8)
    copy16(&shared.earlier[i][tile_column()], earlier.delta(-2 - position - i) + tile_column());
#pragma unroll
  for (int k = 0; k < RECENT; k += 32) {
    const int i = k + 4 * warp + lane / 8;
    float* to = k ? shared.more_tape_keys[(i - 32) % 16] : shared.loaded[warp].tape_keys[lane / 8];
    if (i < g.tape && (int)blockIdx.x < g.count)
#pragma unroll 1
      for (int c = 4 * (lane & 7); c < dim; c += 32) copy16(to + c, earlier.key(-2 - position - i) + c);
  }
  if ((int)threadIdx.x < g.tape)
    copy4(&shared.tape_gates[threadIdx.x], earlier.gate_at(-2 - position - (int)threadIdx.x));
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
      const float* from = input_of(args, b.tape, shared.taps[row][j]);
      x[j] = from && active ? *(const float4*)(from + channel) : zero;
    }
    float4 y = convolve_taps(x, weight);
    y = unit_head(active ? silu4(y) : zero, kind == 0, l.dim);
    float* to = (kind == 0 ? shared.queries[n] : keys + (g.local + n) * KEY_STRIDE) + 4 * lane;
    if (shares == 1) {
      *(float4*)to = y;
    } else {  // with the zeros behind a head of fewer columns
      for (int rank = 0; rank < slices; rank++) send4(to, rank, y, &shared.signals[HEADS]);
    }
    // One of the blocks that share the key keeps it for the commit.
    if (kind == 1 && active && b.head < l.key_heads && n % slices == (int)blockIdx.x) {
      const size_t at = ((size_t)row * l.key_heads + b.key_head) * l.dim;
      *(float4*)((float*)args.net.keys + at + 4 * lane) = y;
    }
  }
}

// Products of the block's share of the group's rows with the keys on their lists, to all blocks of the cluster. Eight
// lanes share a key; a warp has entries 4 w to 4 w + 3 of the lists, and those 32 further on.
__device__ __forceinline__ void share_products(const DeltaNetArgs& a, DecodeShared& shared, const float* keys,
                                               const Group& g) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, part = lane & 7, slices = gridDim.x;
#pragma unroll 1
  for (int k = 0; k < RECENT; k += 32) {
    float4 entry_key[MAX_DIM / 32];  // of the entry at hand: mostly the next row has the same
    const float* at_hand = nullptr;
    for (int n = blockIdx.x; n < g.count; n += slices) {
      const int row = shared.rows[g.local + n], listed = shared.counts[row];
      if (k + 4 * warp > listed) continue;
      const float* own = keys + (g.local + n) * KEY_STRIDE + 4 * part;
      float4 key[MAX_DIM / 32], query[MAX_DIM / 32];
#pragma unroll
      for (int c = 0; c < MAX_DIM / 32; c++) {
        key[c] = *(const float4*)(own + 32 * c);
        query[c] = *(const float4*)&shared.queries[n][4 * part + 32 * c];
      }
      const int i = k + 4 * warp + lane / 8, at = i + g.before(n);
      const float* from = own;
      if (at < g.tape) {
        from = (at < 32 ? shared.loaded[warp].tape_keys[lane / 8] : shared.more_tape_keys[at - 32]) + 4 * part;
      } else if (i < listed) {
        from = keys + shared.number[shared.recent[row][i]] * KEY_STRIDE + 4 * part;
      }
      if (from != at_hand) {
        at_hand = from;
#pragma unroll
        for (int c = 0; c < MAX_DIM / 32; c++) {
          entry_key[c] = make_float4(0.f, 0.f, 0.f, 0.f);
          if (32 * c < a.layout.dim) entry_key[c] = *(const float4*)(from + 32 * c);
        }
      }
      __syncwarp();
      float2 dot = make_float2(0.f, 0.f);
#pragma unroll
      for (int c = 0; c < MAX_DIM / 32; c++) dot4(dot, entry_key[c], key[c], query[c]);
      // Lanes 0 to 3 of the eight add up the product with the key, the others that with the query.
      const bool second = part >= 4;
      const float other = __shfl_xor_sync(ALL_LANES, second ? dot.x : dot.y, 4);
      float sum = __fadd_rn(second ? dot.y : dot.x, other);
      sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, 2));
      sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, 1));
      // Two entries go together, from the lanes of the first; what comes behind the list's end nobody reads.
      float4 both;
      both.x = sum;
      both.y = __shfl_xor_sync(ALL_LANES, sum, 4);
      both.z = __shfl_xor_sync(ALL_LANES, both.x, 8);
      both.w = __shfl_xor_sync(ALL_LANES, both.y, 8);
      if (i % 2 == 0 && i <= listed && part < slices && !second)
        send4(&shared.weights[n][i], part, both, &shared.signals[PRODUCTS]);
    }
  }
}
// Bytes that come of a row's products.
__device__ __forceinline__ u32 product_bytes(int listed) { return (listed / 2 + 1) * sizeof(float4); }

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
      through_state<4, 1>(partial + 2 * begin, next ? shared.next_state[warp] : state, x + begin * KEY_STRIDE,
                          2 * KEY_STRIDE, [&](int vector) { return (begin + vector / 2 >= g.split) == next; });
    }
  } else if (g.count > GROUP / 2) {
    through_state<8, 1>(partial, state, x, 2 * KEY_STRIDE);  // unrolled it would not fit the registers
  } else if (g.count > 2) {
    through_state<4, 2>(partial, state, x, 2 * KEY_STRIDE);
  } else {
    through_state<1, 4>(partial, state, x, 2 * KEY_STRIDE);
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
    for (int i = 0; i < STEP; i++) {
      if (begin + i >= entries) break;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        if (!(r ? SECOND : FIRST)) continue;
        const float4 w = weights[r][i / 2];
        sums[r][0] = __fmaf_rn(i % 2 ? w.z : w.x, delta[i], sums[r][0]);
        sums[r][1] = __fmaf_rn(i % 2 ? w.w : w.y, delta[i], sums[r][1]);
      }
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
      if (begin + i >= weigher.outside[r]) break;
      sums[0] = __fmaf_rn(weights[i].x, delta[i], sums[0]);
      sums[1] = __fmaf_rn(weights[i].y, delta[i], sums[1]);
    }
  }
}

// d of rows BEGIN to BEGIN + HALF of the group, a column a lane, to deltas [count][SLICE]. As soon as a d is known it is
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
    for (int n = first; n < HALF; n++)
      if (descendants >> n & 1) sum[n] = __fmaf_rn(weights[n], x, sum[n]);
  };
  if (BEGIN > 0) {
#pragma unroll
    for (int j = 0; j < HALF; j++) add(j, 0, d[j]);
  }
#pragma unroll
  for (int n = 0; n < HALF; n++) {
    if (BEGIN + n >= count) break;
    d[n] = __fmul_rn(shared.beta[BEGIN + n], __fsub_rn(v[n], sum[n]));
    deltas[(BEGIN + n) * SLICE + lane] = d[n];
    if (n + 1 < HALF) add(BEGIN + n, n + 1, d[n]);
  }
}
__device__ __forceinline__ void solve_group(float* deltas, const DecodeShared& shared, int count) {
  const int lane = threadIdx.x & 31;
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

extern "C" __global__ void __launch_bounds__(FOLD_THREADS, 2) deltanet_decode(
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
  if (threadIdx.x == 0) make_signals(shared.signals);
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
  if ((int)threadIdx.x < a.pass.rows) {
    const int row = threadIdx.x;
    shared.counts[row] = a.pass.recent_count[row];
#pragma unroll
    for (int j = 0; j < TAPS; j++) shared.taps[row][j] = j < TAPS - 1 ? a.pass.taps[row * 3 + j] : row;
  }
#pragma unroll 2
  for (int row = warp; row < a.pass.rows; row += WARPS)
#pragma unroll
    for (int j = lane; j < RECENT; j += 32) shared.recent[row][j] = a.pass.recent[row * TAPE_TOKENS + j];
  const float norm = a.norm[b.column + lane];
  shared.squares[0][threadIdx.x / PARTS][threadIdx.x % PARTS] = 0.f;
  shared.squares[1][threadIdx.x / PARTS][threadIdx.x % PARTS] = 0.f;
  // The convolution's inputs on the tape are only brought nearer.
  if (threadIdx.x < 12 * (TAPS - 1)) {
    const int kind = threadIdx.x / (4 * (TAPS - 1)), piece = threadIdx.x % 4 * SLICE;
    const int at = committed - 1 - (int)threadIdx.x / 4 % (TAPS - 1);
    const int channel = kind < 2 ? (kind * l.key_heads + b.key_head) * l.dim : (2 * l.key_heads + b.head) * l.dim;
    if (at >= 0 && piece < l.dim) prefetch_line(input_of(args, b.tape, -2 - at) + channel + piece);
  }
  __syncthreads();

  u32 heads_phase = 0;
  for (int group = 0; g.local < rows; group++, g.local += GROUP) {
    const int local = g.local, count = g.count = min(GROUP, rows - local);
    g.split = min(max(split - local, 0), count);
    const bool multiplies = warp * WARP_KEYS < l.dim, shares = count > ALONE && slices > 1;
    b.renew();

    // Loads first.
    load_committed(shared, a, b, g, source, position);
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
      const u32 bytes = lane < count ? product_bytes(shared.counts[shared.rows[local + lane]]) : 0;
      const u32 total = __reduce_add_sync(ALL_LANES, bytes);
      if (lane == 0) {
        if (shares) expect(&shared.signals[HEADS], count * 2 * MAX_DIM * sizeof(float));
        expect(&shared.signals[PRODUCTS], total);
        expect(&shared.signals[SQUARES + group % 2], count * slices * 4 * sizeof(float));
      }
    }
    if (group == 0) {
      cluster_wait();
      wait_for_inputs();
    }
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
          const float* from = input_of(args, b.tape, shared.taps[row][j]);
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
    if (shares) wait_for(&shared.signals[HEADS], heads_phase++);

    share_products(a, shared, keys, g);
    __syncwarp();
    if (multiplies) through_states(shared, keys, g);
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
    const bool has_state = state_of(a, b, g.split > 0 ? source : 2).at != nullptr;
    if (has_state || g.split < count) add_state(sums, shared, count, l.dim, has_state ? 0 : g.split);
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
    wait_for(&shared.signals[SQUARES + group % 2], group / 2);

#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = warp + r * WARPS;
      if (n >= count) continue;
      float squares = shared.squares[group % 2][n][lane % PARTS];
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
