// schedule_test.cpp: tests the order of q tiles, as a launch chooses it (runtime/call/order.h) and kernels read it
// (work/tile_scheduler.cuh). The order contains every tile once, one group of heads after another, and within
// a group the last queries first. Persistent blocks draw tiles over several launches from one counter that is
// never zeroed, with the draws of a launch in any order: every tile must be taken once, and the counter must
// end at 0. Divisions by LuattnDivisor must match the processor's.
#include "host_cuda.hpp"

static unsigned atomicInc(unsigned *p, unsigned last) {
  const unsigned old = *p;
  *p = old >= last ? 0 : old + 1;
  return old;
}
#include "runtime/call/order.h"
#include "work/tile_scheduler.cuh"

constexpr int tile_m = 64, kv_bytes = 512;

static unsigned random_below(unsigned n) {
  static uint64_t state = 88172645463325252ull;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return unsigned((state >> 32) % n);
}

template <bool Masked, bool Together>
struct Block {
  TileScheduler<Masked, Together> scheduler;
  bool has_drawn = false;
};

struct Launch {
  LuattnParams p;
  unsigned q_tiles, tiles, grid;
  std::vector<int> taken;

  Launch(int batch, int heads, int group, int q_len, int kv_len, unsigned multiprocessors, unsigned *counter) : p{} {
    p.shape.batch = batch, p.shape.heads = heads, p.shape.heads_kv = heads / group, p.shape.group = group;
    p.shape.q_len = q_len, p.shape.kv_len = kv_len, p.scratch.work_counter = counter;
    q_tiles = unsigned(ceil_div(q_len, tile_m));
    tiles = q_tiles * unsigned(heads * batch);
    grid = min_of(tiles, multiprocessors);
  }

  void take(const BlockSite &s) {
    if (s.h_kv != s.h / p.shape.group) host_fail("a head has another's K and V");
    if (s.q_tile < 0 || s.q_tile >= int(q_tiles) || s.h < 0 || s.h >= p.shape.heads || s.b < 0 || s.b >= p.shape.batch)
      host_fail("a tile lies outside of the tensors");
    ++taken[(unsigned(s.b * p.shape.heads + s.h)) * q_tiles + unsigned(s.q_tile)];
  }

  void check_taken() const {
    for (int times : taken)
      if (times != 1) host_fail("a tile was not taken once");
  }

  // Checks the order of all tiles: group by group of whole kv heads, and within a group the last queries
  // first.
  void check_order(int64_t groups) {
    order_fill(&p, q_tiles, groups);
    taken.assign(tiles, 0);
    const unsigned kv_heads = unsigned(p.shape.heads_kv * p.shape.batch);
    const unsigned size = (kv_heads + unsigned(groups) - 1) / unsigned(groups) * unsigned(p.shape.group);
    unsigned group = 0, row = 0;
    for (unsigned i = 0; i < tiles; ++i) {
      const BlockSite s = site_of(p.order, i);
      take(s);
      const unsigned in = unsigned(s.b * p.shape.heads + s.h) / size, from_last = q_tiles - 1 - unsigned(s.q_tile);
      if (in < group || (in == group && from_last < row)) host_fail("a tile comes too late");
      group = in, row = from_last;
    }
    check_taken();
  }

  // Checks that without a mask the tiles of all batch entries for one head and q tile are consecutive.
  void check_batches() {
    order_fill(&p, q_tiles, order_groups_resident(&p, q_tiles, false, kv_bytes));
    for (unsigned i = 0; i < tiles; ++i) {
      const BlockSite s = site_of_batches<false>(p.shape, p.order, i),
                      first = site_of_batches<false>(p.shape, p.order, i - unsigned(s.b));
      if (s.b != int(i % unsigned(p.shape.batch)) || s.h != first.h || s.q_tile != first.q_tile)
        host_fail("a batch is not behind the one before");
    }
  }

