// sm90/pipeline.cuh: the pipeline of the sm90 kernels: tiles in shared memory, the mbarriers of its stages,
// and tile messages from the producer to the consumers.
//
// A stage is a buffer for one tile. K has `stages` of them, V as many, and Q one for each consumer. The
// producer fills a stage when its `empty` barrier says that all warps have finished reading it. TMA completes
// the `full` barrier when the bytes have arrived. README.md shows the timing.
#pragma once
#include "arch/mma.cuh"
#include "arch/tma.cuh"
#include "work/tile_walk.cuh"

// Tracks where one side (the producer or a consumer) is in a ring of stages: the stage, and the phase parity
// to wait for at its barrier. Consumers start with parity 0, the first fill. The producer starts with parity
// 1, for which a new barrier does not wait, because all stages begin empty.
template <int Stages>
struct PipelineState {
  int stage;
  u32 parity;
  __device__ __forceinline__ explicit PipelineState(u32 first_parity) : stage(0), parity(first_parity) {}
  __device__ __forceinline__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Waits until the last V that a producer with this state has requested has arrived. The consumers of a kernel with
// three may all skip a q tile's last kv tile: the mask's range for the q tile spans kv tiles that no consumer's range
// has. They do not wait for its V then, and a block must not end while a copy to its memory is under way. All other
// copies are waited for: a consumer that skips a tile waits for K, and for V when it skips or computes the next one.
template <class Spec, class Shared, int Stages>
LUATTN_FN void await_last_v(const Shared &shared, const PipelineState<Stages> &v) {
  if constexpr (Spec::has_mask && Shared::groups > 2) {
    const bool wraps =
        v.stage == 0;  // the state is that of the next V, and begins with the parity of a stage that is empty
    barrier_wait(shared.v_full(wraps ? Stages - 1 : v.stage - 1), wraps ? v.parity : v.parity ^ 1);
  }
}

// Broadcasts lane 0's value, so that ptxas knows it to be the same in the whole warp. ptxas serialises wgmmas
// after a branch that might diverge.
LUATTN_FN u32 uniform(u32 x) { return __shfl_sync(0xffffffffu, x, 0); }

// Shrinks `tiles` to the range from the first to the last tile that the tile bitmap keeps.
template <class Spec>
LUATTN_FN Range visited_hull(const Visits<Spec> &visits, Range tiles) {
  if constexpr (Spec::has_score_bounds) {
    if (visits.words == nullptr) return tiles;
    int lo = tiles.hi, hi = tiles.lo;
#pragma unroll 1
    for (int w = tiles.lo / 32 + int(threadIdx.x) % 32; w * 32 < tiles.hi; w += 32) {
      const u32 bits = visits.words[w];
      if (bits == 0) continue;
      lo = min_of(lo, w * 32 + __ffs(int(bits)) - 1);
      hi = max_of(hi, w * 32 + 32 - __clz(int(bits)));
    }
    tiles.lo = max_of(__reduce_min_sync(0xffffffffu, lo), tiles.lo);
    tiles.hi = min_of(__reduce_max_sync(0xffffffffu, hi), tiles.hi);
  }
  return tiles;
}

// Walks the kv tiles of a q tile, as KvTiles (work/tile_walk.cuh) does, but with a whole warp, whose lanes
// classify 32 tiles at a time. One tile at a time would be too slow for the products if the mask is read from
// memory or leaves many tiles empty. The walk goes downwards, so the diagonal tile of a causal mask comes
// first. The maxima of the first tile are always taken, and scores that fall with the distance from the
// diagonal, as with ALiBi, need no other maxima.
template <class Spec, int TileM, int TileN>
struct WarpKvTiles {
  static_assert(walks_stats<Spec, TileM, TileN>());
  static constexpr bool by_words = Spec::has_tile_bits && has_words(TileN);
  int q0, q1, base;
  u32 present, masked, by_range;  // bits of tiles base, base - 1, .. base - 31 that are still to come
  Range todo;
  Visits<Spec> visits;
  // by_words: the words of tiles todo.hi .. todo.hi + 1023, one a lane, and the lanes with tiles that are still to
  // come.
  u32 kept, whole, lanes;

