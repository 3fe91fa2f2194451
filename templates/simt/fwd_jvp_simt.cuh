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
#include "sink/dual_out.cuh"

// A head's keys and values, and their tangents.
template <class K>
struct DualKeys {
  K k, kt, v, vt;
  __device__ __forceinline__ void at(int kv0) { k.first = kt.first = v.first = vt.first = kv0; }
};
template <class Config>
LUATTN_FN auto dual_keys(const TangentParams &p, const SequenceOf<Config> &site, int h_kv) {
  using Elem = typename Config::Elem;
  const auto k = kv_slab<Elem>(p, site, p.tensors.k, h_kv, 0), kt = kv_slab<Elem>(p, site, p.tangents.k, h_kv, 0),
             v = kv_slab<Elem>(p, site, p.tensors.v, h_kv, 0), vt = kv_slab<Elem>(p, site, p.tangents.v, h_kv, 0);
  return DualKeys<decltype(kv_slab<Elem>(p, site, p.tensors.k, h_kv, 0))>{k, kt, v, vt};
}

// Turns the dot products of a tile, and their tangents, into P and P', and finds the factors for what has been summed.
template <class Spec, class Config, class Online>
LUATTN_FN void step_dual_tile(const Simt<Spec, Config> &t, const LuattnParams &p, const SequenceOf<Config> &site,
                              const typename Spec::Head &head,
                              const typename Spec::Row (&row)[Simt<Spec, Config>::rows], Online &online, int q0,
                              const Tile &tile,
                              typename Spec::Real (&s)[Simt<Spec, Config>::rows][Simt<Spec, Config>::cols],
                              typename Spec::Real (&st)[Simt<Spec, Config>::rows][Simt<Spec, Config>::cols],
                              Dual<typename Spec::Real> (&scale)[Simt<Spec, Config>::rows]) {
  using T = Simt<Spec, Config>;
  using Real = typename Spec::Real;
  const Real unit = Real(p.scale);
  const int kv0 = tile.index * T::tile_n;
  KeepBits<T::cols> keep[T::rows];
#pragma unroll
  for (int r = 0; r < T::rows; ++r) keep[r] = KeepBits<T::cols>::none();
  Online::score(
      p, site, head, row, [&](int r, int c) { return Dual<Real>{s[r][c], unit * st[r][c]}; },
      [&](int r) { return t.q_at(q0, r); }, [&](int c) { return t.kv_at(kv0, c); }, s, st);
  if (tile.masked) {
    mask_tile(t, p, site, head, row, q0, kv0, s, keep);
    online.template step<true>(p, site, head, row, s, st, keep, scale);
  } else {
    online.template step<false>(p, site, head, row, s, st, keep, scale);
  }
}

// Writes the rows of O and of its tangent, and what is kept of each.
template <class Spec, class Config, class Online, class Sequence, int Each>
LUATTN_FN void finish_dual_rows(const Simt<Spec, Config> &t, const TangentParams &p, const Sequence &site,
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
    if (t.lane == 0) write_dual_numbers<Spec>(p, site, head, row[r], online.state[r], online.tangent[r], at, any);
  }
}

// A block's q tile. Each product requests the first slices of the one after it.
template <class Spec, class Config>
struct ForwardJvpSimt {
  static_assert(TangentSpec<Spec> && has_shared<Config, Simt<Spec, Config>::bytes(2)>());
  using Real = typename Spec::Real;
  using T = Simt<Spec, Config>;
  using Elem = typename Config::Elem;
  using Sequence = SequenceOf<Config>;
  using Drops = Dropout<Config>;
  static constexpr int dim = Config::head_dim, dim_v = Config::head_dim_v, rows = T::rows, cols = T::cols;
  static constexpr int each = LaneColumns<Real, dim_v>::each;

  const TangentParams &p;
  const Sequence &site;
  const int q_tile, q0;
  T t;
  const typename Spec::Head head;
  typename Spec::Row row[rows];
  DualRows<Spec, rows, cols, T::lanes> online;
  Real a[rows][each] = {}, b[rows][each] = {};
  Drops dropout;
  decltype(q_slab<Elem>(p, site, p.tensors.q, 0)) q, qt;
  decltype(dual_keys<Config>(p, site, 0)) of;

  __device__ __forceinline__ ForwardJvpSimt(const TangentParams &p, const Sequence &site, const BlockSite &block)
      : p(p),
        site(site),
        q_tile(block.q_tile),
        q0(block.q_tile * T::tile_m),
        head(Spec::head(p, site)),
        q(q_slab<Elem>(p, site, p.tensors.q, q0)),
        qt(q_slab<Elem>(p, site, p.tangents.q, q0)),
        of(dual_keys<Config>(p, site, block.h_kv)) {
#pragma unroll
    for (int r = 0; r < rows; ++r) row[r] = Spec::row(p, site, head, site.clamped_query(p, q0 + t.row_at(r)));
    online.init(p, site, head, row);
    if constexpr (Drops::any) dropout.enter_head(p, site);
  }

