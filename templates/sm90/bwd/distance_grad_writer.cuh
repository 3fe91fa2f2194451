// sm90/bwd/distance_grad_writer.cuh: the warp that adds sums of dS by distance q - kv to parameter gradients,
// in the deterministic backward of the sm90 family.
//
// Over a grid it does so for all kernels: a box's sums by displacement (grads/displacement_sums.cuh) go to memory at once.
//
// It is the third warp of the producer's warpgroup; over a grid the second and the fourth, where they are idle, take parts of its
// rows. An exact sum (ops/reproducible_sum.cuh) takes two
// additions to memory for each number, so there should be few numbers. Each consumer warp writes the sums of
// its 16 keys and the tile's queries to a row of shared memory, and arrives at `sums_full`. This warp adds up
// the rows of all warps in order. It also adds what it has kept of earlier tiles, since a distance occurs in
// up to three q tiles of a kv tile. It then releases the rows for the next sums. Sums that no later tile
// extends go to memory: tile_m numbers for each tile.
#pragma once
#include "sm90/bwd/parameter_grads_sm90.cuh"
#include "tma/backward_messages.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"

template <class Spec, class Config>
struct SumsWriterSm90 {
  using Shared = SharedBwdSm90<Spec, Config>;
  using Head = typename Spec::Head;
  using Acc = typename Spec::Acc;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, warps = Shared::warps;
  // Numbers of groups of 32 distances: of a tile; of those that later tiles may extend; of the others.
  static constexpr int groups = Shared::sums_groups, kept = tile_n / 32, leaving = groups - kept;

  const LuattnParams &p;
  const Shared shared;
  const int part, lane;  // over a grid, of `Shared::sums_writers`
  SequenceOf<Config> site;
  Head head;
  Acc acc;
  int kv0, next_q;       // end of the last tile; sums at distances from next_q - kv0 - tile_n on are
                         // kept; -1: none are kept
  int first;             // position in the ring of the next tile's first group
  u32 kv_count, parity;  // kv tiles before this one; parity of the sums' barriers
  PipelineState<Config::stages> q;

  __device__ __forceinline__ SumsWriterSm90(const LuattnParams &params, const Shared &s, int number)
      : p(params),
        shared(s),
        part(number),
        lane(int(threadIdx.x) % 32),
        site(params, 0, 0),
        kv0(0),
        next_q(-1),
        first(0),
        kv_count(0),
        parity(0),
        q(0) {}

  __device__ __forceinline__ float line(int warp, int i) const {
    return __uint_as_float(load_shared(shared.line(warp) + i * 4));
  }
  // Sums group i of a tile's distances, which begin at -tile_n, over all warps. The warps' keys are 16 apart.
  __device__ __forceinline__ float all_lines(int i) const {
    float x = 0.f;
#pragma unroll
    for (int warp = 0; warp < warps; ++warp) {
      const int at = i * 32 - tile_n + 16 + warp * 16 + lane;  // index in the row, which begins at distance -16
      if (at >= 0 && at < Shared::line_floats) x += line(warp, at);
    }
    return x;
  }
  // Sums the rows of a tile in one bucket (Spec::same_bucket). Such a row has one number for each lane, and
  // all the numbers go to one gradient.
  __device__ __forceinline__ float same_bucket_lines() const {
    float x = 0.f;
#pragma unroll
    for (int warp = 0; warp < warps; ++warp) x += line(warp, lane);
    return lanes_sum<32>(x);
  }

  // The address of group i of the kept sums, which are a ring.
  __device__ __forceinline__ u32 group_at(int i) const {
    const int stage = first + i;
    return shared.sums_kept() + ((stage < groups ? stage : stage - groups) * 32 + lane) * 4;
  }
  // Adds get(i), for each group i of a tile's distances, to the kept sums.
  template <class Get>
  __device__ __forceinline__ void keep(const Get &get) const {
#pragma unroll 1
    for (int i = 0; i < groups; ++i) {
      const float before = next_q >= 0 && i < kept ? __uint_as_float(load_shared(group_at(i))) : 0.f;
      store_shared(group_at(i), __float_as_uint(before + get(i)));
    }
  }
  // Adds the first `out` groups, whose distances begin at q0 - kv0 - tile_n, to memory.
  __device__ __forceinline__ void add_groups(int q0, int out) {
#pragma unroll 1
    for (int i = 0; i < out; ++i) {
      const float x = __uint_as_float(load_shared(group_at(i)));
      if (__any_sync(0xffffffffu, x != 0.f))
        Spec::add_distance(p, site, head, q0 - tile_n + i * 32 + lane, kv0, x, acc);
    }
  }
  __device__ __forceinline__ void flush() {
    if (next_q >= 0) add_groups(next_q, kept);
    next_q = -1;
  }

