// Per-head norm of queries and keys, rotation of their first 2 pairs dimensions in pairs (i, i +
// pairs), the Hadamard transform of all three where it is asked for, and rounding of keys and values
// to the cache's type.
//   q [rows][heads][query_stride], the first head_dim of each changed in place; k, v [rows][kv
//   heads][head_dim];
//   angles [rows][2 pairs]: cosines, then sines, with their magnitude; kv [rows][key, value][kv
//   heads][row_bytes]. One warp a head of a row: query heads, then key heads, then value heads. At
//   16 rows of the 27B: 512 warps, 0.8 MB read and 0.5 MB written; latency of one load and one
//   reduction: all numbers are asked for at once. Launch: grid [ceil(rows (heads + 2 kv heads) /
//   4), layers], block 128, no dynamic shared memory; more than one layer where there are no queries.
#include "hadamard.cuh"
#include "kv.cuh"

KERNEL(rotate, 72, RotateArgs, 128) {
  __shared__ float shared[4][MAX_DIM];
  const int lane = threadIdx.x & 31;
  float* y = shared[threadIdx.x / 32];
  const int kv_heads = a.layout.heads, per_row = a.heads + 2 * kv_heads, blocks = a.head_dim / 32;
  const RotatedLayer& layer = a.layers[blockIdx.y];
  const int item = blockIdx.x * 4 + threadIdx.x / 32;
  launch_dependents();
  const int row = item / per_row, which = item % per_row;
  const bool query = which < a.heads, value = which >= a.heads + kv_heads;
  const int head = query ? which : (which - a.heads) % kv_heads;
  float* q = a.q + ((size_t)row * a.heads + head) * a.query_stride;
  const size_t kv_at = ((size_t)row * kv_heads + head) * a.head_dim;
  const float* in = query ? q : (value ? layer.v : layer.k) + kv_at;
  const float* norm = query ? a.q_norm : layer.k_norm;
  float x[8], weight[8], cosine[8], sine[8];
#pragma unroll
  for (int j = 0; j < 8; j++) weight[j] = j < blocks ? norm[32 * j + lane] : 0.f;
  wait_for_inputs();
  if (item >= a.pass.rows * per_row) return;
  const float* angles = a.angles + (size_t)row * 2 * a.pairs;
#pragma unroll
  for (int j = 0; j < 8; j++) {
    const int d = 32 * j + lane, pair = d < a.pairs ? d : d - a.pairs;
    x[j] = j < blocks ? in[d] : 0.f;
    cosine[j] = d < 2 * a.pairs ? angles[pair] : 0.f;
    sine[j] = d < 2 * a.pairs ? angles[a.pairs + pair] : 0.f;
  }
  if (!value) {
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < 8; j++) sum += x[j] * x[j];
#pragma unroll
    for (int far = 16; far; far >>= 1) sum += __shfl_xor_sync(~0u, sum, far);
    const float scale = 1.f / sqrtf(sum / (float)a.head_dim + a.eps);
#pragma unroll
    for (int j = 0; j < 8; j++)
      if (j < blocks) y[32 * j + lane] = x[j] = x[j] * scale * weight[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int d = 32 * j + lane;
      if (d < a.pairs) x[j] = x[j] * cosine[j] - y[d + a.pairs] * sine[j];
      else if (d < 2 * a.pairs) x[j] = x[j] * cosine[j] + y[d - a.pairs] * sine[j];
    }
  }
  if (a.hadamard) hadamard(x, blocks);
  if (query) {
#pragma unroll
    for (int j = 0; j < 8; j++)
      if (j < blocks) q[32 * j + lane] = x[j];
    return;
  }
  u8* out = layer.kv + (((size_t)row * 2 + (value ? 1 : 0)) * kv_heads + head) * a.layout.row_bytes;
  encode_head(a.layout.kind, x, blocks, out);
}
