// sink/dual_row_numbers.cuh: the numbers of a row that backward with tangents reads, once all keys have been seen.
//
// delta = sum over d of dO O is also the sum over keys of P dP, scaled as O is, so that neither O nor its tangent is needed.
#pragma once
#include "contract/tangent.cuh"
#include "work/sequence.cuh"

// Writes the numbers of the row at query q, and adds to acc. Called by one thread a row. A row that keeps nothing has the
// numbers of an lse of +inf, as in around/before/prepare.cuh.
template <class Spec, class Sequence, class Real = typename Spec::Real>
LUATTN_FN void put_dual_row(const TangentParams &p, const Sequence &site, const typename Spec::Head &head,
                            const typename Spec::Row &row, int q, bool any, Dual<Real> lse, Dual<Real> delta,
                            const Real *saved, const Real *saved_tangent, typename Spec::Acc &acc) {
  Dual<Real> dlse = {};
  if constexpr (Spec::has_lse) {
    if (p.tensors.dlse.data != nullptr) dlse.x = *site.template q_row<const Real>(p, p.tensors.dlse, q);
    if constexpr (Spec::tangent_of_dlse) dlse.d = *site.template q_row<const Real>(p, p.tangents.lse, q);
    any = any && lse.x != -infinity<Real>();
    if (!any) lse = {infinity<Real>(), Real(0)}, dlse = {};
  }
  typename Spec::Acc sums = acc;
  typename Spec::BwdRow made = Spec::prepare_dual(p, site, head, row, q, lse.x, lse.d, saved, saved_tangent, delta.x,
                                                  delta.d, dlse.x, dlse.d, sums);
  i64 plane, at;  // as load_bwd_row of score/backward_rows.cuh reads them
  if constexpr (Sequence::is_line)
    plane = site.q_count(p), at = site.q_index(p, q);
  else
    plane = Sequence::template q_acc_rows<PlainRows>(p), at = site.template q_acc_index<PlainRows>(p, q);
#pragma unroll
  for (int i = 0; i < Spec::num_bwd_rows; ++i) {
    if (!any && made.x[i] != made.x[i]) made.x[i] = 0;
    static_cast<Real *>(p.scratch.bwd_rows)[i * plane + at] = made.x[i];
  }
  if (any) acc = sums;
}

// Writes the numbers of row r of `online`. sum: of P dP, with its tangent.
template <class Spec, class Sequence, class Online>
LUATTN_FN void write_dual_row(const TangentParams &p, const Sequence &site, const typename Spec::Head &head,
                              const typename Spec::Row &row, const Online &online, int r, int q,
                              const DualFinals<Spec> &finals, const Dual<typename Spec::Real> &sum,
                              typename Spec::Acc &acc) {
  Dual<typename Spec::Real> delta = {};
  if (online.kept[r]) {
    const auto out = Spec::out_dual(p, site, head, row, online.state[r], online.tangent[r]);
    delta = {out.x * sum.x, out.x * sum.d + out.d * sum.x};
  }
  put_dual_row<Spec>(p, site, head, row, q, finals.any, finals.lse, delta, finals.saved, finals.saved_tangent, acc);
}
