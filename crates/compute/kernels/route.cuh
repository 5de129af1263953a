// The router's choice for one row, by one warp.
#pragma once
#include "forerun.cuh"

constexpr int MAX_EXPERTS = 512;

// Compares as the float does; at least 1, so that 0 means taken.
__device__ __forceinline__ u32 sortable(float v) {
  const u32 bits = __float_as_uint(v);
  const u32 key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return key < 1u ? 1u : key;
}

__device__ __forceinline__ float logit_of(u32 key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The top_k experts of highest logit, best first and of equals the lowest id: calls visit(rank, id) in lane 0 for each.
// Lane k returns the weight of rank k: softmax probabilities divided by their sum, times `scale`. A lane holds HELD
// logits, in order, as integers that compare like them; two warp reductions find the best of the lanes' firsts. A NaN
// anywhere in a row makes all its weights NaN; the ids are of distinct experts in any case.
// FRESH: logits that another block of this launch wrote, so not from L1.
template <int HELD, bool FRESH, class F>
__device__ __forceinline__ float route_row(const float* logits, int experts, int top_k, float scale, F visit) {
  const int lane = threadIdx.x & 31;
  u64 keys[HELD];  // the logit, and ~id
  bool nan = false;
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const u32 e = i * 32 + lane;
    const float logit = e < (u32)experts ? (FRESH ? __ldcg(logits + e) : logits[e]) : 0.f;
    nan |= logit != logit;
    keys[i] = e < (u32)experts ? (u64)sortable(logit) << 32 | ~e : 0;
  }
  nan = __any_sync(~0u, nan);
#pragma unroll
  for (int pass = 0; pass < HELD; pass++) {
#pragma unroll
    for (int i = pass & 1; i + 1 < HELD; i += 2) {
      const u64 high = max(keys[i], keys[i + 1]), low = min(keys[i], keys[i + 1]);
      keys[i] = high, keys[i + 1] = low;
    }
  }
  u32 mine = 0, highest = 0;
  for (int k = 0; k < top_k; k++) {
    const u32 first = (u32)(keys[0] >> 32), key = __reduce_max_sync(~0u, first);
    const u32 id = __reduce_max_sync(~0u, first == key ? (u32)keys[0] : 0u);
    if (first == key && (u32)keys[0] == id) {
#pragma unroll
      for (int i = 0; i + 1 < HELD; i++) keys[i] = keys[i + 1];
      keys[HELD - 1] = 0;
    }
    if (k == 0) highest = key;
    if (lane == k) mine = key;
    if (lane == 0) visit(k, ~id);
  }
  float weight = lane >= top_k ? 0.f : nan ? __uint_as_float(0x7fc00000u) : expf(logit_of(mine) - logit_of(highest));
  float sum = 0.f;
  for (int k = 0; k < top_k; k++) sum += __shfl_sync(~0u, weight, k);
  return weight / sum * scale;
}
