// sm90/bwd/bwd_elements.cuh: turns the products S^T and dP^T of a q tile into P and dS, element by element (sm90 backward).
#pragma once
#include "arch/wgmma.cuh"
#include "score/distance_terms.cuh"
#include "score/dropout.cuh"
#include "score/fragment.cuh"
#include "sm90/bwd/bwd_mask.cuh"
#include "sm90/bwd/bwd_pipeline.cuh"
#include "tma/backward_messages.cuh"
#include "tma/mbarrier.cuh"
#ifdef LUATTN_GRID
#include "score/box_dropout.cuh"
#endif

// `of`: the consumer, with what it has of the kv tile and the head, and its turn (await_ping_pong).
template <class Spec, class Config, class Consumer>
struct ElementsBwdSm90 {
  using Shared = SharedBwdSm90<Spec, Config>;
  using Need = Needs<Spec, Config>;
  using Fragment = MmaFragment;
  using Row = typename Spec::Row;
  using BwdRow = typename Spec::BwdRow;
  using Drops = typename Consumer::Drops;
  using Dropped = typename Consumer::Dropped;
  using Lines = typename Consumer::Lines;
  using Distances = DistanceTerms<Spec, Fragment, 2, Config::tile_m / 8, true>;
  using Mask = MaskBwdSm90<Spec, Config, Consumer>;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, cols = Fragment::columns(tile_m);
  static constexpr bool over_grid = HasAxes<Config>, grad_adds = Consumer::grad_adds;
  static constexpr bool reads_ahead = Consumer::reads_ahead;
  static_assert(SequenceOf<Config>::is_line || !(Distances::any || (Drops::any && !over_grid)),
                "distances, and what dropout draws, lie along lines");
  // With many scores per thread, P is computed while dP is in flight, if the spec can compute P separately.
  // grad is then called twice, with the same row numbers, and common subexpressions are shared. With few
  // scores it is faster to add dQ of the previous tile during that time.
  static constexpr bool weighs_first =
      tile_m == 128 && Consumer::needs_dp && Spec::prob_rows >= 0 && !grad_adds && !Shared::has_rows;
  static_assert(!weighs_first || Lines::part == Lines::cols, "P asks for all terms at once");
  static constexpr u32 early_rows = weighs_first ? u32(Spec::prob_rows) : 0;

  Consumer &of;

  // Turns the two products in flight into P and dS. Loads and computes the other arguments of grad meanwhile.
  __device__ __forceinline__ void differentiate(TileMessage tile, float (&s)[tile_m / 2], float (&dp)[tile_m / 2]) {
    const int q0 = tile.index() * tile_m;
    if constexpr (Drops::any) draw(q0);
    if constexpr (Lines::any) {
      if constexpr (!reads_ahead) {
        of.lines.load(of.p, of.site, of.head, q0, of.kv0, of.lane, 0);
        if (of.site.never()) __nanosleep(0);  // keeps ptxas from moving the loads below
      }
      differentiate_with(tile, q0, of.lines, s, dp);
    } else if constexpr (Shared::has_terms) {
      differentiate_by_displacement(tile, q0, s, dp);
    } else {
      differentiate_with(tile, q0, Distances(of.p, of.site, of.head, q0 - (of.kv0 + 15), of.lane), s, dp);
    }
  }

 private:
  __device__ __forceinline__ Mask mask(TileMessage tile, int q0) const { return {of, tile, q0}; }
  __device__ __forceinline__ Position query(int q0, int j) const {
    return {q0 + Fragment::column(of.lane), Fragment::pair_of(j / 2) + j % 2};
  }

