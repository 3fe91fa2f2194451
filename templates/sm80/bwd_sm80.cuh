// sm80/bwd_sm80.cuh: the main backward kernel of the sm80 family: dk, dv, and dq by atomic adds. mma.sync
// with f32 accumulation.
//
// A block owns one kv tile of one kv head and keeps its dk and dv in registers. For each q head of the group
// and each q tile that the mask does not leave empty:
//
//     S^T  = K Q^T         dP^T = V dO^T      warp: 16 * frags kv rows x sm80_chunk_m q columns
//     P^T, dS^T = Spec::grad, element by element
//     dV  += P^T dO        dK  += dS^T Q      the same warp, or all that share kv rows, split by columns
//     dQ  += dS K          the block, from dS in shared memory; atomic adds to dq_acc, without the scale
//     sums of dS           the block, for parameter gradients (sm80/parameter_grads_sm80.cuh)
//
// Scores are held transposed (a row of a fragment is a kv position), because P^T and dS^T then leave the
// first two products as A fragments of the next two. With warps_c = 1 neither goes through shared memory for
// dV and dK. With more, the warps of a row group exchange them there, which costs less than reading Q and dO
// for 16 kv rows only.
//
// The bottleneck is the shared-memory bandwidth of ldmatrix, then latency, with two warps on a scheduler. So
// each B fragment serves two products if registers allow, and dq_acc has a layout in which an atomic add
// touches few cache lines (sink/dq_acc.cuh). With stages = 2 there is one barrier per q tile. After it, Q and
// dO of this tile have arrived, the other stage is free, and dS of the previous tile is complete, so that its
// dQ is computed then. Warps drift apart by up to a tile. Of the two warps on a scheduler, one computes dQ
// first and the other computes it last, so that the exponentials of one overlap the products of the other.
// stages = 1 saves memory and costs a second barrier.
//
// Config: tile_m          rows of a q tile, a multiple of sm80_chunk_m * warps_c
//         tile_n          kv rows of a block = 16 * frags * sm80_warps_n, frags 1 or 2
//         threads         32 * sm80_warps_n * warps_c, at most 256
//         stages          1 or 2: buffers for Q, dO, dS and row numbers
//         sm80_warps_n    warps along kv; the others, warps_c, along q
//         sm80_chunk_m    q columns of a warp's score fragments, a multiple of 16; a thread holds
//                         frags * sm80_chunk_m floats of scores and dP
//
// Dynamic shared memory: BwdSm80Layout of abi/shared_memory.h. Static shared memory: 4 * num_acc * warps
// bytes.
//
// Good tiles, by max(head_dim, head_dim_v) and the shared memory of a block: tile_m,
// tile_n, threads, stages, sm80_warps_n, sm80_chunk_m. Up to 64, two blocks share a multiprocessor of 227 or
// 163 KB.
//              227 KB                 163 KB                 99 KB
//     <= 64    128 128 128 1 4 32     64 128 128 1 4 32      128 128 128 1 4 32
//     <= 128   64 128 256 2 4 32      64 128 256 1 4 32      32 128 256 1 4 16
//     <= 256   64 64 256 2 4 32       64 64 256 1 4 32       32 32 128 1 2 16
// For specs that need more registers, in this order:
//     <= 64    64 128 128 1 4 16, 64 128 256 1 4 32
//     <= 128   32 128 256 1 4 16, 64 64 256 1 4 32
//     <= 256   32 64 256 1 4 16
#pragma once
#include "abi/workspace.h"
#include "arch/mma_registers.cuh"
#include "grads/flush.cuh"
#include "score/backward_rows.cuh"
#include "score/distance_terms.cuh"
#include "score/dropout.cuh"
#include "score/flag_lines.cuh"
#include "score/fragment.cuh"
#include "score/mask_runs.cuh"
#include "sink/dq_acc.cuh"
#include "sm80/parameter_grads_sm80.cuh"
#include "source/cp_async_tile.cuh"
#include "work/dq_order.cuh"
#include "work/sequence.cuh"
#include "work/tile_walk.cuh"
#ifdef LUATTN_GRID
#include "score/box_dropout.cuh"
#include "score/kept_box_queries.cuh"
#include "source/box_tile.cuh"
#include "work/query_box_walk.cuh"
#endif

// Its sections, in order: the shape of a block and its shared memory; a thread's state; P and dS of its
// elements; products; the loop over q tiles; the epilogue.
template <class Spec, class Config>
struct BwdSm80 {
  static_assert(BackwardSpec<Spec>);
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  using Col = typename Spec::Col;
  using BwdRow = typename Spec::BwdRow;
  using Acc = typename Spec::Acc;
  using Keys = typename SequenceOf<Config>::Keys;
  static constexpr bool on_line = SequenceOf<Config>::is_line;
  static_assert(same_type<typename Spec::Real, float>::value, "the sm80 family accumulates in f32");

  // ---- shape -------------------------------------------------------------------------------------------

  static constexpr int DP = padded_dim(Config::head_dim), DVP = padded_dim(Config::head_dim_v);
  static constexpr int M = Config::tile_m, N = Config::tile_n, stages = Config::stages;
  static constexpr int threads = Config::threads, warps = threads / 32;
  static constexpr int warps_n = Config::sm80_warps_n, warps_c = warps / warps_n;
  static constexpr int frags = N / (16 * warps_n);  // 16-row fragments of a warp along kv
  static constexpr int chunk = Config::sm80_chunk_m;
  // Warps of the products for dv and dk: out_n along kv, the others along the columns. With warps_c > 1, P
  // and dS are read from shared memory and can be divided differently, in up to 32 rows, so that every B
  // fragment serves two products.
  static constexpr int out_n = warps_c == 1 ? warps_n : N % 32 == 0 && warps % (N / 32) == 0 ? N / 32 : warps_n;
  static constexpr int out_c = warps / out_n, out_frags = N / (16 * out_n);
  static constexpr int k_tiles = (DP / 16 + out_c - 1) / out_c;   // 16-column tiles of dk in a warp
  static constexpr int v_tiles = (DVP / 16 + out_c - 1) / out_c;  // and of dv
  static_assert(warps_n * warps_c * 32 == threads && threads <= 256 && frags * 16 * warps_n == N,
                "warps tile the kv tile");
  static_assert(M % (chunk * warps_c) == 0 && (chunk == 16 || chunk == 32), "chunks of the warps tile the q tile");
  static_assert(stages == 1 || stages == 2, "one or two stages");

