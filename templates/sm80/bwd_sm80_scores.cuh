// sm80/bwd_sm80_scores.cuh: how a block of sm80/bwd_sm80.cuh is shaped: its warps, their blocks of fragments, its
// shared memory; what a thread of it holds; and how it turns dots and dP into P and dS, element by element.
// The products before and behind that are the kernel's own.
#pragma once
#include "arch/mma_registers.cuh"
#include "grads/flush.cuh"
#include "score/backward_rows.cuh"
#include "score/distance_terms.cuh"
#include "sm80/parameter_grads_sm80.cuh"
#include "source/cp_async_tile.cuh"
#include "work/dq_order.cuh"

template <class Spec, class Config>
struct ElementsBwdSm80 {
  static_assert(BackwardSpec<Spec>);
  using Elem = typename Config::Elem;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  using Col = typename Spec::Col;
  using BwdRow = typename Spec::BwdRow;
  using Acc = typename Spec::Acc;
  static_assert(same_type<typename Spec::Real, float>::value, "the sm80 family accumulates in f32");

  // ---- shape --------------------------------------------------------------------------------------------

  static constexpr int DP = padded_dim(Config::head_dim), DVP = padded_dim(Config::head_dim_v);
  static constexpr int M = Config::tile_m, N = Config::tile_n, stages = Config::stages;
  static constexpr int threads = Config::threads, warps = threads / 32;
  static constexpr int warps_n = Config::sm80_warps_n, warps_c = warps / warps_n;
  static constexpr int frags = N / (16 * warps_n);  // 16-row fragments of a warp along kv
  static constexpr int chunk = Config::sm80_chunk_m;
  // Warps of the dv and dk products: out_n along kv, the others along the columns. What warps_c > 1 warps
  // have written to shared memory can be split anew, in up to 32 rows, so that every B fragment serves two
  // products.
  static constexpr int out_n = warps_c == 1                           ? warps_n
                               : N % 32 == 0 && warps % (N / 32) == 0 ? N / 32
                                                                      : warps_n;
  static constexpr int out_c = warps / out_n, out_frags = N / (16 * out_n);
  static constexpr int k_tiles = (DP / 16 + out_c - 1) / out_c;   // 16-column tiles of dk in a warp
  static constexpr int v_tiles = (DVP / 16 + out_c - 1) / out_c;  // and of dv
  static_assert(warps_n * warps_c * 32 == threads && threads <= 256 && frags * 16 * warps_n == N,
                "warps tile the kv tile");
  static_assert(M % (chunk * warps_c) == 0 && (chunk == 16 || chunk == 32),
                "chunks of the warps tile the q tile");
  static_assert(stages == 1 || stages == 2, "one or two stages");

  using Need = Needs<Spec, Config>;
  using Sums = SumsSm80<Spec, Config>;
  static constexpr bool reduces_acc = Need::parameters && Spec::num_acc > 0;
  static constexpr bool has_rows = !__is_empty(Row);
  // Where grad has no effect but its results, one copy of it serves masked tiles too.
  static constexpr bool grad_adds = Need::parameters && Spec::grad_adds;

  // ---- blocks of fragments (arch/mma_registers.cuh) --------------------------------------------------------------

  static constexpr int chunk_tiles = chunk / 16, chunk_blocks = frags * chunk_tiles;
  static constexpr int c_dk = 0, c_dv = c_dk + out_frags * k_tiles, c_s = c_dv + out_frags * v_tiles,
                       c_dp = c_s + chunk_blocks;

  // ---- shared memory ------------------------------------------------------------------------------------

  using QK = SharedTile<DP>;
  using VO = SharedTile<DVP>;
  using PT = SharedTile<M>;  // P^T and dS^T: kv rows, q columns
  static constexpr BwdSm80Layout layout =
      bwd_sm80_layout(layout_sizes<Config>({.row = has_rows ? int(sizeof(SharedRow<Row>)) : 0,
                                            .bwd_row = int(sizeof(SharedRow<BwdRow>)),
                                            .warps_n = warps_n}));
  static constexpr int q_bytes = layout.q, do_bytes = layout.dout, p_bytes = layout.p;
  static constexpr int bwd_bytes = layout.bwd_row, row_bytes = layout.row;
  static constexpr int at_k = 0, at_v = layout.at_v, at_q = layout.at_q, at_do = layout.at_do;
  static constexpr int at_ds = layout.at_ds, at_p = layout.at_p, at_bwd = layout.at_bwd_row, at_row = layout.at_row;
  static_assert(has_shared<Config, layout.bytes>());

