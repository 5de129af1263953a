// rms_norm: x += add; tap = x; out[offset..] = x / sqrt(mean(x^2) + eps) * weight. `add` and `tap` may be null; x is
// written only with `add`.
//
// Floor: 16 rows of 5120 with add: 0.65 MB read, 0.83 MB written, all in L2. What limits it is the chain launch, load,
// one reduction, store: a thread takes 8 columns and keeps them in registers, so a row is read once and there is one
// barrier. The order of the sum follows from the columns alone.
// Launch: grid [rows], block ceil(cols / 256) * 32 (cols <= 8192, a multiple of 32), no dynamic shared memory.
// budget: rms_norm 40
#include "rowwise.cuh"

extern "C" __global__ void __launch_bounds__(1024, 1) rms_norm(const __grid_constant__ NormArgs a) {
  __shared__ float sums[32];
  launch_dependents();
  float x[1][8], weight[1][8];
  read_columns(a.weight, a.cols, weight);  // not written by kernels, so it need not wait
  wait_for_inputs();
  read_columns(a.x + (size_t)blockIdx.x * a.cols, a.cols, x);
  norm_row(a, blockIdx.x, x, weight, sums);
}
