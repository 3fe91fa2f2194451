// score/displacement_terms.cuh: the table of score terms that depend only on the displacement kv - q along each axis of a grid,
// and a thread's terms of it.
//
// The displacements of a pair of boxes form a box themselves, of extent q + kv - 1 along each axis. They are numbered with the
// innermost axis fastest, so that the number of a key's displacement from a query is the sum of a part of each. Extents of
// boxes are powers of two, but that of keys where these lie in columns, and innermost ones are multiples of 4: the parts of a
// thread's rows and columns then are one number of the thread plus constants, and each term costs one load with a constant
// offset. Lanes of a warp read adjacent words, or the same ones.
#pragma once
#include "arch/mma.cuh"
#include "ops/grid_places.cuh"
#include "score/fragment.cuh"

// A box of queries, and the part of one of keys that its first KeyRows rows are. Along the innermost axis `Before` more numbers
// come before the others.
template <int KeyRows, int Before = 0>
struct BoxPair {
  using Queries = GridSideOf<false>;
  using Keys = GridSideOf<true>;
  static constexpr int first_axis = Keys::first_axis, last_axis = LUATTN_GRID_AXES - 1;

  static constexpr __device__ int keys(int axis) {
    int rows = KeyRows, extent = 1;
    for (int a = last_axis; a >= axis; --a) {
      extent = Keys::box(a) < rows ? Keys::box(a) : rows;
      rows /= extent;
    }
    return extent;
  }
  // How many displacements there are along the axis; the one at 0.
  static constexpr __device__ int width(int axis) {
    return Queries::box(axis) + keys(axis) - 1 + (axis == last_axis ? Before : 0);
  }
  static constexpr __device__ int least(int axis) {
    return -(Queries::box(axis) - 1) - (axis == last_axis ? Before : 0);
  }
  // From a number to that of the next displacement along the axis.
  static constexpr __device__ int pitch(int axis) {
    int numbers = 1;
    for (int a = last_axis; a > axis; --a) numbers *= width(a);
    return numbers;
  }
  static constexpr __device__ int count() { return pitch(first_axis) * width(first_axis); }
  // Of a number, along the axis, from the least one. With arguments of templates the compiler divides by constants.
  template <int Axis>
  LUATTN_FN int within(int number) {
    constexpr int before = pitch(Axis), all = width(Axis);
    const u32 outer = u32(number) / u32(before);
    return int(Axis == first_axis ? outer : outer % u32(all));
  }
  // The parts of a number: of the key at a row of its box, and of the query. Axes are arguments of templates here as well: of three
  // axes the compiler would find pitches anew for each tile, by loops with divisions.
  template <int Axis = first_axis>
  static constexpr __device__ int of_key(int row) {
    constexpr int by = pitch(Axis), step = Keys::step(Axis), box = Keys::box(Axis);
    const int number = by * (row / step % box);
    if constexpr (Axis == last_axis)
      return number;
    else
      return number + of_key<Axis + 1>(row);
  }
  template <int Axis = first_axis>
  static constexpr __device__ int of_query(int row) {
    constexpr int by = pitch(Axis), step = Queries::step(Axis), box = Queries::box(Axis), lowest = least(Axis);
    const int number = -by * (row / step % box + lowest);
    if constexpr (Axis == last_axis)
      return number;
    else
      return number + of_query<Axis + 1>(row);
  }
  // The displacement of the number `first + i * Step`, of whole rows along the innermost axis: `first` alone is divided.
  template <int Step>
  LUATTN_FN Displacement displacement(int first, int i, const Displacement &from) {
    constexpr int along = width(last_axis);
    static_assert(Step % along == 0);
    const u32 row = u32(first) / along + u32(i * (Step / along));
    Displacement x = from;
    each_axis([&](auto axis) {
      constexpr int a = axis.value, before = pitch(a) / along, lowest = least(a), step = Keys::place_step(a);
      u32 at = u32(first) % along;
      if constexpr (a < last_axis) at = row / u32(before), at = a == first_axis ? at : at % u32(width(a));
      x.at[a - first_axis] += (lowest + int(at)) * step;
    });
    return x;
  }
  // The displacement of a number; `from`: between the first places of both.
  LUATTN_FN Displacement displacement(int number, const Displacement &from) {
    Displacement x = from;
    each_axis([&](auto axis) {
      constexpr int a = axis.value, lowest = least(a), step = Keys::place_step(a);
      x.at[a - first_axis] += (lowest + within<a>(number)) * step;
    });
    return x;
  }
};

