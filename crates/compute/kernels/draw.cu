// draw: one token per row of logits [rows][vocab], by the row's own settings. The check for NaN and
// infinity comes before everything: bad[r] is the lowest index of one, else -1; the token of such a
// row is 0.
//
// Temperature 0 (or less): the highest logit, of equals the lowest id. Else: the top_k best (0:
// all); of those the fewest best whose share reaches top_p, and only those at least min_p times as
// probable as the best; then, in order of ids, the token where the sum of masses passes
// uniform(seed, choice, position) of the whole (Philox 4x32-10, 53 bits).
//
// A mass is exp((logit - highest) / temperature) * 2^44 rounded down to an integer. So sums are
// exact in any order and the token depends on the row alone, not on how it is split over blocks and
// threads. What is lost is at most 2^-26 of the whole, a token below 2^-44 of the best has no mass
// and is never drawn.
//
// Nothing is sorted but a short list. A token is a 64-bit word, the logit as an integer that
// compares like it above the complement of the id, so that words all differ. A set "the best so
// many" is the words from a lowest one, `floor`, on. It is found by a histogram over 2048 bins,
// first by distance from the highest logit in temperatures, 64 bins to one, then, as long as the
// bin that holds the end is too full, by the bits of the words in that bin. The words of the last
// bin are listed, sorted, and counted or summed up to the end.
//
// The blocks of a cluster share a row, each with a range of ids; histograms and lists are read from
// each other's shared memory. Devices without clusters take one block a row. Every pass over the
// row reads it again, from L2 or L1.
//
// Floor: 16 rows of 248320: 16 MB a pass from L2, about 3 us; greedy is one pass, top-k and top-p
// together are six. What limits it is the instructions for every number in every pass, and a dozen
// cluster barriers. Launch: grid [rows * split], block 512, cluster `split`: 8 from compute
// capability 9.0 on, else 1. No dynamic shared memory. vocab <= 262144. An image for older devices
// that runs on a newer one leaves all but one block of a row idle.
#include "forerun.cuh"

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int BINS = 2048;
constexpr int BIN_BITS = 11;
constexpr int PER_THREAD = BINS / THREADS;
constexpr int LISTED = 1024;
// Masses are 0 from 31 temperatures on, where 1984 bins end.
constexpr float BINS_PER_TEMPERATURE = 64.f;
constexpr float ONE = 17592186044416.f;       // 2^44, the mass of the best token

struct Draw {
  float temperature;
  int top_k;
  float top_p, min_p;
  u64 seed;
  u32 choice, position;
};

struct DrawArgs {
  const float* logits;
  const Draw* draws;  // [rows]
  u32* tokens;        // [rows]
  int* bad;           // [rows]
  int rows, vocab, split;
};

struct Shared {
  u32 count[BINS], low[BINS], high[BINS];  // tokens in a bin, their mass as two words
  u64 list[LISTED];
  u64 warp_sums[WARPS];
  u64 best, lowest, total, floor;  // read by the other blocks of the cluster
  u64 above;                       // mass or number of the tokens in bins before `bin`
  u32 first_bad, listed, bin, members;
};

