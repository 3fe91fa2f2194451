// simt/bwd_jvp_simt.cuh: tangents of gradients, in f32 or f64 on the FMA units, of any element type: forward mode of
// backward, without atomics but for inputs and scalars, and in a fixed order.
//
// With S' the tangents of scores, dP' those of dP, and so on:
//
//     luattn_prepare  grid (ceil(q_len / tile_m), heads, batch): a block owns a q tile, takes the online function's steps
//                     along its keys, and leaves each row's numbers and their tangents. delta = dO O is the sum of P dP,
//                     so that neither O nor its tangent is needed
//     luattn_dkdv     as in simt/bwd_simt.cuh: dV' = P' dO + P dO', dK' = dS' Q + dS Q', and inputs and scalars
//     luattn_dq       dQ' = dS' K + dS K'
//     luattn_dkdv_values, luattn_dq_values
//                     where luattn_finish needs them, of tensors with a mod: dV, dK and dQ themselves
//
// Behind a mod the results are accumulators, which luattn_finish takes through it (around/after/dual_finish.cuh).
//
// Config: as in simt/bwd_simt.cuh. Dynamic shared memory: simt_bytes, with four tiles: P, P', dS and dS'.
#pragma once
#include "contract/needs.cuh"
#include "score/backward_rows.cuh"
#include "score/dual_passes.cuh"
#include "sink/dual_row_numbers.cuh"
#include "simt/bwd_simt.cuh"
#include "simt/fwd_jvp_simt.cuh"

// The products of a tile. Each requests its first slices itself.
template <class Spec, class Config>
struct DualProducts {
  using T = Simt<Spec, Config>;
  using Real = typename Spec::Real;
  static constexpr int rows = T::rows, cols = T::cols;
  static constexpr auto nothing = [] {};
  T &t;

  template <int D, class A, class B>
  __device__ __forceinline__ void dot(Real (&s)[rows][cols], const A &a, const B &b) const {
    t.template request_dot<D>(a, b, 0);
    t.template dot<D>(s, a, b, nothing);
  }
  // s = a b^T; st = its tangent, of what has one.
  template <int D, bool OfA, bool OfB, class A, class B>
  __device__ __forceinline__ void dual(Real (&s)[rows][cols], Real (&st)[rows][cols], const A &a, const A &at,
                                       const B &b, const B &bt) const {
    dot<D>(s, a, b);
    if constexpr (OfA) {
      dot<D>(st, at, b);
    } else {
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int c = 0; c < cols; ++c) st[r][c] = Real(0);
    }
    if constexpr (OfB) {
      Real more[rows][cols];
      dot<D>(more, a, bt);
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int c = 0; c < cols; ++c) st[r][c] += more[r][c];
    }
  }
  template <int D, class Rows, int Each>
  __device__ __forceinline__ void accumulate(Real (&c)[rows][Each], int weights, const Rows &x) const {
    t.template request_rows<D, T::tile_n>(x, 0);
    t.template accumulate<D>(c, t.weights(weights), x, nothing);
  }
  template <int D, class Rows, int Each>
  __device__ __forceinline__ void accumulate_transposed(Real (&c)[T::rows_n][Each], int weights, const Rows &x) const {
    t.template request_rows<D, T::tile_m>(x, 0);
    t.template accumulate_transposed<D>(c, t.weights(weights), x, nothing);
  }
};

// The tensors of a head, and their tangents.
template <class Q, class K>
struct DualTensors : DualKeys<K> {
  Q q, qt, dout, dout_t;
  __device__ __forceinline__ void at(int q0, int kv0) {
    q.first = qt.first = dout.first = dout_t.first = q0;
    DualKeys<K>::at(kv0);
  }
};
template <class Config>
LUATTN_FN auto dual_tensors(const TangentParams &p, const SequenceOf<Config> &site, int h_kv) {
  using Elem = typename Config::Elem;
  const auto q = q_slab<Elem>(p, site, p.tensors.q, 0), qt = q_slab<Elem>(p, site, p.tangents.q, 0),
             dout = q_slab<Elem>(p, site, p.tensors.dout, 0), dout_t = q_slab<Elem>(p, site, p.tangents.o, 0);
  const auto keys = dual_keys<Config>(p, site, h_kv);
  using Q = decltype(q_slab<Elem>(p, site, p.tensors.q, 0));
  return DualTensors<Q, decltype(kv_slab<Elem>(p, site, p.tensors.k, h_kv, 0))>{keys, q, qt, dout, dout_t};
}

