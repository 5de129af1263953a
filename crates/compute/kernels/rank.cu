// rank: for each row of logits [rows][stride] the best `ranks` tokens among the first `vocab` with
// their log-probabilities (logit - highest - ln(sum of exponentials)), best first and of equals the
// lowest id; and whether the row holds a NaN or an infinity, in which case its log-probabilities
// are NaN.
//
// A row is cut into chunks of 8192 columns, whatever the number of rows. rank_chunks: a block reads
// a chunk once, 32 numbers a thread, into registers, and leaves its highest number, its sum of
// exponentials (NaN where a logit is not finite) and its best tokens. rank_merge: a block merges
// the chunks of a row.
//
// The best of a block: tokens become 64-bit words, the logit as an integer that compares like it
// above the complement of the id, so that all differ and the highest is the best. Bisection over
// the highest word of each thread, counted at a barrier, finds a bound that at least `ranks` and at
// most 2 `ranks` threads reach. So at most that many threads hold words above it: those are few,
// they go to shared memory, and each finds its place by counting the ones above it.
//
// Floor: 15 rows of 248320: 15 MB, from L2 about 3 us. Two launches and the chain of barriers limit
// it. Launch: rank_chunks: grid [chunks, rows], rank_merge: grid [rows]; block 256, no dynamic
// shared memory; chunks = ceil(vocab / 8192) <= 32. Scratch: best [rows][chunks][ranks] u64, sums
// [rows][chunks] float2. ranks <= 64.
#include "forerun.cuh"

constexpr int THREADS = 256;
constexpr int CHUNK = 8192;
constexpr int MAX_CHUNKS = 32;
constexpr int MAX_RANKS = 64;
constexpr int HELD = CHUNK / THREADS;                    // numbers of a thread in rank_chunks
constexpr int MERGED = MAX_CHUNKS * MAX_RANKS / THREADS;  // words of a thread in rank_merge

struct RankArgs {
  const float* logits;  // [rows][stride]
  u64* best;            // scratch
  float2* sums;         // scratch: highest and sum of exponentials relative to it
  u32* ids;             // [rows][ranks]
  float* logs;          // [rows][ranks]
  u32* bad;             // [rows]
  // [rows][list_stride]: ids as numbers, then log-probabilities; where it is given, in place of the
  // three above.
  float* list;
  int rows, vocab, stride, ranks, chunks, list_stride;
};

struct Shared {
  u64 found[2 * MAX_RANKS * HELD];
  u64 sorted[MAX_RANKS];
  float parts[THREADS / 32];
  u32 lowest[THREADS / 32], highest[THREADS / 32];
  u32 count;
};

// Larger for better tokens, never 0. Minus zero counts as zero.
__device__ __forceinline__ u64 word_of(float logit, u32 id) {
  const u32 bits = __float_as_uint(logit + 0.f);
  const u32 key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return (u64)key << 32 | (u32)~id;
}

