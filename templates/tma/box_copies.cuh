// tma/box_copies.cuh: TMA copies of boxes of a grid (GridBoxAt), as those of rows in tma/bulk_copies.cuh.
#pragma once
#include "arch/tensor_box.cuh"

// Calls copy(x, y, t, unit, byte) for each of a box's copies. A place past the end of the outermost of four axes lies past
// the units' end, too.
template <class Copy>
LUATTN_FN void each_copy(const GridBoxAt &box, int head, const Copy &copy) {
  const int unit = head * box.units->head + box.entry * box.units->batch;
  if constexpr (Config::axes < 4) return copy(box.at[3], box.at[2], box.at[1], unit, 0);
  const int within = min_of(box.rows, box.rows_within);
#pragma unroll 1
  for (int i = 0; i * within < box.rows; ++i) {
    const int at = box.at[0] + i * box.outer_step;
    copy(box.at[3], box.at[2], box.at[1], at < box.extent ? unit + at * box.units->outer : 0x7fffffff,
         i * within * 128);
  }
}

LUATTN_FN void tensor_load(u32 dst, const LuattnTensorMap &map, u32 barrier, int channel, const GridBoxAt &box,
                           int head) {
  each_copy(box, head, [&](int x, int y, int t, int unit, int byte) {
    if constexpr (Config::axes == 2)
      asm volatile(
          "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
          "[%2];" ::"r"(dst),
          "l"(&map), "r"(barrier), "r"(channel), "r"(x), "r"(y), "r"(unit)
          : "memory");
    else
      asm volatile(
          "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, "
          "%7}], [%2];" ::"r"(dst + byte),
          "l"(&map), "r"(barrier), "r"(channel), "r"(x), "r"(y), "r"(t), "r"(unit)
          : "memory");
  });
}
LUATTN_FN void tensor_prefetch(const LuattnTensorMap &map, int channel, const GridBoxAt &box, int head) {
  each_copy(box, head, [&](int x, int y, int t, int unit, int) {
    if constexpr (Config::axes == 2)
      asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(channel),
                   "r"(x), "r"(y), "r"(unit)
                   : "memory");
    else
      asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(&map),
                   "r"(channel), "r"(x), "r"(y), "r"(t), "r"(unit)
                   : "memory");
  });
}
LUATTN_FN void tensor_store(u32 src, const LuattnTensorMap &map, int channel, const GridBoxAt &box, int head) {
  each_copy(box, head, [&](int x, int y, int t, int unit, int byte) {
    if constexpr (Config::axes == 2)
      asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                   "r"(src), "r"(channel), "r"(x), "r"(y), "r"(unit)
                   : "memory");
    else
      asm volatile(
          "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
          "r"(src + byte), "r"(channel), "r"(x), "r"(y), "r"(t), "r"(unit)
          : "memory");
  });
}