// Of a backward warp's keys. Where both innermost extents are 8, 16 numbers lie along that axis: lanes divide by shifts, and
// sums by displacement have room for a diagonal that no block has (grads/displacement_sums.cuh).
using WarpBoxPair = BoxPair<16, 1>;

// Of a forward tile. Along the innermost axis there is an even number of numbers, so that only a query's own coordinate there
// decides whether its pairs of adjacent keys begin at an even number.
template <int KeyRows>
using TileBoxPair = BoxPair<KeyRows, (BoxPair<KeyRows>::width(BoxPair<KeyRows>::last_axis)) % 2>;

// A forward tile's table, and behind it the same once more from `second` on, where it begins a word later: pairs that begin at an
// odd number are aligned there. `second` is 16 words more than a multiple of 32: rows beside each other are in different banks.
template <class Pair>
struct TwiceInTable {
  static constexpr int second = (Pair::count() + 15) / 32 * 32 + 16, words = second + 1 + Pair::count();
};

// Computes terms number `first`, first + Step, .. of a pair's table, each lane its own. ByRows: with fewer instructions, but these
// are other ones.
template <class Spec, class Pair, int Step, bool ByRows = false>
struct DisplacementTable {
  static constexpr int each = ceil_div(Pair::count(), Step);
  float term[each];

  DisplacementTable() = default;
  __device__ __forceinline__ DisplacementTable(const LuattnParams &p, const Site &site, const typename Spec::Head &head,
                                               const Displacement &from, int first) {
#pragma unroll
    for (int i = 0; i < each; ++i)
      if constexpr (ByRows && Step % Pair::width(Pair::last_axis) == 0) {
        if (!exceeds(i) || first + i * Step < Pair::count())
          term[i] = Spec::displacement_term(p, site, head, Origin{}, Pair::template displacement<Step>(first, i, from));
      } else {
        term[i] = Spec::displacement_term(p, site, head, Origin{},
                                          Pair::displacement(min_of(first + i * Step, Pair::count() - 1), from));
      }
  }
  // Whether some lanes have no i-th number.
  static constexpr __device__ bool exceeds(int i) { return (i + 1) * Step > Pair::count(); }
  __device__ __forceinline__ void store(u32 table, int first) const {
#pragma unroll
    for (int i = 0; i < each; ++i)
      if ((ByRows && !exceeds(i)) || first + i * Step < Pair::count())
        store_shared(table + (first + i * Step) * 4, __float_as_uint(term[i]));
  }
};

// A thread's terms of a tile: of its two rows, 8 apart, and two of every eight columns. Rows are queries, or with Turned keys.
template <class Fragment, class Pair, int Octets, bool Turned>
struct DisplacementTerms {
  static_assert(same_type<Fragment, MmaFragment>::value, "lanes have two of eight columns");
  static_assert(GridSideOf<!Turned>::box(Pair::last_axis) % 4 == 0);
  mutable float now[2], last[2];  // of the first row: those of the octet at work and of the one before
  u32 from;                       // where the table has the thread's first row and column
  bool upper;                     // the thread's columns lie in the upper half of each eight

  static constexpr __device__ int of_column(int c) { return Turned ? Pair::of_query(c) : Pair::of_key(c); }
  static constexpr __device__ int of_row(int r) { return Turned ? Pair::of_key(r) : Pair::of_query(r); }
  // From a column to its fourth next one, in an octet that lies in one row of the box, and to the next one; from a row to
  // the eighth next one.
  static constexpr int half = of_column(4) - of_column(0), next = of_column(1) - of_column(0),
                       next_row = of_row(8) - of_row(0);

