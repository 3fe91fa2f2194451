// score/backward_rows.cuh: the row numbers that backward reads, and P and dS of one element from them.
#pragma once
#include "arch/tensor.cuh"
#include "score/online_rows.cuh"

// A row's numbers in shared memory, aligned so that one load fetches as many as possible.
template <class T>
struct alignas(sizeof(T) % 16 == 0  ? 16
               : sizeof(T) % 8 == 0 ? 8
                                    : alignof(T)) SharedRow {
  T value;
};

// Replaces the dot product and dP of an element by P and dS, or by zeros if the mask drops it. If grad allows
// it, grad is called for all elements: after a branch, each element would wait for the previous one.
template <class Spec, bool WithInputs, bool Masked>
LUATTN_FN void grad_where(bool kept, const LuattnParams &p, const Site &s, const typename Spec::Head &head,
                          const typename Spec::Row &row, const typename Spec::Col &col,
                          const typename Spec::BwdRow &bwd, Position q, Position kv, typename Spec::Real term,
                          typename Spec::Real &x, typename Spec::Real &y, typename Spec::Acc &acc) {
  typename Spec::Real prob = 0, ds = 0;
  if constexpr (WithInputs && HasLaneSums<Spec>) {
    acc.lanes.kept = !Masked || kept;
    Spec::template grad<true>(p, s, head, row, col, bwd, x, y, q, kv, term, prob, ds, acc);
    x = acc.lanes.kept ? prob : 0;
    y = acc.lanes.kept ? ds : 0;
    return;
  }
  typename Spec::Acc sum = acc;
  if (!Masked || !Spec::grad_adds_to_memory || kept)
    Spec::template grad<WithInputs>(p, s, head, row, col, bwd, x, y, q, kv, term, prob, ds, sum);
  x = !Masked || kept ? prob : 0;
  y = !Masked || kept ? ds : 0;
#pragma unroll
  for (int i = 0; i < Spec::num_acc; ++i) acc.x[i] = !Masked || kept ? sum.x[i] : acc.x[i];
}

// Row numbers of one row, as prepare wrote them, in PlainRows.
template <class Spec, class Sequence>
LUATTN_FN typename Spec::BwdRow load_bwd_row(const LuattnParams &p, const Sequence &site, int q) {
  typename Spec::BwdRow row = {};
  i64 plane, at;
  if constexpr (Sequence::is_line)
    plane = site.q_count(p), at = site.q_index(p, q);
  else
    plane = Sequence::template q_acc_rows<PlainRows>(p), at = site.template q_acc_index<PlainRows>(p, q);
#pragma unroll
  for (int i = 0; i < Spec::num_bwd_rows; ++i)
    row.x[i] = static_cast<const typename Spec::Real *>(p.scratch.bwd_rows)[i * plane + at];
  return row;
}
