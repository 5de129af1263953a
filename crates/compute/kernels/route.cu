// route: per row the top_k experts of highest logit, best first and of equals the lowest id; their weights are softmax
// probabilities divided by their sum, times `scale`. Then all visits (row * top_k + rank) in order of their expert and,
// within one, of their number (`order`), and where each expert's visits begin (`starts`, experts + 1 of them).
//
// A warp takes a row: a lane holds up to 16 logits as integers that compare like them, and the best is found top_k
// times by two warp reductions. A NaN anywhere in a row makes all its weights NaN; the ids are of distinct experts in
// any case.
//
// Floor: 16 rows of 256 experts are 16 KB; latency and launches limit it. So a pass of at most 64 rows is one launch of
// one block (route_few): a row visits an expert at most once, hence a mask of 64 rows per expert gives counts and
// places. A prompt takes two launches: `route`, then `route_order`, where a warp lists the visits of one expert.
// Launch: rows <= 64: route_few grid [1], block 1024. Else route: grid [ceil(rows / 8)], block 256, then route_order:
// grid [ceil(experts / 8)], block 256. No dynamic shared memory. experts <= 512, top_k <= 32.
// budget: route_few 64
// budget: route 64
// budget: route_order 40
#include "forerun.cuh"

constexpr int MAX_EXPERTS = 512;
constexpr int HELD = MAX_EXPERTS / 32;

// Compares as the float does; at least 1, so that 0 means taken.
__device__ __forceinline__ u32 sortable(float v) {
  const u32 bits = __float_as_uint(v);
  const u32 key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return key < 1u ? 1u : key;
}

__device__ __forceinline__ float logit_of(u32 key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Routes one row by one warp and calls visit(rank, id) in lane 0 for each choice.
template <class F> __device__ __forceinline__ void route_row(const RouteArgs& a, int row, F visit) {
  const int lane = threadIdx.x & 31;
  const float* logits = a.logits + (size_t)row * a.experts;
  u32 keys[HELD];
  bool nan = false;
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const int e = i * 32 + lane;
    const float logit = e < a.experts ? logits[e] : 0.f;
    nan |= logit != logit;
    keys[i] = e < a.experts ? sortable(logit) : 0u;
  }
  nan = __any_sync(~0u, nan);
  float highest = 0.f, sum = 0.f, mine = 0.f;
  for (int k = 0; k < a.top_k; k++) {
    u32 best = 0;
    int at = 0;  // of equal keys in a lane the first, which has the lowest id
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      if (keys[i] > best) best = keys[i], at = i;
    }
    const u32 key = __reduce_max_sync(~0u, best);
    const u32 id = __reduce_min_sync(~0u, best == key ? (u32)(at * 32 + lane) : 0xffffffffu);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      if ((u32)(i * 32 + lane) == id) keys[i] = 0;
    }
    const float logit = logit_of(key);
    if (k == 0) highest = logit;
    const float weight = nan ? __uint_as_float(0x7fc00000u) : expf(logit - highest);
    sum += weight;
    if (lane == k) mine = weight;
    if (lane == 0) {
      a.ids[(size_t)row * a.top_k + k] = id;
      visit(k, id);
    }
  }
  if (lane < a.top_k) a.weights[(size_t)row * a.top_k + lane] = mine / sum * a.scale;
}

extern "C" __global__ void __launch_bounds__(1024) route_few(const __grid_constant__ RouteArgs a) {
  __shared__ u32 masks[MAX_EXPERTS][2];         // bit r: row r visits the expert
  __shared__ u32 begins[MAX_EXPERTS];
  __shared__ unsigned short chosen[DECODE_ROWS * 32];
  __shared__ u32 sums[32];
  launch_dependents();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int i = threadIdx.x; i < MAX_EXPERTS * 2; i += 1024) masks[i >> 1][i & 1] = 0;
  wait_for_inputs();
  __syncthreads();
  for (int row = warp; row < a.rows; row += 32) {
    route_row(a, row, [&](int rank, u32 id) {
      atomicOr(&masks[id][row >> 5], 1u << (row & 31));
      chosen[row * a.top_k + rank] = (unsigned short)id;
    });
  }
  __syncthreads();
  // Threads 0..511 have an expert each: a sum over those before it.
  const int expert = threadIdx.x;
  const u32 count = expert < a.experts ? __popc(masks[expert][0]) + __popc(masks[expert][1]) : 0u;
  u32 upto = count;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const u32 below = __shfl_up_sync(~0u, upto, step);
    if (lane >= step) upto += below;
  }
  if (lane == 31) sums[warp] = upto;
  __syncthreads();
  u32 before = 0;
  for (int w = 0; w < warp && w < MAX_EXPERTS / 32; w++) before += sums[w];
  if (expert < a.experts) {
    begins[expert] = before + upto - count;
    a.starts[expert] = before + upto - count;
    if (expert == a.experts - 1) a.starts[a.experts] = before + upto;
  }
  __syncthreads();
  for (int visit = threadIdx.x; visit < a.rows * a.top_k; visit += 1024) {
    const int row = visit / a.top_k;
    const u32 id = chosen[visit], bits = (1u << (row & 31)) - 1;
    const u32 earlier = row < 32 ? __popc(masks[id][0] & bits) : __popc(masks[id][0]) + __popc(masks[id][1] & bits);
    a.order[begins[id] + earlier] = visit;
  }
}

extern "C" __global__ void __launch_bounds__(256) route(const __grid_constant__ RouteArgs a) {
  launch_dependents();
  const int row = blockIdx.x * 8 + (threadIdx.x >> 5);
  wait_for_inputs();
  if (row < a.rows) route_row(a, row, [](int, u32) {});
}

extern "C" __global__ void __launch_bounds__(256) route_order(const __grid_constant__ RouteArgs a) {
  launch_dependents();
  const u32 expert = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  const u32 visits = a.rows * a.top_k;
  wait_for_inputs();
  if (expert >= (u32)a.experts) return;
  u32 lower = 0;
#pragma unroll 8
  for (u32 v = lane; v < visits; v += 32) lower += a.ids[v] < expert;
  u32 at = __reduce_add_sync(~0u, lower);
  if (lane == 0) a.starts[expert] = at;
#pragma unroll 4
  for (u32 first = 0; first < visits; first += 32) {
    const u32 v = first + lane;
    const bool here = v < visits && a.ids[v] == expert;
    const u32 mask = __ballot_sync(~0u, here);
    if (here) a.order[at + __popc(mask & ((1u << lane) - 1))] = v;
    at += __popc(mask);
  }
  if (expert == (u32)a.experts - 1 && lane == 0) a.starts[a.experts] = at;
}
