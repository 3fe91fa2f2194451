// tma/backward_producer.cuh: the producer of a backward kernel, one warp. It draws the block's kv tiles, walks their q tiles,
// and loads both by TMA. Shared: the kernel's shared memory, as SharedBwdSm90 (sm90/bwd/bwd_pipeline.cuh).
#pragma once
#include "contract/needs.cuh"
#include "score/bias_rows.cuh"
#include "tma/backward_messages.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/mbarrier.cuh"
#include "tma/row_loads.cuh"
#include "tma/stages.cuh"
#include "tma/warp_q_tiles.cuh"
#include "tma/warp_roles.cuh"
#include "work/kv_tile_scheduler.cuh"

template <class Spec, class Config, class Shared>
struct BackwardProducer {
  using Need = Needs<Spec, Config>;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n;

  const LuattnParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const int lane;
  SequenceOf<Config> site;
  typename Spec::Head head;
  PipelineState<Config::stages> q;
  u32 num_tiles = 0;  // with dQ order: the block's q tiles so far

  __device__ __forceinline__ BackwardProducer(const LuattnParams &params, const LuattnTensorMaps &m, const Shared &s)
      : p(params), maps(m), shared(s), lane(int(threadIdx.x) % 32), site(params, 0, 0), q(1) {}

  // Sends the message of the block's kv tile `number`, and loads its K and V if it has a q tile.
  __device__ __forceinline__ void load_kv(const BlockMessage &message, u32 number) const {
    barrier_wait(shared.kv_empty(), number & 1 ^ 1);
    if (!elected()) return;
    message.store(shared.block_message(number));
    if (message.state != BlockMessage::SOME) return barrier_arrive(shared.kv_full());
    const auto box = of_block(message.at.b).kv_box(p, message.at.tile * tile_n);
    barrier_arrive_expect(shared.kv_full(), Shared::k_bytes + Shared::v_bytes);
#pragma unroll
    for (int i = 0; i < Shared::boxes; ++i)
      tensor_load(shared.k() + i * tile_n * 128, maps.k, shared.kv_full(), i * 64, box, message.at.h);
#pragma unroll
    for (int i = 0; i < Shared::boxes_v; ++i)
      tensor_load(shared.v() + i * tile_n * 128, maps.v, shared.kv_full(), i * 64, of_v(box), message.at.h);
  }
  // Brings K and V to the L2 cache, while their place is in use. With few q tiles a kv tile, that hides a part of the
  // load.
  __device__ __forceinline__ void prefetch_kv(const KvBlock &at) const {
    const SequenceOf<Config> of_block(p, at.b, 0);
    if (!elected()) return;
    const auto box = of_block.kv_box(p, at.tile * tile_n);
#pragma unroll
    for (int i = 0; i < Shared::boxes; ++i) tensor_prefetch(maps.k, i * 64, box, at.h);
#pragma unroll
    for (int i = 0; i < Shared::boxes_v; ++i) tensor_prefetch(maps.v, i * 64, of_v(box), at.h);
  }
  // The sequence of the block's kv tile. Consumers wait for K and V here, so that a packed entry's lengths are not read
  // again: the entry's first q tile is loaded already.
  __device__ __forceinline__ SequenceOf<Config> of_block(int b) const {
    if constexpr (SequenceOf<Config>::packed) return site;
    return SequenceOf<Config>(p, b, 0);
  }
  // `last`: the q tile is the last of its head. `ends`: it is also the last of its kv tile.
  __device__ __forceinline__ void load_q(Tile tile, u32 halves, bool last, bool ends, int kv0) {
    const int row = tile.index * tile_m;
    if constexpr (has_chunks) site.enter(p, row, kv0);
    prefetch_bias_rows<Spec, tile_m, tile_n>(p, site, head, row, kv0, lane);
    barrier_wait(shared.empty(q.stage), q.parity);
    if (elected()) {
      const auto box = site.q_box(p, row);
      const TileMessage message = TileMessage::of(tile, last, site.h, ends, halves);
      message.store(shared.message(q.stage));
      if constexpr (Shared::in_order) message.store(shared.order_message(num_tiles));
      barrier_arrive_expect(shared.q_full(q.stage), Shared::q_bytes);
#pragma unroll
      for (int i = 0; i < Shared::boxes; ++i)
        tensor_load(shared.q(q.stage) + i * tile_m * 128, maps.q, shared.q_full(q.stage), i * 64, box, site.h);
      const int rows = site.template q_acc_count<ResultGroups>(p, row, tile_m);
      barrier_arrive_expect(shared.do_full(q.stage), Shared::do_bytes + Spec::num_bwd_rows * rows * 4);
      load_numbers<Spec>(p, site, shared, q.stage, shared.do_full(q.stage), row, rows);
#pragma unroll
      for (int i = 0; i < Shared::boxes_v; ++i)
        tensor_load(shared.dout(q.stage) + i * tile_m * 128, maps.dout, shared.do_full(q.stage), i * 64, of_dout(box),
                    site.h);
    }
    if constexpr (Shared::has_rows) {
      if (Spec::grad_reads_row || (tile.masked && !tile.by_range))
        load_rows<Spec>(p, site, head, shared, q.stage, row, lane);
      barrier_arrive(shared.do_full(q.stage));
    }
    q.advance();
    if constexpr (Shared::in_order) ++num_tiles;
  }

