// contract/contract.cuh: what a generated Spec and Config give, and all that a kernel may use of them.
//
// A kernel is a template over <class Spec, class Config>. gen/emit writes one Spec (spec.cuh) and one Config (config.cuh)
// for each compilation; example/spec.cuh is one written by hand. There are no default hooks: a hook that is missing is an
// error on the first line of every kernel (`static_assert(ValidSpec<Spec>)`), never an identity.
// The same contract serves every kernel family, forward and backward.
//
// Words: dot   = sum over d of q'[d] * k'[d], unscaled, where q' and k' are q and k after query_mod and key_mod
//        score = score_mod(scale * dot), in whatever unit the generator chose (a plain softmax keeps dot itself and folds
//                its scale into the exponent); a kernel hands it on and never looks at its value
//        kept  = the mask keeps the element; what is not kept has no influence on anything
//                (v must be finite, in backward also q, k and dO: in a tile that is partly kept, a weight of 0 times infinity
//                is NaN)
#pragma once
#include "ops/hook_types.cuh"

// What is the same for all elements of dS that add up to a gradient of a parameter: q - kv; q; kv; or nothing: each adds for
// itself, to one place with a factor of a few instructions, or to a place of its own; or to one place with a factor that is
// linear in q and kv.
enum SumKind { SUM_DISTANCE = 1, SUM_ROW = 2, SUM_COL = 4, SUM_HERE = 8, SUM_LINEAR = 16 };
enum ReduceKind { REDUCE_MAX = 0, REDUCE_SUM = 1, REDUCE_SUM_DEFERRED = 2 };