// The blocks of a cluster.
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ int cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return (int)rank;
}
__device__ __forceinline__ int cluster_blocks() {
  u32 blocks;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  return (int)blocks;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// The same variable in another block of the cluster.
template <class T> __device__ __forceinline__ T* in_block(T* variable, int rank) {
  u64 address;
  asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"((u64)variable), "r"(rank));
  return (T*)address;
}
#else
__device__ __forceinline__ int cluster_rank() { return 0; }
__device__ __forceinline__ int cluster_blocks() { return 1; }
__device__ __forceinline__ void cluster_sync() { __syncthreads(); }
template <class T> __device__ __forceinline__ T* in_block(T* variable, int) { return variable; }
#endif

// Larger for better tokens. Minus zero counts as zero.
__device__ __forceinline__ u64 word_of(float logit, u32 id) {
  const u32 bits = __float_as_uint(logit + 0.f);
  const u32 key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return (u64)key << 32 | (u32)~id;
}

__device__ __forceinline__ float logit_of(u64 word) {
  const u32 key = (u32)(word >> 32);
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// 53 bits.
__device__ __forceinline__ u64 philox(u64 seed, u32 choice, u32 position) {
  u32 c0 = position, c1 = 0, c2 = choice, c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const u64 p0 = (u64)0xd2511f53u * c0, p1 = (u64)0xcd9e8d57u * c2;
    c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
    c1 = (u32)p1;
    c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
    c3 = (u32)p0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return ((u64)c0 << 32 | c1) >> 11;
}

struct Row {
  const float* logits;
  int begin, end;      // ids of this warp
  int span;            // ids of a warp that is not the last
  bool aligned;        // rows begin at multiples of 16 bytes
  float highest, temperature, min_p;
  float bins;          // of the first histogram to a logit

  __device__ __forceinline__ float distance(float logit) const {
    return (highest - logit) / temperature;
  }

  __device__ __forceinline__ u64 mass(float logit) const {
    return (u64)(expf(-distance(logit)) * ONE);
  }

  // Of a token that is drawn from.
  __device__ __forceinline__ u64 kept_mass(float logit, u32 id, u64 floor) const {
    if (word_of(logit, id) < floor) return 0;
    const float weight = expf(-distance(logit));
    return weight >= min_p ? (u64)(weight * ONE) : 0ull;
  }

  // -1 for the many that have no mass.
  __device__ __forceinline__ int bin(float logit) const {
    const float bin = (highest - logit) * bins;
    return bin < BINS - 1.f ? (int)bin : -1;
  }

  // Calls f(id, logit) for the ids of this warp.
  template <class F> __device__ __forceinline__ void each(F f) const {
    const int lane = threadIdx.x & 31;
    if (!aligned) {
#pragma unroll 1
      for (int i = begin + lane; i < end; i += 32) f(i, logits[i]);
      return;
    }
    // Three loads in flight, but the code for one number: a longer body would cost more registers
    // than it saves time.
    const auto load = [&](int id) {
      return id < end ? *(const float4*)(logits + id) : make_float4(0.f, 0.f, 0.f, 0.f);
    };
    int id = begin + 4 * lane;
    float4 now = load(id), next = load(id + 128);
#pragma unroll 1
    for (; id < end; id += 128) {
      const float4 third = load(id + 256);
#pragma unroll 1
      for (int i = 0; i < 4; i++) {
        f(id + i, now.x);
        now.x = now.y, now.y = now.z, now.z = now.w;
      }
      now = next, next = third;
    }
  }
};

// The sum of v over the threads before this one; `total` over all. Begins and ends with a barrier.
__device__ __forceinline__ u64 sum_before(u64 v, u64& total, Shared& s) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u64 upto = v;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const u64 below = __shfl_up_sync(~0u, upto, step);
    if (lane >= step) upto += below;
  }
  __syncthreads();
  if (lane == 31) s.warp_sums[warp] = upto;
  __syncthreads();
  u64 before = 0;
  total = 0;
#pragma unroll 2
  for (int w = 0; w < WARPS; w++) {
    if (w == warp) before = total;
    total += s.warp_sums[w];
  }
  __syncthreads();
  return before + upto - v;
}

// Finds the bin where the sum over the cluster's bins reaches `wanted` (mass, or number of tokens),
// and how many members it has; BINS where none does. With a `share` of 0 or more, wanted is set to
// that share of all. Ends with a cluster barrier.
template <bool MASS> __device__ __forceinline__ void find_bin(u64& wanted, float share, Shared& s) {
  const int blocks = cluster_blocks(), mine = threadIdx.x * PER_THREAD;
  const auto value = [&](int bin, int r) -> u64 {
    return MASS ? (u64)*in_block(&s.high[bin], r) << 32 | *in_block(&s.low[bin], r)
                : *in_block(&s.count[bin], r);
  };
  u64 sum = 0, total;
#pragma unroll 1
  for (int r = 0; r < blocks; r++) {
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) sum += value(mine + i, r);
  }
  u64 before = sum_before(sum, total, s);
  if (share >= 0.f) {
    wanted = (u64)ceil((double)share * (double)total);
    if (wanted == 0) wanted = 1;  // one token at least
  }
  if (threadIdx.x == 0) s.bin = BINS, s.members = 0, s.above = 0;
  __syncthreads();
  if (before < wanted && wanted <= before + sum) {
#pragma unroll 1
    for (int bin = mine;; bin++) {
      u64 here = 0;
      u32 members = 0;
#pragma unroll 1
      for (int r = 0; r < blocks; r++)
        here += value(bin, r), members += *in_block(&s.count[bin], r);
      if (wanted <= before + here) {
        s.bin = bin;
        s.members = members;
        s.above = before;
        break;
      }
      before += here;
    }
  }
  cluster_sync();
}

// Sorts s.list[0..n], highest first.
__device__ __forceinline__ void sort_list(u32 n, Shared& s) {
  u32 size = 2;
  while (size < n) size *= 2;
#pragma unroll 1
  for (u32 i = n + threadIdx.x; i < size; i += THREADS) s.list[i] = 0;
  __syncthreads();
  for (u32 run = 2; run <= size; run *= 2) {
    for (u32 step = run / 2; step > 0; step /= 2) {
#pragma unroll 1
      for (u32 i = threadIdx.x; i < size / 2; i += THREADS) {
        const u32 at = 2 * i - (i & (step - 1)), to = at + step;
        const u64 x = s.list[at], y = s.list[to];
        if ((x < y) == ((at & run) == 0)) s.list[at] = y, s.list[to] = x;
      }
      __syncthreads();
    }
  }
}

