// What every kernel shares: how it is declared, the pass as the device sees it, activations, and
// the arguments of each op.
//
// Conventions. Rows of f32 numbers are [rows][cols] without padding. Matrices are multiplied with
// activations: f16 rows padded to whole superblocks of 256 columns. Nothing here depends on how
// many rows a pass has: a row's bits are the same in any company, so every sum runs in an order
// that follows from positions and columns alone.
#pragma once
#include <cuda_fp16.h>

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// Declares a kernel of one argument `a`: its name, the registers that ptxas may give it
// (scripts/check-kernels holds it to them), the struct `a` is, and its launch bounds. When the
// crate is built, build/declarations.rs makes from this a constant to launch the kernel by, and the
// struct in Rust. So a kernel, or a macro called ..._KERNEL that makes some, begins its line, and a
// struct that is passed has fields alone: numbers, pointers, other such structs, arrays of them.
#define KERNEL(NAME, REGISTERS, ARGS, ...) \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__) NAME(const __grid_constant__ ARGS a)

constexpr int PAGE_TOKENS = 64;    // tokens in a key/value page
constexpr int ANCHOR_TOKENS = 32;  // Gated DeltaNet anchors stand at multiples of this
constexpr int TAPE_TOKENS = 64;    // positions the tape remembers, in a ring
constexpr int DECODE_ROWS = 256;   // rows of the largest pass that is not a prompt
constexpr int TEXT_ROWS = 64;      // those that one sequence has of them at most
constexpr int MAX_CACHES = 2;
constexpr int ARRANGED_BYTES = 4352;  // eight rows of a superblock in Activation::arranged

enum KvType { KV_F16 = 0, KV_Q8_0 = 1, KV_Q4_0 = 2 };

// What a pass reads of one sequence.
struct Sequence {
  int committed;
  // Its rows lie together in a prompt; in other passes the first of them and their number.
  int first_row, rows;
  int first_step, steps;
  int first_page[MAX_CACHES];             // number of pages[c][0]
  int pad;
  const u8* const* pages[MAX_CACHES];     // pages of each cache, see KvLayout
  const float* anchor;                    // state after committed / 32 * 32 tokens, or null
  const float* older;                     // state 32 tokens before it, or null
  const float* tape;
};

// Rows of one sequence that start from the same Gated DeltaNet anchor, in order of position.
struct Step {
  int sequence;
  int position;   // tokens behind the anchor
  int source;     // 0 zero, 1 older, 2 newest, 3 folded in this pass
  int from;       // folded: the step it is folded from
  int last;       // folded: the row that ends the 32 tokens
  int slot;       // folded: where the state is kept
  int first_row, rows;  // in Pass::step_rows
};

// One pass. All arrays lie at fixed addresses, so that a captured graph stays valid; what they hold
// changes.
struct Pass {
  const int* tokens;       // [rows]
  const int* positions;    // [rows]
  const int* sequence_of;  // [rows]
  const int* chosen;       // [chosen]: rows with logits
  // [rows][3], oldest first: r >= 0 a row, -1 nothing, -2 - p the committed position p.
  const int* taps;
  // [rows][TEXT_ROWS]: the row at position committed + j on a row's path. Not in prompts.
  const u8* path;
  // [rows][TAPE_TOKENS]: rows from a row's anchor up to the one before it, as taps.
  const int* recent;
  const int* recent_count; // [rows]
  const Step* steps;
  const int* step_rows;
  const Sequence* sequences;
  int rows, chosen_rows, sequence_count;  // fixed for a captured graph
  // Rows of each sequence are a chain and lie together; other kernels than for decoding.
  int prompt;
};

// Numbers that matrices are multiplied with.
struct Activation {
  __half* x;       // [rows][ld], zero from cols on
  __half* sums;    // [rows][ld / 256][2][8]: sums of 32 columns of x as high and low halves
  float* numbers;  // [rows][cols]
  // Or null: the same once more as tensor cores read it from shared memory, [ld / 256][DECODE_ROWS
  // / 8][34 matrices of 8 rows x 8 columns], so that a superblock of some rows is one copy: 32 of x
  // in the tiles' order of columns, then 2 of sums.
  u8* arranged;
  int cols, ld;    // ld: cols rounded up to 256
};

// A page is [layers][key, value][heads][PAGE_TOKENS][row_bytes], a row of a pass
// [key, value][heads][row_bytes].
struct KvLayout {
  int kind, layers, heads, head_dim, row_bytes;
};

struct RecurrentLayout {  // offsets in floats; see src/recurrent.rs
  int layers, key_heads, value_heads, dim, kernel;
  int channels;        // (2 key_heads + value_heads) dim
  int tape_layer;      // floats from one layer of a tape to the next
  int tape_deltas, tape_gates, tape_inputs;  // where they begin in a layer; keys begin at 0
};

// ------------------------------------------------------------------ arguments of the ops

