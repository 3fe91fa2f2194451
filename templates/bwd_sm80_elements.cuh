// bwd_sm80_elements.cuh: how a block of bwd_sm80.cuh is shaped: its warps, their blocks of fragments, its
// shared memory; what a thread of it holds; and how it turns dots and dP into P and dS, element by element.
// The products before and behind that are the kernel's own.
#pragma once
#include "aux.cuh"
#include "copy.cuh"
#include "distance.cuh"
#include "fragments.cuh"
#include "sm80_sums.cuh"
#include "turns.cuh"

template <class Spec, class Config>
struct ElementsBwdSm80 {
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

  // ---- blocks of fragments (fragments.cuh) --------------------------------------------------------------

  static constexpr int chunk_tiles = chunk / 16, chunk_blocks = frags * chunk_tiles;
  static constexpr int c_dk = 0, c_dv = c_dk + out_frags * k_tiles, c_s = c_dv + out_frags * v_tiles,
                       c_dp = c_s + chunk_blocks;

  // ---- shared memory ------------------------------------------------------------------------------------

  using QK = SharedTile<DP>;
  using VO = SharedTile<DVP>;
  using PT = SharedTile<M>;  // P^T and dS^T: kv rows, q columns
  static constexpr int q_bytes = QK::bytes(M), do_bytes = VO::bytes(M), p_bytes = PT::bytes(N);
  static constexpr int bwd_bytes = M * int(sizeof(SharedRow<BwdRow>));
  static constexpr int row_bytes = has_rows ? M * int(sizeof(SharedRow<Row>)) : 0;
  static constexpr int at_k = 0, at_v = at_k + QK::bytes(N), at_q = at_v + VO::bytes(N),
                       at_do = at_q + stages * q_bytes;
  static constexpr int at_ds = at_do + stages * do_bytes, at_p = at_ds + stages * p_bytes;
  static constexpr int at_bwd = at_p + (warps_c > 1 ? p_bytes : 0), at_row = at_bwd + stages * bwd_bytes;
  static constexpr int shared_bytes = (at_row + stages * row_bytes + 15) / 16 * 16;
  static_assert(has_shared<Config, shared_bytes>());

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

  __device__ __forceinline__ int kv_tile() const { return Need::turns ? kv0 / N : int(blockIdx.x); }
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
    if constexpr (Spec::has_mask) kept = kept && Spec::keep(p, site, head, row, col[f][half], q, kv);
    return kept;
  }

  // The element of a block's fragments: f and j number the block, side is 0 on the left, 1 on the right.
  LUATTN_FN constexpr int element(int side, int half, int i) { return side * 4 + half * 2 + i; }
  LUATTN_FN constexpr int block(int f, int j) { return f * chunk_tiles + j; }

  // Dots and dP of the chunk at `column` of the q tile to P and dS. Masked: where the mask keeps them alone.
  template <bool Masked>
  __device__ __forceinline__ void differentiate(int q0, int column, int stage) {
    float s[chunk_blocks][8], dp[chunk_blocks][8];
    read_blocks<c_s, chunk_blocks>(s);
    read_blocks<c_dp, chunk_blocks>(dp);
    const DistanceTerms<Spec, 2 * frags, chunk / 8, true> terms(
        p, site, head, q0 + column - (kv0 + score_row() + frags * 16 - 1), int(lane));
#pragma unroll
    for (int octet = 0; octet < chunk / 8; ++octet)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int m = column + octet * 8 + int(lane % 4) * 2 + i;
        const Position q{q0 + column + int(lane % 4) * 2, octet * 8 + i};
        const int kv_end = q < p.q_len ? p.kv_len : 0;
        const BwdRow bwd = shared_bwd(stage)[m].value;
        Row row{};
        if constexpr (has_rows) row = shared_rows(stage)[m].value;
#pragma unroll
        for (int f = 0; f < frags; ++f)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int b = block(f, octet / 2), e = element(octet % 2, half, i);
            const Position kv = kv_of(f, half);
            float prob = 0.f, ds = 0.f;
            if (!Masked || keeps(row, f, half, q, kv, kv_end))
              Spec::template grad<Need::parameters>(p, site, head, row, col[f][half], bwd, s[b][e], dp[b][e],
                                                    q, kv, terms.get(f * 2 + half, octet, i), prob, ds, acc);
            s[b][e] = prob;
            dp[b][e] = ds;
          }
      }
    write_blocks<c_s, chunk_blocks>(s);
    write_blocks<c_dp, chunk_blocks>(dp);
  }

  // Zeros in P and dS where the mask drops the element.
  __device__ __forceinline__ void drop(int q0, int column, int stage) const {
    bool kept[chunk_blocks][8];
#pragma unroll
    for (int octet = 0; octet < chunk / 8; ++octet)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int m = column + octet * 8 + int(lane % 4) * 2 + i, kv_end = q0 + m < p.q_len ? p.kv_len : 0;
        Row row{};
        if constexpr (has_rows) row = shared_rows(stage)[m].value;
#pragma unroll
        for (int f = 0; f < frags; ++f)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            kept[block(f, octet / 2)][element(octet % 2, half, i)] =
                keeps(row, f, half, q0 + m, kv_of(f, half), kv_end);
      }
    drop_blocks<c_s, c_dp, chunk_blocks>(kept);
  }

  __device__ __forceinline__ void differentiate(bool masked, int q0, int column, int stage) {
    if constexpr (grad_adds) {
      if (masked)
        differentiate<true>(q0, column, stage);
      else
        differentiate<false>(q0, column, stage);
    } else {
      differentiate<false>(q0, column, stage);
      if (masked) drop(q0, column, stage);
    }
  }
};