  using Need = Needs<Spec, Config>;
  using Sums = SumsSm80<Spec, Config>;
  static constexpr bool reduces_acc = Need::parameters && Spec::num_acc > 0;
  static constexpr bool keep_reads_rows = on_line || (Spec::has_mask && Spec::column_intervals == 0);
  static constexpr bool has_rows = !__is_empty(Row) && (keep_reads_rows || Spec::grad_reads_row);
  // If grad has no side effect, one copy of its code serves masked tiles too.
  static constexpr bool grad_adds = Need::parameters && Spec::grad_adds;

  // ---- blocks of fragments (arch/mma_registers.cuh) ----------------------------------------------------

  static constexpr int chunk_tiles = chunk / 16, chunk_blocks = frags * chunk_tiles;
  static constexpr int c_dk = 0, c_dv = c_dk + out_frags * k_tiles, c_s = c_dv + out_frags * v_tiles,
                       c_dp = c_s + chunk_blocks;

  // ---- shared memory -----------------------------------------------------------------------------------

  using QK = SharedTile<DP>;
  using VO = SharedTile<DVP>;
  using PT = SharedTile<M>;  // P^T and dS^T: kv rows, q columns
#ifdef LUATTN_GRID
  static constexpr int axes = Config::axes;
  using Walk = QueryBoxWalk<Spec, false, Need::dq_in_order>;
#else
  static constexpr int axes = 0;
  using Walk = QTilesOf<Spec, SequenceOf<Config>, M, N>;
#endif
  static constexpr BwdSm80Layout layout =
      bwd_sm80_layout(layout_sizes<Config>({.row = has_rows ? int(sizeof(SharedRow<Row>)) : 0,
                                            .bwd_row = int(sizeof(SharedRow<BwdRow>)),
                                            .warps_n = warps_n,
                                            .axes = axes}));
  static constexpr int q_bytes = layout.q, do_bytes = layout.dout, p_bytes = layout.p;
  static constexpr int bwd_bytes = layout.bwd_row, row_bytes = layout.row;
  static constexpr int at_k = 0, at_v = layout.at_v, at_q = layout.at_q, at_do = layout.at_do;
  static constexpr int at_ds = layout.at_ds, at_p = layout.at_p, at_bwd = layout.at_bwd_row, at_row = layout.at_row;
  static_assert(has_shared<Config, layout.bytes>());

  // ---- a thread's view
  // --------------------------------------------------------------------------------------

  const LuattnParams &p;
  SequenceOf<Config> site;  // site.h: the q head at work
  Head head;
  Col col[frags][2];
  Acc acc;
  Sums sums;
  using Drops = Dropout<Config>;
  using Dropped = DroppedKind<Config, Fragment, true, chunk / 16, frags>;
  Drops dropout;
  unsigned char *shared;
  u32 base;  // address of `shared` in shared memory
  u32 thread, lane, warp;
  int kv0, h_kv;

  __device__ __forceinline__ BwdSm80(const LuattnParams &p, unsigned char *shared, KvBlock at)
      : p(p),
        site(p, at.b, SequenceOf<Config>::first_head(p, at.h)),
        shared(shared),
        base(shared_address(shared)),
        thread(threadIdx.x),
        lane(thread % 32),
        warp(thread / 32),
        kv0(at.tile * N),
        h_kv(at.h) {
    declare_fragments();
    zero_blocks<c_dk, c_s - c_dk>();
  }

  // Called at the start of a phase, so that the compiler computes the phase's addresses there and does not
  // keep them in registers through the other phases.
  __device__ __forceinline__ void begin_phase() {
    thread = u32(opaque(int(thread)));
    lane = u32(opaque(int(lane)));
    warp = u32(opaque(int(warp)));
  }

  __device__ __forceinline__ int kv_tile() const {
    return Need::dq_in_order || Spec::has_tile_bits ? kv0 / N : KvBlock::of_grid().tile;
  }
  // The warp's first kv row in the tile: of its scores, and of its part of dk and dv.
  __device__ __forceinline__ int score_row() const { return int(warp / warps_c * frags * 16); }
  __device__ __forceinline__ int out_row() const { return int(warp / out_c * out_frags * 16); }

  // Row numbers in shared memory.
  __device__ __forceinline__ SharedRow<BwdRow> *shared_bwd(int stage) const {
    return reinterpret_cast<SharedRow<BwdRow> *>(shared + at_bwd + stage * bwd_bytes);
  }
  __device__ __forceinline__ SharedRow<Row> *shared_rows(int stage) const {
    return reinterpret_cast<SharedRow<Row> *>(shared + at_row + stage * row_bytes);
  }

  // What is asked about positions costs no register.
  __device__ __forceinline__ decltype(auto) ends() const { return site.reread(); }

  // ---- elements ----------------------------------------------------------------------------------------

  __device__ __forceinline__ Position kv_of(int f, int half) const {
    return {kv0 + score_row() + Fragment::row(lane), Fragment::row_of(2 * f + half)};
  }

