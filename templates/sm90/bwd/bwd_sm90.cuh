// sm90/bwd/bwd_sm90.cuh: the main backward kernel of the sm90 family: dk, dv, and dq by atomic adds. f16 or
// bf16, wgmma with f32 accumulation, TMA, one producer and two consumer warpgroups. sm_90a only.
//
// Grid: persistent, one block per multiprocessor, or one per kv tile of each kv head if there are fewer of
// those. A block draws kv tiles of tile_n positions, or shares of their q tiles (KvTileScheduler). Each
// consumer warpgroup has 64 rows of a kv tile, with their dk and dv in registers.
//   load     the producer, one warp, loads K and V once for each kv tile. For each q head of the group it
//            walks the q tiles that the mask leaves, and loads Q, dO and row numbers:
//            tma/backward_producer.cuh
//   compute  S^T  = K Q^T          dP^T = V dO^T      each consumer: 64 kv rows by tile_m columns
//            P^T, dS^T = Spec::grad, element by element
//            dV  += P^T dO         dK  += dS^T Q      P^T and dS^T from registers
//            dQ  = dS K            both consumers' dS, from shared memory; added to p.scratch.dq_acc
//   sums     of dS, for parameter gradients: sm90/bwd/parameter_grads_sm90.cuh
//   finish   dk, times the scale, and dv go through shared memory to memory, while the next K and V are
//            loaded
// The consumers ping-pong: while one computes P and dS of its elements, the other one's products run.
// Scores are held transposed, because P^T and dS^T, rounded, are then the A operands of the products for dV
// and dK. Only dS goes through shared memory: dQ sums over the rows of both consumers, and each consumer
// computes half of dQ. README.md shows the timing, the barriers and the registers.
//
// Config: head_dim and head_dim_v are multiples of 8 up to 128, in any combination; TMA pads them with zeros
//   to a multiple of 64. tile_n = 128; threads = 128 + 2 * tile_n; tile_m = 64, or 128 for head dims up to 64.
//   `stages` is the number of stages of Q and dO. It is at least 2, because a consumer waits for the next
//   tile before it releases this one.
// Dynamic shared memory: BwdSm90Layout of abi/shared_memory.h.
#pragma once
#include "arch/warp.cuh"
#include "score/dropout.cuh"
#include "score/fragment.cuh"
#include "sm90/bwd/bwd_elements.cuh"
#include "sm90/bwd/bwd_pipeline.cuh"
#include "sm90/bwd/distance_grad_writer.cuh"
#include "sm90/bwd/dq_first_store.cuh"
#include "sm90/bwd/dq_in_order.cuh"
#include "sm90/bwd/grad_staging.cuh"
#include "sm90/bwd/parameter_grads_sm90.cuh"
#include "tma/backward_messages.cuh"
#include "tma/backward_producer.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"
#include "tma/warp_roles.cuh"
#ifdef LUATTN_GRID
#include "score/kept_box_queries.cuh"
#include "tma/warp_q_boxes.cuh"
#endif

// A consumer warpgroup. Its sections, in order: a thread's state; what is asked of its elements; staging of dS; products;
// the loop over q tiles; the epilogue.
template <class Spec, class Config>
struct ConsumerBwdSm90 {
  using Shared = SharedBwdSm90<Spec, Config>;
  using Need = Needs<Spec, Config>;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  using Col = typename Spec::Col;
  using Acc = typename Spec::Acc;
  static_assert(same_type<typename Spec::Real, float>::value && sizeof(Elem) == 2, "f16 or bf16, accumulated in f32");

  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, stages = Config::stages;
  static constexpr int dim = padded_dim(Config::head_dim), dim_v = padded_dim(Config::head_dim_v);
  static constexpr int cols = Fragment::columns(tile_m);  // a thread's scores in each of its two kv rows
  static constexpr int dq_cols = Shared::dq_cols;

