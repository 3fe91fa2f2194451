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

template <class Spec, class Elem, int Which, int Width, int N>
LUATTN_FN void mod_elements(const LuattnParams &p, const Site &site, const LuattnTensor &src, const LuattnTensor &dst,
                            int len) {
  for_each_element<Width, N>(len, [&](int i, int d) {
    Pack<Elem, N> x, y;
    x.load(row_of<const Elem>(src, site.b, site.h, i) + d);
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = from_real<Elem>(apply_mod<Spec, Which>(p, site, to_real(x[j]), i, d + j));
    y.store(row_of<Elem>(dst, site.b, site.h, i) + d);
  });
}

template <class Spec, class Config, int Which, int Width, class Entry>
LUATTN_FN void mod_tensor(const LuattnParams &p, const Entry &entry, const LuattnTensor &src, const LuattnTensor &dst,
                          int heads, int len) {
  if constexpr (reads_row<Spec, Which>) {
    if (int(blockIdx.y) < heads) mod_rows<Spec, typename Config::Elem, Which, Width>(p, entry, src, dst, heads, len);
  } else if constexpr (has_mod<Spec, Which>) {
    using Elem = typename Config::Elem;
    const Site site = site_of_head(p, entry, int(blockIdx.y));
    if (site.h < heads) mod_elements<Spec, Elem, Which, Width, per_access<Elem>>(p, site, src, dst, len);
  }
}

// The same of a packed entry.
template <class Spec, class Config, int Which, int Width>
LUATTN_FN void mod_packed(const LuattnParams &p, const SequenceOf<Config> &entry, const LuattnTensor &src,
                          const LuattnTensor &dst) {
  using Elem = typename Config::Elem;
  constexpr bool is_q = Which == WHICH_Q;
  const int rows = is_q ? entry.first_q : entry.first_kv;
  mod_tensor<Spec, Config, Which, Width>(p, entry, entry_tensor<Elem>(src, rows), entry_tensor<Elem>(dst, rows),
                                         is_q ? AroundParams::heads(p) : AroundParams::heads_kv(p),
                                         is_q ? entry.q_len : entry.kv_len);
}
template <class Spec, class Config>
LUATTN_FN void mod_all_packed(const LuattnParams &p, int which, const SequenceOf<Config> &entry) {
  if (which == WHICH_Q) mod_packed<Spec, Config, WHICH_Q, Config::head_dim>(p, entry, p.tensors.src_q, p.tensors.q);
  if (which == WHICH_K) mod_packed<Spec, Config, WHICH_K, Config::head_dim>(p, entry, p.tensors.src_k, p.tensors.k);
  if (which == WHICH_V) mod_packed<Spec, Config, WHICH_V, Config::head_dim_v>(p, entry, p.tensors.src_v, p.tensors.v);
}

// Computes q', k', v' from q, k, v.
template <class Spec, class Config>
LUATTN_FN void aux_mod(const LuattnParams &p) {
  static_assert(ValidSpec<Spec>);
  const int which = int(blockIdx.z) % 3, b = int(blockIdx.z) / 3;
  if constexpr (SequenceOf<Config>::packed)
    return mod_all_packed<Spec, Config>(p, which, SequenceOf<Config>(p, b, int(blockIdx.y)));
  if constexpr (SequenceOf<Config>::paged) {  // keys have no mod
    if (which != WHICH_Q) return;
    const SequenceOf<Config> entry(p, b, int(blockIdx.y));
    return mod_tensor<Spec, Config, WHICH_Q, Config::head_dim>(p, entry, p.tensors.src_q, p.tensors.q,
                                                               AroundParams::heads(p), AroundParams::q_len(p));
  }
  const DenseEntry entry{b};
  if (which == WHICH_Q)
    mod_tensor<Spec, Config, WHICH_Q, Config::head_dim>(p, entry, p.tensors.src_q, p.tensors.q, AroundParams::heads(p),
                                                        AroundParams::q_len(p));
  if (which == WHICH_K)
    mod_tensor<Spec, Config, WHICH_K, Config::head_dim>(p, entry, p.tensors.src_k, p.tensors.k,
                                                        AroundParams::heads_kv(p), AroundParams::kv_len(p));
  if (which == WHICH_V)
    mod_tensor<Spec, Config, WHICH_V, Config::head_dim_v>(p, entry, p.tensors.src_v, p.tensors.v,
                                                          AroundParams::heads_kv(p), AroundParams::kv_len(p));
}
