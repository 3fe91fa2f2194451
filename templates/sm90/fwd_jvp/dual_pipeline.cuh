// sm90/fwd_jvp/dual_pipeline.cuh: shared memory and mbarriers of forward with tangents (sm90), and its producer. A stage of
// K holds K and its tangent, if that is given, and so do a stage of V and Q of each consumer.
#pragma once
#include "contract/tangent.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/forward_messages.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"
#include "tma/warp_kv_tiles.cuh"
#include "tma/warp_roles.cuh"
#include "work/sequence.cuh"
#include "work/tile_scheduler.cuh"

template <class Spec, class Config>
struct SharedDualSm90 {
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, stages = Config::stages;
  static constexpr int groups = tile_m / 64;  // consumer warpgroups
  static constexpr int boxes = ceil_div(Config::head_dim, 64), boxes_v = ceil_div(Config::head_dim_v, 64);
  static constexpr FwdJvpSm90Layout layout =
      fwd_jvp_sm90_layout(layout_sizes<Config>({.tangents = tangent_bits<Spec>()}));
  static constexpr int q_bytes = layout.q, k_bytes = layout.k, v_bytes = layout.v;  // of one of both
  static constexpr int q_room = q_bytes * (1 + Spec::tangent_of_q), k_room = k_bytes * (1 + Spec::tangent_of_k),
                       v_room = v_bytes * (1 + Spec::tangent_of_v);
  static constexpr int bytes = layout.bytes;
  static_assert(tile_m % 64 == 0 && tile_n % 16 == 0 && stages >= 2 && Config::threads == 128 + 2 * tile_m);
  static_assert(bytes <= LUATTN_SM90_SHARED_BYTES && stages * 36 + groups * 32 <= 512);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ u32 q(int group) const { return start + group * q_room; }
  __device__ __forceinline__ u32 k(int stage) const { return q(groups) + stage * k_room; }
  __device__ __forceinline__ u32 v(int stage) const { return k(stages) + stage * v_room; }
  __device__ __forceinline__ u32 k_full(int stage) const { return v(stages) + stage * 32; }
  __device__ __forceinline__ u32 k_empty(int stage) const { return k_full(stage) + 8; }
  __device__ __forceinline__ u32 v_full(int stage) const { return k_full(stage) + 16; }
  __device__ __forceinline__ u32 v_empty(int stage) const { return k_full(stage) + 24; }
  __device__ __forceinline__ u32 q_full(int group) const { return k_full(stages) + group * 16; }
  __device__ __forceinline__ u32 q_empty(int group) const { return q_full(group) + 8; }
  __device__ __forceinline__ u32 q_message(int group) const { return q_full(groups) + group * 16; }
  __device__ __forceinline__ u32 k_message(int stage) const { return q_message(groups) + stage * 4; }

  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < stages; ++i) {
      barrier_init(k_full(i), 1);
      barrier_init(k_empty(i), groups * 4);
      barrier_init(v_full(i), 1);
      barrier_init(v_empty(i), groups * 4);
    }
    for (int g = 0; g < groups; ++g) {
      barrier_init(q_full(g), 1);
      barrier_init(q_empty(g), 4);
    }
    barrier_init_done();
  }
};

// One warp. It draws q tiles, walks the kv tiles that the mask leaves, and loads K one tile ahead of V, as
// tma/forward_producer.cuh does.
template <class Spec, class Config>
struct DualProducer {
  using Shared = SharedDualSm90<Spec, Config>;
  using Sequence = SequenceOf<Config>;
  using Tile = TileOf<typename Sequence::KeyTile>;
  static constexpr int tile_n = Config::tile_n;
  static_assert(Sequence::is_line && !Sequence::paged);

  const LuattnParams &p;
  const LuattnTangentMaps &maps;
  const Shared shared;
  PipelineState<Config::stages> k, v;
  PipelineState<1> q;

  __device__ __forceinline__ DualProducer(const LuattnParams &params, const LuattnTangentMaps &m, const Shared &s)
      : p(params), maps(m), shared(s), k(1), v(1), q(1) {}