  // Of each octet, found before the compiler unrolls anything: the part of its first column; what its upper half has beyond
  // that of the first octet, if it lies in two rows of the box; and whether its second row has what the first row of the
  // octet before has.
  struct AllOctets {
    int column[Octets], beyond[Octets];
    bool repeats[Octets];
  };
  static constexpr __device__ AllOctets find_octets() {
    AllOctets all{};
    for (int o = 0; o < Octets; ++o) {
      all.column[o] = of_column(8 * o) - of_column(0);
      all.beyond[o] = of_column(8 * o + 4) - of_column(8 * o) - half;
      all.repeats[o] = o > 0 && all.column[o - 1] == all.column[o] + next_row && all.beyond[o - 1] == all.beyond[o];
    }
    return all;
  }

  // The number of the lane's first row and column. `row`: that of the box where the warp's rows begin.
  static __device__ __forceinline__ int of_lane(int row, int lane, bool upper) {
    return of_row(row + Fragment::row(lane)) + of_column(0) + Fragment::column(lane) * next +
           (upper ? half - 4 * next : 0);
  }
  __device__ __forceinline__ DisplacementTerms(u32 table, int row, int lane) : upper(Fragment::column(lane) >= 4) {
    from = table + of_lane(row, lane, upper) * 4;
  }
  // Reads that of row r and column 8 * octet + odd of this lane. Called in order of octets, each of the first row before that
  // of the second.
  __device__ __forceinline__ float get(int r, int octet, int odd) const {
    constexpr AllOctets all = find_octets();
    if (r == 1) {
      const float before = last[odd];
      last[odd] = now[odd];
      if (all.repeats[octet]) return before;
    }
    const u32 first = all.beyond[octet] != 0 && upper ? from + all.beyond[octet] * 4 : from;
    const float x = __uint_as_float(load_shared(first + (all.column[octet] + odd * next + r * next_row) * 4));
    if (r == 0) now[odd] = x;
    return x;
  }
  // All terms of a tile, read ahead of their use.
  struct Held {
    float term[2][Octets][2];
    Held() = default;
    __device__ __forceinline__ explicit Held(const DisplacementTerms &from) {
#pragma unroll
      for (int octet = 0; octet < Octets; ++octet)
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) term[r][octet][odd] = from.get(r, octet, odd);
    }
    __device__ __forceinline__ float get(int r, int octet, int odd) const { return term[r][octet][odd]; }
  };
};

// The same of a forward tile, pair by pair and where products add to them: as the sums that a thread's scores begin with.
template <class Pair, int Octets>
struct DisplacementPairs {
  using Terms = DisplacementTerms<MmaFragment, Pair, Octets, false>;
  static_assert(Terms::next == 1 && Terms::next_row % 2 == 0 && Pair::width(Pair::last_axis) % 2 == 0);
  u32 from;  // in a table that begins at 0
  bool upper;

  __device__ __forceinline__ DisplacementPairs(int row, int lane) : upper(MmaFragment::column(lane) >= 4) {
    const int first = Terms::of_lane(row, lane, upper);
    from = u32(first % 2 == 0 ? first : first + 1 + TwiceInTable<Pair>::second) * 4;
  }
  __device__ __forceinline__ void read(u32 table, float (&sum)[Octets * 4]) const {
    each(table, [&](int first, float x, float y) { sum[first] = x, sum[first + 1] = y; });
  }
  __device__ __forceinline__ void add(u32 table, float (&sum)[Octets * 4]) const {
    each(table, [&](int first, float x, float y) { sum[first] += x, sum[first + 1] += y; });
  }

 private:
  template <class Body>
  __device__ __forceinline__ void each(u32 table, const Body &body) const {
    constexpr auto all = Terms::find_octets();
#pragma unroll
    for (int octet = 0; octet < Octets; ++octet) {
      const u32 first = table + from + (all.beyond[octet] != 0 && upper ? all.beyond[octet] * 4 : 0);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float x, y;
        load_shared_8(first + (all.column[octet] + r * Terms::next_row) * 4, x, y);
        body(MmaFragment::element(r, 2 * octet), x, y);
      }
    }
  }
};