  __device__ __forceinline__ WarpKvTiles(const LuattnParams &p, const Site &s, int q_tile)
      : visits(p, s, q_tile, ceil_div(s.q_len, TileM), ceil_div(s.kv_len, TileN)) {
    q0 = q_tile * TileM;
    q1 = min_of(q0 + TileM, s.q_len) - 1;
    todo = visited_hull(visits, tiles_of(kept_keys<Spec>(p, s, q0, q1), s.kv_len, TileN));
    present = masked = by_range = kept = whole = lanes = 0;
    base = 0;
  }

  __device__ __forceinline__ Tile next(const LuattnParams &p, const Site &s) {
    while (present == 0) {
      if (by_words && lanes != 0) {
        take_word();
        continue;
      }
      if (todo.lo >= todo.hi) return Tile{-1, false};
      if constexpr (by_words) {
        const CellBits<false> bits(p, s);
        if (bits.known()) {
          load_words(bits, s);
          continue;
        }
      }
      base = todo.hi - 1;
      const int tile = base - int(threadIdx.x) % 32, kv0 = tile * TileN, kv1 = min_of(kv0 + TileN, s.kv_len) - 1;
      TileClass c = TILE_EMPTY;
      if constexpr (Spec::rows_need_full_data) {
        TileClass rest = TILE_EMPTY;
        if (tile >= todo.lo && visits.has(tile)) rest = Spec::data_class(p, s, q0, q1, kv0, kv1);
        if (rest != TILE_EMPTY) c = least_of(rest, Spec::position_class(p, s, q0, q1, kv0, kv1));
        by_range = __ballot_sync(0xffffffffu, rest == TILE_FULL);
      } else if (tile >= todo.lo && visits.has(tile)) {
        c = class_of<Spec>(p, s, q0, q1, kv0, kv1);
      }
      present = __ballot_sync(0xffffffffu, c != TILE_EMPTY);
      masked = __ballot_sync(0xffffffffu, c == TILE_PARTIAL || kv0 + TileN > s.kv_len);
      todo.hi -= 32;
    }
    const int i = __ffs(int(present)) - 1;
    present &= present - 1;
    return Tile{base - i, ((masked >> i) & 1u) != 0, false, ((by_range >> i) & 1u) != 0};
  }

 private:
  // Loads the words of the last 1024 tiles at once, because each load takes about a quarter of a tile's time.
  __device__ __forceinline__ void load_words(const CellBits<false> &bits, const Site &s) {
    const int group = (todo.hi - 1) / 1024 * 1024, first = group + int(threadIdx.x) % 32 * 32;
    kept = 0;
    if (first < todo.hi && first + 32 > todo.lo) {
      const TileWord<TileN, false, TileM / LUATTN_CELL> word(bits, q0, q1, first);
      const u32 past = u32(s.kv_len / TileN - first);  // the first tile that is not all inside
      kept = word.kept & tiles_inside(todo, first);
      whole = past < 32 ? word.whole & ~(1u << past) : word.whole;
      if constexpr (Spec::has_score_bounds)
        if (visits.words != nullptr) kept &= visits.words[first / 32];
    }
    lanes = __ballot_sync(0xffffffffu, kept != 0);
    todo.hi = group;
  }
  // Takes the tiles of the last lane that has some.
  __device__ __forceinline__ void take_word() {
    const int lane = 31 - __clz(int(lanes));
    lanes ^= 1u << lane;
    present = __brev(__shfl_sync(0xffffffffu, kept, lane));
    masked = __brev(~__shfl_sync(0xffffffffu, whole, lane));
    base = todo.hi + lane * 32 + 31;
  }
};

// Tile messages lie next to the stages. The producer writes a message before it arrives at `full`, so the
// message is visible to whoever has waited for `full`. Only lane 0 of a warp reads it, because only lane 0
// tells the producer that the stage is free.
//
// The message of a q tile: its index, head and batch, and whether the mask leaves it any kv tile. EMPTY: no K
// and V follow, and Q is not copied. END: there are no more q tiles.
struct QTileMessage {
  enum State { END, EMPTY, SOME };
  int q_tile, h, b;
  u32 state;

