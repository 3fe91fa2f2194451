// q_boxes_test.cpp: compares backward's walk over boxes of a grid (work/query_box_walk.cuh) with scores, one by one: random
// grids of three axes, whose extents are no multiples of boxes, lattices of queries with a phase, windows, and boxes that a
// mask empties besides. Each box of queries that has a kept score is in one share of the walk, once, and says what halves
// of keys keep; boxes of keys add to one of queries in one chain, the last one first. stepped_boxes_test.cpp has the same with
// boxes that step along axes.
#define LUATTN_GRID
#ifndef PLACE_STEPS
#define PLACE_STEPS {1, 1, 1, 1}
#endif
struct Config {
  static constexpr int axes = 3, tile_m = 64, tile_n = 128;
  static constexpr bool packed = false, paged = false;
  static constexpr int q_box(int axis) { return axis == 0 ? 1 : axis == 1 ? 2 : axis == 2 ? 4 : 8; }
  static constexpr int kv_box(int axis) { return axis == 0 ? 1 : axis == 1 ? 4 : axis == 2 ? 4 : 8; }
  static constexpr int place_step(int axis) {
    constexpr int steps[] = PLACE_STEPS;
    return steps[axis];
  }
};
#include "host_cuda.hpp"
#include "abi/params.h"
#include "work/query_box_walk.cuh"

using Queries = GridSideOf<false>;
using Keys = GridSideOf<true>;

static uint64_t state = 88172645463325252ull;
static int below(int n) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return int((state >> 32) % unsigned(n));
}

// Along each axis a query at i keeps keys from max(i - behind, 0) on, up to i + ahead, and every pair of boxes is kept at
// all if bit h of `drawn` of it is set.
static struct {
  int behind[LUATTN_GRID_AXES], ahead[LUATTN_GRID_AXES];
  unsigned density;
} mask;
static bool is_drawn(int h, int q_tile, int kv_tile) {
  uint64_t x = uint64_t(h + 1) * 0x9e3779b97f4a7c15ull ^ uint64_t(q_tile) << 32 ^ uint64_t(kv_tile);
  x *= 0xbf58476d1ce4e5b9ull, x ^= x >> 29;
  return x % mask.density == 0;
}
static bool keeps(const LuattnParams &p, int h, int q, int kv) {
  if (!Queries::has(p, q) || !Keys::has(p, kv) || !is_drawn(h, q / Queries::rows, kv / Keys::rows)) return false;
  bool kept = true;
  each_axis([&](auto axis) {
    constexpr int a = decltype(axis)::value;
    const int gap = Keys::at<a>(p, kv) - Queries::at<a>(p, q);
    kept = kept && gap >= -mask.behind[a] && gap <= mask.ahead[a] && gap % Keys::place_step(a) == 0;
  });
  return kept;
}
struct Spec {
  static constexpr bool has_mask = true, has_tile_bits = false, has_score_bounds = false;
  static constexpr int num_block_bounds = 0;
  static TileClass tile_class(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
    bool all = true;
    if (!is_drawn(s.h, q0 / Queries::rows, kv0 / Keys::rows)) return TILE_EMPTY;
    bool some = true;
    each_axis([&](auto axis) {
      constexpr int a = decltype(axis)::value;
      const int q_lo = max_of(Queries::at<a>(p, q0), 0),
                q_hi = min_of(Queries::at<a>(p, q1), Queries::extent(p, a) - 1),
                lo = max_of(Keys::at<a>(p, kv0), 0) - q_hi,
                hi = min_of(Keys::at<a>(p, kv1), Keys::extent(p, a) - 1) - q_lo;
      some = some && hi >= -mask.behind[a] && lo <= mask.ahead[a];
      all = all && lo >= -mask.behind[a] && hi <= mask.ahead[a];
    });
    return !some ? TILE_EMPTY : all ? TILE_FULL : TILE_PARTIAL;
  }
  static GridRange kv_box_range(const LuattnParams &p, const Site &, int q) {
    GridRange r = {{0, 0, 0, 0}, {1, 1, 1, 1}};
    each_axis([&](auto axis) {
      constexpr int a = decltype(axis)::value;
      r.lo[a] = Queries::first<a>(p, q) - mask.behind[a], r.hi[a] = Queries::last<a>(p, q) + mask.ahead[a] + 1;
    });
    return r;
  }
  static GridRange q_box_range(const LuattnParams &p, const Site &, int kv) {
    GridRange r = {{0, 0, 0, 0}, {1, 1, 1, 1}};
    each_axis([&](auto axis) {
      constexpr int a = decltype(axis)::value;
      r.lo[a] = Keys::first<a>(p, kv) - mask.ahead[a], r.hi[a] = Keys::last<a>(p, kv) + mask.behind[a] + 1;
    });
    return r;
  }
};

