// sm90/bwd_d256/d256_scores.cuh: the scores' warpgroup of sm90/bwd_d256/bwd_d256.cuh. It computes S and dP of
// each q tile, turns them into P and dS, writes these to shared memory for the other warpgroups' products,
// and computes dQ.
#pragma once
#include "score/dropout.cuh"
#include "score/flag_lines.cuh"
#include "score/fragment.cuh"
#include "score/kept_queries.cuh"
#include "score/mask_runs.cuh"
#include "sm90/bwd_d256/d256_pipeline.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/cluster.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"
#ifdef LUATTN_GRID
#include "score/box_dropout.cuh"
#include "score/kept_box_queries.cuh"
#include "tma/warp_q_boxes.cuh"
#endif

// A tile whose dQ is to be computed: its first query (-1 for no tile), and its batch and head as one number.
struct DqPlace {
  int row, plane;
};

template <class Spec, class Config>
struct ScoresD256 {
  using Shared = SharedD256<Spec, Config>;
  using Need = Needs<Spec, Config>;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  static constexpr bool on_line = SequenceOf<Config>::is_line, over_grid = HasAxes<Config>;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  using Col = typename Spec::Col;
  using BwdRow = typename Spec::BwdRow;
  using Acc = typename Spec::Acc;
  static_assert(same_type<typename Spec::Real, float>::value && sizeof(Elem) == 2, "f16 or bf16, accumulated in f32");

  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, box = Shared::box;
  static constexpr int D = Config::head_dim;
  static constexpr int cols = Fragment::columns(tile_m);  // a thread's scores in each of its two kv rows
  static constexpr bool needs_ds = Shared::needs_ds, needs_dp = needs_ds || Need::parameters;
  // If grad has no side effect, one copy of its code serves masked tiles too.
  static constexpr bool grad_adds = Need::parameters && Spec::grad_adds;
  static constexpr bool reduces_acc = grad_adds && Spec::num_acc > 0;

  enum { P_EMPTY, DS_EMPTY, DS_HERE, DO_FULL };  // barrier peeks, each before the wait for that barrier

  const LuattnParams &p;
  const Shared shared;
  const int rank, lane, warp;
  int kv0;  // the warp's first row
  SequenceOf<Config> site;
  Head head;
  Col col[2];
  Acc acc;
  using Drops = Dropout<Config>;
  using Dropped = DroppedKind<Config, Fragment, true, tile_m / 16>;
  Drops dropout;
  PipelineState<Config::stages> q, dout;
  PipelineState<2> ds, before;  // dS stages: the next to fill, and the one whose dQ comes next
  u32 parity;                   // of p_full and p_empty
  u32 order_parity;             // of order_ready(), in a deterministic kernel
  u32 v[Shared::boxes_v * 4][4];
  float s[tile_m / 2], dp[tile_m / 2];
  using Lines = BiasRowTerms<Spec, Fragment, cols / 2, 8>;
  Lines lines;

  __device__ __forceinline__ ScoresD256(const LuattnParams &params, const Shared &m)
      : p(params),
        shared(m),
        rank(cluster_rank()),
        lane(int(threadIdx.x) % 32),
        warp(int(threadIdx.x) / 32 % 4),
        kv0(0),
        site(params, 0, 0),
        q(0),
        dout(0),
        ds(0),
        before(0),
        parity(0),
        order_parity(0) {}

  __device__ __forceinline__ Position kv_of(int half) const {
    return {kv0 + Fragment::row(lane), Fragment::row_of(half)};
  }
  // What is asked about positions costs no register.
  __device__ __forceinline__ decltype(auto) ends() const { return site.reread(); }

  __device__ __forceinline__ void enter_head(int h) {
    site.h = h;
    head = Spec::head(p, site);
#pragma unroll
    for (int half = 0; half < 2; ++half) col[half] = Spec::col(p, site, head, ends().clamped_key(p, kv_of(half)));
    if constexpr (reduces_acc) acc = zero_acc<Acc>();
    if constexpr (Drops::any) dropout.enter_head(p, site);
  }

  // ---- products ----

