// arch/cluster.cuh: a pair of blocks, neighbours in x, on two multiprocessors that reach each other's shared
// memory. sm_90a alone.
//
// An address in shared memory means the same place in both blocks; `peer` turns one's own into the other's.
#pragma once
#include "arch/tma.cuh"

// Both blocks meet; what they have written and initialised before is seen behind it.
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

// Arrives at the barrier of the other block, or of both, to give back what has been read: nothing that this
// thread has written is announced to the other block, for which a fence for the whole GPU would be needed.
LUATTN_FN void barrier_arrive_peer(u32 barrier, int rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(peer(barrier, rank)) : "memory");
}
LUATTN_FN void barrier_arrive_both(u32 barrier, int rank) {
  barrier_arrive(barrier);
  barrier_arrive_peer(barrier, rank);
}

// Copies `bytes` of shared memory to `dst` of the other block, whose `barrier` counts them. One thread.
LUATTN_FN void copy_to_peer(u32 dst, u32 src, int bytes, u32 barrier, int rank) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          peer(dst, rank)),
      "r"(src), "r"(bytes), "r"(peer(barrier, rank))
      : "memory");
}

// Adds 4 floats to as many in global memory; their address is a multiple of 16.
LUATTN_FN void add_global(float *to, float x, float y, float z, float w) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "f"(x),
               "f"(y), "f"(z), "f"(w)
               : "memory");
}
// Stores them if `first`, else adds them.
LUATTN_FN void put_global(float *to, float x, float y, float z, float w, bool first) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p st.global.v4.f32 [%0], {%1, %2, %3, %4};\n"
      "@!p red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(__cvta_generic_to_global(to)),
      "f"(x), "f"(y), "f"(z), "f"(w), "r"(u32(first))
      : "memory");
}
