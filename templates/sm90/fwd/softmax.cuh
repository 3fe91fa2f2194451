// sm90/fwd/softmax.cuh: what a thread of an sm90 forward consumer holds of a q tile, and how it turns a
// tile's scores into weights. It gives the slots that they were computed from back amid that, as soon as
// the products that read them are done.
#pragma once
#include "arch/wgmma.cuh"
#include "ops/half_sigmoid.cuh"
#include "score/distance_terms.cuh"
#include "score/online_rows.cuh"
#include "sm90/fwd/bias_staging.cuh"
#include "sm90/fwd/mask.cuh"
#include "source/cp_async_tile.cuh"
#include "work/sequence.cuh"

template <class Spec, class Config>
struct WeigherSm90 {
  using Shared = SharedSm90<Spec, Config>;
  using Elem = typename Config::Elem;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  using Col = typename Spec::Col;
  static_assert(same_type<typename Spec::Real, float>::value && sizeof(Elem) == 2,
                "f16 or bf16, accumulated in f32");

  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, stages = Config::stages;
  static constexpr int dim = padded_dim(Config::head_dim), dim_v = padded_dim(Config::head_dim_v);
  static constexpr int rows = 2, cols = tile_n / 4;  // scores of a thread
  static constexpr bool two_small =
      Spec::has_softcap_poly && Shared::groups == 2;  // consumers that weigh small dots
  // A consumer leaves out kv tiles that the mask leaves others' rows alone. Of two consumers one would wait
  // for the other.
  static constexpr bool skips = Spec::has_mask && Shared::groups > 2;
  static constexpr bool skips_last = skips && !Spec::row_from_start;  // else kv_range hardly has a lower end
  // A thread's sum of weights over a tile stays below this while the maximum lags: a weight is finite in
  // Elem, and sums of its products with values up to 2^40 are in float.
  static constexpr float most = same_type<Elem, half_t>::value ? 0x1p15f : 0x1p80f;
  // A maximum that rises by more than this factor's inverse from tile to tile: 2^4, 2.
  static constexpr float fast = same_type<Elem, half_t>::value ? 0.5f : 0.0625f;
  enum { K_FULL, V_FULL };  // peeks

  const LuattnParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const int group, warp, lane;
  SequenceOf<Config> site;
  int first_row;  // of the warp
  Head head;
  Row row[rows];
  using Online = OnlineRows<Spec, rows, cols, 4>;
  Online online;
  Ring<stages> k, v;
  Ring<1> q;
  u32 weights[tile_n / 4];  // P, as A operands; O is in registers of sm90/fwd/o_wgmma.cuh
  float scale[rows];        // what O is multiplied by before P's values are added
  // What is given back amid the weights of the scores at hand: barriers of K and V, or 0, and whether Q, too.
  u32 k_back, v_back;
  bool q_back;
  bool first;    // the scores at hand, or to come, are the q tile's first: O is 0, no values are being added
  bool may_lag;  // lags: the maxima of the warp's rows may stay as they are
  bool sure;     // lags: the weights are in range, because their maxima have been taken
  bool exceeds;  // lags: a sum of the warp's first rows is not below `most`
  Range wanted;  // skips: the q tile's kv tiles that the mask may leave this consumer's rows
  bool late_v;   // skips: V of the latest tile that was left out is still to be given back
  using Columns = ColumnStrip<Col>;
  typename LinesOf<Spec, Config>::type lines;
  static_assert(!Shared::has_lines || !Spec::has_softcap_poly, "small dots are weighed without what is read");

  __device__ __forceinline__ WeigherSm90(const LuattnParams &params, const LuattnTensorMaps &m,
                                         const Shared &s, int g)
      : p(params),
        maps(m),
        shared(s),
        group(g),
        warp(int(uniform(threadIdx.x / 32 % 4))),
        lane(int(threadIdx.x) % 32),
        k(0),
        v(0),
        q(0),
        late_v(false),
        lines(shared, group * 4 + warp) {}

