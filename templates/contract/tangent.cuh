// contract/tangent.cuh: forward mode: the hooks of a forward kernel together with their tangents, in a Spec of
// an image with tangents (luattn_target.tangents) alone. A hook returns a value and its tangent, along the
// tangents that it is given; what has none is 0, and a constant says so.
#pragma once
#include "contract/contract.cuh"
#include "ops/input.cuh"
#include "ops/tangent_params.cuh"

template <class Real>
struct Dual {
  Real x, d;
};
template <class State>
struct DualState {
  State x, d;
};

// Which of q, k and v have tangents, as LayoutSizes says it.
template <class Spec>
LUATTN_FN constexpr int tangent_bits() {
  return Spec::tangent_of_q * 1 + Spec::tangent_of_k * 2 + Spec::tangent_of_v * 4;
}

LUATTN_FN const LuattnTangents &tangents_of(const LuattnParams &p) {
  return static_cast<const TangentParams &>(p).tangents;
}

// The tangent of input i, which has the sizes of the input.
LUATTN_FN LuattnInput input_tangent(const LuattnParams &p, int i) {
  LuattnInput in = p.inputs.input[i];
  const LuattnInputTangent &from = tangents_of(p).input[i];
  in.data = from.data;
#pragma unroll
  for (int axis = 0; axis < LUATTN_MAX_AXES; ++axis) in.stride[axis] = from.stride[axis];
  return in;
}

// Constants
//   tangent_of_q, tangent_of_k, tangent_of_v
//                        which of these have tangents. What has none is never read
//   has_score_tangent, has_prob_tangent, has_rescale_tangent, has_out_tangent, term_has_tangent(k)
//                        what else may differ from 0
//   score_tangent_as_is  score_dual returns the tangent of the score that it is given
//   centres              along tangents of scores that are all 1, those of prob, terms and states are these
//                        themselves: a kernel may take one number of the row off all of the row's tangents of
//                        scores, and add it times the row's sums and states to their tangents at the end
//   dot_unit             a score is handed on divided by the scale, and so are maxima of scores; its tangent is not
//   lagging_max          a state that is the running maximum, reduction 0, for which any number serves: a kernel may keep
//                        one that scores exceed a little; -1: there is none
//
// Hooks, each as the one of score.cuh or online.cuh without _dual
//   score_dual           score_tangent: scale times the tangent of dot. The score is score_mod's result
//   term_dual<k>, prob_dual, rescale_dual, next_dual, out_dual, lse_dual
//                        a prob that is term<k> has no prob_dual. Without has_rescale there is no rescale_dual
template <class S, class Real = typename S::Real>
concept ValidTangents = requires(const LuattnParams &p, const Site &s, const typename S::Head &head,
                                 const typename S::Row &row, const typename S::Col &col, const typename S::State &x,
                                 const Real *red, Real score, Position q, HookKeyPlace key, int element) {
  { S::tangent_of_q + S::tangent_of_k + S::tangent_of_v + S::centres + S::dot_unit + S::lagging_max };
  { S::score_tangent_as_is + S::has_score_tangent + S::has_prob_tangent + S::has_rescale_tangent + S::has_out_tangent };
  { S::score_dual(p, s, head, row, col, score, score, q, key).d };
  { S::init_dual(p, s, head, row).d };
  { S::next_dual(p, s, head, row, x, x, red, red).d };
  { S::out_dual(p, s, head, row, x, x).d };
  requires(S::num_reductions > 0) ==
              requires { S::template term_dual<0>(p, s, head, row, x, x, red, red, score, score, element).d; };
  requires(S::prob_term < 0) == requires { S::prob_dual(p, s, head, row, x, x, red, red, score, score, element).d; };
  requires S::has_rescale == requires { S::rescale_dual(p, s, head, row, x, x, red, red).d; };
  requires S::has_lse == requires { S::lse_dual(p, s, head, row, x, x).d; };
  { S::term_has_tangent(0) };
};

// What an input mod reads of its row: RowValues, and the tangents of both.
template <class Real, int Count>
struct DualRowValues : RowValues<Real, Count> {
  Real x_tangent[Count], g_tangent[Count];
};

