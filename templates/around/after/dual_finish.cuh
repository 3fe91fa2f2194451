// around/after/dual_finish.cuh: luattn_finish beside tangents: writes the tangents of dq, dk and dv of tensors with a mod, from
// those behind it, and adds those of its parameters' gradients. With g the gradient behind a mod m,
//
//     dx = (dm/dx) g      dx' = (dm/dx)' g + (dm/dx) g'
//
// Grid: as of luattn_finish (around/after/finish.cuh); aux_threads threads. Accumulators are in the layout of PlainRows.
#pragma once
#include "around/after/finish.cuh"
#include "around/dual_rows_of_mods.cuh"

template <class Spec, int Which, class Real, class... More>
LUATTN_FN Real apply_dual_mod_grad(const LuattnParams &p, const Site &s, const Dual<Real> &x, const Dual<Real> &g,
                                   const More &...more, int i, int d, typename Spec::Acc &acc) {
  if constexpr (Which == WHICH_Q)
    return Spec::query_mod_grad_dual(p, s, x.x, x.d, g.x, g.d, more..., i, d, acc);
  else if constexpr (Which == WHICH_K)
    return Spec::key_mod_grad_dual(p, s, x.x, x.d, g.x, g.d, more..., i, d, acc);
  else
    return Spec::value_mod_grad_dual(p, s, x.x, x.d, g.x, g.d, more..., i, d, acc);
}

template <class Spec, int Which>
inline constexpr bool reads_grad_values = Which == WHICH_Q   ? bool(Spec::query_grad_values)
                                          : Which == WHICH_K ? bool(Spec::key_grad_values)
                                                             : bool(Spec::value_grad_values);

// Gradients behind the mod, of a row: tangents, and values where the mod reads them.
template <class Real, int Width, bool HasValues>
struct DualGradRow {
  const Real *values, *tangents;  // of the head
  int end, i;
  Real scale;
  LUATTN_FN Real load(const Real *head, int end, int i, int d) {
    Pack<Real, 1> x;
    load_gradient<Width, PlainRows>(x, head, end, i, d);
    return x[0];
  }
  __device__ __forceinline__ Dual<Real> at(int d) const {
    Real value = 0;
    if constexpr (HasValues) value = scale * load(values, end, i, d);
    return {value, scale * load(tangents, end, i, d)};
  }
};

// values, tangents: accumulators.
template <class Spec, class Config, int Which, int Width>
LUATTN_FN void finish_dual_tensor(const LuattnParams &p, int b, void *values, void *tangents, const LuattnTensor &src,
                                  const LuattnTensor &src_tangent, const LuattnTensor &dst) {
  using Sequence = SequenceOf<Config>;
  using Elem = typename Config::Elem;
  using Grad = GradOf<Config>;
  using Real = typename Spec::Real;
  constexpr bool has_values = reads_grad_values<Spec, Which>;
  Sequence site(p, b, int(blockIdx.y));
  enter_rows<Which>(p, site);
  const int end = end_of<Which>(p, site);
  if (site.h >= heads_of<Which, Sequence>(p) || tangents == nullptr) return;
  if (site.packed && int(blockIdx.x) * aux_tile >= end) return;  // the grid is for the longest entry
  typename Spec::Acc acc = zero_acc<typename Spec::Acc>();
  const auto from = rows_of<Which, const Elem>(p, site, src),
             from_tangent = rows_of<Which, const Elem>(p, site, src_tangent);
  const Real *const g_tangents = acc_of_head<Which, Width, PlainRows, Real>(p, site, tangents, site.h),
                    *g_values = nullptr;
  if constexpr (has_values) g_values = acc_of_head<Which, Width, PlainRows, Real>(p, site, values, site.h);
  const Real scale = Which == WHICH_V ? Real(1) : Real(p.scale);
  for_each_element<Width, 1>(from, end, [&](int i, int d) {
    const DualRow<has_given_tangent<Spec, Which>, decltype(from)> row{from, from_tangent, i};
    const DualGradRow<Real, Width, has_values> gradients{g_values, g_tangents, end, i, scale};
    const auto x = [&](int channel) { return row.template at<Real>(channel); };
    const auto g = [&](int channel) { return gradients.at(channel); };
    Real y;
    if constexpr (reads_row<Spec, Which>) {
      const auto read = dual_row_values<Spec, Which>(d, x, g);
      y = apply_dual_mod_grad<Spec, Which, Real, decltype(read)>(p, site, x(d), g(d), read, i, d, acc);
    } else {
      y = apply_dual_mod_grad<Spec, Which, Real>(p, site, x(d), g(d), i, d, acc);
    }
    if (dst.data != nullptr) rows_of<Which, Grad>(p, site, dst).row(i)[d] = from_real<Grad>(y);
  });
  if constexpr (Needs<Spec, Config>::parameters) flush_block<Spec, aux_threads>(p, site, Spec::head(p, site), acc);
}

template <class Spec, class Config, class Params>
LUATTN_FN void aux_dual_finish(const Params &p) {
  static_assert(DualGradSpec<Spec> && ValidDualMods<Spec>);
  using Need = Needs<Spec, Config>;
  const bool q_alone = int(gridDim.z) == SequenceOf<Config>::batch(p);
  const int which = q_alone ? WHICH_Q : int(blockIdx.z) % 3, b = q_alone ? int(blockIdx.z) : int(blockIdx.z) / 3;
  const LuattnTensors &t = p.tensors;
  const LuattnScratch &tangents = p.scratch;
  const LuattnTangentMods &mods = p.tangent_mods;
  if constexpr (Need::finish_q)
    if (which == WHICH_Q)
      finish_dual_tensor<Spec, Config, WHICH_Q, Config::head_dim>(p, b, mods.dq_acc, tangents.dq_acc, t.src_q,
                                                                  mods.src_q, t.dq);
  if constexpr (Need::finish_k)
    if (which == WHICH_K)
      finish_dual_tensor<Spec, Config, WHICH_K, Config::head_dim>(p, b, mods.dk_acc, tangents.dk_acc, t.src_k,
                                                                  mods.src_k, t.dk);
  if constexpr (Need::finish_v)
    if (which == WHICH_V)
      finish_dual_tensor<Spec, Config, WHICH_V, Config::head_dim_v>(p, b, mods.dv_acc, tangents.dv_acc, t.src_v,
                                                                    mods.src_v, t.dv);
}