// Puts S, S', dP and dP' of a tile in the four tiles of weights; without Tangents 0 for S' and dP'.
template <bool Tangents, class Spec, class Config, class Tensors>
LUATTN_FN void put_dual_products(Simt<Spec, Config> &t, const Tensors &of) {
  using T = Simt<Spec, Config>;
  const DualProducts<Spec, Config> products{t};
  typename Spec::Real x[T::rows][T::cols], y[T::rows][T::cols];
  products.template dual<Config::head_dim, Tangents && Spec::tangent_of_q, Tangents && Spec::tangent_of_k>(
      x, y, of.q, of.qt, of.k, of.kt);
  put_tile(t, t.weights(0), x), put_tile(t, t.weights(1), y);
  products.template dual<Config::head_dim_v, Tangents && Spec::tangent_of_dout, Tangents && Spec::tangent_of_v>(
      x, y, of.dout, of.dout_t, of.v, of.vt);
  put_tile(t, t.weights(2), x), put_tile(t, t.weights(3), y);
}

// Turns the four tiles into P, P', dS and dS', as grad_tile of simt/bwd_simt.cuh: a thread reads and writes its own
// elements.
template <bool WithInputs, class Spec, class Config>
LUATTN_FN void grad_dual_tile(const Simt<Spec, Config> &t, const LuattnParams &p, const SequenceOf<Config> &site,
                              const typename Spec::Head &head, int q0, int kv0, bool masked,
                              const Dropout<Config> &dropout, typename Spec::Acc &acc) {
  using Real = typename Spec::Real;
  using T = Simt<Spec, Config>;
  using Dropped = DroppedSimt<Spec, Config>;
  constexpr bool drops = Dropout<Config>::any, by_lanes = WithInputs && HasLaneSums<Spec>;
  Dropped weights;
  if constexpr (drops) weights = Dropped::draw(dropout, t, p, site, q0, kv0);
  typename Spec::Col col[T::cols];
#pragma unroll
  for (int c = 0; c < T::cols; ++c) col[c] = Spec::col(p, site, head, site.clamped_key(p, kv0 + t.col_at(c)));
#pragma unroll 1
  for (int r = 0; r < T::rows; ++r) {
    const int q_at = q0 + t.row_at(r), q = site.clamped_query(p, q_at), in_row = t.row_at(r) * T::weight_stride;
    const auto keys = site.keys_of(p, q_at);
    const typename Spec::Row row = Spec::row(p, site, head, q);
    const typename Spec::BwdRow bwd_row = load_bwd_row<Spec>(p, site, q);
    Real *s = t.weights(0) + in_row, *st = t.weights(1) + in_row, *dp = t.weights(2) + in_row,
         *dpt = t.weights(3) + in_row;
#pragma unroll
    for (int c = 0; c < T::cols; ++c) {
      const int x = t.col_at(c), kv = kv0 + x;
      bool kept = kv < keys;
      if constexpr (Spec::has_mask)
        kept = kept && (!masked || Spec::keep(p, site, head, row, col[c], q, kv));
      else
        kept = kept || !masked;
      Real factor = 1;
      if constexpr (drops) factor = weights.factor(r, c);
      Dual<Real> prob = {}, ds = {};
      if constexpr (by_lanes) acc.lanes.kept = kept;
      if (kept || by_lanes)
        Spec::template grad_dual<WithInputs>(p, site, head, row, col[c], bwd_row, s[x], Real(p.scale) * st[x],
                                             factor * dp[x], factor * dpt[x], Position{q, 0}, t.kv_at(kv0, c), prob, ds,
                                             acc);
      s[x] = kept ? factor * prob.x : Real(0), st[x] = kept ? factor * prob.d : Real(0);
      dp[x] = kept ? ds.x : Real(0), dpt[x] = kept ? ds.d : Real(0);
    }
  }
}

// ---- rows ----

// Adds P dP of a tile to the lanes' sums of rows, with their tangents.
template <class Spec, class Config>
LUATTN_FN void add_dual_rows(const Simt<Spec, Config> &t, const LuattnParams &p, const SequenceOf<Config> &site,
                             const Dropout<Config> &dropout, int q0, int kv0,
                             const typename Spec::Real (&of)[4][Simt<Spec, Config>::rows][Simt<Spec, Config>::cols],
                             const Dual<typename Spec::Real> (&scale)[Simt<Spec, Config>::rows],
                             Dual<typename Spec::Real> (&sum)[Simt<Spec, Config>::rows]) {
  using Real = typename Spec::Real;
  using T = Simt<Spec, Config>;
  constexpr bool drops = Dropout<Config>::any;
  DroppedSimt<Spec, Config> kept;
  if constexpr (drops) kept = DroppedSimt<Spec, Config>::draw(dropout, t, p, site, q0, kv0);
#pragma unroll
  for (int r = 0; r < T::rows; ++r) {
    Dual<Real> more = {};
#pragma unroll
    for (int c = 0; c < T::cols; ++c) {
      Real factor = 1;
      if constexpr (drops) factor = kept.factor(r, c);
      more.x += factor * of[0][r][c] * of[2][r][c];
      more.d += factor * (of[1][r][c] * of[2][r][c] + of[0][r][c] * of[3][r][c]);
    }
    sum[r].d = scale[r].x * sum[r].d + scale[r].d * sum[r].x + more.d;
    sum[r].x = scale[r].x * sum[r].x + more.x;
  }
}

