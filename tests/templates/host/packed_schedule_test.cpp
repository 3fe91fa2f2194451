// packed_schedule_test.cpp: tests the order of kv tiles of packed sequences (work/packed_kv_scheduler.cuh) for tables as
// luattn_tile_table writes them: every tile of every head comes once, a head's tiles of a sequence in their order, and
// heads come one after another up to the last sequences.
#include "host_cuda.hpp"

static unsigned atomicAdd(unsigned *p, unsigned n) {
  const unsigned old = *p;
  *p += n;
  return old;
}
#include "work/packed_kv_scheduler.cuh"

constexpr int tile_n = 128;

struct Spec {
  static constexpr bool has_mask = true, has_tile_bits = false, has_query_mod = false, has_key_mod = false,
                        has_value_mod = false, bias_row_shared = false;
  static constexpr int parameter_sums = 0;
};
struct Config {
  static constexpr int head_dim = 128, tile_n = ::tile_n;
  static constexpr bool packed = true, deterministic = false, wants_inputs = false, wants_scalars = false,
                        wants_dq = true, wants_dk = true, wants_dv = true, accumulates_dq = true, dq_first_store = true;
};

struct Launch {
  std::vector<LuattnPackedTile> set;
  LuattnPackedTileParams p{};
  std::vector<int> lengths;
  unsigned heads, count = 0, last = 0;

  // lengths: the longest first.
  Launch(std::vector<int> of, unsigned heads_kv, unsigned multiprocessors) : lengths(std::move(of)), heads(heads_kv) {
    set.resize(1);
    for (unsigned s = 0; s < lengths.size(); ++s) {
      const unsigned tiles = unsigned((lengths[s] + tile_n - 1) / tile_n);
      for (unsigned i = 0; i < tiles; ++i) set.push_back({s, i, tiles, 0});
      count += tiles;
    }
    p.shape.heads_kv = int(heads);
    p.table.at_end = 1 + 2 * multiprocessors / heads;
    size_t from = lengths.size();
    while (from > 0 && last < p.table.at_end) last += tiles_of(--from);
    const bool equal = tiles_of(from) == tiles_of(lengths.size() - 1);
    const LuattnPackedHead head{equal ? last / tiles_of(from) : 1, tiles_of(from), count, last};
    memcpy(&set[0], &head, sizeof head);
    p.table.sets[1][workspace_table_slot(tile_n)] = set.data();
  }
  unsigned tiles_of(size_t s) const { return unsigned((lengths[s] + tile_n - 1) / tile_n); }

  void check() {
    const KvTileSchedulerOf<Spec, Config> scheduler(p);
    std::vector<unsigned> next(lengths.size() * heads, 0);
    unsigned before = 0;
    for (unsigned drawn = 0; drawn < count * heads; ++drawn) {
      const KvBlock at = scheduler.block_at(drawn);
      if (at.tile < 0 || at.h < 0 || at.h >= int(heads) || at.b < 0 || at.b >= int(lengths.size()))
        host_fail("a tile lies outside of the sequences");
      if (next[unsigned(at.b) * heads + unsigned(at.h)]++ != unsigned(at.tile))
        host_fail("a head's tiles of a sequence do not come once and in order");
      if (drawn < (count - last) * heads && at.tile > 0 && unsigned(at.h) != before)
        host_fail("heads come together before the last sequences");
      before = unsigned(at.h);
    }
    for (size_t i = 0; i < next.size(); ++i)
      if (next[i] != tiles_of(i / heads)) host_fail("a tile was not drawn");
    if (scheduler.block_at(count * heads).tile >= 0) host_fail("a tile was drawn that there is not");
  }
};

int main() {
  const unsigned multiprocessors = 132;
  for (unsigned heads : {1u, 4u, 8u, 16u, 32u})
    for (const std::vector<int> &lengths : std::vector<std::vector<int>>{{32768},
                                                                         {4096, 4096, 4096},
                                                                         {16384, 512, 512, 512},
                                                                         {5490, 3000, 1000, 256, 256, 1},
                                                                         {512, 512},
                                                                         {1},
                                                                         {700, 600, 500}}) {
      Launch launch(lengths, heads, multiprocessors);
      launch.check();
    }
  return 0;
}
