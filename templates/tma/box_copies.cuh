// tma/box_copies.cuh: TMA copies of boxes of a grid (GridBoxAt), as those of rows in tma/bulk_copies.cuh.
#pragma once
#include "arch/tensor_box.cuh"
#ifdef LUATTN_FAR_PLACES
#include "ops/grid_places.cuh"
#endif

// Where a box begins along an axis of the descriptor: of a far axis, among the places of its group.
template <int Axis>
LUATTN_FN int along_map(const GridBoxAt &box) {
#ifdef LUATTN_FAR_PLACES
  using Side = GridSideOf<true>;  // groups of queries are alike
  if constexpr (Side::is_far(Axis)) return Side::in_group<Axis>(box.at[Axis], Side::group<Axis>(box.at[Axis]));
#endif
  return box.at[Axis];
}
// Of a head, and of the groups of the far axes.
LUATTN_FN int unit_of(const GridBoxAt &box, int head) {
  int unit = head * box.units->head + box.entry * box.units->batch;
#ifdef LUATTN_FAR_PLACES
  const LuattnFarPlaces &far = *static_cast<const LuattnFarPlaces *>(static_cast<const void *>(box.grid + 1));
  each_axis([&](auto axis) {
    constexpr int a = axis.value;
    if constexpr (GridSideOf<true>::is_far(a))
      unit += GridSideOf<true>::group<a>(box.at[a]) * far.of[box.units - &box.grid->units_q][a];
  });
#endif
  return unit;
}

// Calls copy(x, y, t, unit, byte) for each of a box's copies. A place past the end of the outermost of four axes lies past
// the units' end, too.
template <class Copy>
LUATTN_FN void each_copy(const GridBoxAt &box, int head, const Copy &copy) {
  const int unit = unit_of(box, head);
  if constexpr (Config::axes < 4) return copy(along_map<3>(box), along_map<2>(box), along_map<1>(box), unit, 0);
  const int within = min_of(box.rows, box.rows_within);
#pragma unroll 1
  for (int i = 0; i * within < box.rows; ++i) {
    const int at = box.at[0] + i * box.outer_step;
    copy(along_map<3>(box), along_map<2>(box), along_map<1>(box),
         at < box.extent ? unit + at * box.units->outer : 0x7fffffff, i * within * 128);
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
