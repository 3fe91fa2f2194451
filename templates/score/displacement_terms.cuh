// score/displacement_terms.cuh: the table of score terms that depend only on the displacement kv - q along each axis of a grid,
// and a thread's terms of it.
//
// The displacements of a pair of boxes form a box themselves, of extent q + kv - 1 along each axis. They are numbered with the
// innermost axis fastest, so that the number of a key's displacement from a query is the sum of a part of each. Boxes are wide
// in powers of two, and along the innermost axis in multiples of 4: the parts of a thread's rows and columns then are one
// number of the thread plus constants, and each term costs one load with a constant offset. Lanes of a warp read adjacent
// words, or the same ones.
#pragma once
#include "arch/mma.cuh"
#include "ops/grid_places.cuh"
#include "score/fragment.cuh"

struct BoxPair {
  using Queries = GridSideOf<false>;
  using Keys = GridSideOf<true>;
  static constexpr int first_axis = Keys::first_axis, last_axis = LUATTN_GRID_AXES - 1;

  static constexpr __device__ int width(int axis) { return Queries::box(axis) + Keys::box(axis) - 1; }
  // From a number to that of the next displacement along the axis.
  static constexpr __device__ int pitch(int axis) {
    int numbers = 1;
    for (int a = last_axis; a > axis; --a) numbers *= width(a);
    return numbers;
  }
  static constexpr __device__ int count() { return pitch(first_axis) * width(first_axis); }
  // The parts of a number: of the key at a row of its box, and of the query.
  static constexpr __device__ int of_key(int row) {
    int number = 0;
    for (int a = first_axis; a <= last_axis; ++a) number += pitch(a) * (row / Keys::step(a) % Keys::box(a));
    return number;
  }
  static constexpr __device__ int of_query(int row) {
    int number = 0;
    for (int a = first_axis; a <= last_axis; ++a)
      number += pitch(a) * (Queries::box(a) - 1 - row / Queries::step(a) % Queries::box(a));
    return number;
  }
  // The displacement of a number; `from`: between the boxes' first places.
  LUATTN_FN Displacement displacement(int number, const Displacement &from) {
    Displacement x;
#pragma unroll
    for (int a = 0; a < Config::axes; ++a)
      x.at[a] = from.at[a] - (Queries::box(first_axis + a) - 1) +
                int(u32(number) / u32(pitch(first_axis + a)) % u32(width(first_axis + a)));
    return x;
  }
};

// Computes terms number `first`, first + `Step`, .. of a table, a lane each.
template <class Spec, int Step>
struct DisplacementTable {
  static constexpr int each = ceil_div(BoxPair::count(), Step);
  float term[each];

  __device__ __forceinline__ DisplacementTable(const LuattnParams &p, const Site &site, const typename Spec::Head &head,
                                               const Displacement &from, int first) {
#pragma unroll
    for (int i = 0; i < each; ++i)
      term[i] = Spec::displacement_term(p, site, head, Origin{},
                                        BoxPair::displacement(min_of(first + i * Step, BoxPair::count() - 1), from));
  }
  __device__ __forceinline__ void store(u32 table, int first) const {
#pragma unroll
    for (int i = 0; i < each; ++i)
      if (first + i * Step < BoxPair::count()) store_shared(table + (first + i * Step) * 4, __float_as_uint(term[i]));
  }
};

// A thread's terms of a tile: of its two rows, 8 apart, and two of every eight columns. Rows are queries, or with Turned keys.
template <class Fragment, int Octets, bool Turned>
struct DisplacementTerms {
  static_assert(same_type<Fragment, MmaFragment>::value, "lanes have two of eight columns");
  static_assert(GridSideOf<Turned>::rows % 16 == 0 && GridSideOf<!Turned>::box(BoxPair::last_axis) % 4 == 0);
  float term[2][2 * Octets];
  u32 from;    // where the table has the thread's first row and column
  bool upper;  // the thread's columns lie in the upper half of each eight

  static constexpr __device__ int of_column(int c) { return Turned ? BoxPair::of_query(c) : BoxPair::of_key(c); }
  static constexpr __device__ int of_row(int r) { return Turned ? BoxPair::of_key(r) : BoxPair::of_query(r); }
  // From a column to its fourth next one, in an octet that lies in one row of the box, and to the next one; from a row to
  // the eighth next one.
  static constexpr int half = of_column(4) - of_column(0), next = of_column(1) - of_column(0),
                       next_row = of_row(8) - of_row(0);

  struct Octet {
    int column, upper;  // the part of its first column; what its upper half has beyond that of the first octet
    int same;           // the octet whose first row has what this one's second row has; -1: none before
  };
  static constexpr __device__ Octet octet(int o) {
    const int first = of_column(8 * o), upper = of_column(8 * o + 4) - first - half;
    Octet found{first, upper, -1};
    for (int b = 0; b < o; ++b)
      if (of_column(8 * b) == first + next_row && of_column(8 * b + 4) - first - next_row - half == upper)
        found.same = b;
    return found;
  }

  // `row`: that of the box where the warp's rows begin.
  __device__ __forceinline__ DisplacementTerms(u32 table, int row, int lane) : upper(lane % 4 >= 2) {
    const int of_lane = of_row(row + Fragment::row(lane)) + of_column(0) + lane % 2 * 2 * next + (upper ? half : 0);
    from = table + of_lane * 4;
  }
  // Reads those of octet O, after those before it. With an argument of the template the compiler sees at once which ones
  // registers have.
  template <int O>
  __device__ __forceinline__ void load() {
    constexpr Octet at = octet(O);
    const u32 first = from + (at.upper != 0 && upper ? at.upper * 4 : 0);
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int offset = at.column - of_column(0) + odd * next;
      term[0][2 * O + odd] = __uint_as_float(load_shared(first + offset * 4));
      if constexpr (at.same >= 0)
        term[1][2 * O + odd] = term[0][2 * at.same + odd];
      else
        term[1][2 * O + odd] = __uint_as_float(load_shared(first + (offset + next_row) * 4));
    }
  }
  __device__ __forceinline__ float get(int r, int o, int odd) const { return term[r][2 * o + odd]; }
};
