// schedule_check.cpp: blocks that draw their tiles (schedule.cuh), launch after launch from one counter that
// nobody zeroes in between, in whatever order the draws of a launch fall: every tile is taken once, and the
// counter is left at 0.
#include "host_cuda.hpp"

static unsigned atomicInc(unsigned *p, unsigned last) {
  const unsigned old = *p;
  *p = old >= last ? 0 : old + 1;
  return old;
}
#include "schedule.cuh"

constexpr int tile_m = 64, kv_bytes = 512;

static unsigned random_below(unsigned n) {
  static uint64_t state = 88172645463325252ull;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return unsigned((state >> 32) % n);
}

template <bool Masked>
struct Block {
  Tickets<Masked, tile_m, kv_bytes> tickets;
  bool has_drawn = false;
};

struct Launch {
  LuattnParams p;
  unsigned q_tiles, tiles, grid;
  std::vector<int> taken;

  Launch(int batch, int heads, int group, int q_len, int kv_len, unsigned multiprocessors, unsigned *counter)
      : p{} {
    p.batch = batch, p.heads = heads, p.heads_kv = heads / group, p.group = group;
    p.q_len = q_len, p.kv_len = kv_len, p.tickets = counter;
    q_tiles = unsigned(ceil_div(q_len, tile_m));
    tiles = q_tiles * unsigned(heads * batch);
    grid = min_of(tiles, multiprocessors);
    taken.resize(tiles);
  }

  void take(const BlockSite &s) {
    if (s.q_tile < 0 || s.q_tile >= int(q_tiles) || s.h < 0 || s.h >= p.heads || s.b < 0 || s.b >= p.batch)
      host_fail("a tile lies outside of the tensors");
    ++taken[(unsigned(s.b * p.heads + s.h)) * q_tiles + unsigned(s.q_tile)];
  }

  // A step is a block's next tile and draw, or what it does when its draw has come back.
  template <bool Masked>
  void run() {
    gridDim = dim3(grid);
    threadIdx = dim3(0);
    std::vector<Block<Masked>> blocks;
    std::vector<unsigned> live;
    for (unsigned i = 0; i < grid; ++i) {
      blockIdx = dim3(i);
      blocks.push_back({Tickets<Masked, tile_m, kv_bytes>(p)});
      live.push_back(i);
    }
    while (!live.empty()) {
      const unsigned at = random_below(unsigned(live.size()));
      Block<Masked> &b = blocks[live[at]];
      if (b.has_drawn) {
        b.tickets.advance();
        b.has_drawn = false;
      } else if (b.tickets.valid()) {
        take(b.tickets.site());
        b.tickets.draw();
        b.has_drawn = true;
      } else {
        live[at] = live.back();
        live.pop_back();
      }
    }
    for (int times : taken)
      if (times != 1) host_fail("a tile was not taken once");
    if (*p.tickets != 0) host_fail("the counter was not left at 0");
  }
};

int main() {
  unsigned counter = 0;
  for (int i = 0; i < 400; ++i) {
    const int group = 1 << random_below(3), heads = group * int(1 + random_below(6));
    const int batch = int(1 + random_below(3)), q_len = int(1 + random_below(i % 2 ? 200 : 3000));
    Launch masked(batch, heads, group, q_len, int(random_below(40000)), 1 + random_below(140), &counter);
    Launch plain = masked;
    masked.run<true>();
    plain.run<false>();
  }
  puts("every tile was taken once");
}
