// fragment_test.cpp: compares where a fragment's registers are (score/fragment.cuh) with the rule of the PTX ISA, and the bits
// of masks for a thread's columns (score/mask_intervals.cuh, score/mask_runs.cuh) with a loop over the tile, for MmaFragment
// and for a layout with one row a thread.
#include "host_cuda.hpp"

#include <algorithm>
#include <set>

using std::max;
using std::min;

#include "score/mask_runs.cuh"

// As tcgen05.ld gives accumulators: lane i has all columns of row i.
struct RowFragment {
  static constexpr int row_lanes = 1, adjacent = 32;
  static int columns(int width) { return width; }
  static int column(int) { return 0; }
  static constexpr int column_of(int j) { return j; }
  static int columns_below(int x) { return x; }
};

static void expect(bool right, const char *what) {
  if (!right) host_fail(what);
}

// PTX ISA, figure of C and D of mma.m16n8k16: c0 .. c3 of 16 x 8. D of wgmma.m64nNk16 has N / 8 of these beside each other in
// each warp.
static void check_registers() {
  using F = MmaFragment;
  constexpr int width = 64;
  std::set<std::pair<int, int>> seen;
  for (int lane = 0; lane < 32; ++lane)
    for (int block = 0; block < width / 8; ++block)
      for (int i = 0; i < 4; ++i) {
        const int group = lane >> 2, in_group = lane % 4;
        const int row = i < 2 ? group : group + 8, column = in_group * 2 + (i & 1) + 8 * block;
        const int r = i / 2, j = 2 * block + i % 2;
        expect(F::element(r, j) == 4 * block + i, "another register");
        expect(F::row(lane) + F::row_of(r) == row && F::row(unsigned(lane), r) == row, "another row");
        expect(F::column(lane) + F::column_of(j) == column && F::column(unsigned(lane), j) == column, "another column");
        expect(F::column(100, lane, j) == 100 + column, "another position");
        expect(F::pair_of(j / 2) + j % F::adjacent == F::column_of(j), "another pair");
        expect(F::lane_in_row(lane) == in_group && F::first_in_row(lane) == (in_group == 0), "another lane of the row");
        seen.insert({row, column});
      }
  expect(seen.size() == 16 * width && F::rows(16) == 2 && F::columns(width) * F::row_lanes == width, "a tile in part");
  expect(F::row_of(2) == 16 && F::row_of(3) == 24, "rows of the next 16");
}

template <class F>
static unsigned bits_where(auto &&kept, int first = 0) {
  unsigned bits = 0;
  for (int j = 0; j < 32; ++j) bits |= unsigned(kept(first + F::column_of(j))) << j;
  return bits;
}
template <class F>
static void check_intervals() {
  const int span = columns_of_word<F>;
  expect(span == (F::row_lanes == 4 ? 128 : 32), "a word of other columns");
  for (int x = -5; x < span + 5; ++x) {
    expect(columns_below<F>(x) == bits_where<F>([&](int c) { return c < x; }), "other columns below");
  }
  for (int first = 0; first < 21; ++first)
    for (int lo = 0; lo < 7; ++lo) {
      unsigned word[2];
      columns_of_residues<F, 7>(word, first, Range{lo, 5});
      for (int w = 0; w < 2; ++w) {
        const auto kept = [&](int c) { return lo <= (first + c) % 7 && (first + c) % 7 < 5; };
        expect(word[w] == bits_where<F>(kept, w * span), "other residues");
      }
    }
}
struct Tile {};
template <class F>
static void check_asked(const Tile &) {
  const int lane = int(threadIdx.x);
  const auto asks = [](int i) { return i % 3 == 0 || i == 31; };
  const unsigned mine = columns_that<F, columns_of_word<F>>(lane, asks);
  expect(mine == bits_where<F>(asks, F::column(lane)), "columns of other answers");
}

int main() {
  check_registers();
  check_intervals<MmaFragment>();
  check_intervals<RowFragment>();
  launch(check_asked<MmaFragment>, dim3(1), 32, 0, Tile());
  launch(check_asked<RowFragment>, dim3(1), 32, 0, Tile());
  return 0;
}
