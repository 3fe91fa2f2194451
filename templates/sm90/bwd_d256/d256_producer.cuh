// sm90/bwd_d256/d256_producer.cuh: the two warps of sm90/bwd_d256/bwd_d256.cuh that copy data. The producer
// loads tiles from memory by TMA, and the sender copies dS to the other block of the cluster.
#pragma once
#include "arch/warp.cuh"
#include "score/bias_rows.cuh"
#include "sm90/bwd_d256/d256_pipeline.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/cluster.cuh"
#include "tma/mbarrier.cuh"
#include "tma/row_loads.cuh"
#include "tma/stages.cuh"
#include "tma/warp_q_tiles.cuh"
#include "tma/warp_roles.cuh"
#include "work/kv_tile_scheduler.cuh"

template <class Spec, class Config>
struct ProducerD256 {
  using Shared = SharedD256<Spec, Config>;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, box = Shared::box;

  const LuattnParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const int rank;
  SequenceOf<Config> site;
  typename Spec::Head head;
  PipelineState<Config::stages> q, dout;
  u32 draws, kv_tiles;  // counts of this block: draws; kv tiles that have q tiles

  __device__ __forceinline__ ProducerD256(const LuattnParams &params, const LuattnTensorMaps &m, const Shared &s)
      : p(params), maps(m), shared(s), rank(cluster_rank()), site(params, 0, 0), q(1), dout(1), draws(0), kv_tiles(0) {}