  // Loads the row numbers of columns j and j + 1 whose bits are set in Which.
  template <u32 Which>
  __device__ __forceinline__ void load_rows(int j, BwdRow (&bwd)[cols]) const {
#pragma unroll
    for (int i = 0; i < Spec::num_bwd_rows; ++i) {
      if (!(Which >> i & 1)) continue;
      const float2 pair =
          *reinterpret_cast<const float2 *>(of.shared.numbers(of.q.stage) + i * tile_m + Fragment::column(of.lane, j));
      bwd[j].x[i] = pair.x, bwd[j + 1].x[i] = pair.y;
    }
  }
  // Draws which weights of a tile dropout keeps, while products are in flight. With many scores per thread ptxas would
  // draw between the instructions that issue the products, and all words at once, for which it spills. Branches that
  // are never taken stop it.
  __device__ __forceinline__ void draw(int q0) {
    const int row = of.kv0 + of.dropout.first_kv(of.p, of.site);
    int column = q0 + of.dropout.first_q(of.p, of.site);
    if constexpr (over_grid) {
      of.kept = Dropped::draw(of.dropout, of.p, row, column, of.lane);
    } else if constexpr (tile_m == 64) {
      of.kept = Dropped::draw(of.dropout, row, column, of.lane);
    } else {
      if (of.site.never()) __nanosleep(0);
      asm volatile("" : "+r"(column));
#pragma unroll
      for (int w = 0; w < Dropped::words; ++w) {
        of.kept.bits[w] = Dropped::draw_word(of.dropout, row, column, of.lane, w);
        if (of.kept.bits[w] == 0x7fc54321u) __nanosleep(0);
      }
    }
  }
  __device__ __forceinline__ void differentiate_by_displacement(TileMessage tile, int q0, float (&s)[tile_m / 2],
                                                                float (&dp)[tile_m / 2]) {
#ifdef LUATTN_GRID
    if constexpr (Shared::fills_terms) {
      using Terms = DisplacementTerms<Fragment, BoxPair<tile_n>, tile_m / 8, true>;
      barrier_wait(of.shared.terms_full(of.q.stage), of.q.parity);
      differentiate_with(tile, q0, Terms(of.shared.all_terms(of.q.stage), of.group * 64 + of.warp * 16, of.lane), s,
                         dp);
      barrier_arrive(of.shared.terms_empty(of.q.stage));
    } else {
      using Terms = DisplacementTerms<Fragment, WarpBoxPair, tile_m / 8, true>;
      differentiate_with(tile, q0, Terms(of.shared.terms(of.group * 4 + of.warp), 0, of.lane), s, dp);
    }
#endif
  }
  template <class Terms>
  __device__ __forceinline__ void differentiate_with(TileMessage tile, int q0, const Terms &terms,
                                                     float (&s)[tile_m / 2], float (&dp)[tile_m / 2]) {
    BwdRow bwd[cols];
    if constexpr (weighs_first) {
      wgmma_wait<1>();
      wgmma_arrived(s);
      softmax_step(q0, terms, bwd, s);
    }
    wgmma_wait<0>();
    wgmma_arrived(s);
    wgmma_arrived(dp);
    of.await_ping_pong();
    if constexpr (grad_adds) {
      if (tile.masked(of.group))
        differentiate<true>(tile, q0, terms, bwd, s, dp);
      else
        differentiate<false>(tile, q0, terms, bwd, s, dp);
    } else {
      differentiate<false>(tile, q0, terms, bwd, s, dp);
      if (tile.masked(of.group)) mask(tile, q0).drop(s, dp);
    }
  }
  // Computes only P. Makes distances opaque, so that the compiler takes them for other positions than those
  // of the second call. Otherwise it would compute all terms that are not linear in the distance first and
  // keep them, which takes more registers than there are.
  template <class Terms>
  __device__ __forceinline__ void softmax_step(int q0, const Terms &terms, BwdRow (&bwd)[cols],
                                               const float (&s)[tile_m / 2]) {
    float sum = 0;
    int first = q0;
#pragma unroll
    for (int j = 0; j < cols; ++j) {
      if (j % 2 == 0) {
        load_rows<early_rows>(j, bwd);
        first = opaque(q0);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float prob = 0.f, ds = 0.f;
        Spec::template grad<false>(of.p, of.site, of.head, Row{}, of.col[half], bwd[j], s[Fragment::element(half, j)],
                                   0.f, query(first, j), of.kv_of(half), terms.get(half, j / 2, j % 2), prob, ds,
                                   of.acc);
        asm volatile("" ::"f"(prob));  // keeps P's computation here
        if (j == cols - 1) sum += prob;
      }
    }
    // ptxas would otherwise wait for dP first. Code before a branch stays before it, even if the branch is
    // never taken.
    if (__float_as_uint(sum) == 0x7fc54321u) __nanosleep(0);
  }
  // Turns dot products and dP into P and dS. With Masked, only for elements that the mask keeps.
  template <bool Masked, class Terms>
  __device__ __forceinline__ void differentiate(TileMessage tile, int q0, const Terms &terms, BwdRow (&bwd)[cols],
                                                float (&s)[tile_m / 2], float (&dp)[tile_m / 2]) {
    KeepBits<cols> keep[2] = {KeepBits<cols>::none(), KeepBits<cols>::none()};
    if constexpr (Masked) mask(tile, q0).find_kept(keep);
#pragma unroll
    for (int j = 0; j < cols; ++j) {
      if (j % 2 == 0) load_rows<~early_rows>(j, bwd);
      if constexpr (Lines::any) of.lines.load(of.p, of.site, of.head, q0, of.kv0, of.lane, j + Lines::part);
      const Row row = of.row_at(Fragment::column(of.lane, j));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = Fragment::element(half, j);
        float weight = 1;
        if constexpr (Drops::any) {
          weight = of.kept.get(j, half) ? float(Drops::factor) : 0.f;
          dp[e] *= weight;
        }
        grad_where<Spec, Need::parameters, Masked>(keep[half].get(j), of.p, of.site, of.head, row, of.col[half], bwd[j],
                                                   query(q0, j), of.kv_of(half), terms.get(half, j / 2, j % 2), s[e],
                                                   dp[e], of.acc);
        if constexpr (Drops::any) s[e] *= weight;
      }
    }
  }
};
