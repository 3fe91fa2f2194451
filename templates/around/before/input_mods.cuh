// around/before/input_mods.cuh: luattn_mod: computes q', k', v' from q, k, v by query_mod, key_mod, value_mod.
//
// Grid (ceil(max(q_len, kv_len) / aux_tile), heads, 3 * batch), blockIdx.z = 3 * b + which, which = 0: q, 1:
// k, 2: v; aux_threads threads. If a mod reads x[..], blocks divide the tensor's positions and heads
// otherwise: around/row_mods.cuh.
#pragma once
#include "around/row_mods.cuh"
#include "work/sequence.cuh"

template <class Spec, int Which, class Real>
LUATTN_FN Real apply_mod(const LuattnParams &p, const Site &s, Real x, int i, int d) {
  if constexpr (Which == WHICH_Q)
    return Spec::query_mod(p, s, x, i, d);
  else if constexpr (Which == WHICH_K)
    return Spec::key_mod(p, s, x, i, d);
  else
    return Spec::value_mod(p, s, x, i, d);
}

template <class Spec, class Elem, int Which, int Width, int N, class Sequence>
LUATTN_FN void mod_elements(const LuattnParams &p, const Sequence &site, const LuattnTensor &src,
                            const LuattnTensor &dst) {
  const auto from = rows_of<Which, const Elem>(p, site, src);
  const auto to = rows_of<Which, Elem>(p, site, dst);
  for_each_element<Width, N>(from, end_of<Which>(p, site), [&](int i, int d) {
    Pack<Elem, N> x, y;
    x.load(from.row(i) + d);
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = from_real<Elem>(apply_mod<Spec, Which>(p, site, to_real(x[j]), i, d + j));
    y.store(to.row(i) + d);
  });
}

template <class Spec, class Config, int Which, int Width>
LUATTN_FN void mod_tensor(const LuattnParams &p, int b, const LuattnTensor &src, const LuattnTensor &dst) {
  using Sequence = SequenceOf<Config>;
  using Elem = typename Config::Elem;
  const int h = int(blockIdx.y);
  if constexpr (has_mod<Spec, Which> || reads_row<Spec, Which>) {
    if (h >= heads_of<Which, Sequence>(p)) return;
    Sequence site(p, b, h);
    enter_rows<Which>(p, site);
    if constexpr (reads_row<Spec, Which>)
      mod_rows<Spec, Elem, Which, Width>(p, site, src, dst);
    else
      mod_elements<Spec, Elem, Which, Width, per_access<Elem>>(p, site, src, dst);
  }
}

// Computes q', k', v' from q, k, v.
template <class Spec, class Config>
LUATTN_FN void aux_mod(const LuattnParams &p) {
  static_assert(ValidSpec<Spec>);
  const int which = int(blockIdx.z) % 3, b = int(blockIdx.z) / 3;
  if (which == WHICH_Q) mod_tensor<Spec, Config, WHICH_Q, Config::head_dim>(p, b, p.tensors.src_q, p.tensors.q);
  if constexpr (!SequenceOf<Config>::paged) {  // keys in pages have no mod
    if (which == WHICH_K) mod_tensor<Spec, Config, WHICH_K, Config::head_dim>(p, b, p.tensors.src_k, p.tensors.k);
    if (which == WHICH_V) mod_tensor<Spec, Config, WHICH_V, Config::head_dim_v>(p, b, p.tensors.src_v, p.tensors.v);
  }
}
