// around/input_mods.cuh: luattn_mod: computes q', k', v' from q, k, v by query_mod, key_mod, value_mod.
//
// Grid (ceil(max(q_len, kv_len) / aux_tile), heads, 3 * batch), blockIdx.z = 3 * b + which, which = 0: q, 1:
// k, 2: v; aux_threads threads. If a mod reads x[..], blocks divide the tensor's positions and heads
// otherwise: around/row_mods.cuh.
#pragma once
#include "around/row_mods.cuh"

template <class Spec, int Which, class Real>
LUATTN_FN Real apply_mod(const LuattnParams &p, const Site &s, Real x, int i, int d) {
  if constexpr (Which == WHICH_Q)
    return Spec::query_mod(p, s, x, i, d);
  else if constexpr (Which == WHICH_K)
    return Spec::key_mod(p, s, x, i, d);
  else
    return Spec::value_mod(p, s, x, i, d);
}

template <class Spec, class Elem, int Which, int Width, int N>
LUATTN_FN void mod_elements(const LuattnParams &p, const Site &site, const LuattnTensor &src,
                            const LuattnTensor &dst, int len) {
  for_each_element<Width, N>(len, [&](int i, int d) {
    Pack<Elem, N> x, y;
    x.load(row_of<const Elem>(src, site.b, site.h, i) + d);
#pragma unroll
    for (int j = 0; j < N; ++j)
      y[j] = from_real<Elem>(apply_mod<Spec, Which>(p, site, to_real(x[j]), i, d + j));
    y.store(row_of<Elem>(dst, site.b, site.h, i) + d);
  });
}

template <class Spec, class Config, int Which, int Width>
LUATTN_FN void mod_tensor(const LuattnParams &p, int b, const LuattnTensor &src, const LuattnTensor &dst,
                          int heads, int len) {
  if constexpr (reads_row<Spec, Which>) {
    if (int(blockIdx.y) < heads) mod_rows<Spec, typename Config::Elem, Which, Width>(p, b, src, dst, heads, len);
  } else if constexpr (has_mod<Spec, Which>) {
    using Elem = typename Config::Elem;
    const Site site = AroundParams::site(p, b, int(blockIdx.y));
    if (site.h < heads) mod_elements<Spec, Elem, Which, Width, per_access<Elem>>(p, site, src, dst, len);
  }
}

// Computes q', k', v' from q, k, v.
template <class Spec, class Config>
LUATTN_FN void aux_mod(const LuattnParams &p) {
  static_assert(ValidSpec<Spec>);
  const int which = int(blockIdx.z) % 3, b = int(blockIdx.z) / 3;
  if (which == WHICH_Q)
    mod_tensor<Spec, Config, WHICH_Q, Config::head_dim>(p, b, p.tensors.src_q, p.tensors.q, AroundParams::heads(p),
        AroundParams::q_len(p));
  if (which == WHICH_K)
    mod_tensor<Spec, Config, WHICH_K, Config::head_dim>(p, b, p.tensors.src_k, p.tensors.k, AroundParams::heads_kv(p),
        AroundParams::kv_len(p));
  if (which == WHICH_V)
    mod_tensor<Spec, Config, WHICH_V, Config::head_dim_v>(p, b, p.tensors.src_v, p.tensors.v, AroundParams::heads_kv(p),
        AroundParams::kv_len(p));
}
