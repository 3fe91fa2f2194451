// tma/mbarrier.cuh: mbarriers, and tests ahead of a wait.
//
// An mbarrier is 8 bytes of shared memory, identified by its address. A phase ends, and the next begins, when
// as many threads have arrived as barrier_init says and all announced bytes have been copied. A waiter gives
// the parity of the phase whose end it waits for: 0 for the first one, 1 for the second, and so on
// alternately. Waiting for parity 1 on a new barrier returns at once. After a wait, writes before the
// arrivals and those of the copies are visible.
#pragma once
#include "arch/types.cuh"

LUATTN_FN void barrier_init(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to TMA; called before the block synchronises.
LUATTN_FN void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Releases what the thread did before. One lane arrives for its warp behind a __syncwarp, where other lanes have accessed
// shared memory themselves: that orders the lanes, so what they did comes before the arrival, and a waiter's next accesses
// behind it. elect.sync and .aligned instructions make lanes meet, and order no accesses. What wgmma reads is no lane's: the
// arriving lane has waited for it. racecheck follows the order of an mbarrier for the threads that arrive, and no __syncwarp
// before it: it reports accesses of lanes for which another one arrives, and none of these if all arrive
// (bench/journal/linear_races.md).
LUATTN_FN void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and adds `bytes` to what the phase expects.
LUATTN_FN void barrier_arrive_expect(u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Adds `bytes` to what the phase expects, without arriving.
LUATTN_FN void barrier_expect(u32 barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
LUATTN_FN void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Whether the phase has ended.
LUATTN_FN bool barrier_test(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Tests a barrier early. barrier_peek tests once and, unlike a wait, never suspends the thread.
// barrier_wait_peeked waits for the same phase later, and costs next to nothing if the peek found the phase
// ended. The result of a peek takes more than a hundred cycles. It stays in one of four predicates, selected
// by `Which`, that only PTX knows: a C++ value would be awaited at once.
LUATTN_FN void barrier_peeks_init() {
  asm volatile(
      ".reg .pred ended_<4>;\nmov.pred ended_0, 0;\nmov.pred ended_1, 0;\nmov.pred ended_2, 0;\n"
      "mov.pred ended_3, 0;");
}
template <int Which>
LUATTN_FN void barrier_peek(u32 barrier, u32 parity) {
  asm volatile("mbarrier.test_wait.parity.shared::cta.b64 ended_%2, [%0], %1;" ::"r"(barrier), "r"(parity), "n"(Which)
               : "memory");
}
template <int Which>
LUATTN_FN void barrier_wait_peeked(u32 barrier, u32 parity) {
  asm volatile(
      "{\n@ended_%2 bra over;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 ended_%2, [%0], %1;\n"
      "@!ended_%2 bra again;\nover:\n}" ::"r"(barrier),
      "r"(parity), "n"(Which)
      : "memory");
}
