// tma/box_copies.cuh: TMA copies of boxes of a grid (GridBoxAt), as those of rows in tma/bulk_copies.cuh.
#pragma once
#include "arch/tensor_box.cuh"
#ifdef LUATTN_FAR_PLACES
#include "ops/grid_places.cuh"
#endif

#ifdef LUATTN_FAR_PLACES
// Where a box begins in places of its groups; adds these to the unit.
LUATTN_FN GridBoxAt box_of_groups(GridBoxAt box, int &unit) {
  using Side = GridSideOf<true>;  // groups of queries are alike
  const int *of =
      static_cast<const LuattnFarPlaces *>(static_cast<const void *>(box.grid + 1))->of[box.units - &box.grid->units_q];
  each_axis([&](auto axis) {
    constexpr int a = axis.value;
    if constexpr (Side::is_far(a)) {
      const int group = Side::group<a>(box.at[a]);
      unit += group * of[a];
      box.at[a] = Side::in_group<a>(box.at[a], group);
    }
  });
  return box;
}
#else
LUATTN_FN const GridBoxAt &box_of_groups(const GridBoxAt &box, int &) { return box; }
#endif

// Calls copy(x, y, t, unit, byte) for each of a box's copies. A place past the end of the outermost of four axes lies past
// the units' end, too.
template <class Copy>
LUATTN_FN void each_copy(const GridBoxAt &given, int head, const Copy &copy) {
  int unit = head * given.units->head + given.entry * given.units->batch;
  const GridBoxAt &box = box_of_groups(given, unit);
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
