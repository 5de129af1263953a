// experts_up and experts_down for matrices among which there are formats of FOR_OTHER_FORMATS. What
// they multiply with is decoded weight by weight as in the usual kernels; they have constants made
// anew instead of kept, or there would not be registers for two blocks a multiprocessor.
#define REGISTERS_ARE_SCARCE
#include "experts_down.cuh"
#include "experts_up.cuh"

// On consumer Ampere and Ada it takes a few registers more than two blocks leave it: there one block
// has a multiprocessor to itself.
#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890
constexpr int UP_BLOCKS = 1;
#else
constexpr int UP_BLOCKS = 2;
#endif

KERNEL(experts_up_others, 168, ExpertsUpArgs, 32 * UP_WARPS, UP_BLOCKS) { multiply_up<true>(a); }
KERNEL(experts_down_others, 128, ExpertsDownArgs, 512) { multiply_down<true>(a); }
