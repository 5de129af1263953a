// experts_up: the second launch of a block's experts, see experts.cuh. The experts of every row and
// their weights, see route.cuh; act = silu(gate n) * (up n) of every visit and of the shared
// expert. One kernel for the usual formats, one for the others.
//
// Every block makes the whole choice for itself, which takes less than to wait for another's (at 16
// rows as much); the first one also writes it down, for experts_down and for whoever asks later.
//
// A block's items are 16 rows of gate and up for one group each, first some of the shared expert,
// whose weights are asked for before the inputs are there, then its share of all others, one expert
// after the other. The tiles of an item, all columns, are a stage of shared memory: two copies.
// Warp k multiplies tiles k, k + 8, .. of it with activations that stay in its registers while the
// group is the same; in turns, warps add up what all have left in `parts`. While the last item of a
// block is worked on, the first tiles of `down` are brought into L2.
//
// Floor: the tiles of gate and up of the experts that are visited: at 16 rows of 35B-A3B about 102
// experts, 120 MB, 27 us on an H200; at 1 row 10.6 MB, 2.3 us. What limits: instructions (490 to
// multiply two Q4_K tiles), at few rows the chain choice, groups, first weights, product, sum.
// Launch: grid any, block 256, two of them a multiprocessor. Dynamic shared memory stages *
// stage_bytes + UP_FIXED.
#pragma once
#include "experts.cuh"

constexpr int UP_WARPS = 8;
constexpr int BUFFERS = 2;  // items that may wait to be added up

struct ExpertsUpArgs {
  Activation x;
  const float* logits;         // [rows][experts]
  const u32* places;           // [experts], see places.cuh; may be null
  u32* counts;                 // [experts]: choices, which are added to; may be null
  u32* ids;                    // [rows][top_k]
  float* weights;              // [rows][top_k]
  VisitList* list;
  ExpertsMatrix gate, up, shared_gate, shared_up;
  ExpertsMatrix down;          // of experts_down
  // x; their numbers are used for sums: [visits][cols / 256] of 64 bytes, see Operand.
  Activation act, shared_act;
  int rows, experts, top_k;
  int stages, stage_bytes;  // a stage has a row of tiles of gate and one of up
  float scale;
  int ahead, pad;           // groups whose tiles of `down` are to be in L2 when experts_down begins
};

// n / by of numbers whose product with `by` is below 2^32.
struct Divisor {
  u32 by, factor;
  __device__ __forceinline__ explicit Divisor(u32 by) : by(by), factor(0xffffffffu / by + 1) {}
  __device__ __forceinline__ u32 of(u32 n) const { return by == 1 ? n : __umulhi(n, factor); }
};

// Bytes: [BUFFERS][gate, up][UP_WARPS][PART].
constexpr int UP_PARTS = BUFFERS * 2 * UP_WARPS * PART * 4;
constexpr int MAX_STAGES = 4;
constexpr int UP_FIXED = UP_PARTS + sizeof(Visits) + BUFFERS * 16 + MAX_STAGES * 16;
static_assert(UP_FIXED == 33936, "as in src/cuda/ops/experts.rs");

// A block's items, 16 rows of gate and up for one group each: first those of the shared expert,
// then its share of the others, all of one expert before the next.
struct Share {
  int shared, all;          // items of the block
  int first;                // of all experts' items
  Divisor shared_tiles, tiles;  // row tiles of an expert
};
struct Item {
  int index, group, tile;

  __device__ __forceinline__ bool of_shared(const Share& s) const { return index < s.shared; }
  __device__ __forceinline__ void find(const Share& s) {
    const bool is_shared = of_shared(s);
    const u32 at = is_shared ? blockIdx.x + index * gridDim.x : s.first + index - s.shared;
    group = is_shared ? s.shared_tiles.of(at) : s.tiles.of(at);
    tile = at - group * (is_shared ? s.shared_tiles.by : s.tiles.by);
  }
  // Whether the next item is of the same group, so that its tiles follow this one's.
  __device__ __forceinline__ bool next(const Share& s) {
    index++;
    if (index > s.shared && tile + 1 < (int)s.tiles.by) {
      tile++;
      return true;
    }
    find(s);
    return false;
  }
};

// Memory has nothing more to do for this block, and experts_down has not begun to ask: of each
// group it begins with, this block's share of the tiles, a group a lane.
__device__ __forceinline__ void fetch_ahead(const ExpertsUpArgs& a, const VisitList& visits,
                                            int lane) {
#if __CUDA_ARCH__ >= 900
  const int tiles = a.down.rows / 16 * (a.act.ld / 256), bytes = tile_bytes(a.down.format);
  for (int i = lane; i < min(a.ahead, (int)visits.count); i += 32) {
    const u8* from = tiles_at(a.down.weight, a.down.copies, group_place(visits.groups[i]),
                              (size_t)tiles * bytes);
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
      prefetch(from + (size_t)tile * bytes, bytes);
  }
#endif
}

