// The experts of a decoding pass, from a block's second norm to the sum of its experts' outputs, in
// three launches:
//   experts_route  n = rms(x + add) * norm, and the router's logits of n;
//   experts_up     the choice of experts; act = silu(gate n) * (up n) of every visit and of the
//   shared expert;
//   experts_down   x += add; out = sum over ranks of weight * down act + sigmoid(shared logit) *
//   shared down act. Here is what they share. A visit is a row at one of its experts, row * top_k +
//   rank. Visits of an expert are multiplied in groups of up to 8; the shared expert is visited by
//   all rows, in groups of their own. See tiles.cuh for the weights.
//
// A row's bits: every tile of 16 x 256 weights is multiplied from zero, and an output is the sum of
// its tiles in order of the columns; ranks are added in order. Which warp or block does what
// changes no sum.
//
// Limits: rows <= TEXT_ROWS, experts <= 512, top_k <= 16, all columns whole tiles, at most 4096
// of x.
#pragma once
#include "places.cuh"
#include "ring.cuh"
#include "route.cuh"
#include "tiles.cuh"

constexpr int GROUP = 8;       // visits multiplied together
// Floats from one visit of a partial result of 16 rows to the next: no bank conflicts.
constexpr int LD = 20;
constexpr int PART = GROUP * LD;
constexpr int MAX_VISITS = TEXT_ROWS * 16;

struct ExpertsMatrix {
  const u8* weight;  // tiles [expert][rows / 16][cols / 256]
  const u8* copies;  // the same by slot, see places.cuh; may be null
  int rows, format;
};

__device__ __forceinline__ u8* shared_memory() {
  extern __shared__ __align__(128) u8 memory[];
  return memory;
}
// One tile, or two rows of tiles one behind the other, into shared memory; lanes of a warp call
// this together.
__device__ __forceinline__ void copy_tile(u8* to, const u8* from, int bytes, u64* barrier,
                                          int lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    barrier_expect(barrier, bytes);
    copy_stream(to, from, bytes, barrier);
  }
#else
  copy_pieces(to, from, bytes, barrier, lane);
#endif
}
__device__ __forceinline__ void copy_tiles(u8* to, const u8* first, int size, const u8* second,
                                           int second_size, u64* barrier, int lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    barrier_expect(barrier, size + second_size);
    copy_stream(to, first, size, barrier);
    copy_stream(to + size, second, second_size, barrier);
  }
#else
  copy_pieces(to, first, size, barrier, lane);
  copy_pieces(to + size, second, second_size, barrier, lane);
#endif
}
__device__ __forceinline__ void barriers_ready() {
#if __CUDA_ARCH__ >= 900
  barrier_init_fence();
#endif
}
#if __CUDA_ARCH__ >= 900
constexpr int ARRIVALS = 1, PAIR_ARRIVALS = 1;
#else
constexpr int ARRIVALS = 32, PAIR_ARRIVALS = 64;
#endif

// What a lane multiplies tiles with: of activation row lane / 4 the columns 8 t .. 8 t + 7 of each
// of 8 groups of 32, and for groups 2 t and 2 t + 1 the high and the low halves of their sums; or
// the high halves of the sums of their first and of their last 16 columns, then the low ones
// (BY_16).
struct Operand {
  uint4 x[8], sums;

  __device__ __forceinline__ void read(const __half* from) {  // + 8 t
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = load16(from + 32 * i);
  }
};