static LuattnDivisor divisor(unsigned d) {
  unsigned shift = 0;
  while (1u << shift < d) ++shift;
  return {d, unsigned(((1ull << (31 + shift)) + d - 1) / d), shift};
}
// With `first` in places of a group.
static LuattnGridSide side(int extent, int box, int first, int step) {
  const int last = ((extent + step - 1) / step - first + box - 1) / box - 1;
  const int left = extent - (first + last * box) * step;
  return {extent, first, divisor(unsigned(last * step + (left < step ? left : step)))};
}
static LuattnGridParams random_call() {
  LuattnGridParams p{};
  p.shape.batch = p.shape.heads_kv = 1, p.shape.heads = p.shape.group = 2;
  p.schedule.num_splits = 1 + below(3);
  p.grid.axis[0].q = side(1, 1, 0, 1), p.grid.axis[0].kv = side(1, 1, 0, 1);
  for (int a = 1; a < LUATTN_GRID_AXES; ++a) {
    p.grid.axis[a].q = side(1 + below(13), Queries::box(a), -below(Queries::box(a)), Queries::place_step(a));
    p.grid.axis[a].kv = side(1 + below(13), Keys::box(a), 0, Keys::place_step(a));
    mask.behind[a] = below(20) - (below(4) == 0), mask.ahead[a] = below(20);
  }
  mask.density = unsigned(1 + below(3) / 2 * 2);
  p.shape.q_len = Queries::slots(p), p.shape.kv_len = Keys::slots(p);
  return p;
}

enum { MOST = 1024 };
struct Chain {
  const LuattnGridParams *p;
  unsigned last[2][MOST];
};
struct Seen {
  bool kept[2], all[2], some;  // of halves
};
static Seen seen_in(const LuattnParams &p, int h, int q_tile, int kv_tile) {
  Seen x = {{false, false}, {true, true}, false};
  for (int q = q_tile * Queries::rows; q < (q_tile + 1) * Queries::rows; ++q)
    for (int kv = kv_tile * Keys::rows; kv < (kv_tile + 1) * Keys::rows; ++kv) {
      const int half = kv % Keys::rows / (Keys::rows / 2);
      const bool kept = keeps(p, h, q, kv);
      x.kept[half] |= kept, x.all[half] &= kept;
    }
  x.some = x.kept[0] || x.kept[1];
  return x;
}

template <bool InOrder>
static void check_walk(const Chain &given) {
  static Chain c;
  static int met[MOST];
  const LuattnGridParams &p = *given.p;
  const int lane = int(threadIdx.x), q_tiles = Queries::slots(p) / Queries::rows,
            kv_tiles = Keys::slots(p) / Keys::rows;
  if (lane == 0) memset(&c, 0, sizeof c);
  __syncwarp();
  for (int kv_tile = kv_tiles - 1; kv_tile >= 0; --kv_tile)
    for (int h = 0; h < 2; ++h) {
      const GridSequence s(p, 0, h);
      if (lane == 0) memset(met, 0, sizeof met);
      __syncwarp();
      for (int split = 0; split < p.schedule.num_splits; ++split) {
        QueryBoxWalk<Spec, true, InOrder> walk(p, s, kv_tile, QShare{split});
        int before = -1;
        for (Tile t = walk.next(p, s); t.valid(); t = walk.next(p, s)) {
          if (t.index <= before || t.index >= q_tiles) host_fail("boxes come out of order");
          before = t.index;
          const unsigned halves = walk.halves,
                         order = InOrder ? dq_order_before<Spec, 64, 128>(p, s, t.index, kv_tile) : 0;
          if (lane == 0) {
            const Seen x = seen_in(p, h, t.index, kv_tile);
            ++met[t.index];
            for (int half = 0; half < 2; ++half) {
              if ((halves >> half & 1) && x.kept[half]) host_fail("a half that keeps something is left out");
              if ((halves >> (2 + half) & 1) && !x.all[half]) host_fail("a half is whole that is not");
            }
            if (!t.masked && !(x.all[0] && x.all[1])) host_fail("a box is whole that is not");
            if (InOrder && order != c.last[h][t.index]) host_fail("a box does not come after the one that came last");
            c.last[h][t.index] = unsigned(kv_tile + 1);
          }
          __syncwarp();
        }
      }
      for (int q_tile = lane; q_tile < q_tiles; q_tile += 32)
        if (met[q_tile] > 1 || (met[q_tile] == 0 && seen_in(p, h, q_tile, kv_tile).some))
          host_fail("a box is not met once");
      __syncwarp();
    }
}

int main() {
  for (int i = 0; i < 60; ++i) {
    const LuattnGridParams p = random_call();
    static Chain c;
    c.p = &p;
    descending = i % 2 != 0;
    launch(check_walk<false>, dim3(1), 32, 0, c);
    launch(check_walk<true>, dim3(1), 32, 0, c);
  }
  puts("every box is met once, and has its turn");
}
