// sm90/bwd/bwd_pipeline.cuh: the pipeline of the sm90 backward kernel: shared memory, barriers, tile
// messages, the walk over q tiles. It shares PipelineState and barriers with sm90/pipeline.cuh.
#pragma once
#include "grads/flush.cuh"
#include "score/backward_rows.cuh"
#include "score/bias_rows.cuh"
#include "score/distance_terms.cuh"
#include "score/fragment.cuh"
#include "score/mask_intervals.cuh"
#include "sink/dq_acc.cuh"
#include "sink/dq_state.cuh"
#include "sm90/pipeline.cuh"
#include "source/cp_async_tile.cuh"
#include "work/dq_order.cuh"
#include "work/kv_tile_scheduler.cuh"
#ifdef LUATTN_TILE_TABLE
#include "work/packed_kv_scheduler.cuh"
#endif
#include "work/sequence.cuh"

// Walks the q tiles of a kv tile, as QTiles (work/tile_walk.cuh) does, over a share of the tiles and with a
// whole warp, whose lanes classify 32 tiles at a time. With Halves, the lanes also classify each half of the
// kv tile, one for each consumer. A half may keep nothing. With Whole, a tile stays in the walk if it is not
// empty as a whole, even if both halves are, because other blocks classify only the whole. With SameBucket,
// the lanes compute Tile::same_bucket.
template <class Spec, int TileM, int TileN, bool Halves = false, bool Whole = false,
          bool SameBucket = Spec::may_be_same_bucket>
struct WarpQTiles {
  static_assert(walks_stats<Spec, TileM, TileN>());
  static constexpr bool by_words = Spec::has_tile_bits && has_words(TileM) && (!Halves || TileN == 2 * LUATTN_CELL);
  int kv0, kv1, base;
  bool ragged;
  u32 present, masked, same_bucket, by_range;  // bits of tiles base .. base + 31 that are still to come
  u32 none[2], all[2];                         // tiles where each half keeps nothing; all, inside the lengths
  Range todo;
  Visits<Spec> visits;
  // Describes the tile that `next` returned last. Bits 0 and 1: half 0 or 1 keeps nothing of it. Bits 2 and
  // 3: half 0 or 1 keeps everything.
  u32 halves;

  // An empty walk.
  __device__ __forceinline__ WarpQTiles()
      : kv0(0),
        kv1(0),
        base(0),
        ragged(false),
        present(0),
        masked(0),
        same_bucket(0),
        by_range(0),
        todo{0, 0},
        halves(0) {}
  __device__ __forceinline__ WarpQTiles(const LuattnParams &p, const Site &s, int kv_tile, QShare share)
      : visits(p, s, kv_tile, ceil_div(s.kv_len, TileN), ceil_div(s.q_len, TileM)) {
    kv0 = kv_tile * TileN;
    kv1 = min_of(kv0 + TileN, s.kv_len) - 1;
    ragged = kv0 + TileN > s.kv_len;
    todo = share.of(p, visited_hull(visits, tiles_of(kept_queries<Spec>(p, s, kv0, kv1), s.q_len, TileM)), s.h);
    present = masked = same_bucket = by_range = halves = 0;
    base = 0;
  }

  __device__ __forceinline__ Tile next(const LuattnParams &p, const Site &s) {
    while (present == 0) {
      if (todo.lo >= todo.hi) return Tile{-1, false};
      if constexpr (by_words) {
        const CellBits<true> bits(p, s);
        if (bits.known()) {
          take_word(bits, p, s);
          continue;
        }
      }
      base = todo.lo;
      const int tile = base + int(threadIdx.x) % 32, q0 = tile * TileM, q1 = min_of(q0 + TileM, s.q_len) - 1;
      const bool inside = !ragged && q0 + TileM <= s.q_len;
      TileClass rest = TILE_EMPTY, c = TILE_EMPTY;
      if (tile < todo.hi && visits.has(tile)) {
        rest = TILE_FULL;
        if constexpr (Spec::columns_need_full_data) rest = Spec::data_class(p, s, q0, q1, kv0, kv1);
      }
      if constexpr (Halves)
        c = classify_halves(p, s, rest, q0, q1, inside);
      else if (rest != TILE_EMPTY)
        c = least_of(rest, other_class(p, s, q0, q1, kv0, kv1));
      present = __ballot_sync(0xffffffffu, c != TILE_EMPTY);
      masked = __ballot_sync(0xffffffffu, c == TILE_PARTIAL || !inside);
      if constexpr (Spec::columns_need_full_data) by_range = __ballot_sync(0xffffffffu, rest == TILE_FULL);
      if constexpr (SameBucket)
        same_bucket = __ballot_sync(0xffffffffu, kv0 < kv1 && Spec::same_bucket(p, s, q0, q1, kv0, kv1));
      todo.lo += 32;
    }
    const int i = __ffs(int(present)) - 1;
    present &= present - 1;
    if constexpr (Halves)
      halves = (none[0] >> i & 1) | (none[1] >> i & 1) << 1 | (all[0] >> i & 1) << 2 | (all[1] >> i & 1) << 3;
    return Tile{base + i, ((masked >> i) & 1u) != 0, ((same_bucket >> i) & 1u) != 0, ((by_range >> i) & 1u) != 0};
  }

