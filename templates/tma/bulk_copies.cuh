// tma/bulk_copies.cuh: TMA: copies of boxes by descriptors, copies and additions of contiguous bytes, and the fences that go
// with them.
#pragma once
#include "abi/params.h"
#include "arch/tensor_box.cuh"
#include "arch/types.cuh"

// Which lines L2 evicts first, or last.
enum L2Lines { L2_FIRST, L2_AS_OTHERS, L2_LAST };
template <L2Lines Lines>
LUATTN_FN unsigned long long l2_policy() {
  unsigned long long x;
  if constexpr (Lines == L2_FIRST)
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(x));
  else
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(x));
  return x;
}

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

// The same of lines that L2 is told about.
LUATTN_FN void tensor_load(u32 dst, const LuattnTensorMap &map, u32 barrier, int channel, RowBox box, int head,
                           unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, "
      "%5, %6}], [%2], %7;" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(channel), "r"(box.row), "r"(head), "r"(box.entry), "l"(policy)
      : "memory");
}
LUATTN_FN void tensor_load(u32 dst, const LuattnTensorMap &map, u32 barrier, int channel, PackedRowBox box, int head,
                           unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, "
      "%5, %6, %7}], [%2], %8;" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(channel), "r"(box.row), "r"(head), "r"(box.end), "r"(1 << LUATTN_WRAP_LOG2),
      "l"(policy)
      : "memory");
}
template <L2Lines Lines, class Box>
LUATTN_FN void tensor_load_as(u32 dst, const LuattnTensorMap &map, u32 barrier, int channel, Box box, int head) {
  if constexpr (Lines == L2_AS_OTHERS)
    tensor_load(dst, map, barrier, channel, box, head);
  else
    tensor_load(dst, map, barrier, channel, box, head, l2_policy<Lines>());
}

// The same for rows of a page of a head.
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

// The same of contiguous bytes; the address and the size are multiples of 16.
LUATTN_FN void bulk_prefetch(const void *src, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(src)), "r"(bytes)
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
// Of all but the last group.
LUATTN_FN void bulk_wait_read_but_last() { asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); }
LUATTN_FN void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

#ifdef LUATTN_GRID
#include "tma/box_copies.cuh"
#endif
