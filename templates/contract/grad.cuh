// contract/grad.cuh: backward: P and dS of an element, and the gradients of parameters (inputs and scalars).
#pragma once
#include "contract/absent.cuh"
#include "ops/hook_types.cuh"

// What is the same for all elements of dS that add up to a gradient of a parameter: q - kv; q; kv; or
// nothing: each adds for itself, to one place with a factor of a few instructions, or to a place of its own;
// or to one place with a factor that is linear in q and kv.
enum ParameterSum { SUM_DISTANCE = 1, SUM_ROW = 2, SUM_COL = 4, SUM_ELEMENT = 8, SUM_LINEAR = 16 };

// Constants
//   has_grad             false: NoGrad
//   BwdRow, Acc          { Real x[num_bwd_rows]; }, { Real x[num_acc]; }, one element at least: the numbers
//                        of a row that `grad` reads; sums of gradients of parameters, which a kernel adds up
//                        over a block or a warp
//   prob_rows            prob depends on numbers i of BwdRow for which this has bit i, and not on dp; -1:
//                        `grad` gives both or none
//   grad_is_light        grad reads no memory for an element, and is inlined
//   grad_reads_row       what the main kernel calls besides keep reads Row
//   grad_adds, grad_adds_to_memory
//                        whether grad adds to gradients of parameters at all; by atomics. It may be called
//                        for elements that are not kept, if what comes of it is dropped, unless it adds to
//                        memory
//   parameter_sums       bits of ParameterSum: gradients that are sums of dS, which grad leaves out
//   may_be_same_bucket   some tile's distances all add to one place: `same_bucket` says so
//   distance_step        not 0: add_distance adds factor * g to one place of a row, which moves by so many
//                        elements as q moves by one
//   pair_grads_in_rows, pair_grads_pitched
//                        likewise add_per_element, which moves by one as kv does; and by the row's pitch as
//                        q does, below q_len. Of input pair_grads_input
//
// Hooks
//   prepare              once a row: delta = sum over d of dO * O; acc collects gradients that arise per row.
//                        Not called for a row whose lse is -inf, whose numbers are 0. Without has_lse it is
//                        called for a row that keeps nothing too: delta is 0, and acc is then left as it was
//   grad                 one kept element: dp = sum over d of dO * v'; ds = d loss / d (scale * dot). It adds
//                        gradients only if with_inputs
//   add_distance         g is the sum of ds over elements that are kept and at the same q - kv. (Any q and kv
//                        that far apart stand for them, also outside the lengths.) All lanes of a warp call
//                        it
//   add_row, add_col     likewise at the same q, to memory alone; at the same kv
//   add_per_element      ds of one element, 0 if it is not kept
//   add_linear           of elements of one key: g the sum of ds, g_by_q of (their query - q) * ds
//   same_bucket          add_distance adds all elements of the tile, as for tile_class, to the same places
//   distance_grad_row, pair_grad_row
//                        where the places lie
//   flush                adds to memory what acc amounts to; one thread. Linear in acc, so that parts of a
//                        sum may be flushed; s and head are those of its elements
template <class S, class Real = typename S::Real>
concept ValidGradients =
    requires(const LuattnParams &p, const Site &s, const typename S::Head &head, const typename S::Row &row,
             const typename S::Col &col, const typename S::BwdRow &bwd, const Real *saved, Real x,
             Real &result, int q, int kv, Position q_at, Position kv_at, typename S::Acc &acc) {
      { S::prepare(p, s, head, row, q, x, saved, x, x, acc) };
      { S::template grad<true>(p, s, head, row, col, bwd, x, x, q_at, kv_at, x, result, result, acc) };
      requires(S::num_acc > 0) == requires { S::flush(p, s, head, acc); };
      requires bool(S::parameter_sums & SUM_DISTANCE) ==
          requires { S::add_distance(p, s, head, q, kv, x, acc); };
      requires bool(S::parameter_sums & SUM_ROW) == requires { S::add_row(p, s, head, q, x, acc); };
      requires bool(S::parameter_sums & SUM_COL) == requires { S::add_col(p, s, head, kv, x, acc); };
      requires bool(S::parameter_sums & SUM_ELEMENT) ==
          requires { S::add_per_element(p, s, head, q_at, kv_at, x, acc); };
      requires bool(S::parameter_sums & SUM_LINEAR) ==
          requires { S::add_linear(p, s, head, q, kv, x, x, acc); };
      requires S::may_be_same_bucket == requires { bool(S::same_bucket(p, s, q, q, kv, kv)); };
      requires(S::distance_step != 0) == requires { S::distance_grad_row(p, s, head, q, kv).factor; };
      requires S::pair_grads_in_rows == requires { S::pair_grad_row(p, s, head, q, kv).factor; };
      { S::num_bwd_rows + S::prob_rows + S::grad_is_light + S::grad_reads_row + bwd.x[0] + acc.x[0] };
      { S::grad_adds + S::grad_adds_to_memory + S::pair_grads_pitched + S::pair_grads_input };
    };

template <class S>
concept ValidGrad = requires { requires !S::has_grad || ValidGradients<S>; };