 private:
  // Takes the first 32 tiles, which may all be empty.
  __device__ __forceinline__ void take_word(const CellBits<true> &bits, const LuattnParams &p, const Site &s) {
    base = todo.lo / 32 * 32;
    const int tile = base + int(threadIdx.x) % 32, q0 = tile * TileM;
    const u32 inside = __ballot_sync(0xffffffffu, !ragged && q0 + TileM <= s.q_len);
    if constexpr (Halves) {
      present = 0, masked = ~inside;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = kv0 + half * LUATTN_CELL;
        const TileWord<TileM, true> word(bits, key, min_of(kv1, key), base);  // none if the half lies past the end
        none[half] = ~word.kept, all[half] = word.whole & inside;
        present |= word.kept, masked |= ~word.whole;
      }
    } else {
      const TileWord<TileM, true> word(bits, kv0, kv1, base);
      present = word.kept, masked = ~(word.whole & inside);
    }
    present &= tiles_inside(todo, base);
    if constexpr (Spec::has_score_bounds) present &= __ballot_sync(0xffffffffu, tile < todo.hi && visits.has(tile));
    if constexpr (SameBucket)
      same_bucket =
          __ballot_sync(0xffffffffu, kv0 < kv1 && tile < todo.hi &&
                                         Spec::same_bucket(p, s, q0, min_of(q0 + TileM, s.q_len) - 1, kv0, kv1));
    todo.lo = base + 32;
  }
  // The class of a tile by all conditions that data_class does not cover.
  LUATTN_FN TileClass other_class(const LuattnParams &p, const Site &s, int q0, int q1, int lo, int hi) {
    if constexpr (Spec::columns_need_full_data)
      return Spec::position_class(p, s, q0, q1, lo, hi);
    else
      return class_of<Spec, true>(p, s, q0, q1, lo, hi);
  }
  __device__ __forceinline__ TileClass classify_halves(const LuattnParams &p, const Site &s, TileClass rest, int q0,
                                                       int q1, bool inside) {
    u32 kept = 0, full = 0;  // of halves 0 and 1
    bool some = false;       // of the whole tile
    // Classifies the whole tile first. If no lane's tile is partly kept, as far from a causal diagonal, the
    // halves need no classes of their own.
#pragma unroll 1
    for (int part = -1; part < 2; ++part) {
      const int lo = kv0 + (part > 0 ? TileN / 2 : 0), hi = part == 0 ? min_of(lo + TileN / 2 - 1, kv1) : kv1;
      TileClass c = TILE_EMPTY;
      if (rest != TILE_EMPTY && lo <= hi) c = least_of(rest, other_class(p, s, q0, q1, lo, hi));
      const u32 bits = part < 0 ? 3 : 1 << part;
      kept = (kept & ~bits) | (c != TILE_EMPTY ? bits : 0);
      full = (full & ~bits) | (c == TILE_FULL && inside ? bits : 0);
      if (Whole && part < 0) some = c != TILE_EMPTY;
      if (part < 0 && !ragged && __all_sync(0xffffffffu, c != TILE_PARTIAL)) break;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      none[half] = __ballot_sync(0xffffffffu, (kept >> half & 1) == 0);
      all[half] = __ballot_sync(0xffffffffu, (full >> half & 1) != 0);
    }
    return (Whole ? !some : kept == 0) ? TILE_EMPTY : full == 3 ? TILE_FULL : TILE_PARTIAL;
  }
};

