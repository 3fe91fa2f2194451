// around/before/grid_copies.cuh: luattn_copy_in and luattn_copy_out: copies whose groups of a far axis (LuattnFarPlaces) are
// of one length. Where an extent is no multiple of its step, TMA would take the places past the end of a shorter group for
// others of the tensor. So q, k, v and dout get zeros up to the next multiple, and forward's o comes from such a copy.
//
// Grids (ceil(most rows of a head / aux_tile), heads, 4 * batch), blockIdx.z = 4 * b + which, which = 3: dout; and (.., heads,
// batch). aux_threads threads.
#pragma once
#include "arch/tensor.cuh"
#include "around/around.cuh"

// The extents of a copy, or without `pads` of the grid.
template <bool Keys>
LUATTN_FN int copied_extent(const LuattnParams &p, int axis, bool pads) {
  using Side = GridSideOf<Keys>;
  const int extent = Side::extent(p, axis);
  return pads && Side::is_far(axis) ? grid_padded_extent(extent, Side::place_step(axis)) : extent;
}

// Copies the block's rows of a head. Elements are those of 16 bits, Width of them a row.
template <class Elem, bool Keys, int Width>
LUATTN_FN void copy_places(const LuattnParams &p, int b, int h, const LuattnTensor &from,
                           const LuattnGridSteps &from_steps, const LuattnTensor &to, const LuattnGridSteps &to_steps,
                           bool pads) {
  using Side = GridSideOf<Keys>;
  constexpr int n = per_access<Elem>, vectors = Width / n;
  static_assert(Width % n == 0);
  i64 rows = 1;
  each_axis([&](auto axis) { rows *= copied_extent<Keys>(p, axis.value, pads); });
  const u32 first = blockIdx.x * u32(aux_tile);
  const Elem *src = static_cast<const Elem *>(from.data) + b * from.batch + h * from.head;
  Elem *dst = static_cast<Elem *>(to.data) + b * to.batch + h * to.head;
#pragma unroll 1
  for (int i = int(threadIdx.x); i < aux_tile * vectors; i += aux_threads) {
    u32 rest = first + u32(i / vectors);
    if (rest >= rows) break;
    bool exists = true;
    i64 at_src = i % vectors * n, at_dst = at_src;
#pragma unroll
    for (int axis = LUATTN_GRID_AXES - 1; axis >= Side::first_axis; --axis) {
      const u32 extent = u32(copied_extent<Keys>(p, axis, pads)), outer = rest / extent;
      const int at = int(rest - outer * extent);
      exists = exists && at < Side::extent(p, axis);
      at_src += at * (axis == LUATTN_GRID_AXES - 1 ? from.seq : from_steps.outer[axis]);
      at_dst += at * (axis == LUATTN_GRID_AXES - 1 ? to.seq : to_steps.outer[axis]);
      rest = outer;
    }
    Pack<Elem, n> x = {};
    if (exists) x.load(src + at_src);
    x.store(dst + at_dst);
  }
}

template <class Spec, class Config>
LUATTN_FN void aux_copy_in(const LuattnFarParams &p) {
  using Elem = typename Config::Elem;
  using Sequence = SequenceOf<Config>;
  const LuattnTensors &t = p.tensors;
  const LuattnGrid &g = p.grid;
  const int which = int(blockIdx.z) % 4, b = int(blockIdx.z) / 4, h = int(blockIdx.y);
  const bool of_keys = which == WHICH_K || which == WHICH_V;
  if (h >= (of_keys ? Sequence::heads_kv(p) : Sequence::heads(p))) return;
  if (which == WHICH_Q && t.q.data != t.src_q.data)
    copy_places<Elem, false, Config::head_dim>(p, b, h, t.src_q, g.src_q, t.q, g.q, true);
  if (which == WHICH_K && t.k.data != t.src_k.data)
    copy_places<Elem, true, Config::head_dim>(p, b, h, t.src_k, g.src_k, t.k, g.k, true);
  if (which == WHICH_V && t.v.data != t.src_v.data)
    copy_places<Elem, true, Config::head_dim_v>(p, b, h, t.src_v, g.src_v, t.v, g.v, true);
  if constexpr (bool(Spec::has_grad))
    if (which == 3 && p.far.given.data != nullptr)
      copy_places<Elem, false, Config::head_dim_v>(p, b, h, p.far.given, p.far.given_steps, t.dout, g.dout, true);
}

template <class Spec, class Config>
LUATTN_FN void aux_copy_out(const LuattnFarParams &p) {
  copy_places<typename Config::Elem, false, Config::head_dim_v>(p, int(blockIdx.z), int(blockIdx.y), p.tensors.o,
                                                                p.grid.o, p.far.given, p.far.given_steps, false);
}
