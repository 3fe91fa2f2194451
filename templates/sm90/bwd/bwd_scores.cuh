// sm90/bwd/bwd_scores.cuh: what a thread of a consumer of sm90/bwd/bwd_sm90.cuh holds of a kv tile, and how it turns a q
// tile's dots and dP into P and dS, element by element, in turn with the other consumer; and dS on its way to
// shared memory. The products before and behind that are the consumer's own.
#pragma once
#include "sm90/bwd/grad_staging.cuh"
#include "sm90/bwd/parameter_grads_sm90.cuh"

template <class Spec, class Config>
struct ElementsBwdSm90 {
  using Shared = SharedBwdSm90<Spec, Config>;
  using Need = Needs<Spec, Config>;
  using Elem = typename Config::Elem;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  using Col = typename Spec::Col;
  using BwdRow = typename Spec::BwdRow;
  using Acc = typename Spec::Acc;
  static_assert(same_type<typename Spec::Real, float>::value && sizeof(Elem) == 2,
                "f16 or bf16, accumulated in f32");

  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, stages = Config::stages;
  static constexpr int dim = padded_dim(Config::head_dim), dim_v = padded_dim(Config::head_dim_v);
  static constexpr int cols = tile_m / 4;  // a thread's scores in each of its two kv rows
  static constexpr int dq_cols = Shared::dq_cols;

  using Distances = DistanceTerms<Spec, 2, tile_m / 8, true>;
  // Where there are registers for it, what is read along the keys is read a tile ahead.
  static constexpr bool reads_ahead = Spec::has_bias_row && tile_m == 64 && dim <= 64 && dim_v <= 64;
  using Lines = LineTerms<Spec, tile_m / 8, tile_m == 64 && !reads_ahead ? 2 : 1>;
  using Sums = ParameterSums<Spec, Config>;
  using Rows = RowSums<Spec, Config>;
  using Part = WarpPart<Spec, Config>;
  static constexpr bool shares_ds = Need::dq || Rows::wanted;
  static constexpr bool needs_ds = shares_ds || Need::dk || Sums::rounded,
                        needs_dp = needs_ds || Need::parameters;
  // Where grad has no effect but its results, one copy of it serves masked tiles too.
  static constexpr bool grad_adds = Need::parameters && Spec::grad_adds;
  static constexpr bool reduces_acc = Spec::num_acc > 0 && (grad_adds || Sums::any);
  // With many scores a thread, P is computed while dP is still under way, where the spec can tell one from
  // the other: grad is then called twice, with the same row numbers, and what both calls compute is computed
  // once. With few it is quicker to add dQ of the tile before in that time.
  static constexpr bool weighs_first =
      tile_m == 128 && needs_dp && Spec::prob_rows >= 0 && !grad_adds && !Shared::has_rows;
  static_assert(!weighs_first || Lines::part == Lines::cols, "P asks for all terms at once");
  static constexpr u32 early_rows = weighs_first ? u32(Spec::prob_rows) : 0;
  // With few scores a thread the consumers compute elements in turn: left alone they fall into step, and
  // nobody multiplies meanwhile. With many it costs more than it gives, and so it does where elements wait
  // for memory or for terms from other lanes, or each consumer for other blocks, to add dQ in turn.
  static constexpr bool alternates =
      tile_m == 64 && !Need::dq_in_order && Spec::grad_is_light && !Spec::has_distance_term;
  // Half of V stays in registers, as A operands, where a spec leaves room for it: shared memory sets the
  // pace, and would be read for each q tile.
  static constexpr bool keeps_v = alternates && dim_v == 128 && needs_dp && Spec::has_lse &&
                                  Spec::num_acc == 0 && !Sums::any && !Shared::has_rows && !Lines::any &&
                                  (!Spec::has_mask || Spec::keep_is_cheap);

  const LuattnParams &p;
  const Shared shared;
  const int group, lane, warp;
  u32 turn;  // kv tiles before this one
  int kv0;   // the warp's first row
  Site site;
  Head head;
  Col col[2];
  Acc acc;
  Sums sums;
  Rows row_sums;
  Ring<stages> q;
  Ring<Shared::ds_slots> ds, ds_before;  // of this tile, of the one before
  float dk[dim / 2], dv[dim_v / 2], dq[dq_cols / 2];
  u32 v[keeps_v ? 4 : 1][4];
  Lines lines;
  DqPlace due, shared_dq;  // of the dQ to be computed next (lags), of the one to be added next
  Part part;

  __device__ __forceinline__ ElementsBwdSm90(const LuattnParams &params, const Shared &s, int g)
      : p(params),
        shared(s),
        group(g),
        lane(int(threadIdx.x) % 32),
        warp(int(uniform(threadIdx.x / 32 % 4))),
        turn(0),
        kv0(0),
        site{0, 0, params.q_len, params.kv_len},
        q(0),
        ds(0),
        ds_before(1),
        part{s, g, warp, lane} {
    ds_before.slot = Shared::ds_slots - 1;
  }

