// simt/fwd_jvp_simt.cuh: forward together with the tangents of O and lse, in f32 or f64 on the FMA units, of any
// element type; the baseline of what is computed, and for types and architectures that have nothing faster.
//
// luattn_fwd_jvp: grid (ceil(q_len / tile_m), heads, batch), as luattn_fwd of simt. A row has two accumulators,
// A = sum of P V and B = sum of (P' V + P V'), which a step scales alike.
//
// Config: as for simt/fwd_simt.cuh. Dynamic shared memory: simt_bytes, with two tiles of P.
#pragma once
#include "score/dual_rows.cuh"
#include "simt/fwd_simt.cuh"

// Replaces the dot products of a tile, and their tangents, by scores and theirs.
template <class Spec, class Config>
LUATTN_FN void score_dual_tile(const Simt<Spec, Config> &t, const LuattnParams &p, const SequenceOf<Config> &site,
                               const typename Spec::Head &head,
                               const typename Spec::Row (&row)[Simt<Spec, Config>::rows], int q0, int kv0,
                               typename Spec::Real (&s)[Simt<Spec, Config>::rows][Simt<Spec, Config>::cols],
                               typename Spec::Real (&st)[Simt<Spec, Config>::rows][Simt<Spec, Config>::cols]) {
  using T = Simt<Spec, Config>;
  using Real = typename Spec::Real;
  const Real scale = Real(p.scale);
#pragma unroll
  for (int c = 0; c < T::cols; ++c) {
    const Position kv = t.kv_at(kv0, c);
    const typename Spec::Col col = Spec::col(p, site, head, site.clamped_key(p, kv));
#pragma unroll
    for (int r = 0; r < T::rows; ++r) {
      const Dual<Real> y = Spec::score_dual(p, site, head, row[r], col, s[r][c], scale * st[r][c], t.q_at(q0, r), kv);
      s[r][c] = y.x, st[r][c] = y.d;
    }
  }
}

// Writes the rows of O and of its tangent, and what is kept of each.
template <class Spec, class Config, class Online, class Sequence, int Each>
LUATTN_FN void finish_dual_rows(const Simt<Spec, Config> &t, const LuattnTangentParams &p, const Sequence &site,
                                const typename Spec::Head &head,
                                const typename Spec::Row (&row)[Simt<Spec, Config>::rows], Online &online, int q0,
                                typename Spec::Real (&a)[Simt<Spec, Config>::rows][Each],
                                typename Spec::Real (&b)[Simt<Spec, Config>::rows][Each]) {
  using Real = typename Spec::Real;
  using Out = OutOf<Config>;
  constexpr int dim_v = Config::head_dim_v;
  constexpr Real drop_factor = Dropout<Config>::any ? Real(Dropout<Config>::factor) : Real(1);
  const LuattnTangents &to = p.tangents;
  const bool wide = are_wide<Out>(site.template q_rows<Out>(p, p.tensors.o), p.tensors.o),
             wide_tangent = are_wide<Out>(site.template q_rows<Out>(p, to.o), to.o);
  online.finish();
#pragma unroll
  for (int r = 0; r < Simt<Spec, Config>::rows; ++r) {
    const int at = q0 + t.row_at(r);
    if (!site.has_query(p, at)) continue;
    const bool any = online.kept[r];
    const Dual<Real> out = Spec::out_dual(p, site, head, row[r], online.state[r], online.tangent[r]);
#pragma unroll
    for (int d = 0; d < Each; ++d) {
      b[r][d] = any ? out.x * b[r][d] + out.d * a[r][d] : Real(0);
      a[r][d] = any ? out.x * a[r][d] : Real(0);
    }
    t.template store<dim_v>(site.template q_row<Out>(p, p.tensors.o, at), a[r], drop_factor, wide, true);
    if (to.o.data != nullptr)
      t.template store<dim_v>(site.template q_row<Out>(p, to.o, at), b[r], drop_factor, wide_tangent, true);
    if (t.lane != 0) continue;
    write_row<Spec>(p, site, head, row[r], online.state[r], at, any);
    if constexpr (Spec::has_lse) {
      if (to.lse.data == nullptr) continue;
      const Dual<Real> lse = Spec::lse_dual(p, site, head, row[r], online.state[r], online.tangent[r]);
      *site.template q_row<Real>(p, to.lse, at) = any && lse.x != -infinity<Real>() ? lse.d : Real(0);
    }
  }
}