// The lowest word of the fewest best tokens from `floor` on that are `wanted` in number or, with
// MASS, make up `share` of their mass.
template <bool MASS>
__device__ u64 narrow(const Row& row, u64 floor, u64 wanted, float share, Shared& s) {
  const int rank = cluster_rank(), blocks = cluster_blocks();
  bool first = true;       // bins by distance; afterwards by bits of the words from `low` to `high`
  u64 low = 0, high = 0;
  int shift = 0, chosen = 0;
  const auto bin_of = [&](float logit, u64 word) {
    if (first) return row.bin(logit);
    return word < low || word > high ? -1 : (int)((high - word) >> shift);
  };
  for (;;) {
#pragma unroll 1
    for (int i = threadIdx.x; i < BINS; i += THREADS) s.count[i] = 0, s.low[i] = 0, s.high[i] = 0;
    if (threadIdx.x == 0) s.listed = 0;
    __syncthreads();
    row.each([&](u32 id, float logit) {
      const u64 word = word_of(logit, id);
      const int bin = word >= floor ? bin_of(logit, word) : -1;
      if (bin < 0) return;
      atomicAdd(&s.count[bin], 1u);
      if (!MASS) return;
      const u64 mass = row.mass(logit);
      if (mass == 0) return;
      // A 64-bit sum of two native additions: what carries over is seen in what was there before.
      const u32 part = (u32)mass, old = atomicAdd(&s.low[bin], part);
      const u32 upper = (u32)(mass >> 32) + (old + part < old ? 1u : 0u);
      if (upper) atomicAdd(&s.high[bin], upper);
    });
    cluster_sync();
    find_bin<MASS>(wanted, first ? share : -1.f, s);
    chosen = (int)s.bin;
    wanted -= s.above;
    if (chosen == BINS) return floor;  // the end lies where no token has mass
    if (s.members <= LISTED) break;
    if (first) {
      u64 least = ~0ull, most = 0;
      row.each([&](u32 id, float logit) {
        const u64 word = word_of(logit, id);
        if (word < floor || row.bin(logit) != chosen) return;
        least = word < least ? word : least;
        most = word > most ? word : most;
      });
      if (threadIdx.x == 0) s.lowest = ~0ull, s.best = 0;
      __syncthreads();
      atomicMin(&s.lowest, least);
      atomicMax(&s.best, most);
      cluster_sync();
      low = ~0ull, high = 0;
#pragma unroll 1
      for (int r = 0; r < blocks; r++) {
        const u64 l = *in_block(&s.lowest, r), h = *in_block(&s.best, r);
        low = l < low ? l : low;
        high = h > high ? h : high;
      }
      cluster_sync();
      first = false;
    } else {
      high -= (u64)chosen << shift;
      const u64 least = high - (((u64)1 << shift) - 1);
      low = least > low ? least : low;
    }
    shift = 64 - __clzll(high - low) - BIN_BITS;  // high > low: there are members enough
    if (shift < 0) shift = 0;
  }
  Shared* owner = in_block(&s, 0);
  row.each([&](u32 id, float logit) {
    const u64 word = word_of(logit, id);
    if (word >= floor && bin_of(logit, word) == chosen)
      owner->list[atomicAdd(&owner->listed, 1u)] = word;
  });
  cluster_sync();
  if (rank == 0) {
    const u32 n = s.listed;
    sort_list(n, s);
    // A thread has neighbours of the sorted list; the one where the sum reaches `wanted` is the
    // last to stay.
    constexpr int MINE = LISTED / THREADS;
    u64 value[MINE], sum = 0, total;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
      const u32 at = threadIdx.x * MINE + i;
      value[i] = at >= n ? 0ull : MASS ? row.mass(logit_of(s.list[at])) : 1ull;
      sum += value[i];
    }
    u64 before = sum_before(sum, total, s);
#pragma unroll
    for (int i = 0; i < MINE; i++) {
      if (before < wanted && wanted <= before + value[i]) s.floor = s.list[threadIdx.x * MINE + i];
      before += value[i];
    }
  }
  cluster_sync();
  floor = owner->floor;
  cluster_sync();
  return floor;
}

// Inverts the sum of masses over the tokens from `floor` on, in order of ids.
__device__ void pick(const Row& row, u64 floor, u64 number, u32* token, int vocab, Shared& s) {
  const int rank = cluster_rank(), blocks = cluster_blocks(), lane = threadIdx.x & 31;
  u64 mine = 0;
  row.each([&](u32 id, float logit) { mine += row.kept_mass(logit, id, floor); });
  // Lanes take ids in turn: only a warp's whole sum lies in order.
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) mine += __shfl_xor_sync(~0u, mine, step);
  u64 block_total;
  const u64 warp_before = sum_before(lane == 0 ? mine : 0, block_total, s);
  if (threadIdx.x == 0) s.total = block_total;
  cluster_sync();
  u64 total = 0, before = 0;
