// route: per row the top_k experts of highest logit and their weights, see route.cuh. Then all
// visits (row * top_k + rank) in order of their expert and, within one, of their number (`order`),
// and where each expert's visits begin (`starts`, experts + 1 of them).
//
// Floor: 1024 rows of 256 experts are 1 MB; latency and launches limit it. A warp takes a row;
// then, in route_order, a warp lists the visits of one expert. Decoding passes choose in experts_up
// instead. Launch: route: grid [ceil(rows / 8)], block 256, then route_order: grid [ceil(experts /
// 8)], block 256. No dynamic shared memory. experts <= 512, top_k <= 32.
#include "route.cuh"

KERNEL(route, 56, RouteArgs, 256) {
  launch_dependents();
  const int row = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  wait_for_inputs();
  if (row >= a.rows) return;
  const float* const logits[1] = {a.logits + (size_t)row * a.experts};
  Choice<MAX_EXPERTS / 32, 1> choice;
  choice.choose(logits, a.experts, a.top_k,
                [&](int, int rank, u32 id) {
                  a.ids[(size_t)row * a.top_k + rank] = id;
                  count_choice(a.counts, id);
                });
  const float weight = choice.weight(0, a.top_k, a.scale);
  if (lane < a.top_k) a.weights[(size_t)row * a.top_k + lane] = weight;
}

KERNEL(route_order, 40, RouteArgs, 256) {
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