// Adds a tile's S, S', dP and dP' to the row passes.
template <class Spec, class Config, class Passes>
LUATTN_FN void add_dual_passes(const Simt<Spec, Config> &t, const LuattnParams &p, const SequenceOf<Config> &site,
                               const typename Spec::Head &head,
                               const typename Spec::Row (&row)[Simt<Spec, Config>::rows],
                               const Dropout<Config> &dropout, int q0, const Tile &tile,
                               const typename Spec::Real (&of)[4][Simt<Spec, Config>::rows][Simt<Spec, Config>::cols],
                               Passes &passes) {
  using Real = typename Spec::Real;
  using T = Simt<Spec, Config>;
  constexpr bool drops = Dropout<Config>::any;
  const int kv0 = tile.index * T::tile_n;
  DroppedSimt<Spec, Config> weights;
  if constexpr (drops) weights = DroppedSimt<Spec, Config>::draw(dropout, t, p, site, q0, kv0);
#pragma unroll
  for (int c = 0; c < T::cols; ++c) {
    const int kv = kv0 + t.col_at(c);
    const typename Spec::Col col = Spec::col(p, site, head, site.clamped_key(p, kv));
#pragma unroll
    for (int r = 0; r < T::rows; ++r) {
      const int q_at = q0 + t.row_at(r), q = site.clamped_query(p, q_at);
      bool kept = kv < site.keys_of(p, q_at);
      if constexpr (Spec::has_mask)
        kept = kept && (!tile.masked || Spec::keep(p, site, head, row[r], col, q, kv));
      else
        kept = kept || !tile.masked;
      Real factor = 1;
      if constexpr (drops) factor = weights.factor(r, c);
      if (kept)
        passes.add(p, site, head, row[r], col, r, of[0][r][c], Real(p.scale) * of[1][r][c],
                   {factor * of[2][r][c], factor * of[3][r][c]}, Position{q, 0}, t.kv_at(kv0, c));
    }
  }
}

// S, S', dP and dP' of a tile.
template <class Spec, class Config, class Tensors>
LUATTN_FN void make_dual_products(Simt<Spec, Config> &t, const Tensors &of,
                                  typename Spec::Real (&x)[4][Simt<Spec, Config>::rows][Simt<Spec, Config>::cols]) {
  const DualProducts<Spec, Config> products{t};
  products.template dual<Config::head_dim, Spec::tangent_of_q, Spec::tangent_of_k>(x[0], x[1], of.q, of.qt, of.k,
                                                                                   of.kt);
  products.template dual<Config::head_dim_v, Spec::tangent_of_dout, Spec::tangent_of_v>(x[2], x[3], of.dout, of.dout_t,
                                                                                        of.v, of.vt);
}

