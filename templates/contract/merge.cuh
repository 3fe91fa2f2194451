// contract/merge.cuh: how the partial results of two parts of a row are merged, for kernels that share a row's
// keys among warps or blocks. A spec has it only where the plan merges (plan.merges): a sixth part,
//
//     struct Spec : Mask, Score, Online, Grad, Mods, Merge {};
//
// A part is a set of keys, with the state after its last step and the sum of prob * v, both from the initial
// state on and not scaled. A part that keeps no score of the row has no share: the other one stands, and the
// hooks are not called (score/merge_rows.cuh).
#pragma once
#include "contract/online.cuh"

// Constants
//   has_merge            false: NoMerge. The online function does not merge
//   merge_weighs         merge_factor is not always 1
//
// Hooks
//   merge                the state of both parts, as one run over all of their keys would have it
//   merge_factor         the factor of the sum of prob * v of the part `mine`; that of the part `theirs` is
//                        merge_factor(.., theirs, mine). O = out_scale(merged) * (f mine's sum + g theirs')
template <class S, class Real = typename S::Real>
concept ValidMergeHooks = requires(const LuattnParams &p, const Site &s, const typename S::Head &head,
                                   const typename S::Row &row, const typename S::State &part) {
  { S::merge(p, s, head, row, part, part).x[0] };
  { Real(S::merge_factor(p, s, head, row, part, part)) };
};

template <class S>
concept ValidMerge = requires {
  requires S::has_merge == ValidMergeHooks<S>;
  { S::merge_weighs };
};
