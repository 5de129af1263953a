// Gated DeltaNet (deltanet.cuh has the whole) of passes of several texts, none with more than 8
// rows: many texts, plain or with few drafted tokens. Convolution, products, deltas, outputs, norm
// and gate in one launch, for which no card needs clusters. Numbers and orders are those of the
// other forms.
//
// deltanet_texts_1 / _4 / _8 for texts of up to so many rows, of which none starts from a state
// folded in this pass. Grid (value_heads, sequences), 256 threads: a block has a head of a text,
// all its columns. Warp w holds keys 16 w to 16 w + 15 of the state in registers, four columns a
// lane, and asks for them first of all: 64 KB a block are under way while the inputs are waited
// for. Rows are numbered in the order of step_rows: parents come before their children. The tape is
// numbered from the first step's anchor on; rows of the second step skip ANCHOR_TOKENS of it.
//
// Floor: states and the tape, about 96 KB a block at 27B, read once: 32 texts 32 us a layer. What
// limits it: blocks that wait for their first bytes; two share a multiprocessor.
#include "deltanet_gather.cuh"

constexpr int AT_ONCE = 4;  // rows whose products with the state are taken together

template <int ROWS> struct TextShared {
  float query[ROWS][MAX_DIM], key[ROWS][MAX_DIM], value[ROWS][MAX_DIM];
  float output_gate[ROWS][MAX_DIM];
  // Products of keys and queries with each warp's keys of the state; later outputs.
  float partial[WARPS][ROWS < AT_ONCE ? ROWS : AT_ONCE][2][MAX_DIM];
  float earlier[RECENT][MAX_DIM];     // deltas on the tape since the first anchor
  float2 weights[ROWS][RECENT];       // of the rows on the tape, for key and query
  float2 inside[ROWS][ROWS];          // [row][ancestor]: of rows of the pass
  float decays[ROWS][RECENT];         // from entries of a row's list to the row
  float tape_gates[RECENT];
  float gates[ROWS], beta[ROWS], decay[ROWS], own[ROWS];
  float squares[ROWS][PARTS];
  const float* inputs[ROWS][TAPS];    // of the convolution, the last its own; null before the text
  int rows[ROWS];                     // of the pass
  u32 ancestors[ROWS];                // rows of the text that precede a row, a bit each
};

// What a block works on: the rows of a text, and a head.
struct Text {
  int head, key_head, count;
  int split;      // rows that belong to the first step
  int tape_rows;  // since the first anchor
  u32 position;   // of the first anchor
  int first_row;  // in Pass::step_rows
  const float *state, *next_state;  // that rows of the first and second step start from; null: zero
  const float *tape;                // of this layer

  __device__ __forceinline__ Text(const DeltaNetArgs& a, const Sequence& sequence) {
    const RecurrentLayout& l = a.layout;
    const Step& step = a.pass.steps[sequence.first_step];
    head = blockIdx.x, key_head = head % l.key_heads, count = sequence.rows;
    split = sequence.steps > 1 ? step.rows : count;
    position = step.position, tape_rows = max(0, sequence.committed - step.position);
    first_row = step.first_row;
    const size_t at = ((size_t)a.layer * l.value_heads + head) * l.dim * l.dim;
    state = step.source == 2 ? sequence.anchor : step.source == 1 ? sequence.older : nullptr;
    if (state) state += at;
    next_state = sequence.anchor ? sequence.anchor + at : nullptr;
    tape = sequence.tape + (size_t)a.layer * l.tape_layer;
  }
  // Where entry i of the tape lies.
  __device__ __forceinline__ u32 slot(int i) const { return (position + i) % TAPE_TOKENS; }
  // Entries of the tape before row n's anchor, and behind it.
  __device__ __forceinline__ int before(int n) const { return n < split ? 0 : ANCHOR_TOKENS; }
  __device__ __forceinline__ int on_tape(int n) const { return max(0, tape_rows - before(n)); }
};

__device__ __forceinline__ void load_state(float4 (&state)[WARP_KEYS], const float* from, int dim) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  from += (size_t)warp * WARP_KEYS * dim + 4 * lane;
#pragma unroll
  for (int k = 0; k < WARP_KEYS; k++) state[k] = __ldcs((const float4*)(from + (size_t)k * dim));
}

// Asks for what was committed beside the state.
template <int ROWS>
__device__ __forceinline__ void ask_for_tape(TextShared<ROWS>& shared, const RecurrentLayout& l,
                                             const Text& text) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const float* const deltas = text.tape + l.tape_deltas + text.head * l.dim + 4 * lane;
