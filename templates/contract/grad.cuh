// contract/grad.cuh: backward: P and dS of an element, and the gradients of parameters (inputs and scalars).
#pragma once
#include "contract/absent.cuh"
#include "contract/keys.cuh"
#include "ops/hook_types.cuh"
#include "ops/lane_sums.cuh"

// The elements whose dS is summed before a parameter gradient is computed from it: those with the same q -
// kv, the same q, or the same kv; single elements, which add to one gradient with a cheap factor or each to
// its own; or all elements, with a factor that is linear in q and kv.
enum ParameterSum { SUM_DISTANCE = 1, SUM_ROW = 2, SUM_COL = 4, SUM_ELEMENT = 8, SUM_LINEAR = 16 };

// Whether a warp's lanes share the sums of grad.
template <class S>
concept HasLaneSums = requires(typename S::Acc &acc) { acc.lanes.kept; };

// Whether numbers of row passes, forward passes with another weight, reach prepare: num_passes deltas of their own, and
// num_sums sums of the row.
template <class S>
concept HasRowPasses = requires { S::num_passes; };
template <class S>
constexpr int row_pass_numbers = 0;
template <HasRowPasses S>
constexpr int row_pass_numbers<S> = S::num_passes + S::num_sums;

// Constants
//   has_grad             false: NoGrad
//   BwdRow, Acc          { Real x[num_bwd_rows]; }, { Real x[num_acc]; }, with at least one element: the row
//                        numbers that `grad` reads; parameter gradients that a kernel sums over a block or
//                        a warp. With too many gradients for a thread's registers Acc has `lanes`,
//                        LaneSums of those of grad. A kernel then calls grad<true> for whole warps, and
//                        sets lanes.kept before each call: grad adds nothing for others
//   prob_rows            bit i: prob depends on number i of BwdRow; prob does not depend on dp. -1: `grad`
//                        computes both or none
//   grad_is_light        grad reads no memory for an element, and is inlined
//   grad_reads_row       hooks of the main kernel other than keep read Row
//   grad_adds, grad_adds_to_memory
//                        grad adds to parameter gradients; it does so by atomics. grad may be called for
//                        elements that are not kept, if the result is dropped, unless it adds to memory
//   parameter_sums       bits of ParameterSum: gradients that are sums of dS, which grad leaves out
//   may_be_same_bucket   all distances of some tiles add to one gradient; `same_bucket` says which tiles
//   distance_step        not 0: add_distance adds factor * g to one gradient of a row, whose index changes by
//                        this much when q grows by one
//   pair_grads_in_rows, pair_grads_pitched
//                        add_per_element adds to one gradient of a row, whose index grows by one with kv;
//                        the row moves by its pitch with q, below q_len. The input is pair_grads_input
//
// Hooks
//   prepare              once a row: delta = sum over d of dO * O; acc collects gradients that arise per row; behind
//                        the num_saved numbers of forward, `saved` has those of row passes.
//                        Not called for a row whose lse is -inf; the numbers of that row are 0. Without
//                        has_lse it is also called for a row that keeps nothing: delta is 0, and acc then
//                        stays unchanged
//   grad                 one kept element: dp = sum over d of dO * v'; ds = d loss / d (scale * dot). It adds
//                        gradients only if with_inputs is true
//   add_distance         g is the sum of ds over kept elements with the same q - kv. (q and kv may be any
//                        positions at that distance, also outside the lengths.) Over a grid along each axis: an Origin
//                        and a Displacement. Called by whole warps
//   add_row, add_col     the same for equal q, directly to memory; and for equal kv
//   add_per_element      ds of one element, 0 if it is not kept
//   add_linear           for the elements of one key: g is the sum of ds, g_by_q that of (query - q) * ds
//   same_bucket          add_distance adds all elements of the tile to the same gradient; arguments as for
//                        tile_class
//   distance_grad_row, pair_grad_row
//                        the gradient rows that these hooks add to
//   flush                adds acc's gradients to memory; called by one thread. Linear in acc, so that partial
//                        sums may be flushed; s and head are those of the elements
//   flush_lanes          the same for the sums of a block's lanes
template <class S, class Real = typename S::Real>
concept ValidGradients = requires(const LuattnParams &p, const Site &s, const typename S::Head &head,
                                  const typename S::Row &row, const typename S::Col &col, const typename S::BwdRow &bwd,
                                  const Real *saved, Real x, Real &result, int q, int kv, Position q_at, Position kv_at,
                                  HookOrigin origin, const HookDisplacement &displacement, typename S::Acc &acc) {
  { S::prepare(p, s, head, row, q, x, saved, x, x, acc) };
  { S::template grad<true>(p, s, head, row, col, bwd, x, x, q_at, kv_at, x, result, result, acc) };
  requires(S::num_acc > 0) == requires { S::flush(p, s, head, acc); };
  requires HasLaneSums<S> == requires { S::flush_lanes(p, s, head, saved); };
  requires bool(S::parameter_sums & SUM_DISTANCE) ==
               requires { S::add_distance(p, s, head, origin, displacement, x, acc); };
  requires bool(S::parameter_sums & SUM_ROW) == requires { S::add_row(p, s, head, q, x, acc); };
  requires bool(S::parameter_sums & SUM_COL) == requires { S::add_col(p, s, head, kv, x, acc); };
  requires bool(S::parameter_sums & SUM_ELEMENT) == requires { S::add_per_element(p, s, head, q_at, kv_at, x, acc); };
  requires bool(S::parameter_sums & SUM_LINEAR) == requires { S::add_linear(p, s, head, q, kv, x, x, acc); };
  requires S::may_be_same_bucket == requires { bool(S::same_bucket(p, s, q, q, kv, kv)); };
  requires(S::distance_step != 0) == requires { S::distance_grad_row(p, s, head, q, kv).factor; };
  requires S::pair_grads_in_rows == requires { S::pair_grad_row(p, s, head, q, kv).factor; };
  { S::num_bwd_rows + S::prob_rows + S::grad_is_light + S::grad_reads_row + bwd.x[0] + acc.x[0] };
  { S::grad_adds + S::grad_adds_to_memory + S::pair_grads_pitched + S::pair_grads_input };
};

// Whether gradients come with their tangents: contract/tangent.cuh says by which hooks.
template <class S>
concept HasDualGrad = requires { requires S::has_dual_grad; };

template <class S>
concept ValidGrad = requires { requires !S::has_grad || HasDualGrad<S> || ValidGradients<S>; };
