// contract/score.cuh: turns a dot product into a score, score_mod(scale * dot), in a unit that the generator
// chose. (For a plain softmax, the score is the dot product itself, and the scale is folded into the
// exponent.) A kernel passes a score on and never interprets its value. dot is the unscaled sum over d of
// q'[d] * k'[d], of q and k after their mods.
#pragma once
#include "contract/absent.cuh"
#include "contract/keys.cuh"
#include "ops/hook_types.cuh"

// Constants
//   has_score            false: ScoreInGrad
//   score_reads          what score reads besides the rows. 0: nothing. 1: memory for each column. 2: memory
//                        for each element, or score is a called function
//   score_reads_col      score reads Col
//   reads_columns        score (with a bias row, score_with) reads memory for each column and none for each
//                        element (sm90)
//   adds_displacement_term
//                        score_with is the sum of dot and the displacement term: products may begin their sums at terms
//   bias_row_shared      the bias row is the same for all batches
//   BiasElem             the stored type of the bias row's input
//
// Hooks
//   score                where q or kv lies outside the lengths, the result is dropped
//   distance_term        one number for all elements of one head with the same kv - q, whatever q and kv
//                        are, also beyond the lengths. A parameter of `score_with`, or in backward of `grad`
//   displacement_term    over a grid, the same for all elements of one head with the same kv - q along each axis, of which
//                        it is a function. Not together with the others
//   bias_row             never with distance_term, sm90: the row of an input along the keys. The element at
//                        its index, as Real, is the term; the index moves by one with kv. In
//                        backward, rows have a pitch
//   score_with           the same score, given its term
//   row_shift            sm90 forward: a term left out of scores, common to the elements of row q that share
//                        kv.base; kv.offset is 0. Before a step the kernel stores it in Row's member `shift`,
//                        which the online function reads, and adds it to reductions with red_shifted(k),
//                        maxima of scores
//   score_bounds         bounds of score_mod's result (natural exponents), for dots times the scale from
//                        least to most. The online function is then a softmax: weights are exp(score - lse),
//                        and an element's gradient in backward has that factor
template <class S, class Real = typename S::Real>
concept ValidScore =
    requires(const LuattnParams &p, const Site &s, const typename S::Head &head, const typename S::Row &row,
             const typename S::Col &col, Real dot, Real term, Position q, Position kv, HookKeyPlace key,
             HookOrigin origin, const HookDisplacement &displacement, int at, double bound) {
      requires S::has_score == requires { Real(S::score(p, s, head, row, col, dot, q, key)); };
      requires S::has_score == requires { S::score_reads + S::score_reads_col + S::reads_columns; };
      requires S::has_distance_term == requires { Real(S::distance_term(p, s, head, q, kv)); };
      requires S::has_displacement_term == requires { Real(S::displacement_term(p, s, head, origin, displacement)); };
      requires S::has_bias_row == requires { S::bias_row(p, s, head, at, at).row; };
      requires(S::has_score && (S::has_distance_term || S::has_displacement_term || S::has_bias_row)) ==
                  requires { Real(S::score_with(p, s, head, row, col, dot, q, key, term)); };
      requires S::has_score_bounds == requires { S::score_bounds(p, s, at, at, at, at, bound, bound); };
      requires S::has_row_shift == requires { Real(S::row_shift(p, s, head, row, q, key)); };
      requires sizeof(typename S::BiasElem) > 0 && !(S::has_distance_term && S::has_bias_row);
      { S::bias_row_shared };
      { S::adds_displacement_term };
    };

// The score of an element, given its distance term or bias.
template <class Spec, class Real, class Place>
LUATTN_FN Real score_of(const LuattnParams &p, const Site &s, const typename Spec::Head &head,
                        const typename Spec::Row &row, const typename Spec::Col &col, Real dot, Position q,
                        const Place &kv, Real term) {
  if constexpr (Spec::has_distance_term || Spec::has_displacement_term || Spec::has_bias_row)
    return Spec::score_with(p, s, head, row, col, dot, q, kv, term);
  else
    return Spec::score(p, s, head, row, col, dot, q, kv);
}

// Computes Col for scores. It is empty if scores do not read it: to find that out would take the compiler
// time.
template <class Spec, class Place>
LUATTN_FN typename Spec::Col score_col(const LuattnParams &p, const Site &s, const typename Spec::Head &head,
                                       const Place &kv) {
  if constexpr (Spec::score_reads_col)
    return Spec::col(p, s, head, kv);
  else
    return {};
}
