// tma/cluster.cuh: clusters of two blocks, neighbours in x, with access to each other's shared memory
// (distributed shared memory). sm_90a only.
//
// A shared-memory address names the same location in both blocks. `peer` maps an address to the other block.
#pragma once
#include "tma/mbarrier.cuh"

// Cluster barrier: both blocks arrive, and see what was written and initialised before.
LUATTN_FN void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// 0 or 1.
LUATTN_FN int cluster_rank() {
  u32 x;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
  return int(x);
}
LUATTN_FN u32 peer(u32 address, int rank) {
  u32 x;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(address), "r"(rank ^ 1));
  return x;
}

// Arrives at the barrier of the other block, or of both, to release what has been read. A release fence,
// which would cover the whole GPU, is not needed: nothing that this thread has written becomes visible to the
// other block.
LUATTN_FN void barrier_arrive_peer(u32 barrier, int rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(peer(barrier, rank)) : "memory");
}
LUATTN_FN void barrier_arrive_both(u32 barrier, int rank) {
  barrier_arrive(barrier);
  barrier_arrive_peer(barrier, rank);
}

// Copies `bytes` of shared memory to `dst` of the other block, whose `barrier` counts them. Called by one
// thread.
LUATTN_FN void copy_to_peer(u32 dst, u32 src, int bytes, u32 barrier, int rank) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   peer(dst, rank)),
               "r"(src), "r"(bytes), "r"(peer(barrier, rank))
               : "memory");
}

// Adds 4 floats to global memory; the address is a multiple of 16.
LUATTN_FN void add_global(float *to, float x, float y, float z, float w) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "f"(x), "f"(y),
               "f"(z), "f"(w)
               : "memory");
}
// Stores 4 floats if `first`, otherwise adds them.
LUATTN_FN void put_global(float *to, float x, float y, float z, float w, bool first) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p st.global.v4.f32 [%0], {%1, %2, %3, %4};\n"
      "@!p red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(__cvta_generic_to_global(to)),
      "f"(x), "f"(y), "f"(z), "f"(w), "r"(u32(first))
      : "memory");
}