  __device__ __forceinline__ Position kv_of(int half) const { return {kv0 + lane / 4, half * 8}; }

  __device__ __forceinline__ void enter_head(int h) {
    site.h = h;
    head = Spec::head(p, site);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      col[half] = Spec::col(p, site, head, min_of(int(kv_of(half)), p.kv_len - 1));
    if constexpr (reduces_acc) acc = zero_acc<Acc>();
    sums.enter_head();
  }

  // Each consumer has a named barrier, at which it waits until the other has done with a tile's elements.
  __device__ __forceinline__ void await_turn() const {
    if constexpr (alternates) named_sync(1 + group, Shared::warps * 32);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (alternates) named_arrive(2 - group, Shared::warps * 32);
  }

  // kv_end: kv_len, or 0 for a query that does not exist.
  __device__ __forceinline__ bool keeps(const Row &row, int half, int at, int kv, int kv_end) const {
    bool kept = kv < kv_end;
    if constexpr (Spec::has_mask) kept = kept & Spec::keep(p, site, head, row, col[half], at, kv);
    return kept;
  }
  __device__ __forceinline__ Row row_at(int at) const {
    if constexpr (Shared::has_rows)
      return shared.rows(q.slot)[at].value;
    else
      return Row{};
  }
  // Where column j of the thread is in the tile.
  __device__ __forceinline__ int column(int j) const { return lane % 4 * 2 + j / 2 * 8 + j % 2; }
  __device__ __forceinline__ Position query(int q0, int j) const {
    return {q0 + lane % 4 * 2, j / 2 * 8 + j % 2};
  }
  LUATTN_FN constexpr int element(int j, int half) { return j / 2 * 4 + half * 2 + j % 2; }

  // Bit j of a half: whether column j of the thread is kept there.
  __device__ __forceinline__ void find_kept(TileNote tile, int q0, KeepBits<cols> (&keep)[2]) const {
    if constexpr (Spec::column_intervals > 0) {
      if (!Spec::columns_need_full_data || tile.by_range())
        find_kept_queries<Spec, tile_m>(p, site, int(kv_of(0)), q0, keep);
      else
        ask_all(q0, keep);
    } else {
      ask_all(q0, keep);
    }
  }
  // Rolled, where a hook is long.
  __device__ __forceinline__ void ask_all(int q0, KeepBits<cols> (&keep)[2]) const {
#pragma unroll 1
    for (int j = 0; j < cols; ++j) {
      const int at = q0 + column(j), kv_end = at < p.q_len ? p.kv_len : 0;
      const Row row = row_at(column(j));
#pragma unroll
      for (int half = 0; half < 2; ++half) keep[half].set(j, keeps(row, half, at, kv_of(half), kv_end));
    }
  }

