// tma/warp_roles.cuh: what warps of a block with several roles need: registers by warpgroup, barriers among some of the
// warps, one lane of a warp.
#pragma once
#include "arch/types.cuh"

// Sets the registers of a thread, a multiple of 8; every warp of the warpgroup calls it. registers_up waits
// until others have released as many.
template <int Count>
LUATTN_FN void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
LUATTN_FN void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

// Named barriers 1 to 15, of `threads` threads, some of which may only arrive and not wait.
LUATTN_FN void named_sync(int name, int threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
LUATTN_FN void named_arrive(int name, int threads) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// One lane of a converged warp.
LUATTN_FN bool elected() {
  u32 chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
  return chosen != 0;
}
