// linear/around/linear_prepare.cuh: luattn_linear_prepare: makes rows of q, k and v by mods that are no number of a token
// times the element, for main kernels that know no such mods. 256 threads, a warp for each row of a head.
#pragma once
#include "linear/around/linear_rows.cuh"

static constexpr int prepare_warps = 8;

template <class Hook, class Config, int Dim>
LUATTN_FN void prepare_row(const LuattnLinearParams &p, const LuattnTensor &from, const LuattnTensor &to, int heads,
                           i64 n) {
  using Elem = typename Config::Elem;
  if (n >= tokens_of_all<Config>(p) * heads) return;
  const int head = int(n % heads);
  const TokenPlace at = place_of_token<Config>(p, n / heads);
  if (at.none) return;
  const LinearSite s = Hook::of_v ? LinearSite{at.entry, head, head / p.group, at.first}
                                  : LinearSite{at.entry, head * p.group, head, at.first};
  LaneRow<Elem, Dim> x;
  float red[Hook::sums + 1];
  x.load(row_of<Config, Elem>(from, at, head));
  find_sums<Hook>(p, s, x, at.t, red);
#pragma unroll
  for (int i = 0; i < x.count; ++i) x.x[i] = x.has(i) ? Hook::value(p, s, x.x[i], at.t, x.channel(i), red) : 0.f;
  x.store(row_of<Config, Elem>(to, at, head));
}

template <class Spec, class Config>
LUATTN_FN void linear_prepare(const LuattnLinearParams &p, u32 block) {
  const i64 n = i64(block / 3) * prepare_warps + threadIdx.x / 32;
  const u32 which = block % 3;
  if constexpr (Spec::Query::made)
    if (which == 0) prepare_row<typename Spec::Query, Config, Config::k_dim>(p, p.rows.from[0], p.q, p.heads, n);
  if constexpr (Spec::Key::made)
    if (which == 1) prepare_row<typename Spec::Key, Config, Config::k_dim>(p, p.rows.from[1], p.k, p.heads, n);
  if constexpr (Spec::Value::made)
    if (which == 2) prepare_row<typename Spec::Value, Config, Config::v_dim>(p, p.rows.from[2], p.v, p.heads_v, n);
}
