// wgmma (sm_90a alone) with the A operand in registers, for decoding passes.
#pragma once
#include "forerun.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ void warpgroup_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void warpgroup_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// What a warpgroup gives back of its registers, and what another takes, for the rest of the block.
template <int N> __device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
// Registers that wgmma reads are ready here: their making must not be moved between the wgmma.
__device__ __forceinline__ void hold(u32 (&a)[4]) {
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}
__device__ __forceinline__ void hold(u32 (&a)[4][4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) hold(a[i]);
}
// c = a b + (add ? c : 0): 64 weight rows, of which a warp holds 16, times 8 N8 activation rows, 16
// columns.
#define C4(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define WGMMA(N, REGS, A_AND_B, P, ...)                                                          \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\nwgmma.mma_async.sync.aligned.m64n" N \
               "k16.f32.f16.f16 {" REGS "}, {" A_AND_B ", p, 1, 1, 0;\n}"                        \
               : __VA_ARGS__                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add))
#define R12 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11"
#define R16 R12 ",%12,%13,%14,%15"
#define R24 R16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define R32 R24 ",%24,%25,%26,%27,%28,%29,%30,%31"
__device__ __forceinline__ void warpgroup_mma(float (&c)[3][4], const u32 (&a)[4], u64 b,
                                              bool add) {
  WGMMA("24", R12, "%12,%13,%14,%15}, %16", "%17", C4(0), C4(1), C4(2));
}
__device__ __forceinline__ void warpgroup_mma(float (&c)[4][4], const u32 (&a)[4], u64 b,
                                              bool add) {
  WGMMA("32", R16, "%16,%17,%18,%19}, %20", "%21", C4(0), C4(1), C4(2), C4(3));
}
__device__ __forceinline__ void warpgroup_mma(float (&c)[6][4], const u32 (&a)[4], u64 b,
                                              bool add) {
  WGMMA("48", R24, "%24,%25,%26,%27}, %28", "%29", C4(0), C4(1), C4(2), C4(3), C4(4), C4(5));
}
__device__ __forceinline__ void warpgroup_mma(float (&c)[8][4], const u32 (&a)[4], u64 b,
                                              bool add) {
  WGMMA("64", R32, "%32,%33,%34,%35}, %36", "%37", C4(0), C4(1), C4(2), C4(3), C4(4), C4(5), C4(6),
        C4(7));
}
#undef R12
#undef R16
#undef R24
#undef R32
#undef WGMMA
#undef C4
#endif
