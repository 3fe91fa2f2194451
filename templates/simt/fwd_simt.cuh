// simt/fwd_simt.cuh: the forward kernel in f32 or f64 on the FMA units, for any architecture from 8.0 on. It
// is the correctness baseline on a GPU.
//
// luattn_fwd: grid (ceil(q_len / tile_m), heads, batch). A block owns a q tile and walks its kv tiles.
//
// Config: elem float or double, over a grid any; head_dim and head_dim_v from 1 to LUATTN_MAX_HEAD_DIM; tile_m and tile_n powers of two >= 16;
// threads a power of two, 32 .. 512, with threads / 16 <= min(tile_m, tile_n). stages is not read: there are
// two, and any tiles suffice for every head dim.
//
// Dynamic shared memory: simt_bytes of abi/shared_memory.h, with one tile of P.
//
// Elements that a thread keeps in registers through the loop: tile_m * (tile_n + head_dim_v) / threads, and
// its row states. Good tiles (threads): f32 64 x 64 (256; 128 up to head_dim_v 128 is faster and compiles
// slower). f64 32 x 32 (128) up to head_dim_v 128, 32 x 32 (256) beyond.
#pragma once
#include "simt/dropout_simt.cuh"
#include "simt/tile_products.cuh"
#include "sink/padding.cuh"
#include "sink/row_numbers.cuh"
#include "work/tile_scheduler.cuh"

// Replaces the dot products of a tile by scores, for all elements. Masked and other tiles share the code.
template <class Spec, class Config>
LUATTN_FN void score_tile(const Simt<Spec, Config> &t, const LuattnParams &p, const SequenceOf<Config> &site,
                          const typename Spec::Head &head, const typename Spec::Row (&row)[Simt<Spec, Config>::rows],
                          int q0, int kv0, const DistanceTable<Spec, Config> &terms,
                          typename Spec::Real (&s)[Simt<Spec, Config>::rows][Simt<Spec, Config>::cols]) {
  using T = Simt<Spec, Config>;
#pragma unroll
  for (int c = 0; c < T::cols; ++c) {
    const Position kv = t.kv_at(kv0, c);
    const typename Spec::Col col = Spec::col(p, site, head, site.clamped_key(p, kv));
#pragma unroll
    for (int r = 0; r < T::rows; ++r)
      s[r][c] =
          score_of<Spec>(p, site, head, row[r], col, s[r][c], t.q_at(q0, r), kv, terms.get(t.row_at(r), t.col_at(c)));
  }
}

// Replaces scores that the mask drops by -inf or 0.
template <class Spec, class Config>
LUATTN_FN void mask_tile(const Simt<Spec, Config> &t, const LuattnParams &p, const SequenceOf<Config> &site,
                         const typename Spec::Head &head, const typename Spec::Row (&row)[Simt<Spec, Config>::rows],
                         int q0, int kv0, typename Spec::Real (&s)[Simt<Spec, Config>::rows][Simt<Spec, Config>::cols],
                         KeepBits<Simt<Spec, Config>::cols> (&keep)[Simt<Spec, Config>::rows]) {
  using Real = typename Spec::Real;
  using T = Simt<Spec, Config>;
#pragma unroll
  for (int c = 0; c < T::cols; ++c) {
    const int at = kv0 + t.col_at(c), kv = site.clamped_key(p, at);
    const typename Spec::Col col = Spec::col(p, site, head, kv);
#pragma unroll
    for (int r = 0; r < T::rows; ++r) {
      const int q = site.clamped_query(p, q0 + t.row_at(r));
      bool kept = site.has_key(p, at);
      if constexpr (Spec::has_mask) kept = kept & Spec::keep(p, site, head, row[r], col, q, kv);
      keep[r].set(c, kept);
      s[r][c] = kept ? s[r][c] : Spec::mask_by_inf ? -infinity<Real>() : Real(0);
    }
  }
}

// Writes the rows of O, and what is kept of each.
template <class Spec, class Config, class Online, class Sequence, int Each>
LUATTN_FN void finish_rows_simt(const Simt<Spec, Config> &t, const LuattnParams &p, const Sequence &site,
                                const typename Spec::Head &head,
                                const typename Spec::Row (&row)[Simt<Spec, Config>::rows], Online &online, int q0,
                                typename Spec::Real (&out)[Simt<Spec, Config>::rows][Each]) {
  using Real = typename Spec::Real;
  online.finish();
  using Out = OutOf<Config>;
  const bool wide = are_wide<Out>(site.template q_rows<Out>(p, p.tensors.o), p.tensors.o);
#pragma unroll
  for (int r = 0; r < Simt<Spec, Config>::rows; ++r) {
    const int at = q0 + t.row_at(r);
    if (!site.has_query(p, at)) continue;
    const bool any = online.kept[r];
    Real factor = any ? Spec::out_scale(p, site, head, row[r], online.state[r]) : Real(0);
    if constexpr (Dropout<Config>::any) factor *= Real(Dropout<Config>::factor);
    if (!any) {
#pragma unroll
      for (int d = 0; d < Each; ++d) out[r][d] = Real(0);
    }
    t.template store<Config::head_dim_v>(site.template q_row<Out>(p, p.tensors.o, at), out[r], factor, wide, true);
    if (t.lane == 0) write_row<Spec>(p, site, head, row[r], online.state[r], at, any);
  }
}