  template <int Boxes, class Box>
  __device__ __forceinline__ void load(u32 to, const LuattnTensorMap &map, u32 full, int box_bytes, const Box &box,
                                       int head) const {
#pragma unroll
    for (int i = 0; i < Boxes; ++i) tensor_load(to + i * box_bytes, map, full, i * 64, box, head);
  }
  __device__ __forceinline__ void load_q(const Sequence &site, const QTileMessage &message) {
    const bool some = message.state == QTileMessage::SOME;
#pragma unroll 1
    for (int g = 0; g < Shared::groups; ++g) {
      barrier_wait(shared.q_empty(g), q.parity);
      if (elected()) {
        message.store(shared.q_message(g));
        barrier_arrive_expect(shared.q_full(g), some ? Shared::q_room : 0);
        const auto box = site.q_box(p, message.q_tile * Config::tile_m + g * 64);
        if (some) {
          load<Shared::boxes>(shared.q(g), maps.q, shared.q_full(g), 64 * 128, box, message.h);
          if constexpr (Spec::tangent_of_q)
            load<Shared::boxes>(shared.q(g) + Shared::q_bytes, maps.q_tangent, shared.q_full(g), 64 * 128, box,
                                message.h);
        }
      }
    }
    q.advance();
  }
  __device__ __forceinline__ void load_k(const Sequence &site, Tile tile, bool last, int head) {
    barrier_wait(shared.k_empty(k.stage), k.parity);
    if (elected()) {
      const u32 to = shared.k(k.stage), full = shared.k_full(k.stage);
      KvTileMessage<typename Sequence::KeyTile>::of(tile, last).store(shared.k_message(k.stage));
      barrier_arrive_expect(full, Shared::k_room);
      const auto box = site.kv_box(p, Sequence::template first_key<tile_n>(tile.index));
      load<Shared::boxes>(to, maps.k, full, tile_n * 128, box, head);
      if constexpr (Spec::tangent_of_k)
        load<Shared::boxes>(to + Shared::k_bytes, maps.k_tangent, full, tile_n * 128, box, head);
    }
    k.advance();
  }
  __device__ __forceinline__ void load_v(const Sequence &site, Tile tile, int head) {
    barrier_wait(shared.v_empty(v.stage), v.parity);
    if (elected()) {
      const u32 to = shared.v(v.stage), full = shared.v_full(v.stage);
      barrier_arrive_expect(full, Shared::v_room);
      const auto box = site.kv_box(p, Sequence::template first_key<tile_n>(tile.index));
      load<Shared::boxes_v>(to, maps.v, full, tile_n * 128, of_v(box), head);
      if constexpr (Spec::tangent_of_v)
        load<Shared::boxes_v>(to + Shared::v_bytes, maps.v_tangent, full, tile_n * 128, of_v(box), head);
    }
    v.advance();
  }

  __device__ __forceinline__ void run() {
    TileSchedulerOf<Spec, Config> scheduler(p);
    while (scheduler.valid()) {
      const BlockSite block = scheduler.site();
      const Sequence site(p, block.b, block.h);
      if (Sequence::packed && !site.has_query(p, block.q_tile * Config::tile_m)) {  // tiles are for the longest entry
        scheduler.draw();
        scheduler.advance();
        continue;
      }
      WarpKvTilesOf<Spec, Sequence, Config::tile_m, tile_n> walk(p, site, block.q_tile);
      Tile of_k{Tile::none(), false}, of_v{Tile::none(), false};  // the tiles whose K, and whose V, are loaded next
      bool some = false;
      for (;;) {
        const Tile next = walk.next(p, site);
        if (!next.valid() && (of_k.valid() || !some)) scheduler.draw();  // before the last K: the answer takes a while
        if (of_k.valid()) {
          load_k(site, of_k, !next.valid(), block.h_kv);
          if (!some) load_q(site, {block.q_tile, block.h, block.b, u32(QTileMessage::SOME)});
          some = true;
        }
        if (of_v.valid()) load_v(site, of_v, block.h_kv);
        of_v = of_k, of_k = next;
        if (!of_v.valid() && !of_k.valid()) break;
      }
      if (!some) load_q(site, {block.q_tile, block.h, block.b, u32(QTileMessage::EMPTY)});
      scheduler.advance();
    }
    load_q(Sequence(), {0, 0, 0, QTileMessage::END});
  }
};