  // ---- a thread's view ----------------------------------------------------------------------------------

  const LuattnParams &p;
  Site site;  // site.h: the q head at work
  Head head;
  Col col[frags][2];
  Acc acc;
  Sums sums;
  unsigned char *shared;
  u32 base;  // the same, as an address in shared memory
  u32 thread, lane, warp;
  int kv0, h_kv;

  __device__ __forceinline__ ElementsBwdSm80(const LuattnParams &p, unsigned char *shared, KvBlock at)
      : p(p),
        site{at.b, at.h * p.group, p.q_len, p.kv_len},
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

  // Called where a phase begins, so that the compiler computes the phase's addresses there and does not hold
  // them in registers through the other phases.
  __device__ __forceinline__ void begin_phase() {
    thread = u32(opaque(int(thread)));
    lane = u32(opaque(int(lane)));
    warp = u32(opaque(int(warp)));
  }

  __device__ __forceinline__ int kv_tile() const { return Need::dq_in_order ? kv0 / N : int(blockIdx.x); }
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

  // ---- elements -----------------------------------------------------------------------------------------

  __device__ __forceinline__ Position kv_of(int f, int half) const {
    return {kv0 + score_row() + int(lane / 4), f * 16 + half * 8};
  }

  __device__ __forceinline__ void enter_head() {
    head = Spec::head(p, site);
#pragma unroll
    for (int f = 0; f < frags; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        col[f][half] = Spec::col(p, site, head, min_of(int(kv_of(f, half)), p.kv_len - 1));
    if constexpr (reduces_acc) acc = zero_acc<Acc>();
    sums.enter_head();
  }

  // kv_end: kv_len, or 0 for a row that does not exist.
  __device__ __forceinline__ bool keeps(const Row &row, int f, int half, int q, int kv, int kv_end) const {
    bool kept = kv < kv_end;
    if constexpr (Spec::has_mask) kept &= Spec::keep(p, site, head, row, col[f][half], q, kv);
    return kept;
  }

  // The element of a block's fragments: side is 0 on the left, 1 on the right.
  LUATTN_FN constexpr int element(int side, int half, int i) { return side * 4 + half * 2 + i; }

  // A chunk's elements of a thread: its q positions, of which it holds 4 of 16, times its kv rows.
  static constexpr int chunk_columns = chunk / 4, chunk_rows = 2 * frags;
  LUATTN_FN constexpr int block_of(int c, int r) { return r / 2 * chunk_tiles + c / 4; }
  LUATTN_FN constexpr int element_of(int c, int r) { return element(c / 2 % 2, r % 2, c % 2); }
  __device__ __forceinline__ int in_tile(int column, int c) const {
    return column + c / 2 * 8 + int(lane % 4) * 2 + c % 2;
  }

  using Terms = DistanceTerms<Spec, chunk_rows, chunk / 8, true>;

  // P and dS of one q position in place of its dots and dP. Masked: where the mask keeps them alone.
  template <bool Masked>
  __device__ __forceinline__ void differentiate_column(int q0, int column, int c, int stage,
                                                       float (&s)[chunk_rows], float (&dp)[chunk_rows],
                                                       const Terms &terms) {
    const int m = in_tile(column, c);
    const Position q{q0 + column + int(lane % 4) * 2, c / 2 * 8 + c % 2};
    const BwdRow bwd = shared_bwd(stage)[m].value;
    Row row{};
    if constexpr (has_rows) row = shared_rows(stage)[m].value;
    bool kept[chunk_rows];
    if constexpr (Masked) keeps_column(q0, column, c, stage, kept);
#pragma unroll
    for (int r = 0; r < chunk_rows; ++r)
      grad_where<Spec, Need::parameters, Masked>(
          !Masked || kept[r], p, site, head, row, col[r / 2][r % 2], bwd, q, kv_of(r / 2, r % 2),
          terms.get(r, Spec::has_distance_term ? c / 2 : 0, c % 2), s[r], dp[r], acc);
  }

  // All of the chunk at `column` of the q tile.
  template <bool Masked>
  __device__ __forceinline__ void differentiate(int q0, int column, int stage) {
    const Terms terms(p, site, head, q0 + column - (kv0 + score_row() + frags * 16 - 1), int(lane));
    float s[chunk_blocks][8], dp[chunk_blocks][8];
    read_blocks<c_s, chunk_blocks>(s);
    read_blocks<c_dp, chunk_blocks>(dp);
#pragma unroll
    for (int c = 0; c < chunk_columns; ++c) {
      float x[chunk_rows], y[chunk_rows];
#pragma unroll
      for (int r = 0; r < chunk_rows; ++r)
        x[r] = s[block_of(c, r)][element_of(c, r)], y[r] = dp[block_of(c, r)][element_of(c, r)];
      differentiate_column<Masked>(q0, column, c, stage, x, y, terms);
#pragma unroll
      for (int r = 0; r < chunk_rows; ++r)
        s[block_of(c, r)][element_of(c, r)] = x[r], dp[block_of(c, r)][element_of(c, r)] = y[r];
    }
    write_blocks<c_s, chunk_blocks>(s);
    write_blocks<c_dp, chunk_blocks>(dp);
  }

  // The same, masked, in a loop through whose turns the elements move to the left: few tiles are masked, and
  // grad stands there for an octet of q positions only.
  __device__ __forceinline__ void differentiate_in_turn(int q0, int column, int stage) {
    const Terms terms(p, site, head, 0, int(lane));
#pragma unroll 1
    for (int c = 0; c < chunk_columns; c += 2) {
      float s[2][chunk_rows], dp[2][chunk_rows];
      first_octet<c_s, chunk_tiles, frags>(s);
      first_octet<c_dp, chunk_tiles, frags>(dp);
#pragma unroll
      for (int i = 0; i < 2; ++i) differentiate_column<true>(q0, column, c + i, stage, s[i], dp[i], terms);
      next_octet<c_s, chunk_tiles, frags>(s);
      next_octet<c_dp, chunk_tiles, frags>(dp);
    }
    set_apart<c_s, chunk_blocks>(p.q_len >> 31);
    set_apart<c_dp, chunk_blocks>(p.q_len >> 31);
  }

  // Which elements of each fragment the mask keeps, bits 2 c and 2 c + 1 being those of a q position. What a
  // long mask asks stands there once for a position, not for every one.
  __device__ __forceinline__ void find_kept(int q0, int column, int stage, u32 (&bits)[frags]) const {
#pragma unroll 1
    for (int c = 0; c < chunk_columns; ++c) {
      bool kept[chunk_rows];
      keeps_column(q0, column, c, stage, kept);
#pragma unroll
      for (int r = 0; r < chunk_rows; ++r) bits[r / 2] |= u32(kept[r]) << (2 * c + r % 2);
    }
  }
  __device__ __forceinline__ void keeps_column(int q0, int column, int c, int stage,
                                               bool (&kept)[chunk_rows]) const {
    const int m = in_tile(column, c), kv_end = q0 + m < p.q_len ? p.kv_len : 0;
    Row row{};
    if constexpr (has_rows) row = shared_rows(stage)[m].value;
#pragma unroll
    for (int r = 0; r < chunk_rows; ++r)
      kept[r] = keeps(row, r / 2, r % 2, q0 + m, kv_of(r / 2, r % 2), kv_end);
  }

  // Zeros in P and dS where the mask drops the element.
  __device__ __forceinline__ void drop(int q0, int column, int stage) const {
    u32 bits[frags] = {}, kept[chunk_blocks][8];
    if constexpr (!Spec::keep_is_cheap) find_kept(q0, column, stage, bits);
#pragma unroll
    for (int c = 0; c < chunk_columns; ++c) {
      bool x[chunk_rows];
      if constexpr (Spec::keep_is_cheap) keeps_column(q0, column, c, stage, x);
#pragma unroll
      for (int r = 0; r < chunk_rows; ++r)
        kept[block_of(c, r)][element_of(c, r)] =
            Spec::keep_is_cheap ? u32(x[r]) : bits[r / 2] & 1u << (2 * c + r % 2);
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
};
