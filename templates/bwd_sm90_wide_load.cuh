// bwd_sm90_wide_load.cuh: two warps of bwd_sm90_wide.cuh that have the copy engine move what the others
// compute with: the producer, from memory, and the sender of dS, to the other block of the pair.
#pragma once
#include "dq_acc.cuh"
#include "sm90_wide.cuh"

template <class Spec, class Config>
struct ProducerWide {
  using Shared = SharedWide<Spec, Config>;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, box = Shared::box;

  const LuattnParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const int rank;
  Site site;
  typename Spec::Head head;
  Ring<Config::stages> slot;

  __device__ __forceinline__ ProducerWide(const LuattnParams &params, const LuattnTensorMaps &m,
                                          const Shared &s)
      : p(params),
        maps(m),
        shared(s),
        rank(cluster_rank()),
        site{s.batch(params), int(blockIdx.y) * params.group, params.q_len, params.kv_len},
        slot(1) {}

  __device__ __forceinline__ void load_kv() const {
    const int h = int(blockIdx.y), row = int(blockIdx.x) * tile_n, peer_row = int(blockIdx.x ^ 1) * tile_n;
    const int first = Shared::first_dq(rank), count = Shared::num_dq(rank);
    if (!elected()) return;
    barrier_arrive_expect(shared.kv_full(), Shared::k_bytes + count * box + Shared::v_bytes);
#pragma unroll
    for (int i = 0; i < Shared::boxes; ++i)
      tensor_load(shared.k() + i * box, maps.k, shared.kv_full(), i * 64, row, h, site.b);
#pragma unroll 1
    for (int i = 0; i < count; ++i)
      tensor_load(shared.peer_k() + i * box, maps.k, shared.kv_full(), (first + i) * 64, peer_row, h, site.b);
#pragma unroll
    for (int i = 0; i < Shared::boxes_v; ++i)
      tensor_load(shared.dout(Config::stages - 1) + i * box, maps.v, shared.kv_full(), i * 64, row, h,
                  site.b);
  }
  // dO, which is free sooner and needed sooner, and Q.
  __device__ __forceinline__ void load_tile(Tile tile) const {
    const int row = tile.index * tile_m;
    const TileNote note = TileNote::of(tile, false, site.h);
    barrier_wait(shared.do_empty(slot.slot), slot.parity);
    if (slot.slot == Config::stages - 1) barrier_wait(shared.v_taken(), 0);
    if (elected()) {
      const int rows = min_of(tile_m, ResultGroups::head_rows(p.q_len) - row);
      const u32 full = shared.do_full(slot.slot);
      note.store(shared.do_note(slot.slot));
      barrier_arrive_expect(full, Shared::v_bytes + Spec::num_bwd_rows * rows * 4);
#pragma unroll
      for (int i = 0; i < Shared::boxes_v; ++i)
        tensor_load(shared.dout(slot.slot) + i * box, maps.dout, full, i * 64, row, site.h, site.b);
      load_numbers(row, rows);
    }
    if constexpr (Shared::has_rows) load_rows(row);
    barrier_wait(shared.q_empty(slot.slot), slot.parity);
    if (elected()) {
      const u32 full = shared.q_full(slot.slot);
      note.store(shared.q_note(slot.slot));
      barrier_arrive_expect(full, Shared::k_bytes);
#pragma unroll
      for (int i = 0; i < Shared::boxes; ++i)
        tensor_load(shared.q(slot.slot) + i * box, maps.q, full, i * 64, row, site.h, site.b);
    }
  }
  // Row numbers of the tile, as prepare wrote them.
  __device__ __forceinline__ void load_numbers(int row, int rows) const {
    const i64 head_rows = ResultGroups::head_rows(p.q_len), plane = i64(p.batch) * p.heads * head_rows;
    const float *from =
        static_cast<const float *>(p.bwd_rows) + (i64(site.b) * p.heads + site.h) * head_rows + row;
#pragma unroll
    for (int i = 0; i < Spec::num_bwd_rows; ++i)
      bulk_load(shared_address(shared.numbers(slot.slot) + i * tile_m), from + i * plane, rows * 4,
                shared.do_full(slot.slot));
  }
  // Row of the tile's rows; of the last one in place of those that do not exist.
  __device__ __forceinline__ void load_rows(int row) const {
#pragma unroll 1
    for (int r = lane_anew(); r < tile_m; r += 32)
      shared.rows(slot.slot)[r].value = Spec::row(p, site, head, min_of(row + r, p.q_len - 1));
    barrier_arrive(shared.do_full(slot.slot));
  }

  __device__ __forceinline__ void run() {
    load_kv();
    const QShare share{shared.split(p)};
    const int end = site.h + share.end(p);
#pragma unroll 1
    for (site.h += share.first(p); site.h < end; ++site.h) {
      head = Spec::head(p, site);
      WarpQTiles<Spec, tile_m, 2 * tile_n> walk(p, site, int(blockIdx.x) / 2, share);
      for (Tile tile = walk.next(p, site); tile.valid(); tile = walk.next(p, site)) {
        load_tile(tile);
        slot.advance();
      }
    }
    barrier_wait(shared.q_empty(slot.slot), slot.parity);
    barrier_wait(shared.do_empty(slot.slot), slot.parity);
    if (elected()) {
      TileNote::end().store(shared.do_note(slot.slot));
      TileNote::end().store(shared.q_note(slot.slot));
      barrier_arrive(shared.q_full(slot.slot));
      barrier_arrive(shared.do_full(slot.slot));
    }
    if constexpr (Shared::has_rows) barrier_arrive(shared.do_full(slot.slot));
  }
};

// Hands dS of each tile on to the other block, as soon as it is there: a warp of its own, so that the scores'
// threads do not wait for each other's. As all who read a note, its lanes give Q back.
template <class Spec, class Config>
struct SenderWide {
  using Shared = SharedWide<Spec, Config>;

  LUATTN_FN void run(const Shared &shared) {
    const int rank = cluster_rank();
    Ring<Config::stages> slot(0);
    Ring<2> ds(0);
#pragma unroll 1
    for (;;) {
      barrier_wait(shared.q_full(slot.slot), slot.parity);
      if (TileNote::load(shared.q_note(slot.slot)).is_end()) break;
      barrier_wait(shared.ds_full(ds.slot), ds.parity);
      if (elected()) {
        barrier_arrive_expect(shared.peer_ds_full(ds.slot), Shared::box);
        copy_to_peer(shared.peer_ds(ds.slot), shared.ds(ds.slot), Shared::box, shared.peer_ds_full(ds.slot),
                     rank);
      }
      barrier_arrive(shared.q_empty(slot.slot));
      slot.advance();
      ds.advance();
    }
  }
};
