// sm90/bwd/bwd_pipeline.cuh: shared memory and mbarriers of the sm90 backward kernel.
#pragma once
#include "contract/needs.cuh"
#include "grads/flush.cuh"
#include "score/backward_rows.cuh"
#include "score/bias_rows.cuh"
#include "score/distance_terms.cuh"
#include "score/kept_queries.cuh"
#include "sink/dq_acc.cuh"
#include "sink/dq_state.cuh"
#include "source/cp_async_tile.cuh"
#include "tma/backward_messages.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/mbarrier.cuh"
#include "tma/row_loads.cuh"
#include "tma/stages.cuh"
#include "tma/warp_roles.cuh"
#include "work/dq_order.cuh"
#include "work/sequence.cuh"
#ifdef LUATTN_GRID
#include "grads/displacement_sums.cuh"
#endif

// Shared memory of the backward kernel: K and V of the block; stages for Q and dO, in boxes of 64 channels by
// tile_m rows; dS stages, in boxes of 64 keys by tile_m queries; dQ staging in f32 for each consumer warp, 16
// rows in the layout of sink/dq_acc.cuh; row numbers for each stage; barriers and tile messages; 256 bytes of
// ones.
// Numbers by displacement of a warp's keys (score/displacement_terms.cuh).
LUATTN_FN constexpr int displacements_of_warp() {
#ifdef LUATTN_GRID
  return WarpBoxPair::count();
#else
  return 0;
#endif
}
// Of all keys of a tile of tile_n.
template <int tile_n>
LUATTN_FN constexpr int displacements_of_tile() {
#ifdef LUATTN_GRID
  return BoxPair<tile_n>::count();
#else
  return 0;
#endif
}

// A lane's terms of a warp's table.
struct NoWarpTerms {};
template <class Spec, bool There>
struct WarpTermsKind {
  using type = NoWarpTerms;
};
#ifdef LUATTN_GRID
template <class Spec>
struct WarpTermsKind<Spec, true> {
  using type = DisplacementTable<Spec, WarpBoxPair, 32>;
};
#endif
template <class Spec, bool There>
using WarpTermsOf = typename WarpTermsKind<Spec, There>::type;

