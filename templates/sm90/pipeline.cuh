// sm90/pipeline.cuh: shared memory and mbarriers of the sm90 forward kernel. K has `stages` stages, V as many, and Q one for
// each consumer (tma/stages.cuh).
#pragma once
#include "contract/contract.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/forward_messages.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"
#include "tma/warp_roles.cuh"
#include "work/sequence.cuh"
#ifdef LUATTN_FREE_BOXES
#include "score/displacement_terms.cuh"
#endif

// Shared memory of the forward kernel: Q of each consumer (64 rows), the stages of K, the stages of V,
// staging of O, staged biases, and in the last 512 bytes the barriers and tile messages
// (abi/shared_memory.h). A tile consists of boxes of 64 channels (arch/wgmma.cuh). Each box has all rows of
// the tile, 128 bytes a row.
template <class Spec>
LUATTN_FN constexpr int displacements_of() {
#ifdef LUATTN_FREE_BOXES
  if constexpr (Spec::has_displacement_term) return TwiceInTable<TileBoxPair<GridSideOf<true>::rows>>::words;
#endif
  return 0;
}

template <class Spec, class Config>
struct SharedSm90 {
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, stages = Config::stages;
  static constexpr int groups = tile_m / 64;  // consumer warpgroups
  static constexpr int boxes = ceil_div(Config::head_dim, 64), boxes_v = ceil_div(Config::head_dim_v, 64);
  static constexpr int bias_elem = Spec::has_bias_row ? int(sizeof(typename Spec::BiasElem)) : 0;
  static constexpr int col_size = Spec::reads_columns ? int(sizeof(typename Spec::Col)) : 0;
#ifdef LUATTN_FREE_BOXES
  static constexpr int row_axes = Config::axes;
#else
  static constexpr int row_axes = 0;
#endif
  static constexpr FwdSm90Layout layout =
      fwd_sm90_layout(layout_sizes<Config>({.bias_elem = bias_elem,
                                            .col = col_size % 4 == 0 ? col_size : 0,
                                            .displacements = displacements_of<Spec>(),
                                            .row_axes = row_axes}));
  static constexpr int q_bytes = layout.q, k_bytes = layout.k, v_bytes = layout.v;
  // Bias staging (sm90/fwd/bias_staging.cuh), if it fits: the bias rows of one consumer, and the columns of
  // one stage of K.
  static constexpr int bias_row_bytes = layout.bias_rows, col_bytes = layout.cols;
  static constexpr bool has_bias_rows = layout.has_bias_rows, has_cols = layout.has_cols;
  // Terms by displacement (sm90/fwd/term_loader.cuh), in stages of their own.
  static constexpr int term_bytes = layout.terms, term_stages = LUATTN_SM90_TERM_STAGES;
  static constexpr bool has_terms = term_bytes > 0;
  static constexpr bool begins_at_terms = has_terms && Spec::adds_displacement_term;  // sums of QK^T
  static_assert(!(has_terms && (has_cols || has_bias_rows)), "loaders stage one of them");
  static constexpr int all_bias_rows = has_bias_rows ? groups * bias_row_bytes : 0;
  // Over a grid: what each row of a warp keeps along each axis (score/kept_keys.cuh).
  static constexpr int row_ranges_bytes = layout.row_ranges,
                       at_terms = all_bias_rows + (has_cols ? stages * col_bytes : 0),
                       at_row_ranges = at_terms + term_stages * term_bytes;
  static constexpr int staged_bytes = at_row_ranges + groups * 4 * row_ranges_bytes;
  static constexpr int bias_loaders = has_bias_rows ? 3 : has_cols ? 1 : 0;
  static constexpr int term_loaders = has_terms ? 3 : 0;
  static constexpr int value_loaders = Config::paged && bias_loaders < 3 ? 1 : 0,
                       loaders = bias_loaders + term_loaders + value_loaders;
  // Staging of O for TMA: boxes of 16 rows for each warp, as many as fit.
  static constexpr int o_box_bytes = 16 * 128, o_boxes = layout.o_boxes;
  static constexpr int bytes = layout.bytes;
  static_assert(tile_m % 64 == 0 && tile_n % 16 == 0 && stages >= 2 && Config::threads == 128 + 2 * tile_m);
  static_assert(layout.without_o <= LUATTN_SM90_SHARED_BYTES);

