// score/online_rows.cuh: the online function over a tile of scores in registers, for any kernel family.
//
// A thread holds Rows x Cols scores. Lanes threads of a warp (xor masks 1, 2, .. Lanes/2) share each of its
// rows. step() turns scores into probabilities in place and gives the factors for the O accumulated so far.
#pragma once
#include "contract/contract.cuh"

template <int Lanes, class Real>
LUATTN_FN Real lanes_max(Real x) {
#pragma unroll
  for (int m = Lanes / 2; m > 0; m /= 2) x = max_of(x, __shfl_xor_sync(0xffffffffu, x, m));
  return x;
}
template <int Lanes, class Real>
LUATTN_FN Real lanes_sum(Real x) {
#pragma unroll
  for (int m = Lanes / 2; m > 0; m /= 2) x += __shfl_xor_sync(0xffffffffu, x, m);
  return x;
}
template <int Lanes>
LUATTN_FN bool lanes_any(bool x) {
  int y = x;
#pragma unroll
  for (int m = Lanes / 2; m > 0; m /= 2) y |= __shfl_xor_sync(0xffffffffu, y, m);
  return y != 0;
}

// Says which columns of a row a thread keeps, if -inf cannot express it (see mask_by_inf).
template <int Cols>
struct KeepBits {
  u32 word[(Cols + 31) / 32];
  LUATTN_FN KeepBits none() {
    KeepBits k;
#pragma unroll
    for (int i = 0; i < (Cols + 31) / 32; ++i) k.word[i] = 0;
    return k;
  }
  __device__ __forceinline__ void set(int j, bool keep) { word[j / 32] |= u32(keep) << (j % 32); }
  __device__ __forceinline__ bool get(int j) const { return (word[j / 32] >> (j % 32)) & 1u; }
};

// The number of reductions up to the last one that the whole row shares. Deferred ones are only for `next`.
template <class Spec>
LUATTN_FN constexpr int shared_reductions() {
  int n = 0;
  for (int k = 0; k < Spec::num_reductions; ++k)
    if (Spec::reduction(k) != REDUCE_SUM_DEFERRED) n = k + 1;
  return n;
}

template <class Spec>
LUATTN_FN constexpr bool finds_places() {
  bool any = false;
  for (int k = 0; k < Spec::num_reductions; ++k) any = any || Spec::reduction(k) == REDUCE_PLACE;
  return any;
}

// Where a thread's columns lie, if reductions find places: lanes have Pair adjacent keys each, in turn.
template <bool Any, int Lanes, int Pair>
struct Places {
  template <class Key>
  LUATTN_FN void enter_tile(const Key &) {}
};
template <int Lanes, int Pair>
struct Places<true, Lanes, Pair> {
  int first_key;
  // Before a step; first is the position of the thread's first column.
  __device__ __forceinline__ void enter_tile(int first) { first_key = first; }
  __device__ __forceinline__ int place(int j) const { return first_key + j / Pair * Pair * Lanes + j % Pair; }
};

template <class Spec, int Rows, int Cols, int Lanes, int Pair>
struct OnlineRows : Places<finds_places<Spec>(), Lanes, Pair> {
  using Real = typename Spec::Real;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  using State = typename Spec::State;
  static constexpr int num_red = Spec::num_reductions > 0 ? Spec::num_reductions : 1;
  static constexpr int num_shared = shared_reductions<Spec>();

  // One bit per row, all in one register.
  struct Flags {
    u32 bits;
    __device__ __forceinline__ bool operator[](int r) const { return (bits >> r) & 1u; }
    __device__ __forceinline__ void raise(int r, bool x) { bits |= u32(x) << r; }
  };
  static_assert(Rows <= 32);
  static constexpr u32 all = ~0u >> (32 - Rows);

  State state[Rows];
  Flags kept;  // this thread has seen a kept score of the row