  // ---- load ----

  __device__ __forceinline__ void request_scores(const Tile &tile) {
    if (!tile.valid()) return;
    of.k.first = of.kt.first = tile.index * T::tile_n;
    t.template request_dot<dim>(q, of.k, 0);
  }
  __device__ __forceinline__ void request_values() { t.template request_rows<dim_v, T::tile_n>(of.v, 0); }
  __device__ __forceinline__ void request_value_tangents() { t.template request_rows<dim_v, T::tile_n>(of.vt, 0); }
  __device__ __forceinline__ void request_key_tangents() {
    if constexpr (Spec::tangent_of_k)
      t.template request_dot<dim>(q, of.kt, 0);
    else
      request_values();
  }

  // ---- compute ----

  // S and S'.
  __device__ __forceinline__ void dots(Real (&s)[rows][cols], Real (&st)[rows][cols]) {
    t.template dot<dim>(s, q, of.k, [&] {
      if constexpr (Spec::tangent_of_q)
        t.template request_dot<dim>(qt, of.k, 0);
      else
        request_key_tangents();
    });
    if constexpr (Spec::tangent_of_q) t.template dot<dim>(st, qt, of.k, [&] { request_key_tangents(); });
    if constexpr (Spec::tangent_of_k) {
      Real more[rows][cols];
      t.template dot<dim>(more, q, of.kt, [&] { request_values(); });
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int c = 0; c < cols; ++c) st[r][c] += more[r][c];
    }
  }
  __device__ __forceinline__ void drop(int kv0, Real (&s)[rows][cols], Real (&st)[rows][cols]) const {
    const auto kept = DroppedSimt<Spec, Config>::draw(dropout, t, p, site, q0, kv0);
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int c = 0; c < cols; ++c) {
        s[r][c] = kept.get(r, c) ? s[r][c] : Real(0);
        st[r][c] = kept.get(r, c) ? st[r][c] : Real(0);
      }
  }
  // Puts P and P' where products read them, and rescales what has been summed.
  __device__ __forceinline__ void put(const Real (&s)[rows][cols], const Real (&st)[rows][cols],
                                      const Dual<Real> (&scale)[rows]) {
    put_tile(t, t.weights(0), s);
    if constexpr (Spec::has_prob_tangent) put_tile(t, t.weights(1), st);
    if constexpr (Spec::has_rescale) {
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int d = 0; d < each; ++d) {
          b[r][d] *= scale[r].x;
          if constexpr (Spec::has_rescale_tangent) b[r][d] += scale[r].d * a[r][d];
          a[r][d] *= scale[r].x;
        }
    }
  }
  // A += P V; B += P' V + P V'.
  __device__ __forceinline__ void accumulate(const Tile &next) {
    const auto after_values = [&] {
      if constexpr (Spec::tangent_of_v)
        request_value_tangents();
      else
        request_scores(next);
    };
    t.template accumulate<dim_v>(a, t.weights(0), of.v, [&] {
      if constexpr (Spec::has_prob_tangent)
        request_values();
      else
        after_values();
    });
    if constexpr (Spec::has_prob_tangent) t.template accumulate<dim_v>(b, t.weights(1), of.v, after_values);
    if constexpr (Spec::tangent_of_v)
      t.template accumulate<dim_v>(b, t.weights(0), of.vt, [&] { request_scores(next); });
  }

  __device__ __forceinline__ void run() {
    KvTilesOf<Spec, Sequence, T::tile_m, T::tile_n> walk(p, site, q_tile);
    Tile tile = walk.next(p, site);
    request_scores(tile);
#pragma unroll 1
    while (tile.valid()) {
      of.at(tile.index * T::tile_n);
      Real s[rows][cols], st[rows][cols] = {};
      Dual<Real> scale[rows];
      dots(s, st);
      step_dual_tile(t, p, site, head, row, online, q0, tile, s, st, scale);
      if constexpr (Drops::any) drop(of.k.first, s, st);
      put(s, st, scale);
      const Tile next = walk.next(p, site);
      accumulate(next);
      tile = next;
    }
    finish_dual_rows(t, p, site, head, row, online, q0, a, b);
  }
};

template <class Spec, class Config>
LUATTN_FN void fwd_jvp_simt(const TangentParams &p) {
  const BlockSite block = BlockSite::of_grid<Spec::has_tile_bits>(p);
  const SequenceOf<Config> site(p, block.b, block.h);
  if (site.packed && !site.has_query(p, block.q_tile * Config::tile_m)) return;  // the grid is for the longest entry
  ForwardJvpSimt<Spec, Config>(p, site, block).run();
}

template <class Spec, class Config>
constexpr int fwd_jvp_simt_blocks = simt_blocks<Config>(
    Config::tile_m * (2 * Config::tile_n + 2 * Config::head_dim_v) / Config::threads,
    int(2 * sizeof(typename Spec::State) + sizeof(typename Spec::Row)), int(sizeof(typename Spec::Head)));
