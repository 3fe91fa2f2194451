// sink/row_numbers.cuh: stores what forward keeps of a row besides O: its lse, and saved numbers for
// backward.
#pragma once
#include "contract/contract.cuh"
#include "work/sequence.cuh"

// Stores the numbers of the row at position `at`; called by one thread per row. `kept` says whether the row
// has kept a score.
template <class Spec, class Sequence>
LUATTN_FN void write_row(const LuattnParams &p, const Sequence &site, const typename Spec::Head &head,
                         const typename Spec::Row &row, const typename Spec::State &state, int at, bool kept) {
  using Real = typename Spec::Real;
  if constexpr (Spec::has_lse) {
    if (p.tensors.lse.data != nullptr)
      *site.template q_row<Real>(p, p.tensors.lse, at) =
          kept ? Spec::lse(p, site, head, row, state) : -infinity<Real>();
  }
  if constexpr (Spec::num_saved > 0) {
    if (p.tensors.saved != nullptr) {
      const i64 index = site.q_index(p, at), plane = site.q_count(p);
      Real saved[Spec::num_saved];
      Spec::save(p, site, head, row, state, saved);
#pragma unroll
      for (int i = 0; i < Spec::num_saved; ++i) static_cast<Real *>(p.tensors.saved)[i * plane + index] = saved[i];
    }
  }
}
