// sm90/bwd_d256/d256_pipeline.cuh: the pipeline of the sm90 backward kernel for head dims above 128: shared
// memory, and the barriers between its warpgroups.
#pragma once
#include "arch/warp.cuh"
#include "arch/wgmma_transposed.cuh"
#include "contract/needs.cuh"
#include "grads/flush.cuh"
#include "score/backward_rows.cuh"
#include "score/bias_rows.cuh"
#include "score/distance_terms.cuh"
#include "sink/dq_acc.cuh"
#include "sink/dq_state.cuh"
#include "source/cp_async_tile.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/cluster.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"
#include "tma/warp_roles.cuh"
#include "work/dq_order.cuh"
#include "work/kv_tile_scheduler.cuh"
#include "work/sequence.cuh"
#include "work/tile_walk.cuh"

// Does the same as wgmma_operand, for a block of a cluster. There shared-memory addresses include the block's
// rank, which does not fit into a matrix descriptor.
LUATTN_FN u64 block_operand(u32 address, u32 across) { return wgmma_operand(address & 0x3ffff, across); }

// The message of a stage of Q or dO, which the producer writes before it arrives at `q_full` or `do_full`.
// TILE: the stage has a q tile. VALUES: it has V of a kv tile (a stage of dO only). NOTHING: the kv tile has
// no q tiles (both stages). END: no more tiles follow (both stages).
struct D256Message {
  enum Kind { TILE, VALUES, NOTHING, END };
  u32 bits, head;
  u32 place, b;  // the kv tile and the share of its q tiles; the batch

  LUATTN_FN D256Message of(Kind kind, const KvBlock &at, Tile tile, int head, bool ends_block) {
    return {
        u32(tile.index) << 5 | u32(tile.same_bucket) << 4 | u32(ends_block) << 3 | u32(tile.masked) << 2 | u32(kind),
        u32(head), u32(at.tile) << 6 | u32(at.split), u32(at.b)};
  }
  __device__ __forceinline__ bool is(Kind kind) const { return (bits & 3) == u32(kind); }
  __device__ __forceinline__ bool masked() const { return (bits & 4) != 0; }
  __device__ __forceinline__ bool ends_block() const { return (bits & 8) != 0; }
  __device__ __forceinline__ bool same_bucket() const { return (bits & 16) != 0; }
  __device__ __forceinline__ int index() const { return int(bits >> 5); }
  __device__ __forceinline__ int kv_tile() const { return int(place >> 6); }
  __device__ __forceinline__ int split() const { return int(place & 63); }

  __device__ __forceinline__ void store(u32 address) const {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(bits), "r"(head), "r"(place), "r"(b)
                 : "memory");
  }
  LUATTN_FN D256Message load(u32 address) {
    D256Message x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.bits), "=r"(x.head), "=r"(x.place), "=r"(x.b)
                 : "r"(address)
                 : "memory");
    return {uniform(x.bits), uniform(x.head), x.place, x.b};
  }
};
static_assert(LUATTN_MAX_SPLITS <= 64);

// Shared memory of one block of a cluster: its K; the channels of the peer's K for which it computes dQ;
// stages for Q and dO; P; two stages for dS and two for the peer's dS, with a row of 64 positions for each
// query; row numbers for each stage of dO; barriers and tile messages. Tiles are boxes of 64 channels by 64
// rows. V of a kv tile takes a stage of dO, ahead of the q tiles, until the scores' warpgroup has it in
// registers.
template <class Spec, class Config>
struct SharedD256 {
  using Row = typename Spec::Row;
  using BwdRow = typename Spec::BwdRow;
  using Need = Needs<Spec, Config>;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, stages = Config::stages;
  static constexpr int box = 64 * 128;  // bytes
  static constexpr int boxes = ceil_div(Config::head_dim, 64), boxes_v = ceil_div(Config::head_dim_v, 64);
  static constexpr int most_dq = (boxes + 1) / 2;                           // maximum number of boxes of dQ in a block
  static constexpr int sums = Need::parameters ? Spec::parameter_sums : 0;  // summed by a warp
                                                                            // from dS
  static constexpr bool needs_ds = Need::dq || Need::dk || sums != 0, in_order = Need::dq_in_order;
  static constexpr bool has_rows = !__is_empty(Row);
  static constexpr BwdD256Layout layout = bwd_d256_layout(layout_sizes<Config>(
      {.row = has_rows ? int(sizeof(SharedRow<Row>)) : 0, .bwd_row = int(sizeof(BwdRow)), .in_order = in_order}));
  static constexpr int k_bytes = layout.k, v_bytes = layout.v;  // of Q and dO as well
  static constexpr int bwd_bytes = layout.bwd_row, row_bytes = layout.rows;
  static constexpr int at_peer_k = layout.at_peer_k, at_q = layout.at_q, at_do = layout.at_do, at_p = layout.at_p,
                       at_ds = layout.at_ds, at_peer_ds = layout.at_peer_ds, at_rows = layout.at_rows,
                       at_barriers = layout.at_barriers;
  static_assert(tile_m == 64 && tile_n == 64 && Config::threads == 512);
  static_assert(stages >= 2);
  static_assert(has_shared<Config, layout.bytes>());

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ u32 k() const { return start; }
  __device__ __forceinline__ u32 peer_k() const { return start + at_peer_k; }
  __device__ __forceinline__ u32 q(int stage) const { return start + at_q + stage * k_bytes; }
  __device__ __forceinline__ u32 dout(int stage) const { return start + at_do + stage * v_bytes; }
  __device__ __forceinline__ u32 p() const { return start + at_p; }
  __device__ __forceinline__ u32 ds(int stage) const { return start + at_ds + stage * box; }
  __device__ __forceinline__ u32 peer_ds(int stage) const { return start + at_peer_ds + stage * box; }
  __device__ __forceinline__ float *numbers(int stage) const {  // BwdRow::x[i] of row r at [i * tile_m + r]
    return static_cast<float *>(__cvta_shared_to_generic(start + at_rows + stage * row_bytes));
  }
  __device__ __forceinline__ SharedRow<Row> *rows(int stage) const {
    return static_cast<SharedRow<Row> *>(__cvta_shared_to_generic(start + at_rows + stage * row_bytes + bwd_bytes));
  }

