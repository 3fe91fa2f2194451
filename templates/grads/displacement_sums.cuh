// grads/displacement_sums.cuh: sums of dS over a grid, of elements with the same kv - q along each axis, for parameter gradients
// (contract/grad.cuh), in the sm90 backward.
//
// A warp has dS^T of 16 keys by a box of queries, both with innermost extents of 8 or a multiple: blocks of 8 x 8, of which
// each has its queries and its keys in one row of their boxes. Elements of blocks with the same displacement are added in
// registers, and then along the blocks' diagonals, as grads/parameter_grads.cuh does it. The sums lie in a line of shared memory,
// by the numbers of BoxPair, of which a number more along the innermost axis makes room for a diagonal that no block has. One
// warp adds up the lines of all and hands them to the Spec, in a fixed order (sm90/bwd/distance_grad_writer.cuh).
#pragma once
#include "grads/parameter_grads.cuh"
#include "score/displacement_terms.cuh"

template <int Octets>
struct DisplacementSums {
  using Fragment = MmaFragment;
  using Pair = WarpBoxPair;
  using Along = DistanceSums<Octets>;
  static_assert(Octets * 8 == Pair::Queries::rows && Pair::Queries::box(Pair::last_axis) % 8 == 0 &&
                Pair::Keys::box(Pair::last_axis) % 8 == 0 && Pair::count() % 8 == 0);
  static constexpr int rows = Pair::count() / 8, fours = ceil_div(rows, 4);  // of 8 numbers; summed over lanes together

  // Where the block of keys 8 * half .. and queries 8 * octet .. has its main diagonal; below it numbers rise.
  struct Diagonals {
    int of[2][Octets];
  };
  static constexpr __device__ Diagonals find_diagonals() {
    Diagonals all{};
    for (int half = 0; half < 2; ++half)
      for (int octet = 0; octet < Octets; ++octet)
        all.of[half][octet] = Pair::of_key(8 * half) + Pair::of_query(8 * octet);
    return all;
  }
  // The sum of the blocks whose main diagonal has this number.
  template <class Get>
  LUATTN_FN float blocks(const Get &ds, int number, int i) {
    constexpr Diagonals diagonals = find_diagonals();
    float sum = 0.f;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int octet = 0; octet < Octets; ++octet)
        if (diagonals.of[half][octet] == number) sum += ds(octet, half, i);
    return sum;
  }
  // A lane's part of the numbers from 8 * row on: from the main diagonals on of the blocks that have them there, and above
  // those of the blocks that have them 8 later.
  template <class Get>
  LUATTN_FN float part(const Get &ds, int row, int lane) {
    const int key = Fragment::row(lane), query = Fragment::column(lane);
    const float left = Along::pick(key >= query, blocks(ds, 8 * row, 0), blocks(ds, 8 * row + 8, 0));
    const float right = Along::pick(key >= query + 1, blocks(ds, 8 * row, 1), blocks(ds, 8 * row + 8, 1));
    return left + __shfl_sync(0xffffffffu, right, (lane + 4) & 31);
  }
  // Of a tile without dS.
  LUATTN_FN void store_zeros(u32 line, int lane) {
#pragma unroll
    for (int i = 0; i < Pair::count(); i += 32)
      if (i + lane < Pair::count()) store_shared(line + (i + lane) * 4, 0);
  }
  // ptxas moves no shuffle past a branch, even one that is never taken.
  LUATTN_FN void hold(float x) {
    if (__float_as_uint(x) == 0x7fc54321u) __nanosleep(0);
  }
  // ds(octet, half, i) returns dS of key g + 8 * half and query 2t + i of the octet.
  // All rows take each step together, so that a lane waits for a shuffle three times and not as often for each four rows: beside
  // products shuffles take hundreds of cycles.
  template <class Get>
  LUATTN_FN void store(const Get &ds, u32 line, int lane) {
    const int in_row = (Fragment::row(lane) - Fragment::column(lane)) & 7, row_of_lane = Fragment::lane_in_row(lane);
    float x[fours * 4];
#pragma unroll
    for (int row = 0; row < fours * 4; ++row) x[row] = row < rows ? part(ds, row, lane) : 0.f;
    hold(x[rows - 1]);
#pragma unroll
    for (int i = 0; i < fours * 4; i += 4) Along::gather_halves(x[i], x[i + 1], x[i + 2], x[i + 3], lane);
    hold(x[fours * 4 - 4]);
#pragma unroll
    for (int i = 0; i < fours; ++i) {
      const float sum = Along::gather_pairs(x[i * 4], x[i * 4 + 1], lane);
      if (i * 4 + 4 <= rows || row_of_lane < rows - i * 4)
        store_shared(line + (i * 32 + row_of_lane * 8 + in_row) * 4, __float_as_uint(sum));
    }
  }
};