  __device__ __forceinline__ void store(u32 address) const {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(q_tile), "r"(h), "r"(b), "r"(state)
                 : "memory");
  }
  LUATTN_FN QTileMessage load(u32 address) {
    u32 x[4] = {0, 0, 0, 0};
    if (threadIdx.x % 32 == 0)
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(address)
                   : "memory");
    return {int(uniform(x[0])), int(uniform(x[1])), int(uniform(x[2])), uniform(x[3])};
  }
};

// The message to the bias loaders and the value loader (sm90/fwd/bias_loader.cuh, page_loads.cuh): a kv tile, whether
// it is the first of its q tile, and that q tile. END: there are no more kv tiles.
struct LoaderMessage {
  enum { END = -1 };
  int q_tile, h, b;
  u32 bits;

  LUATTN_FN LoaderMessage of(int q_tile, int h, int b, int kv_tile, bool first) {
    return {q_tile, h, b, u32(kv_tile) << 1 | u32(first)};
  }
  LUATTN_FN LoaderMessage end() { return {END, 0, 0, 0}; }
  __device__ __forceinline__ bool is_end() const { return q_tile == END; }
  __device__ __forceinline__ int kv_tile() const { return int(bits >> 1); }
  __device__ __forceinline__ bool first() const { return (bits & 1) != 0; }
  __device__ __forceinline__ void store(u32 address) const { QTileMessage{q_tile, h, b, bits}.store(address); }
  LUATTN_FN LoaderMessage load(u32 address) {
    const QTileMessage x = QTileMessage::load(address);
    return {x.q_tile, x.h, x.b, x.state};
  }
};

// The message of a kv tile: the members of Tile, and whether it is the last kv tile of its q tile. It is
// stored with K's stage; V's stage has no message.
struct KvTileMessage {
  u32 bits;
  LUATTN_FN KvTileMessage of(Tile tile, bool last) {
    return {u32(tile.index) << 3 | u32(tile.by_range) << 2 | u32(tile.masked) << 1 | u32(last)};
  }
  // Placeholders for a consumer that has read no kv tile yet: `before` if kv tiles follow, `none` if the q
  // tile has none.
  LUATTN_FN KvTileMessage before() { return {~1u}; }
  LUATTN_FN KvTileMessage none() { return {1}; }
  __device__ __forceinline__ bool before_first() const { return bits == ~1u; }
  __device__ __forceinline__ int index() const { return int(bits >> 3); }
  __device__ __forceinline__ bool by_range() const { return (bits & 4) != 0; }
  __device__ __forceinline__ bool masked() const { return (bits & 2) != 0; }
  __device__ __forceinline__ bool last() const { return (bits & 1) != 0; }

  __device__ __forceinline__ void store(u32 address) const { store_shared(address, bits); }
  // Reads the message in lane 0. shared() broadcasts it later, once the load has completed.
  LUATTN_FN KvTileMessage load(u32 address) {
    u32 x = 0;
    if (threadIdx.x % 32 == 0) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return {x};
  }
  __device__ __forceinline__ KvTileMessage shared() const { return {uniform(bits)}; }
};