  static constexpr int k_message_bytes = KvTileMessage<typename SequenceOf<Config>::KeyTile>::bytes;
  static_assert(stages * (64 + k_message_bytes) + groups * 48 + 12 <= 512 && (!has_terms || groups >= term_stages));

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ u32 q(int group) const { return start + group * q_bytes; }
  __device__ __forceinline__ u32 k(int stage) const { return q(groups) + stage * k_bytes; }
  __device__ __forceinline__ u32 v(int stage) const { return k(stages) + stage * v_bytes; }

  __device__ __forceinline__ u32 o(int warp) const { return v(stages) + warp * o_boxes * o_box_bytes; }

  __device__ __forceinline__ u32 bias_rows(int group) const { return o(groups * 4) + group * bias_row_bytes; }
  __device__ __forceinline__ u32 cols(int stage) const { return o(groups * 4) + all_bias_rows + stage * col_bytes; }
  __device__ __forceinline__ u32 terms(int stage) const { return o(groups * 4) + at_terms + stage * term_bytes; }
  __device__ __forceinline__ u32 row_ranges(int warp) const {
    return o(groups * 4) + at_row_ranges + warp * row_ranges_bytes;
  }

  __device__ __forceinline__ u32 k_full(int stage) const { return o(groups * 4) + staged_bytes + stage * 32; }
  __device__ __forceinline__ u32 k_empty(int stage) const { return k_full(stage) + 8; }
  // The message of the K stage whose `empty` barrier is given.
  __device__ __forceinline__ u32 k_message_of(u32 empty) const {
    return k_message(0) + (empty - k_empty(0)) / 32 * k_message_bytes;
  }
  // The columns that are staged with it.
  __device__ __forceinline__ u32 cols_of(u32 empty) const { return cols(0) + (empty - k_empty(0)) * (col_bytes / 32); }
  __device__ __forceinline__ u32 v_full(int stage) const { return k_full(stage) + 16; }
  __device__ __forceinline__ u32 v_empty(int stage) const { return k_full(stage) + 24; }
  __device__ __forceinline__ u32 q_full(int group) const { return k_full(stages) + group * 16; }
  __device__ __forceinline__ u32 q_empty(int group) const { return q_full(group) + 8; }
  __device__ __forceinline__ u32 q_message(int group) const { return q_full(groups) + group * 16; }
  __device__ __forceinline__ u32 k_message(int stage) const { return q_message(groups) + stage * k_message_bytes; }
  __device__ __forceinline__ u32 loader_message(int stage) const {
    return k_message((stages + 3) / 4 * 4) + stage * 16;
  }
  __device__ __forceinline__ u32 messages_full(int stage) const { return loader_message(stages) + stage * 16; }
  __device__ __forceinline__ u32 messages_empty(int stage) const { return messages_full(stage) + 8; }
  __device__ __forceinline__ u32 bias_full(int group) const { return messages_full(stages) + group * 16; }
  __device__ __forceinline__ u32 bias_empty(int group) const { return bias_full(group) + 8; }
  __device__ __forceinline__ u32 terms_full(int stage) const {
    return bias_full(stage);
  }  // where there are no bias rows
  __device__ __forceinline__ u32 terms_empty(int stage) const { return bias_empty(stage); }
  // Over a grid: the boxes of keys of a q tile, told with its message.
  __device__ __forceinline__ u32 q_boxes(int group) const { return bias_full(groups) + group * 16; }

  // Sets how many arrivals complete a phase. One thread of the producer fills a stage, and one thread of each
  // warp that reads the stage releases it. With staged biases, every thread that fills or reads them arrives,
  // because racecheck follows no other order.
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < stages; ++i) {
      barrier_init(k_full(i), has_cols ? 33 : 1);
      barrier_init(k_empty(i), groups * (has_cols ? 128 : 4));
      barrier_init(v_full(i), 1);
      barrier_init(v_empty(i), groups * 4);
    }
    for (int g = 0; g < groups; ++g) {
      barrier_init(q_full(g), 1);
      barrier_init(q_empty(g), 4);
    }
    if constexpr (has_bias_rows)
      for (int g = 0; g < groups; ++g) {
        barrier_init(bias_full(g), bias_loaders * 32);
        barrier_init(bias_empty(g), 128);
      }
    if constexpr (has_terms)
      for (int i = 0; i < term_stages; ++i) {
        barrier_init(terms_full(i), term_loaders * 32);
        barrier_init(terms_empty(i), groups * 128);
      }
    if constexpr (loaders > 0)
      for (int i = 0; i < stages; ++i) {
        barrier_init(messages_full(i), 1);
        barrier_init(messages_empty(i), loaders);
      }
    barrier_init_done();
  }
};
