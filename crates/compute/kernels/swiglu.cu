// swiglu: out = silu(gate) * up, as an activation.
//
// Floor: 8 bytes read and 6.1 written a number; 16 rows of 17408: 3.9 MB, all in L2, about 1 us. Latency of the four
// loads and the launch limit it, so every thread has all its loads in flight at once and there are 17 blocks a row.
// Launch: grid [ceil(cols / 1024), rows], block 128, no shared memory. A thread takes 8 columns.
// budget: swiglu 48
#include "rowwise.cuh"

extern "C" __global__ void __launch_bounds__(128) swiglu(const __grid_constant__ SwiGluArgs a) {
  launch_dependents();
  const int col = (blockIdx.x * 128 + threadIdx.x) * 8;
  wait_for_inputs();
  if (col < a.out.cols) swiglu8(a, blockIdx.y, col);  // whole groups of 32 columns: four lanes together
}
