// linear/sm90/columns_pipeline.cuh: shared memory and mbarriers of luattn_linear_columns, its chunks, and how they are loaded.
//
// Each tensor of a chunk has a place of its own, and an mbarrier `full`, in the order of ColumnTensor. Where updates erase, tiles
// are made (BlockTiles) in the place of those along channels of v, once all of these have been read.
#pragma once
#include "linear/sm90/linear_block_tiles.cuh"
#include "tma/bulk_copies.cuh"

// COLUMN_VALUES: v, or U where updates erase, which also have the gradient of R.
enum ColumnTensor {
  COLUMN_K,
  COLUMN_Q,
  COLUMN_DOUT,
  COLUMN_VALUES,
  COLUMN_GRAD_VALUES,
  COLUMN_STATE,
  COLUMN_GRAD_STATE,
  COLUMN_FACTORS,  // and sums of decays
  COLUMN_TENSORS
};
enum ColumnTile { TILE_QUERIES, TILE_KEYS, TILE_READS };

// Numbers of a chunk's tokens, arrays of LUATTN_CHUNK floats: the pair of a token with itself; of each share of channels the
// gradient of r / k where updates erase, else of w.
enum { COLUMN_OWN = 0, COLUMN_OF_NUMBER = 256 };
// Sums over blocks of 16 tokens, arrays of 128 floats: of what is added up from behind, and from before; and of every other chunk
// parts of the ways from state to state, and where gradients of each token's decays are stored.
enum { TOTAL_BEHIND = 0, TOTAL_BEFORE = 4 * 512, TOTAL_ACROSS = 8 * 512, TOTAL_PLACES = 12 * 512 };

template <class Spec, class Config>
struct SharedColumns {
  static constexpr int box = LINEAR_BOX, boxes_k = ceil_div(Config::k_dim, 64), boxes_v = ceil_div(Config::v_dim, 64),
                       k_dim = boxes_k * 64, v_dim = boxes_v * 64, shares = 4,
                       warps = 4 * shares;  // shares: of channels
  static constexpr LinearColumnsLayout layout = linear_columns_layout(Config::k_dim, Config::v_dim, Spec::erases);
  static constexpr LinearTilesLayout made = linear_tiles_layout(Config::k_dim, Spec::erases, 1);
  static constexpr bool apart = !Spec::erases;  // whether tiles have places of their own
  static constexpr int bytes = layout.bytes, row_bytes = layout.row, threads = 32 * warps,
                       factors_bytes = LINEAR_TILE_FACTORS + LUATTN_CHUNK * row_bytes;
  static_assert(LinearSpec<Spec> && Spec::decay_of == DECAY_CHANNEL);
  static_assert(!Spec::has_value_mod && !Spec::has_skip, "gradients of mods of v have no kernel yet");
  static_assert(Config::pass == LINEAR_ROWS && Config::k_dim % 8 == 0 && Config::v_dim % 8 == 0);
  static_assert(k_dim <= 128 && v_dim <= 128, "more than 128 channels have no kernel of this family yet");
  static_assert(bytes <= LUATTN_SM90_SHARED_BYTES);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ static constexpr int size(int tensor) {
    return tensor <= COLUMN_Q ? layout.qk : tensor >= COLUMN_STATE ? layout.state : layout.v;
  }
  __device__ __forceinline__ u32 at(int tensor) const {
    constexpr int places[] = {layout.at_k,
                              layout.at_q,
                              layout.at_values,
                              layout.at_values + layout.v,
                              layout.at_values + 2 * layout.v,
                              layout.at_state,
                              layout.at_grad_state};
    return start + places[tensor];
  }
  // The place of 8 elements of a row: of tensors of tokens, and of states, whose rows are value channels.
  __device__ __forceinline__ u32 at(int tensor, int row, int channel) const {
    return at(tensor) + channel / 64 * box + box_place(row, channel % 64);
  }
  __device__ __forceinline__ u32 at_state(int tensor, int value, int channel) const {
    return at(tensor) + (value / 64 * boxes_k + channel / 64) * box + box_place(value % 64, channel % 64);
  }
  __device__ __forceinline__ u32 factors() const { return start + layout.at_factors; }
  __device__ __forceinline__ u32 gates() const { return factors() + LINEAR_TILE_FACTORS; }
  __device__ __forceinline__ u32 tile(int which) const { return start + layout.at_tiles + which * layout.qk; }
  // Gradients of pairs, with the factors of tokens: of q k', and of r k'; a row for each query.
  __device__ __forceinline__ u32 pairs(int which) const { return start + layout.at_pairs + which * box; }
  __device__ __forceinline__ u32 left() const { return start + layout.at_left; }
  __device__ __forceinline__ u32 totals() const { return start + layout.at_totals; }
  __device__ __forceinline__ u32 numbers() const { return start + layout.at_numbers; }
  // Where a chunk of the block lies (ChunkPlace), for those with an odd number, and with an even one.
  __device__ __forceinline__ u32 place(int done) const { return start + layout.at_barriers + 128 + done % 2 * 64; }
  __device__ __forceinline__ u32 full(int tensor) const { return start + layout.at_barriers + tensor * 8; }

  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < COLUMN_TENSORS; ++i) barrier_init(full(i), 1);
    barrier_init_done();
  }
};

