// experts_up, see experts_up.cuh, of formats that most files have.
#include "experts_up.cuh"

KERNEL(experts_up, 128, ExpertsUpArgs, 32 * UP_WARPS, 2) { multiply_up<false>(a); }
