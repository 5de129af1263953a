// load: out = x, as an activation.
//
// Floor: 4 bytes read and 6.1 written a number; 16 rows of 5120: 0.8 MB, all in L2. A launch costs
// more than the copy. Launch: grid [ceil(cols / 1024), rows], block 128, no shared memory. A thread
// takes 8 columns.
#include "forerun.cuh"

KERNEL(load, 40, LoadArgs, 128) {
  launch_dependents();
  const int row = blockIdx.y, col = (blockIdx.x * 128 + threadIdx.x) * 8;
  wait_for_inputs();
  if (col >= a.out.cols) return;  // whole groups of 32 columns: four lanes leave together
  const float4* x = (const float4*)(a.x + (size_t)row * a.out.cols + col);
  const float4 p = x[0], q = x[1];
  const float v[8] = {p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w};
  store8(a.out, row, col, v);
}
