// around/before/given_dual_rows.cuh: luattn_prepare of backward with tangents, where forward's results are given with theirs.
#pragma once
#include "arch/tensor.cuh"
#include "contract/needs.cuh"
#include "grads/flush.cuh"
#include "sink/dual_row_numbers.cuh"
#include "work/tile_scheduler.cuh"

// Writes the numbers of all rows of a block from O, lse and their tangents. False: these are not given, or a row has more
// numbers, as where it takes passes. N: elements that lie together in each of the rows.
template <class Spec, class Config, int N>
LUATTN_FN bool read_dual_rows(const TangentParams &p) {
  if constexpr (Spec::has_lse && DualFinals<Spec>::count == 0 && Config::head_dim_v % N == 0) {
    using Real = typename Spec::Real;
    using Elem = typename Config::Elem;
    using Out = OutOf<Config>;
    constexpr int warps = Config::threads / 32;
    if (p.tangents.of_o.data == nullptr) return false;
    const BlockSite block = BlockSite::of_grid<false>(p);
    const SequenceOf<Config> site(p, block.b, block.h);
    const int q0 = block.q_tile * Config::tile_m, lane = int(threadIdx.x) % 32;
    const typename Spec::Head head = Spec::head(p, site);
    typename Spec::Acc acc = zero_acc<typename Spec::Acc>();
#pragma unroll 1
    for (int q = q0 + int(threadIdx.x) / 32; q < q0 + Config::tile_m; q += warps) {
      if (!site.has_query(p, q)) continue;
      const Elem *const dout = site.template q_row<const Elem>(p, p.tensors.dout, q),
                        *const dout_t = site.template q_row<const Elem>(p, p.tangents.o, q);
      const Out *const o = site.template q_row<const Out>(p, p.tensors.o, q), *const o_t =
                                                                                  site.template q_row<const Out>(
                                                                                      p, p.tangents.of_o, q);
      Dual<Real> delta = {};
#pragma unroll 1
      for (int d = lane * N; d < Config::head_dim_v; d += 32 * N) {
        Pack<Elem, N> g, w = {};
        Pack<Out, N> x, y;
        g.load(dout + d), x.load(o + d), y.load(o_t + d);
        if constexpr (Spec::tangent_of_dout) w.load(dout_t + d);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          delta.x += to_real(g[i]) * to_real(x[i]);
          delta.d += to_real(g[i]) * to_real(y[i]) + to_real(w[i]) * to_real(x[i]);
        }
      }
      delta = {lanes_sum<32>(delta.x), lanes_sum<32>(delta.d)};
      if (lane != 0) continue;
      const Dual<Real> lse = {*site.template q_row<const Real>(p, p.tensors.lse, q),
                              *site.template q_row<const Real>(p, p.tangents.of_lse, q)};
      put_dual_row<Spec, SequenceOf<Config>, Real>(p, site, head, Spec::row(p, site, head, q), q, true, lse, delta,
                                                   nullptr, nullptr, acc);
    }
    if constexpr (Needs<Spec, Config>::parameters) flush_block<Spec, Config::threads>(p, site, head, acc);
    return true;
  } else {
    return false;
  }
}
