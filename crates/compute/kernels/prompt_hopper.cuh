// Products with many activation rows by wgmma (sm_90a alone): what the kernels for Hopper share.
//
// A block takes tiles of BM weight rows by BN rows of x, one after the other, as many blocks as
// multiprocessors. Two warpgroups decode weights to f16 in registers, the A operand, one buffer of
// fragments while the wgmma of the other run, and keep the sums: 64 HALVES rows each, BM = 128
// HALVES. Other warps bring x, 64 columns a stage, and weight tiles by bulk copies into a ring of
// each warpgroup, as far ahead as there is room, also for the tile to come. Every output is one
// chain of sums in the order of the columns: its bits depend on neither the number of rows nor a
// tile's shape.
//
// A kernel's `Work` says what its tiles are: HALVES, BN, count(), the arguments `a` (columns,
// slots, products), Item(work, number): product, first_tile (16 rows each) and out_row(work, n),
// the row of `out` for row n of the tile or -1; tiles(item, bytes), where the matrix of an item
// begins, each of several being so large; and how x comes: prepare(shared), by all threads, then
// bring_x(shared, thread) by X_THREADS of them.
//
// Limits: tensor cores, 2 rows K M flop, at most about 790 Tflop/s measured on an H200; BN 160
// gives 700 with Q4_K, 610 with Q6_K, 760 with Q8_0. A step of 64 columns is 4 HALVES wgmma a
// warpgroup, BN / 2 clocks each, in which a lane decodes 16 HALVES registers at 6 to 9
// instructions.
//
// Block 384, shared HEAD + X_ROOM + 8 slots slot_bytes(FORMAT), slots 1 to MAX_SLOTS.
#pragma once
#include "prompt_tiles.cuh"

constexpr int HEAD = 4096, X_ROOM = 81920, MAX_STAGES = 8, MAX_SLOTS = 8, MAX_EXPERTS = 512;
__host__ __device__ constexpr int slot_bytes(int format) {
  return (tile_bytes(format) + 63) / 64 * 64;
}
template <int BN>
constexpr int stages_of = X_ROOM / (BN * 128) < MAX_STAGES ? X_ROOM / (BN * 128) : MAX_STAGES;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Without a branch: one between wgmma in flight makes ptxas wait for each of them.
__device__ __forceinline__ void barrier_arrive_if(u64* b, bool yes) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared.b64 _, [%0];\n}" ::"r"(
          shared_address(b)),
      "r"((u32)yes)
      : "memory");
}
__device__ __forceinline__ void warpgroup_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Registers that wgmma reads are ready here: their making must not be moved between the wgmma.
__device__ __forceinline__ void hold(u32 (&a)[2][4]) {
#pragma unroll
  for (int i = 0; i < 2; i++)
    asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}
__device__ __forceinline__ void warpgroup_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
template <int N> __device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
// c += a b: 64 weight rows, of which a warp holds 16, times BN rows of x in shared memory, 16
// columns.
#define SUMS(i)                                                                               \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define SUMS32 SUMS(0), SUMS(8), SUMS(16), SUMS(24)
#define SUMS48 SUMS32, SUMS(32), SUMS(40)
#define SUMS64 SUMS48, SUMS(48), SUMS(56)
#define NAMES32                                                                                    \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
  "%26,"                                                                                           \
  "%27,%28,%29,%30,%31"
#define NAMES48 NAMES32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES64 NAMES48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES80 NAMES64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define WGMMA(N, NAMES, A, B, ...)                                                           \
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" N \
               "k16.f32.f16.f16 {" NAMES "}, {" A "}, " B ", p, 1, 1, 0;\n}"                 \
               : __VA_ARGS__                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <int BN>
__device__ __forceinline__ void warpgroup_mma(float (&c)[BN / 2], const u32 (&a)[4], u64 b) {
  if constexpr (BN == 64) WGMMA("64", NAMES32, "%32,%33,%34,%35", "%36", SUMS32);
  if constexpr (BN == 96) WGMMA("96", NAMES48, "%48,%49,%50,%51", "%52", SUMS48);
  if constexpr (BN == 128) WGMMA("128", NAMES64, "%64,%65,%66,%67", "%68", SUMS64);
  if constexpr (BN == 160)
    WGMMA("160", NAMES80, "%80,%81,%82,%83", "%84", SUMS64, SUMS(64), SUMS(72));
}