template <class Spec, class Config>
LUATTN_FN void dual_rows_simt(const TangentParams &p) {
  static_assert(DualGradSpec<Spec> && has_shared<Config, Simt<Spec, Config>::bytes(4)>());
  using Real = typename Spec::Real;
  using T = Simt<Spec, Config>;
  constexpr int rows = T::rows, cols = T::cols;
  const BlockSite block = BlockSite::of_grid<false>(p);
  const SequenceOf<Config> site(p, block.b, block.h);
  const int q_tile = block.q_tile, q0 = q_tile * T::tile_m;
  if (site.packed && !site.has_query(p, q0)) return;  // the grid is for the longest entry
  T t;
  const typename Spec::Head head = Spec::head(p, site);
  typename Spec::Row row[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) row[r] = Spec::row(p, site, head, site.clamped_query(p, q0 + t.row_at(r)));
  DualRows<Spec, rows, cols, T::lanes> online;
  online.init(p, site, head, row);
  Dual<Real> sum[rows] = {};  // of P dP, by lanes
  Dropout<Config> dropout;
  if constexpr (Dropout<Config>::any) dropout.enter_head(p, site);
  auto of = dual_tensors<Config>(p, site, site.kv_head(p));

  KvTilesOf<Spec, SequenceOf<Config>, T::tile_m, T::tile_n> walk(p, site, q_tile);
#pragma unroll 1
  for (Tile tile = walk.next(p, site); tile.valid(); tile = walk.next(p, site)) {
    const int kv0 = tile.index * T::tile_n;
    Real x[4][rows][cols];
    Dual<Real> scale[rows];
    of.at(q0, kv0);
    make_dual_products(t, of, x);
    step_dual_tile(t, p, site, head, row, online, q0, tile, x[0], x[1], scale);
    add_dual_rows(t, p, site, dropout, q0, kv0, x, scale, sum);
  }

  online.finish();
  DualPasses<Spec, rows, T::lanes> passes;
  passes.init(p, site, head, row, online);
  if constexpr (passes.any) {
    KvTilesOf<Spec, SequenceOf<Config>, T::tile_m, T::tile_n> again(p, site, q_tile);
#pragma unroll 1
    for (Tile tile = again.next(p, site); tile.valid(); tile = again.next(p, site)) {
      Real x[4][rows][cols];
      of.at(q0, tile.index * T::tile_n);
      make_dual_products(t, of, x);
      add_dual_passes(t, p, site, head, row, dropout, q0, tile, x, passes);
    }
  }
  typename Spec::Acc acc = zero_acc<typename Spec::Acc>();
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    const int q = q0 + t.row_at(r);
    passes.finish(r);
    sum[r] = {lanes_sum<T::lanes>(sum[r].x), lanes_sum<T::lanes>(sum[r].d)};
    if (t.lane == 0 && site.has_query(p, q))
      write_dual_row<Spec>(p, site, head, row[r], online, r, q, passes.finals[r], sum[r], acc);
  }
  if constexpr (Needs<Spec, Config>::parameters) flush_block<Spec, T::threads>(p, site, head, acc);
}

// ---- gradients ----

// dQ', or without Tangents dQ.
template <class Spec, class Config, bool Tangents = true>
LUATTN_FN void dq_jvp_simt(const TangentParams &p, const LuattnTensor &to, void *to_acc) {
  static_assert(DualGradSpec<Spec> && has_shared<Config, Simt<Spec, Config>::bytes(4)>());
  if constexpr (Needs<Spec, Config>::dq_alone) {
    using Real = typename Spec::Real;
    using Grad = GradOf<Config>;
    using T = Simt<Spec, Config>;
    constexpr int dim = Config::head_dim, rows = T::rows;
    const BlockSite block = BlockSite::of_grid<false>(p);
    const SequenceOf<Config> site(p, block.b, block.h);
    const int q_tile = block.q_tile, q0 = q_tile * T::tile_m;
    if ((site.packed && !site.has_query(p, q0)) || (Spec::has_query_mod ? to_acc : to.data) == nullptr) return;
    T t;
    const typename Spec::Head head = Spec::head(p, site);
    Real dq[rows][LaneColumns<Real, dim>::each] = {};
    typename Spec::Acc acc = zero_acc<typename Spec::Acc>();  // grad_dual<false> does not change it
    Dropout<Config> dropout;
    if constexpr (Dropout<Config>::any) dropout.enter_head(p, site);
    auto of = dual_tensors<Config>(p, site, site.kv_head(p));
    const DualProducts<Spec, Config> products{t};

    KvTilesOf<Spec, SequenceOf<Config>, T::tile_m, T::tile_n> walk(p, site, q_tile);
#pragma unroll 1
    for (Tile tile = walk.next(p, site); tile.valid(); tile = walk.next(p, site)) {
      const int kv0 = tile.index * T::tile_n;
      of.at(q0, kv0);
      put_dual_products<Tangents>(t, of);
      grad_dual_tile<false>(t, p, site, head, q0, kv0, tile.masked, dropout, acc);
      products.template accumulate<dim>(dq, Tangents ? 3 : 2, of.k);
      if constexpr (Tangents && Spec::tangent_of_k) products.template accumulate<dim>(dq, 2, of.kt);
    }

    bool wide;
    if constexpr (Spec::has_query_mod)
      wide = allows_16_bytes(to_acc);
    else
      wide = are_wide<Grad>(site.template q_rows<Grad>(p, to), to);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const int at = q0 + t.row_at(r);
      if constexpr (Spec::has_query_mod)
        t.template store<dim>(site.template q_acc_row<PlainRows, dim, Real>(p, to_acc, site.b, site.h, at), dq[r],
                              Real(1), wide, site.has_query(p, at));
      else
        t.template store<dim>(site.template q_row<Grad>(p, to, at), dq[r], Real(p.scale), wide, site.has_query(p, at));
    }
  }
}