// A hook is inlined, or, where it is large, hands values (never references, which would force a kernel's registers to
// memory) to a function of the same Spec, `<hook>_outlined`, and is inlined itself. A kernel need not know.
//
// Contract, in the order in which a forward kernel uses it. `p` is the kernel's parameter block, `s` a Site.
//
//   Types      Real, Head, Row, Col; State { Real x[]; }, BwdRow { Real x[]; }, Acc { Real x[]; } (at least one element); LineElem,
//              what the input of score_line holds
//   Constants  has_mask, keep_is_cheap (a few instructions without memory: worth unrolling), has_lse, num_saved, num_stats,
//              row_ranges (which kv of a row q are kept: 0, those that keep says; 1, all of row_range(p, s, q); 2, also all of
//              row_second(p, s, q)), row_from_start (row_range begins at 0),
//              row_period (0, or: of these only those whose kv mod row_period lies in row_rest(p, s, q)),
//              keep_apart (all that only in tiles whose rest_class is FULL),
//              row_for_keep (in forward, keep alone reads Row, and a few instructions fill it), score_reads_col (score reads Col),
//              column_ranges, column_period (which q of a column kv are kept, likewise), columns_apart (all that only in tiles
//              whose rest_class is FULL), grad_reads_row (what backward's main kernel calls besides keep reads Row),
//              grad_is_light (it reads no memory for an element, and is inlined),
//              score_reads (beyond the rows: 0, nothing; 1, memory for each column; 2, memory for each element, or it is called),
//              num_reductions, reduction(k), prob_term, has_rescale, mask_by_inf, mask_by_zero, has_distance_term, has_line, reads_columns, lines_shared, has_shift, has_small, prob_is_sigmoid, lags, red_shifted(k), num_state, state_deferred(i), num_bwd_rows, prob_rows, num_acc, grad_adds, grad_adds_to_memory, sums, may_be_alike, has_score_bounds, distance_step, pairs_in_line, pairs_pitched, pairs_input, has_query_mod, has_key_mod, has_value_mod
//
//   Hoisting
//     Head head(p, s)                         once per (b, h)
//     Row  row(p, s, head, q)                 once per row    (q < q_len)
//     Col  col(p, s, head, kv)                once per column; like score, it may be called for kv past the end, and what it gives
//                                             is then dropped: loads clamp their indices
//   Elements
//     Real score(p, s, head, row, col, dot, Position q, Position kv)
//                            where either lies outside the lengths, the result is dropped
//     Real distance_term(p, s, head, Position q, Position kv), score_with(p, s, head, row, col, dot, q, kv, Real term)
//                            has_distance_term: the same score in two steps, of which the first gives one number to all elements
//                            of one head that have the same kv - q, whatever q and kv are, also beyond the lengths. In a
//                            backward image distance_term is what `grad` is given, and score_with is as score
//     InputLine<LineElem> score_line(p, s, head, int q, int kv)
//                            has_line, never beside has_distance_term: `term` of score_with is then what the line holds at its
//                            index, as Real; the index moves by one as kv does. lines_shared: it is the same for all batches. In a
//                            backward image it is what `grad` is given, and lines have a pitch. In the sm90 family alone
//                            reads_columns: score, or beside has_line score_with, reads memory for each column, and none for each
//                            element
//     Real shift(p, s, head, row, Position q, Position kv)
//                            has_shift: scores lack this, which all of row q have in common that share kv.base; kv.offset is 0.
//                            Before a step the kernel puts it into Row's member `shift`, where term, prob and the rest read it,
//                            and it adds it to reductions with red_shifted(k), maxima of scores. Only the sm90 forward's has one.
//     Real small_limit(p, s, head)            has_small: where the squares of all dots of a tile without a mask are below, a kernel
//     Real small_weight(p, s, head, dot, Real term)     may take these weights, which cost less. The only reduction, if there is
//                            one, is then their sum; there is no rescale. term is 0, and of a kernel's making: what it comes
//                            from comes before the weight.
//     bool keep(p, s, head, row, col, q, kv)  only called where has_mask; for positions past the ends the result is dropped
//   Online function: one step over the kept scores of a row in one tile. State old -> next. red[k] is reduction k of
//   term<k> over the kept columns; a term may use red[0 .. k-1].
//     State init(p, s, head, row)
//     Real  term<k>(p, s, head, row, old, red, score, turn)
//     Real  prob(p, s, head, row, old, red, score, turn)      prob_term = k says that prob is term<k> (-1: none of them)
//                            turn: which of its scores of a row a thread is at, a constant once loops are unrolled; approximations
//                            may alternate by it between units of the device
//                            prob_is_sigmoid: it is 1 / (1 + 2^-score), there are no reductions and no rescale, and a kernel may
//                            compute it from 2^score, rounded to Elem
//     Real  rescale(p, s, head, row, old, red)          factor for the O accumulated so far; 1 unless has_rescale
//     State next(p, s, head, row, old, red)
//   lags: reduction 0 is the running maximum of a softmax, which only keeps weights in range, and may lag behind. A step is
//   raise, which takes red[0] in and goes with rescale, and then the rest, which does not read it; or, while weights stay in
//   range, the rest alone. Only the sm90 forward's does; elsewhere the hook is never called.
//     State raise(p, s, head, row, old, red)
//   A REDUCE_SUM_DEFERRED reduction is needed by `next` alone, and linearly: the thread passes its own partial sum, and the
//   state components with state_deferred(i) are summed over the row's threads at the end (their initial value is 0).
//   mask_by_inf: a score of -inf makes every sum term and prob 0 and every max term -inf, and a step over such scores
//   alone (red: -inf for a max, 0 for a sum) leaves the state, also the initial one, as it is, with a rescale of 1.
//   mask_by_zero, where mask_by_inf does not hold: a score of 0 makes every sum term and prob 0, and a step over such scores
//   alone leaves the states that init and next give as they are, with a rescale of 1. There is no max then.
//   A row that keeps nothing in a tile is not stepped, or by such a step; a row that keeps nothing at all has O = 0, lse = -inf.
//     Real  out_scale(p, s, head, row, state)           O = out_scale * sum of prob * v'
//     Real  lse(p, s, head, row, state)                 only where has_lse
//     void  save(p, s, head, row, state, Real out[num_saved])
//   Backward
//     BwdRow prepare(p, s, head, row, q, lse, saved[], delta, dlse, acc)
//                            row numbers for the main kernel; delta = sum over d of dO * O; acc collects parameter gradients
//                            that arise per row. Not called for a row whose lse is -inf (its numbers are 0). Without has_lse it
//                            is called for a row that keeps nothing too: delta is 0, and acc is then left as it was.
//     void grad<with_inputs>(p, s, head, row, col, bwd_row, dot, dp, Position q, Position kv, Real term,
//                            Real &prob, Real &ds, acc)
//                            one kept element: dp = sum over d of dO * v'; ds = d loss / d (scale * dot). Adds gradients of
//                            inputs and scalars to acc, or to memory by atomics, only if with_inputs.
//                            Without grad_adds it never does, and without grad_adds_to_memory to acc alone; it may then be called
//                            for an element that is not kept, if what comes of it is dropped.
//                            prob depends on numbers i of bwd_row for which prob_rows has bit i, and not on dp; prob_rows = -1
//                            where the hook gives both or none.
//     void add_distance(p, s, head, q, kv, Real g, acc)     sums: bits of SumKind, 0 but in images of a family that knows them.
//     void add_row(p, s, head, q, Real g, acc)              g is the sum of ds over elements that are kept and at the same
//     void add_col(p, s, head, kv, Real g, acc)             q - kv (any q and kv that far apart stand for them, also outside the
//     void add_here(p, s, head, Position q, Position kv, Real g, acc)     lengths), or row, or column; or ds of one element, 0 if it
//                            is not kept. Like grad, they add to acc or to memory, and grad has left these parameters out; add_row
//                            adds to memory alone. All lanes of a warp call add_distance.
//     void add_linear(p, s, head, q, kv, Real g, Real g_by_q, acc)   of elements of one key: g the sum of ds, g_by_q of
//                            (their query - q) * ds
//     bool alike(p, s, q0, q1, kv0, kv1)      add_distance adds all elements of the tile, as for tile_class, to the same places;
//                            never true unless may_be_alike
//     GradLine<Real> distance_line(p, s, head, q, kv)   where distance_step is not 0: add_distance adds factor * g to one place,
//                            which moves by distance_step elements of the line as q moves by one
//     GradLine<Real> pair_line(p, s, head, q, kv)       where pairs_in_line: likewise add_here, which moves by one as kv does; where
//                            pairs_pitched, by its pitch as q does, below q_len. Of input pairs_input; else that is -1
//     void flush(p, s, head, acc)             adds to memory what acc (summed over a block, or a warp, by the kernel) amounts to, one
//                            thread of it. Linear in acc, so that parts of a sum may be flushed; s and head are those of its elements
//   Input mods: one element of q, k or v at position i, channel d; *_grad returns d loss / d x and adds parameter gradients.
//     Real query_mod(p, s, x, i, d)      Real query_mod_grad(p, s, x, g, i, d, acc)      likewise key_, value_
//     g = d loss / d x'. In params, dq_acc and dk_acc hold it without the factor scale, dv_acc as it is; luattn_finish multiplies.
//   Tiles: inclusive bounds, inside the lengths. Sound: an EMPTY tile keeps nothing, a FULL one drops nothing.
//     TileClass tile_class(p, s, q0, q1, kv0, kv1)
//     Range kv_range(p, s, q0, q1)            every kept kv of these rows lies inside, and inside [0, kv_len)
//     Range q_range(p, s, kv0, kv1)
//     Range row_range(p, s, q), row_second(p, s, q)      only as row_ranges says; inside [0, kv_len)
//     Range row_rest(p, s, q)                 only where row_period > 0; may reach outside [0, row_period)
//     TileClass rest_class(p, s, q0, q1, kv0, kv1), bounds_class(..)     of two parts of the mask that together make it: what
//                            keep_apart and columns_apart speak of, and what the ranges say, which reads no memory along positions
//                            then. Where neither is set, FULL and tile_class.
//     Range column_range(p, s, kv), column_second(p, s, kv), column_rest(p, s, kv)      likewise, inside [0, q_len)
//     iv   score_bounds(p, s, q0, q1, kv0, kv1, double least, double most)     only where has_score_bounds: of what score_mod
//                            gives (natural exponents), for dots times the scale from least to most. The online function is then
//                            a softmax: weights are exp(score - lse), and what backward gives an element has that factor
//   Block minima and maxima of integer inputs read by the mask: stat i covers input stat_input(i) along axis stat_axis(i)
//   (the input's last axis; the ones before it, flattened, are the rows of params.stats[i]), in blocks of stat_block(i).
//     constexpr int stat_input(i), stat_axis(i), stat_block(i)
//     walk_rows, walk_columns: with stats, tile functions are asked about one tile of this size or a part of it, in a grid that
//     begins at position 0
//     row = row-major index over the sizes of the earlier axes; an axis of size 1 has index 0 there, whatever b or h is. {min, max}
//     of block j of row r is at stats[i][(r * blocks + j) * 2], blocks = ceil(size of stat_axis / stat_block(i)).
//
// Config: named constants. elem is the storage type (float, double, half_t, bf16_t).
//   Elem, head_dim, head_dim_v, tile_m, tile_n, threads, stages          and what one family alone needs, named for it
//   fast_math (bool: approximate functions are allowed), and in backward wants_dq, wants_dk, wants_dv, wants_inputs, wants_scalars
//   (bools), accumulates_dq (luattn_dkdv adds into dq_acc, there is no luattn_dq) and
//   deterministic (the same bits in every run: work/dq_order.cuh, ops/reproducible_sum.cuh) and claims (nobody zeroes dq_acc: sm90/bwd/dq_first_store.cuh)
//   LUATTN_WGMMA_WIDTHS, a macro: which widths of arch/wgmma.cuh a kernel uses, where the generator knows them