struct Nothing {  // is done with an operand that has been read
  __device__ __forceinline__ void operator()(int) const {}
};
// TILES tiles, `stride` bytes apart, times one operand: elements 0, 1 of a result are row g of the
// tile and activation rows 2 t, + 1; 2, 3 row g + 8. used(c) is called when b.x[2 c] and b.x[2 c +
// 1] have been read for the last time, used(4) when b.sums have: the next operand may come in their
// place.
template <int FORMAT, int TILES, bool BY_16, class Used = Nothing>
__device__ __forceinline__ void multiply(const u8* tile, int stride, const Operand& b,
                                         float (&out)[TILES][4], int lane,
                                         const Used& used = Used()) {
  typedef Tile<FORMAT> T;
  float even[TILES][4], odd[TILES][4];
  typename T::Head head[TILES];
#pragma unroll
  for (int m = 0; m < TILES; m++) {
    head[m] = T::head(tile + m * stride, lane);
#pragma unroll
    for (int e = 0; e < 4; e++) even[m][e] = odd[m][e] = 0.f;
  }
#pragma unroll
  for (int c = 0; c < 4; c++) {
    const uint4 first = b.x[2 * c], second = b.x[2 * c + 1];
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      u32 a[4][4];
      T::chunk(tile + m * stride, head[m], c, lane, a);
      if constexpr (is_grouped(FORMAT)) {
        float d[2], d2[2], one[4] = {0.f, 0.f, 0.f, 0.f}, two[4] = {0.f, 0.f, 0.f, 0.f};
        T::group(tile + m * stride, head[m], 2 * c, lane, d);
        T::group(tile + m * stride, head[m], 2 * c + 1, lane, d2);
        mma(one, a[0], first.x, first.y);
        mma(two, a[2], second.x, second.y);
        mma(one, a[1], first.z, first.w);
        mma(two, a[3], second.z, second.w);
#pragma unroll
        for (int e = 0; e < 4; e++)
          even[m][e] = __fmaf_rn(d2[e >> 1], two[e], __fmaf_rn(d[e >> 1], one[e], even[m][e]));
      } else {
        mma(even[m], a[0], first.x, first.y);
        mma(odd[m], a[1], first.z, first.w);
        mma(even[m], a[2], second.x, second.y);
        mma(odd[m], a[3], second.z, second.w);
      }
    }
    used(c);
  }
#pragma unroll
  for (int m = 0; m < TILES; m++) {
    if constexpr (is_grouped(FORMAT)) {
#pragma unroll
      for (int e = 0; e < 4; e++) out[m][e] = even[m][e];
    } else {
      float d[2];
      T::ends(tile + m * stride, head[m], lane, d);
#pragma unroll
      for (int e = 0; e < 4; e++) out[m][e] = d[e >> 1] * (even[m][e] + odd[m][e]);
      if constexpr (FORMAT == TILE_Q4_K || FORMAT == TILE_Q5_K) {
        u32 a[4];
        float mins[4] = {0.f, 0.f, 0.f, 0.f};
        T::mins(head[m], lane, a, d);
        mma(mins, a, b.sums.x, b.sums.y);
        if (BY_16) mma(mins, a, b.sums.z, b.sums.w);
#pragma unroll
        for (int e = 0; e < 4; e++) out[m][e] = __fmaf_rn(d[e >> 1], mins[e], out[m][e]);
      }
    }
  }
  used(4);
}

// The same for a format that is known at run time. With all formats in one switch the usual ones
// are slower, so OTHERS says whether it has those of FOR_OTHER_FORMATS.
template <int TILES, bool BY_16, bool OTHERS = false, class Used = Nothing>
__device__ __forceinline__ void multiply(int format, const u8* tile, int stride, const Operand& b,
                                         float (&out)[TILES][4], int lane,
                                         const Used& used = Used()) {
  switch (format) {
    case TILE_Q4_K: multiply<TILE_Q4_K, TILES, BY_16>(tile, stride, b, out, lane, used); break;
    case TILE_Q5_K: multiply<TILE_Q5_K, TILES, BY_16>(tile, stride, b, out, lane, used); break;
    case TILE_Q6_K: multiply<TILE_Q6_K, TILES, BY_16>(tile, stride, b, out, lane, used); break;
    case TILE_Q8_0: multiply<TILE_Q8_0, TILES, BY_16>(tile, stride, b, out, lane, used); break;
    default:
      if constexpr (OTHERS) {
#define FORERUN_CASE(F) \
  case F: multiply<F, TILES, BY_16>(tile, stride, b, out, lane, used); return;
        switch (format) { FOR_OTHER_FORMATS(FORERUN_CASE) }
#undef FORERUN_CASE
      }
      multiply<TILE_F16, TILES, BY_16>(tile, stride, b, out, lane, used);
  }
}

// A result of a tile as [visit][row], added to what is there or instead of it.
__device__ __forceinline__ void put(float* part, const float (&v)[4], bool add, int lane) {
  float* to = part + 2 * (lane & 3) * LD + (lane >> 2);
  to[0] = add ? to[0] + v[0] : v[0];
  to[LD] = add ? to[LD] + v[1] : v[1];
  to[8] = add ? to[8] + v[2] : v[2];
  to[LD + 8] = add ? to[LD + 8] + v[3] : v[3];
}

// Two numbers as halves of a word.
__device__ __forceinline__ u32 pair(float a, float b) {
  return (u32)__half_as_ushort(__float2half_rn(a)) | (u32)__half_as_ushort(__float2half_rn(b))
                                                         << 16;
}
__device__ __forceinline__ float half_error(float v) {
  return clamp_half(v - __half2float(__float2half_rn(clamp_half(v))));
}

