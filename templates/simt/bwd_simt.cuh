// simt/bwd_simt.cuh: the backward kernels in f32 or f64 on the FMA units. They compute dq, dk and dv without
// atomics, in a fixed order.
//
// luattn_dkdv: grid (ceil(kv_len / tile_n), heads_kv, batch). A block owns a kv tile and walks the q tiles of
// every q head of its group. It also computes gradients of inputs and scalars. luattn_dq: grid (ceil(q_len /
// tile_m), heads, batch). A block owns a q tile and walks its kv tiles.
//
// Config: as in simt/fwd_simt.cuh. tile_m, tile_n and threads serve both; accumulates_dq is false in this
// family.
//
// Dynamic shared memory of either: simt_bytes of abi/shared_memory.h, with two tiles of P. luattn_dkdv also
// has (threads / 32) * num_acc * e bytes of static shared memory.
//
// Elements that a thread keeps in registers through the loop: in luattn_dkdv tile_n * (head_dim + head_dim_v)
// / threads, in luattn_dq tile_m * head_dim / threads; and tile_m * tile_n / threads in each step. Good tiles
// (threads): f32 64 x 64 (256; 128 up to head dims of 128). f64 32 x 32 (128) up to 128, 32 x 32 (256)
// beyond.
#pragma once
#include "contract/needs.cuh"
#include "grads/flush.cuh"
#include "score/backward_rows.cuh"
#include "simt/dropout_simt.cuh"
#include "simt/parameter_grads_simt.cuh"
#include "work/dq_order.cuh"
#include "work/tile_scheduler.cuh"

// Turns the thread's dot products into P, in weights(0), and its dP into dS, in weights(1). The loop over
// rows is not unrolled: the hooks' code has one copy for each column, which compiles much faster and needs
// fewer registers. Hooks are called only for kept elements, because others must not reach acc either. Masked
// and unmasked tiles share the code. Without a mask, whole tiles have a copy without a branch, which is 7 %
// faster.
template <bool WithInputs, class Spec, class Config>
LUATTN_FN void grad_tile(const Simt<Spec, Config> &t, const LuattnParams &p, const SequenceOf<Config> &site,
                         const typename Spec::Head &head, int q0, int kv0, bool masked,
                         const DistanceTable<Spec, Config> &terms, const Dropout<Config> &dropout,
                         typename Spec::Acc &acc) {
  using Real = typename Spec::Real;
  using T = Simt<Spec, Config>;
  using Dropped = DroppedSimt<Spec, Config>;
  constexpr bool drops = Dropout<Config>::any;
  Dropped weights;
  if constexpr (drops) weights = Dropped::draw(dropout, t, p, site, q0, kv0);
  typename Spec::Col col[T::cols];
#pragma unroll
  for (int c = 0; c < T::cols; ++c) col[c] = Spec::col(p, site, head, site.clamped_key(p, kv0 + t.col_at(c)));
#pragma unroll 1
  for (int r = 0; r < T::rows; ++r) {
    const int q_at = q0 + t.row_at(r), q = site.clamped_query(p, q_at);
    const auto keys = site.keys_of(p, q_at);
    const typename Spec::Row row = Spec::row(p, site, head, q);
    const typename Spec::BwdRow bwd_row = load_bwd_row<Spec>(p, site, q);
    Real *s = t.weights(0) + t.row_at(r) * T::weight_stride, *dp = t.weights(1) + t.row_at(r) * T::weight_stride;
#pragma unroll
    for (int c = 0; c < T::cols; ++c) {
      const int x = t.col_at(c), kv = kv0 + x;
      bool kept = kv < keys;
      if constexpr (Spec::has_mask)
        kept = kept && (!masked || Spec::keep(p, site, head, row, col[c], q, kv));
      else
        kept = kept || !masked;
      Real prob = 0, ds = 0;
      if constexpr (drops) dp[x] *= weights.factor(r, c);
      if constexpr (WithInputs && HasLaneSums<Spec>) {
        acc.lanes.kept = kept;
        Spec::template grad<true>(p, site, head, row, col[c], bwd_row, s[x], dp[x], Position{q, 0}, t.kv_at(kv0, c),
                                  terms.get(t.row_at(r), x), prob, ds, acc);
        s[x] = kept ? prob : Real(0);
        dp[x] = kept ? ds : Real(0);
        if constexpr (drops) s[x] *= weights.factor(r, c);
        continue;
      }
      if (kept)
        Spec::template grad<WithInputs>(p, site, head, row, col[c], bwd_row, s[x], dp[x], Position{q, 0},
                                        t.kv_at(kv0, c), terms.get(t.row_at(r), x), prob, ds, acc);
      if constexpr (drops) prob *= weights.factor(r, c);
      s[x] = prob;
      dp[x] = ds;
    }
  }
}