// Input mods beside tangents. Tables of channels that a mod reads have vectors of one channel.
//   given_tangents       bits 0, 1 and 2: q, k and v have tangents before their mods; tangent_of_q, .. : behind them
//   query_grad_values, key_grad_values, value_grad_values
//                        backward: query_mod_grad_dual, .. read g, not only its tangent
//   query_mod_dual, ..   as query_mod
//   query_mod_grad_dual, ..
//                        the tangent of what query_mod_grad returns; adds tangents of parameter gradients
template <class S, class Real = typename S::Real>
concept ValidDualMods = requires(const LuattnParams &p, const Site &s, Real x, int i, int d) {
  { S::given_tangents + S::query_grad_values + S::key_grad_values + S::value_grad_values };
  requires S::has_query_mod == (QueryReadsRow<S> || requires { S::query_mod_dual(p, s, x, x, i, d).d; });
  requires S::has_key_mod == (KeyReadsRow<S> || requires { S::key_mod_dual(p, s, x, x, i, d).d; });
  requires S::has_value_mod == (ValueReadsRow<S> || requires { S::value_mod_dual(p, s, x, x, i, d).d; });
};
template <class S>
concept TangentSpec = ForwardSpec<S> && ValidTangents<S> && (!HasDualMods<S> || ValidDualMods<S>);

// Backward with tangents computes tangents of gradients, and no gradients: those of dq, dk, dv, inputs and scalars go
// where backward's own would.
//   tangent_of_dout, tangent_of_dlse
//                        which of these have tangents, in LuattnTangents.o and lse
//   BwdRow               numbers of a row and their tangents
//   prepare_dual         as prepare of grad.cuh: once a row that keeps something
//   save_dual            what prepare_dual reads of a row besides lse. Only with num_saved
//   grad_dual            as grad: one kept element. score_tangent is that of scale * dot. What it and prepare_dual add up
//                        is tangents
template <class S, class Real = typename S::Real>
concept ValidDualGrad = requires(const LuattnParams &p, const Site &s, const typename S::Head &head,
                                 const typename S::Row &row, const typename S::Col &col, const typename S::BwdRow &bwd,
                                 const typename S::State &state, const Real *saved, Real *to, Real x,
                                 Dual<Real> &result, int q, Position q_at, Position kv_at, typename S::Acc &acc) {
  { S::tangent_of_dout + S::tangent_of_dlse + S::num_bwd_rows + bwd.x[0] + acc.x[0] };
  { S::prepare_dual(p, s, head, row, q, x, x, saved, saved, x, x, x, x, acc) };
  { S::template grad_dual<true>(p, s, head, row, col, bwd, x, x, x, x, q_at, kv_at, result, result, acc) };
  requires(S::num_saved > 0) == requires { S::save_dual(p, s, head, row, state, state, to, to); };
  requires(S::num_acc > 0) == requires { S::flush(p, s, head, acc); };
  requires S::parameter_sums == 0;
};
// Row passes beside tangents of gradients, where HasRowPasses: numbers that prepare_dual finds in `saved` and saved_tangent,
// behind those that save_dual writes.
//   pass_kind(k)         how a row's elements make number k: the sum of x dP, or of x, each with its tangent; or a maximum
//                        of x, whose tangent is the key's position, and right after it the number that it starts at,
//                        which make PASS_PLACE and PASS_LEAST of derived_sum
//   passes_dual          what an element that is kept has for each. saved: as save_dual writes it; lse: +inf in a row
//                        without weight
//   gap_parts            one over the gap of derived_sum
enum PassKind { PASS_PRODUCT, PASS_SUM, PASS_PLACE, PASS_LEAST };
template <class S, class Real = typename S::Real>
concept ValidDualPasses =
    requires(const LuattnParams &p, const Site &s, const typename S::Head &head, const typename S::Row &row,
             const typename S::Col &col, const Real *saved, Real x, Position at, Dual<Real> *pass) {
      { S::passes_dual(p, s, head, row, col, x, x, saved, saved, x, x, at, at, pass) };
      { S::pass_kind(0) };
      { S::gap_parts + 1 };
    };

template <class S>
concept DualGradSpec = TangentSpec<S> && HasDualGrad<S> && ValidDualGrad<S> &&
                       requires { requires !HasRowPasses<S> || ValidDualPasses<S>; };

// What the numbers of a row are made of: lse, what forward saves, and what row passes add up, each with its tangent.
template <class Spec>
struct DualFinals {
  using Real = typename Spec::Real;
  static constexpr int count = Spec::num_saved + row_pass_numbers<Spec>;
  Dual<Real> lse;
  Real saved[count > 0 ? count : 1], saved_tangent[count > 0 ? count : 1];
  bool any;

  __device__ __forceinline__ void take(const LuattnParams &p, const Site &site, const typename Spec::Head &head,
                                       const typename Spec::Row &row, const typename Spec::State &state,
                                       const typename Spec::State &tangent, bool kept) {
    lse = {}, any = kept;
    if constexpr (Spec::has_lse) {
      lse = Spec::lse_dual(p, site, head, row, state, tangent);
      any = any && lse.x != -infinity<Real>();
      if (!any) lse = {infinity<Real>(), Real(0)};
    }
    if constexpr (Spec::num_saved > 0) Spec::save_dual(p, site, head, row, state, tangent, saved, saved_tangent);
  }
};
