// sink/dual_out.cuh: what forward with tangents stores of a row once all keys have been seen: the factors of both
// accumulators, and the row's numbers with their tangents.
#pragma once
#include "contract/tangent.cuh"
#include "sink/row_numbers.cuh"

// Of rows whose accumulators are A, of P V, and B: O = of_o A, and its tangent = of_kept (of_b B + of_a A). A row that keeps
// nothing has zeros, and dropout's factor is in of_o and of_kept.
template <int Rows>
struct DualOut {
  float of_o[Rows], of_kept[Rows], of_b[Rows], of_a[Rows];

  // Gives rows of `online` their centres back, too.
  template <class Spec, class Drops, class Sequence, class Online, class Centres>
  __device__ __forceinline__ void find(const LuattnParams &p, const Sequence &site, const typename Spec::Head &head,
                                       const typename Spec::Row (&row)[Rows], Online &online, const Centres &centres) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      const bool kept = online.kept[r];
      const float drops = Drops::any ? float(Drops::factor) : 1.f;
      centres.give_back(r, online.state[r], online.tangent[r]);
      const Dual<float> out = Spec::out_dual(p, site, head, row[r], online.state[r], online.tangent[r]);
      const float more = Centres::any ? out.d + centres.centre[r] * out.x : out.d;
      of_o[r] = kept ? out.x * drops : 0.f, of_kept[r] = kept ? drops : 0.f;
      of_b[r] = kept ? out.x : 0.f, of_a[r] = kept ? more : 0.f;
    }
  }
};

// Stores the row's numbers, as write_row, and lse's tangent.
template <class Spec, class Sequence, class State>
LUATTN_FN void write_dual_numbers(const LuattnParams &p, const Sequence &site, const typename Spec::Head &head,
                                  const typename Spec::Row &row, const State &state, const State &tangent, int at,
                                  bool kept) {
  using Real = typename Spec::Real;
  write_row<Spec>(p, site, head, row, state, at, kept);
  if constexpr (Spec::has_lse) {
    const LuattnTensor &to = tangents_of(p).lse;
    if (to.data == nullptr) return;
    const Dual<Real> lse = Spec::lse_dual(p, site, head, row, state, tangent);
    *site.template q_row<Real>(p, to, at) = kept && lse.x != -infinity<Real>() ? lse.d : Real(0);
  }
}
