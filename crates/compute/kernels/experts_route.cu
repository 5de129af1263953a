// experts_route: the first launch of a block's experts, see experts.cuh. n = rms(x + add) * norm;
// the logits of the router and of the shared expert's gate. x is not written: blocks of this launch
// read it.
//
// Floor: the router's tiles, 1 MB for 256 experts of 2048 columns, which are asked for before the
// inputs are there. Latency limits it: x, one reduction, one product, one sum. Every block of some
// rows makes their norm again. Launch: grid [row tiles of the router and of the shared gate,
// ceil(rows / block_rows)], block cols / 8: warp k has the columns of tile k. Dynamic shared memory
// cols / 256 * (tile_bytes + ROUTE_WARP).
#include "experts.cuh"

constexpr int X_ROW = 264;  // halves from one activation row to the next in shared memory

struct ExpertsRouteArgs {
  const float *x, *add, *norm;  // add may be null
  Activation out;               // n; its numbers are not written
  ExpertsMatrix router, shared;
  float *logits, *shared_logits;
  int rows, block_rows;         // of the pass, and of a block: at most GROUP
  float eps;
  int pad;
};

constexpr int ROUTE_WARP = GROUP * X_ROW * 2 + GROUP * 4 + 8;  // bytes of shared memory a warp

KERNEL(experts_route, 128, ExpertsRouteArgs, 512) {
  launch_dependents();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5,
            col = threadIdx.x * 8;
  const int g = lane >> 2, t = lane & 3, router_tiles = (a.router.rows + 15) / 16;
  const bool of_shared = (int)blockIdx.x >= router_tiles;
  const ExpertsMatrix& matrix = of_shared ? a.shared : a.router;
  const int tile = of_shared ? blockIdx.x - router_tiles : blockIdx.x,
            bytes = tile_bytes(matrix.format);
  u8* memory = shared_memory();
  u8* weights = memory + warp * bytes;
  memory += warps * bytes;
  // Of each warp its columns of n, [GROUP][X_ROW] halves, later its part of the result, [PART].
  u8* parts = memory;
  __half* own = (__half*)(parts + warp * GROUP * X_ROW * 2);
  float* squares = (float*)(parts + warps * GROUP * X_ROW * 2);  // [GROUP][warps]
  u64* barrier = (u64*)(squares + GROUP * warps) + warp;
  if (lane == 0) {
    barrier_init(barrier, ARRIVALS);
    barriers_ready();
  }
  __syncwarp();
  copy_tile(weights, matrix.weight + ((size_t)tile * warps + warp) * bytes, bytes, barrier, lane);
  const float4 n0 = ((const float4*)(a.norm + col))[0], n1 = ((const float4*)(a.norm + col))[1];
  const float norm[8] = {n0.x, n0.y, n0.z, n0.w, n1.x, n1.y, n1.z, n1.w};
  const int first = blockIdx.y * a.block_rows, count = min(a.rows - first, a.block_rows),
            cols = a.out.cols;

  // Rows that are not there are left out by a jump behind the last one, not row by row:
  // instructions are cold, and each line of them costs more than what it does.
  wait_for_inputs();
  const auto eight = [&](float (&to)[8], const float* from, int r) {
    const float4* at = (const float4*)(from + (size_t)(first + r) * cols + col);
    const float4 x0 = at[0], x1 = at[1];
    to[0] = x0.x, to[1] = x0.y, to[2] = x0.z, to[3] = x0.w;
    to[4] = x1.x, to[5] = x1.y, to[6] = x1.z, to[7] = x1.w;
  };
  float v[GROUP][8];
#pragma unroll
  for (int r = 0; r < GROUP; r++) {
    if (r >= count) break;
    eight(v[r], a.x, r);
  }
  if (a.add) {
#pragma unroll
    for (int r = 0; r < GROUP; r += 2) {  // two at a time are waited for
      if (r >= count) break;
      float y[2][8];
      eight(y[0], a.add, r);
      eight(y[1], a.add, min(r + 1, count - 1));
#pragma unroll
      for (int i = 0; i < 16; i++) v[r + i / 8][i % 8] += y[i / 8][i % 8];
    }
  }
#pragma unroll
  for (int r = 0; r < GROUP; r++) {
    if (r >= count) break;
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(v[r][i], v[r][i], sum);
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) squares[r * warps + warp] = sum;
  }
  __syncthreads();
  Operand b;  // rows beyond `count` are whatever lies there: their results are dropped
  b.sums = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int r = 0; r < GROUP; r++) {
    if (r >= count) break;
    float sum = 0.f;
#pragma unroll 8
    for (int w = 0; w < warps; w++) sum += squares[r * warps + w];
    const float factor = 1.f / sqrtf(sum / cols + a.eps);
    float of_32 = 0.f;
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      words[i] = pair(clamp_half(v[r][2 * i] * factor * norm[2 * i]),
                      clamp_half(v[r][2 * i + 1] * factor * norm[2 * i + 1]));
      of_32 += low_float(words[i]);
      of_32 += high_float(words[i]);
    }
    of_32 += __shfl_xor_sync(~0u, of_32, 1);
    of_32 += __shfl_xor_sync(~0u, of_32, 2);
    const uint4 packed = make_uint4(words[0], words[1], words[2], words[3]);
    *(uint4*)(own + r * X_ROW + lane * 8) = packed;
    const float even = clamp_half(__shfl_sync(~0u, of_32, 8 * t)),
                odd = clamp_half(__shfl_sync(~0u, of_32, 8 * t + 4));
    // Of groups 2 t and 2 t + 1.
    const u32 high = pair(even, odd), low = pair(half_error(even), half_error(odd));
    if (g == r) b.sums.x = high, b.sums.y = low;
    if (blockIdx.x == 0) {
      *(uint4*)(a.out.x + (size_t)(first + r) * a.out.ld + col) = packed;
      u32* sums = (u32*)(a.out.sums + (size_t)(first + r) * (a.out.ld / 16) + warp * 16) + t;
      if (g == 0) sums[0] = high;
      if (g == 1) sums[4] = low;
    }
  }
  __syncwarp();
  b.read(own + g * X_ROW + 8 * t);
  __syncwarp();
  float out[1][4];
  barrier_wait(barrier, 0);
  multiply<1, false>(matrix.format, weights, 0, b, out, lane);
  put((float*)own, out[0], false, lane);
  __syncthreads();
  const int rows = matrix.rows;
  float* to = of_shared ? a.shared_logits : a.logits;
  for (int i = threadIdx.x; i < count * 16; i += blockDim.x) {
    const int n = i >> 4, row = tile * 16 + (i & 15);
    const float* part = (const float*)parts + n * LD + (i & 15);
    float sum = *part;
#pragma unroll 7
    for (int w = 1; w < warps; w++) sum += part[w * GROUP * X_ROW / 2];
    if (row < rows) to[(size_t)(first + n) * rows + row] = sum;
  }
}
