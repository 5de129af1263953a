// experts_down: the last launch of a block's experts, see experts.cuh. x += add; out = sum over
// ranks, in order, of weight * (down act) + sigmoid(shared logit) * (down act of the shared
// expert). One kernel for the usual formats, one for the others.
//
// A block has 16 outputs and all groups; a warp multiplies the row tile of one group after the
// other, tiles streaming through a ring of its own, and leaves the results in shared memory, where
// they are weighted and added. The choice of experts is there before experts_up has ended, so the
// first tiles are asked for while it runs; and so are x, add and the shared expert's logits, which
// nobody else uses any more.
//
// Floor: the tiles of down of the experts that are visited: at 16 rows of 35B-A3B about 102
// experts, 74 MB (half Q4_K, half Q6_K), 16 us on an H200. What limits: instructions (245 to
// multiply a Q4_K tile, 350 Q6_K). Launch: grid [row tiles], block 32 * warps, 8 to 16 warps.
// Dynamic shared memory warps * slots * (slot_bytes + 8) + rows * (top_k + 1) * 4 * (LD + 1) +
// DOWN_FIXED.
#pragma once
#include "experts.cuh"

struct ExpertsDownArgs {
  Activation act, shared_act;
  const VisitList* list;
  const float *weights, *shared_logits;
  ExpertsMatrix down, shared_down;
  float* x;
  const float* add;  // may be null
  float* out;        // may be add
  int rows, top_k;
  int slots, slot_bytes;
};

// A warp's ring of tiles.
struct Ring {
  u8* slots;
  u64* barriers;
  int count, bytes;
  int slot;    // the next tile to multiply with
  u32 parity;
  int filled;  // where the next tile goes
  int free;    // tiles that may be asked for

  __device__ __forceinline__ void init(int lane) {
    if (lane == 0) {
#pragma unroll 1
      for (int i = 0; i < count; i++) barrier_init(barriers + i, ARRIVALS);
      barriers_ready();
    }
    __syncwarp();
  }
  __device__ __forceinline__ void ask(const u8* from, int size, int lane) {
    copy_tile(slots + filled * bytes, from, size, barriers + filled, lane);
    if (++filled == count) filled = 0;
    free--;
  }
  __device__ __forceinline__ const u8* wait() {
    barrier_wait(barriers + slot, parity);
    return slots + slot * bytes;
  }
  __device__ __forceinline__ void next() {
    __syncwarp();  // every lane has read the tile
    free++;
    if (++slot == count) {
      slot = 0;
      parity ^= 1;
    }
  }
};

constexpr int DOWN_FIXED = sizeof(VisitList);

