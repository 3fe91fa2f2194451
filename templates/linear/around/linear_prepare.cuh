// linear/around/linear_prepare.cuh: luattn_linear_prepare: makes rows of q, k and v by mods that are no number of a token
// times the element, for main kernels that know no such mods. 256 threads, a warp for LUATTN_PREPARE_ROWS rows of heads.
#pragma once
#include "linear/around/linear_rows.cuh"

static constexpr int prepare_warps = 8;

// Row number `first` of all heads of all tokens, and those behind it: their loads are under way together.
template <class Hook, class Config, int Dim>
LUATTN_FN void prepare_rows(const LuattnLinearParams &p, const LuattnTensor &from, const LuattnTensor &to, int heads,
                            i64 first) {
  using Elem = typename Config::Elem;
  constexpr int count = LUATTN_PREPARE_ROWS;
  const i64 all = tokens_of_all<Config>(p), token = first / heads;
  const u32 head = u32(first - token * heads);
  LaneRow<Elem, Dim> x[count];
  TokenPlace at[count];
  LinearSite s[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const u32 more = (head + i) / u32(heads), h = head + i - more * u32(heads);
    at[i] = {0, 0, 0, true};
    if (token + more < all) at[i] = place_of_token<Config>(p, token + more);
    s[i] = Hook::of_v ? LinearSite{at[i].entry, int(h), int(h) / p.group, at[i].first}
                      : LinearSite{at[i].entry, int(h) * p.group, int(h), at[i].first};
    if (!at[i].none) x[i].load(row_of<Config, Elem>(from, at[i], int(h)));
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    if (at[i].none) continue;
    float red[Hook::sums + 1];
    find_sums<Hook>(p, s[i], x[i], at[i].t, red);
#pragma unroll
    for (int n = 0; n < x[i].count; ++n)
      x[i].x[n] = x[i].has(n) ? Hook::value(p, s[i], x[i].x[n], at[i].t, x[i].channel(n), red) : 0.f;
    x[i].store(row_of<Config, Elem>(to, at[i], Hook::of_v ? s[i].hv : s[i].h));
  }
}

template <class Spec, class Config>
LUATTN_FN void linear_prepare(const LuattnLinearParams &p, u32 block) {
  const i64 n = (i64(block / 3) * prepare_warps + threadIdx.x / 32) * LUATTN_PREPARE_ROWS;
  const u32 which = block % 3;
  if constexpr (Spec::Query::made)
    if (which == 0) prepare_rows<typename Spec::Query, Config, Config::k_dim>(p, p.rows.from[0], p.q, p.heads, n);
  if constexpr (Spec::Key::made)
    if (which == 1) prepare_rows<typename Spec::Key, Config, Config::k_dim>(p, p.rows.from[1], p.k, p.heads, n);
  if constexpr (Spec::Value::made)
    if (which == 2) prepare_rows<typename Spec::Value, Config, Config::v_dim>(p, p.rows.from[2], p.v, p.heads_v, n);
}