// The table is as in the file.
struct EmbedArgs { Pass pass; const u8* table; int ty; int cols; int row_bytes; float* out; };
struct NormArgs {  // x += add; tap = x; out[offset..] = rms(x) * weight
  float* x; const float* add; const float* weight; float* tap; Activation out;
  int rows, cols, tap_stride, tap_offset, offset; float eps;
};
struct LoadArgs { const float* x; Activation out; int rows; };
struct SwiGluArgs { const float* gate; const float* up; Activation out; int rows; };
struct RouteArgs {
  const float* logits; u32* ids; float* weights; u32* order; u32* starts;
  u32* counts;  // choices of each expert, which are added to; may be null
  int rows, experts, top_k; float scale;
};
struct CombineArgs {
  // `shared` may be null.
  const float* experts; const float* weights; const float* shared; const float* shared_gate;
  float* out; int rows, cols, top_k;
};
struct RotatedLayer {
  const float* k;
  const float* v;
  const float* k_norm;
  u8* kv;  // the layer's rows of this pass, encoded
};
struct RotateArgs {
  Pass pass;
  float* q;
  const float* q_norm;
  const float* angles;
  RotatedLayer layers[8];
  KvLayout layout;
  int heads, head_dim, query_stride, pairs, hadamard; float eps;
};
struct AttentionArgs {
  Pass pass; const float* q; const u8* kv; float* partial; Activation out;
  KvLayout layout;
  int cache, layer, heads, head_dim, query_stride, gated, causal, window;  // window 0: none
  int parts, slots;  // how a decode pass is cut, see attention.cu
  float scale;
};
struct ConvolveArgs {
  Pass pass; const float* inputs; const float* weight; float* q; float* keys; float* v;
  RecurrentLayout layout; int layer;
};
struct DeltaNetArgs {
  Pass pass;
  const float* q;
  const float* keys;
  const float* v;
  const float* z;
  const float* alpha;
  const float* beta;
  const float* dt_bias; const float* decay; const float* norm;
  float* deltas; float* gates; float* products; float* states;
  Activation out; RecurrentLayout layout; int layer, slots; float eps;
};

__device__ __forceinline__ u32 shared_address(const void* p) {
  return (u32)__cvta_generic_to_shared(p);
}

// ------------------------------------------------------------------ activations

// A NaN stays one.
__device__ __forceinline__ float clamp_half(float v) {
  return v != v ? v : fminf(fmaxf(v, -65504.f), 65504.f);
}

// Where columns `col` to col + 7 of a row begin in Activation::arranged: two columns there, the
// next two 128 bytes on, and so on.
__device__ __forceinline__ u8* arranged_at(u8* arranged, int row, int col) {
  return arranged + ((size_t)(col >> 8) * (DECODE_ROWS / 8) + (row >> 3)) * ARRANGED_BYTES +
         (col >> 5 & 7) * 512 + (row & 7) * 16 + (col >> 3 & 3) * 4;
}

// Writes eight columns of a row. Lanes 4i..4i+3 of a warp must call this together, with the four
// groups of eight of one group of 32 columns in order; `col` is a multiple of 8. A NaN stays one.
__device__ __forceinline__ void store8(const Activation& a, int row, int col, const float (&v)[8]) {
  __align__(16) __half h[8];
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    h[i] = __float2half_rn(clamp_half(v[i]));
    sum += __half2float(h[i]);
  }
  const u32 lane = threadIdx.x & 31, group = 0xfu << (lane & 28);
  sum += __shfl_xor_sync(group, sum, 1);
  sum += __shfl_xor_sync(group, sum, 2);
  *(uint4*)(a.x + (size_t)row * a.ld + col) = *(const uint4*)h;
  float4* n = (float4*)(a.numbers + (size_t)row * a.cols + col);
  n[0] = make_float4(v[0], v[1], v[2], v[3]);
  n[1] = make_float4(v[4], v[5], v[6], v[7]);
  u8* const arranged = a.arranged ? arranged_at(a.arranged, row, col) : nullptr;
  if (arranged) {
    u32* to = (u32*)arranged;
#pragma unroll
    for (int i = 0; i < 4; i++) to[32 * i] = ((const u32*)h)[i];
  }
  if ((lane & 3) == 0) {
    const __half high = __float2half_rn(clamp_half(sum));
    const __half low = __float2half_rn(clamp_half(sum - __half2float(high)));
    __half* s = a.sums + (size_t)row * (a.ld / 16) + (col >> 8) * 16 + ((col >> 5) & 7);
    s[0] = high;
    s[8] = low;
    if (arranged) {
      const int group = col >> 5 & 7;
      __half* t = (__half*)(arranged - group * 512 + 4096) + group;
      t[0] = high;
      t[64] = low;
    }
  }
}

// ------------------------------------------------------------------ programmatic dependent launch

__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