  // Loads the q tiles of a kv tile. The first q tile comes before K and V, which have to wait until the
  // previous kv tile is done.
  // `before_last` runs before the last q tile waits for a free stage.
  template <class Function>
  __device__ __forceinline__ void load_block(const KvBlock &at, u32 number, const Function &before_last) {
    const QShare share{at.split};
    SequenceOf<Config> ahead(p, at.b, site.first_head(p, at.h) + share.first(p) - 1);
    const int last_head = site.first_head(p, at.h) + share.end(p) - 1;
    using Walk = WarpQTilesOf<Spec, SequenceOf<Config>, tile_m, tile_n, Shared::halves, Shared::in_order>;
    Walk walk;
    if constexpr (SequenceOf<Config>::packed) site = ahead;
    bool first = true;
    u32 halves = 0;
    for (Tile tile{-1, false};;) {
      Tile after = walk.next(p, ahead);
      if (!after.valid() && ahead.h < last_head) {
        ++ahead.h;
        walk = Walk(p, ahead, at.tile, share);
        continue;
      }
      const bool ends = !after.valid();
      if (ends) before_last();
      if (tile.valid()) load_q(tile, halves, ends || ahead.h != site.h, ends, at.tile * tile_n);
      if (first && (tile.valid() || ends)) {
        load_kv({at, u32(tile.valid() ? BlockMessage::SOME : BlockMessage::EMPTY)}, number);
        first = false;
      }
      if (ends) break;
      tile = after;
      halves = walk.halves;
      if (first || ahead.h != site.h) {
        if constexpr (SequenceOf<Config>::packed)
          site.h = ahead.h;  // what else there is of an entry, stays in the same registers
        else
          site = ahead;
        head = Spec::head(p, site);
      }
    }
  }
  __device__ __forceinline__ void run() {
    const KvTileSchedulerOf<Spec, Config> scheduler(p);
    u32 count = 0;
    if constexpr (SequenceOf<Config>::packed && !Need::dq_in_order) {
      // Draws a tile early: finding it takes longer than in a batch of equal lengths. In the dQ order others may wait
      // for it.
      KvBlock at = scheduler.draw(), next;
#pragma unroll 1
      for (; at.tile >= 0; at = next) load_block(at, count++, [&] { next = scheduler.draw(); });
    } else {
#pragma unroll 1
      for (;;) {
        KvBlock at = scheduler.draw();
        if (at.tile < 0) break;
        if constexpr (Spec::has_tile_bits) prefetch_kv(at);
        do load_block(at, count++, [] {});
        while (scheduler.next(at));
      }
    }
    load_kv({{0, 0, 0, 0}, BlockMessage::END}, count);
  }
};