  // Of the numbers of columns j and j + 1, those that bits of Which name.
  template <u32 Which>
  __device__ __forceinline__ void load_rows(int j, BwdRow (&bwd)[cols]) const {
#pragma unroll
    for (int i = 0; i < Spec::num_bwd_rows; ++i) {
      if (!(Which >> i & 1)) continue;
      const float2 pair = *reinterpret_cast<const float2 *>(shared.numbers(q.slot) + i * tile_m + column(j));
      bwd[j].x[i] = pair.x, bwd[j + 1].x[i] = pair.y;
    }
  }
  // P alone. Distances by what the compiler takes for other positions than those of the second call: of a
  // term that is not linear in them it would compute all first and keep them, more than there are registers.
  template <class Terms>
  __device__ __forceinline__ void weigh(int q0, const Terms &terms, BwdRow (&bwd)[cols],
                                        const float (&s)[tile_m / 2]) {
    float sum = 0;
    int first = q0;
#pragma unroll
    for (int j = 0; j < cols; ++j) {
      if (j % 2 == 0) {
        load_rows<early_rows>(j, bwd);
        first = opaque(q0);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float prob = 0.f, ds = 0.f;
        Spec::template grad<false>(p, site, head, Row{}, col[half], bwd[j], s[element(j, half)], 0.f,
                                   query(first, j), kv_of(half), terms.get(half, j / 2, j % 2), prob, ds,
                                   acc);
        asm volatile("" ::"f"(prob));  // wanted here
        if (j == cols - 1) sum += prob;
      }
    }
    // ptxas would rather wait for dP first: what is before a branch, never taken, stays before it.
    if (__float_as_uint(sum) == 0x7fc54321u) __nanosleep(0);
  }
  // Dots and dP to P and dS. Masked: only where the mask keeps the element.
  template <bool Masked, class Terms>
  __device__ __forceinline__ void differentiate(TileNote tile, int q0, const Terms &terms,
                                                BwdRow (&bwd)[cols], float (&s)[tile_m / 2],
                                                float (&dp)[tile_m / 2]) {
    KeepBits<cols> keep[2] = {KeepBits<cols>::none(), KeepBits<cols>::none()};
    if constexpr (Masked) find_kept(tile, q0, keep);
#pragma unroll
    for (int j = 0; j < cols; ++j) {
      if (j % 2 == 0) load_rows<~early_rows>(j, bwd);
      if constexpr (Lines::any) lines.load(p, site, head, q0, kv0, lane, j + Lines::part);
      const Row row = row_at(column(j));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = element(j, half);
        grad_where<Spec, Need::parameters, Masked>(keep[half].get(j), p, site, head, row, col[half], bwd[j],
                                                   query(q0, j), kv_of(half), terms.get(half, j / 2, j % 2),
                                                   s[e], dp[e], acc);
      }
    }
  }
  // Zeros in P and dS where `kept`, of a column and half of the thread, says no.
  template <class Kept>
  LUATTN_FN void select(float (&s)[tile_m / 2], float (&dp)[tile_m / 2], const Kept &kept) {
#pragma unroll
    for (int j = 0; j < cols; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = element(j, half);
        const bool stays = kept(j, half);
        s[e] = stays ? s[e] : 0.f;
        dp[e] = stays ? dp[e] : 0.f;
      }
  }
  // The mask, and in last tiles what lies past the lengths: apart, for most tiles of a mask are no last ones.
  __device__ __forceinline__ void drop(TileNote tile, int q0, float (&s)[tile_m / 2],
                                       float (&dp)[tile_m / 2]) const {
    if constexpr (Spec::has_mask && (Spec::column_intervals > 0 || !Spec::keep_is_cheap)) {
      KeepBits<cols> keep[2] = {KeepBits<cols>::none(), KeepBits<cols>::none()};
      find_kept(tile, q0, keep);
      select(s, dp, [&](int j, int half) { return keep[half].get(j); });
    } else {
      if constexpr (Spec::has_mask)
        select(s, dp, [&](int j, int half) {
          return Spec::keep(p, site, head, row_at(column(j)), col[half], q0 + column(j), kv_of(half));
        });
      if (q0 + tile_m > p.q_len || kv0 / tile_n * tile_n + tile_n > p.kv_len)
        select(s, dp, [&](int j, int half) { return q0 + column(j) < p.q_len && kv_of(half) < p.kv_len; });
    }
  }
  // From both products under way to P and dS. What grad is given of each element beside them is read, or
  // made, meanwhile.
  __device__ __forceinline__ void differentiate(TileNote tile, float (&s)[tile_m / 2],
                                                float (&dp)[tile_m / 2]) {
    const int q0 = tile.index() * tile_m;
    if constexpr (Lines::any) {
      if constexpr (!reads_ahead) {
        lines.load(p, site, head, q0, kv0, lane, 0);
        if (site.q_len < 0) __nanosleep(0);  // never; but ptxas would move what is read below the wait
      }
      differentiate_with(tile, q0, lines, s, dp);
    } else {
      differentiate_with(tile, q0, Distances(p, site, head, q0 - (kv0 + 15), lane), s, dp);
    }
  }
  template <class Terms>
  __device__ __forceinline__ void differentiate_with(TileNote tile, int q0, const Terms &terms,
                                                     float (&s)[tile_m / 2], float (&dp)[tile_m / 2]) {
    BwdRow bwd[cols];
    if constexpr (weighs_first) {
      wgmma_wait<1>();
      wgmma_arrived(s);
      weigh(q0, terms, bwd, s);
    }
    wgmma_wait<0>();
    wgmma_arrived(s);
    wgmma_arrived(dp);
    await_turn();
    if constexpr (grad_adds) {
      if (tile.masked(group))
        differentiate<true>(tile, q0, terms, bwd, s, dp);
      else
        differentiate<false>(tile, q0, terms, bwd, s, dp);
    } else {
      differentiate<false>(tile, q0, terms, bwd, s, dp);
      if (tile.masked(group)) drop(tile, q0, s, dp);
    }
  }

  LUATTN_FN void round(u32 (&a)[tile_m / 16][4], const float (&x)[tile_m / 2]) {
#pragma unroll
    for (int i = 0; i < tile_m / 16; ++i)
#pragma unroll
      for (int w = 0; w < 4; ++w) a[i][w] = pack<Elem>(x[i * 8 + w * 2], x[i * 8 + w * 2 + 1]);
  }
  // dS of this warp to shared memory, where both consumers' products find it, a row for each query.
  __device__ __forceinline__ void share_ds(const u32 (&a)[tile_m / 16][4]) const {
    const int row = lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
    const u32 to = shared.ds(ds.slot) + group * tile_m * 128 + row * 128 + ((chunk ^ lane % 8) << 4);
#pragma unroll
    for (int i = 0; i < tile_m / 16; ++i) store_transposed(to + i * 16 * 128, a[i]);
  }
  __device__ __forceinline__ void announce_ds() const {
    fence_async();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.ds_full(ds.slot));
  }
};