#pragma unroll 1
  for (int i = warp; i < text.tape_rows; i += WARPS)
    if (4 * lane < l.dim)
      copy16(&shared.earlier[i][4 * lane], deltas + text.slot(i) * l.value_heads * l.dim);
  const int i = threadIdx.x;
  if (i < text.tape_rows)
    copy4(&shared.tape_gates[i],
          text.tape + l.tape_gates + text.slot(i) * l.value_heads + text.head);
  // Keys, for which there are no registers yet, are only brought nearer.
  if (i < 4 * text.tape_rows && 32 * (i & 3) < l.dim)
    prefetch_line(text.tape + (text.slot(i >> 2) * l.key_heads + text.key_head) * l.dim +
                  32 * (i & 3));
}

// The key of entry i of the tape: piece j modulo eight of it in lane j of eight.
__device__ __forceinline__ void load_key(float4 (&key)[4], const RecurrentLayout& l,
                                         const Text& text, int i) {
  const float* from =
      text.tape + (text.slot(i) * l.key_heads + text.key_head) * l.dim + 4 * (threadIdx.x & 7);
#pragma unroll
  for (int c = 0; c < 4; c++) {
    key[c] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (i < text.tape_rows && 32 * c < l.dim) key[c] = *(const float4*)(from + 32 * c);
  }
}

// Queries and keys, a head a warp; values stay with their columns.
template <int ROWS>
__device__ __forceinline__ void convolve_heads(const DecodeArgs& args, TextShared<ROWS>& shared,
                                               const Text& text) {
  const RecurrentLayout& l = args.net.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const bool active = 4 * lane < l.dim;
  const float4 zero = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
  for (int i = warp; i < 2 * text.count; i += WARPS) {
    const int kind = i & 1, n = i >> 1;
    const int channel = (kind * l.key_heads + text.key_head) * l.dim + 4 * lane;
    float4 x[TAPS], weight[TAPS];
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
      const float* from = shared.inputs[n][j];
      x[j] = from && active ? *(const float4*)(from + channel) : zero;
      weight[j] = active ? *(const float4*)(args.weight + j * l.channels + channel) : zero;
    }
    float4 y = convolve_taps(x, weight);
    y = unit_head(active ? silu4(y) : zero, kind == 0, l.dim);
    *(float4*)&(kind == 0 ? shared.query : shared.key)[n][4 * lane] = y;
    // One of the blocks that share the key keeps it for the commit.
    if (kind == 1 && active && text.head < l.key_heads)
      *(float4*)((float*)args.net.keys +
                 ((size_t)shared.rows[n] * l.key_heads + text.key_head) * l.dim + 4 * lane) = y;
  }
}

// A value of the convolution, of one channel.
__device__ __forceinline__ float convolve_value(const DecodeArgs& args,
                                                const float* const (&inputs)[TAPS], int channel) {
  float x[TAPS], y = 0.f;
#pragma unroll
  for (int j = 0; j < TAPS; j++) x[j] = inputs[j] ? inputs[j][channel] : 0.f;
#pragma unroll
  for (int j = 0; j < TAPS; j++)
    y = __fmaf_rn(x[j], args.weight[j * args.net.layout.channels + channel], y);
  return silu(y);
}

// Who a row's list has of the pass: `number` of entry on_tape + i in lane i.
template <int ROWS>
__device__ __forceinline__ void find_ancestors(TextShared<ROWS>& shared, const Pass& pass,
                                               const Text& text) {
  const int lane = threadIdx.x & 31, n = threadIdx.x >> 5;
  if (n >= text.count) return;
  const int row = shared.rows[n], at = text.on_tape(n) + lane;
  u32 number = 0;
  if (at < pass.recent_count[row]) {
    const int listed = pass.recent[row * TAPE_TOKENS + at];
#pragma unroll
    for (int m = 0; m < ROWS; m++)
      if (m < text.count && shared.rows[m] == listed) number = 1u << m;
  }
  number = __reduce_or_sync(ALL_LANES, number);
  if (lane == 0) shared.ancestors[n] = number;
}

// The decays from the entries of a row's list to the row, a row a warp.
template <int ROWS>
__device__ __forceinline__ void find_decays(TextShared<ROWS>& shared, const Text& text) {
  const int lane = threadIdx.x & 31, n = threadIdx.x >> 5;
  if (n >= text.count) return;
  const int on_tape = text.on_tape(n);
  const u32 ancestors = ROWS == 1 ? 0 : shared.ancestors[n];
  const int listed = on_tape + __popc(ancestors);
  float gates[2], sums[2];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    gates[k] = 0.f;
    if (i < on_tape) gates[k] = shared.tape_gates[i + text.before(n)];
    else if (i < listed) gates[k] = shared.gates[__fns(ancestors, 0, i - on_tape + 1)];
    else if (i == listed) gates[k] = shared.gates[n];
  }
  sum_list(sums, gates);
  const float total = entry(sums, listed);
