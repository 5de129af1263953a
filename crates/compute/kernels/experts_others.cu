// experts_up and experts_down for matrices among which there are formats of FOR_OTHER_FORMATS. What
// they multiply with is decoded weight by weight as in the usual kernels; they have constants made
// anew instead of kept, or there would not be registers for two blocks a multiprocessor.
#define REGISTERS_ARE_SCARCE
#include "experts_down.cuh"
#include "experts_up.cuh"

KERNEL(experts_up_others, 128, ExpertsUpArgs, 32 * UP_WARPS, 2) { multiply_up<true>(a); }
KERNEL(experts_down_others, 128, ExpertsDownArgs, 512) { multiply_down<true>(a); }