__device__ __forceinline__ float logit_of(u64 word) {
  const u32 key = (u32)(word >> 32);
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Leaves the best `ranks` of the block's words in s.sorted, 0 where there are fewer. `mine` is the
// thread's highest word, 0 where it has none; each(bound, f) calls f(word) for its words that reach
// a bound. Returns the highest key. Ends with a barrier.
template <class F> __device__ __forceinline__ u32 best_of(u64 mine, F each, int ranks, Shared& s) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u32 highest = __reduce_max_sync(~0u, (u32)(mine >> 32));
  u32 lowest = __reduce_min_sync(~0u, mine ? (u32)(mine >> 32) : 0xffffffffu);
  if (lane == 0) s.highest[warp] = highest, s.lowest[warp] = lowest;
  if (threadIdx.x == 0) s.count = 0;
  if (threadIdx.x < MAX_RANKS) s.sorted[threadIdx.x] = 0;
  int reach = __syncthreads_count(mine != 0);  // threads whose highest word reaches `bound`
#pragma unroll
  for (int w = 0; w < THREADS / 32; w++) {
    highest = s.highest[w] > highest ? s.highest[w] : highest;
    lowest = s.lowest[w] < lowest ? s.lowest[w] : lowest;
  }
  u64 bound = 1;
  if (reach > 2 * ranks) {
    // `bound` is reached by at least `ranks`, `above` by fewer.
    u64 above = highest == 0xffffffffu ? ~0ull : (u64)(highest + 1) << 32;
    bound = lowest ? (u64)lowest << 32 : 1;
    while (reach > 2 * ranks && above - bound > 1) {
      const u64 middle = bound + (above - bound) / 2;
      const int n = __syncthreads_count(mine >= middle);
      if (n >= ranks) {
        bound = middle;
        reach = n;
      } else {
        above = middle;
      }
    }
  }
  each(bound, [&](u64 word) { s.found[atomicAdd(&s.count, 1u)] = word; });
  __syncthreads();
  const u32 count = s.count;
  for (u32 i = threadIdx.x; i < count; i += THREADS) {
    const u64 candidate = s.found[i];
    int place = 0;
    for (u32 j = 0; j < count; j++) place += s.found[j] > candidate;
    if (place < ranks) s.sorted[place] = candidate;
  }
  __syncthreads();
  return highest;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

KERNEL(rank_chunks, 64, RankArgs, THREADS, 4) {
  __shared__ Shared s;
  launch_dependents();
  const int row = blockIdx.y, first = blockIdx.x * CHUNK;
  const float* logits = a.logits + (size_t)row * a.stride;
  wait_for_inputs();
  constexpr float NOTHING = -3.4028235e38f;  // beyond the row: finite, and no logit is lower
  float numbers[HELD];
  const auto column = [&](int i) {
    return first + (i / 4 * THREADS + (int)threadIdx.x) * 4 + i % 4;
  };
  if (a.stride % 4 == 0) {  // rows begin at multiples of 16 bytes
#pragma unroll
    for (int i = 0; i < HELD; i += 4) {
      float4 four = make_float4(NOTHING, NOTHING, NOTHING, NOTHING);
      // What is read beyond the vocabulary is not looked at.
      if (column(i) < a.vocab) four = *(const float4*)(logits + column(i));
      numbers[i] = four.x;
      numbers[i + 1] = column(i + 1) < a.vocab ? four.y : NOTHING;
      numbers[i + 2] = column(i + 2) < a.vocab ? four.z : NOTHING;
      numbers[i + 3] = column(i + 3) < a.vocab ? four.w : NOTHING;
    }
  } else {
#pragma unroll
    for (int i = 0; i < HELD; i++) numbers[i] = column(i) < a.vocab ? logits[column(i)] : NOTHING;
  }
  bool bad = false;
  int at = 0;  // of equals the first, which has the lowest id
  float top = numbers[0];
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    bad |= (__float_as_uint(numbers[i]) & 0x7f800000u) == 0x7f800000u;
    if (numbers[i] > top) top = numbers[i], at = i;
  }
  const u64 mine = column(0) < a.vocab ? word_of(top, column(at)) : 0ull;
  const auto each = [&](u64 bound, auto f) {
    const float least = logit_of(bound);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      // The word decides, also where a key stands for a NaN.
      if (!(numbers[i] < least) && column(i) < a.vocab) {
        const u64 word = word_of(numbers[i], column(i));
        if (word >= bound) f(word);
      }
    }
  };
  const float highest = logit_of((u64)best_of(mine, each, a.ranks, s) << 32);
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < HELD; i++) sum += column(i) < a.vocab ? expf(numbers[i] - highest) : 0.f;
  sum = warp_sum(sum);
  if ((threadIdx.x & 31) == 0) s.parts[threadIdx.x >> 5] = sum;
  const bool any_bad = __syncthreads_or(bad);
  const size_t part = (size_t)row * a.chunks + blockIdx.x;
  if (threadIdx.x < a.ranks) a.best[part * a.ranks + threadIdx.x] = s.sorted[threadIdx.x];
  if (threadIdx.x == 0) {
    float total = 0.f;
    for (int w = 0; w < THREADS / 32; w++) total += s.parts[w];
    a.sums[part] = make_float2(highest, any_bad ? __uint_as_float(0x7fc00000u) : total);
  }
}

KERNEL(rank_merge, 64, RankArgs, THREADS) {
  __shared__ Shared s;
  launch_dependents();
  const int row = blockIdx.x, lane = threadIdx.x & 31, held = a.chunks * a.ranks;
  wait_for_inputs();
  u64 words[MERGED], mine = 0;
#pragma unroll
  for (int i = 0; i < MERGED; i++) {
    const int at = i * THREADS + threadIdx.x;
    words[i] = at < held ? a.best[(size_t)row * held + at] : 0ull;
    mine = words[i] > mine ? words[i] : mine;
  }
  const auto each = [&](u64 bound, auto f) {
#pragma unroll
    for (int i = 0; i < MERGED; i++) {
      if (words[i] >= bound) f(words[i]);
    }
  };
  // Every warp adds the chunks' sums up by itself, in the same order.
  const float2 part =
      lane < a.chunks ? a.sums[(size_t)row * a.chunks + lane] : make_float2(0.f, 0.f);
  const float highest = logit_of((u64)best_of(mine, each, a.ranks, s) << 32);
  const float total = warp_sum(lane < a.chunks ? part.y * expf(part.x - highest) : 0.f);
  const bool bad = total != total;
  const float log_total = logf(total);
  if (threadIdx.x < a.ranks) {
    const u64 word = s.sorted[threadIdx.x];
    const u32 id = word && !bad ? ~(u32)word : 0u;
    const float none = bad ? log_total : __uint_as_float(0xff800000u);
    const float log = word && !bad ? logit_of(word) - highest - log_total : none;
    if (a.list) {
      float* list = a.list + (size_t)row * a.list_stride + threadIdx.x;
      list[0] = (float)id, list[a.ranks] = log;
    } else {
      const size_t at = (size_t)row * a.ranks + threadIdx.x;
      a.ids[at] = id, a.logs[at] = log;
    }
  }
  if (threadIdx.x == 0 && !a.list) a.bad[row] = bad;
}