  // One block of the cluster draws a kv tile and sends its number to the other block.
  __device__ __forceinline__ u32 draw(const KvTileSchedulerOf<Spec, Config, 2> &scheduler) {
    const u32 parity = draws++ & 1;
    u32 drawn = 0;
    if (rank == 0) {
      drawn = scheduler.draw_number();
      barrier_wait(shared.drawn_empty(), parity ^ 1);
      if (lane_anew() == 0) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared.drawn()), "r"(drawn) : "memory");
        fence_async();
        copy_to_peer(shared.drawn(), shared.drawn(), 16, shared.drawn_full(), rank);
      }
      return drawn;
    }
    if (lane_anew() == 0) {
      barrier_arrive_expect(shared.drawn_full(), 16);
      barrier_wait(shared.drawn_full(), parity);
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(drawn) : "r"(shared.drawn()) : "memory");
      barrier_arrive_peer(shared.drawn_empty(), rank);
    }
    __syncwarp();
    return uniform(drawn);
  }

  // Fills the next stage of dO with V, or only with a message.
  __device__ __forceinline__ void load_v(const KvBlock &at, D256Message::Kind kind) {
    barrier_wait(shared.do_empty(dout.stage), dout.parity);
    if (elected()) {
      const u32 full = shared.do_full(dout.stage);
      D256Message::of(kind, at, {0, false}, site.first_head(p, at.h), kind != D256Message::VALUES)
          .store(shared.do_message(dout.stage));
      barrier_arrive_expect(full, kind == D256Message::VALUES ? Shared::v_bytes : 0);
      if (kind == D256Message::VALUES) {
        const auto rows = SequenceOf<Config>(p, at.b, 0).kv_box(p, (at.tile * 2 + rank) * tile_n);
#pragma unroll
        for (int i = 0; i < Shared::boxes_v; ++i)
          tensor_load(shared.dout(dout.stage) + i * box, maps.v, full, i * 64, of_v(rows), at.h);
      }
    }
    if constexpr (Shared::has_rows) barrier_arrive(shared.do_full(dout.stage));
    dout.advance();
  }
  // Sends the message that a kv tile has no q tiles, or that there are no more kv tiles.
  __device__ __forceinline__ void tell(const KvBlock &at, D256Message::Kind kind) {
    load_v(at, kind);
    barrier_wait(shared.q_empty(q.stage), q.parity);
    if (elected()) {
      D256Message::of(kind, at, {0, false}, site.first_head(p, at.h), true).store(shared.q_message(q.stage));
      barrier_arrive(shared.q_full(q.stage));
    }
    q.advance();
  }
  // Loads K, whose bytes count for the barrier of the first Q. The channels for which the other block
  // computes dQ are free, and loaded, as soon as the last scores of the previous kv tile are computed.
  __device__ __forceinline__ void load_k(const KvBlock &at) const {
    const auto rows = SequenceOf<Config>(p, at.b, 0).kv_box(p, (at.tile * 2 + rank) * tile_n);
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      const int whose = rank ^ 1 ^ part, first = Shared::first_dq(whose), count = Shared::num_dq(whose);
      barrier_wait(part == 0 ? shared.k_scored() : shared.k_empty(), kv_tiles & 1 ^ 1);
      if (elected())
#pragma unroll 1
        for (int i = first; i < first + count; ++i)
          tensor_load(shared.k() + i * box, maps.k, shared.q_full(q.stage), i * 64, rows, at.h);
    }
  }
  // Loads dO and then Q. A stage of dO is free earlier and needed earlier.
  __device__ __forceinline__ void load_tile(const KvBlock &at, Tile tile, bool begins, bool ends) {
    const int row = tile.index * tile_m;
    const D256Message message = D256Message::of(D256Message::TILE, at, tile, site.h, ends);
    prefetch_bias_rows<Spec, tile_m, tile_n>(p, site, head, row, (at.tile * 2 + rank) * tile_n, lane_anew());
    barrier_wait(shared.do_empty(dout.stage), dout.parity);
    const auto at_q = site.q_box(p, row);
    if (elected()) {
      const int rows = site.template q_acc_count<ResultGroups>(p, row, tile_m);
      const u32 full = shared.do_full(dout.stage);
      message.store(shared.do_message(dout.stage));
      barrier_arrive_expect(full, Shared::v_bytes + Spec::num_bwd_rows * rows * 4);
#pragma unroll
      for (int i = 0; i < Shared::boxes_v; ++i)
        tensor_load(shared.dout(dout.stage) + i * box, maps.dout, full, i * 64, of_dout(at_q), site.h);
      load_numbers<Spec>(p, site, shared, dout.stage, full, row, rows);
    }
    if constexpr (Shared::has_rows) {
      load_rows<Spec>(p, site, head, shared, dout.stage, row, lane_anew());
      barrier_arrive(shared.do_full(dout.stage));
    }
    barrier_wait(shared.q_empty(q.stage), q.parity);
    if (elected()) {
      const u32 full = shared.q_full(q.stage);
      message.store(shared.q_message(q.stage));
      barrier_arrive_expect(full, Shared::k_bytes * (begins ? 2 : 1));
#pragma unroll
      for (int i = 0; i < Shared::boxes; ++i)
        tensor_load(shared.q(q.stage) + i * box, maps.q, full, i * 64, at_q, site.h);
    }
    if (begins) {
      load_k(at);
      ++kv_tiles;
    }
    q.advance();
    dout.advance();
  }

  // Loads V and the q tiles of a kv tile.
  __device__ __forceinline__ void load_block(const KvBlock &at) {
    const QShare share{at.split};
    SequenceOf<Config> ahead(p, at.b, site.first_head(p, at.h) + share.first(p) - 1);
    const int last_head = site.first_head(p, at.h) + share.end(p) - 1;
    using Walk = WarpQTilesOf<Spec, SequenceOf<Config>, tile_m, 2 * tile_n, false, Shared::in_order>;
    Walk walk;
    bool begins = true;
    for (Tile tile{-1, false};;) {
      const Tile after = walk.next(p, ahead);
      if (!after.valid() && ahead.h < last_head) {
        ++ahead.h;
        walk = Walk(p, ahead, at.tile, share);
        continue;
      }
      const bool there = tile.valid(), ends = !after.valid();
      if (there) {
        load_tile(at, tile, begins, ends);
        begins = false;
      } else if (!ends) {
        load_v(at, D256Message::VALUES);
      }
      if (ends) {
        if (!there) tell(at, D256Message::NOTHING);
        break;
      }
      if (!there || ahead.h != site.h) {
        site = ahead;
        head = Spec::head(p, site);
      }
      tile = after;
    }
  }
  __device__ __forceinline__ void run() {
    const KvTileSchedulerOf<Spec, Config, 2> scheduler(p);
#pragma unroll 1
    for (;;) {
      if constexpr (SequenceOf<Config>::packed)
        site = SequenceOf<Config>();  // no register keeps it while the next tile is sought
      KvBlock at = scheduler.block_at(draw(scheduler));
      if (at.tile < 0) break;
      do load_block(at);
      while (scheduler.next(at));
    }
    tell({0, 0, 0, 0}, D256Message::END);
  }
};