#pragma unroll
  for (int k = 0; k < 2; k++)
    if (lane + 32 * k < listed)
      shared.decays[n][lane + 32 * k] = expf(__fsub_rn(total, sums[k]));
  if (lane == 0) shared.decay[n] = expf(total);
}

// The product of a key, of which lane j of eight has pieces j modulo eight, with the key and the
// query of row n.
template <int ROWS>
__device__ __forceinline__ float2 product(const TextShared<ROWS>& shared, const float4 (&key)[4],
                                          int n, int dim) {
  const int j = threadIdx.x & 7;
  float2 dot = make_float2(0.f, 0.f);
#pragma unroll
  for (int c = 0; c < 4; c++)
    if (32 * c < dim)
      dot4(dot, key[c], *(const float4*)&shared.key[n][32 * c + 4 * j],
           *(const float4*)&shared.query[n][32 * c + 4 * j]);
  // Other forms add the zeros behind a head of fewer columns: no zero is below zero then.
  if (dim < MAX_DIM) dot = add2(dot, make_float2(0.f, 0.f));
#pragma unroll
  for (int step = 4; step > 0; step /= 2)
    dot = add2(dot, make_float2(__shfl_xor_sync(ALL_LANES, dot.x, step),
                                __shfl_xor_sync(ALL_LANES, dot.y, step)));
  return dot;
}

// The weights of entry i of the tape for all rows: eight lanes have an entry.
template <int ROWS>
__device__ __forceinline__ void weigh_tape(TextShared<ROWS>& shared, const float4 (&key)[4],
                                           const Text& text, int dim, int i) {
#pragma unroll(ROWS > 1 ? 2 : 1)
  for (int n = 0; n < text.count; n++) {
    const float2 dot = product(shared, key, n, dim);
    const int at = i - text.before(n);
    if ((threadIdx.x & 7) > 0 || at < 0 || i >= text.tape_rows) continue;
    const float decay = shared.decays[n][at];
    shared.weights[n][i] = make_float2(__fmul_rn(dot.x, decay), __fmul_rn(dot.y, decay));
  }
}

// The weights of rows of the pass for those behind them, and for themselves.
template <int ROWS>
__device__ __forceinline__ void weigh_rows(TextShared<ROWS>& shared, const Text& text, int dim) {
  const int j = threadIdx.x & 7;
#pragma unroll 1
  for (int begin = threadIdx.x / 32 * 4; begin < ROWS * text.count; begin += FOLD_THREADS / 8) {
    const int pair = begin + threadIdx.x % 32 / 8, n = min(pair / ROWS, text.count - 1),
              m = pair % ROWS;
    float4 key[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
      key[c] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (m <= n && 32 * c < dim) key[c] = *(const float4*)&shared.key[m][32 * c + 4 * j];
    }
    const float2 dot = product(shared, key, n, dim);
    if (j > 0 || pair / ROWS >= text.count) continue;
    if (m == n) shared.own[n] = dot.y;
    const u32 ancestors = ROWS == 1 ? 0 : shared.ancestors[n];
    if (m < n && ancestors >> m & 1) {
      const float decay =
          shared.decays[n][text.on_tape(n) + __popc(ancestors & ((1u << m) - 1))];
      shared.inside[n][m] = make_float2(__fmul_rn(dot.x, decay), __fmul_rn(dot.y, decay));
    }
  }
}

// Products of rows `begin` to `end` with the warp's keys of the state, to partial[][row - from].
template <int ROWS>
__device__ __forceinline__ void through_state(TextShared<ROWS>& shared,
                                              const float4 (&state)[WARP_KEYS], int begin, int end,
                                              int from) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 1
  for (int n = begin; n < end; n++) {
    float4 of_key = make_float4(0.f, 0.f, 0.f, 0.f), of_query = of_key;
#pragma unroll
    for (int k = 0; k < WARP_KEYS; k += 4) {
      const float4 y = *(const float4*)&shared.key[n][warp * WARP_KEYS + k];
      const float4 q = *(const float4*)&shared.query[n][warp * WARP_KEYS + k];
      fma4(of_key, y.x, state[k]);
      fma4(of_query, q.x, state[k]);
      fma4(of_key, y.y, state[k + 1]);
      fma4(of_query, q.y, state[k + 1]);
      fma4(of_key, y.z, state[k + 2]);
      fma4(of_query, q.z, state[k + 2]);
      fma4(of_key, y.w, state[k + 3]);
      fma4(of_query, q.w, state[k + 3]);
    }
    *(float4*)&shared.partial[warp][n - from][0][4 * lane] = of_key;
    *(float4*)&shared.partial[warp][n - from][1][4 * lane] = of_query;
  }
}