template <class S, class R = typename S::Real>
concept ValidSpec = requires(const LuattnParams &p, const Site &s, const typename S::Head &head, const typename S::Row &row,
                             const typename S::Col &col, const typename S::State &state, const typename S::BwdRow &brow,
                             typename S::Acc &acc, const R *red, R *out, R x, R &y, int i, Position at) {
  { bool(S::has_mask) && bool(S::keep_is_cheap) && bool(S::keep_apart) && bool(S::row_for_keep) && bool(S::score_reads_col) && bool(S::row_from_start) && bool(S::columns_apart) && bool(S::grad_reads_row) && bool(S::grad_is_light) && bool(S::has_lse) && bool(S::has_rescale) && bool(S::mask_by_inf) && bool(S::mask_by_zero) && bool(S::has_distance_term) && bool(S::has_line) && bool(S::reads_columns) && bool(S::lines_shared) && bool(S::has_shift) && bool(S::has_small) && bool(S::prob_is_sigmoid) && bool(S::lags) };
  { bool(S::has_score_bounds) && bool(S::has_query_mod) && bool(S::has_key_mod) && bool(S::has_value_mod) && bool(S::grad_adds) && bool(S::grad_adds_to_memory) && bool(S::may_be_alike) && bool(S::pairs_in_line) && bool(S::pairs_pitched) && int(S::pairs_input) >= -1 };
  { S::score_reads + S::row_ranges + S::row_period + S::column_ranges + S::column_period + S::num_saved + S::num_stats + S::num_reductions + S::num_state + S::num_bwd_rows + S::prob_rows + S::num_acc + S::prob_term + S::sums + S::distance_step };
  { S::reduction(i) }; { S::red_shifted(i) }; { S::state_deferred(i) }; { state.x[0] + brow.x[0] + acc.x[0] };
  { S::head(p, s) }; { S::row(p, s, head, i) }; { S::col(p, s, head, i) };
  { S::score(p, s, head, row, col, x, at, at) }; { S::keep(p, s, head, row, col, i, i) }; { S::distance_term(p, s, head, at, at) + S::score_with(p, s, head, row, col, x, at, at, x) }; { S::score_line(p, s, head, i, i).row + sizeof(typename S::LineElem) }; { S::shift(p, s, head, row, at, at) }; { S::small_limit(p, s, head) + S::small_weight(p, s, head, x, x) };
  { S::init(p, s, head, row) }; { S::prob(p, s, head, row, state, red, x, i) };
  { S::rescale(p, s, head, row, state, red) }; { S::next(p, s, head, row, state, red) };
  { S::raise(p, s, head, row, state, red) };
  { S::out_scale(p, s, head, row, state) }; { S::lse(p, s, head, row, state) }; { S::save(p, s, head, row, state, out) };
  { S::prepare(p, s, head, row, i, x, red, x, x, acc) };
  { S::template grad<true>(p, s, head, row, col, brow, x, x, at, at, x, y, y, acc) };
  { S::add_distance(p, s, head, i, i, x, acc) }; { S::add_row(p, s, head, i, x, acc) };
  { S::add_col(p, s, head, i, x, acc) };
  { S::add_here(p, s, head, at, at, x, acc) };
  { S::add_linear(p, s, head, i, i, x, x, acc) };
  { S::distance_line(p, s, head, i, i).factor + S::pair_line(p, s, head, i, i).factor };
  { bool(S::alike(p, s, i, i, i, i)) };
  { S::flush(p, s, head, acc) };
  { S::query_mod(p, s, x, i, i) }; { S::query_mod_grad(p, s, x, x, i, i, acc) };
  { S::key_mod(p, s, x, i, i) }; { S::key_mod_grad(p, s, x, x, i, i, acc) };
  { S::value_mod(p, s, x, i, i) }; { S::value_mod_grad(p, s, x, x, i, i, acc) };
  { S::tile_class(p, s, i, i, i, i) }; { S::kv_range(p, s, i, i) }; { S::q_range(p, s, i, i) }; { S::row_range(p, s, i) }; { S::row_second(p, s, i) }; { S::row_rest(p, s, i) }; { S::column_range(p, s, i) }; { S::column_second(p, s, i) }; { S::column_rest(p, s, i) }; { S::rest_class(p, s, i, i, i, i) }; { S::bounds_class(p, s, i, i, i, i) };
  { S::stat_input(i) + S::stat_axis(i) + S::stat_block(i) + S::walk_rows + S::walk_columns };
};

// Col for scores: empty where they do not read it. To find out by itself that nobody does takes a compiler time.
template <class Spec>
LUATTN_FN typename Spec::Col score_col(const LuattnParams &p, const Site &s, const typename Spec::Head &head, int kv) {
  if constexpr (Spec::score_reads_col) return Spec::col(p, s, head, kv);
  else return {};
}