// Returns the bits of the queries that keep a key, in the tile from q0 on: the queries in `kept` and, with a
// long period, only those in each row of the grid. The thread's first query is `first`.
template <class Spec, class Fragment, int TileM>
LUATTN_FN u32 queries_in(Range kept, Range rest, int phase, int q0, int first) {
  constexpr int period = Spec::column_period;
  if constexpr (period < short_period) {
    return columns_below<Fragment>(kept.hi - first) & ~columns_below<Fragment>(kept.lo - first);
  } else {
    u32 bits = 0;
#pragma unroll 1
    for (int line = (q0 + phase) / period * period - phase; line < q0 + TileM; line += period) {
      const int lo = max_of(kept.lo, line + max_of(rest.lo, 0)), hi = min_of(kept.hi, line + min_of(rest.hi, period));
      bits |= columns_below<Fragment>(hi - first) & ~columns_below<Fragment>(lo - first);
    }
    return bits;
  }
}
// For a thread's two keys, the first of which is kv, sets the bits of the thread's queries in the tile from q0 on that keep
// them. For a key, these queries are one or two intervals, or a part of each period of those.
template <class Spec, class Fragment, int TileM, int Cols>
LUATTN_FN void find_kept_queries(const LuattnParams &p, const Site &s, int kv, int q0, KeepBits<Cols> (&keep)[2]) {
  static_assert(Cols <= 32);
  constexpr int period = Spec::column_period;
  const int first = q0 + Fragment::column(int(threadIdx.x));
  kv = opaque(kv);  // values common to all tiles would take registers
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = kv + half * Fragment::row_of(1);
    const bool exists = key < s.kv_len;
    const Range kept = exists ? Spec::column_interval(p, s, key) : Range{0, 0};
    Range rest = {0, 0};
    int phase = 0;
    if constexpr (period > 0) {
      rest = Spec::column_remainders(p, s, key);
      phase = Spec::column_phase(p, s);
    }
    u32 &bits = keep[half].word[0];
    bits = queries_in<Spec, Fragment, TileM>(kept, rest, phase, q0, first);
    if constexpr (Spec::column_intervals == 2)
      bits |= queries_in<Spec, Fragment, TileM>(exists ? Spec::second_column_interval(p, s, key) : Range{0, 0}, rest,
                                                phase, q0, first);
    if constexpr (period > 0 && period < short_period) {
      u32 of_rest[1];
      columns_of_residues<Fragment, period>(of_rest, first + phase, rest);
      bits &= of_rest[0];
    }
  }
}

// The message of a q tile, which the producer writes before it arrives at `q_full`: the members of Tile, the
// q head, whether the tile is the last of this head and of the kv tile, and WarpQTiles::halves. END: there
// are no more q tiles.
struct TileMessage {
  u32 bits, head;
  LUATTN_FN TileMessage of(Tile tile, bool last, int head, bool ends = false, u32 halves = 0) {
    return {u32(tile.index) << 9 | u32(tile.by_range) << 8 | u32(tile.same_bucket) << 7 | halves << 3 | u32(ends) << 2 |
                u32(tile.masked) << 1 | u32(last),
            u32(head)};
  }
  LUATTN_FN TileMessage end() { return {~0u, 0}; }
  __device__ __forceinline__ int index() const { return int(bits >> 9); }
  __device__ __forceinline__ bool by_range() const { return (bits & 256) != 0; }
  __device__ __forceinline__ bool same_bucket() const { return (bits & 128) != 0; }
  __device__ __forceinline__ bool masked() const { return (bits & 2) != 0; }
  __device__ __forceinline__ bool ends_block() const { return (bits & 4) != 0; }
  __device__ __forceinline__ bool keeps_nothing(int half) const { return (bits >> (3 + half) & 1) != 0; }
  __device__ __forceinline__ bool masked(int half) const { return masked() && (bits >> (5 + half) & 1) == 0; }
  __device__ __forceinline__ bool last() const { return (bits & 1) != 0; }

  __device__ __forceinline__ void store(u32 address) const {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(bits), "r"(head) : "memory");
  }
  LUATTN_FN TileMessage load(u32 address) {
    TileMessage x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.bits), "=r"(x.head) : "r"(address) : "memory");
    return {uniform(x.bits), uniform(x.head)};
  }
};

// The message of a kv tile, which the producer writes before it arrives at `kv_full`: its KvBlock, and
// whether it has q tiles. END: there are no more kv tiles.
struct BlockMessage {
  enum State { END, EMPTY, SOME };
  KvBlock at;
  u32 state;

  __device__ __forceinline__ void store(u32 address) const {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(at.tile), "r"(at.h), "r"(at.b),
                 "r"(u32(at.split) << 2 | state)
                 : "memory");
  }
  LUATTN_FN BlockMessage load(u32 address) {
    u32 x[4];
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
    const u32 rest = uniform(x[3]);
    return {{int(uniform(x[0])), int(uniform(x[1])), int(uniform(x[2])), int(rest >> 2)}, rest & 3};
  }
};