  __device__ __forceinline__ void enter_head() {
    head = Spec::head(p, site);
#pragma unroll
    for (int f = 0; f < frags; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        col[f][half] = Spec::col(p, site, head, ends().clamped_key(p, kv_of(f, half)));
    if constexpr (reduces_acc || HasLaneSums<Spec>) acc = zero_acc<Acc>();
    if constexpr (Drops::any) dropout.enter_head(p, site);
    sums.enter_head();
    if constexpr (!on_line) keep_places();
  }
  // Over a grid: what the tile's keys keep along each axis, read from the next barrier on.
  __device__ __forceinline__ u32 places(int row) const { return base + layout.at_places + u32(row * 4 * axes); }
  __device__ __forceinline__ void keep_places() const {
#pragma unroll 1
    for (int row = int(warp) * 16; row < N; row += warps * 16)
      BoxPlaces<!on_line>{places(row)}.template store<Spec>(p, site, kv0 + row, int(lane));
  }

  // keys: those that exist for query q (work/positions.cuh).
  __device__ __forceinline__ bool keeps(const Row &row, int f, int half, int q, int kv, Keys keys) const {
    bool kept = kv < keys;
    if constexpr (Spec::has_mask) kept &= Spec::keep(p, site, head, row, col[f][half], q, kv);
    return kept;
  }

  // A thread's elements of a chunk: its q positions (4 of every 16) times its kv rows.
  static constexpr int chunk_columns = Fragment::columns(chunk), chunk_rows = Fragment::rows(16 * frags);
  LUATTN_FN constexpr int block_of(int c, int r) { return r / 2 * chunk_tiles + c / 4; }
  LUATTN_FN constexpr int element_of(int c, int r) { return Fragment::element(r % 2, c % 4); }
  __device__ __forceinline__ int in_tile(int column, int c) const { return Fragment::column(column, lane, c); }

  using Terms = DistanceTerms<Spec, Fragment, chunk_rows, chunk / 8, true>;

  // Which elements of a chunk dropout keeps.
  __device__ __forceinline__ Dropped draw(int q0, int column) const {
    Dropped kept;
    if constexpr (Drops::any && !on_line)
      kept = Dropped::draw(dropout, p, kv0 + score_row(), q0 + column, int(lane));
    else if constexpr (Drops::any)
      kept = Dropped::draw(dropout, kv0 + score_row() + dropout.first_kv(p, site),
                           q0 + column + dropout.first_q(p, site), int(lane));
    return kept;
  }
  // Multiplies the numbers of a q position, dP or P, by 256 / dropout_keep, or by 0 where dropout drops the weight.
  LUATTN_FN void drop_column(const Dropped &kept, int c, float (&x)[chunk_rows]) {
    if constexpr (Drops::any)
#pragma unroll
      for (int r = 0; r < chunk_rows; ++r) x[r] *= kept.get(c, r % 2, r / 2) ? float(Drops::factor) : 0.f;
  }

  // Replaces S and dP of one q position by P and dS. With Masked, only for elements that the mask keeps.
  template <bool Masked>
  __device__ __forceinline__ void differentiate_column(int q0, int column, int c, int stage, float (&s)[chunk_rows],
                                                       float (&dp)[chunk_rows], const Terms &terms,
                                                       const u32 (&of_grid)[frags] = {}) {
    const int m = in_tile(column, c);
    const Position q{q0 + column + Fragment::column(lane), Fragment::column_of(c)};
    const BwdRow bwd = shared_bwd(stage)[m].value;
    Row row{};
    if constexpr (has_rows) row = shared_rows(stage)[m].value;
    bool kept[chunk_rows];
    if constexpr (Masked && on_line) keeps_column(q0, column, c, stage, kept);
    if constexpr (Masked && !on_line)
#pragma unroll
      for (int r = 0; r < chunk_rows; ++r) kept[r] = (of_grid[r / 2] >> (2 * c + r % 2) & 1u) != 0;
#pragma unroll
    for (int r = 0; r < chunk_rows; ++r)
      grad_where<Spec, Need::parameters, Masked>(
          !Masked || kept[r], p, site, head, row, col[r / 2][r % 2], bwd, q, kv_of(r / 2, r % 2),
          terms.get(r, Spec::has_distance_term ? c / 2 : 0, c % 2), s[r], dp[r], acc);
  }

  // Does this for all elements of the chunk at `column` of the q tile.
  template <bool Masked>
  __device__ __forceinline__ void differentiate(int q0, int column, int stage) {
    const Terms terms(p, site, head, q0 + column - (kv0 + score_row() + frags * 16 - 1), int(lane));
    float s[chunk_blocks][8], dp[chunk_blocks][8];
    read_blocks<c_s, chunk_blocks>(s);
    read_blocks<c_dp, chunk_blocks>(dp);
    const Dropped kept = draw(q0, column);
#pragma unroll
    for (int c = 0; c < chunk_columns; ++c) {
      float x[chunk_rows], y[chunk_rows];
#pragma unroll
      for (int r = 0; r < chunk_rows; ++r)
        x[r] = s[block_of(c, r)][element_of(c, r)], y[r] = dp[block_of(c, r)][element_of(c, r)];
      drop_column(kept, c, y);
      differentiate_column<Masked>(q0, column, c, stage, x, y, terms);
      drop_column(kept, c, x);
#pragma unroll
      for (int r = 0; r < chunk_rows; ++r)
        s[block_of(c, r)][element_of(c, r)] = x[r], dp[block_of(c, r)][element_of(c, r)] = y[r];
    }
    write_blocks<c_s, chunk_blocks>(s);
    write_blocks<c_dp, chunk_blocks>(dp);
  }

  // Does the same for a masked chunk, in a rolled loop that rotates the elements to the left: few tiles are
  // masked, and the code of grad then has one copy for an octet of q positions.
  __device__ __forceinline__ void differentiate_in_turn(int q0, int column, int stage) {
    const Terms terms(p, site, head, 0, int(lane));
    const Dropped kept = draw(q0, column);
    u32 of_grid[frags] = {};
    if constexpr (!on_line) find_kept(q0, column, stage, of_grid);
#pragma unroll 1
    for (int c = 0; c < chunk_columns; c += 2) {
      float s[2][chunk_rows], dp[2][chunk_rows];
      first_octet<c_s, chunk_tiles, frags>(s);
      first_octet<c_dp, chunk_tiles, frags>(dp);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        drop_column(kept, c + i, dp[i]);
        differentiate_column<true>(q0, column, c + i, stage, s[i], dp[i], terms, of_grid);
        drop_column(kept, c + i, s[i]);
      }
      next_octet<c_s, chunk_tiles, frags>(s);
      next_octet<c_dp, chunk_tiles, frags>(dp);
    }
    set_apart<c_s, chunk_blocks>(site.q_end(p) >> 31);
    set_apart<c_dp, chunk_blocks>(site.q_end(p) >> 31);
  }

