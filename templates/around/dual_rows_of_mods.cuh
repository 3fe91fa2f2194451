// around/dual_rows_of_mods.cuh: rows of q, k and v with their tangents, as input mods read them, one channel at a time: the
// code of a mod with its tangents is long, and has one copy.
#pragma once
#include "around/row_mods.cuh"
#include "contract/tangent.cuh"

// Whether the caller's q, k or v has a tangent; and whether what the mod makes of it has.
template <class Spec, int Which>
inline constexpr bool has_given_tangent = (Spec::given_tangents >> Which & 1) != 0;
template <class Spec, int Which>
inline constexpr bool has_made_tangent = (tangent_bits<Spec>() >> Which & 1) != 0;

// Elements of a row, and their tangents, 0 where there are none.
template <bool HasTangent, class Rows>
struct DualRow {
  const Rows &of, &tangents;
  int i;
  template <class Real>
  __device__ __forceinline__ Dual<Real> at(int d) const {
    Real tangent = 0;
    if constexpr (HasTangent) tangent = to_real(tangents.row(i)[d]);
    return {to_real(of.row(i)[d]), tangent};
  }
};

// What channel d reads of its row: x(channel), and what comes in there, g(channel).
template <class Spec, int Which, class X, class G>
LUATTN_FN auto dual_row_values(int d, const X &x, const G &g) {
  using Row = RowMapOf<Spec, Which>;
  using Real = typename Spec::Real;
  static_assert(Row::width == 1);
  DualRowValues<Real, Row::count> row;
#pragma unroll
  for (int t = 0; t < Row::count; ++t) {
    const int there = Row::vector(t, d);
    const Dual<Real> element = x(there), gradient = g(there);
    row.d[t] = there;
    row.x[t] = element.x, row.x_tangent[t] = element.d;
    row.g[t] = gradient.x, row.g_tangent[t] = gradient.d;
  }
  return row;
}