template <class Spec, class Config>
LUATTN_FN void dq_simt(const LuattnParams &p) {
  static_assert(BackwardSpec<Spec> && has_shared<Config, Simt<Spec, Config>::bytes(2)>());
  if constexpr (Needs<Spec, Config>::dq_alone) {
    using Real = typename Spec::Real;
    using Elem = typename Config::Elem;
    using Grad = GradOf<Config>;
    using T = Simt<Spec, Config>;
    constexpr int dim = Config::head_dim, dim_v = Config::head_dim_v, rows = T::rows;
    const BlockSite block = BlockSite::of_grid<false>(p);
    SequenceOf<Config> site(p, block.b, block.h);
    const int q_tile = block.q_tile, q0 = q_tile * T::tile_m, h_kv = site.kv_head(p);
    site.enter_queries(p, q0);
    if (site.packed && !site.has_query(p, q0)) return;  // the grid is for the longest entry
    T t;
    const typename Spec::Head head = Spec::head(p, site);
    Real dq[rows][LaneColumns<Real, dim>::each] = {};
    typename Spec::Acc acc = zero_acc<typename Spec::Acc>();  // grad<false> does not change it
    Dropout<Config> dropout;
    if constexpr (Dropout<Config>::any) dropout.enter_head(p, site);
    const DistanceTable<Spec, Config> terms{t.weights(2)};

    const auto q = q_slab<Elem>(p, site, p.tensors.q, q0);
    const auto dout = q_slab<Elem>(p, site, p.tensors.dout, q0);
    auto k = kv_slab<Elem>(p, site, p.tensors.k, h_kv, 0);
    auto v = kv_slab<Elem>(p, site, p.tensors.v, h_kv, 0);
    const auto request_scores = [&](const Tile &of) {
      k.first = v.first = of.index * T::tile_n;
      t.template request_dot<dim>(q, k, 0);
    };

    KvTilesOf<Spec, SequenceOf<Config>, T::tile_m, T::tile_n> walk(p, site, q_tile);
    Tile tile = walk.next(p, site);
    if (tile.valid()) request_scores(tile);
#pragma unroll 1
    while (tile.valid()) {
      site.enter_keys(p, k.first);
      t.template two_dots<dim, dim_v>(
          q, k, dout, v,
          [&](int i, const Real(&s)[rows][T::cols]) {
            put_tile(t, t.weights(i), s);
            if (i == 0) terms.fill(p, site, head, q0, k.first);
          },
          [&] { t.template request_rows<dim, T::tile_n>(k, 0); });
      if (Spec::has_mask || tile.masked)
        grad_tile<false>(t, p, site, head, q0, k.first, tile.masked, terms, dropout, acc);
      else
        grad_tile<false>(t, p, site, head, q0, k.first, false, terms, dropout, acc);
      const Tile next = walk.next(p, site);
      t.template accumulate<dim>(dq, t.weights(1), k, [&] {
        if (next.valid()) request_scores(next);
      });
      tile = next;
    }

    const bool wide = Spec::has_query_mod ? allows_16_bytes(p.scratch.dq_acc)
                                          : are_wide<Grad>(site.template q_rows<Grad>(p, p.tensors.dq), p.tensors.dq);
    if (!Spec::has_query_mod && p.tensors.dq.data == nullptr) return;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const int at = q0 + t.row_at(r);
      if constexpr (Spec::has_query_mod)
        t.template store<dim>(site.template q_acc_row<PlainRows, dim, Real>(p, p.scratch.dq_acc, site.b, site.h, at),
                              dq[r], Real(1), wide, site.has_query(p, at));
      else
        t.template store<dim>(site.template q_row<Grad>(p, p.tensors.dq, at), dq[r], Real(p.scale), wide,
                              site.has_query(p, at));
    }
  }
}

