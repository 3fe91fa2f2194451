// around/before/dual_mods.cuh: luattn_mod beside tangents: computes q', k', v' and their tangents by query_mod, key_mod and
// value_mod.
//
// Grid: as of luattn_mod (around/before/input_mods.cuh); aux_threads threads.
#pragma once
#include "around/dual_rows_of_mods.cuh"

template <class Spec, int Which, class Real, class... More>
LUATTN_FN Dual<Real> apply_dual_mod(const LuattnParams &p, const Site &s, const Dual<Real> &x, const More &...more) {
  if constexpr (Which == WHICH_Q)
    return Spec::query_mod_dual(p, s, x.x, x.d, more...);
  else if constexpr (Which == WHICH_K)
    return Spec::key_mod_dual(p, s, x.x, x.d, more...);
  else
    return Spec::value_mod_dual(p, s, x.x, x.d, more...);
}

// src: of the caller, with the tangent; dst: what the attention kernels read, likewise.
template <class Spec, class Config, int Which, int Width>
LUATTN_FN void dual_mod_tensor(const LuattnParams &p, int b, const LuattnTensor &src, const LuattnTensor &src_tangent,
                               const LuattnTensor &dst, const LuattnTensor &dst_tangent) {
  if constexpr (has_mod<Spec, Which>) {
    using Sequence = SequenceOf<Config>;
    using Elem = typename Config::Elem;
    using Real = typename Spec::Real;
    const int h = int(blockIdx.y);
    if (h >= heads_of<Which, Sequence>(p)) return;
    Sequence site(p, b, h);
    enter_rows<Which>(p, site);
    const auto from = rows_of<Which, const Elem>(p, site, src),
               from_tangent = rows_of<Which, const Elem>(p, site, src_tangent);
    const auto to = rows_of<Which, Elem>(p, site, dst), to_tangent = rows_of<Which, Elem>(p, site, dst_tangent);
    for_each_element<Width, 1>(from, end_of<Which>(p, site), [&](int i, int d) {
      const DualRow<has_given_tangent<Spec, Which>, decltype(from)> row{from, from_tangent, i};
      const auto x = [&](int channel) { return row.template at<Real>(channel); };
      Dual<Real> y;
      if constexpr (reads_row<Spec, Which>)
        y = apply_dual_mod<Spec, Which>(p, site, x(d),
                                        dual_row_values<Spec, Which>(d, x, [](int) { return Dual<Real>{}; }), i, d);
      else
        y = apply_dual_mod<Spec, Which>(p, site, x(d), i, d);
      to.row(i)[d] = from_real<Elem>(y.x);
      if constexpr (has_made_tangent<Spec, Which>) to_tangent.row(i)[d] = from_real<Elem>(y.d);
    });
  }
}

template <class Spec, class Config, class Params>
LUATTN_FN void aux_dual_mod(const Params &p) {
  static_assert(ValidDualMods<Spec>);
  const int which = int(blockIdx.z) % 3, b = int(blockIdx.z) / 3;
  const LuattnTensors &t = p.tensors;
  const LuattnTangents &to = p.tangents;
  const LuattnTangentMods &from = p.tangent_mods;
  if (which == WHICH_Q) dual_mod_tensor<Spec, Config, WHICH_Q, Config::head_dim>(p, b, t.src_q, from.src_q, t.q, to.q);
  if (which == WHICH_K) dual_mod_tensor<Spec, Config, WHICH_K, Config::head_dim>(p, b, t.src_k, from.src_k, t.k, to.k);
  if (which == WHICH_V)
    dual_mod_tensor<Spec, Config, WHICH_V, Config::head_dim_v>(p, b, t.src_v, from.src_v, t.v, to.v);
}