// Places in rings of `size`, and the parity of the barrier's phase that ends the wait for one.
struct Place {
  int at = 0;
  u32 phase = 0;
  __device__ __forceinline__ void next(int size) {
    if (++at == size) {
      at = 0;
      phase ^= 1;
    }
  }
};

struct Shared {
  u64 full[MAX_STAGES], empty[MAX_STAGES];         // of x
  u64 landed[2 * MAX_SLOTS], read[2 * MAX_SLOTS];  // of weights, [warpgroup][slots]
  u32 groups[MAX_EXPERTS + 1];                     // experts: groups of visits before each
  u8 room[HEAD - 4 * (MAX_EXPERTS + 1) - 16 * MAX_STAGES - 32 * MAX_SLOTS];
  u8 x[X_ROOM];
  __device__ __forceinline__ u8* ring(int group, int bytes) { return x + X_ROOM + group * bytes; }
};
static_assert(sizeof(Shared) == HEAD + X_ROOM, "stages of x begin at a multiple of 1024");

// A consumer warp. The 64 columns of a step are four wgmma for each HALVES rows.
template <int FORMAT, class Work>
__device__ __forceinline__ void consume(const Work& work, Shared& b, int warp) {
  typedef Decode<FORMAT> D;
  constexpr int HALVES = Work::HALVES, BN = Work::BN, GROUPS = HALVES;
  // A slot has a tile of each warp.
  constexpr int SLOT = 4 * slot_bytes(FORMAT), STAGES = stages_of<BN>;
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, KB = work.a.columns / 256,
            slots = work.a.slots;
  const u8* ring = b.ring(warp >> 2, slots * SLOT) + (warp & 3) * slot_bytes(FORMAT);
  const Lanes lanes(lane);
  u64 *landed = b.landed + (warp >> 2) * MAX_SLOTS, *read = b.read + (warp >> 2) * MAX_SLOTS;
  // Rows of 128 bytes, eight of them 1024; pieces of 16 bytes stand at piece ^ (row & 7).
  const u64 x_matrix =
      (u64)1 << 62 | (u64)(1024 / 16) << 32 | (u64)1 << 16 | (shared_address(b.x) & 0x3ffff) >> 4;
  // Of a step: GROUPS groups of 32 columns of a half, two wgmma each.
  constexpr int UNITS = HALVES * 2 / GROUPS;
  u32 fragments[2][GROUPS][2][4];
  Place slot, stage;
  for (int number = blockIdx.x, items = work.count(); number < items; number += gridDim.x) {
    float acc[HALVES][BN / 2];
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
      for (int i = 0; i < BN / 2; i++) acc[h][i] = 0.f;
#pragma unroll 1
    for (int kb = 0; kb < KB; kb++) {
      const u8* tile[HALVES];
      u64* done[HALVES];
      typename D::Ready ready[HALVES];
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
        barrier_wait(landed + slot.at, slot.phase);
        tile[h] = ring + slot.at * SLOT;
        done[h] = read + slot.at;
        ready[h] = D::ready(tile[h], lane);
        slot.next(slots);
      }
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const u64 x = x_matrix + (u64)(stage.at * (BN * 128 / 16));
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
          const int h = unit * GROUPS / 2;
          u32(&f)[GROUPS][2][4] = fragments[unit & 1];
          warpgroup_wait<1>();  // the wgmma that read these registers
          const auto head = D::plain_head(tile[h], ready[h], c, lane);
          const typename D::Plain chunk = D::plain(tile[h], c, lanes, lane);
          if (unit == 1)  // those of the step before are done
            barrier_arrive_if(b.empty + (stage.at ? stage.at : STAGES) - 1, kb + c > 0);
#pragma unroll
          for (int i = 0; i < GROUPS; i++) {
            D::fragments(f[i], head, chunk, c, (unit * GROUPS & 1) + i, lane);
            hold(f[i]);
          }
          if (unit == 0) barrier_wait(b.full + stage.at, stage.phase);
          warpgroup_fence();
#pragma unroll
          for (int k = 0; k < 2 * GROUPS; k++)
            warpgroup_mma<BN>(acc[h], f[k >> 1][k & 1], x + (2 * (unit * GROUPS & 1) + k) * 2);
          warpgroup_commit();
        }
        stage.next(STAGES);
      }
      __syncwarp();  // every lane has read the tiles