  __device__ __forceinline__ u32 q_message(int stage) const { return start + at_barriers + stage * 64; }
  __device__ __forceinline__ u32 do_message(int stage) const { return q_message(stage) + 16; }
  __device__ __forceinline__ u32 q_full(int stage) const { return q_message(stage) + 32; }
  __device__ __forceinline__ u32 q_empty(int stage) const { return q_message(stage) + 40; }
  __device__ __forceinline__ u32 do_full(int stage) const { return q_message(stage) + 48; }
  __device__ __forceinline__ u32 do_empty(int stage) const { return q_message(stage) + 56; }
  __device__ __forceinline__ u32 drawn() const { return q_message(stages); }  // 16 bytes
  __device__ __forceinline__ u32 drawn_full() const { return drawn() + 16; }
  __device__ __forceinline__ u32 drawn_empty() const { return drawn() + 24; }
  __device__ __forceinline__ u32 k_scored() const { return drawn() + 32; }
  __device__ __forceinline__ u32 k_empty() const { return drawn() + 40; }
  __device__ __forceinline__ u32 p_full() const { return drawn() + 48; }
  __device__ __forceinline__ u32 p_empty() const { return drawn() + 56; }
  __device__ __forceinline__ u32 ds_full(int stage) const { return drawn() + 64 + stage * 32; }
  __device__ __forceinline__ u32 ds_empty(int stage) const { return ds_full(stage) + 8; }
  __device__ __forceinline__ u32 peer_ds_full(int stage) const { return ds_full(stage) + 16; }
  // Completes when dK of a tile may be computed. Each dS stage has one, as scores may be two tiles ahead.
  __device__ __forceinline__ u32 keys_may_start(int stage) const { return ds_full(stage) + 24; }
  // Barriers of deterministic kernels (sm90/bwd_d256/d256_dq_in_order.cuh).
  __device__ __forceinline__ u32 order_message(int stage) const { return ds_full(2) + stage * 16; }
  __device__ __forceinline__ u32 order_told(int stage) const { return order_message(2) + stage * 8; }
  __device__ __forceinline__ u32 order_ready() const { return order_message(2) + 16; }
  __device__ __forceinline__ u32 dq_added() const { return order_message(2) + 24; }
  __device__ __forceinline__ u32 is_first() const { return order_message(2) + 32; }
  __device__ __forceinline__ u32 order_read(int stage) const { return order_message(2) + 40 + stage * 8; }

  // Sets how many arrivals complete a phase: that of the producer, or one of each warp that is done with the
  // stage, in both blocks if the stage is filled for both.
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < stages; ++i) {
      barrier_init(q_full(i), 1);
      barrier_init(q_empty(i), 128 * (1 + Need::dk) + (Need::dq ? 32 : 0) + (sums != 0 ? 32 : 0));
      barrier_init(do_full(i), has_rows ? 1 + 32 : 1);
      barrier_init(do_empty(i), 128 * (1 + Need::dv));
    }
    barrier_init(drawn_full(), 1);
    barrier_init(drawn_empty(), 1);
    barrier_init(k_scored(), 4);
    barrier_init(k_empty(), 4);
    barrier_init(p_full(), 4);
    barrier_init(p_empty(), 4);
    if constexpr (needs_ds) {  // ptxas crashes on a barrier without arrivals
      for (int i = 0; i < 2; ++i) {
        barrier_init(ds_full(i), 4);
        barrier_init(ds_empty(i), (Need::dk ? 4 : 0) + (Need::dq ? 8 : 0) + (sums != 0 ? 1 : 0));
        barrier_init(peer_ds_full(i), 1);
        barrier_init(keys_may_start(i), 4);
      }
    }
    if constexpr (in_order) {
      for (int i = 0; i < 2; ++i) {
        barrier_init(order_told(i), 1);
        barrier_init(order_read(i), 32);
      }
      barrier_init(order_ready(), 1);
      barrier_init(dq_added(), 128);
    }
    barrier_init_done();
  }

  // The boxes of dQ that block `rank` computes: rank 0 the first ones, rank 1 the rest.
  LUATTN_FN int first_dq(int rank) { return rank == 0 ? 0 : boxes / 2 + (boxes > 1 ? boxes % 2 : 0); }
  LUATTN_FN int num_dq(int rank) { return boxes / 2 + (rank == 0 ? boxes % 2 : 0); }
};
