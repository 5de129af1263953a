// What heads attended to where values are Hadamard transforms: transformed once more, which undoes it,
// then multiplied by sigmoid(gate) where heads are gated. In place.
//   out.numbers [rows][heads head_dim], as attention left it without gates; q
//   [rows][heads][query_stride], gates behind queries.
// One warp a head of a row. At 16 rows of the 27B: 384 warps, 0.4 MB read twice over and 0.6 MB
// written, all in L2; latency of one load and eight exchanges. Launch: grid [ceil(rows heads / 4)],
// block 128, no dynamic shared memory.
#include "hadamard.cuh"

struct RestoreArgs {
  const float* q;
  Activation out;
  int rows, heads, head_dim, query_stride, gated;
};

KERNEL(restore, 40, RestoreArgs, 128) {
  __shared__ __align__(16) float shared[4][MAX_DIM];
  launch_dependents();
  const int lane = threadIdx.x & 31, blocks = a.head_dim / 32;
  const int item = blockIdx.x * 4 + threadIdx.x / 32, row = item / a.heads, head = item % a.heads;
  float* y = shared[threadIdx.x / 32];
  wait_for_inputs();
  if (row >= a.rows) return;  // whole warps
  const float* in = a.out.numbers + (size_t)row * a.out.cols + head * a.head_dim;
  const float* gate = a.q + (size_t)item * a.query_stride + a.head_dim;
  float x[8], weight[8];
#pragma unroll
  for (int j = 0; j < 8; j++) {
    x[j] = j < blocks ? in[32 * j + lane] : 0.f;
    weight[j] = a.gated && j < blocks ? gate[32 * j + lane] : 0.f;
  }
  hadamard(x, blocks);
#pragma unroll
  for (int j = 0; j < 8; j++) {
    if (j >= blocks) break;
    y[32 * j + lane] = a.gated ? x[j] * (1.f / (1.f + expf(-weight[j]))) : x[j];
  }
  __syncwarp();
  if (lane * 8 >= a.head_dim) return;  // whole groups of 32 columns: four lanes leave together
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = y[lane * 8 + i];
  store8(a.out, row, head * a.head_dim + lane * 8, v);
}
