// sm90/fwd/bias_copies.cuh: the PTX of bias staging (sm90/fwd/bias_staging.cuh). A host test replaces this
// file by its own version, so the include guard has a name.
#ifndef LUATTN_BIAS_COPIES_CUH
#define LUATTN_BIAS_COPIES_CUH
#include "arch/types.cuh"

// Copies 16 bytes to shared memory at `to` if `there` is true; both addresses are multiples of 16.
LUATTN_FN void bias_copy_16(u32 to, u64 from, bool there) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p cp.async.cg.shared.global [%0], [%1], 16;\n}" ::"r"(to),
               "l"(from), "r"(int(there))
               : "memory");
}
// Copies 4 bytes in the same way; both addresses are multiples of 4.
LUATTN_FN void bias_copy_4(u32 to, u64 from, bool there) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p cp.async.ca.shared.global [%0], [%1], 4;\n}" ::"r"(to),
               "l"(from), "r"(int(there))
               : "memory");
}
// Copies 2 bytes, synchronously.
LUATTN_FN void bias_copy_2(u32 to, u64 from) {
  unsigned short x;
  asm volatile("ld.global.b16 %0, [%1];" : "=h"(x) : "l"(from) : "memory");
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(x) : "memory");
}
// Waits for this thread's copies.
LUATTN_FN void bias_copy_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Arrives once this thread's copies are complete.
LUATTN_FN void bias_copies_arrive(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

LUATTN_FN void bias_store(u32 to, float x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory"); }
template <class Half>
LUATTN_FN void bias_store(u32 to, Half x) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(x.bits) : "memory");
}
LUATTN_FN void bias_load(u32 (&x)[1], u32 at) { asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x[0]) : "r"(at)); }
LUATTN_FN void bias_load(u32 (&x)[2], u32 at) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(at));
}
#endif
