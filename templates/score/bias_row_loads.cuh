// score/bias_row_loads.cuh: the loads and prefetches of a bias row (score/bias_rows.cuh). A host test
// replaces this file by its own version, so the include guard has a name.
#ifndef LUATTN_BIAS_ROW_LOADS_CUH
#define LUATTN_BIAS_ROW_LOADS_CUH
#include "arch/types.cuh"

// Reads two stored values without converting them. A value that does not exist is 0.
LUATTN_FN void read_stored(u32 &x, u32 &y, const float *from, const float *other, bool exist) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
      "@p ld.global.nc.u32 %0, [%2];\n@p ld.global.nc.u32 %1, [%3];\n}"
      : "=&r"(x), "=&r"(y)
      : "l"(from), "l"(other), "r"(int(exist)));
}
template <class Half>
LUATTN_FN void read_stored(u32 &x, u32 &y, const Half *from, const Half *other, bool exist) {
  unsigned short a, b;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\nmov.b16 %0, 0;\nmov.b16 %1, 0;\n"
      "@p ld.global.nc.u16 %0, [%2];\n@p ld.global.nc.u16 %1, [%3];\n}"
      : "=&h"(a), "=&h"(b)
      : "l"(from), "l"(other), "r"(int(exist)));
  x = a, y = b;
}

LUATTN_FN void prefetch_l2(u64 at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
#endif