  __device__ __forceinline__ TileMessage await_tile() {
    barrier_wait(shared.q_full(q.stage), q.parity);
    const TileMessage tile = TileMessage::load(shared.message(q.stage));
    barrier_arrive(shared.empty(q.stage));
    q.advance();
    return tile;
  }
#ifdef LUATTN_GRID
  // From the first place of a box of queries to that of the keys.
  __device__ __forceinline__ Displacement displacement(TileMessage tile) const {
    constexpr int first_axis = GridSideOf<true>::first_axis;
    Displacement from;
    GridSideOf<true>::each_corner(p, kv0 / tile_n, [&](auto axis, int at) { from.at[axis.value - first_axis] = at; });
    GridSideOf<false>::each_corner(p, tile.index(), [&](auto axis, int at) { from.at[axis.value - first_axis] -= at; });
    return from;
  }
#endif
  // Fills the table of a tile's terms, with the other warps. `at`: where Q has the tile.
  __device__ __forceinline__ void fill_terms(TileMessage tile, PipelineState<Config::stages> at) {
#ifdef LUATTN_GRID
    using Pair = BoxPair<tile_n>;
    const int first = part * 32 + lane;
    const DisplacementTable<Spec, Pair, Shared::sums_writers * 32> table(p, site, head, displacement(tile), first);
    barrier_wait(shared.terms_empty(at.stage), at.parity ^ 1);
    table.store(shared.all_terms(at.stage), first);
    barrier_arrive(shared.terms_full(at.stage));
#endif
  }
  // Over a grid: adds the sums of a box of queries to memory.
  __device__ __forceinline__ void add_box(TileMessage tile) {
#ifdef LUATTN_GRID
    using Lines = DisplacementLines<warps>;
    const Displacement from = displacement(tile);
    barrier_wait(shared.sums_full(), parity);
    parity ^= 1;
    Lines::template each<Shared::sums_writers>(
        shared.line(0), part, lane, from,
        [&](const Displacement &at, float sum) { Spec::add_distance(p, site, head, Origin{}, at, sum, acc); });
    barrier_arrive(shared.sums_empty());
#endif
  }
  __device__ __forceinline__ void add_tile(TileMessage tile) {
    const int q0 = tile.index() * tile_m;
    if (q0 != next_q) flush();
    barrier_wait(shared.sums_full(), parity);
    parity ^= 1;
    if (Spec::may_be_same_bucket && tile.same_bucket()) {
      const float all = same_bucket_lines();  // at the distance of the tile's first query and key
      keep([&](int i) { return i == kept && lane == 0 ? all : 0.f; });
    } else {
      keep([&](int i) { return all_lines(i); });
    }
    barrier_arrive(shared.sums_empty());
    add_groups(q0, leaving);
    first = first + leaving < groups ? first + leaving : first + leaving - groups;
    next_q = q0 + tile_m;
  }
  __device__ __forceinline__ void enter_head(int h) {
    site.h = h;
    head = Spec::head(p, site);
    acc = zero_acc<Acc>();
  }
  __device__ __forceinline__ void leave_head() {
    if constexpr (!Shared::over_grid) flush();
    if constexpr (Spec::num_acc > 0) flush_warp<Spec>(p, site, head, acc);
  }
  // Adds the sums of a head's tiles, of which `tile` is the first; returns the last.
  __device__ __forceinline__ TileMessage add_head(TileMessage tile) {
#pragma unroll 1
    for (;; tile = await_tile()) {
      if constexpr (Shared::over_grid)
        add_box(tile);
      else
        add_tile(tile);
      if (tile.last()) return tile;
    }
  }
  // The same with tables, each a tile ahead of the sums. `at`: where Q has the first tile.
  __device__ __forceinline__ TileMessage fill_and_add_head(TileMessage tile, PipelineState<Config::stages> at) {
    fill_terms(tile, at);
#pragma unroll 1
    for (;;) {
      TileMessage next = tile;
      if (!tile.last()) {
        at = q;
        next = await_tile();
        fill_terms(next, at);
      }
      add_box(tile);
      if (tile.last()) return tile;
      tile = next;
    }
  }
  __device__ __forceinline__ void add_tiles() {
    for (bool more = true; more;) {
      const PipelineState<Config::stages> at = q;
      TileMessage tile = await_tile();
      enter_head(int(tile.head));
      if constexpr (Shared::fills_terms)
        tile = fill_and_add_head(tile, at);
      else
        tile = add_head(tile);
      more = !tile.ends_block();
      leave_head();
    }
  }
  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (BlockMessage message = shared.await_block(0); message.state != BlockMessage::END;
         message = shared.await_block(kv_count)) {
      barrier_arrive(shared.kv_empty());
      site.move_to(p, message.at.b, site.h);
      kv0 = message.at.tile * tile_n;
      if (message.state == BlockMessage::SOME) add_tiles();
      ++kv_count;
    }
  }
};