#pragma unroll
      for (int h = 0; h < HALVES; h++) barrier_arrive(done[h]);
    }
    warpgroup_wait<0>();
    barrier_arrive(b.empty + (stage.at ? stage.at : STAGES) - 1);
    const typename Work::Item item(work, number);
    const PromptProduct& q = work.a.products[item.product];
    const int row = (item.first_tile + (warp >> 2) * 4 * HALVES + (warp & 3)) * 16 + g;
    int out_rows[BN / 4];  // all before the first store: the compiler could not move one across it
#pragma unroll
    for (int i = 0; i < BN / 4; i++)
      out_rows[i] = item.out_row(work, (i >> 1) * 8 + 2 * t + (i & 1));
#pragma unroll
    for (int i = 0; i < BN / 4; i++) {
      float* out = q.out + (size_t)out_rows[i] * q.rows + row;
#pragma unroll
      for (int k = 0; k < 2 * HALVES; k++) {  // rows g and g + 8 of each half
        const int r = 64 * (k >> 1) + 8 * (k & 1);
        if (row + r < q.rows && out_rows[i] >= 0)
          out[r] = acc[k >> 1][(i >> 1) * 4 + 2 * (k & 1) + (i & 1)];
      }
    }
  }
}

// A lane brings the weights of one warpgroup, whose warps keep step: a tile of each into a slot, in
// the order (superblock, half).
template <int FORMAT, class Work>
__device__ __forceinline__ void bring_weights(const Work& work, Shared& b, int group) {
  constexpr int BYTES = tile_bytes(FORMAT), SLOT = 4 * slot_bytes(FORMAT), HALVES = Work::HALVES;
  const int KB = work.a.columns / 256, slots = work.a.slots;
  u8* ring = b.ring(group, slots * SLOT);
  u64 *landed = b.landed + group * MAX_SLOTS, *read = b.read + group * MAX_SLOTS;
  Place slot;
  slot.phase = 1;
  for (int number = blockIdx.x, items = work.count(); number < items; number += gridDim.x) {
    const typename Work::Item item(work, number);
    const PromptProduct& q = work.a.products[item.product];
    const int tiles = (q.rows + 15) / 16, first = item.first_tile + group * 4 * HALVES;
    const u8* weight = work.tiles(item, (size_t)tiles * KB * BYTES);
#pragma unroll 1
    for (int kb = 0; kb < KB; kb++)
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
        barrier_wait(read + slot.at, slot.phase);
        barrier_expect(landed + slot.at, 4 * BYTES);
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
          const u32 tile = min(first + 4 * h + i, tiles - 1) * KB + kb;
          copy_bulk(ring + slot.at * SLOT + i * slot_bytes(FORMAT), weight + (size_t)tile * BYTES,
                    BYTES, landed + slot.at);
        }
        slot.next(slots);
      }
  }
}

// What the threads of a block do: eight warps multiply, the next two may bring x, the last two
// bring weights.
template <int FORMAT, class Work> __device__ __forceinline__ void hopper_block(const Work& work) {
  launch_dependents();
  Shared& b = *(Shared*)shared_memory();
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  if (threadIdx.x == 0) {
    for (int i = 0; i < MAX_STAGES; i++) {
      barrier_init(b.full + i, Work::X_THREADS);
      barrier_init(b.empty + i, 256);
    }
    for (int i = 0; i < 2 * MAX_SLOTS; i++) {
      barrier_init(b.landed + i, 1);
      barrier_init(b.read + i, 128);
    }
    barrier_init_fence();
  }
  work.prepare(b);
  __syncthreads();
  if (warp >= 8) {
    fewer_registers<40>();  // 128 x 40 + 256 x 232 = 384 x 168, what the block has
    if ((int)threadIdx.x - 256 < Work::X_THREADS) {
      wait_for_inputs();
      work.bring_x(b, threadIdx.x - 256);
    } else if (warp >= 10 && lane == 0) {
      bring_weights<FORMAT>(work, b, warp - 10);
    }
  } else {
    more_registers<232>();
    wait_for_inputs();
    consume<FORMAT>(work, b, warp);
  }
}
#endif