#pragma unroll 1
  for (int r = 0; r < blocks; r++) {
    if (r == rank) before = total;
    total += *in_block(&s.total, r);
  }
  const u64 target = __umul64hi(number << 11, total);  // floor(number / 2^53 * total), below total
  if (before <= target && target < before + block_total) {
    // This block's: find the warp, then look through its ids with all threads, four ids each.
    const u64 at = before + warp_before;  // right in lane 0
    if (lane == 0 && at <= target && target < at + mine) s.bin = threadIdx.x >> 5, s.above = at;
    __syncthreads();
    const int first = (rank * WARPS + (int)s.bin) * row.span;
    const int end = first + row.span < vocab ? first + row.span : vocab;
    u64 sum = s.above;
#pragma unroll 1
    for (int tile = first; tile < end; tile += 4 * THREADS) {
      const int mine = tile + 4 * threadIdx.x;
      const auto mass = [&](int id) {
        return id < end ? row.kept_mass(row.logits[id], id, floor) : 0ull;
      };
      u64 four = 0, tile_total;
#pragma unroll 1
      for (int i = 0; i < 4; i++) four += mass(mine + i);
      u64 below = sum + sum_before(four, tile_total, s);
      if (below <= target && target < below + four) {
        int id = mine;
#pragma unroll 1
        while (below += mass(id), below <= target) id++;
        *token = id;
      }
      sum += tile_total;
      if (target < sum) break;
    }
  }
  cluster_sync();  // no block leaves while another may read its total
}

KERNEL(draw, 64, DrawArgs, THREADS, 2) {
  __shared__ Shared s;
  launch_dependents();
  const int rank = cluster_rank(), blocks = cluster_blocks(), lane = threadIdx.x & 31;
  const int r = blockIdx.x / a.split;
  wait_for_inputs();
  if ((int)(blockIdx.x % a.split) >= blocks) return;
  const Draw& settings = a.draws[r];
  Row row;
  row.logits = a.logits + (size_t)r * a.vocab;
  const int warps = blocks * WARPS, warp = rank * WARPS + (threadIdx.x >> 5);
  row.span = ((a.vocab + warps - 1) / warps + 127) / 128 * 128;
  row.begin = warp * row.span;
  row.end = row.begin + row.span < a.vocab ? row.begin + row.span : a.vocab;
  row.aligned = a.vocab % 4 == 0;
  row.temperature = settings.temperature;
  row.min_p = settings.min_p;

  // Not finite, and the best.
  if (threadIdx.x == 0) s.best = 0, s.first_bad = 0xffffffffu;
  u32 first_bad = 0xffffffffu;
  u64 best = 0;
  row.each([&](u32 id, float logit) {
    if ((__float_as_uint(logit) & 0x7f800000u) == 0x7f800000u)
      first_bad = id < first_bad ? id : first_bad;
    const u64 word = word_of(logit, id);
    best = word > best ? word : best;
  });
  first_bad = __reduce_min_sync(~0u, first_bad);
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    const u64 other = __shfl_xor_sync(~0u, best, step);
    best = other > best ? other : best;
  }
  __syncthreads();
  if (lane == 0) {
    atomicMin(&s.first_bad, first_bad);
    atomicMax(&s.best, best);
  }
  cluster_sync();
#pragma unroll 1
  for (int i = 0; i < blocks; i++) {
    const u32 other_bad = *in_block(&s.first_bad, i);
    const u64 other = *in_block(&s.best, i);
    first_bad = other_bad < first_bad ? other_bad : first_bad;
    best = other > best ? other : best;
  }
  cluster_sync();
  const bool bad = first_bad != 0xffffffffu;
  if (rank == 0 && threadIdx.x == 0) a.bad[r] = bad ? (int)first_bad : -1;
  if (bad || !(settings.temperature > 0.f)) {
    if (rank == 0 && threadIdx.x == 0) a.tokens[r] = bad ? 0u : ~(u32)best;
    return;
  }

  row.highest = logit_of(best);
  row.bins = fminf(BINS_PER_TEMPERATURE / settings.temperature, 3e38f);
  u64 floor = 0;
  if (settings.top_k > 0 && settings.top_k < a.vocab)
    floor = narrow<false>(row, floor, settings.top_k, -1.f, s);
  if (settings.top_p < 1.f) floor = narrow<true>(row, floor, 0, settings.top_p, s);
  pick(row, floor, philox(settings.seed, settings.choice, settings.position), a.tokens + r, a.vocab,
       s);
}