  // The query of row r of this thread, and the nearest one that exists.
  __device__ __forceinline__ Position position(int r) const { return {first_row + lane / 4, r * 8}; }
  __device__ __forceinline__ int query(int r) const { return min_of(int(position(r)), site.q_len - 1); }

  // Of this consumer: after the kv tile there is none that it wants.
  __device__ __forceinline__ bool ends(KvNote tile) const {
    return tile.last() || (skips_last && tile.index() <= wanted.lo);
  }

  // ---- slots ----

  __device__ __forceinline__ QNote await_q() const {
    barrier_wait(shared.q_full(group), q.parity);
    return QNote::load(shared.q_note(group));
  }
  __device__ __forceinline__ KvNote await_k() const {
    barrier_wait_peeked<K_FULL>(shared.k_full(k.slot), k.parity);
    return KvNote::load(shared.k_note(k.slot));
  }
  __device__ __forceinline__ void await_v() const {
    barrier_wait_peeked<V_FULL>(shared.v_full(v.slot), v.parity);
  }
  __device__ __forceinline__ void release(u32 barrier) const {
    if (lane == 0) barrier_arrive(barrier);
  }
  __device__ __forceinline__ void release_q() {
    release(shared.q_empty(group));
    q.advance();
  }
  __device__ __forceinline__ void advance_k() {
    k_back = shared.k_empty(k.slot);
    k.advance();
  }
  __device__ __forceinline__ void advance_v() {
    v_back = shared.v_empty(v.slot);
    v.advance();
  }
  __device__ __forceinline__ void give_k() const {
    if (k_back == 0) return;
    if constexpr (Shared::has_cols)
      barrier_arrive(k_back);  // each lane has read columns
    else
      release(k_back);
  }
  // Gives K back, and looks whether the next one has come. Columns, which come with it, are read anew by
  // `again`: so K stays until the weights are good.
  __device__ __forceinline__ void release_k() {
    if constexpr (!Shared::has_cols) give_k();
    barrier_peek<K_FULL>(shared.k_full(k.slot), k.parity);
  }
  __device__ __forceinline__ void release_v() {
    if (v_back != 0) release(v_back);
    barrier_peek<V_FULL>(shared.v_full(v.slot), v.parity);
  }
  __device__ __forceinline__ void give_q_and_v() {
    if (q_back) release_q();
    wgmma_wait<0>();
    release_v();
  }

  // ---- scores ----

