// arch/tma.cuh: TMA copies, mbarriers, and other PTX of sm_90a for warp-specialised kernels.
//
// An mbarrier is 8 bytes of shared memory, identified by its address. A phase ends, and the next begins, when
// as many threads have arrived as barrier_init says and all announced bytes have been copied. A waiter gives
// the parity of the phase whose end it waits for: 0 for the first one, 1 for the second, and so on
// alternately. Waiting for parity 1 on a new barrier returns at once. After a wait, writes before the
// arrivals and those of the copies are visible.
#pragma once
#include "arch/types.cuh"
#include "abi/params.h"

LUATTN_FN void barrier_init(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to TMA; called before the block synchronises.
LUATTN_FN void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
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

// The row at which a box begins, as coordinates of a TMA descriptor with the axes channel, position, head and batch
// entry.
struct RowBox {
  int row, entry;
};
// The same for packed rows, with the axes channel, row, head, end and wrap (runtime/launch/tma_descriptors.c). The last
// coordinate is always 1 << LUATTN_WRAP_LOG2.
struct PackedRowBox {
  int row, end;
};

// Copies a box of a TMA descriptor to `dst`. Elements outside the tensor become 0 without being read. Counts the
// bytes of the whole box on `barrier`. Called by one thread.
LUATTN_FN void tensor_load(u32 dst, const LuattnTensorMap &map, u32 barrier, int channel, RowBox box, int head) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6}], [%2];" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(channel), "r"(box.row), "r"(head), "r"(box.entry)
      : "memory");
}
LUATTN_FN void tensor_load(u32 dst, const LuattnTensorMap &map, u32 barrier, int channel, PackedRowBox box, int head) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6, %7}], [%2];" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(channel), "r"(box.row), "r"(head), "r"(box.end), "r"(1 << LUATTN_WRAP_LOG2)
      : "memory");
}

// The same for rows of a page of a head (LuattnPagedMaps), with the axes channel, row of the box, which is 0, and
// steps.
struct PageBox {
  int steps;
};
LUATTN_FN void tensor_load(u32 dst, const LuattnTensorMap &map, u32 barrier, int channel, PageBox box) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(dst),
      "l"(&map), "r"(barrier), "r"(channel), "r"(0), "r"(box.steps)
      : "memory");
}

// Brings a box to the L2 cache, for a load that cannot begin yet. Called by one thread.
LUATTN_FN void tensor_prefetch(const LuattnTensorMap &map, int channel, RowBox box, int head) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(channel),
               "r"(box.row), "r"(head), "r"(box.entry)
               : "memory");
}
LUATTN_FN void tensor_prefetch(const LuattnTensorMap &map, int channel, PackedRowBox box, int head) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(&map), "r"(channel),
               "r"(box.row), "r"(head), "r"(box.end), "r"(1 << LUATTN_WRAP_LOG2)
               : "memory");
}

// Copies a box from `src` to the place that the TMA descriptor gives, and leaves out what lies outside the
// tensor. bulk_commit closes its group, too. Called by one thread.
LUATTN_FN void tensor_store(u32 src, const LuattnTensorMap &map, int channel, RowBox box, int head) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(src), "r"(channel), "r"(box.row), "r"(head), "r"(box.entry)
               : "memory");
}
LUATTN_FN void tensor_store(u32 src, const LuattnTensorMap &map, int channel, PackedRowBox box, int head) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
               "r"(src), "r"(channel), "r"(box.row), "r"(head), "r"(box.end), "r"(1 << LUATTN_WRAP_LOG2)
               : "memory");
}

// Copies `bytes` from global to shared memory; both addresses and the size are multiples of 16. Counts them
// on `barrier`. Called by one thread.
LUATTN_FN void bulk_load(u32 dst, const void *src, int bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
               "l"(__cvta_generic_to_global(src)), "r"(bytes), "r"(barrier)
               : "memory");
}

// Makes this thread's writes to shared memory visible to wgmma and TMA, after a barrier.
LUATTN_FN void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Orders this thread's view of global memory before the TMA operations that it issues next.
LUATTN_FN void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Adds `bytes` / 4 floats in shared memory to global memory, if `there` is true; both addresses and the size
// are multiples of 16. Called by one thread. bulk_commit closes a group of the operations that the thread has
// issued. bulk_wait_read waits until all of them have read their source, which may then be overwritten.
// bulk_wait waits until they are complete.
LUATTN_FN void bulk_add(float *dst, u32 src, int bytes, bool there) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n"
      "@p cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n}" ::"l"(
          __cvta_generic_to_global(dst)),
      "r"(src), "r"(bytes), "r"(int(there))
      : "memory");
}
// Copies `bytes` from shared to global memory, under the same rules.
LUATTN_FN void bulk_store(void *dst, u32 src, int bytes, bool there) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n"
      "@p cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n}" ::"l"(__cvta_generic_to_global(dst)),
      "r"(src), "r"(bytes), "r"(int(there))
      : "memory");
}
LUATTN_FN void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
LUATTN_FN void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
LUATTN_FN void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

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
