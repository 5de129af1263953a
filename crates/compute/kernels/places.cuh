// Where experts lie that a device has no room for: all of them in the host's memory, and copies of
// those that are chosen often in slots of its own. The place of an expert is its number, or HOT and
// the slot of its copy. Places change between passes alone, so they may be read like weights, before
// a kernel's inputs are there. A table that is null says that all lie where they are numbered.
#pragma once
#include "forerun.cuh"

constexpr u32 HOT = 1 << 15;  // as in src/expert_cache.rs

__device__ __forceinline__ u32 place_of(const u32* places, u32 expert) {
  return places ? __ldcg(places + expert) : expert;
}
__device__ __forceinline__ bool is_hot(u32 place) { return place & HOT; }
// Of the expert, or of its slot.
__device__ __forceinline__ u32 number_of(u32 place) { return place & (HOT - 1); }

// Where the tiles of an expert begin, of which each has so many bytes.
__device__ __forceinline__ const u8* tiles_at(const u8* weight, const u8* copies, u32 place,
                                              size_t bytes) {
  return (is_hot(place) ? copies : weight) + number_of(place) * bytes;
}