  __device__ __forceinline__ void score(int kv0, const float (&s)[tile_n / 2], float (&x)[rows][cols]) {
    if constexpr (Spec::has_row_shift) {
#pragma unroll
      for (int r = 0; r < rows; ++r)
        row[r].shift = Spec::row_shift(p, site, head, row[r], position(r), Position{kv0, 0});
    }
    const DistanceTerms<Spec, rows, cols / 2> terms(p, site, head, kv0 - lane % 4 * 2 - (first_row + 15),
                                                    lane);
#pragma unroll
    for (int j = 0; j < cols; j += 2) score_two(kv0, j, s, terms, x);
  }
  // Of two keys side by side.
  template <class Terms>
  __device__ __forceinline__ void score_two(int kv0, int j, const float (&s)[tile_n / 2], const Terms &terms,
                                            float (&x)[rows][cols]) {
    float line[rows][2];
    if constexpr (Shared::has_lines)
#pragma unroll
      for (int r = 0; r < rows; ++r) lines.get(line[r], r, j / 2, lane);
    Col col[2];
    if constexpr (Shared::has_cols) {
      const auto two = Columns::get(shared.cols_beside(k_back), j / 2, lane);
      col[0] = two.col[0], col[1] = two.col[1];
    }
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const Position kv{kv0, j / 2 * 8 + odd};
      if constexpr (!Shared::has_cols) col[odd] = score_col<Spec>(p, site, head, kv);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const float dot = s[j / 2 * 4 + r * 2 + odd];
        float &to = x[r][j + odd];
        if constexpr (Spec::has_bias_row && !Shared::has_lines)
          to = Spec::score(p, site, head, row[r], col[odd], dot, position(r), kv);
        else
          to = score_of<Spec>(p, site, head, row[r], col[odd], dot, position(r), kv,
                              Shared::has_lines ? line[r][odd] : terms.get(r, j / 2, odd));
      }
    }
  }

  // ---- weights ----

  using Mask = MaskSm90<Spec, Online, tile_n>;
  __device__ __forceinline__ Mask mask() const { return {p, site, head, row, first_row, lane}; }
  // Scores become weights, in the online function's step; gives the factors for O in `scale`, and K, V and Q
  // back. Says whether the weights are good.
  __device__ __forceinline__ bool weigh(const float (&s)[tile_n / 2], KvNote tile) {
    float x[rows][cols];
    typename Online::Part part[rows];
    if constexpr (Spec::has_softcap_poly)
      if (!first && !tile.masked() && is_small(s)) {
        weigh_small(s, x, part);
        return true;
      }
    const int kv0 = tile.index() * tile_n + lane % 4 * 2;
    score(kv0, s, x);
    if constexpr (Shared::has_lines)
      if (!ends(tile)) lines.release();
    KeepBits<cols> keep[rows];
    if constexpr (Spec::mask_by_inf) {
      sure = !may_lag;
      scale[0] = scale[1] = 1;
      if (!Spec::lazy_rescaling || tile.masked() || !may_lag) {
        if (tile.masked())
          mask().apply(tile, kv0, x, keep, online);
        else
          online.kept.bits = online.all;
        if (!Spec::lazy_rescaling || !may_lag) raise(x, part);
      }
      release_k();
      step_by_inf(x, part);
    } else {
      release_k();
      if (tile.masked()) {
        mask().apply(tile, kv0, x, keep, online);
        online.template step<true>(p, site, head, row, x, keep, scale);
      } else {
        online.template step<false>(p, site, head, row, x, keep, scale);
      }
      give_q_and_v();
      if (Spec::has_rescale && first) scale[0] = scale[1] = 1;
    }
    keep_weights(x);
    first = false;
    return end_step(part);
  }
  // Are all dots of the warp's rows small? Sums of 8 squares say so, or of 10 and 16 where three consumers
  // count instructions, but for a NaN, which either way keeps. The squares are not to be kept for the
  // weights, which would take 64 registers: hence copies of the dots.
  __device__ __forceinline__ bool is_small(const float (&s)[tile_n / 2]) const {
    constexpr int chains = two_small ? tile_n / 16 : 4;
    float sum[chains];
#pragma unroll
    for (int i = 0; i < tile_n / 2; ++i) {
      float dot = s[i];
      asm("" : "+f"(dot));
      sum[i % chains] = i < chains ? dot * dot : op_fma(dot, dot, sum[i % chains]);
    }
    float most = sum[0];
#pragma unroll
    for (int i = 1; i < chains; ++i) most = max_of(most, sum[i]);
    return __all_sync(0xffffffffu, most < Spec::softcap_poly_limit(p, site, head));
  }
  // weigh where they are, and what follows it. The second row's weights stay below the branch, as in
  // step_by_inf, by a 0 that a lane asks another for.
  __device__ __forceinline__ void weigh_small(const float (&s)[tile_n / 2], float (&x)[rows][cols],
                                              typename Online::Part (&part)[rows]) {
    release_k();
    online.kept.bits = online.all;
    scale[0] = scale[1] = 1;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      float none = -0.f, sum[4];
      if (r > 0) {
        if (q_back) release_q();
        none = __int_as_float(__shfl_sync(0xffffffffu, lane, 0));
        wgmma_wait<0>();
        release_v();
      }
#pragma unroll
      for (int j = 0; j < cols; ++j) {
        x[r][j] = Spec::softcap_poly_prob(p, site, head, s[j / 2 * 4 + r * 2 + j % 2], none);
        sum[j % 4] = j < 4 ? x[r][j] : sum[j % 4] + x[r][j];
      }
      if constexpr (Spec::num_reductions > 0) part[r].red[0] = sum[0] + sum[1] + (sum[2] + sum[3]);
      online.end_row(p, site, head, row[r], r, part[r]);
    }
    keep_weights(x);
  }
  // A maximum lags once every row has one, unless it rises fast: then the next tile's weights would be out of
  // range as well.
  __device__ __forceinline__ void raise(float (&x)[rows][cols], typename Online::Part (&part)[rows]) {
#pragma unroll
    for (int r = 0; r < rows; ++r)
      part[r] = online.begin_row_by_inf(p, site, head, row[r], r, x[r], scale[r]);
    if constexpr (Spec::lazy_rescaling) {
      const bool steady = first || min_of(scale[0], scale[1]) > fast;
      may_lag = __all_sync(0xffffffffu, online.kept.bits == online.all && steady);
    }
    if (first) scale[0] = scale[1] = 1;  // there is no O yet
  }
  // The first row's weights, then the second's, after what both rows share of a step. The branch between them
  // is where ptxas puts the wait for O, which it would otherwise move up, before all that O's product is to
  // hide; and what the first row's weights are needed for fills the gaps between the second's exponentials.
  // Where the maximum lags there is a branch behind both, and ptxas would move all weights above the first,
  // or sums below it. What a lane asks another for it moves past no branch: hence a vote on the first row's
  // sum above, and the second row's maximum by a shuffle below.
  __device__ __forceinline__ void step_by_inf(float (&x)[rows][cols], typename Online::Part (&part)[rows]) {
    weigh_row(0, x, part);
    if constexpr (Spec::lazy_rescaling) exceeds = __any_sync(0xffffffffu, part[0].red[1] >= most);
    give_q_and_v();
    if constexpr (Spec::lazy_rescaling)
#pragma unroll
      for (int i = 0; i < Spec::num_state; ++i)
        if (!Spec::state_deferred(i))
          online.state[1].x[i] = __shfl_sync(0xffffffffu, online.state[1].x[i], lane);
    weigh_row(1, x, part);
  }
  __device__ __forceinline__ void weigh_row(int r, float (&x)[rows][cols],
                                            typename Online::Part (&part)[rows]) {
    if constexpr (Spec::prob_is_sigmoid) {
#pragma unroll
      for (int j = 0; j < cols; ++j) x[r][j] = op_exp2(x[r][j]);
      return;
    }
    online.weigh_row_by_inf(p, site, head, row[r], r, x[r], part[r]);
    if constexpr (!Spec::lazy_rescaling) online.end_row(p, site, head, row[r], r, part[r]);
  }
  // Takes the sums of weights in, unless one may not be finite. That a maximum has just been taken is asked
  // as well: rounding of huge scores must not weigh a tile again for ever.
  __device__ __forceinline__ bool end_step(const typename Online::Part (&part)[rows]) {
    if constexpr (Spec::lazy_rescaling) {
      if ((__any_sync(0xffffffffu, part[1].red[1] >= most) | exceeds) & !sure) return false;
      online.end_rows(p, site, head, row, part);
    }
    return true;
  }
  __device__ __forceinline__ void keep_weights(const float (&x)[rows][cols]) {
#pragma unroll
    for (int i = 0; i < tile_n / 16; ++i)
#pragma unroll
      for (int w = 0; w < 4; ++w)
        weights[i * 4 + w] = pack<Elem>(x[w % 2][i * 4 + w / 2 * 2], x[w % 2][i * 4 + w / 2 * 2 + 1]);
  }
  // Powers become sigmoids while the next scores are multiplied: only the values' product waits for them. The
  // last ones, of a q tile, are few where O is wide, and their code is not worth its time to compile.
  template <bool Last>
  __device__ __forceinline__ void finish_weights() {
    constexpr bool rolled = Last && dim_v > 192;
    if constexpr (Spec::prob_is_sigmoid)
      sigmoids_of_powers<Elem, rolled>(weights, sigmoid_steps<Elem>(weights));
  }
};