template <class Spec, class Config>
LUATTN_FN void fwd_jvp_simt(const LuattnTangentParams &p) {
  static_assert(TangentSpec<Spec> && has_shared<Config, Simt<Spec, Config>::bytes(2)>());
  using Real = typename Spec::Real;
  using T = Simt<Spec, Config>;
  using Elem = typename Config::Elem;
  constexpr int dim = Config::head_dim, dim_v = Config::head_dim_v, rows = T::rows, cols = T::cols;
  constexpr int each = LaneColumns<Real, dim_v>::each;
  const BlockSite block = BlockSite::of_grid<Spec::has_tile_bits>(p);
  const SequenceOf<Config> site(p, block.b, block.h);
  const int q_tile = block.q_tile, q0 = q_tile * T::tile_m, h_kv = block.h_kv;
  if (site.packed && !site.has_query(p, q0)) return;  // the grid is for the longest entry
  T t;

  const typename Spec::Head head = Spec::head(p, site);
  typename Spec::Row row[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) row[r] = Spec::row(p, site, head, site.clamped_query(p, q0 + t.row_at(r)));
  DualRows<Spec, rows, cols, T::lanes> online;
  online.init(p, site, head, row);
  Real a[rows][each] = {}, b[rows][each] = {};
  using Drops = Dropout<Config>;
  Drops dropout;
  if constexpr (Drops::any) dropout.enter_head(p, site);

  const LuattnTangents &of = p.tangents;
  const auto q = q_slab<Elem>(p, site, p.tensors.q, q0), qt = q_slab<Elem>(p, site, of.q, q0);
  auto k = kv_slab<Elem>(p, site, p.tensors.k, h_kv, 0), kt = kv_slab<Elem>(p, site, of.k, h_kv, 0);
  auto v = kv_slab<Elem>(p, site, p.tensors.v, h_kv, 0), vt = kv_slab<Elem>(p, site, of.v, h_kv, 0);
  Real *const weights = t.weights(0), *const weights_tangent = t.weights(1);

  KvTilesOf<Spec, SequenceOf<Config>, T::tile_m, T::tile_n> walk(p, site, q_tile);
  Tile tile = walk.next(p, site);
  const auto request_scores = [&](const Tile &next) {
    k.first = kt.first = next.index * T::tile_n;
    t.template request_dot<dim>(q, k, 0);
  };
  const auto request_values = [&] { t.template request_rows<dim_v, T::tile_n>(v, 0); };
  if (tile.valid()) request_scores(tile);
#pragma unroll 1
  while (tile.valid()) {
    const int kv0 = v.first = vt.first = tile.index * T::tile_n;
    Real s[rows][cols], st[rows][cols] = {};
    Dual<Real> scale[rows];
    t.template dot<dim>(s, q, k, [&] {
      if constexpr (Spec::tangent_of_q)
        t.template request_dot<dim>(qt, k, 0);
      else if constexpr (Spec::tangent_of_k)
        t.template request_dot<dim>(q, kt, 0);
      else
        request_values();
    });
    if constexpr (Spec::tangent_of_q)
      t.template dot<dim>(st, qt, k, [&] {
        if constexpr (Spec::tangent_of_k)
          t.template request_dot<dim>(q, kt, 0);
        else
          request_values();
      });
    if constexpr (Spec::tangent_of_k) {
      Real more[rows][cols];
      t.template dot<dim>(more, q, kt, request_values);
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int c = 0; c < cols; ++c) st[r][c] += more[r][c];
    }

    KeepBits<cols> keep[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) keep[r] = KeepBits<cols>::none();
    score_dual_tile(t, p, site, head, row, q0, kv0, s, st);
    if (tile.masked) {
      mask_tile(t, p, site, head, row, q0, kv0, s, keep);
      online.template step<true>(p, site, head, row, s, st, keep, scale);
    } else {
      online.template step<false>(p, site, head, row, s, st, keep, scale);
    }
    if constexpr (Drops::any) {
      const auto kept = DroppedSimt<Spec, Config>::draw(dropout, t, p, site, q0, kv0);
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int c = 0; c < cols; ++c) {
          s[r][c] = kept.get(r, c) ? s[r][c] : Real(0);
          st[r][c] = kept.get(r, c) ? st[r][c] : Real(0);
        }
    }
#pragma unroll
    for (int r = 0; r < rows; ++r) {
#pragma unroll
      for (int c = 0; c < cols; ++c) {
        const int at = t.row_at(r) * T::weight_stride + t.col_at(c);
        weights[at] = s[r][c];
        if constexpr (Spec::has_prob_tangent) weights_tangent[at] = st[r][c];
      }
      if constexpr (Spec::has_rescale) {
#pragma unroll
        for (int d = 0; d < each; ++d) {
          b[r][d] *= scale[r].x;
          if constexpr (Spec::has_rescale_tangent) b[r][d] += scale[r].d * a[r][d];
          a[r][d] *= scale[r].x;
        }
      }
    }

    const Tile next = walk.next(p, site);
    const auto request_next = [&] {
      if (next.valid()) request_scores(next);
    };
    const auto request_tangents = [&] { t.template request_rows<dim_v, T::tile_n>(vt, 0); };
    t.template accumulate<dim_v>(a, weights, v, [&] {
      if constexpr (Spec::has_prob_tangent)
        request_values();
      else if constexpr (Spec::tangent_of_v)
        request_tangents();
      else
        request_next();
    });
    if constexpr (Spec::has_prob_tangent)
      t.template accumulate<dim_v>(b, weights_tangent, v, [&] {
        if constexpr (Spec::tangent_of_v)
          request_tangents();
        else
          request_next();
      });
    if constexpr (Spec::tangent_of_v) t.template accumulate<dim_v>(b, weights, vt, request_next);
    tile = next;
  }

  finish_dual_rows(t, p, site, head, row, online, q0, a, b);
}

template <class Spec, class Config>
constexpr int fwd_jvp_simt_blocks = simt_blocks<Config>(
    Config::tile_m * (2 * Config::tile_n + 2 * Config::head_dim_v) / Config::threads,
    int(2 * sizeof(typename Spec::State) + sizeof(typename Spec::Row)), int(sizeof(typename Spec::Head)));
