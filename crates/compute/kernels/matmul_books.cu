// Products with up to 16 rows of a decoding pass whose matrices all have one IQ3 format: its
// codebook lies in shared memory, where a lookup is one load of four weights. See matmul.cuh.
//
// Floor: as matmul.cuh; 1760 bytes for 4096 weights of IQ3_S. What limits it: instructions, 9 for
// every four weights that are looked up, and shared memory: 32 lookups of a tile, at which lanes
// meet in banks, take its ports about as long as the instructions take the schedulers.
// Launch: as matmul.cu; beside the shared bytes of matmul.cuh the book's, 32 an entry.
#define SHARED_BOOK
#include "matmul.cuh"

MATMUL_KERNEL(matmul_8_iq3_s, 255, 1, TILE_IQ3_S)
MATMUL_KERNEL(matmul_8_iq3_xxs, 255, 1, TILE_IQ3_XXS)
MATMUL_KERNEL(matmul_16_iq3_s, 255, 2, TILE_IQ3_S)
MATMUL_KERNEL(matmul_16_iq3_xxs, 255, 2, TILE_IQ3_XXS)
