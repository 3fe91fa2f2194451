// arch/cp_async.cuh: cp.async and dynamic shared memory, for the simt family. A test on the host puts its
// own in place of this file; hence a guard by name.
#ifndef LUATTN_CP_ASYNC_CUH
#define LUATTN_CP_ASYNC_CUH
#include "arch/types.cuh"

extern __shared__ __align__(16) unsigned char dynamic_shared[];

// Copies Bytes to address `dst` of shared memory. Where `valid` is false nothing is read and zeros are
// written.
template <int Bytes>
LUATTN_FN void copy_async(u32 dst, const void *src, bool valid) {
  const int size = valid ? Bytes : 0;
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(size) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(Bytes), "r"(size)
                 : "memory");
}

// Waits for all copies of this thread.
LUATTN_FN void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#endif