// ------------------------------------------------------------------ who visits whom

// In shared memory and, for experts_down, in the device's.
struct VisitList {
  u32 count, pad[3];                 // groups
  u32 groups[MAX_VISITS];            // expert's place << 16 | visits << 12 | first in `order`
  unsigned short order[MAX_VISITS];  // visits by expert
};
static_assert(sizeof(VisitList) == 6160, "as in src/cuda/ops/experts.rs");
struct Visits : VisitList {
  u32 masks[MAX_EXPERTS][2];           // bit r: row r visits the expert
  unsigned short chosen[MAX_VISITS];   // expert of each visit
  unsigned short begins[MAX_EXPERTS];  // where an expert's visits begin in `order`
  u32 sums[8];
};
static_assert(sizeof(Visits) == 13360, "as in src/cuda/ops/experts.rs");
__device__ __forceinline__ u32 group_place(u32 group) { return group >> 16; }
__device__ __forceinline__ int group_visits(u32 group) { return (group >> 12) & 15; }
__device__ __forceinline__ int group_first(u32 group) { return group & 4095; }

// By all threads, before a barrier and the first add_visit.
__device__ __forceinline__ void no_visits(Visits& s) {
  for (int i = threadIdx.x; i < MAX_EXPERTS; i += blockDim.x) s.masks[i][0] = s.masks[i][1] = 0;
}
__device__ __forceinline__ void add_visit(Visits& s, int row, int visit, u32 expert) {
  s.chosen[visit] = (unsigned short)expert;
  atomicOr(&s.masks[expert][row >> 5], 1u << (row & 31));
}

// Sorts the visits into groups; which visits these are stands in `order` after list_order. All
// threads of the block (256 at least) call both, a barrier before the first; a barrier comes last
// in each that has something to do (for one row the first does it all).
__device__ __forceinline__ void list_groups(Visits& s, const u32* places, int rows, int experts,
                                            int top_k) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (rows == 1) {
    if ((int)threadIdx.x < top_k) {
      s.order[threadIdx.x] = threadIdx.x;
      s.groups[threadIdx.x] =
          place_of(places, s.chosen[threadIdx.x]) << 16 | 1 << 12 | threadIdx.x;
    }
    if (threadIdx.x == 0) s.count = top_k;
    __syncthreads();
    return;
  }
  // 256 threads have one or two experts each: sums of visits and of groups of those before.
  const int each = (experts + 255) / 256, from = threadIdx.x * each;
  u32 counts[2] = {0, 0}, own = 0;
  if (threadIdx.x < 256) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (i < each && from + i < experts)
        counts[i] = __popc(s.masks[from + i][0]) + __popc(s.masks[from + i][1]);
      own += counts[i] | (counts[i] + GROUP - 1) / GROUP << 16;
    }
  }
  u32 upto = own;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const u32 below = __shfl_up_sync(~0u, upto, step);
    if (lane >= step) upto += below;
  }
  if (lane == 31 && warp < 8) s.sums[warp] = upto;
  __syncthreads();
  if (threadIdx.x < 256) {
    u32 before = upto - own;
#pragma unroll
    for (int w = 0; w < 8; w++) before += w < warp ? s.sums[w] : 0;
    u32 at = before & 0xffff, group = before >> 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (!counts[i]) continue;
      s.begins[from + i] = at;
      const u32 place = place_of(places, from + i);
#pragma unroll 1
      for (int left = counts[i]; left > 0; left -= GROUP) {
        const u32 here = min(left, GROUP);
        s.groups[group++] = place << 16 | here << 12 | at;
        at += here;
      }
    }
    if (threadIdx.x == 255) s.count = group;
  }
  __syncthreads();
}
__device__ __forceinline__ void list_order(Visits& s, int rows, int top_k) {
  if (rows == 1) return;
#pragma unroll 1
  for (int v = threadIdx.x; v < rows * top_k; v += blockDim.x) {
    const int row = v / top_k;
    const u32 id = s.chosen[v], bits = (1u << (row & 31)) - 1;
    const u32* mask = s.masks[id];
    const u32 earlier =
        row < 32 ? __popc(mask[0] & bits) : __popc(mask[0]) + __popc(mask[1] & bits);
    s.order[s.begins[id] + earlier] = v;
  }
  __syncthreads();
}