  // Finds which elements of each fragment the mask keeps. Bits 2 c and 2 c + 1 are the elements of q position
  // c. The code of a long mask has one copy for all positions.
  __device__ __forceinline__ void find_kept(int q0, int column, int stage, u32 (&bits)[frags]) const {
    if constexpr (!on_line) return find_kept_of_box(q0, column, stage, bits);
    if constexpr (Spec::has_flag_line && !Spec::has_keep_beside && on_line) {
      const int first = kv0 + score_row(), end = first + frags * 16;
      if (ends().has_keys(p, first, frags * 16) && ends().has_queries(p, q0, M) && flags_are_wide<Spec>(p, end))
        return read_flag_lines(q0 + column, bits);
    }
    if constexpr (Spec::keep_by_row && on_line)
      if (ask_runs(q0, column, stage, bits)) return;
#pragma unroll 1
    for (int c = 0; c < chunk_columns; ++c) {
      bool kept[chunk_rows];
      keeps_column(q0, column, c, stage, kept);
#pragma unroll
      for (int r = 0; r < chunk_rows; ++r) bits[r / 2] |= u32(kept[r]) << (2 * c + r % 2);
    }
  }
  // From the places that keys keep along each axis; a mask that is no product is asked for what may be kept.
  __device__ __forceinline__ void find_kept_of_box(int q0, int column, int stage, u32 (&bits)[frags]) const {
#ifdef LUATTN_GRID
#pragma unroll
    for (int f = 0; f < frags; ++f) {
      const BoxPlaces<true> of_rows{places(score_row() + f * 16)};
      const KeptPlaces kept[2] = {of_rows.load(Fragment::row(lane, 0)), of_rows.load(Fragment::row(lane, 1))};
      KeepBits<Fragment::columns(M)> keep[2];
      find_kept_box_queries<Fragment, Config>(p, kept, q0, keep);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 of_chunk = keep[half].word[0] >> Fragment::columns(column) & ((1u << chunk_columns) - 1);
        bits[f] |= every_second(of_chunk) << half;
      }
    }
    if constexpr (Spec::has_mask && Spec::column_intervals == 0) ask_for_some(q0, column, stage, bits);
#endif
  }
  // Asks for the elements in `bits`, of queries and keys that exist.
  __device__ __forceinline__ void ask_for_some(int q0, int column, int stage, u32 (&bits)[frags]) const {
#pragma unroll 1
    for (int c = 0; c < chunk_columns; ++c) {
      const int m = in_tile(column, c);
      Row row{};
      if constexpr (has_rows) row = shared_rows(stage)[m].value;
#pragma unroll
      for (int r = 0; r < chunk_rows; ++r) {
        const u32 bit = 1u << (2 * c + r % 2);
        if ((bits[r / 2] & bit) != 0 && !Spec::keep(p, site, head, row, col[r / 2][r % 2], q0 + m, kv_of(r / 2, r % 2)))
          bits[r / 2] &= ~bit;
      }
    }
  }
  // Bit c of eight becomes bit 2 c.
  LUATTN_FN u32 every_second(u32 x) {
    x = (x | x << 4) & 0x0f0fu;
    x = (x | x << 2) & 0x3333u;
    return (x | x << 1) & 0x5555u;
  }
  // Calls `keep` once for each run of queries of a chunk. False: there are too many.
  __device__ __forceinline__ bool ask_runs(int q0, int column, int stage, u32 (&bits)[frags]) const {
    const int first_query = q0 + column;
    const auto row = [&](int i) { return shared_rows(stage)[column + i].value; };
    return for_runs_of_queries<Spec, Fragment, chunk>(
        int(lane), site.q_end(p) - first_query, row, [&](int first, u32 of_run) {
          const u32 apart = every_second(of_run);
          const Row here = row(first);
#pragma unroll
          for (int r = 0; r < chunk_rows; ++r)
            if (keeps(here, r / 2, r % 2, first_query + first, kv_of(r / 2, r % 2), ends().keys(p)))
              bits[r / 2] |= apart << r % 2;
        });
  }
  // In a tile inside the lengths, of the chunk that begins at query `first`.
  __device__ __forceinline__ void read_flag_lines(int first, u32 (&bits)[frags]) const {
    const u64 line = Spec::flag_line(p, site, head, first + int(lane)) + u32(kv0 + score_row());
    u32 flags[frags];
#pragma unroll
    for (int f = 0; f < frags; ++f) flags[f] = bits_of_flags(read_flags(line + f * 16));
#pragma unroll
    for (int c = 0; c < chunk_columns; ++c)
#pragma unroll
      for (int f = 0; f < frags; ++f) {
        const u32 two = flags_of_column<Fragment>(flags[f], c, int(lane));
        bits[f] |= ((two | two >> 7) & 3u) << 2 * c;
      }
  }
  __device__ __forceinline__ void keeps_column(int q0, int column, int c, int stage, bool (&kept)[chunk_rows]) const {
    const int m = in_tile(column, c);
    const Keys keys = ends().keys_of(p, q0 + m);
    Row row{};
    if constexpr (has_rows) row = shared_rows(stage)[m].value;
#pragma unroll
    for (int r = 0; r < chunk_rows; ++r) kept[r] = keeps(row, r / 2, r % 2, q0 + m, kv_of(r / 2, r % 2), keys);
  }

  // Zeroes P and dS of elements that the mask drops.
  __device__ __forceinline__ void drop(int q0, int column, int stage) const {
    u32 bits[frags] = {}, kept[chunk_blocks][8];
    constexpr bool by_bits = !Spec::keep_is_cheap || !on_line;
    if constexpr (by_bits) find_kept(q0, column, stage, bits);
#pragma unroll
    for (int c = 0; c < chunk_columns; ++c) {
      bool x[chunk_rows];
      if constexpr (!by_bits) keeps_column(q0, column, c, stage, x);
#pragma unroll
      for (int r = 0; r < chunk_rows; ++r)
        kept[block_of(c, r)][element_of(c, r)] = by_bits ? bits[r / 2] & 1u << (2 * c + r % 2) : u32(x[r]);
    }
    drop_blocks<c_s, c_dp, chunk_blocks>(kept);
  }

  __device__ __forceinline__ void differentiate(bool masked, int q0, int column, int stage) {
    if constexpr (grad_adds) {
      if (!masked)
        differentiate<false>(q0, column, stage);
      else if constexpr (Spec::has_distance_term)
        differentiate<true>(q0, column, stage);
      else
        differentiate_in_turn(q0, column, stage);
    } else {
      differentiate<false>(q0, column, stage);
      if (masked) drop(q0, column, stage);
    }
  }

  // ---- products ----

  static constexpr int D = Config::head_dim, DV = Config::head_dim_v;
  static constexpr bool needs_ds = Need::dq || Need::dk || Sums::any, needs_dp = needs_ds || Need::parameters;
  // Whether dq or parameter gradients are computed from all of a tile's dS, once it is in shared memory.
  static constexpr bool shares_ds = Need::dq || Sums::any;
  // Of two warps on one scheduler, one computes these for the previous tile before its scores, the other
  // after.
  static constexpr bool alternates = shares_ds && stages == 2 && warps > 4;

  // Warps of the dq product: dq_q along q, the others along d.
  static constexpr int dq_q = split_of(M, DP, warps), dq_d = warps / dq_q;
  static constexpr int dq_frags = M / (16 * dq_q), dq_tiles = (DP / 16 + dq_d - 1) / dq_d;

  // Blocks of fragments, after those of scores.
  static constexpr int c_dq = c_dp + chunk_blocks;
  static constexpr int a_p = 0, a_ds = frags;  // loads of a phase use blocks from 0 on
  static_assert(c_dq + dq_frags * dq_tiles <= num_c_blocks, "blocks of C");
  static_assert(2 * frags <= num_a_blocks && out_frags <= num_a_blocks && dq_frags <= num_a_blocks, "blocks of A");

  // ---- load --------------------------------------------------------------------------------------------

  __device__ __forceinline__ auto q_rows(const LuattnTensor &t) const {
    return ends().template q_rows<const Elem>(p, t);
  }
  __device__ __forceinline__ auto kv_rows(const LuattnTensor &t) const {
    return ends().template kv_rows<const Elem>(p, t, h_kv);
  }

  // Copies rows row0 .. row0 + Rows - 1 of `src` to the shared tile at `at`. Rows that do not exist and columns
  // from Dim on become zeros without being read. Whole and ragged tiles use the same code. With Rolled, the
  // loop is rolled, for tiles that a block copies once.
  template <bool Rolled, int Rows, int Dim>
  __device__ __forceinline__ void load_tile(int at, const LineRows<const Elem> &src, int row0) const {
    using Tile = SharedTile<padded_dim(Dim)>;
    constexpr u32 width = power_above(Tile::chunks),
                  pass = threads / width;  // threads per row, rows per pass
    constexpr int passes = (Rows + pass - 1) / pass;
    const u32 chunk = thread % width, row = thread / width;
    if (width > Tile::chunks && chunk >= Tile::chunks) return;
    const int end = Dim % 16 != 0 && chunk * 8 >= Dim ? 0 : src.len - row0 - int(row);
    const Elem *from = src.data + i64(row0 + int(row)) * src.seq + chunk * 8;
#pragma unroll(Rolled ? 1 : passes)
    for (int i = 0; i < passes; ++i) {
      if (Rows % pass != 0 && row + i * pass >= Rows) break;
      cp_async_16(base + at + Tile::offset(row + i * pass, chunk), from, i * int(pass) < end);
      from += pass * src.seq;
    }
  }
  // Of rows that do not lie along a line.
  template <bool Rolled, int Rows, int Dim, class Source>
  __device__ __forceinline__ void load_tile(int at, const Source &src, int row0) const {
    copy_tile_async<Rows, Dim, threads>(base + at, src, row0, int(thread));
  }

  // Loads K and V, which are the same rows of two tensors, in one loop if they have the same width. In the
  // loop over q tiles that would cost a twelfth of the speed at D = 128: every warp would wait for tensors
  // chosen at run time.
  __device__ __forceinline__ void load_kv() const {
    if constexpr (needs_dp && D == DV) {
#pragma unroll 1
      for (int i = 0; i < 2; ++i)
        load_tile<true, N, D>(i == 0 ? at_k : at_v, kv_rows(i == 0 ? p.tensors.k : p.tensors.v), kv0);
    } else {
      load_tile<true, N, D>(at_k, kv_rows(p.tensors.k), kv0);
      if constexpr (needs_dp) load_tile<true, N, DV>(at_v, kv_rows(p.tensors.v), kv0);
    }
  }

  // Loads Q, dO and row numbers of one q tile.
  __device__ __forceinline__ void load_q(int index, int stage) {
    begin_phase();
    if constexpr (has_chunks) site.enter_queries(p, index * M);
    load_tile<false, M, D>(at_q + stage * q_bytes, q_rows(p.tensors.q), index * M);
    load_tile<false, M, DV>(at_do + stage * do_bytes, q_rows(p.tensors.dout), index * M);
#pragma unroll
    for (int r0 = 0; r0 < M; r0 += threads)
      if (const int r = r0 + int(thread); r < M)
        load_row(on_line ? ends().clamped_query(p, index * M + r) : index * M + r, r, stage);
    cp_async_commit();
  }

  // Over a grid slots without a place have numbers, too (around/before/prepare.cuh).
  __device__ __forceinline__ void load_row(int q, int r, int stage) const {
    const i64 plane = site.template q_acc_rows<PlainRows>(p);
    const float *src = static_cast<const float *>(p.scratch.bwd_rows) + site.template q_acc_index<PlainRows>(p, q);
    const u32 to = base + at_bwd + u32(stage * bwd_bytes + r * int(sizeof(SharedRow<BwdRow>)));
#pragma unroll
    for (int i = 0; i < Spec::num_bwd_rows; ++i) cp_async_4(to + 4 * i, src + i * plane);
    if constexpr (has_rows)
      shared_rows(stage)[r].value = Spec::row(p, site, head, on_line ? q : ends().clamped_query(p, q));
  }

  // ---- compute -----------------------------------------------------------------------------------------

  // Computes blocks C + f * chunk_tiles + j = rows of the warp's kv tile (stored n x d) times rows of a q
  // tile (stored m x d), both over d.
  template <int Cols, int C>
  __device__ __forceinline__ void multiply_scores(u32 kv_tile, u32 q_tile) const {
    const LanePointer<Cols, false> a_lane(lane);
    const LanePointer<Cols, true> b_lane(lane);
    zero_blocks<C, frags * chunk_tiles>();
#pragma unroll
    for (int d = 0; d < Cols; d += 16) {
      load_a<false, 0, frags>(a_lane.at(kv_tile, 0, d), 16 * Cols * 2);
      multiply<Elem, false, frags, 0, C, chunk_tiles>(b_lane.at(q_tile, 0, d));
      if constexpr (chunk_tiles == 2) multiply<Elem, false, frags, 0, C + 1, chunk_tiles>(b_lane.at(q_tile, 16, d));
    }
  }

  // Computes blocks C + f * Step + n += blocks A + f (16 kv rows x 16 q) times 16 q rows of a tile stored (q,
  // d), columns from tile `first` on, for n = 0 .. Tiles - 1.
  template <int Cols, int Frags, int A, int C, int Step, int Tiles>
  __device__ __forceinline__ void multiply_rows(u32 rows, int first) const {
    if constexpr (Tiles > 0) {
      if (Step * out_c * 16 != Cols && first * 16 >= Cols) return;
      const LanePointer<Cols, false> b_lane(lane);
      multiply<Elem, true, Frags, A, C, Step>(b_lane.at(rows, 0, first * 16));
      multiply_rows<Cols, Frags, A, C + 1, Step, Tiles - 1>(rows, first + 1);
    }
  }
  template <int A>
  __device__ __forceinline__ void add_dv(int row, int stage) const {
    multiply_rows<DVP, out_frags, A, c_dv, v_tiles, v_tiles>(base + at_do + stage * do_bytes + row * DVP * 2,
                                                             int(warp % out_c) * v_tiles);
  }
  template <int A>
  __device__ __forceinline__ void add_dk(int row, int stage) const {
    multiply_rows<DP, out_frags, A, c_dk, k_tiles, k_tiles>(base + at_q + stage * q_bytes + row * DP * 2,
                                                            int(warp % out_c) * k_tiles);
  }

  // Rounds blocks C + f * chunk_tiles to blocks A + f, and stores them to a tile of P^T or dS^T at `to`.
  template <bool Store, int A, int C, int Frags = frags>
  LUATTN_FN void round_column(u32 to) {
    if constexpr (Frags > 0) {
      round_block<Elem, A, C>();
      if constexpr (Store) store_a<M, A>(to);
      round_column<Store, A + 1, C + chunk_tiles, Frags - 1>(to + 16 * M * 2);
    }
  }

  // Adds P and dS of columns 16 * J and on of one chunk to dV and dK, and stores dS in shared memory.
  template <int J = 0>
  __device__ __forceinline__ void accumulate(int column, int stage) const {
    if constexpr (J < chunk_tiles) {
      const int m = column + J * 16;
      const u32 to = store_pointer<M>(base, u32(score_row()), u32(m), lane);
      if constexpr (needs_ds) round_column<shares_ds || warps_c != 1, a_ds, c_dp + J>(to + at_ds + stage * p_bytes);
      if constexpr (Need::dv) round_column<warps_c != 1, a_p, c_s + J>(to + at_p);
      if constexpr (warps_c == 1 && Need::dv) add_dv<a_p>(m, stage);
      if constexpr (warps_c == 1 && Need::dk) add_dk<a_ds>(m, stage);
      accumulate<J + 1>(column, stage);
    }
  }

  // Computes dV and dK from P^T and dS^T in shared memory, over chunk * warps_c q columns from `column` on.
  __device__ __forceinline__ void accumulate_shared(int column, int stage) const {
    const LanePointer<M, false> a_lane(lane);
#pragma unroll 1
    for (int m = column; m < column + chunk * warps_c; m += 16) {
      const u32 a = a_lane.at(base, u32(out_row()), u32(m));
      if constexpr (Need::dv) {
        load_a<false, 0, out_frags>(a + at_p, 16 * M * 2);
        add_dv<0>(m, stage);
      }
      if constexpr (Need::dk) {
        load_a<false, 0, out_frags>(a + at_ds + stage * p_bytes, 16 * M * 2);
        add_dk<0>(m, stage);
      }
    }
  }

  // Computes everything from one q tile except dq.
  __device__ __forceinline__ void work(const Tile &tile, int stage) {
    begin_phase();
    const u32 k_rows = base + at_k + u32(score_row()) * (DP * 2);
    const u32 v_rows = base + at_v + u32(score_row()) * (DVP * 2);
    const int q0 = tile.index * M;
    if constexpr (has_chunks) site.enter_queries(p, q0);
#pragma unroll 1
    for (int first = 0; first < M; first += chunk * warps_c) {
      const int column = first + int(warp % warps_c) * chunk;
      multiply_scores<DP, c_s>(k_rows, base + at_q + stage * q_bytes + column * DP * 2);
      if constexpr (needs_dp)
        multiply_scores<DVP, c_dp>(v_rows, base + at_do + stage * do_bytes + column * DVP * 2);
      else
        zero_blocks<c_dp, chunk_blocks>();
      differentiate(tile.masked, q0, column, stage);
      accumulate(column, stage);
      if constexpr (warps_c > 1) {
        named_barrier(1 + warp / out_c, 32 * out_c);
        accumulate_shared(first, stage);
      }
    }
  }

  // Computes dQ of a tile from its dS in shared memory, and adds it to p.scratch.dq_acc.
  __device__ __forceinline__ void add_dq(int index, int stage) {
    begin_phase();
    const LanePointer<M, true> a_lane(lane);
    const int first_q = int(warp % dq_q * dq_frags) * 16, first_d = int(warp / dq_q * dq_tiles);
    zero_blocks<c_dq, dq_frags * dq_tiles>();
#pragma unroll
    for (int k = 0; k < N; k += 16) {
      load_dq_a<0>(a_lane, base + at_ds + stage * p_bytes, k, first_q);
      multiply_dq<0>(base + at_k + k * DP * 2, first_d);
    }
    float *out;
    if constexpr (SequenceOf<Config>::packed)
      out = site.template q_acc_head<FragmentGroups, D, float>(p, p.scratch.dq_acc, site.b, site.h);
    else
      out = static_cast<float *>(p.scratch.dq_acc) + (i64(site.b) * site.heads(p) + site.h) * site.q_end(p) * D;
    if constexpr (Need::dq_in_order) {
      static_assert(workspace_dq_orders(false, threads, N) == warps);
      // A warp has the same part of a q tile in every block.
      u32 *semaphore = p.scratch.dq_order + LUATTN_DQ_ORDER_FIRST +
                       site.template q_tile_index<M>(p, site.b, site.h, index) * warps + warp;
      semaphore_wait(semaphore, dq_order_before<Spec, M, N>(p, site, index, kv_tile()));
      write_dq<0>(out, index * M + first_q, first_d * 16);
      semaphore_release(semaphore, kv_tile());
    } else {
      write_dq<0>(out, index * M + first_q, first_d * 16);
    }
  }
  template <int F>
  LUATTN_FN void load_dq_a(const LanePointer<M, true> &lane, u32 tile, int k, int q) {
    if constexpr (F < dq_frags) {
      load_a<true, F, 1>(lane.at(tile, k, q + F * 16), 0);
      load_dq_a<F + 1>(lane, tile, k, q);
    }
  }
  template <int T>
  __device__ __forceinline__ void multiply_dq(u32 rows, int first) const {
    if constexpr (T < dq_tiles) {
      if (dq_tiles * dq_d * 16 != DP && (first + T) * 16 >= DP) return;
      const LanePointer<DP, false> b_lane(lane);
      multiply<Elem, true, dq_frags, 0, c_dq + T, dq_tiles>(b_lane.at(rows, 0, (first + T) * 16));
      multiply_dq<T + 1>(rows, first);
    }
  }
  template <int F>
  __device__ __forceinline__ void write_dq(float *out, int row0, int d0) const {
    if constexpr (F < dq_frags) {
      FragmentGroups::add<D, c_dq + F * dq_tiles, 0, dq_tiles>(out, site.q_end(p), row0, d0, int(lane));
      FragmentGroups::add<D, c_dq + F * dq_tiles, 1, dq_tiles>(out, site.q_end(p), row0 + 8, d0, int(lane));
      write_dq<F + 1>(out, row0 + 16, d0);
    }
  }

  __device__ __forceinline__ typename Sums::At sums_at(int index, int stage) {
    return {p, site, head, acc, index * M, kv0, int(warp), int(lane), base + at_ds + stage * p_bytes};
  }
  // Computes dq and parameter gradients from all of a tile's dS.
  __device__ __forceinline__ void use_ds(int index, int stage) {
    if constexpr (has_chunks) site.enter_queries(p, index * M);
    if constexpr (Need::dq) add_dq(index, stage);
    if constexpr (Sums::any) {
      begin_phase();
      sums.add(sums_at(index, stage));
    }
  }

  // ---- finish ------------------------------------------------------------------------------------------

  // Stores a gradient of the kv tile (blocks C and on) in Elem to the shared tile at `at`.
  template <int Dim, int C, int Tiles, bool Scaled, int B = 0>
  __device__ __forceinline__ void share_gradient(u32 tile) const {
    constexpr int Cols = padded_dim(Dim);
    if constexpr (B < out_frags * Tiles) {
      const u32 first = warp % out_c * Tiles, at = tile + B / Tiles * (16 * Cols * 2);
      if (Tiles * out_c * 16 == Cols || (first + B % Tiles) * 16 < Cols) {
        if constexpr (Scaled) scale_block<C + B>(float(p.scale));
        round_block<Elem, 0, C + B>();
        if constexpr (out_c == 1 || (Tiles & (Tiles - 1)) == 0)
          store_a<Cols, 0>(beside<Cols>(store_pointer<Cols>(at, u32(out_row()), first * 16, lane), B % Tiles));
        else
          store_a<Cols, 0>(store_pointer<Cols>(at, u32(out_row()), (first + B % Tiles) * 16, lane));
      }
      share_gradient<Dim, C, Tiles, Scaled, B + 1>(tile);
    }
  }
  // Copies a gradient from the shared tile to the caller's tensor.
  template <int Dim>
  __device__ __forceinline__ void store_gradient(int at, const LuattnTensor &t) const {
    if (t.data == nullptr) return;
    const auto rows = site.template kv_rows<Elem>(p, t, h_kv);
    store_tile<N, Dim, threads>(rows.from(kv0), base + at, ends().keys_from(p, kv0), int(thread));
  }

  // Stores a gradient in f32 to the caller's tensor, from the blocks C and on.
  template <int Dim, int C, int Tiles, bool Scaled, int B = 0>
  __device__ __forceinline__ void store_gradient_f32(const LuattnTensor &t) const {
    if constexpr (B < out_frags * Tiles) {
      if (B == 0 && t.data == nullptr) return;
      const auto rows = site.template kv_rows<float>(p, t, h_kv);
      const int row = kv0 + out_row() + Fragment::row(lane) + B / Tiles * 16,
                column = (int(warp % out_c) * Tiles + B % Tiles) * 16 + Fragment::column(lane);
      if constexpr (Scaled) scale_block<C + B>(float(p.scale));
      store_block_halves<C + B>(rows.element(row, column), rows.element(row + 8, column), rows.has(row),
                                rows.has(row + 8), Dim - column);
      store_gradient_f32<Dim, C, Tiles, Scaled, B + 1>(t);
    }
  }

  // Stores a gradient in f32 and unscaled, to [batch][heads_kv][kv_len][Dim], for the derivative of a mod.
  template <int Dim, int C, int Tiles>
  __device__ __forceinline__ void store_accumulator(void *dst) const {
    const int kv = kv0 + out_row() + Fragment::row(lane), d0 = int(warp % out_c) * Tiles * 16;
    float *out =
        site.template kv_acc_row<PlainRows, Dim, float>(p, dst, 0, site.b, h_kv, kv) + d0 + Fragment::column(lane);
    store_accumulators<Dim, C, Tiles>(out, site.kv_end(p) - kv, Dim - d0);
  }
  // Stores at most `rows` rows and `columns` columns, from this thread's first row on.
  template <int Dim, int C, int Tiles, int B = 0>
  LUATTN_FN void store_accumulators(float *out, int rows, int columns) {
    if constexpr (B < out_frags * Tiles) {
      constexpr int row = B / Tiles * 16, column = B % Tiles * 16;
      store_block<C + B, Dim>(out + row * Dim + column, rows - row, columns - column);
      store_accumulators<Dim, C, Tiles, B + 1>(out, rows, columns);
    }
  }

  // Stores dk and dv. Called after a barrier, when the tiles of K and V are no longer read.
  __device__ __forceinline__ void finish() const {
    constexpr bool is_f32 = same_type<GradOf<Config>, float>::value;
    constexpr bool stores_dk = Need::dk && !Spec::has_key_mod && !is_f32,
                   stores_dv = Need::dv && !Spec::has_value_mod && !is_f32;
    if constexpr (is_f32 && Need::dk && !Spec::has_key_mod)
      store_gradient_f32<D, c_dk, k_tiles, true>(p.tensors.dk);
    else if constexpr (stores_dk)
      share_gradient<D, c_dk, k_tiles, true>(base + at_k);
    else if constexpr (Need::dk)
      store_accumulator<D, c_dk, k_tiles>(p.scratch.dk_acc);
    if constexpr (is_f32 && Need::dv && !Spec::has_value_mod)
      store_gradient_f32<DV, c_dv, v_tiles, false>(p.tensors.dv);
    else if constexpr (stores_dv)
      share_gradient<DV, c_dv, v_tiles, false>(base + at_v);
    else if constexpr (Need::dv)
      store_accumulator<DV, c_dv, v_tiles>(p.scratch.dv_acc);
    __syncthreads();
    if constexpr (stores_dk && stores_dv && D == DV) {
#pragma unroll 1
      for (int i = 0; i < 2; ++i) store_gradient<D>(i == 0 ? at_k : at_v, i == 0 ? p.tensors.dk : p.tensors.dv);
    } else {
      if constexpr (stores_dk) store_gradient<D>(at_k, p.tensors.dk);
      if constexpr (stores_dv) store_gradient<DV>(at_v, p.tensors.dv);
    }
  }

  // Computes dq of the previous tile and the rest of this one, after the barrier of a step with two stages.
  __device__ __forceinline__ void work_and_add(const Tile &tile, int last, int stage) {
    if constexpr (alternates) {
      const int dq_phase = opaque(warp >= warps / 2);
#pragma unroll 1
      for (int phase = 0; phase < 2; ++phase) {
        if (phase != dq_phase) {
          if (tile.valid()) work(tile, stage);
        } else if (last >= 0) {
          use_ds(last, stage ^ 1);
        }
      }
    } else {
      if constexpr (shares_ds)
        if (last >= 0) use_ds(last, stage ^ 1);
      if (tile.valid()) work(tile, stage);
    }
  }

  // Computes all q tiles of one q head. The first iteration only loads the first tile.
  __device__ __forceinline__ void run_head(int h) {
    site.h = h;
    Walk walk(p, site, kv_tile());
    enter_head();
    Tile tile{-1, false};
    int stage = 0, last = -1;
    do {
      const bool first = !tile.valid() && last < 0;
      if (!first) {
        cp_async_wait<0>();
        __syncthreads();
      }
      if constexpr (stages == 1) {
        if (!first) {
          work(tile, 0);
          __syncthreads();
        }
      }
      const Tile next = walk.next(p, site);
      if (next.valid()) load_q(next.index, stage ^ (stages - 1));
      if constexpr (stages == 2) {
        work_and_add(tile, last, stage);
        last = shares_ds ? tile.index : -1;
        stage ^= 1;
      } else if (shares_ds && !first) {
        use_ds(tile.index, 0);
      }
      tile = next;
    } while (tile.valid() || last >= 0);
    __syncthreads();
    if constexpr (Sums::any) sums.leave_head(sums_at(0, 0));
    if constexpr (reduces_acc) flush_block<Spec, threads>(p, site, head, acc);
    if constexpr (Need::parameters && HasLaneSums<Spec>) flush_lanes<Spec, threads>(p, site, head, acc);
  }

  __device__ __forceinline__ void run() {
    if (site.packed && !site.has_key(p, kv0)) return;  // the grid is for the longest entry
    if constexpr (has_chunks) site.enter_keys(p, kv0);
    load_kv();
    cp_async_commit();
    const int first = site.first_head(p, h_kv);
#pragma unroll 1
    for (int h = first; h < first + site.group(p); ++h) run_head(h);
    cp_async_wait<0>();
    __syncthreads();
    finish();
  }
};