// The experts of rows warp, warp + 8, ..., ROWS of them at once.
template <int HELD, int ROWS>
__device__ __forceinline__ void choose(const ExpertsUpArgs& a, Visits& visits, int warp, int lane) {
#pragma unroll 1
  for (int first = warp; first < a.rows; first += ROWS * UP_WARPS) {
    const float* logits[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {  // a row that does not exist is the first, and dropped
      const int row = first + r * UP_WARPS;
      logits[r] = a.logits + (size_t)(row < a.rows ? row : first) * a.experts;
    }
    Choice<HELD, ROWS> choice;
    choice.choose(logits, a.experts, a.top_k, [&](int r, int rank, u32 id) {
      const int row = first + r * UP_WARPS;
      if (row >= a.rows) return;
      add_visit(visits, row, row * a.top_k + rank, id);
      if (blockIdx.x > 0) return;
      a.ids[row * a.top_k + rank] = id;
      count_choice(a.counts, id);
    });
    if (blockIdx.x > 0) continue;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int row = first + r * UP_WARPS;
      const float weight = choice.weight(r, a.top_k, a.scale);
      if (row < a.rows && lane < a.top_k) a.weights[row * a.top_k + lane] = weight;
    }
  }
}

// A block's place in shared memory and in the work, as every thread of it knows them.
template <bool OTHERS> struct UpBlock {
  const ExpertsUpArgs& a;
  int warp, lane, columns;
  int working;          // warps with tiles
  u8* stages;           // [stages][stage_bytes]
  float* parts;
  Visits& visits;
  u64* barriers;        // [MAX_STAGES]: of the stages
  u64 *full, *empty;    // of `parts`
  u32* done;            // [MAX_STAGES]: warps that have read it, modulo `working`
  Share share;

  __device__ __forceinline__ void make_barriers() {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < BUFFERS; i++) {
      barrier_init(full + i, 32 * working);
      barrier_init(empty + i, 32);
    }
    for (int i = 0; i < MAX_STAGES; i++) {
      barrier_init(barriers + i, PAIR_ARRIVALS);
      done[i] = 0;
    }
    barriers_ready();
  }

  // Both rows of tiles of an item; a warp calls this together.
  __device__ __forceinline__ void fetch(int index, int stage) {
    Item item{index, 0, 0};
    item.find(share);
    const bool is_shared = item.of_shared(share);
    const u32 place = is_shared ? 0 : group_place(visits.groups[item.group]);
    const bool hot = is_hot(place);
    const size_t tile = (number_of(place) * share.tiles.by + item.tile) * columns;  // fits in 32 bits
    const int gate_bytes = tile_bytes(is_shared ? a.shared_gate.format : a.gate.format);
    const int up_bytes = tile_bytes(is_shared ? a.shared_up.format : a.up.format);
    copy_tiles(stages + stage * a.stage_bytes,
               (is_shared ? a.shared_gate.weight : hot ? a.gate.copies : a.gate.weight) +
                   tile * gate_bytes,
               columns * gate_bytes,
               (is_shared ? a.shared_up.weight : hot ? a.up.copies : a.up.weight) +
                   tile * up_bytes,
               columns * up_bytes, barriers + stage, lane);
  }

  // Writes down who visits whom, for experts_down and for whoever asks later.
  __device__ __forceinline__ void write_list() {
#pragma unroll 1
    for (int v = threadIdx.x; v < a.rows * a.top_k; v += blockDim.x) {
      a.list->groups[v] = visits.groups[v];  // those behind the last are whatever lies there
      a.list->order[v] = visits.order[v];
    }
    if (threadIdx.x == 0) a.list->count = visits.count;
    __threadfence();
    __syncthreads();
  }

  // The activations of an item's group; rows that do not exist are the first, and dropped.
  __device__ __forceinline__ void read(Operand& b, const Item& at, int column) {
    const int g = lane >> 2, t = lane & 3;
    const bool is_shared = at.of_shared(share);
    const u32 group = is_shared ? 0 : visits.groups[at.group];
    const int own = g < group_visits(group) ? g : 0, shared_row = at.group * GROUP + g;
    const u32 row = is_shared ? (shared_row < a.rows ? shared_row : 0)
                              : visits.order[group_first(group) + own] / (u32)a.top_k;
    const __half* sums = a.x.sums + (size_t)row * (a.x.ld / 16) + column * 16 + 2 * t;
    b.read(a.x.x + (size_t)row * a.x.ld + column * 256 + 8 * t);
    b.sums.x = load_word(sums);
    b.sums.y = load_word(sums + 8);
  }

  // A tile of gate and one of up, which lie in a stage.
  __device__ __forceinline__ void multiply_both(const Item& at, int stage, u32 parity, int column,
                                                const Operand& b, float (&out)[2][4]) {
    const bool is_shared = at.of_shared(share);
    const int format = is_shared ? a.shared_gate.format : a.gate.format;
    const int second_format = is_shared ? a.shared_up.format : a.up.format;
    const int bytes = tile_bytes(format), stride = columns * bytes;
    const u8* tiles = stages + stage * a.stage_bytes + column * bytes;
    if (column == warp) barrier_wait(barriers + stage, parity);
    if (format == second_format && format == TILE_Q4_K) {
      multiply<TILE_Q4_K, 2, false>(tiles, stride, b, out, lane);
    } else if (format == second_format && format == TILE_Q6_K) {
      multiply<TILE_Q6_K, 2, false>(tiles, stride, b, out, lane);
    } else {
      const u8* second =
          stages + stage * a.stage_bytes + stride + column * tile_bytes(second_format);
#pragma unroll 1
      for (int m = 0; m < 2; m++) {
        float one[1][4];
        multiply<1, false, OTHERS>(m ? second_format : format, m ? second : tiles, 0, b, one,
                                   lane);
#pragma unroll
        for (int e = 0; e < 4; e++) {
          if (m) out[1][e] = one[0][e];
          else out[0][e] = one[0][e];
        }
      }
    }
  }

  // The sum over the columns of an item, gate times up, and the sum of 16 columns beside it. A lane
  // has four rows of a visit.
  __device__ __forceinline__ void add_up(int index) {
    const int n = lane >> 2, q = lane & 3, buffer = index % BUFFERS;
    const float* part = parts + buffer * 2 * UP_WARPS * PART + n * LD + 4 * q;
    float sums[2][4];
    barrier_wait(full + buffer, (index / BUFFERS) & 1);
#pragma unroll
    for (int m = 0; m < 2; m++) {
      float4 sum = *(const float4*)(part + m * UP_WARPS * PART);
#pragma unroll
      for (int w = 1; w < UP_WARPS; w++) {
        if (w >= working) break;
        const float4 p = *(const float4*)(part + (m * UP_WARPS + w) * PART);
        sum.x += p.x, sum.y += p.y, sum.z += p.z, sum.w += p.w;
      }
      sums[m][0] = sum.x, sums[m][1] = sum.y, sums[m][2] = sum.z, sums[m][3] = sum.w;
    }
    barrier_arrive(empty + buffer);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      v[i] = clamp_half(sums[0][i] * (1.f / (1.f + expf(-sums[0][i]))) * sums[1][i]);
    }
    const uint2 words = make_uint2(pair(v[0], v[1]), pair(v[2], v[3]));
    float of_16 =
        low_float(words.x) + high_float(words.x) + low_float(words.y) + high_float(words.y);
    of_16 += __shfl_xor_sync(~0u, of_16, 1);
    of_16 += __shfl_xor_sync(~0u, of_16, 2);
    write(index, n, q, words, of_16);
  }

  // Four rows of visit n of an item, and the sum of 16.
  __device__ __forceinline__ void write(int index, int n, int q, const uint2& words, float of_16) {
    Item item{index, 0, 0};
    item.find(share);
    const bool is_shared = item.of_shared(share);
    const u32 group = is_shared ? 0 : visits.groups[item.group];
    const int count = is_shared ? min(a.rows - item.group * GROUP, GROUP) : group_visits(group);
    if (n >= count) return;
    const Activation& act = is_shared ? a.shared_act : a.act;
    const size_t visit = is_shared ? item.group * GROUP + n : visits.order[group_first(group) + n];
    *(uint2*)(act.x + visit * act.ld + item.tile * 16 + 4 * q) = words;
    // Of the tile's place among the 16 of a superblock: bit 0 the half of the group, bits 1-3 the
    // group.
    __half* places = (__half*)(act.numbers + (visit * (act.ld / 256) + (item.tile >> 4)) * 16);
    const int place = (item.tile >> 2 & 3) * 8 + (item.tile & 1) * 2 + (item.tile >> 1 & 1);
    if (q == 0) places[place] = __float2half_rn(clamp_half(of_16));
    if (q == 1) places[place + 4] = __float2half_rn(half_error(of_16));
  }

  // All items of the block. Warps take turns in adding up, each an item later than it multiplied
  // it: the others are done by then.
  __device__ __forceinline__ void run() {
    Operand b;
    Item at{0, 0, 0};
    at.find(share);
    bool same = false;        // b has this group's columns
    int turn = 0, stage = 0;  // at.index % working, % stages
    u32 parity = 0;
    while (at.index < share.all) {
      const int buffer = at.index % BUFFERS;
      float* part = parts + (buffer * 2 * UP_WARPS + warp) * PART;
      for (int column = warp; column < columns; column += UP_WARPS) {
        if (!same || columns > UP_WARPS) read(b, at, column);
        float out[2][4];
        multiply_both(at, stage, parity, column, b, out);
        if (column == warp && at.index >= BUFFERS) {
          barrier_wait(empty + buffer, (at.index / BUFFERS - 1) & 1);
        }
        put(part, out[0], column > warp, lane);
        put(part + UP_WARPS * PART, out[1], column > warp, lane);
      }
      barrier_arrive(full + buffer);
      // Who comes last has the stage filled again. The count only says who that is; that all have
      // read the stage is what the barrier says, which is complete by then.
      __syncwarp();
      u32 before = 0;
      if (lane == 0) before = atomicInc(done + stage, working - 1);
      if (at.index + a.stages < share.all && __shfl_sync(~0u, before, 0) == (u32)working - 1) {
        barrier_wait(full + buffer, (at.index / BUFFERS) & 1);
        fetch(at.index + a.stages, stage);
      }
      if (++stage == a.stages) {
        stage = 0;
        parity ^= 1;
      }
      if (at.index + 1 == share.all && warp == 0) fetch_ahead(a, visits, lane);
      if (at.index > 0 && (turn == 0 ? working : turn) - 1 == warp) add_up(at.index - 1);
      if (++turn == working) turn = 0;
      same = at.next(share) || a.rows == 1;
    }
    if (share.all > 0 && (turn == 0 ? working : turn) - 1 == warp) add_up(share.all - 1);
  }
};