// Sends dS of each tile to the other block as soon as it is ready. A separate warp does this, so that the
// threads of the scores' warpgroup do not wait for one another. Its lanes release Q, as all readers of a
// message do. With the other block's first dS of a kv tile, it also loads the channels of that block's K for
// which this block computes dQ.
template <class Spec, class Config>
struct SenderD256 {
  using Shared = SharedD256<Spec, Config>;

  LUATTN_FN void run(const LuattnParams &p, const LuattnTensorMaps &maps, const Shared &shared) {
    const int rank = cluster_rank();
    PipelineState<Config::stages> stage(0);
    PipelineState<2> ds(0);
    bool begins = true;
    u32 parity = 1;
#pragma unroll 1
    for (;;) {
      barrier_wait(shared.q_full(stage.stage), stage.parity);
      const D256Message message = D256Message::load(shared.q_message(stage.stage));
      if (message.is(D256Message::END)) {
        if constexpr (Shared::in_order) tell_order(shared, message, ds);
        break;
      }
      if (message.is(D256Message::TILE)) {
        const u32 full = shared.peer_ds_full(ds.stage);
        if (begins) {  // All dQ of the previous kv tile is complete, so no phase of the
                       // barrier is in progress.
          barrier_wait(shared.k_empty(), parity);
          parity ^= 1;
          if (elected()) load_peer_k(p, maps, shared, message, full, rank);
        }
        // Sends only after this block's own dS is complete, because the scores' warpgroup reads both
        // together.
        barrier_wait(shared.ds_full(ds.stage), ds.parity);
        if (elected()) {
          barrier_arrive_expect(full, Shared::box);
          copy_to_peer(shared.peer_ds(ds.stage), shared.ds(ds.stage), Shared::box, full, rank);
        }
        if constexpr (Shared::in_order) tell_order(shared, message, ds);
        ds.advance();
        begins = message.ends_block();
      }
      barrier_arrive(shared.q_empty(stage.stage));
      stage.advance();
    }
  }

 private:
  // Names the next tile to the warp that waits for semaphores.
  LUATTN_FN void tell_order(const Shared &shared, const D256Message &message, const PipelineState<2> &ds) {
    barrier_wait(shared.order_read(ds.stage), ds.parity ^ 1);
    if (elected()) {
      message.store(shared.order_message(ds.stage));
      barrier_arrive(shared.order_told(ds.stage));
    }
  }
  LUATTN_FN void load_peer_k(const LuattnParams &p, const LuattnTensorMaps &maps, const Shared &shared,
                             const D256Message &message, u32 full, int rank) {
    const int first = Shared::first_dq(rank), count = Shared::num_dq(rank);
    barrier_expect(full, count * Shared::box);
    const SequenceOf<Config> site(p, int(message.b), int(message.head));
    const auto rows = site.kv_box(p, (message.kv_tile() * 2 + (rank ^ 1)) * Config::tile_n);
#pragma unroll 1
    for (int i = 0; i < count; ++i)
      tensor_load(shared.peer_k() + i * Shared::box, maps.k, full, (first + i) * 64, rows, site.kv_head(p));
  }
};
