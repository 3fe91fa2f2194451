// sm90/bwd/dq_first_store.cuh: first stores, which save zeroing dq_acc in the sm90 backward. The first kv
// tile of a q tile stores its part of dQ, and the others add theirs. Three warps of the producer's warpgroup
// do this.
//
// A number in memory for each q tile of a head (dq_state_of; luattn_prepare zeroes it) holds the q tile's state.
// The block that changes UNCLAIMED to CLAIMED stores its part, and then writes STORED. luattn_finish takes
// unclaimed q tiles as 0. Where first stores do not pay, luattn_prepare zeroes dq_acc and writes STORED.
//
//   claims   one warp goes through the block's q tiles in order. At the barrier `first_store_known` it tells
//            the consumers whether the block stores dQ of the tile or adds it. Before the consumers may add,
//            the warp waits until another block has stored
//   stores   if the block stores a tile's dQ, the consumers write it to shared memory and arrive at `handed`.
//            Two warps alternate: one copies dQ to memory, arrives at `taken` when the copy has been read, and writes
//            STORED when the copy is complete, which takes longer than a tile
//
// A block claims a tile when the tile's dS has been shared. From then until its dQ is ready, every block takes
// the same time, so the first block to claim a tile is also the first to have its dQ, and the other blocks
// seldom wait. Blocks cannot deadlock: a waiting block makes no new claims, and its consumers can finish and
// store the tiles that it has already claimed.
#pragma once
#include "sm90/bwd/grad_staging.cuh"
#include "tma/backward_messages.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"
#include "work/dq_order.cuh"

template <class Spec, class Config>
struct DqFirstStoreSm90 {
  using Shared = SharedBwdSm90<Spec, Config>;

  const LuattnParams &p;
  const Shared shared;
  const int lane;
  PipelineState<Config::stages> q;
  PipelineState<Shared::ds_slots> ds;
  u32 num_tiles;
  // The states of q tiles first, first + 1, .. of a head, in lanes 0, 1, .. They may be out of date.
  int head, first;
  u32 known;

  __device__ __forceinline__ DqFirstStoreSm90(const LuattnParams &params, const Shared &s)
      : p(params), shared(s), lane(int(threadIdx.x) % 32), q(0), ds(0), num_tiles(0) {}

  __device__ __forceinline__ void run() {
    u32 blocks = 0;
#pragma unroll 1
    for (BlockMessage message = shared.await_block(0); message.state != BlockMessage::END;
         message = shared.await_block(++blocks)) {
      barrier_arrive(shared.kv_empty());
      if (message.state == BlockMessage::SOME) first_store_tiles(message.at.b);
    }
  }

 private:
  // Loads a state with acquire: this thread's later accesses follow all that others did before they wrote it.
  LUATTN_FN u32 look(const u32 *first_store) {
    u32 x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(first_store) : "memory");
    return x;
  }
  // States past a packed entry's end are there, too, and are not used: asking for the entry's length would take longer
  // than reading them.
  __device__ __forceinline__ u32 *first_store_of(int b, int tile) const {
    if constexpr (SequenceOf<Config>::packed) {
      const int last = ceil_div(SequenceOf<Config>::most_queries(p), Config::tile_m) - 1;
      return dq_state_of<Config>(p, b, head, min_of(tile, last) * Config::tile_m);
    }
    const SequenceOf<Config> site(p, b, head);
    const int last = ceil_div(site.q_end(p), Config::tile_m) - 1;
    return dq_state_of<Config>(p, b, head, min_of(tile, last) * Config::tile_m);
  }

  __device__ __forceinline__ void first_store_tiles(int b) {
    head = -1;
#pragma unroll 1
    for (bool ends = false; !ends; ++num_tiles) {
      barrier_wait(shared.q_full(q.stage), q.parity);
      const TileMessage tile = TileMessage::load(shared.message(q.stage));
      barrier_arrive(shared.empty(q.stage));
      q.advance();
      ends = tile.ends_block();
      barrier_wait(shared.ds_full(ds.stage), ds.parity);
      ds.advance();
      if (int(tile.head) != head || tile.index() - first >= 32) {
        head = int(tile.head), first = tile.index();
        known = look(first_store_of(b, first + lane));
        __syncwarp();
      }
      const u32 seen = __shfl_sync(0xffffffffu, known, tile.index() - first);
      if (lane == 0)
        tell(shared.first_store_known(num_tiles),
             seen == STORED ? false : first_store(first_store_of(b, tile.index())));
      __syncwarp();
    }
  }
  // Returns true if this block must store; otherwise returns false once another block has stored.
  __device__ __forceinline__ bool first_store(u32 *first_store) const {
    u32 before;
    asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(before)
                 : "l"(first_store), "n"(int(UNCLAIMED)), "n"(int(CLAIMED))
                 : "memory");
    if (before == UNCLAIMED) return true;
    for (; before != STORED; before = look(first_store)) __nanosleep(200);
    return false;
  }
  __device__ __forceinline__ void tell(u32 first_store_known, bool stores) const {
    fence_async_global();  // orders the later adds of this block after the store
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(first_store_known + 8), "r"(u32(stores)) : "memory");
    barrier_arrive(first_store_known);
  }
};