template <bool OTHERS> __device__ __forceinline__ void multiply_up(const ExpertsUpArgs& a) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, columns = a.x.ld / 256;
  u8* stages = shared_memory();
  u8* memory = stages + a.stages * a.stage_bytes;
  Visits& visits = *(Visits*)(memory + UP_PARTS);
  u64* barriers = (u64*)(memory + UP_PARTS + sizeof(Visits));
  u64 *full = barriers + MAX_STAGES, *empty = full + BUFFERS;
  UpBlock<OTHERS> block{
      a, warp, lane, columns, min(columns, UP_WARPS), stages, (float*)memory, visits, barriers,
      full, empty, (u32*)(empty + BUFFERS),
      {0, 0, 0, Divisor(a.shared_gate.rows / 16), Divisor(a.gate.rows / 16)}};
  block.make_barriers();
  Share& share = block.share;
  const u32 row_groups = (a.rows + GROUP - 1) / GROUP;
  const u32 of_shared = a.shared_gate.rows / 16 * row_groups;
  const Divisor blocks(gridDim.x);
  // How many of so many items go to the blocks before one, dealt evenly: the first have one more.
  const auto dealt = [&](u32 items, u32 block) {
    const u32 each = blocks.of(items);
    return block * each + min(block, items - each * gridDim.x);
  };
  const u32 shared_before = dealt(of_shared, blockIdx.x);
  share.shared = share.all = dealt(of_shared, blockIdx.x + 1) - shared_before;
  const int early = min(share.shared, a.stages);
  __syncwarp();
  if (warp == 0) {
#pragma unroll 1
    for (int i = 0; i < early; i++) block.fetch(i, i);
  }
  no_visits(visits);
  __syncthreads();

  wait_for_inputs();
  if (a.experts > 256) choose<16, 1>(a, visits, warp, lane);
  else if (a.rows > UP_WARPS) choose<8, 2>(a, visits, warp, lane);
  else choose<8, 1>(a, visits, warp, lane);
  __syncthreads();
  list_groups(visits, a.places, a.rows, a.experts, a.top_k);
  // The shared expert's items count: who has more of these has fewer of the others.
  const u32 items = of_shared + visits.count * share.tiles.by;
  const u32 all_before = dealt(items, blockIdx.x);
  share.first = all_before - shared_before;
  share.all = dealt(items, blockIdx.x + 1) - all_before;
  if (warp == 0) {
#pragma unroll 1
    for (int i = early; i < min(share.all, a.stages); i++) block.fetch(i, i);
  }
  list_order(visits, a.rows, a.top_k);
  if (blockIdx.x == 0) block.write_list();
  // experts_down reads what experts_route and the first block wrote before this kernel has ended.
  launch_dependents();
  if (warp < block.working) block.run();
}