// Shared memory of the backward kernel: K and V of the block; stages for Q and dO, in boxes of 64 channels by
// tile_m rows; dS stages, in boxes of 64 keys by tile_m queries; dQ staging in f32 for each consumer warp, 16
// rows in the layout of sink/dq_acc.cuh; row numbers for each stage; barriers and tile messages; 256 bytes of
// ones.
template <class Spec, class Config>
struct SharedBwdSm90 {
  using Row = typename Spec::Row;
  using BwdRow = typename Spec::BwdRow;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, stages = Config::stages;
  static constexpr bool turns = Needs<Spec, Config>::dq_in_order;
  static constexpr bool claims = Needs<Spec, Config>::dq_first_store;
  // Whether there are tiles for which `keep` is called.
  static constexpr bool keep_reads = Spec::has_mask && (Spec::column_intervals == 0 || Spec::columns_need_full_data);
  static constexpr int groups = tile_n / 64, warps = groups * 4;  // of consumers
  // Deterministic distance sums. Each consumer warp has a row for them (sm90/bwd/distance_grad_writer.cuh).
  static constexpr bool hands_sums =
      Config::deterministic && Needs<Spec, Config>::parameters && (Spec::parameter_sums & SUM_DISTANCE) != 0;
  static constexpr int line_floats = tile_m + 32, sums_groups = (tile_m + tile_n) / 32;
  static constexpr int boxes = ceil_div(Config::head_dim, 64), boxes_v = ceil_div(Config::head_dim_v, 64);
  static constexpr bool has_rows = !__is_empty(Row) && (Spec::grad_reads_row || keep_reads);
  static constexpr BwdSm90Layout layout = bwd_sm90_layout(layout_sizes<Config>(
      {.row = has_rows ? int(sizeof(SharedRow<Row>)) : 0, .bwd_row = int(sizeof(BwdRow)), .hands_sums = hands_sums}));
  static constexpr int k_bytes = layout.k, v_bytes = layout.v, q_bytes = layout.q, do_bytes = layout.dout,
                       ds_bytes = layout.ds, dq_bytes = layout.dq, row_pitch = layout.row_pitch;
  static constexpr int bwd_bytes = layout.bwd_row, row_bytes = layout.rows, barrier_bytes = layout.barriers;
  // There is one dS stage more than pipeline stages, if it fits, and two otherwise. With the extra stage, dQ
  // of a tile is computed one tile later.
  static constexpr int ds_slots = layout.ds_slots;
  static constexpr bool lags = ds_slots > 2;
  static constexpr int at_v = layout.at_v, at_q = layout.at_q, at_do = layout.at_do, at_ds = layout.at_ds,
                       at_dq = layout.at_dq, at_sums = layout.at_sums, at_rows = layout.at_rows,
                       at_barriers = layout.at_barriers;
  static_assert(has_shared<Config, layout.bytes>());
  static_assert(tile_m % 64 == 0 && tile_n % 64 == 0 && stages >= 2 && Config::threads == 128 + 2 * tile_n);
  // A consumer's part of dQ: 64 rows if tile_m is 128, half of the columns if it is 64.
  static constexpr bool splits_rows = tile_m == 128;
  static constexpr int dq_cols = splits_rows ? boxes * 64 : boxes * 32;
  static_assert(stages * 32 + ds_slots * 8 + 48 + (claims ? 112 : 40) + (turns ? 64 : 0) <= barrier_bytes);

  // A consumer skips a tile where its half keeps nothing, unless it computes distance sums for other warps.
  static constexpr bool halves = Spec::has_mask && tile_m == 64 && !hands_sums;

  unsigned char *memory;
  u32 start;  // its address in shared memory, a multiple of 1024