  static constexpr bool over_grid = HasAxes<Config>;
  // If registers allow, bias rows are loaded a tile ahead.
  static constexpr bool reads_ahead = Spec::has_bias_row && tile_m == 64 && dim <= 64 && dim_v <= 64;
  using Lines = BiasRowTerms<Spec, Fragment, tile_m / 8, tile_m == 64 && !reads_ahead ? 2 : 1>;
  static constexpr bool loads_terms = Shared::has_terms && !Shared::fills_terms;
  using WarpTerms = WarpTermsOf<Spec, loads_terms>;
  using Sums = ParameterSums<Spec, Config>;
  using Rows = RowSums<Spec, Config>;
  using Part = WarpPart<Spec, Config>;
  // With few scores per thread, sums by displacement are made behind dV's issue, while the other consumer has its turn.
  static constexpr bool sums_behind = Shared::hands_sums && Shared::over_grid && tile_m == 64;
  static constexpr bool shares_ds = Need::dq || Rows::wanted;
  static constexpr bool needs_ds = shares_ds || Need::dk || Sums::rounded, needs_dp = needs_ds || Need::parameters;
  // If grad has no side effect, one copy of its code serves masked tiles too.
  static constexpr bool grad_adds = Need::parameters && Spec::grad_adds;
  static constexpr bool reduces_acc = Spec::num_acc > 0 && (grad_adds || Sums::any);
  // Ping-pong: with few scores per thread, the consumers take turns at computing P and dS. Otherwise both
  // would do so at the same time, while no products run. With many scores per thread, ping-pong costs more
  // than it gains. The same holds where elements wait for memory or for terms from other lanes, and where
  // consumers wait for other blocks to add dQ in order.
  static constexpr bool alternates =
      tile_m == 64 && !Need::dq_in_order && Spec::grad_is_light && !Spec::has_distance_term;
  // Half of V stays in registers, as A operands, if the spec leaves room for it: shared memory is the
  // bottleneck, and V would otherwise be read for each q tile.
  static constexpr bool keeps_v = alternates && dim_v == 128 && needs_dp && Spec::has_lse && !Dropout<Config>::any &&
                                  Spec::num_acc == 0 && !Sums::any && !Shared::has_rows && !Lines::any &&
                                  (!Spec::has_mask || Spec::keep_is_cheap);

  const LuattnParams &p;
  const Shared shared;
  const int group, lane, warp;
  u32 kv_count;  // number of kv tiles before this one
  int kv0;       // the warp's first row
  SequenceOf<Config> site;
  Head head;
  Col col[2];
  Acc acc;
  using Drops = Dropout<Config>;
  using Dropped = DroppedKind<Config, Fragment, true, tile_m / 16>;
  Drops dropout;
  Dropped kept;  // which weights of the tile at work dropout keeps
  Sums sums;
  Rows row_sums;
  PipelineState<stages> q;
  PipelineState<Shared::ds_slots> ds, ds_before;  // of this tile, of the previous one
  float dk[dim / 2], dv[dim_v / 2], dq[dq_cols / 2];
  u32 v[keeps_v ? 4 : 1][4];
  Lines lines;
  WarpTerms terms;         // of the next tile
  DqPlace due, shared_dq;  // the dQ to be computed next (lags), and the one to be added next
  Part part;