// dK' and dV', and gradients of inputs and scalars, to the caller's tensors or, with a mod, to the accumulators. Without
// Tangents dK and dV, of those that Wanted has.
template <class Spec, class Config, bool Tangents, class Wanted>
LUATTN_FN void dkdv_jvp_simt(const TangentParams &p, void *dk_acc, void *dv_acc, Wanted) {
  static_assert(DualGradSpec<Spec> && has_shared<Config, Simt<Spec, Config>::bytes(4)>());
  using Need = Wanted;
  if constexpr (Need::dk || Need::dv || Need::parameters) {
    using Real = typename Spec::Real;
    using T = Simt<Spec, Config>;
    constexpr int dim = Config::head_dim, dim_v = Config::head_dim_v;
    const KvBlock block = KvBlock::of_grid<Spec::has_tile_bits>(p);
    const int b = block.b, h_kv = block.h, kv_tile = block.tile, kv0 = kv_tile * T::tile_n;
    T t;
    Real dk[T::rows_n][LaneColumns<Real, dim>::each] = {}, dv[T::rows_n][LaneColumns<Real, dim_v>::each] = {};
    const SequenceOf<Config> of_block(p, b, 0);
    if (of_block.packed && !of_block.has_key(p, kv0)) return;  // as in dq_jvp_simt
    const DualProducts<Spec, Config> products{t};

#pragma unroll 1
    for (int h = of_block.first_head(p, h_kv); h < of_block.first_head(p, h_kv + 1); ++h) {
      const SequenceOf<Config> site(p, b, h);
      const typename Spec::Head head = Spec::head(p, site);
      typename Spec::Acc acc = zero_acc<typename Spec::Acc>();
      Dropout<Config> dropout;
      if constexpr (Dropout<Config>::any) dropout.enter_head(p, site);
      auto of = dual_tensors<Config>(p, site, h_kv);

      QTilesOf<Spec, SequenceOf<Config>, T::tile_m, T::tile_n> walk(p, site, kv_tile);
#pragma unroll 1
      for (Tile tile = walk.next(p, site); tile.valid(); tile = walk.next(p, site)) {
        const int q0 = tile.index * T::tile_m;
        of.at(q0, kv0);
        put_dual_products<Tangents>(t, of);
        grad_dual_tile<Need::parameters>(t, p, site, head, q0, kv0, tile.masked, dropout, acc);
        if constexpr (Need::dv) {
          products.template accumulate_transposed<dim_v>(dv, Tangents ? 1 : 0, of.dout);
          if constexpr (Tangents && Spec::tangent_of_dout)
            products.template accumulate_transposed<dim_v>(dv, 0, of.dout_t);
        }
        if constexpr (Need::dk) {
          products.template accumulate_transposed<dim>(dk, Tangents ? 3 : 2, of.q);
          if constexpr (Tangents && Spec::tangent_of_q) products.template accumulate_transposed<dim>(dk, 2, of.qt);
        }
      }
      if constexpr (Need::parameters) flush_block<Spec, T::threads>(p, site, head, acc);
      if constexpr (Need::parameters && HasLaneSums<Spec>) flush_lanes<Spec, T::threads>(p, site, head, acc);
    }

    if constexpr (Need::dk)
      store_kv<Spec::has_key_mod, dim, GradOf<Config>>(t, p, of_block, h_kv, kv0, dk, p.tensors.dk, dk_acc,
                                                       Real(p.scale));
    if constexpr (Need::dv)
      store_kv<Spec::has_value_mod, dim_v, GradOf<Config>>(t, p, of_block, h_kv, kv0, dv, p.tensors.dv, dv_acc,
                                                           Real(1));
  }
}

template <class Spec, class Config>
constexpr int dual_rows_simt_blocks = simt_blocks<Config>(
    5 * Config::tile_m * Config::tile_n / Config::threads,
    int(2 * sizeof(typename Spec::State) + sizeof(typename Spec::Row)), int(sizeof(typename Spec::Head)));
template <class Spec, class Config>
constexpr int dq_jvp_simt_blocks = simt_blocks<Config>(
    Config::tile_m * (3 * Config::tile_n + Config::head_dim) / Config::threads, 0, int(sizeof(typename Spec::Head)));
template <class Spec, class Config>
constexpr int dkdv_jvp_simt_blocks =
    simt_blocks<Config>(Config::tile_n * (3 * Config::tile_m + Config::head_dim + Config::head_dim_v) / Config::threads,
                        0, int(sizeof(typename Spec::Head) + sizeof(typename Spec::Acc)));