template <class Spec, class Config>
struct SharedBwdSm90 {
  using Row = typename Spec::Row;
  using BwdRow = typename Spec::BwdRow;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, stages = Config::stages;
  static constexpr bool in_order = Needs<Spec, Config>::dq_in_order;
  static constexpr bool stores_first = Needs<Spec, Config>::dq_first_store;
  // Whether there are tiles for which `keep` is called.
  static constexpr bool keep_reads = Spec::has_mask && (Spec::column_intervals == 0 || Spec::columns_need_full_data);
  static constexpr int groups = tile_n / 64, warps = groups * 4;  // of consumers
  // Distance sums, deterministic ones or over a grid. Each consumer warp has a row for them
  // (sm90/bwd/distance_grad_writer.cuh).
  static constexpr bool over_grid = HasAxes<Config>;
  static constexpr bool hands_sums = (Config::deterministic || over_grid) && Needs<Spec, Config>::parameters &&
                                     (Spec::parameter_sums & SUM_DISTANCE) != 0;
  static constexpr int sums_writers = !hands_sums ? 0 : over_grid && !in_order && !stores_first ? 3 : 1;
  static constexpr int line_floats = over_grid ? displacements_of_warp() : tile_m + 32,
                       sums_groups = (tile_m + tile_n) / 32;
  // Tables of terms by displacement: one for each stage of Q and the pair of boxes, which the warps that add sums fill, or one for
  // each consumer warp, which fills it itself. The memory is that of the latter, and boxes may be such that it is the smaller one.
  static constexpr bool has_terms = Spec::has_displacement_term,
                        fills_terms = has_terms && sums_writers == 3 &&
                                      displacements_of_tile<tile_n>() <= warps / stages * displacements_of_warp();
  static constexpr int boxes = ceil_div(Config::head_dim, 64), boxes_v = ceil_div(Config::head_dim_v, 64);
  static constexpr bool has_rows = !__is_empty(Row) && (Spec::grad_reads_row || keep_reads);
  static constexpr BwdSm90Layout layout =
      bwd_sm90_layout(layout_sizes<Config>({.row = has_rows ? int(sizeof(SharedRow<Row>)) : 0,
                                            .bwd_row = int(sizeof(BwdRow)),
                                            .displacements = has_terms ? displacements_of_warp() : 0,
                                            .displacement_sums = hands_sums && over_grid ? line_floats : 0,
                                            .hands_sums = hands_sums,
                                            .axes = axes_of<Config>}));
  static constexpr int k_bytes = layout.k, v_bytes = layout.v, q_bytes = layout.q, do_bytes = layout.dout,
                       ds_bytes = layout.ds, dq_bytes = layout.dq, row_pitch = layout.row_pitch;
  static constexpr int bwd_bytes = layout.bwd_row, row_bytes = layout.rows, barrier_bytes = layout.barriers;
  // There is one dS stage more than pipeline stages, if it fits, and two otherwise. With the extra stage, dQ
  // of a tile is computed one tile later.
  static constexpr int ds_slots = layout.ds_slots;
  static constexpr bool lags = ds_slots > 2;
  static constexpr int at_v = layout.at_v, at_q = layout.at_q, at_do = layout.at_do, at_ds = layout.at_ds,
                       at_dq = layout.at_dq, at_sums = layout.at_sums, at_rows = layout.at_rows,
                       at_places = layout.at_places, at_barriers = layout.at_barriers;
  static_assert(has_shared<Config, layout.bytes>());
  static_assert(tile_m % 64 == 0 && tile_n % 64 == 0 && stages >= 2 && Config::threads == 128 + 2 * tile_n);
  // A consumer's part of dQ: 64 rows if tile_m is 128, half of the columns if it is 64.
  static constexpr bool splits_rows = tile_m == 128;
  static constexpr int dq_cols = splits_rows ? boxes * 64 : boxes * 32;
  static_assert(stages * 32 + ds_slots * 8 + 48 + (stores_first ? 112 : 40) + (in_order ? 64 : 0) +
                    (fills_terms ? stages * 16 : 0) <=
                barrier_bytes);

  // A consumer skips a tile where its half keeps nothing, unless it computes sums along lines for other warps.
  static constexpr bool halves = Spec::has_mask && tile_m == 64 && (!hands_sums || over_grid);

  unsigned char *memory;
  u32 start;  // its address in shared memory, a multiple of 1024

  __device__ __forceinline__ u32 k() const { return start; }
  __device__ __forceinline__ u32 v() const { return start + at_v; }
  __device__ __forceinline__ u32 q(int stage) const { return start + at_q + stage * q_bytes; }
  __device__ __forceinline__ u32 dout(int stage) const { return start + at_do + stage * do_bytes; }
  __device__ __forceinline__ u32 ds(int stage) const { return start + at_ds + stage * ds_bytes; }
  __device__ __forceinline__ u32 dq(int warp) const { return start + at_dq + warp * dq_bytes; }
  __device__ __forceinline__ u32 places(int warp) const { return start + at_places + warp * 16 * axes_of<Config> * 4; }
  __device__ __forceinline__ u32 line(int warp) const { return start + at_sums + warp * line_floats * 4; }
  __device__ __forceinline__ u32 terms(int warp) const { return start + layout.at_terms + warp * layout.terms; }
  __device__ __forceinline__ u32 all_terms(int stage) const {
    return start + layout.at_terms + stage * (warps / stages * layout.terms);
  }
  __device__ __forceinline__ u32 sums_kept() const { return line(warps); }  // for the warp that adds them
  __device__ __forceinline__ float *numbers(int stage) const {              // BwdRow::x[i] of row r at [i * tile_m + r]
    return reinterpret_cast<float *>(memory + at_rows + stage * row_bytes);
  }
  __device__ __forceinline__ SharedRow<Row> *rows(int stage) const {
    return reinterpret_cast<SharedRow<Row> *>(memory + at_rows + stage * row_bytes + bwd_bytes);
  }

