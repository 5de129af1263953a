// How tiles of weights come into shared memory, and what blocks of a cluster need to write into
// each other's. Copies complete on barriers: from sm_90 on one lane asks for a whole tile; before,
// every lane copies 16-byte pieces and the barrier counts the 32 lanes. Or every lane waits for its
// own, in groups: see stream.cuh.
#pragma once
#include "forerun.cuh"

__device__ __forceinline__ void barrier_init(u64* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(u64* barrier) {
  asm volatile("{.reg .b64 s; mbarrier.arrive.shared.b64 s, [%0];}" ::"r"(shared_address(barrier))
               : "memory");
}
// Sixteen bytes; copies_done waits for those of this thread.
__device__ __forceinline__ void copy_piece(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Weights are read once in a pass: L2 should give them up first, so that activations stay.
__device__ __forceinline__ u64 streamed() {
#ifdef REGISTERS_ARE_SCARCE
  return 0x12f0000000000000;  // what it gives
#endif
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// Sixteen bytes.
__device__ __forceinline__ void copy_streamed(u32 to, const void* from, u64 policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "l"(policy)
               : "memory");
}
__device__ __forceinline__ void copy_streamed_if(bool wanted, u32 to, const void* from,
                                                 u64 policy) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %0, 0; "
      "@p cp.async.cg.shared.global.L2::cache_hint [%1], [%2], 16, %3;}" ::"r"((int)wanted),
      "r"(to), "l"(from), "l"(policy)
      : "memory");
}
// Copies since the last call are a group; copies_pending waits until no more than N groups of a
// thread are under way.
__device__ __forceinline__ void copies_begun() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void copies_pending() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Returns when the barrier has completed the phase of this parity (0 first).
__device__ __forceinline__ void barrier_wait(u64* barrier, u32 parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred p;\nW_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra "
      "W_%=;\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n.reg .pred p;\nW_%=:\nmbarrier.test_wait.parity.shared.b64 p, [%0], %1;\n@!p bra "
      "W_%=;\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_bulk(void* to, const void* from, u32 bytes, u64* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void copy_stream(void* to, const void* from, u32 bytes, u64* barrier,
                                            u64 policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void copy_stream(void* to, const void* from, u32 bytes, u64* barrier) {
  copy_stream(to, from, bytes, barrier, streamed());
}
__device__ __forceinline__ void prefetch(const void* from, u32 bytes) {  // into L2
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same place in another block of the cluster.
__device__ __forceinline__ u32 address_in(const void* p, int rank) {
  u32 r;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(shared_address(p)), "r"(rank));
  return r;
}
// Writes there, if wanted, counted by a barrier of that block: who waits for its bytes needs no
// barrier of the cluster, which would also wait until all stores have reached the device's memory.
__device__ __forceinline__ void send_to_if(bool wanted, u32 address, float v, u32 barrier) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %3, 0; "
      "@p st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];}" ::"r"(
          address),
      "f"(v), "r"(barrier), "r"((int)wanted)
      : "memory");
}
// Says that this block runs and its barriers are there, and orders nothing else.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
// Shared or global memory that another block of the cluster wrote: never a stale line of L1.
__device__ __forceinline__ float load_written(const float* p) {
  float v;
  asm volatile("ld.relaxed.cluster.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ float4 load_written4(const float* p) {
  float4 v;
  asm volatile("ld.relaxed.cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
#else
// One lane's share of a tile; the barrier counts 32 arrivals.
__device__ __forceinline__ void copy_pieces(u8* to, const u8* from, int bytes, u64* barrier,
                                            int lane) {
  for (int i = lane * 16; i < bytes; i += 512) copy_piece(shared_address(to + i), from + i);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
#endif
