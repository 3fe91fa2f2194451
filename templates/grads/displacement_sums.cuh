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
  static constexpr int rows = Pair::count() / 8;  // of 8 numbers each, of which 4 are summed over lanes at once

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
  // ds(octet, half, i) returns dS of key g + 8 * half and query 2t + i of the octet.
  template <class Get>
  LUATTN_FN void store(const Get &ds, u32 line, int lane) {
    const int in_row = (Fragment::row(lane) - Fragment::column(lane)) & 7, row_of_lane = Fragment::lane_in_row(lane);
#pragma unroll
    for (int row = 0; row < rows; row += 4) {
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = row + i < rows ? part(ds, row + i, lane) : 0.f;
      const float sum = Along::gather(x[0], x[1], x[2], x[3], lane);
      if (row + 4 <= rows || row_of_lane < rows - row)
        store_shared(line + (row * 8 + row_of_lane * 8 + in_row) * 4, __float_as_uint(sum));
    }
  }
};

// The sums of a box of queries and one of keys, from the lines of Warps warps. A lane has a number along the innermost axis; what
// lies along the others are constants.
template <int Warps>
struct DisplacementLines {
  using Pair = BoxPair<16 * Warps>;
  using Line = WarpBoxPair;
  static constexpr int last = Pair::last_axis, width = Pair::width(last), rows = Pair::count() / width;

  // Calls add(displacement, sum) for all numbers, each time by the whole warp. `from`: between the boxes' first places.
  template <class Add>
  LUATTN_FN void each(u32 lines, int lane, const Displacement &from, const Add &add) {
#pragma unroll
    for (int first = 0; first < width; first += 32) each_row<0>(lines, first + lane, from, add);
  }

 private:
  // The place of a row along another axis, from the least one.
  static constexpr __device__ int place(int row, int axis) {
    return row / (Pair::pitch(axis) / width) % Pair::width(axis);
  }
  // Where a warp's keys begin in their box.
  static constexpr __device__ int corner(int warp, int axis) {
    return 16 * warp / Pair::Keys::step(axis) % Pair::Keys::box(axis);
  }
  // Where a warp's line has the first number of a row; -1: nowhere.
  static constexpr __device__ int at(int warp, int row) {
    int number = 1;
    for (int a = Pair::first_axis; a < last; ++a) {
      const int within = place(row, a) - corner(warp, a);
      if (within < 0 || within >= Line::width(a)) return -1;
      number += Line::pitch(a) * within;
    }
    return warp * Line::count() + number;
  }
  template <int Row, int Warp>
  LUATTN_FN float sum(u32 lines, int number) {
    constexpr int first = at(Warp, Row), from = corner(Warp, last), count = Line::width(last) - 1;
    float x = 0.f;
    if constexpr (first >= 0)
      if (u32(number - from) < u32(count)) x = __uint_as_float(load_shared(lines + (first - from) * 4 + number * 4));
    if constexpr (Warp + 1 < Warps) x += sum<Row, Warp + 1>(lines, number);
    return x;
  }
  template <int Row, class Add>
  LUATTN_FN void each_row(u32 lines, int number, const Displacement &from, const Add &add) {
    Displacement at = from;
    each_axis([&](auto axis) {
      constexpr int a = axis.value, by = Pair::least(a) + (a < last ? place(Row, a) : 0);
      at.at[a - Pair::first_axis] += (a < last ? by : by + min_of(number, width - 1)) * Pair::Keys::place_step(a);
    });
    add(at, sum<Row, 0>(lines, number));
    if constexpr (Row + 1 < rows) each_row<Row + 1>(lines, number, from, add);
  }
};