template <class Spec, class Config>
LUATTN_FN void fwd_simt(const LuattnParams &p) {
  static_assert(ForwardSpec<Spec> && has_shared<Config, Simt<Spec, Config>::bytes(1)>());
  using Real = typename Spec::Real;
  using T = Simt<Spec, Config>;
  constexpr int dim = Config::head_dim, dim_v = Config::head_dim_v, rows = T::rows, cols = T::cols;
  const BlockSite block = BlockSite::of_grid<Spec::has_tile_bits>(p);
  SequenceOf<Config> site(p, block.b, block.h);
  const int q_tile = block.q_tile, q0 = q_tile * T::tile_m, h_kv = block.h_kv;
  site.enter_queries(p, q0);
  if (site.packed && !site.has_query(p, q0)) return;  // the grid is for the longest entry
  T t;

  const typename Spec::Head head = Spec::head(p, site);
  typename Spec::Row row[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) row[r] = Spec::row(p, site, head, site.clamped_query(p, q0 + t.row_at(r)));
  OnlineRows<Spec, rows, cols, T::lanes, 1> online;
  online.init(p, site, head, row);
  Real out[rows][LaneColumns<Real, dim_v>::each] = {};
  using Drops = Dropout<Config>;
  Drops dropout;
  if constexpr (Drops::any) dropout.enter_head(p, site);

  using Elem = typename Config::Elem;
  const auto q = q_slab<Elem>(p, site, p.tensors.q, q0);
  auto k = kv_slab<Elem>(p, site, p.tensors.k, h_kv, 0), v = kv_slab<Elem>(p, site, p.tensors.v, h_kv, 0);
  Real *weights = t.weights(0);
  const DistanceTable<Spec, Config> terms{t.weights(1)};

  KvTilesOf<Spec, SequenceOf<Config>, T::tile_m, T::tile_n> walk(p, site, q_tile);
  Tile tile = walk.next(p, site);
  const auto request_scores = [&](const Tile &of) {
    k.first = of.index * T::tile_n;
    t.template request_dot<dim>(q, k, 0);
  };
  if (tile.valid()) request_scores(tile);
#pragma unroll 1
  while (tile.valid()) {
    v.first = tile.index * T::tile_n;
    site.enter_keys(p, v.first);
    terms.fill(p, site, head, q0, k.first);
    Real s[rows][cols], scale[rows];
    t.template dot<dim>(s, q, k, [&] { t.template request_rows<dim_v, T::tile_n>(v, 0); });

    KeepBits<cols> keep[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) keep[r] = KeepBits<cols>::none();
    score_tile(t, p, site, head, row, q0, k.first, terms, s);
    if (tile.masked) mask_tile(t, p, site, head, row, q0, k.first, s, keep);
    online.enter_tile(t.kv_at(k.first, 0));
    if constexpr (Spec::mask_by_inf || Spec::mask_by_zero) {
      online.kept.bits |= tile.masked ? online.kept_rows(keep) : online.all;
      online.step_by_inf(p, site, head, row, s, scale);
    } else if (tile.masked) {
      online.template step<true>(p, site, head, row, s, keep, scale);
    } else {
      online.template step<false>(p, site, head, row, s, keep, scale);
    }
    if constexpr (Drops::any) {
      const auto kept = DroppedSimt<Spec, Config>::draw(dropout, t, p, site, q0, k.first);
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int c = 0; c < cols; ++c) s[r][c] = kept.get(r, c) ? s[r][c] : Real(0);
    }
#pragma unroll
    for (int r = 0; r < rows; ++r) {
#pragma unroll
      for (int c = 0; c < cols; ++c) weights[t.row_at(r) * T::weight_stride + t.col_at(c)] = s[r][c];
      if constexpr (Spec::has_rescale) {
#pragma unroll
        for (int d = 0; d < LaneColumns<Real, dim_v>::each; ++d) out[r][d] *= scale[r];
      }
    }

    const Tile next = walk.next(p, site);
    t.template accumulate<dim_v>(out, weights, v, [&] {
      if (next.valid()) request_scores(next);
    });
    tile = next;
  }

  finish_rows_simt(t, p, site, head, row, online, q0, out);
}

template <class Spec, class Config>
constexpr int fwd_simt_blocks = simt_blocks<Config>(
    Config::tile_m * (Config::tile_n + Config::head_dim_v) / Config::threads,
    int(sizeof(typename Spec::State) + sizeof(typename Spec::Row)), int(sizeof(typename Spec::Head)));
