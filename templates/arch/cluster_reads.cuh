// arch/cluster_reads.cuh: clusters of any number of blocks, neighbours in x, that read one another's shared
// memory (distributed shared memory). From sm_90 on; before, a block is alone, and what is for clusters is
// not compiled.
#pragma once
#include "arch/types.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool has_clusters = true;
#else
inline constexpr bool has_clusters = false;
#endif

// Blocks of this block's cluster; 1: the launch has no clusters.
LUATTN_FN int cluster_size() {
  u32 x = 1;
  if constexpr (has_clusters) asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(x));
  return int(x);
}
// Every thread of the cluster arrives, and sees what others have written before.
LUATTN_FN void cluster_meet() {
  if constexpr (has_clusters)
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Reads one number, or four, of the shared memory of block `rank`. `address`: of the same place in this
// block's.
LUATTN_FN u32 address_in(u32 address, int rank) {
  u32 x = address;
  if constexpr (has_clusters) asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(address), "r"(rank));
  return x;
}
LUATTN_FN float read_of(u32 address, int rank) {
  float x = 0;
  if constexpr (has_clusters)
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address_in(address, rank)) : "memory");
  return x;
}
LUATTN_FN float4 read_4_of(u32 address, int rank) {
  float4 x{0, 0, 0, 0};
  if constexpr (has_clusters)
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address_in(address, rank))
                 : "memory");
  return x;
}