// Shared memory of the forward kernel: Q of each consumer (64 rows), the stages of K, the stages of V,
// staging of O, staged biases, and in the last 512 bytes the barriers and tile messages
// (abi/shared_memory.h). A tile consists of boxes of 64 channels (arch/wgmma.cuh). Each box has all rows of
// the tile, 128 bytes a row.
template <class Spec, class Config>
struct SharedSm90 {
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, stages = Config::stages;
  static constexpr int groups = tile_m / 64;  // consumer warpgroups
  static constexpr int boxes = ceil_div(Config::head_dim, 64), boxes_v = ceil_div(Config::head_dim_v, 64);
  static constexpr int bias_elem = Spec::has_bias_row ? int(sizeof(typename Spec::BiasElem)) : 0;
  static constexpr int col_size = Spec::reads_columns ? int(sizeof(typename Spec::Col)) : 0;
  static constexpr FwdSm90Layout layout =
      fwd_sm90_layout(layout_sizes<Config>({.bias_elem = bias_elem, .col = col_size % 4 == 0 ? col_size : 0}));
  static constexpr int q_bytes = layout.q, k_bytes = layout.k, v_bytes = layout.v;
  // Bias staging (sm90/fwd/bias_staging.cuh), if it fits: the bias rows of one consumer, and the columns of
  // one stage of K.
  static constexpr int bias_row_bytes = layout.bias_rows, col_bytes = layout.cols;
  static constexpr bool has_bias_rows = layout.has_bias_rows, has_cols = layout.has_cols;
  static constexpr int all_bias_rows = has_bias_rows ? groups * bias_row_bytes : 0;
  static constexpr int staged_bytes = all_bias_rows + (has_cols ? stages * col_bytes : 0);
  static constexpr int bias_loaders = has_bias_rows ? 3 : has_cols ? 1 : 0;
  static constexpr int value_loaders = Config::paged && bias_loaders < 3 ? 1 : 0,
                       loaders = bias_loaders + value_loaders;
  // Staging of O for TMA: boxes of 16 rows for each warp, as many as fit.
  static constexpr int o_box_bytes = 16 * 128, o_boxes = layout.o_boxes;
  static constexpr int bytes = layout.bytes;
  static_assert(tile_m % 64 == 0 && tile_n % 16 == 0 && stages >= 2 && Config::threads == 128 + 2 * tile_m);
  static_assert(stages * 68 + groups * 48 + 12 <= 512 && layout.without_o <= LUATTN_SM90_SHARED_BYTES);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ u32 q(int group) const { return start + group * q_bytes; }
  __device__ __forceinline__ u32 k(int stage) const { return q(groups) + stage * k_bytes; }
  __device__ __forceinline__ u32 v(int stage) const { return k(stages) + stage * v_bytes; }

  __device__ __forceinline__ u32 o(int warp) const { return v(stages) + warp * o_boxes * o_box_bytes; }

  __device__ __forceinline__ u32 bias_rows(int group) const { return o(groups * 4) + group * bias_row_bytes; }
  __device__ __forceinline__ u32 cols(int stage) const { return o(groups * 4) + all_bias_rows + stage * col_bytes; }

  __device__ __forceinline__ u32 k_full(int stage) const { return o(groups * 4) + staged_bytes + stage * 32; }
  __device__ __forceinline__ u32 k_empty(int stage) const { return k_full(stage) + 8; }
  // The columns that are staged with the K stage whose `empty` barrier is given.
  __device__ __forceinline__ u32 cols_of(u32 empty) const { return cols(0) + (empty - k_empty(0)) * (col_bytes / 32); }
  __device__ __forceinline__ u32 v_full(int stage) const { return k_full(stage) + 16; }
  __device__ __forceinline__ u32 v_empty(int stage) const { return k_full(stage) + 24; }
  __device__ __forceinline__ u32 q_full(int group) const { return k_full(stages) + group * 16; }
  __device__ __forceinline__ u32 q_empty(int group) const { return q_full(group) + 8; }
  __device__ __forceinline__ u32 q_message(int group) const { return q_full(groups) + group * 16; }
  __device__ __forceinline__ u32 k_message(int stage) const { return q_message(groups) + stage * 4; }
  __device__ __forceinline__ u32 loader_message(int stage) const {
    return k_message((stages + 3) / 4 * 4) + stage * 16;
  }
  __device__ __forceinline__ u32 messages_full(int stage) const { return loader_message(stages) + stage * 16; }
  __device__ __forceinline__ u32 messages_empty(int stage) const { return messages_full(stage) + 8; }
  __device__ __forceinline__ u32 bias_full(int group) const { return messages_full(stages) + group * 16; }
  __device__ __forceinline__ u32 bias_empty(int group) const { return bias_full(group) + 8; }

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
    if constexpr (loaders > 0)
      for (int i = 0; i < stages; ++i) {
        barrier_init(messages_full(i), 1);
        barrier_init(messages_empty(i), loaders);
      }
    barrier_init_done();
  }
};