  // Each step takes a block's next tile and draws another, or delivers the result of a draw.
  template <bool Masked, bool Together = false>
  void run() {
    order_fill(&p, q_tiles, order_groups_resident(&p, q_tiles, Masked, kv_bytes));
    taken.assign(tiles, 0);
    gridDim = dim3(grid);
    threadIdx = dim3(0);
    std::vector<Block<Masked, Together>> blocks;
    std::vector<unsigned> live;
    for (unsigned i = 0; i < grid; ++i) {
      blockIdx = dim3(i);
      blocks.push_back({TileScheduler<Masked, Together>(p)});
      live.push_back(i);
    }
    while (!live.empty()) {
      const unsigned at = random_below(unsigned(live.size()));
      Block<Masked, Together> &b = blocks[live[at]];
      if (b.has_drawn) {
        b.scheduler.advance();
        b.has_drawn = false;
      } else if (b.scheduler.valid()) {
        take(b.scheduler.site());
        b.scheduler.draw();
        b.has_drawn = true;
      } else {
        live[at] = live.back();
        live.pop_back();
      }
    }
    check_taken();
    if (*p.scratch.work_counter != 0) host_fail("the counter was not left at 0");
  }
};

// Checks every 16-bit divisor, and some larger ones, at the edges of each quotient.
static void check_divisor(unsigned d) {
  constexpr unsigned most = (1u << 31) - 1;
  const LuattnDivisor by = order_divisor(d);
  const unsigned whole = most / d;
  const auto check = [&](uint64_t n) {
    if (n <= most && quotient(unsigned(n), by) != n / d) host_fail("a quotient is wrong");
  };
  for (uint64_t q : {0u, 1u, 2u, whole / 2, whole - (whole > 0), whole})
    for (uint64_t n : {q * d, q * d + 1, q * d + d - 1, (q + 1) * d}) check(n);
  check(most);
  for (int i = 0; i < 8; ++i) check(random_below(most));
}
static void check_divisors() {
  for (unsigned d = 1; d < 1u << 16; ++d) check_divisor(d);
  for (unsigned bit = 16; bit < 31; ++bit)
    for (unsigned d : {(1u << bit) - 1, 1u << bit, (1u << bit) + 1}) check_divisor(d);
  for (int i = 0; i < 100000; ++i) check_divisor(1 + random_below((1u << 31) - 2));
  check_divisor((1u << 31) - 1);
}

// Groups of heads. A grid has one group per 640 tiles. Persistent blocks without a mask have a group per kv
// head; with a mask a group has as many kv heads as have 640 tiles, but at most 32 MiB of K and V, unless
// that is less than 4 kv heads.
static void check_groups() {
  LuattnParams p{};
  p.shape.batch = 4, p.shape.heads_kv = 16, p.shape.group = 1, p.shape.kv_len = 4096;
  const auto resident = [&](int64_t q_tiles, bool has_mask) {
    return order_groups_resident(&p, q_tiles, has_mask, kv_bytes);
  };
  const auto expect = [](int64_t got, int64_t want) {
    if (got != want) host_fail("another number of groups");
  };
  expect(order_groups(1), 1);
  expect(order_groups(1279), 1);
  expect(order_groups(1280), 2);
  expect(resident(32, false), 64);
  expect(resident(32, true), 64 / 16);  // 32 MiB hold 16 kv heads; 20 have 640 tiles
  expect(resident(64, true), 64 / 10);  // 10 have 640 tiles
  expect(resident(1000, true), 64);     // one has
  p.shape.kv_len = 1 << 20;
  expect(resident(32, true), 64 / 4);  // 32 MiB hold less than one kv head
  p.shape.group = 8;
  expect(resident(32, true), 64 / 3);  // 3 have 640 tiles
  p.shape.kv_len = 0;
  expect(resident(1, true), 1);  // 80 have 640 tiles
}

int main() {
  check_divisors();
  check_groups();
  unsigned counter = 0;
  for (int i = 0; i < 400; ++i) {
    const int group = 1 << random_below(3), heads = group * int(1 + random_below(6));
    const int batch = int(1 + random_below(3)), q_len = int(1 + random_below(i % 2 ? 200 : 3000));
    Launch masked(batch, heads, group, q_len, int(random_below(40000)), 1 + random_below(140), &counter);
    Launch plain = masked;
    masked.run<true>();
    plain.run<false>();
    masked.run<true, true>();
    plain.run<false, true>();
    plain.check_batches();
    plain.check_order(order_groups(plain.tiles));
    plain.check_order(1 + random_below(unsigned(plain.p.shape.heads_kv * plain.p.shape.batch)));
  }
  puts("every tile was taken once");
}