// The sums of a box of queries and one of keys, from the lines of Warps warps. A lane has a number along the innermost axis of one
// of `at_once` rows, a row being what lies at one place along the others.
template <int Warps>
struct DisplacementLines {
  using Pair = BoxPair<16 * Warps>;
  using Line = WarpBoxPair;
  static constexpr int last = Pair::last_axis, width = Pair::width(last), rows = Pair::count() / width;
  static constexpr int lanes = width <= 16 ? 16 : 32, at_once = 32 / lanes;

  // Calls add(displacement, sum) for the numbers of every Parts-th `at_once` rows from `part` on, each time by the whole warp.
  // `from`: between the boxes' first places.
  template <int Parts, class Add>
  LUATTN_FN void each(u32 lines, int part, int lane, const Displacement &from, const Add &add) {
#pragma unroll
    for (int first = 0; first < width; first += lanes)
#pragma unroll 2
      for (int row = part * at_once; row < rows; row += Parts * at_once)
        add_row(lines, row + lane / lanes, first + lane % lanes, from, add);
  }

 private:
  // The place of a row along another axis, from the least one.
  template <int Axis>
  LUATTN_FN int place(int row) {
    constexpr int step = Pair::pitch(Axis) / width, all = Pair::width(Axis);
    const u32 outer = u32(row) / u32(step);
    return int(Axis == Pair::first_axis ? outer : outer % u32(all));
  }
  // Where a warp's keys begin in their box.
  static constexpr __device__ int corner(int warp, int axis) {
    return 16 * warp / Pair::Keys::step(axis) % Pair::Keys::box(axis);
  }
  // From the place of a number that all lines have to that of a warp's line.
  static constexpr __device__ int line(int warp) {
    int number = warp * Line::count() + 1;
    for (int a = Pair::first_axis; a <= last; ++a) number -= Line::pitch(a) * corner(warp, a);
    return number;
  }
  // Of what a warp's line lacks, the number of a diagonal that no block has, which is 0.
  template <int Warp>
  LUATTN_FN float sum(u32 lines, u32 at, const int (&places)[4]) {
    bool has = true;
    each_axis([&](auto axis) {
      constexpr int a = axis.value, from = corner(Warp, a), count = Line::width(a) - (a == last ? 1 : 0);
      has = has & (u32(places[a] - from) < u32(count));
    });
    float x = __uint_as_float(load_shared(has ? at + line(Warp) * 4 : lines));
    if constexpr (Warp + 1 < Warps) x += sum<Warp + 1>(lines, at, places);
    return x;
  }
  template <class Add>
  LUATTN_FN void add_row(u32 lines, int row, int number, const Displacement &from, const Add &add) {
    int places[4];
    u32 at = lines;
    Displacement displacement = from;
    each_axis([&](auto axis) {
      constexpr int a = axis.value;
      if constexpr (a < last)
        places[a] = place<a>(row);
      else
        places[a] = number;
      at += places[a] * Line::pitch(a) * 4;
      const int kept = a < last ? min_of(places[a], Pair::width(a) - 1) : min_of(number, width - 1);
      displacement.at[a - Pair::first_axis] += (Pair::least(a) + kept) * Pair::Keys::place_step(a);
    });
    add(displacement, sum<0>(lines, at, places));
  }
};
