// score/fragment.cuh: says which row and column of a tile each accumulator register of a thread is.
//
// Whatever works on scores in registers (masks, dropout, biases, distance terms, sums of dS) takes a Fragment, a type of
// static functions, and asks it. A kernel names its layout once, as `Fragment`. The elements of a lane form a grid: its row
// number r is row(lane) + row_of(r) of the warp's rows, its column number j is column(lane) + column_of(j) of the tile. The
// first addend is one number of a thread, the second a constant once loops are unrolled, as Position wants them.
//
// What lanes do together for a row they share is written for a layout: DistanceTerms, DroppedBlocks, share_flags, and all
// of grads/ require MmaFragment. One row a thread, as tcgen05.ld gives it, is another type of the same functions: row(lane)
// = lane, column_of(j) = j, row_lanes = 1 (tests/templates/host/fragment_test.cpp). A thread then has a whole row.
//
// Some functions take references, and pairs or sums stand beside columns and addends: NVVM then simplifies rolled loops as
// if the formula stood in them.
#pragma once
#include "ops/hook_types.cuh"

// Accumulators of mma.sync.m16n8k8 and m16n8k16 in a warp (PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point
// type", figure of C and D), and of wgmma.m64nNk16 in each warp of a warpgroup, which has 16 rows of the 64 (PTX ISA,
// "Register fragments for wgmma.mma_async.m64nNk16", figure of D), for any N. With lane = 4 * g + t:
//
//     columns   0 .. 7               8 .. 15
//     row g     c[0], c[1] at 2t     c[4], c[5] at 8 + 2t    ..
//     row g + 8 c[2], c[3] at 2t     c[6], c[7] at 8 + 2t    ..
//
// A operands, and B operands transposed, have the same rows and columns, in pairs.
struct MmaFragment {
  static constexpr int row_lanes = 4;  // lanes that share a row
  static constexpr int adjacent = 2;   // columns of a lane that lie next to each other

  // Numbers of rows and columns that a lane has of so many.
  LUATTN_FN constexpr int rows(int height) { return height / 8; }
  LUATTN_FN constexpr int columns(int width) { return width / 4; }

  template <class Lane>
  LUATTN_FN int row(const Lane &lane) {
    return int(lane / 4);
  }
  template <class Lane>
  LUATTN_FN int column(const Lane &lane) {
    return int(lane % 4) * 2;
  }
  LUATTN_FN constexpr int row_of(const int &r) { return r / 2 * 16 + r % 2 * 8; }
  LUATTN_FN constexpr int column_of(int j) { return j / 2 * 8 + j % 2; }
  // That of a pair of adjacent columns: column number j is number j % 2 of pair j / 2.
  LUATTN_FN constexpr int pair_of(int n) { return n * 8; }
  // The sums of both addends.
  template <class Lane>
  LUATTN_FN int row(const Lane &lane, const int &r) {
    return int(lane / 4) + r * 8;
  }
  template <class Lane>
  LUATTN_FN int column(const Lane &lane, const int &j) {
    return int(lane % 4) * 2 + j / 2 * 8 + j % 2;
  }

  // The position of column number j in columns that begin at `first`.
  template <class Lane>
  LUATTN_FN int column(const int &first, const Lane &lane, const int &j) {
    return first + j / 2 * 8 + int(lane % 4) * 2 + j % 2;
  }

  // The register of row number r, 0 or 1, and column number j among the accumulators of 16 rows.
  LUATTN_FN constexpr int element(int r, int j) { return j / 2 * 4 + r * 2 + j % 2; }

  // The number of a lane among those that share its rows.
  template <class Lane>
  LUATTN_FN int lane_in_row(const Lane &lane) {
    return int(lane % 4);
  }
  template <class Lane>
  LUATTN_FN bool first_in_row(const Lane &lane) {
    return lane % 4 == 0;
  }
  // How many of a lane's columns lie below column x of the tile, less column(lane).
  LUATTN_FN int columns_below(int x) { return x / 8 * 2 + min_of(x % 8, 2); }
};