  // Loads V of the next kv tile that has q tiles. Returns false if there is none.
  __device__ __forceinline__ bool enter_block() {
    D256Message message;
#pragma unroll 1
    for (;;) {
      barrier_wait(shared.do_full(dout.stage), dout.parity);
      message = D256Message::load(shared.do_message(dout.stage));
      if (!message.is(D256Message::NOTHING)) break;
      barrier_arrive(shared.do_empty(dout.stage));
      dout.advance();
      barrier_wait(shared.q_full(q.stage), q.parity);
      barrier_arrive(shared.q_empty(q.stage));
      q.advance();
    }
    if (message.is(D256Message::END)) return false;
    site.move_to(p, int(message.b), site.h);
    kv0 = (message.kv_tile() * 2 + rank) * tile_n + warp * 16;
    const u32 row = shared.dout(dout.stage) + (warp * 16 + lane % 16) * 128;
#pragma unroll
    for (int i = 0; i < Shared::boxes_v * 4; ++i)
      ldmatrix_x4(v[i], row + i / 4 * box + ((i % 4 * 2 + lane / 16 ^ lane % 8) << 4));
    barrier_arrive(shared.do_empty(dout.stage));
    dout.advance();
    return true;
  }
  __device__ __forceinline__ D256Message await_tile() const {
    barrier_wait(shared.q_full(q.stage), q.parity);
    return D256Message::load(shared.q_message(q.stage));
  }
  // Issues S of the awaited tile, and loads from memory while the product is in flight.
  __device__ __forceinline__ void issue_dots(D256Message tile) {
    const u64 a = block_operand(shared.k(), 0), b = block_operand(shared.q(q.stage), 0);
    wgmma_fence();
    WgmmaFresh<Elem>::dots64(s, a, b);
#pragma unroll
    for (int i = 1; i < Shared::boxes; ++i) Wgmma<Elem, tile_m>::dots64(s, a + (i * box >> 4), b + (i * box >> 4), 1);
    wgmma_commit();
    if constexpr (Lines::any) {
      SequenceOf<Config> at = site;
      at.h = int(tile.head);
      lines.load(p, at, Spec::head(p, at), tile.index() * tile_m, kv0, lane, 0);
    }
  }
  // Issues dP. With Peeked, the barrier was peeked at earlier.
  template <bool Peeked = false>
  __device__ __forceinline__ void issue_dp() {
    if constexpr (Peeked)
      barrier_wait_peeked<DO_FULL>(shared.do_full(dout.stage), dout.parity);
    else
      barrier_wait(shared.do_full(dout.stage), dout.parity);
    if constexpr (needs_dp) {
      const u64 columns = block_operand(shared.dout(dout.stage), 0);
      wgmma_fence();
      WgmmaKept<Elem>::template dots64<true>(dp, v, columns);
#pragma unroll
      for (int i = 1; i < Shared::boxes_v; ++i)
        WgmmaKept<Elem>::template dots64<false>(dp, v + i * 4, columns + (i * box >> 4));
      wgmma_commit();
    } else {
#pragma unroll
      for (int i = 0; i < tile_m / 2; ++i) dp[i] = 0;
    }
  }
  __device__ __forceinline__ void await_scores() {
    wgmma_wait<0>();
    wgmma_arrived(s);
    if constexpr (needs_dp) wgmma_arrived(dp);
  }
  // Issues box `i` of this block's share of dQ: over its own positions, then over the other block's.
  __device__ __forceinline__ void issue_dq(float (&dq)[32], int i) const {
    const u64 own = block_operand(shared.k() + (Shared::first_dq(rank) + i) * box, 0),
              peer = block_operand(shared.peer_k() + i * box, 0);
    wgmma_fence();
    Wgmma<Elem, 64>::turned64(dq, block_operand(shared.ds(before.stage), 0), own, 0);
    Wgmma<Elem, 64>::turned64(dq, block_operand(shared.peer_ds(before.stage), 0), peer, 1);
    wgmma_commit();
  }
  // In a deterministic kernel, waits for the block's place in the dQ order. Returns whether it is the first.
  __device__ __forceinline__ bool await_order(DqPlace tile) {
    if constexpr (!Shared::in_order) return false;
    if (tile.row < 0) return false;
    barrier_wait(shared.order_ready(), order_parity);
    order_parity ^= 1;
    return load_shared(shared.is_first()) != 0;
  }
  // Adds the warp's 16 rows of box `i` of dQ to memory, if there is a tile.
  __device__ __forceinline__ void add_dq(const float (&dq)[32], int i, DqPlace tile, bool first) const {
    const int row = tile.row + warp * 16, d0 = (Shared::first_dq(rank) + i) * 64;
    if constexpr (SequenceOf<Config>::packed) return add_packed_dq(dq, i, tile, first);
    float *to = static_cast<float *>(p.scratch.dq_acc) +
                (i64(tile.plane) * ResultGroups::head_rows(site.q_end(p)) + row) * D + d0 * 16 + lane * 4;
    if (tile.row < 0 || i >= Shared::num_dq(rank) || !site.has_q_acc(p, row)) return;
#pragma unroll
    for (int e = 0; e < 32; e += 4)
      if (D % 64 == 0 || d0 + e * 2 < D) {
        if constexpr (Shared::in_order)
          put_global(to + e * 32, dq[e], dq[e + 1], dq[e + 2], dq[e + 3], first);
        else
          add_global(to + e * 32, dq[e], dq[e + 1], dq[e + 2], dq[e + 3]);
      }
  }
  // The same for packed entries. `site` may be of the next kv tile's entry by now.
  __device__ __forceinline__ void add_packed_dq(const float (&dq)[32], int i, DqPlace tile, bool first) const {
    if (tile.row < 0 || i >= Shared::num_dq(rank)) return;
    const SequenceOf<Config> of_tile = SequenceOf<Config>::numbered(p, tile.plane);
    const int row = tile.row + warp * 16, d0 = (Shared::first_dq(rank) + i) * 64;
    float *to = of_tile.template q_acc_row<ResultGroups, D, float>(p, p.scratch.dq_acc, of_tile.b, of_tile.h, row);
    to += d0 * 16 + lane * 4;
    if (!of_tile.has_q_acc(p, row)) return;
#pragma unroll
    for (int e = 0; e < 32; e += 4)
      if (D % 64 == 0 || d0 + e * 2 < D) {
        if constexpr (Shared::in_order)
          put_global(to + e * 32, dq[e], dq[e + 1], dq[e + 2], dq[e + 3], first);
        else
          add_global(to + e * 32, dq[e], dq[e + 1], dq[e + 2], dq[e + 3]);
      }
  }
  // Computes dQ of a tile, if there is one. This happens one iteration after the tile's dS, so that the other
  // block's dS has had time to arrive. Additions to memory are issued while products are in flight. With
  // Next, dP of another tile follows. `leaves` says that nothing more is computed from K.
  template <bool Next>
  __device__ __forceinline__ void compute_dq(DqPlace tile, bool leaves = false) {
    constexpr bool two = Shared::most_dq > 1;
    float dq[2][32];
    if constexpr (Next) {
      if (tile.row >= 0) barrier_wait_peeked<DS_HERE>(shared.peer_ds_full(before.stage), before.parity);
      barrier_peek<DO_FULL>(shared.do_full(dout.stage), dout.parity);
    } else {
      barrier_wait(shared.peer_ds_full(before.stage), before.parity);
    }
    issue_dq(dq[0], 0);
    if constexpr (two) issue_dq(dq[1], 1);
    wgmma_wait<two>();
    wgmma_arrived(dq[0]);
    const bool first = await_order(tile);
    add_dq(dq[0], 0, tile, first);
    if constexpr (two) {
      wgmma_wait<0>();
      wgmma_arrived(dq[1]);
    }
    if (tile.row >= 0) {
      if (lane == 0) barrier_arrive_both(shared.ds_empty(before.stage), rank);
      before.advance();
    }
    if (leaves && lane == 0) barrier_arrive(shared.k_empty());
    if constexpr (Next) issue_dp<true>();
    if constexpr (two) add_dq(dq[1], 1, tile, first);
    if (Shared::in_order && tile.row >= 0) barrier_arrive(shared.dq_added());
  }

