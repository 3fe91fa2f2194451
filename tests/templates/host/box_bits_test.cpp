// box_bits_test.cpp: compares a lane's bits of a box (score/box_bits.cuh) with the coordinates of its columns, one by one.
#include "host_cuda.hpp"

#include <algorithm>

using std::max;
using std::min;

#include "score/box_bits.cuh"

// One row a lane, as tcgen05.ld gives it.
struct RowFragment {
  static constexpr int row_lanes = 1, adjacent = 1;
  static constexpr int columns(int width) { return width; }
  static int column(int) { return 0; }
  static constexpr int column_of(int j) { return j; }
  static int columns_below(int x) { return x; }
};

static unsigned state = 1;
static int below(int n) {
  state = state * 1664525u + 1013904223u;
  return int((state >> 8) % unsigned(n));
}

template <class Fragment, class Box>
static void check_row(int lane, const int (&lo)[Box::axes], const int (&hi)[Box::axes]) {
  using Bits = BoxBits<Fragment, Box>;
  u32 word[Bits::words];
  Bits::of_row(lane, lo, hi, word);
  for (int j = 0; j < 32 * Bits::words; ++j) {
    bool kept = j < Bits::count;
    for (int a = 0, column = Fragment::column(lane) + Fragment::column_of(j); kept && a < Box::axes; ++a) {
      const int at = column / Box::pitch(a) % Box::extent(a);
      kept = lo[a] <= at && at < hi[a];
    }
    if ((word[j / 32] >> j % 32 & 1) != unsigned(kept)) host_fail("another column is kept");
  }
}

// Ends inside of the box, at its ends, and far away; lo above hi keeps nothing.
template <class Fragment, class Box>
static void check_box() {
  for (int trial = 0; trial < 400; ++trial) {
    int lo[Box::axes], hi[Box::axes];
    for (int a = 0; a < Box::axes; ++a) {
      const int extent = Box::extent(a), kind = below(4);
      lo[a] = kind == 0 ? -below(40000) : below(extent + 3) - 1;
      hi[a] = kind == 1 ? extent + below(40000) : below(extent + 3);
    }
    for (int lane = 0; lane < 4; ++lane) check_row<Fragment, Box>(lane, lo, hi);
  }
}

template <class... Boxes>
static void check_boxes() {
  (check_box<MmaFragment, Boxes>(), ...);
  (check_box<RowFragment, Boxes>(), ...);
}

int main() {
  check_boxes<GridBox<64>, GridBox<16, 4>, GridBox<2, 2, 4, 4>, GridBox<5, 8>, GridBox<1, 1, 1, 40>>();
  (check_box<MmaFragment, GridBox<16, 8>>(), check_box<MmaFragment, GridBox<4, 32>>());
  (check_box<MmaFragment, GridBox<28, 4>>(), check_box<MmaFragment, GridBox<7, 16>>());
  (check_box<MmaFragment, GridBox<10, 16>>(), check_box<MmaFragment, GridBox<3, 48>>());
  (check_box<MmaFragment, GridBox<6, 6, 4>>(), check_box<MmaFragment, GridBox<9, 4, 4>>());
  (check_box<MmaFragment, GridBox<2, 16, 4>>(), check_box<MmaFragment, GridBox<3, 4, 12>>());
  (check_box<MmaFragment, GridBox<4, 2, 2, 8>>(), check_box<MmaFragment, GridBox<256>>());
  (check_box<MmaFragment, GridBox<2, 3, 5, 8>>(), check_box<MmaFragment, GridBox<4, 28>>());
  (check_box<MmaFragment, GridBox<32, 2>>(), check_box<MmaFragment, GridBox<16, 2, 2>>());
  (check_box<MmaFragment, GridBox<8, 4, 2>>(), check_box<MmaFragment, GridBox<16, 8, 1>>());
  return 0;
}
