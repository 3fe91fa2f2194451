// tma/forward_producer.cuh: the producer of a forward kernel, one warp. It draws q tiles from the tile scheduler, walks the
// kv tiles that the mask leaves, and loads Q, K and V by TMA. templates/README.md shows the timing. Over keys in pages another
// warp loads V. Shared: the kernel's shared memory, as SharedSm90 (sm90/pipeline.cuh).
#pragma once
#include "tma/bulk_copies.cuh"
#include "tma/forward_messages.cuh"
#include "tma/mbarrier.cuh"
#include "tma/page_loads.cuh"
#include "tma/stages.cuh"
#include "tma/warp_kv_tiles.cuh"
#include "tma/warp_roles.cuh"
#include "work/sequence.cuh"
#include "work/tile_scheduler.cuh"

template <class Spec, class Config, class Shared>
struct ForwardProducer {
  static constexpr int tile_n = Config::tile_n;
  using Sequence = SequenceOf<Config>;
  using Tile = TileOf<typename Sequence::KeyTile>;
  using Loads = PageLoads<Spec, Config, Shared>;
  using Page = typename Loads::Page;

  const LuattnParams &p;
  const MapsOf<Config> &maps;
  const Shared shared;
  PipelineState<Config::stages> k, v;
  PipelineState<1> q;
#ifdef LUATTN_FREE_BOXES
  BoxesOfRange boxes;  // of the q tile at work
#endif

  // Stages begin empty: the first wait for each returns at once.
  __device__ __forceinline__ ForwardProducer(const LuattnParams &params, const MapsOf<Config> &m, const Shared &s)
      : p(params), maps(m), shared(s), k(1), v(1), q(1) {}

  // Q of a tile can only be loaded once the consumers have read the one before. With few kv tiles that is soon before
  // they need it.
  __device__ __forceinline__ void prefetch_q(const Sequence &site, const BlockSite &block) const {
    if (!elected()) return;
#pragma unroll 1
    for (int g = 0; g < Shared::groups; ++g)
#pragma unroll
      for (int i = 0; i < Shared::boxes; ++i)
        tensor_prefetch(usual_maps(maps).q, i * 64, site.q_box(p, block.q_tile * Config::tile_m + g * 64), block.h);
  }
  __device__ __forceinline__ void load_q(const Sequence &site, const QTileMessage &message) {
    const bool some = message.state == QTileMessage::SOME;
#pragma unroll 1
    for (int g = 0; g < Shared::groups; ++g) {
      barrier_wait(shared.q_empty(g), q.parity);
      if (elected()) {
        message.store(shared.q_message(g));
#ifdef LUATTN_FREE_BOXES
        boxes.store(shared.q_boxes(g));
#endif
        barrier_arrive_expect(shared.q_full(g), some ? Shared::q_bytes : 0);
        const auto box = site.q_box(p, message.q_tile * Config::tile_m + g * 64);
        if (some)
#pragma unroll
          for (int i = 0; i < Shared::boxes; ++i)
            tensor_load(shared.q(g) + i * 64 * 128, usual_maps(maps).q, shared.q_full(g), i * 64, box, message.h);
      }
    }
    q.advance();
  }
  // Sends the loaders a message about the tile whose K is loaded next.
  __device__ __forceinline__ void tell_loaders(const LoaderMessage &message) {
    if constexpr (Shared::loaders > 0) {
      static_assert(Sequence::is_line || Shared::term_loaders == Shared::loaders, "loaders stage rows along lines");
      barrier_wait(shared.messages_empty(k.stage), k.parity);
      if (elected()) {
        message.store(shared.loader_message(k.stage));
        barrier_arrive(shared.messages_full(k.stage));
      }
    }
  }
  __device__ __forceinline__ void load_k(const Sequence &site, Tile tile, Page page, bool last, int head) {
    barrier_wait(shared.k_empty(k.stage), k.parity);
    if (elected()) {
      KvTileMessage<typename Sequence::KeyTile>::of(tile, last).store(shared.k_message(k.stage));
      barrier_arrive_expect(shared.k_full(k.stage), Shared::k_bytes);
      if constexpr (!Sequence::paged) {
        const auto box = site.kv_box(p, Sequence::template first_key<tile_n>(tile.index));
#pragma unroll
        for (int i = 0; i < Shared::boxes; ++i)
          tensor_load(shared.k(k.stage) + i * tile_n * 128, usual_maps(maps).k, shared.k_full(k.stage), i * 64, box,
                      head);
      }
    }
    if constexpr (Sequence::paged)
      Loads{p, maps}.template load<typename Loads::Keys>(site, shared.k(k.stage), shared.k_full(k.stage), tile.index,
                                                         page, head);
    k.advance();
  }
  __device__ __forceinline__ void load_v(const Sequence &site, Tile tile, Page page, int head) {
    barrier_wait(shared.v_empty(v.stage), v.parity);
    if (elected()) {
      barrier_arrive_expect(shared.v_full(v.stage), Shared::v_bytes);
      if constexpr (!Sequence::paged) {
        const auto box = site.kv_box(p, Sequence::template first_key<tile_n>(tile.index));
#pragma unroll
        for (int i = 0; i < Shared::boxes_v; ++i)
          tensor_load(shared.v(v.stage) + i * tile_n * 128, usual_maps(maps).v, shared.v_full(v.stage), i * 64,
                      of_v(box), head);
      }
    }
    if constexpr (Sequence::paged)
      Loads{p, maps}.template load<typename Loads::Values>(site, shared.v(v.stage), shared.v_full(v.stage), tile.index,
                                                           page, head);
    v.advance();
  }

  // K is loaded one tile ahead of V, as consumers use them.
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
      if constexpr (Spec::has_tile_bits) prefetch_q(site, block);
      WarpKvTilesOf<Spec, Sequence, Config::tile_m, tile_n> walk(p, site, block.q_tile);
#ifdef LUATTN_FREE_BOXES
      boxes = walk.boxes;
#endif
      Tile of_k{Tile::none(), false}, of_v{Tile::none(), false};  // the tiles whose K, and whose V, are loaded next
      Page k_page{}, v_page{};                                    // theirs
      bool some = false;
      for (;;) {
        const Tile next = walk.next(p, site);
        Page next_page{};
        if constexpr (Sequence::paged) next_page = Loads{p, maps}.page_of_lane(site, next.index);
        // Draws the next q tile before it loads the last K, because the answer takes a while. A block that
        // drew earlier would hold a tile that an idle block could take.
        if (!next.valid() && (of_k.valid() || !some)) scheduler.draw();
        if (of_k.valid()) {
          tell_loaders(LoaderMessage::of(block.q_tile, block.h, block.b, of_k.index, !some));
          load_k(site, of_k, k_page, !next.valid(), block.h_kv);
          if (!some) load_q(site, {block.q_tile, block.h, block.b, u32(QTileMessage::SOME)});
          some = true;
        }
        if (of_v.valid()) load_v(site, of_v, v_page, block.h_kv);
        if constexpr (Shared::value_loaders == 0) of_v = of_k, v_page = k_page;
        of_k = next, k_page = next_page;
        if (!of_v.valid() && !of_k.valid()) break;
      }
      if (!some) load_q(site, {block.q_tile, block.h, block.b, u32(QTileMessage::EMPTY)});
      scheduler.advance();
    }
    load_q(Sequence(), {0, 0, 0, QTileMessage::END});
    tell_loaders(LoaderMessage::end());
    if constexpr (Shared::value_loaders == 0) await_last_v<Spec>(shared, v);
  }
};
