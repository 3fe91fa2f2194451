// score/dual_passes.cuh: row passes beside tangents of gradients (contract/tangent.cuh): a second sweep over a row's elements,
// once the online function has seen them all. So none of a pass's weights, which are of other sizes than P, is rounded.
#pragma once
#include "contract/tangent.cuh"
#include "score/online_rows.cuh"

// Of Rows rows, each shared by Lanes threads of a warp, or nothing but the rows' finals where the spec has no passes.
template <class Spec, int Rows, int Lanes>
struct DualPasses {
  using Real = typename Spec::Real;
  static constexpr int count = row_pass_numbers<Spec>;
  static constexpr bool any = count > 0;
  static constexpr int room = any ? count : 1;

  // The largest so far, the next below it, the first key that it is of, and how many are so large in all bits.
  struct Maximum {
    Real top, next, place, ties;
    __device__ __forceinline__ void take(Real x, Real key) {
      const bool grows = x > top, stays = x == top && ties > Real(0);
      next = grows ? top : stays ? next : max_of(next, x);
      place = grows ? key : stays ? min_of(place, key) : place;
      ties = grows ? Real(1) : stays ? ties + Real(1) : ties;
      top = grows ? x : top;
    }
    __device__ __forceinline__ void join_lanes() {
      const Real all = lanes_max<Lanes>(top);
      const bool mine = top == all && ties > Real(0);
      next = lanes_max<Lanes>(mine ? next : top);
      place = -lanes_max<Lanes>(mine ? -place : -infinity<Real>());
      ties = lanes_sum<Lanes>(mine ? ties : Real(0));
      top = all;
    }
  };

  DualFinals<Spec> finals[Rows];
  Dual<Real> sum[Rows][room];
  Maximum largest[Rows][room];

  template <class Online>
  __device__ __forceinline__ void init(const LuattnParams &p, const Site &site, const typename Spec::Head &head,
                                       const typename Spec::Row (&row)[Rows], const Online &online) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      finals[r].take(p, site, head, row[r], online.state[r], online.tangent[r], online.kept[r]);
      if constexpr (any) {
#pragma unroll
        for (int k = 0; k < count; ++k) {
          sum[r][k] = {Spec::pass_kind(k) == PASS_LEAST ? -infinity<Real>() : Real(0), Real(0)};
          largest[r][k] = {-infinity<Real>(), -infinity<Real>(), infinity<Real>(), Real(0)};
        }
      }
    }
  }

  // Adds a kept element of row r. dot: of q and k; score_tangent: that of scale * dot; dp: dO.v, with its tangent.
  __device__ __forceinline__ void add(const LuattnParams &p, const Site &site, const typename Spec::Head &head,
                                      const typename Spec::Row &row, const typename Spec::Col &col, int r, Real dot,
                                      Real score_tangent, Dual<Real> dp, Position q, Position kv) {
    const DualFinals<Spec> &of = finals[r];
    Dual<Real> x[room];
    Spec::passes_dual(p, site, head, row, col, of.lse.x, of.lse.d, of.saved, of.saved_tangent, dot, score_tangent, q,
                      kv, x);
    add_from<0>(r, x, dp);
  }

  // Puts what has been added behind the finals of row r, in every lane.
  template <int K = 0>
  __device__ __forceinline__ void finish(int r) {
    if constexpr (K < count) {
      constexpr PassKind kind = Spec::pass_kind(K);
      if constexpr (kind == PASS_PLACE) put_maximum<K>(r);
      if constexpr (kind == PASS_PRODUCT || kind == PASS_SUM)
        put(r, K, lanes_sum<Lanes>(sum[r][K].x), lanes_sum<Lanes>(sum[r][K].d));
      finish<K + 1>(r);
    }
  }

 private:
  template <int K>
  __device__ __forceinline__ void add_from(int r, const Dual<Real> (&x)[room], const Dual<Real> &dp) {
    if constexpr (K < count) {
      constexpr PassKind kind = Spec::pass_kind(K);
      if constexpr (kind == PASS_PRODUCT) sum[r][K].x += x[K].x * dp.x, sum[r][K].d += x[K].d * dp.x + x[K].x * dp.d;
      if constexpr (kind == PASS_SUM) sum[r][K].x += x[K].x, sum[r][K].d += x[K].d;
      if constexpr (kind == PASS_PLACE) largest[r][K].take(x[K].x, x[K].d);
      if constexpr (kind == PASS_LEAST) sum[r][K].x = x[K].x;
      add_from<K + 1>(r, x, dp);
    }
  }
  __device__ __forceinline__ void put(int r, int k, Real x, Real tangent) {
    finals[r].saved[Spec::num_saved + k] = x, finals[r].saved_tangent[Spec::num_saved + k] = tangent;
  }
  // PASS_PLACE and PASS_LEAST, as derived_sum says.
  template <int K>
  __device__ __forceinline__ void put_maximum(int r) {
    Maximum m = largest[r][K];
    m.join_lanes();
    const Real start = lanes_max<Lanes>(sum[r][K + 1].x), none = infinity<Real>();
    const Real size = Real(1) + (m.top < Real(0) ? -m.top : m.top), gap = m.top - m.next;
    const bool some = m.top > -none && start <= m.top;
    const bool share = some && m.ties > Real(1) && size / Real(Spec::gap_parts) < gap;
    put(r, K, !some ? none : share ? -m.ties : m.place, Real(0));
    put(r, K + 1, share ? m.top - min_of(gap, size) / Real(2) : none, Real(0));
  }
};