// The sequence of a number among the query heads of all entries. That of packed entries is kept: its lengths are read
// once for a kv tile.
template <class Sequence, bool Packed = Sequence::packed>
struct KeptSequence {
  LUATTN_FN Sequence numbered(const LuattnParams &p, int number) { return Sequence::numbered(p, number); }
};
template <class Sequence>
struct KeptSequence<Sequence, true> {
  Sequence site;
  int number = -1;  // of `site`; -1: none

  __device__ __forceinline__ const Sequence &numbered(const LuattnParams &p, int other) {
    if (other != number) site = Sequence::numbered(p, other);
    number = other;
    return site;
  }
};

template <class Spec, class Config>
struct DqStorerSm90 {
  using Shared = SharedBwdSm90<Spec, Config>;
  using Sequence = SequenceOf<Config>;

  const LuattnParams &p;
  const Shared shared;
  const int lane;
  KeptSequence<Sequence> kept;

  __device__ __forceinline__ DqStorerSm90(const LuattnParams &params, const Shared &s)
      : p(params), shared(s), lane(int(threadIdx.x) % 32) {}

  // Handles every second stored dQ. `from` is 0 or 1, the first one.
  __device__ __forceinline__ void run(u32 from) {
#pragma unroll 1
    for (u32 n = from;; n += 2) {
      barrier_wait(shared.handed(n), n / 2 & 1);
      const StoreMessage message = StoreMessage::load(shared.taken(n) + 8);
      if (message.row < 0) return;
      store(message);
      bulk_wait_read();
      barrier_arrive(shared.taken(n));
      bulk_wait();
      __syncwarp();
      const Sequence site = kept.numbered(p, message.head);
      u32 *first_store = dq_state_of<Config>(p, site.b, site.h, message.row);
      if (lane == 0)
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(first_store), "n"(int(STORED)) : "memory");
    }
  }

 private:
  // Stores with one lane for the part of each consumer warp, as DqWriterSm90::add does.
  __device__ __forceinline__ void store(const StoreMessage &message) {
    const int warp = lane, group = warp / 4, row = message.row + (Shared::splits_rows ? group * 64 : 0) + warp % 4 * 16,
              d0 = Shared::splits_rows ? 0 : group * Shared::dq_cols,
              width = min_of(Shared::dq_cols, Config::head_dim - d0);
    const Sequence site = kept.numbered(p, message.head);
    float *to =
        site.template q_acc_row<ResultGroups, Config::head_dim, float>(p, p.scratch.dq_acc, site.b, site.h, row);
    bulk_store(to + d0 * 16, shared.dq(lane), width * 64, lane < Shared::warps && width > 0 && site.has_q_acc(p, row));
    bulk_commit();
  }
};
