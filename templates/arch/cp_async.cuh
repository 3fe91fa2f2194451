// arch/cp_async.cuh: cp.async and dynamic shared memory, for the simt family. A host test replaces this file
// by its own version, so the include guard has a name.
#ifndef LUATTN_CP_ASYNC_CUH
#define LUATTN_CP_ASYNC_CUH
#include "arch/types.cuh"

extern __shared__ __align__(16) unsigned char dynamic_shared[];

// Copies Bytes to shared memory at `dst`. Where `valid` is false, reads nothing and writes zeros.
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