  __device__ __forceinline__ ConsumerBwdSm90(const LuattnParams &params, const Shared &s, int g)
      : p(params),
        shared(s),
        group(g),
        lane(int(threadIdx.x) % 32),
        warp(int(uniform(threadIdx.x / 32 % 4))),
        kv_count(0),
        kv0(0),
        site(params, 0, 0),
        q(0),
        ds(0),
        ds_before(1),
        part{s, g, warp, lane} {
    ds_before.stage = Shared::ds_slots - 1;
  }

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
    if constexpr (over_grid)
      BoxPlaces<over_grid>{shared.places(group * 4 + warp)}.template store<Spec>(p, site, kv0, lane);
    sums.enter_head();
  }

  // Ping-pong: each consumer has a named barrier, where it waits until the other has computed the elements of
  // a tile.
  __device__ __forceinline__ void await_ping_pong() const {
    if constexpr (alternates) named_sync(1 + group, Shared::warps * 32);
  }
  __device__ __forceinline__ void pass_ping_pong() const {
    if constexpr (alternates) named_arrive(2 - group, Shared::warps * 32);
  }

  // `keys`: those of the query.
  template <class Keys>
  __device__ __forceinline__ bool keeps(const Row &row, int half, int at, int kv, Keys keys) const {
    bool kept = kv < keys;
    if constexpr (Spec::has_mask) kept = kept & Spec::keep(p, site, head, row, col[half], at, kv);
    return kept;
  }
  __device__ __forceinline__ Row row_at(int at) const {
    if constexpr (Shared::has_rows)
      return shared.rows(q.stage)[at].value;
    else
      return Row{};
  }

  __device__ __forceinline__ ElementsBwdSm90<Spec, Config, ConsumerBwdSm90> elements() { return {*this}; }

  LUATTN_FN void round(u32 (&a)[tile_m / 16][4], const float (&x)[tile_m / 2]) {
#pragma unroll
    for (int i = 0; i < tile_m / 16; ++i)
#pragma unroll
      for (int w = 0; w < 4; ++w) a[i][w] = pack<Elem>(x[i * 8 + w * 2], x[i * 8 + w * 2 + 1]);
  }
  // Stages this warp's dS in shared memory, one row for each query. Both consumers' products read it.
  __device__ __forceinline__ void share_ds(const u32 (&a)[tile_m / 16][4]) const {
    const int row = lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
    const u32 to = shared.ds(ds.stage) + group * tile_m * 128 + row * 128 + ((chunk ^ lane % 8) << 4);
#pragma unroll
    for (int i = 0; i < tile_m / 16; ++i) store_transposed(to + i * 16 * 128, a[i]);
  }
  __device__ __forceinline__ void announce_ds() const {
    fence_async();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.ds_full(ds.stage));
  }

  // ---- products ----

  static constexpr int D = Config::head_dim, DV = Config::head_dim_v;
  static constexpr bool splits_rows = Shared::splits_rows;
  static_assert(Shared::groups == 2 && (tile_m == 64 || tile_m == 128), "two consumers share dQ");
  // With few scores per thread, dQ of the previous tile is added while dP is in flight.
  static constexpr bool adds_late = tile_m == 64;
  // dQ of a tile is computed one tile later. It also needs the other consumer's dS, which is available by
  // then, so the two consumers need not be at the same point. A dS stage is overwritten only after a stage of
  // Q has been released twice, and the other consumer takes part in each release after its own product.
  static constexpr bool lags = Shared::lags;

  __device__ __forceinline__ void enter_block(const KvBlock &at) {
    site.move_to(p, at.b, site.h);
    if constexpr (has_chunks) site.enter_keys(p, at.tile * tile_n);
    kv0 = at.tile * tile_n + group * 64 + warp * 16;
    due = shared_dq = DqPlace{Part::no_dq(site.q_end(p)), 0};
#pragma unroll
    for (int i = 0; i < dim / 2; ++i) dk[i] = 0;
#pragma unroll
    for (int i = 0; i < dim_v / 2; ++i) dv[i] = 0;
  }
  __device__ __forceinline__ typename Sums::At sums_at() {
    return {p, site, head, acc, kv0, lane, part.address(), shared, q.stage};
  }
  __device__ __forceinline__ void leave_head() {
    sums.leave_head(sums_at());
    if constexpr (reduces_acc) flush_warp<Spec>(p, site, head, acc);
  }

  // ---- products ----

  // Issues x = A B^T over Dim channels: A is 64 rows of a tile of the block, B a tile of q positions.
  template <int Dim>
  LUATTN_FN void issue_scores(float (&x)[tile_m / 2], u32 rows, u32 columns) {
    const u64 a = wgmma_operand(rows, 0), b = wgmma_operand(columns, 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < Dim / 64; ++i)
      Wgmma<Elem, tile_m>::dots64(x, a + (i * tile_n * 128 >> 4), b + (i * tile_m * 128 >> 4), i > 0);
#pragma unroll
    for (int i = Dim / 64 * 4; i < Dim / 16; ++i)
      Wgmma<Elem, tile_m>::dots16(x, a + (i / 4 * tile_n * 128 + i % 4 * 32 >> 4),
                                  b + (i / 4 * tile_m * 128 + i % 4 * 32 >> 4), i > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void keep_v() {
    const u32 row = shared.v() + tile_n * 128 + (group * 64 + warp * 16 + lane % 16) * 128;
#pragma unroll
    for (int i = 0; i < 4; ++i) ldmatrix_x4(v[i], row + ((i * 2 + lane / 16 ^ lane % 8) << 4));
  }
  __device__ __forceinline__ void issue_dp(float (&dp)[tile_m / 2]) {
    if constexpr (keeps_v) {
      const u64 b = wgmma_operand(shared.dout(q.stage), 0);
      wgmma_fence();
      Wgmma<Elem, tile_m>::dots64(dp, wgmma_operand(shared.v() + group * 64 * 128, 0), b, 0);
      WgmmaKept<Elem>::template dots64<false>(dp, v, b + (tile_m * 128 >> 4));
      wgmma_commit();
    } else {
      issue_scores<dim_v>(dp, shared.v() + group * 64 * 128, shared.dout(q.stage));
    }
  }
  // Issues x += P^T dO or dS^T Q.
  template <int Dim>
  LUATTN_FN void issue_sums(float (&x)[Dim / 2], u32 (&a)[tile_m / 16][4], u32 rows) {
    const u64 b = wgmma_operand(rows, tile_m * 128);
#pragma unroll
    for (int i = 0; i < tile_m / 16; i += 4)
      Wgmma<Elem, Dim>::sums64(x, a[i], a[i + 1], a[i + 2], a[i + 3], b + (i * 16 * 128 >> 4));
    wgmma_commit();
  }
  // Issues dQ and the row sums, once both consumers have shared their dS. With `lags`, the first call of a kv
  // tile computes values of the tile before, which are never added.
  __device__ __forceinline__ void issue_dq() {
    auto &ring = lags ? ds_before : ds;
    const u32 columns = splits_rows ? 0 : group * (Shared::boxes == 2 ? tile_n * 128 : 64);
    const u32 rows = shared.ds(ring.stage) + (splits_rows ? group * 64 * 128 : 0);
    const u64 a = wgmma_operand(rows, 0), b = wgmma_operand(shared.k() + columns, 0);
    barrier_wait(shared.ds_full(ring.stage), ring.parity);
    wgmma_fence();
    if constexpr (Need::dq) {
#pragma unroll
      for (int i = 0; i < tile_n / 64; ++i)
        Wgmma<Elem, dq_cols>::turned64(dq, a + (i * tile_m * 128 >> 4), b + (i * 64 * 128 >> 4), i > 0);
    }
    if constexpr (Rows::wanted) {
      if constexpr (splits_rows)
        row_sums.template issue<tile_n / 64>(rows, tile_m * 128, shared.ones());
      else
        row_sums.template issue<1>(rows + group * tile_m * 128, 0, shared.ones());
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void dq_arrived() {
    wgmma_arrived(dq);
    if constexpr (Rows::wanted) wgmma_arrived(row_sums.sum);
  }
  __device__ __forceinline__ void add_rows() {
    if constexpr (Rows::wanted) row_sums.add(p, site, head, shared_dq.head, shared_dq.row, lane, acc);
  }

  // ---- a q tile ----

  __device__ __forceinline__ TileMessage await_tile() const {
    barrier_wait(shared.q_full(q.stage), q.parity);
    return TileMessage::load(shared.message(q.stage));
  }

  // The next tile of the head.
  __device__ __forceinline__ TileMessage next_tile() const {
    PipelineState<stages> next = q;
    next.advance();
    barrier_wait(shared.q_full(next.stage), next.parity);
    return TileMessage::load(shared.message(next.stage));
  }
  // Loads bias rows for the next tile of the head.
  __device__ __forceinline__ void read_ahead(TileMessage tile) {
    if (!reads_ahead || tile.last()) return;
    lines.load(p, site, head, next_tile().index() * tile_m, kv0, lane, 0);
  }
  // Terms by displacement are computed from memory while products of the tile before are under way, and written to the
  // warp's table once its own have been read.
  __device__ __forceinline__ void load_terms(TileMessage tile) {
#ifdef LUATTN_GRID
    using Pair = WarpBoxPair;
    Displacement from;
    each_axis([&](auto axis) {
      constexpr int a = axis.value;
      from.at[a - Pair::first_axis] =
          Pair::Keys::template at<a>(p, kv0) - Pair::Queries::template at<a>(p, tile.index() * tile_m);
    });
    terms = WarpTerms(p, site, head, from, lane);
#endif
  }
  __device__ __forceinline__ void store_terms() const {
#ifdef LUATTN_GRID
    __syncwarp();
    terms.store(shared.terms(group * 4 + warp), lane);
    __syncwarp();
#endif
  }

  __device__ __forceinline__ void add_tile(TileMessage tile) {
    float s[tile_m / 2], dp[tile_m / 2];
    u32 a_p[tile_m / 16][4], a_ds[tile_m / 16][4];
    if constexpr (has_chunks) site.enter_queries(p, tile.index() * tile_m);
    issue_scores<dim>(s, shared.k() + group * 64 * 128, shared.q(q.stage));
    barrier_wait(shared.do_full(q.stage), q.parity);
    if constexpr (needs_dp) {
      issue_dp(dp);
    } else {
#pragma unroll
      for (int i = 0; i < tile_m / 2; ++i) dp[i] = 0;
    }
    if constexpr (Need::dq && adds_late) part.add_dq(p, site, shared_dq);
    elements().differentiate(tile, s, dp);
    if constexpr (Need::dv && Sums::in_f32) round(a_p, s);  // P then takes half as many registers
    if constexpr (!sums_behind) sums.add(sums_at(), tile.index() * tile_m, tile.same_bucket(), dp);
    if constexpr (needs_ds) round(a_ds, dp);
    if constexpr (Sums::rounded) sums.add_rounded(sums_at(), tile.index() * tile_m, tile.same_bucket(), a_ds);
    if constexpr (shares_ds) share_ds(a_ds);
    if constexpr (Need::dv) {
      if constexpr (!Sums::in_f32) round(a_p, s);
      wgmma_fence();
      issue_sums<dim_v>(dv, a_p, shared.dout(q.stage));
    }
    pass_ping_pong();
    if constexpr (shares_ds) announce_ds();  // here, because the fence takes a while and dV's product is in flight
    if constexpr (sums_behind) sums.add(sums_at(), tile.index() * tile_m, tile.same_bucket(), dp);
    read_ahead(tile);
    if constexpr (Sums::in_line) {
      if constexpr (!shares_ds) fence_async(), __syncwarp();
      sums.send_line(sums_at());
    }
    if constexpr (shares_ds) {
      issue_dq();
      if constexpr (lags) ds_before.advance();
      wgmma_wait<1>();
      ds.advance();
    }
    if constexpr (Need::dk) {
      wgmma_fence();
      issue_sums<dim>(dk, a_ds, shared.q(q.stage));
    }
    if constexpr (loads_terms)
      if (!tile.last()) load_terms(next_tile());
    if constexpr (shares_ds) {
      wgmma_wait<Need::dk ? 1 : 0>();
      take_dq(tile);
    }
    wgmma_wait<0>();
    wgmma_arrived(dv);
    wgmma_arrived(dk);
    add_rows();
    if constexpr (loads_terms)
      if (!tile.last()) store_terms();
    barrier_arrive(shared.empty(q.stage));
    q.advance();
  }

  // Hands on dQ, of this tile or of the previous one, after it has been computed.
  __device__ __forceinline__ void take_dq(TileMessage tile) {
    dq_arrived();
    const DqPlace here{tile.index() * tile_m + (splits_rows ? group * 64 : 0) + warp * 16, site.h};
    shared_dq = lags ? due : here;
    due = here;
    if constexpr (Need::dq) {
      part.share_dq(dq);
      if constexpr (!adds_late) part.add_dq(p, site, shared_dq);
    }
  }

  // Handles a tile that the mask leaves empty for this consumer: writes zeros to dS, and computes dQ of the
  // previous tile.
  __device__ __forceinline__ void skip_tile(TileMessage tile) {
    await_ping_pong();
    pass_ping_pong();
    read_ahead(tile);
    sums.skip(sums_at());
    if constexpr (loads_terms)
      if (!tile.last()) load_terms(next_tile()), store_terms();
    if constexpr (Shared::fills_terms) {
      barrier_wait(shared.terms_full(q.stage), q.parity);
      barrier_arrive(shared.terms_empty(q.stage));
    }
    // dO may still be in flight to a stage that is released. If both consumers may skip a tile, one must
    // wait.
    if constexpr (Shared::in_order) barrier_wait(shared.do_full(q.stage), q.parity);
    if constexpr (Need::dq && adds_late) part.add_dq(p, site, shared_dq);
    if constexpr (shares_ds) {
      const u32 zeros = shared.ds(ds.stage) + group * tile_m * 128 + (warp * 32 + lane) * 16;
#pragma unroll
      for (int i = 0; i < tile_m / 16; ++i) store_shared_16(zeros + i * 16 * 128, 0.f, 0.f, 0.f, 0.f);
      announce_ds();
      issue_dq();
      if constexpr (lags) ds_before.advance();
      wgmma_wait<0>();
      take_dq(tile);
      add_rows();
      ds.advance();
    }
    barrier_arrive(shared.empty(q.stage));
    q.advance();
  }
  __device__ __forceinline__ void add_tiles() {
    for (bool more = true; more;) {
      TileMessage tile = await_tile();
      enter_head(int(tile.head));
      if constexpr (reads_ahead) lines.load(p, site, head, tile.index() * tile_m, kv0, lane, 0);
      if constexpr (loads_terms) load_terms(tile), store_terms();
#pragma unroll 1
      for (;;) {
        if (Shared::halves && tile.keeps_nothing(group))
          skip_tile(tile);
        else
          add_tile(tile);
        if (tile.last()) break;
        tile = await_tile();
      }
      more = !tile.ends_block();
      leave_head();
    }
  }
  // Computes the last q tile's dQ, if dQ is computed one tile later, and releases K and V.
  __device__ __forceinline__ void leave_block() {
    if constexpr (Need::dq && adds_late) part.add_dq(p, site, shared_dq);
    if constexpr (shares_ds && lags) {
      issue_dq();
      wgmma_wait<0>();
      dq_arrived();
    }
    barrier_arrive(shared.kv_empty());
    if constexpr (shares_ds && lags) {
      shared_dq = due;
      add_rows();
    }
    if constexpr (Need::dq && lags) {
      part.share_dq(dq);
      part.add_dq(p, site, shared_dq);
    }
  }
  __device__ __forceinline__ void run() {
    if (group == 1) pass_ping_pong();
#pragma unroll 1
    for (BlockMessage message = shared.await_block(0); message.state != BlockMessage::END;
         message = shared.await_block(kv_count)) {
      enter_block(message.at);
      if (message.state == BlockMessage::SOME) {
        if constexpr (keeps_v) keep_v();
        add_tiles();
        leave_block();
      } else {
        barrier_arrive(shared.kv_empty());
      }
      finish(BlockMessage::load(shared.block_message(kv_count)).at);
      ++kv_count;
    }
    part.dismiss();
    bulk_wait_read();  // shared memory ends with the block
  }

  // ---- finish ----

  __device__ __forceinline__ void finish(const KvBlock &at) {
    if constexpr (SequenceOf<Config>::packed) {  // no shares
      if constexpr (Need::finish_k)
        part.template store_accumulator<D>(p, site, p.scratch.dk_acc, at, kv0, dk);
      else if constexpr (Need::dk)
        part.template store<D>(p, site, p.tensors.dk, at, kv0, dk, float(p.scale));
      if constexpr (Need::finish_v)
        part.template store_accumulator<DV>(p, site, p.scratch.dv_acc, at, kv0, dv);
      else if constexpr (Need::dv)
        part.template store<DV>(p, site, p.tensors.dv, at, kv0, dv, 1.f);
    } else {
      store_gradients(SequenceOf<Config>(p, at.b, 0), at);
    }
  }
  template <class Sequence>
  __device__ __forceinline__ void store_gradients(const Sequence &site, const KvBlock &at) {
    if constexpr (Need::dk) {
      if (Spec::has_key_mod || QShare::count(p) > 1)
        part.template store_accumulator<D>(p, site, p.scratch.dk_acc, at, kv0, dk);
      else
        part.template store<D>(p, site, p.tensors.dk, at, kv0, dk, float(p.scale));
    }
    if constexpr (Need::dv) {
      if (Spec::has_value_mod || QShare::count(p) > 1)
        part.template store_accumulator<DV>(p, site, p.scratch.dv_acc, at, kv0, dv);
      else
        part.template store<DV>(p, site, p.tensors.dv, at, kv0, dv, 1.f);
    }
  }
};

template <class Spec, class Config>
LUATTN_FN void bwd_sm90(const LuattnParams &p, const LuattnTensorMaps &maps, unsigned char *memory) {
  static_assert(BackwardSpec<Spec>);
  using Shared = SharedBwdSm90<Spec, Config>;
  const Shared shared{memory, shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  if constexpr (RowSums<Spec, Config>::wanted) {
    if (threadIdx.x < 64) store_shared(shared.ones() + threadIdx.x * 4, pack<typename Config::Elem>(1.f, 1.f));
    fence_async();
  }
  __syncthreads();
  // With dQ's writers, the producer's warpgroup needs more registers. With many sums the consumers keep them.
  constexpr bool tight = !(Shared::in_order || (Shared::hands_sums && Shared::over_grid)) ||
                         (Needs<Spec, Config>::parameters && Config::tile_m == 128);
  constexpr int producer = tight ? 24 : 40, consumer = tight ? 240 : 232;
  const int group = int(uniform(threadIdx.x / 128)) - 1;
  if (group < 0) {
    registers_down<producer>();
    // Selects the warp's work by one number that ptxas knows to be uniform: with separate conditions it would
    // spill in the consumers.
    const u32 worker = uniform(threadIdx.x / 32);
    if (worker == 0) {
      BackwardProducer<Spec, Config, Shared>(p, maps, shared).run();
    } else if constexpr (Shared::sums_writers == 3) {
      SumsWriterSm90<Spec, Config>(p, shared, int(worker) - 1).run();
    } else if (worker == 1) {
      if constexpr (Shared::in_order) DqWriterSm90<Spec, Config>(p, shared, 0).run();
      if constexpr (Shared::stores_first) DqFirstStoreSm90<Spec, Config>(p, shared).run();
    } else {
      if constexpr (Shared::hands_sums)
        if (worker == 2) SumsWriterSm90<Spec, Config>(p, shared, 0).run();
      if constexpr (Shared::in_order)
        if (worker == 3) DqWriterSm90<Spec, Config>(p, shared, 1).run();
      if constexpr (Shared::stores_first) DqStorerSm90<Spec, Config>(p, shared).run(worker % 2);
    }
  } else {
    registers_up<consumer>();
    ConsumerBwdSm90<Spec, Config>(p, shared, group).run();
  }
}