// Deltas and outputs before the norm of a column, from what the state gives: [row][key, query].
template <int ROWS>
__device__ __forceinline__ void solve(float (&out)[ROWS], TextShared<ROWS>& shared,
                                      float (&sums)[ROWS][2], const DeltaNetArgs& a,
                                      const Text& text) {
  const RecurrentLayout& l = a.layout;
  const int column = threadIdx.x;
#pragma unroll(ROWS > 4 ? 2 : 8)
  for (int i = 0; i < text.tape_rows; i++) {
    const float delta = shared.earlier[i][column];
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
      if (n >= text.count || i < text.before(n)) continue;
      const float2 weight = shared.weights[n][i];
      sums[n][0] = __fmaf_rn(weight.x, delta, sums[n][0]);
      sums[n][1] = __fmaf_rn(weight.y, delta, sums[n][1]);
    }
  }
  float delta[ROWS];
#pragma unroll
  for (int n = 0; n < ROWS; n++) {
    if (n >= text.count) continue;
    const u32 ancestors = ROWS == 1 ? 0 : shared.ancestors[n];
#pragma unroll
    for (int m = 0; m < n; m++) {
      if (!(ancestors >> m & 1)) continue;
      const float2 weight = shared.inside[n][m];
      sums[n][0] = __fmaf_rn(weight.x, delta[m], sums[n][0]);
      sums[n][1] = __fmaf_rn(weight.y, delta[m], sums[n][1]);
    }
    delta[n] = __fmul_rn(shared.beta[n], __fsub_rn(shared.value[n][column], sums[n][0]));
    out[n] = __fmaf_rn(shared.own[n], delta[n], sums[n][1]);
    a.deltas[((size_t)shared.rows[n] * l.value_heads + text.head) * l.dim + column] = delta[n];
  }
}

// Norm and gate; four lanes write 32 columns of a row.
template <int ROWS>
__device__ __forceinline__ void write_outputs(const float (&out)[ROWS], TextShared<ROWS>& shared,
                                              const DeltaNetArgs& a, const Text& text) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, column = threadIdx.x;
  const int dim = a.layout.dim;
  const float norm = a.norm[column];
  float(*const outputs)[MAX_DIM] = (float(*)[MAX_DIM])shared.partial;  // all have read it
#pragma unroll
  for (int n = 0; n < ROWS; n++) {
    if (n >= text.count) continue;
    float squares = lane % PARTS < dim / 8 ? shared.squares[n][lane % PARTS] : 0.f;
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
      squares = __fadd_rn(squares, __shfl_xor_sync(ALL_LANES, squares, step));
    const float factor = 1.f / sqrtf(squares / (float)dim + a.eps);
    outputs[n][column] = out[n] * factor * norm * shared.output_gate[n][column];
  }
  __syncwarp();
  const int n = lane >> 2, at = 32 * warp + 8 * (lane & 3);
  if (n < text.count) {
    float y[8];
    *(float4*)y = *(const float4*)(outputs[n] + at);
    *(float4*)(y + 4) = *(const float4*)(outputs[n] + at + 4);
    store8(a.out, shared.rows[n], text.head * dim + at, y);
  }
}

