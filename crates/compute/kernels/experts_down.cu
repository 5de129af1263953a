// experts_down, see experts_down.cuh, of formats that most files have.
#include "experts_down.cuh"

KERNEL(experts_down, 128, ExpertsDownArgs, 512) { multiply_down<false>(a); }
