// score/dual_rows.cuh: the online function over a tile of scores in registers, with its tangents (contract/tangent.cuh).
//
// As score/online_rows.cuh: a thread holds Rows x Cols scores, and their tangents, and Lanes threads of a warp share
// each of its rows. A step turns scores into probabilities in place, and their tangents into those of probabilities.
#pragma once
#include "contract/tangent.cuh"
#include "score/online_rows.cuh"

template <class Spec, int Rows, int Cols, int Lanes>
struct DualRows : OnlineRows<Spec, Rows, Cols, Lanes, 1> {
  using Base = OnlineRows<Spec, Rows, Cols, Lanes, 1>;
  using Real = typename Spec::Real;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  using State = typename Spec::State;
  using Base::all, Base::kept, Base::num_red, Base::state;
  static_assert(!finds_places<Spec>());
  // How far a row's scores may exceed a maximum that lags: P is then e^6 at most, and rescaling is rare.
  static constexpr Real lag = 6, lowest = Real(-3e38);  // below every maximum, in units of dot products

  State tangent[Rows];

  // Scores and their tangents. dots(r, j): the dot product and scale times its tangent; query(r), key(j): where.
  template <class Sequence, class Dots, class Query, class Key>
  LUATTN_FN void score(const LuattnParams &p, const Sequence &site, const Head &head, const Row (&row)[Rows],
                       const Dots &dots, const Query &query, const Key &key, Real (&x)[Rows][Cols],
                       Real (&xt)[Rows][Cols]) {
#pragma unroll
    for (int j = 0; j < Cols; ++j) {
      const auto kv = key(j);
      const typename Spec::Col col = Spec::col(p, site, head, site.clamped_key(p, kv));
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        const Dual<Real> dot = dots(r, j), y = Spec::score_dual(p, site, head, row[r], col, dot.x, dot.d, query(r), kv);
        x[r][j] = y.x, xt[r][j] = y.d;
      }
    }
  }

  __device__ __forceinline__ void init(const LuattnParams &p, const Site &site, const Head &head,
                                       const Row (&row)[Rows]) {
    kept.bits = 0;
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      const DualState<State> start = Spec::init_dual(p, site, head, row[r]);
      state[r] = start.x, tangent[r] = start.d;
    }
  }

  // Masked: keep[r] says which columns count. Gives the factor for what has been accumulated so far, and its tangent.
  // A row that keeps nothing in the tile takes no step.
  template <bool Masked>
  __device__ __forceinline__ void step(const LuattnParams &p, const Site &site, const Head &head,
                                       const Row (&row)[Rows], Real (&score)[Rows][Cols],
                                       Real (&score_tangent)[Rows][Cols], const KeepBits<Cols> (&keep)[Rows],
                                       Dual<Real> (&scale)[Rows]) {
    if constexpr (!Masked) kept.bits = all;
    step_rows<Masked>(p, site, head, row, score, score_tangent, keep, scale);
  }
  // As in OnlineRows: scores that are masked are -inf, and their tangents 0. The caller sets `kept`.
  __device__ __forceinline__ void step_by_inf(const LuattnParams &p, const Site &site, const Head &head,
                                              const Row (&row)[Rows], Real (&score)[Rows][Cols],
                                              Real (&score_tangent)[Rows][Cols], Dual<Real> (&scale)[Rows]) {
    const KeepBits<Cols> none[Rows] = {};
    step_rows<false>(p, site, head, row, score, score_tangent, none, scale);
  }

  // Takes two rows at once where a thread has no more: while one waits, as for a maximum of other lanes, the other goes on.
  template <bool Masked>
  __device__ __forceinline__ void step_rows(const LuattnParams &p, const Site &site, const Head &head,
                                            const Row (&row)[Rows], Real (&score)[Rows][Cols],
                                            Real (&score_tangent)[Rows][Cols], const KeepBits<Cols> (&keep)[Rows],
                                            Dual<Real> (&scale)[Rows]) {
    constexpr int turn = Rows <= 2 ? Rows : 1;
#pragma unroll
    for (int r0 = 0; r0 < Rows; r0 += turn) {
      Part part[turn];
#pragma unroll
      for (int r = r0; r < r0 + turn; ++r)
        begin_row<Masked>(p, site, head, row[r], r, score[r], score_tangent[r], keep[r], part[r - r0]);
#pragma unroll
      for (int r = r0; r < r0 + turn; ++r)
        end_row<Masked>(p, site, head, row[r], r, score[r], score_tangent[r], keep[r], part[r - r0], scale[r]);
    }
  }
  struct Part {
    Real red[Base::num_red], red_tangent[Base::num_red];
    bool any;
  };
  // The reductions that the whole row shares.
  template <bool Masked>
  __device__ __forceinline__ void begin_row(const LuattnParams &p, const Site &site, const Head &head, const Row &row,
                                            int r, Real (&score)[Cols], Real (&score_tangent)[Cols],
                                            const KeepBits<Cols> &keep, Part &part) {
    part = {{}, {}, true};
    if constexpr (Masked) {
      bool mine = false;
#pragma unroll
      for (int w = 0; w < (Cols + 31) / 32; ++w) mine |= keep.word[w] != 0;
      kept.raise(r, mine);
      part.any = lanes_any<Lanes>(mine);
    }
    reduce<Masked, 0, Base::num_shared>(p, site, head, row, r, score, score_tangent, keep, part.red, part.red_tangent);
  }
  // The others, probabilities and the next state.
  template <bool Masked>
  __device__ __forceinline__ void end_row(const LuattnParams &p, const Site &site, const Head &head, const Row &row,
                                          int r, Real (&score)[Cols], Real (&score_tangent)[Cols],
                                          const KeepBits<Cols> &keep, Part &part, Dual<Real> &scale) {
    Real(&red)[num_red] = part.red, (&red_tangent)[num_red] = part.red_tangent;
    const bool any = part.any;
    reduce<Masked, Base::num_shared, Spec::num_reductions>(p, site, head, row, r, score, score_tangent, keep, red,
                                                           red_tangent);
    if constexpr (Spec::prob_term < 0) {
#pragma unroll
      for (int j = 0; j < Cols; ++j) {
        const Dual<Real> y =
            Spec::prob_dual(p, site, head, row, state[r], tangent[r], red, red_tangent, score[j], score_tangent[j], j);
        score[j] = is_kept<Masked>(keep, j) ? y.x : Real(0);
        score_tangent[j] = is_kept<Masked>(keep, j) ? y.d : Real(0);
      }
    }
    if (!any) {
#pragma unroll
      for (int j = 0; j < Cols; ++j) score[j] = score_tangent[j] = Real(0);
    }
    scale = {Real(1), Real(0)};
    if constexpr (Spec::has_rescale) {
      if (any) scale = Spec::rescale_dual(p, site, head, row, state[r], tangent[r], red, red_tangent);
    }
    const DualState<State> next = Spec::next_dual(p, site, head, row, state[r], tangent[r], red, red_tangent);
    if (any) state[r] = next.x, tangent[r] = next.d;
  }

  // Adds up what was deferred per thread. Afterwards every lane holds the row's state, and `kept` covers the whole row.
  __device__ __forceinline__ void finish() {
    Base::finish();
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
      for (int i = 0; i < Spec::num_state; ++i)
        if (Spec::state_deferred(i)) tangent[r].x[i] = lanes_sum<Lanes>(tangent[r].x[i]);
    }
  }

 private:
  template <bool Masked>
  LUATTN_FN bool is_kept(const KeepBits<Cols> &keep, int j) {
    if constexpr (Masked)
      return keep.get(j);
    else
      return true;
  }

  template <bool Masked, int K, int End>
  __device__ __forceinline__ void reduce(const LuattnParams &p, const Site &site, const Head &head, const Row &row,
                                         int r, Real (&score)[Cols], Real (&score_tangent)[Cols],
                                         const KeepBits<Cols> &keep, Real (&red)[num_red],
                                         Real (&red_tangent)[num_red]) {
    if constexpr (K < End) {
      constexpr bool is_max = Spec::reduction(K) == REDUCE_MAX, has_tangent = Spec::term_has_tangent(K);
      constexpr int chains = Cols < 4 ? 1 : 2;
      constexpr bool moves = is_max && has_tangent;  // the tangent is that of the largest, of several their mean
      Real largest = -infinity<Real>(), of_largest = 0, count = 0;
      Real part[chains], part_tangent[chains];
#pragma unroll
      for (int j = 0; j < Cols; ++j) {
        Dual<Real> y = Spec::template term_dual<K>(p, site, head, row, state[r], tangent[r], red, red_tangent, score[j],
                                                   score_tangent[j], j);
        if (!is_kept<Masked>(keep, j)) y = {is_max ? -infinity<Real>() : Real(0), Real(0)};
        if constexpr (Spec::prob_term == K) score[j] = y.x, score_tangent[j] = y.d;
        const int c = j % chains;
        part[c] = j < chains ? y.x : is_max ? max_of(part[c], y.x) : part[c] + y.x;
        if constexpr (has_tangent) part_tangent[c] = j < chains ? y.d : part_tangent[c] + y.d;
        if constexpr (moves) {
          const bool grows = y.x > largest, stays = y.x == largest && count > Real(0);
          of_largest = grows ? y.d : stays ? of_largest + y.d : of_largest;
          count = grows ? Real(1) : stays ? count + Real(1) : count;
          largest = max_of(largest, y.x);
        }
      }
      Real sum = part[0];
      if constexpr (chains == 2) sum = is_max ? max_of(sum, part[1]) : sum + part[1];
      if constexpr (is_max) sum = lanes_max<Lanes>(sum);
      if constexpr (Spec::reduction(K) == REDUCE_SUM) sum = lanes_sum<Lanes>(sum);
      red[K] = sum;
      if constexpr (K == 0 && Spec::lagging_max >= 0) {
        const Real old = state[r].x[Spec::lagging_max], natural = Spec::dot_unit ? Real(p.scale) * sum : sum;
        red[K] = natural <= old + lag ? (Spec::dot_unit ? lowest : old) : sum;
      }
      if constexpr (moves) {
        const bool is_largest = largest == sum && count > Real(0);
        of_largest = lanes_sum<Lanes>(is_largest ? of_largest : Real(0));
        count = lanes_sum<Lanes>(is_largest ? count : Real(0));
        red_tangent[K] = count > Real(0) ? of_largest / count : Real(0);
      } else if constexpr (has_tangent) {
        Real of_sum = part_tangent[0];
        if constexpr (chains == 2) of_sum += part_tangent[1];
        if constexpr (Spec::reduction(K) == REDUCE_SUM) of_sum = lanes_sum<Lanes>(of_sum);
        red_tangent[K] = of_sum;
      }
      reduce<Masked, K + 1, End>(p, site, head, row, r, score, score_tangent, keep, red, red_tangent);
    }
  }
};