  // ---- elements ----

  // `keys`: those of the query.
  template <class Keys>
  __device__ __forceinline__ bool keeps(const Row &row, int half, int at, int kv, Keys keys) const {
    bool kept = kv < keys;
    if constexpr (Spec::has_mask) kept = kept & Spec::keep(p, site, head, row, col[half], at, kv);
    return kept;
  }
  __device__ __forceinline__ Row row_at(int at) const {
    if constexpr (Shared::has_rows)
      return shared.rows(dout.stage)[at].value;
    else
      return Row{};
  }
  __device__ __forceinline__ Position query(int q0, int j) const {
    return {q0 + Fragment::column(lane), Fragment::pair_of(j / 2) + j % 2};
  }

  // Sets bit j of keep[half] if the mask keeps column j of the thread in that half.
  __device__ __forceinline__ void find_kept(int q0, KeepBits<cols> (&keep)[2]) const {
    if constexpr (over_grid) return BoxPlaces<over_grid>::template find_anew<Spec, Fragment, Config>(*this, q0, keep);
    if constexpr (Spec::has_flag_line && !Spec::has_keep_beside && tile_m % 32 == 0 && on_line) {
      const int first = int(kv_of(0)) - Fragment::row(lane);
      if (ends().has_keys(p, first, 16) && ends().has_queries(p, q0, tile_m) && flags_are_wide<Spec>(p, first + 16))
        return read_query_flags<Spec, Fragment, tile_m>(*this, q0, first, keep);
    }
    ask_columns<Spec, Fragment, tile_m, on_line>(*this, q0, keep);
  }
  // Loads the row numbers of columns j and j + 1.
  __device__ __forceinline__ void load_numbers(int j, BwdRow (&bwd)[2]) const {
#pragma unroll
    for (int i = 0; i < Spec::num_bwd_rows; ++i) {
      const float2 pair =
          *reinterpret_cast<const float2 *>(shared.numbers(dout.stage) + i * tile_m + Fragment::column(lane, j));
      bwd[0].x[i] = pair.x, bwd[1].x[i] = pair.y;
    }
  }
  // The term of a score that bias rows or distances give, an argument of grad.
  using Distances = DistanceTerms<Spec, Fragment, 2, cols / 2, true>;
  static_assert(on_line || !(Distances::any || (Drops::any && !over_grid)),
                "distances, and what dropout draws, lie along lines");
  __device__ __forceinline__ float term(const Distances &distances, int half, int j) const {
    if constexpr (Lines::any)
      return lines.get(half, j / 2, j % 2);
    else
      return distances.get(half, j / 2, j % 2);
  }
  // Turns S and dP into P and dS. With Masked, only for elements that the mask keeps.
  template <bool Masked>
  __device__ __forceinline__ void differentiate(int q0) {
    KeepBits<cols> keep[2] = {KeepBits<cols>::none(), KeepBits<cols>::none()};
    if constexpr (Masked) find_kept(q0, keep);
    const Distances terms(p, site, head, q0 - (kv0 + 15), lane);
    Dropped weights;
    if constexpr (Drops::any && over_grid)
      weights = Dropped::draw(dropout, p, kv0, q0, lane);
    else if constexpr (Drops::any)
      weights = Dropped::draw(dropout, kv0 + dropout.first_kv(p, site), q0 + dropout.first_q(p, site), lane);
    BwdRow bwd[2];
#pragma unroll
    for (int j = 0; j < cols; ++j) {
      if (j % 2 == 0) load_numbers(j, bwd);
      lines.load(p, site, head, q0, kv0, lane, j + Lines::part);
      const Row row = row_at(Fragment::column(lane, j));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = Fragment::element(half, j);
        float weight = 1;
        if constexpr (Drops::any) {
          weight = weights.get(j, half) ? float(Drops::factor) : 0.f;
          dp[e] *= weight;
        }
        grad_where<Spec, Need::parameters, Masked>(keep[half].get(j), p, site, head, row, col[half], bwd[j % 2],
                                                   query(q0, j), kv_of(half), term(terms, half, j), s[e], dp[e], acc);
        if constexpr (Drops::any) s[e] *= weight;
      }
    }
  }
  // Whether the mask is asked for each element where it is needed.
  static constexpr bool asks_each = Spec::keep_is_cheap && !over_grid;
  // Zeroes P and dS of elements that the mask drops.
  __device__ __forceinline__ void drop(int q0) {
    KeepBits<cols> keep[2] = {KeepBits<cols>::none(), KeepBits<cols>::none()};
    if constexpr (!asks_each) find_kept(q0, keep);
#pragma unroll
    for (int j = 0; j < cols; ++j) {
      const int at = q0 + Fragment::column(lane, j);
      const auto keys = ends().keys_of(p, at);
      Row row{};
      if constexpr (asks_each) row = row_at(Fragment::column(lane, j));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = Fragment::element(half, j);
        const bool kept = asks_each ? keeps(row, half, at, kv_of(half), keys) : keep[half].get(j);
        s[e] = kept ? s[e] : 0.f;
        dp[e] = kept ? dp[e] : 0.f;
      }
    }
  }
  __device__ __forceinline__ void differentiate(D256Message tile) {
    const int q0 = tile.index() * tile_m;
    if constexpr (grad_adds) {
      if (tile.masked())
        differentiate<true>(q0);
      else
        differentiate<false>(q0);
    } else {
      differentiate<false>(q0);
      if (tile.masked()) drop(q0);
    }
  }
  // Stores this warp's P or dS, rounded, in a shared tile that has one row per query.
  __device__ __forceinline__ void share(u32 tile, const float (&x)[tile_m / 2]) const {
    const int row = lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
    const u32 to = tile + row * 128 + ((chunk ^ lane % 8) << 4);
#pragma unroll
    for (int i = 0; i < tile_m / 16; ++i) {
      u32 a[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) a[w] = pack<Elem>(x[i * 8 + w * 2], x[i * 8 + w * 2 + 1]);
      store_transposed(to + i * 16 * 128, a);
    }
  }

  // ---- a q tile ----

  // Computes P and dS, and stores them for the other warpgroups.
  __device__ __forceinline__ void hand_on(D256Message tile) {
    if constexpr (Need::dv) barrier_peek<P_EMPTY>(shared.p_empty(), parity ^ 1);
    if constexpr (needs_ds) barrier_peek<DS_EMPTY>(shared.ds_empty(ds.stage), ds.parity ^ 1);
    if constexpr (Need::dq) barrier_peek<DS_HERE>(shared.peer_ds_full(before.stage), before.parity);
    differentiate(tile);
    barrier_arrive(shared.q_empty(q.stage));
    barrier_arrive(shared.do_empty(dout.stage));
    q.advance();
    dout.advance();
    if constexpr (Need::dv) {
      barrier_wait_peeked<P_EMPTY>(shared.p_empty(), parity ^ 1);
      share(shared.p(), s);
    }
    if constexpr (needs_ds) {
      barrier_wait_peeked<DS_EMPTY>(shared.ds_empty(ds.stage), ds.parity ^ 1);
      share(shared.ds(ds.stage), dp);
    }
    fence_async();
    __syncwarp();
    if (lane == 0) {
      if constexpr (Need::dv) barrier_arrive(shared.p_full());
      if constexpr (needs_ds) barrier_arrive(shared.ds_full(ds.stage));
    }
    parity ^= 1;
  }

  // Ends a kv tile after its last q tile: computes dQ of the q tile before that, and loads V of the next kv
  // tile. Returns false if there is none.
  __device__ __forceinline__ bool leave_block(DqPlace last) {
    if constexpr (reduces_acc) flush_block<Spec, 128, 128>(p, site, head, acc);
    if constexpr (Need::dq) {
      if (last.row >= 0) compute_dq<false>(last);
      barrier_peek<DS_HERE>(shared.peer_ds_full(before.stage), before.parity);
    }
    if constexpr (Need::dk)
      if (lane == 0) barrier_arrive(shared.keys_may_start(ds.stage ^ 1));
    return enter_block();
  }
  __device__ __forceinline__ void run() {
    barrier_peeks_init();
    if (!enter_block()) return;
    issue_dp();
    D256Message tile = await_tile();
    issue_dots(tile);
    await_scores();
    DqPlace last{-1, 0};
    int h = -1;
    for (;;) {
      if (int(tile.head) != h) {
        enter_head(h = int(tile.head));
        asm volatile("");  // keeps this a branch: a select would cost its latency for each tile
      }
      const bool leaves = tile.ends_block();
      if (leaves && lane == 0) barrier_arrive(shared.k_scored());
      hand_on(tile);
      ds.advance();
      const DqPlace here{tile.index() * tile_m, site.number(p, site.b, h)};
      if (leaves) {
        const bool more = leave_block(last);
        last = here;
        if (!more) break;
        h = -1;
      }
      if constexpr (Need::dq) {
        compute_dq<true>(last, leaves);
      } else {
        if (leaves && lane == 0) barrier_arrive(shared.k_empty());
        issue_dp();
      }
      const D256Message next = await_tile();
      issue_dots(next);
      if constexpr (Need::dk)
        if (lane == 0 && !leaves) barrier_arrive(shared.keys_may_start(ds.stage ^ 1));
      await_scores();
      if constexpr (reduces_acc)
        if (!leaves && next.head != tile.head) flush_block<Spec, 128, 128>(p, site, head, acc);
      last = leaves ? DqPlace{-1, 0} : here;
      tile = next;
    }
    if constexpr (Need::dq) compute_dq<false>(last);
  }
};