  __device__ __forceinline__ u32 k() const { return start; }
  __device__ __forceinline__ u32 v() const { return start + at_v; }
  __device__ __forceinline__ u32 q(int stage) const { return start + at_q + stage * q_bytes; }
  __device__ __forceinline__ u32 dout(int stage) const { return start + at_do + stage * do_bytes; }
  __device__ __forceinline__ u32 ds(int stage) const { return start + at_ds + stage * ds_bytes; }
  __device__ __forceinline__ u32 dq(int warp) const { return start + at_dq + warp * dq_bytes; }
  __device__ __forceinline__ u32 line(int warp) const { return start + at_sums + warp * line_floats * 4; }
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
  __device__ __forceinline__ u32 block_message(u32 turn) const { return q_full(stages) + (turn & 1) * 16; }
  __device__ __forceinline__ u32 ds_full(int stage) const { return q_full(stages) + 32 + stage * 8; }
  __device__ __forceinline__ u32 kv_full() const { return ds_full(ds_slots); }
  __device__ __forceinline__ u32 kv_empty() const { return kv_full() + 8; }
  // Barriers of deterministic kernels (sm90/bwd/dq_in_order.cuh).
  __device__ __forceinline__ u32 dq_full(u32 tile) const { return kv_full() + 16 + (tile & 1) * 8; }
  __device__ __forceinline__ u32 dq_empty() const { return kv_full() + 32; }
  // Barriers of distance sums (sm90/bwd/distance_grad_writer.cuh).
  __device__ __forceinline__ u32 sums_full() const { return kv_full() + 40; }
  __device__ __forceinline__ u32 sums_empty() const { return kv_full() + 48; }
  // The message of the block's q tile number n. It is kept for readers that are up to five tiles behind the
  // consumers.
  __device__ __forceinline__ u32 turn_message(u32 n) const { return kv_full() + 56 + n % 8 * 8; }
  // Barriers of first stores (sm90/bwd/dq_first_store.cuh): for the block's q tile number `tile`, and for its
  // stored dQ number n. The message lies 8 bytes after `first_store_known` or `taken`.
  __device__ __forceinline__ u32 first_store_known(u32 tile) const { return kv_full() + 16 + tile % 4 * 16; }
  __device__ __forceinline__ u32 handed(u32 n) const { return kv_full() + 80 + n % 2 * 24; }
  __device__ __forceinline__ u32 taken(u32 n) const { return handed(n) + 8; }
  // Ones of type Elem, enough for two core matrices of wgmma.
  __device__ __forceinline__ u32 ones() const { return start + at_barriers + barrier_bytes; }
  // Waits for the message of the block's kv tile number `turn`.
  __device__ __forceinline__ BlockMessage await_block(u32 turn) const {
    barrier_wait(kv_full(), turn & 1);
    return BlockMessage::load(block_message(turn));
  }

  // Sets how many arrivals complete a phase. Every lane that has read a stage's row numbers, or has written a
  // Row, arrives itself: ptxas drops a __syncwarp before a single arrival for all lanes.
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < stages; ++i) {
      barrier_init(q_full(i), 1);
      barrier_init(do_full(i), has_rows ? 1 + 32 : 1);
      barrier_init(empty(i), warps * 32 + (claims ? 32 : 0) + (hands_sums ? 32 : 0));
    }
    for (int i = 0; i < ds_slots; ++i) barrier_init(ds_full(i), warps);
    barrier_init(kv_full(), 1);
    barrier_init(kv_empty(), warps * 32 + (turns ? 64 : claims ? 32 : 0) + (hands_sums ? 32 : 0));
    if constexpr (claims) {
      for (int i = 0; i < 4; ++i) barrier_init(first_store_known(i), 1);
      for (int i = 0; i < 2; ++i) {
        barrier_init(handed(i), warps * 32);
        barrier_init(taken(i), 32);
      }
    }
    if constexpr (turns) {
      for (u32 i = 0; i < 2; ++i) barrier_init(dq_full(i), warps * 32);
      barrier_init(dq_empty(), 1);
    }
    if constexpr (hands_sums) {
      barrier_init(sums_full(), warps * 32);
      barrier_init(sums_empty(), 32);
    }
    barrier_init_done();
  }
};

// Copies the row numbers of `rows` rows, which luattn_prepare wrote, to a stage of `shared`, with `full` as
// the barrier. `row` is the first row of the q tile. Called by one thread of a producer; both producers use
// it.
template <class Spec, class Sequence, class Shared>
LUATTN_FN void load_numbers(const LuattnParams &p, const Sequence &site, const Shared &shared, int stage, u32 full,
                            int row, int rows) {
  const RowNumbers<const float> from =
      site.template q_numbers<ResultGroups, const float>(p, p.scratch.bwd_rows, site.b, site.h, row);
#pragma unroll
  for (int i = 0; i < Spec::num_bwd_rows; ++i)
    bulk_load(shared_address(shared.numbers(stage) + i * Shared::tile_m), from.first + i * from.plane, rows * 4, full);
}
// Writes Row of each row of a q tile, clamped to the last row. Called by a warp of a producer.
template <class Spec, class Sequence, class Shared>
LUATTN_FN void load_rows(const LuattnParams &p, const Sequence &site, const typename Spec::Head &head,
                         const Shared &shared, int stage, int row, int lane) {
#pragma unroll 1
  for (int r = lane; r < Shared::tile_m; r += 32)
    shared.rows(stage)[r].value = Spec::row(p, site, head, min_of(row + r, site.q_end(p) - 1));
}