template <int ROWS> __device__ __forceinline__ void deltanet_texts(const DecodeArgs& a) {
  TextShared<ROWS>& shared = *(TextShared<ROWS>*)shared_bytes;
  launch_dependents();
  const DeltaNetArgs& net = a.net;
  const RecurrentLayout& l = net.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, dim = l.dim, column = threadIdx.x;
  const Sequence& sequence = net.pass.sequences[blockIdx.y];
  if (sequence.rows == 0) return;
  const Text text(net, sequence);

  // What was committed was there before the first kernel began: see deltanet_decode.cu.
  float4 state[WARP_KEYS];
  const bool holds = warp * WARP_KEYS < dim && 4 * lane < dim;
  if (holds && text.state && text.split > 0) load_state(state, text.state, dim);
  ask_for_tape(shared, l, text);
  if ((int)threadIdx.x < TAPS * text.count) {
    const int n = threadIdx.x / TAPS, j = threadIdx.x % TAPS;
    const int row = net.pass.step_rows[text.first_row + n];
    const int tap = j < TAPS - 1 ? net.pass.taps[row * (TAPS - 1) + j] : row;
    shared.inputs[n][j] = input_of(a, text.tape, tap);
    shared.rows[n] = row;
  }
  __syncthreads();
  wait_for_inputs();

  convolve_heads(a, shared, text);
#pragma unroll 1
  for (int n = threadIdx.x / MAX_DIM; n < text.count; n += FOLD_THREADS / MAX_DIM) {
    const int c = threadIdx.x % MAX_DIM;
    if (c >= dim) break;
    const float z = net.z[((size_t)shared.rows[n] * l.value_heads + text.head) * dim + c];
    shared.value[n][c] =
        convolve_value(a, shared.inputs[n], (2 * l.key_heads + text.head) * dim + c);
    shared.output_gate[n][c] = z * sigmoid(z);
  }
  if (warp == WARPS - 1 && lane < text.count) {
    const int at = shared.rows[lane] * l.value_heads + text.head;
    const float log_decay = gate_of(net.alpha[at], net.dt_bias[text.head], net.decay[text.head]);
    shared.gates[lane] = log_decay;
    shared.beta[lane] = sigmoid(net.beta[at]);
    net.gates[at] = log_decay;
  }
  wait_for_copies();
  __syncthreads();
  if (ROWS > 1) find_ancestors(shared, net.pass, text);
  __syncwarp();
  find_decays(shared, text);

  float sums[ROWS][2] = {};
#pragma unroll
  for (int from = 0; from < ROWS; from += AT_ONCE) {
    if (from >= text.count) break;
    const int end = min(from + AT_ONCE, text.count), middle = max(from, min(text.split, end));
    if (from > 0) __syncthreads();  // all have read the rows before
    if (holds && text.state) through_state(shared, state, from, middle, from);
    if (holds && middle < end) {
      if (middle == text.split) load_state(state, text.next_state, dim);
      through_state(shared, state, middle, end, from);
    }
    __syncthreads();
#pragma unroll
    for (int n = from; n < (from + AT_ONCE < ROWS ? from + AT_ONCE : ROWS); n++) {
      if (n >= text.count || column >= dim || (n < text.split && !text.state)) continue;
#pragma unroll
      for (int w = 0; w < WARPS; w++)
#pragma unroll
        for (int x = 0; x < 2; x++)
          if (w * WARP_KEYS < dim)
            sums[n][x] = __fadd_rn(sums[n][x], shared.partial[w][n - from][x][column]);
#pragma unroll
      for (int x = 0; x < 2; x++) sums[n][x] = __fmul_rn(sums[n][x], shared.decay[n]);
    }
  }

  const int entry_of_lane = 4 * warp + lane / 8;
  float4 keys[4];
  load_key(keys, l, text, entry_of_lane);
  weigh_tape(shared, keys, text, dim, entry_of_lane);
  if (text.tape_rows > 32) {
    load_key(keys, l, text, 32 + entry_of_lane);
    weigh_tape(shared, keys, text, dim, 32 + entry_of_lane);
  }
  weigh_rows(shared, text, dim);
  __syncthreads();

  float out[ROWS] = {};
  if (column < dim) {
    solve(out, shared, sums, net, text);
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
      if (n >= text.count) continue;
      float squares = 0.f;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const float y = __shfl_sync(ALL_LANES, out[n], (lane & 24) + j);
        squares = __fmaf_rn(y, y, squares);
      }
      if ((lane & 7) == 0) shared.squares[n][column / 8] = squares;
    }
  }
  __syncthreads();
  if (column < dim) write_outputs(out, shared, net, text);
}

static_assert(sizeof(TextShared<1>) <= 36480, "as launched");
static_assert(sizeof(TextShared<4>) <= 70784, "as launched");
static_assert(sizeof(TextShared<8>) <= 83200, "as launched");

// Blocks of a multiprocessor at least. Compilers for consumer Blackwell want some registers more at
// eight rows than two blocks leave.
#if __CUDA_ARCH__ >= 1200
#define TEXTS_BLOCKS(ROWS) ((ROWS) > 4 ? 1 : 2)
#else
#define TEXTS_BLOCKS(ROWS) 2
#endif
#define TEXTS_KERNEL(NAME, REGISTERS, ROWS)                                 \
  KERNEL(NAME, REGISTERS, DecodeArgs, FOLD_THREADS, TEXTS_BLOCKS(ROWS)) {   \
    deltanet_texts<ROWS>(a);                                                \
  }

TEXTS_KERNEL(deltanet_texts_1, 128, 1)
TEXTS_KERNEL(deltanet_texts_4, 128, 4)
TEXTS_KERNEL(deltanet_texts_8, 168, 8)