  // Bits of this thread's rows that keep a score.
  LUATTN_FN u32 kept_rows(const KeepBits<Cols> (&keep)[Rows]) {
    u32 rows = 0;
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      u32 words = 0;
#pragma unroll
      for (int w = 0; w < (Cols + 31) / 32; ++w) words |= keep[r].word[w];
      rows |= u32(words != 0) << r;
    }
    return rows;
  }

  __device__ __forceinline__ void init(const LuattnParams &p, const Site &site, const Head &head,
                                       const Row (&row)[Rows]) {
    kept.bits = 0;
#pragma unroll
    for (int r = 0; r < Rows; ++r) state[r] = Spec::init(p, site, head, row[r]);
  }

  // Runs a step. With Masked, `keep[r]` says which columns count. With mask_by_inf, the caller has also set
  // the others to -inf.
  template <bool Masked>
  __device__ __forceinline__ void step(const LuattnParams &p, const Site &site, const Head &head,
                                       const Row (&row)[Rows], Real (&score)[Rows][Cols],
                                       const KeepBits<Cols> (&keep)[Rows], Real (&scale)[Rows]) {
    if constexpr (!Masked) {
      kept.bits = all;
      step_by_inf(p, site, head, row, score, scale);
      return;
    }
    static_assert(!Spec::lazy_rescaling);
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      bool mine = false;
#pragma unroll
      for (int w = 0; w < (Cols + 31) / 32; ++w) mine |= keep[r].word[w] != 0;
      kept.raise(r, mine);
      const bool any = lanes_any<Lanes>(mine);
      Real red[num_red];
      reduce<true, 0, Spec::num_reductions>(p, site, head, row[r], state[r], score[r], keep[r], red);
      if constexpr (Spec::prob_term < 0) {
#pragma unroll
        for (int j = 0; j < Cols; ++j) {
          const Real x = Spec::prob(p, site, head, row[r], state[r], red, score[r][j], j);
          score[r][j] = is_kept<true>(keep[r], j) ? x : Real(0);
        }
      }
      if (!any) {
#pragma unroll
        for (int j = 0; j < Cols; ++j) score[r][j] = Real(0);
      }
      const State next = Spec::next(p, site, head, row[r], state[r], red);
      scale[r] = any ? rescale(p, site, head, row[r], state[r], red) : Real(1);
      if (any) state[r] = next;
    }
  }

  // Runs a step over scores that all count. With mask_by_inf masked scores may be -inf, and with mask_by_zero
  // 0, so that masked and unmasked tiles share the code. The caller sets `kept`.
  __device__ __forceinline__ void step_by_inf(const LuattnParams &p, const Site &site, const Head &head,
                                              const Row (&row)[Rows], Real (&score)[Rows][Cols], Real (&scale)[Rows]) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      Part part = begin_row_by_inf(p, site, head, row[r], r, score[r], scale[r]);
      weigh_row_by_inf(p, site, head, row[r], r, score[r], part);
      end_row(p, site, head, row[r], r, part);
    }
  }
  // The step has two parts for each row, so that a kernel may choose their order. The first computes the
  // reductions that the whole row shares, which give the factor for O. The second computes probabilities and
  // deferred sums.
  struct Part {
    Real red[num_red];
  };
  __device__ __forceinline__ Part begin_row_by_inf(const LuattnParams &p, const Site &site, const Head &head,
                                                   const Row &row, int r, Real (&score)[Cols], Real &scale) {
    Part part;
    reduce<false, 0, num_shared>(p, site, head, row, state[r], score, KeepBits<Cols>::none(), part.red);
    scale = rescale(p, site, head, row, state[r], part.red);
    if constexpr (Spec::lazy_rescaling) state[r] = Spec::raise_max(p, site, head, row, state[r], part.red);
    return part;
  }
  __device__ __forceinline__ void weigh_row_by_inf(const LuattnParams &p, const Site &site, const Head &head,
                                                   const Row &row, int r, Real (&score)[Cols], Part &part) {
    reduce<false, num_shared, Spec::num_reductions>(p, site, head, row, state[r], score, KeepBits<Cols>::none(),
                                                    part.red);
    if constexpr (Spec::prob_term < 0) {
#pragma unroll
      for (int j = 0; j < Cols; ++j) score[j] = Spec::prob(p, site, head, row, state[r], part.red, score[j], j);
    }
  }
  __device__ __forceinline__ void end_row(const LuattnParams &p, const Site &site, const Head &head, const Row &row,
                                          int r, const Part &part) {
    state[r] = Spec::next(p, site, head, row, state[r], part.red);
  }
  __device__ __forceinline__ void end_rows(const LuattnParams &p, const Site &site, const Head &head,
                                           const Row (&row)[Rows], const Part (&part)[Rows]) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) end_row(p, site, head, row[r], r, part[r]);
  }

  // Adds up what was deferred per thread. Afterwards every lane holds the row's state, and `kept` covers the
  // whole row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int m = Lanes / 2; m > 0; m /= 2) kept.bits |= __shfl_xor_sync(0xffffffffu, kept.bits, m);
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
      for (int i = 0; i < Spec::num_state; ++i)
        if (Spec::state_deferred(i)) state[r].x[i] = lanes_sum<Lanes>(state[r].x[i]);
    }
  }

 private:
  // Computes the factor for O.
  LUATTN_FN Real rescale(const LuattnParams &p, const Site &site, const Head &head, const Row &row, const State &old,
                         const Real *red) {
    if constexpr (Spec::has_rescale)
      return Spec::rescale(p, site, head, row, old, red);
    else
      return Real(1);
  }
  // With mask_by_inf a masked score is -inf, so the arithmetic drops the column without a test. A fully
  // masked row leaves the state unchanged; if the arithmetic does not ensure that, `any` of the caller does.
  template <bool Masked>
  LUATTN_FN bool is_kept(const KeepBits<Cols> &keep, int j) {
    if constexpr (Masked && !Spec::mask_by_inf)
      return keep.get(j);
    else
      return true;
  }

  // Computes reductions K .. End - 1.
  template <bool Masked, int K, int End>
  __device__ __forceinline__ void reduce(const LuattnParams &p, const Site &site, const Head &head, const Row &row,
                                         const State &old, Real (&score)[Cols], const KeepBits<Cols> &keep,
                                         Real (&red)[num_red]) {
    if constexpr (K < End) {
      constexpr bool is_max = Spec::reduction(K) == REDUCE_MAX || Spec::reduction(K) == REDUCE_PLACE;
      // Several interleaved chains, because each operation waits for the previous one of its chain.
      constexpr int chains = Cols < 4 ? 1 : is_max ? 2 : 4;
      Real part[chains];
#pragma unroll
      for (int j = 0; j < Cols; ++j) {
        Real x = Spec::template term<K>(p, site, head, row, old, red, score[j], j);
        if constexpr (Spec::reduction(K) == REDUCE_PLACE) x -= Real(this->place(j));
        if (!is_kept<Masked>(keep, j)) x = is_max ? -infinity<Real>() : Real(0);
        if constexpr (Spec::prob_term == K) score[j] = x;  // the last term that needs the score itself
        part[j % chains] = j < chains ? x : is_max ? max_of(part[j % chains], x) : part[j % chains] + x;
      }
      Real sum = part[0];
#pragma unroll
      for (int c = 1; c < chains; ++c) sum = is_max ? max_of(sum, part[c]) : sum + part[c];
      if constexpr (Spec::has_row_shift) sum = Spec::red_shifted(K) ? sum + row.shift : sum;
      if constexpr (is_max) sum = lanes_max<Lanes>(sum);
      if constexpr (Spec::reduction(K) == REDUCE_SUM) sum = lanes_sum<Lanes>(sum);
      red[K] = sum;
      reduce<Masked, K + 1, End>(p, site, head, row, old, score, keep, red);
    }
  }
};
