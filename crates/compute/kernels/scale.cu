// scale: x = x * by, then cap * tanh(x / cap) where cap is not 0. In place.
//
// Floor: 8 bytes a number; 7 rows of 248320: 14 MB, from L2 about 3 us. Launch: grid [ceil(count /
// 1024)], block 256; a thread takes 4 numbers, one by one where the count is no multiple of 4.
#include "forerun.cuh"

struct ScaleArgs {
  float* x;
  u64 count;
  float by, cap;
};

KERNEL(scale, 40, ScaleArgs, 256) {
  launch_dependents();
  const u64 first = ((u64)blockIdx.x * 256 + threadIdx.x) * 4;
  wait_for_inputs();
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (first + i >= a.count) return;
    const float y = a.x[first + i] * a.by;
    a.x[first + i] = a.cap == 0.f ? y : a.cap * tanhf(y / a.cap);
  }
}
