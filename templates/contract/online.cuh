// contract/online.cuh: the online function: turns scores into probabilities, tile by tile, and computes a
// row's results.
//
// A step takes the kept scores of a row in one tile and turns State old into next. red[k] is reduction k of
// term<k> over the kept columns; a term may use red[0 .. k-1]. A row that keeps nothing in a tile takes no
// step, or one that changes nothing. A row that keeps nothing at all has O = 0 and lse = -inf.
#pragma once
#include "contract/absent.cuh"
#include "ops/hook_types.cuh"

// A REDUCE_SUM_DEFERRED reduction is used only by `next`, and linearly. Each thread passes its own partial
// sum, and the state components with state_deferred(i), which begin at 0, are summed over the row's threads
// at the end. REDUCE_PLACE, of a row pass, is the maximum of term<k> less the key's position: -kv of the first key
// whose term is 0, where others have -inf.
enum ReduceKind { REDUCE_MAX = 0, REDUCE_SUM = 1, REDUCE_SUM_DEFERRED = 2, REDUCE_PLACE = 3 };

// Constants
//   has_online           false: NoOnline
//   State                { Real x[num_state]; }, with at least one element
//   num_reductions, reduction(k)
//                        a ReduceKind
//   prob_term            k: prob is term<k>; -1: there is a hook `prob`
//   has_rescale          O is multiplied by `rescale` before a tile's P V is added
//   mask_by_inf          a score of -inf makes every sum term and prob 0 and every max term -inf. A step over
//                        only such scores (red: -inf for a max, 0 for a sum) leaves the state unchanged, also
//                        the initial one, with a rescale of 1
//   mask_by_zero         where mask_by_inf does not hold: a score of 0 makes every sum term and prob 0. A
//                        step over only such scores leaves the states that init and next give unchanged, with
//                        a rescale of 1. There is no max then
//   prob_is_sigmoid      prob is 1 / (1 + 2^-score), with no reductions and no rescale: a kernel may compute
//                        it from 2^score, rounded to Elem
//   lazy_rescaling       sm90 forward: reduction 0 is the running maximum of a softmax, which only keeps
//                        weights in range. A step is `raise_max`, which applies red[0] and gives the
//                        rescale, and then the rest, which does not read it; or, while weights stay in range,
//                        only the rest
//   red_shifted(k)       with has_row_shift: the kernel adds Row::shift to reduction k
//   has_softcap_poly     sm90 forward: where the squares of all dots of a tile without a mask are below
//                        softcap_poly_limit, a kernel may use softcap_poly_prob, which costs less. The only
//                        reduction, if there is one, is then their sum; there is no rescale. term is a 0 that
//                        orders its computation
//   has_lse, num_saved   what forward saves of each row for backward
//
// Hooks
//   term<k>, prob        element: the index of a thread's score in its row, a constant once loops are
//                        unrolled. Approximations may alternate by it between units of the device
//   out_scale            O = out_scale * sum of prob * v'
template <class S, class Real = typename S::Real>
concept ValidStep =
    requires(const LuattnParams &p, const Site &s, const typename S::Head &head, const typename S::Row &row,
             const typename S::State &old, const Real *red, Real *out, Real x, int element) {
      { S::init(p, s, head, row) };
      { S::next(p, s, head, row, old, red) };
      { Real(S::out_scale(p, s, head, row, old)) };
      requires(S::num_reductions > 0) == requires { S::template term<0>(p, s, head, row, old, red, x, element); };
      requires(S::prob_term < 0) == requires { Real(S::prob(p, s, head, row, old, red, x, element)); };
      requires S::has_rescale == requires { Real(S::rescale(p, s, head, row, old, red)); };
      requires S::lazy_rescaling == requires { S::raise_max(p, s, head, row, old, red); };
      requires S::has_row_shift == requires { S::red_shifted(0); };
      requires S::has_lse == requires { Real(S::lse(p, s, head, row, old)); };
      requires(S::num_saved > 0) == requires { S::save(p, s, head, row, old, out); };
      requires S::has_softcap_poly == requires { Real(S::softcap_poly_limit(p, s, head)); };
      requires S::has_softcap_poly == requires { Real(S::softcap_poly_prob(p, s, head, x, x)); };
      { S::mask_by_inf + S::mask_by_zero + S::prob_is_sigmoid };
      { S::reduction(0) + S::state_deferred(0) + S::num_state + old.x[0] };
    };

template <class S>
concept ValidOnline = requires {
  requires !S::has_online || ValidStep<S>;
  { S::has_lse + S::num_saved };
};