template <bool OTHERS> __device__ __forceinline__ void multiply_down(const ExpertsDownArgs& a) {
  launch_dependents();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3,
            warps = blockDim.x >> 5;
  const int visit_count = a.rows * a.top_k;
  u8* memory = shared_memory();
  u8* slots = memory;
  memory += warps * a.slots * a.slot_bytes;
  u64* barriers = (u64*)memory;
  memory += warps * a.slots * 8;
  VisitList& visits = *(VisitList*)memory;
  // [visits, then rows of the shared expert][LD].
  float* results = (float*)(memory + sizeof(VisitList));
  float* weights = results + (visit_count + a.rows) * LD;  // of each
  Ring ring{slots + warp * a.slots * a.slot_bytes,
            barriers + warp * a.slots,
            a.slots,
            a.slot_bytes,
            0,
            0,
            0,
            a.slots};
  ring.init(lane);
  // experts_up has let this kernel begin, so experts_route has ended and the choice is there.
  // Everything is asked for at once, a thread's first number of x too.
  const auto place = [&](int i) {
    return (size_t)(i >> 4) * a.down.rows + blockIdx.x * 16 + (i & 15);
  };
  const int own = __ldcg(&a.list->count), numbers = a.add ? a.rows * 16 : 0;
  float x0 = 0.f, add0 = 0.f;
  if ((int)threadIdx.x < numbers)
    x0 = __ldcg(a.x + place(threadIdx.x)), add0 = __ldcg(a.add + place(threadIdx.x));
#pragma unroll 1
  for (int v = threadIdx.x; v < visit_count; v += blockDim.x) {
    const float logit = v < a.rows ? __ldcg(a.shared_logits + v) : 0.f;
    visits.groups[v] = __ldcg(a.list->groups + v);
    visits.order[v] = __ldcg(a.list->order + v);
    weights[v] = __ldcg(a.weights + v);
    if (v < a.rows) weights[visit_count + v] = 1.f / (1.f + expf(-logit));
  }
  __syncthreads();

  // Units: groups of experts, then those of the shared one; a warp has every `warps`th.
  const int units = own + (a.rows + GROUP - 1) / GROUP;
  int ahead = warp, left = 0, bytes = 0;  // tiles left of unit `ahead`
  const u8* from = nullptr;
  const auto aim = [&]() {
    if (ahead >= units) return;
    const bool is_shared = ahead >= own;
    const ExpertsMatrix& m = is_shared ? a.shared_down : a.down;
    const u32 place = is_shared ? 0 : group_place(visits.groups[ahead]);
    left = (is_shared ? a.shared_act.ld : a.act.ld) / 256;
    bytes = tile_bytes(m.format);
    from = (is_hot(place) ? m.copies : m.weight) +
           (size_t)(number_of(place) * (u32)(m.rows / 16) + blockIdx.x) * left * bytes;
  };
  const auto fill = [&]() {
    while (ring.free > 0 && ahead < units) {
      ring.ask(from, bytes, lane);
      from += bytes;
      if (--left > 0) continue;
      ahead += warps;
      aim();
    }
  };
  aim();
  fill();
  if ((int)threadIdx.x < numbers) a.x[place(threadIdx.x)] = x0 + add0;
#pragma unroll 1
  for (int i = threadIdx.x + blockDim.x; i < numbers; i += blockDim.x)
    a.x[place(i)] = __ldcg(a.x + place(i)) + __ldcg(a.add + place(i));

  // A group, or up to 8 rows of the shared expert.
  struct Unit {
    int first, count;
    bool is_shared;
  };
  const auto unit_of = [&](int unit) {
    const bool is_shared = unit >= own;
    const u32 group = is_shared ? 0 : visits.groups[unit];
    const int first = is_shared ? (unit - own) * GROUP : group_first(group);
    return Unit{first, is_shared ? min(a.rows - first, GROUP) : group_visits(group), is_shared};
  };
  const auto visit_of = [&](const Unit& u, int n) {
    return u.is_shared ? u.first + n : (int)visits.order[u.first + n];
  };
  // Where an operand is read from, a tile ahead: while one is multiplied the next takes its place,
  // piece by piece.
  const __half* x = nullptr;
  const float* sums = nullptr;
  const auto begin = [&](const Unit& u) {
    const Activation& act = u.is_shared ? a.shared_act : a.act;
    // Rows that do not exist are the first, and dropped.
    const size_t mine = visit_of(u, g < u.count ? g : 0);
    x = act.x + mine * act.ld + 8 * t;
    sums = act.numbers + mine * (act.ld / 16) + 4 * t;
  };
  Operand b;
  const auto read = [&](int c) {
    if (c < 4) b.x[2 * c] = load16(x + 64 * c), b.x[2 * c + 1] = load16(x + 64 * c + 32);
    else b.sums = load16(sums);
  };
  Unit at{0, 0, false};
  if (warp < units) begin(at = unit_of(warp));

  wait_for_inputs();
  if (warp < units) {
#pragma unroll
    for (int c = 0; c < 5; c++) read(c);
  }
  for (int unit = warp; unit < units; unit += warps) {
    // Behind the last is the last again.
    const Unit next = unit + warps < units ? unit_of(unit + warps) : at;
    const int format = at.is_shared ? a.shared_down.format : a.down.format;
    const int columns = (at.is_shared ? a.shared_act.ld : a.act.ld) / 256;
    float sum[4];
    for (int column = 0; column < columns; column++) {
      if (column + 1 < columns) x += 256, sums += 16;
      else begin(next);
      float out[1][4];
      multiply<1, true, OTHERS>(format, ring.wait(), 0, b, out, lane, read);
      ring.next();
      fill();
#pragma unroll
      for (int e = 0; e < 4; e++) sum[e] = column ? sum[e] + out[0][e] : out[0][e];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int n = 2 * t + i;
      if (n >= at.count) continue;
      float* to = results + ((at.is_shared ? visit_count : 0) + visit_of(at, n)) * LD + g;
      to[0] = sum[i];
      to[8] = sum[2 + i];
    }
    at = next;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < a.rows * 16; i += blockDim.x) {
    const int row = i >> 4, m = i & 15;
    float sum = 0.f;
    for (int k = 0; k < a.top_k; k++) {
      sum = fmaf(weights[row * a.top_k + k], results[(row * a.top_k + k) * LD + m], sum);
    }
    sum = fmaf(weights[visit_count + row], results[(visit_count + row) * LD + m], sum);
    a.out[place(i)] = sum;
  }
}
