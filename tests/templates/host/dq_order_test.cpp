// dq_order_test.cpp: tests the dQ order (work/dq_order.cuh), for masks with any set of empty tiles. The tiles
// that QTiles visits for a q tile must form one chain, the last first, and blocks must draw each tile once,
// larger tiles of a head first. Also tests how blocks that share a kv tile divide its q tiles (QShare).
#include "host_cuda.hpp"
#include "work/dq_order.cuh"
#include "work/positions.cuh"

constexpr int tile_m = 64, tile_n = 128, most = 80;

// Tile (i, j) of head h exists if bit h of present[i][j] is set; q tiles outside of a kv tile's range do not.
static unsigned char present[2 * most][most];
static Range range[most];
struct Spec {
  static constexpr bool has_tile_bits = false, has_mask = true, has_score_bounds = false;
  static constexpr int num_block_bounds = 0;
  static Range q_range(const LuattnParams &, const Site &, int kv0, int) { return range[kv0 / tile_n]; }
  static TileClass tile_class(const LuattnParams &, const Site &s, int q0, int, int kv0, int) {
    return present[q0 / tile_m][kv0 / tile_n] >> s.h & 1 ? TILE_PARTIAL : TILE_EMPTY;
  }
};
struct Full : EveryKv, NoScoreBounds {};

// A spec with negligible tiles, given by p.scratch.tile_bitmap.
struct Falling : Full {
  static constexpr bool has_score_bounds = true;
};

static uint64_t state = 88172645463325252ull;
static unsigned random_below(unsigned n) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return unsigned((state >> 32) % n);
}

struct Chain {
  const LuattnParams *p;
  unsigned last[2 * most];  // the semaphore of each q tile
};
template <class S>
static void check_chain(const Chain &given) {
  static Chain c;
  const LuattnParams &p = *given.p;
  if (threadIdx.x == 0) c = given;
  for (int h = 0; h < 2; ++h) {
    const LineSite s{0, h, p.shape.q_len, p.shape.kv_len};
    __syncwarp();
    if (threadIdx.x == 0) memset(c.last, 0, sizeof c.last);
    __syncwarp();
    for (int j = ceil_div(p.shape.kv_len, tile_n) - 1; j >= 0; --j) {
      QTiles<S, tile_m, tile_n> walk(p, s, j);
      const TileBitmap<S> visits(p, s, j, ceil_div(p.shape.kv_len, tile_n), ceil_div(p.shape.q_len, tile_m));
      for (Tile t = walk.next(p, s); t.valid(); t = walk.next(p, s)) {
        if (!visits.has(t.index)) continue;
        const unsigned before = dq_order_before<S, tile_m, tile_n>(p, s, t.index, j);
        if (before != c.last[t.index]) host_fail("a kv tile does not come after the one that came last");
        __syncwarp();
        if (threadIdx.x == 0) c.last[t.index] = unsigned(j + 1);
        __syncwarp();
      }
    }
  }
}

static void check_draws() {
  LuattnParams p{};
  std::vector<unsigned> turns(LUATTN_DQ_ORDER_FIRST);
  p.scratch.dq_order = turns.data();
  p.shape.batch = int(1 + random_below(4)), p.schedule.num_splits = int(1 + random_below(4));
  gridDim = dim3(1 + random_below(9), 1 + random_below(5), unsigned(p.shape.batch * p.schedule.num_splits));
  std::vector<int> drawn(gridDim.y * unsigned(p.shape.batch));
  for (unsigned i = 0; i < gridDim.x * gridDim.y * gridDim.z; ++i) {
    const KvBlock at = KvBlock::drawn<false>(p);
    if (at.h < 0 || at.h >= int(gridDim.y) || at.b < 0 || at.b >= p.shape.batch) host_fail("no such head");
    const int turn = drawn[unsigned(at.b) * gridDim.y + unsigned(at.h)]++;
    if (at.tile != int(gridDim.x) - 1 - turn / p.schedule.num_splits || at.split != turn % p.schedule.num_splits)
      host_fail("a tile was not drawn in its turn");
  }
}

// Checks that each tile of each head of a group is in one share, and that shares differ by at most one tile
// per head of the share.
static void check_shares() {
  LuattnParams p{};
  p.shape.group = int(1 + random_below(12)), p.schedule.num_splits = int(1 + random_below(LUATTN_MAX_SPLITS));
  const int first = int(random_below(3)) * p.shape.group, lo = int(random_below(9)), count = int(random_below(100));
  std::vector<int> end(unsigned(p.shape.group), lo);  // the end of earlier shares in each head
  for (int split = 0; split < p.schedule.num_splits; ++split) {
    const QShare share{split};
    int size = 0;
    for (int i = share.first(p); i < share.end(p); ++i) {
      const Range r = share.of(p, {lo, lo + count}, first + i);
      if (r.lo != end[unsigned(i)] || r.hi < r.lo) host_fail("a share does not begin where the one before ends");
      end[unsigned(i)] = r.hi;
      size += r.hi - r.lo;
    }
    if (abs(size * p.schedule.num_splits - p.shape.group * count) >
        p.schedule.num_splits * (share.end(p) - share.first(p)))
      host_fail("a share is not an equal part");
  }
  for (int last : end)
    if (last != lo + count) host_fail("tiles that no share has");
}

int main() {
  for (int i = 0; i < 24; ++i) {
    LuattnParams p{};
    p.shape.heads = 2;
    p.shape.q_len = int(1 + random_below(most * tile_n)), p.shape.kv_len = int(1 + random_below(most * tile_n));
    const unsigned density = 1 + random_below(40);
    for (auto &row : present)
      for (unsigned char &tile : row) tile = random_below(density) == 0 ? 3 : (unsigned char)random_below(2);
    for (Range &r : range) {
      r.lo = int(random_below(unsigned(p.shape.q_len)));
      r.hi = r.lo + int(random_below(unsigned(p.shape.q_len)));
    }
    const Chain c{&p, {}};
    descending = i % 2 != 0;
    launch(check_chain<Spec>, dim3(1), 32, 0, c);
    if (i < 5) launch(check_chain<Full>, dim3(1), 32, 0, c);
    if (i < 5) launch(check_chain<Falling>, dim3(1), 32, 0, c);
    std::vector<unsigned> visits(2 * most * ((2 * most + 31) / 32));
    for (unsigned &word : visits) word = random_below(1u << 31) << 1 & random_below(1u << 31) << (i % 2);
    p.scratch.tile_bitmap = visits.data();
    if (i < 5) launch(check_chain<Falling>, dim3(1), 32, 0, c);
    check_draws();
    for (int j = 0; j < 100; ++j) check_shares();
  }
  puts("every tile has its turn");
}
