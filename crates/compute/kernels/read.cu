// Reads memory and does nothing with it: how fast this device can, which is the floor of whatever
// reads weights. Launch: grid 16 blocks a multiprocessor, block 256; threads take 16-byte pieces in
// turn, four at a time.
#include "forerun.cuh"

struct ReadArgs {
  const uint4* data;
  u64 pieces;
  // Written only if every word is what no memory holds, so that the loads are not left out.
  u32* out;
};

KERNEL(read_memory, 40, ReadArgs, 256) {
  const u64 stride = (u64)gridDim.x * 256;
  u32 seen = 0;
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  for (; i + 3 * stride < a.pieces; i += 4 * stride) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = __ldcs(a.data + i + j * stride);
#pragma unroll
    for (int j = 0; j < 4; j++) seen |= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < a.pieces; i += stride) {
    const uint4 v = __ldcs(a.data + i);
    seen |= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (seen == 0xfeedbeef) a.out[0] = seen;
}