  __device__ __forceinline__ u32 q_full(int stage) const { return start + at_barriers + stage * 32; }
  __device__ __forceinline__ u32 do_full(int stage) const { return q_full(stage) + 8; }
  __device__ __forceinline__ u32 empty(int stage) const { return q_full(stage) + 16; }
  __device__ __forceinline__ u32 message(int stage) const { return q_full(stage) + 24; }
  // Two alternating messages of kv tiles: a consumer still reads one when the producer writes the next.
  __device__ __forceinline__ u32 block_message(u32 number) const { return q_full(stages) + (number & 1) * 16; }
  __device__ __forceinline__ u32 ds_full(int stage) const { return q_full(stages) + 32 + stage * 8; }
  __device__ __forceinline__ u32 kv_full() const { return ds_full(ds_slots); }
  __device__ __forceinline__ u32 kv_empty() const { return kv_full() + 8; }
  // Barriers of deterministic kernels (sm90/bwd/dq_in_order.cuh).
  __device__ __forceinline__ u32 dq_full(u32 tile) const { return kv_full() + 16 + (tile & 1) * 8; }
  __device__ __forceinline__ u32 dq_empty() const { return kv_full() + 32; }
  // Barriers of distance sums (sm90/bwd/distance_grad_writer.cuh).
  __device__ __forceinline__ u32 sums_full() const { return kv_full() + 40; }
  __device__ __forceinline__ u32 sums_empty() const { return kv_full() + 48; }
  // Barriers of tables that are filled for all consumers.
  __device__ __forceinline__ u32 terms_full(int stage) const { return kv_full() + 56 + stage * 16; }
  __device__ __forceinline__ u32 terms_empty(int stage) const { return terms_full(stage) + 8; }
  // The message of the block's q tile number n. It is kept for readers that are up to five tiles behind the
  // consumers.
  __device__ __forceinline__ u32 order_message(u32 n) const { return kv_full() + 56 + n % 8 * 8; }
  // Barriers of first stores (sm90/bwd/dq_first_store.cuh): for the block's q tile number `tile`, and for its
  // stored dQ number n. The message lies 8 bytes after `first_store_known` or `taken`.
  __device__ __forceinline__ u32 first_store_known(u32 tile) const { return kv_full() + 16 + tile % 4 * 16; }
  __device__ __forceinline__ u32 handed(u32 n) const { return kv_full() + 80 + n % 2 * 24; }
  __device__ __forceinline__ u32 taken(u32 n) const { return handed(n) + 8; }
  // Ones of type Elem, enough for two core matrices of wgmma.
  __device__ __forceinline__ u32 ones() const { return start + at_barriers + barrier_bytes; }
  // Waits for the message of the block's kv tile `number`.
  __device__ __forceinline__ BlockMessage await_block(u32 number) const {
    barrier_wait(kv_full(), number & 1);
    return BlockMessage::load(block_message(number));
  }

  // Sets how many arrivals complete a phase. Every lane that has read a stage's row numbers, or has written a
  // Row, arrives itself: ptxas drops a __syncwarp before a single arrival for all lanes.
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < stages; ++i) {
      barrier_init(q_full(i), 1);
      barrier_init(do_full(i), has_rows ? 1 + 32 : 1);
      barrier_init(empty(i), warps * 32 + (stores_first ? 32 : 0) + sums_writers * 32);
    }
    for (int i = 0; i < ds_slots; ++i) barrier_init(ds_full(i), warps);
    barrier_init(kv_full(), 1);
    barrier_init(kv_empty(), warps * 32 + (in_order ? 64 : stores_first ? 32 : 0) + sums_writers * 32);
    if constexpr (stores_first) {
      for (int i = 0; i < 4; ++i) barrier_init(first_store_known(i), 1);
      for (int i = 0; i < 2; ++i) {
        barrier_init(handed(i), warps * 32);
        barrier_init(taken(i), 32);
      }
    }
    if constexpr (in_order) {
      for (u32 i = 0; i < 2; ++i) barrier_init(dq_full(i), warps * 32);
      barrier_init(dq_empty(), 1);
    }
    if constexpr (fills_terms)
      for (int i = 0; i < stages; ++i) {
        barrier_init(terms_full(i), sums_writers * 32);
        barrier_init(terms_empty(i), warps * 32);
      }
    if constexpr (hands_sums) {
      barrier_init(sums_full(), warps * 32);
      barrier_init(sums_empty(), sums_writers * 32);
    }
    barrier_init_done();
  }
};