// Writes dk or dv from the thread's rows of the accumulator to the caller's tensor or, with a mod, to the
// workspace.
template <bool ToAcc, int Width, class Grad, class T, class Sequence, class Real, int Each>
LUATTN_FN void store_kv(const T &t, const LuattnParams &p, const Sequence &site, int h_kv, int kv0,
                        const Real (&x)[T::rows_n][Each], const LuattnTensor &out, void *acc, Real scale) {
  if (ToAcc ? acc == nullptr : out.data == nullptr) return;
  const bool wide = ToAcc ? allows_16_bytes(acc) : are_wide<Grad>(site.template kv_rows<Grad>(p, out, h_kv), out);
#pragma unroll
  for (int r = 0; r < T::rows_n; ++r) {
    const int at = kv0 + t.group * T::rows_n + r;
    if constexpr (ToAcc)
      t.template store<Width>(site.template kv_acc_row<PlainRows, Width, Real>(p, acc, 0, site.b, h_kv, at), x[r],
                              Real(1), wide, site.reread().has_key(p, at));
    else
      t.template store<Width>(site.template kv_row<Grad>(p, out, h_kv, at), x[r], scale, wide,
                              site.reread().has_key(p, at));
  }
}

template <class Spec, class Config>
LUATTN_FN void dkdv_simt(const LuattnParams &p) {
  static_assert(BackwardSpec<Spec> && has_shared<Config, Simt<Spec, Config>::bytes(2)>());
  using Need = Needs<Spec, Config>;
  if constexpr (Need::dkdv) {
    using Real = typename Spec::Real;
    using Elem = typename Config::Elem;
    using T = Simt<Spec, Config>;
    constexpr int dim = Config::head_dim, dim_v = Config::head_dim_v;
    using Sums = SumsSimt<Spec, Config>;
    constexpr bool needs_dp = Need::dk || Need::parameters;
    const KvBlock block = KvBlock::of_grid<Spec::has_tile_bits>(p);
    const int b = block.b, h_kv = block.h, kv_tile = block.tile, kv0 = kv_tile * T::tile_n;
    T t;
    Real dk[T::rows_n][LaneColumns<Real, dim>::each] = {}, dv[T::rows_n][LaneColumns<Real, dim_v>::each] = {};
    const DistanceTable<Spec, Config> terms{t.weights(2)};
    const SequenceOf<Config> of_block(p, b, 0);
    if (of_block.packed && !of_block.has_key(p, kv0)) return;  // as in dq_simt
    const auto k = kv_slab<Elem>(p, of_block, p.tensors.k, h_kv, kv0),
               v = kv_slab<Elem>(p, of_block, p.tensors.v, h_kv, kv0);

#pragma unroll 1
    for (int h = of_block.first_head(p, h_kv); h < of_block.first_head(p, h_kv + 1); ++h) {
      SequenceOf<Config> site(p, b, h);
      site.enter_keys(p, kv0);
      const typename Spec::Head head = Spec::head(p, site);
      typename Spec::Acc acc = zero_acc<typename Spec::Acc>();
      Dropout<Config> dropout;
      if constexpr (Dropout<Config>::any) dropout.enter_head(p, site);
      Sums sums;
      sums.enter_head();
      auto q = q_slab<Elem>(p, site, p.tensors.q, 0), dout = q_slab<Elem>(p, site, p.tensors.dout, 0);

      QTilesOf<Spec, SequenceOf<Config>, T::tile_m, T::tile_n> walk(p, site, kv_tile);
      Tile tile = walk.next(p, site), next;
      // Each product prefetches the first slice of the one after it: scores and dP, dV, dK, then the next
      // tile's scores. Products that are not needed are skipped.
      const auto request_scores = [&](const Tile &of) {
        q.first = dout.first = of.index * T::tile_m;
        t.template request_dot<dim>(q, k, 0);
      };
      const auto after_dk = [&] {
        if (next.valid()) request_scores(next);
      };
      const auto after_dv = [&] {
        if constexpr (Need::dk)
          t.template request_rows<dim, T::tile_m>(q, 0);
        else
          after_dk();
      };
      const auto after_dp = [&] {
        if constexpr (Need::dv)
          t.template request_rows<dim_v, T::tile_m>(dout, 0);
        else
          after_dv();
      };

      if (tile.valid()) request_scores(tile);
#pragma unroll 1
      while (tile.valid()) {
        const int q0 = tile.index * T::tile_m;
        site.enter_queries(p, q0);
        next = walk.next(p, site);
        const auto put = [&](int i, const Real(&x)[T::rows][T::cols]) {
          put_tile(t, t.weights(i), x);
          if (i == 0) terms.fill(p, site, head, q0, kv0);
        };
        if constexpr (needs_dp) {
          t.template two_dots<dim, dim_v>(q, k, dout, v, put, after_dp);
        } else {
          Real s[T::rows][T::cols];
          t.template dot<dim>(s, q, k, after_dp);
          put(0, s);
          if constexpr (Spec::has_distance_term) __syncthreads();
        }
        if (Spec::has_mask || tile.masked)
          grad_tile<Need::parameters>(t, p, site, head, q0, kv0, tile.masked, terms, dropout, acc);
        else
          grad_tile<Need::parameters>(t, p, site, head, q0, kv0, false, terms, dropout, acc);
        if constexpr (Sums::any) {
          __syncthreads();
          sums.add(t, {p, site, head, acc, q0, kv0, t.weights(1)});
        }
        if constexpr (Need::dv) t.template accumulate_transposed<dim_v>(dv, t.weights(0), dout, after_dv);
        if constexpr (Need::dk) t.template accumulate_transposed<dim>(dk, t.weights(1), q, after_dk);
        tile = next;
      }
      sums.leave_head({p, site, head, acc, 0, kv0, nullptr});
      if constexpr (Need::parameters) flush_block<Spec, T::threads>(p, site, head, acc);
      if constexpr (Need::parameters && HasLaneSums<Spec>) flush_lanes<Spec, T::threads>(p, site, head, acc);
    }

    if constexpr (Need::dk)
      store_kv<Spec::has_key_mod, dim, GradOf<Config>>(t, p, of_block, h_kv, kv0, dk, p.tensors.dk, p.scratch.dk_acc,
                                                       Real(p.scale));
    if constexpr (Need::dv)
      store_kv<Spec::has_value_mod, dim_v, GradOf<Config>>(t, p, of_block, h_kv, kv0, dv, p.tensors.dv,
                                                           p.scratch.dv_acc, Real(1));
  }
}

template <class Spec, class Config>
constexpr int dq_simt_blocks = simt_blocks<Config>(
    Config::tile_m * (Config::tile_n + Config::head_dim) / Config::threads, 0, int(sizeof(typename Spec::Head)));
template <class Spec, class Config>
constexpr int dkdv_simt_blocks =
    simt_blocks<Config>(Config::tile_n * (Config::tile_m + Config::head_dim + Config::head_dim_v) / Config::threads, 0,
                        int(sizeof(typename Spec::Head) + sizeof(typename Spec::Acc)));
