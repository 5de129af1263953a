// What blocks of a cluster send each other, counted at the block it goes to: nobody waits for more
// than that, where a barrier of the cluster that orders memory would wait for all of a block's
// stores.
//
// A signal is an mbarrier of one arrival, that of the block's own thread which says how many bytes
// will come. Without clusters, which these kernels are not launched without, they only compile.
#pragma once
#include "forerun.cuh"

// By one thread; then all of the block arrive, and wait before the first of them sends.
__device__ __forceinline__ void make_signals(u64* signals, int count) {
#if __CUDA_ARCH__ >= 900
  for (int i = 0; i < count; i++)
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(signals + i)));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
// So many bytes will come, once.
__device__ __forceinline__ void expect(u64* signal, u32 bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(signal)),
               "r"(bytes)
               : "memory");
#endif
}
// Until what was expected has come, the phase-th time (of which only odd or even matters).
__device__ __forceinline__ void wait_for(u64* signal, u32 phase) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n\t"
      ".reg .pred done;\n\t"
      "again:\n\t"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n\t"
      "@!done bra again;\n\t"
      "}" ::"r"(shared_address(signal)), "r"(phase & 1)
      : "memory");
#endif
}
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ u32 address_in(u32 address, int rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
#endif
// Writes to that place in the shared memory of a block of the cluster, which its signal counts.
__device__ __forceinline__ void send(float* to, int rank, float x, u64* signal) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
          address_in(shared_address(to), rank)),
      "f"(x), "r"(address_in(shared_address(signal), rank))
      : "memory");
#else
  *to = x;
#endif
}
__device__ __forceinline__ void send2(void* to, int rank, const float2& x, u64* signal) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
          "r"(address_in(shared_address(to), rank)),
      "f"(x.x), "f"(x.y), "r"(address_in(shared_address(signal), rank))
      : "memory");
#else
  *(float2*)to = x;
#endif
}
__device__ __forceinline__ void send4(void* to, int rank, const float4& x, u64* signal) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address_in(shared_address(to), rank)),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(address_in(shared_address(signal), rank))
      : "memory");
#else
  *(float4*)to = x;
#endif
}
