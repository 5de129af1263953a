// Matrices that share their activations, as the kernels of decode products see them: row tiles
// numbered through.
#pragma once
#include "forerun.cuh"

constexpr int MAX_PRODUCTS = 8;

struct MatmulProduct {
  const u8* weight;  // tiles [ceil(rows / 16)][superblocks], see tiles.cuh
  float* out;        // [activation rows][out_stride]
  int rows, out_stride, format, first_tile;
};

// The product that a row tile belongs to. Args: products, product_count, tiles (of all of them).
template <class Args> __device__ __forceinline__ int end_of(const Args& a, int product) {
  return product + 1 < a.product_count ? a.products[product + 1].first_tile : a.tiles;
}
template <class Args> __device__ __forceinline__ int product_of(const Args& a, int tile) {
  int i = 0;
  while (tile >= end_of(a, i)) i++;
  return i;
}