template <class Spec, class Config>
struct ColumnProducer {
  using Shared = SharedColumns<Spec, Config>;
  using Chain = LinearChain<Config>;

  const LuattnLinearParams &p;
  const LuattnLinearRowMaps &maps;
  const Shared shared;

  __device__ __forceinline__ void load(int tensor, const LuattnTensorMap &map, const Chain &chain, int chunk, int head,
                                       int boxes) const {
    barrier_arrive_expect(shared.full(tensor), Shared::size(tensor));
    for (int i = 0; i < boxes; ++i)
      tensor_load(shared.at(tensor) + i * Shared::box, map, shared.full(tensor), i * 64, chain.box(chunk), head);
  }
  __device__ __forceinline__ void load_kept(int tensor, const void *kept, i64 slot) const {
    const int bytes = Shared::size(tensor);
    barrier_arrive_expect(shared.full(tensor), bytes);
    bulk_load(shared.at(tensor), static_cast<const unsigned char *>(kept) + slot * bytes, bytes, shared.full(tensor));
  }
  __device__ __forceinline__ const unsigned char *factors(i64 slot) const {
    return static_cast<const unsigned char *>(p.kept.tiles) + slot * Shared::made.bytes + Shared::made.at_factors;
  }
  // All warps have read the places.
  __device__ __forceinline__ void load_states(i64 slot) const {
    load_kept(COLUMN_STATE, p.kept.states, slot);
    load_kept(COLUMN_GRAD_STATE, p.kept.grad_states, slot);
  }
  // Brings what is loaded after results have been stored to the L2 cache.
  __device__ __forceinline__ void prefetch_rest(const Chain &chain, int chunk, i64 slot) const {
    bulk_prefetch(factors(slot), Shared::factors_bytes);
    for (int i = 0; i < Shared::boxes_k; ++i) {
      tensor_prefetch(maps.q, i * 64, chain.box(chunk), chain.site.h);
      tensor_prefetch(maps.k, i * 64, chain.box(chunk), chain.site.h);
    }
    if constexpr (Shared::apart) return;
    for (int i = 0; i < Shared::boxes_v; ++i) tensor_prefetch(maps.dout, i * 64, chain.box(chunk), chain.site.hv);
    bulk_prefetch(static_cast<const unsigned char *>(p.kept.values) + slot * Shared::layout.v, Shared::layout.v);
    bulk_prefetch(static_cast<const unsigned char *>(p.kept.grad_values) + slot * Shared::layout.v, Shared::layout.v);
  }
  __device__ __forceinline__ void load_values(const Chain &chain, int chunk, i64 slot) const {
    load(COLUMN_DOUT, maps.dout, chain, chunk, chain.site.hv, Shared::boxes_v);
    if constexpr (Spec::erases) {
      load_kept(COLUMN_VALUES, p.kept.values, slot);
      load_kept(COLUMN_GRAD_VALUES, p.kept.grad_values, slot);
    } else {
      load(COLUMN_VALUES, maps.v, chain, chunk, chain.site.hv, Shared::boxes_v);
    }
  }
  // TMA may still read results from the places of q and k.
  __device__ __forceinline__ void load_rows(const Chain &chain, int chunk, i64 slot) const {
    barrier_arrive_expect(shared.full(COLUMN_FACTORS), Shared::factors_bytes);
    bulk_load(shared.factors(), factors(slot), Shared::factors_bytes, shared.full(COLUMN_FACTORS));
    bulk_wait_read();
    load(COLUMN_Q, maps.q, chain, chunk, chain.site.h, Shared::boxes_k);
    load(COLUMN_K, maps.k, chain, chunk, chain.site.h, Shared::boxes_k);
  }
  __device__ __forceinline__ void store_rows(const Chain &chain, int chunk) const {
    for (int i = 0; i < Shared::boxes_k; ++i) {
      tensor_store(shared.at(COLUMN_Q) + i * Shared::box, maps.dq, i * 64, chain.box(chunk), chain.site.hv);
      tensor_store(shared.at(COLUMN_K) + i * Shared::box, maps.dk, i * 64, chain.box(chunk), chain.site.hv);
    }
    bulk_commit();
  }
};
