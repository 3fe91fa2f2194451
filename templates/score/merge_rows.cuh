// score/merge_rows.cuh: merges parts of a row in registers, for any kernel that shares a row's keys among warps
// or blocks.
//
//     MergeFactors<Real> f = merge_part<Spec>(p, site, head, row, mine, theirs);  // mine: now both parts
//     o = merged_value(o, f.mine, their_o, f.theirs);                             // each number of O
//
// The result depends on the order of merges, in the last bits: a kernel merges in the order of keys.
#pragma once
#include "contract/contract.cuh"
#include "contract/merge.cuh"

// What a part of a row's keys gives, besides its O.
template <class Spec>
struct RowPart {
  typename Spec::State state;
  bool kept;  // a score of the row; otherwise the state counts for nothing, and neither does O
};

// Factors of the O of two parts. 0: that O has no share, whatever its numbers are.
template <class Real>
struct MergeFactors {
  Real mine, theirs;
};

template <class Spec, class Real = typename Spec::Real>
LUATTN_FN MergeFactors<Real> merge_part(const LuattnParams &p, const Site &site, const typename Spec::Head &head,
                                        const typename Spec::Row &row, RowPart<Spec> &mine,
                                        const RowPart<Spec> &theirs) {
  static_assert(ValidMerge<Spec> && Spec::has_merge, "the online function's parts do not merge");
  const bool both = mine.kept && theirs.kept;
  MergeFactors<Real> f{Real(mine.kept), Real(theirs.kept)};
  const typename Spec::State merged = Spec::merge(p, site, head, row, mine.state, theirs.state);
  if constexpr (Spec::merge_weighs) {
    const Real of_mine = Spec::merge_factor(p, site, head, row, mine.state, theirs.state),
               of_theirs = Spec::merge_factor(p, site, head, row, theirs.state, mine.state);
    f = {both ? of_mine : f.mine, both ? of_theirs : f.theirs};
  }
#pragma unroll
  for (int i = 0; i < Spec::num_state; ++i)
    mine.state.x[i] = both ? merged.x[i] : theirs.kept ? theirs.state.x[i] : mine.state.x[i];
  mine.kept |= theirs.kept;
  return f;
}

// The sum of both parts. A factor of 0 drops its number: the O of a part that keeps nothing may be anything, and
// infinities among values of weight 0 make no NaN.
template <class Real>
LUATTN_FN Real merged_value(Real mine, Real f_mine, Real theirs, Real f_theirs) {
  return (f_mine == Real(0) ? Real(0) : f_mine * mine) + (f_theirs == Real(0) ? Real(0) : f_theirs * theirs);
}
