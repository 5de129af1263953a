// experts_up, see experts_up.cuh, of formats that most files have.
//
// On consumer Ampere and Ada it takes a few registers more than two blocks leave it, unless
// constants are made anew instead of kept.
#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890
#define REGISTERS_ARE_SCARCE
#endif
#include "experts_up.cuh"

KERNEL(experts_up, 128, ExpertsUpArgs, 32 * UP_WARPS, 2) { multiply_up<false>(a); }
