// linear/around/linear_prepare.cuh: luattn_linear_prepare: makes rows of q, k and v by mods that are no number of a token
// times the element, for main kernels that know no such mods. 256 threads, a warp for LUATTN_PREPARE_ROWS rows of heads.
#pragma once
#include "linear/around/linear_rows.cuh"

static constexpr int prepare_warps = 8;

// Row number `first` of all heads of all tokens, and those behind it: their loads are under way together. Rows of one token ask once
// where it lies.
template <class Hook, class Config, int Dim>
LUATTN_FN void prepare_rows(const LuattnLinearParams &p, const LuattnTensor &from, const LuattnTensor &to, int heads,
                            i64 first) {
  using Elem = typename Config::Elem;
  constexpr int count = LUATTN_PREPARE_ROWS;
  const i64 all = tokens_of_all<Config>(p);
  i64 token = first >> 32 == 0 ? i64(u32(first) / u32(heads)) : first / heads;
  int head = int(first - token * heads);
  LaneRow<Elem, Dim> x[count];
  TokenPlace now;
  const Elem *in = nullptr;
  Elem *out = nullptr, *made[count];
  int of[count];  // a row's token; negative: of no entry
  LinearSite s[count];
  const auto place = [&] {
    now = token < all ? place_of_token<Config>(p, token) : TokenPlace{0, 0, 0, true};
    if (!now.none) in = row_of<Config, const Elem>(from, now, head), out = row_of<Config, Elem>(to, now, head);
  };
  place();
#pragma unroll
  for (int i = 0; i < count; ++i) {
    made[i] = out, of[i] = now.none ? -1 : now.t;
    s[i] = Hook::of_v ? LinearSite{now.entry, head, head / p.group, now.first}
                      : LinearSite{now.entry, head * p.group, head, now.first};
    if (!now.none) x[i].load(in);
    in += from.head, out += to.head;
    if (++head == heads) head = 0, ++token, place();
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    if (of[i] < 0) continue;
    float red[Hook::sums + 1];
    find_sums<Hook>(p, s[i], x[i], of[i], red);
#pragma unroll
    for (int n = 0; n < x[i].count; ++n)
      x[i].x[n] = x[i].has(n) ? Hook::value(p, s[i], x[i].x[n], of[i], x[i].channel(n), red) : 0.f;
    x[i].store(made[i]);
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
