// sm90/fwd/fwd_sm90.cuh: the forward kernel of the sm90 family: f16 or bf16, wgmma with f32 accumulation,
// TMA, one producer and several consumer warpgroups. sm_90a only.
//
// Grid: persistent, at most one block per multiprocessor. A block takes one tile of tile_m queries of a head
// after another (work/tile_scheduler.cuh). Each consumer warpgroup owns 64 of the queries, and each of its
// warps 16 whole rows, so that a row's statistics never leave its four threads.
//   load     the producer (tma/forward_producer.cuh), one warp, walks the kv tiles that the mask leaves. It
//            loads Q, then K and V tile by tile by TMA, as far ahead as there are stages. It sends a tile
//            message with each K. Bias loaders load the inputs that scores read (sm90/fwd/bias_loader.cuh)
//   compute  S = Q K^T; the softmax step turns S into P in registers; P, rounded, is the A operand of
//            O += P V
//   finish   O is multiplied by the rows' factors, rounded and staged in shared memory. TMA stores it while
//            the next q tile is computed. Columns that do not fit there are stored from registers
// A consumer issues S(i) = Q K(i)^T and then O += P(i-1) V(i-1), and runs the softmax step on S(i) while the
// second product is in flight. README.md shows the timing, the barriers and the registers.
//
// Config: head_dim and head_dim_v are multiples of 8 up to LUATTN_MAX_HEAD_DIM, in any combination; TMA pads them with zeros
// to a multiple of 64. threads = 128 + 2 * tile_m. tile_m is a multiple of 64 up to 192, tile_n a multiple of
// 16 up to 256. `stages` is the number of stages of K, and also of V. It is at least 2, because a consumer
// waits for K of the next tile before it releases K of this one. Dynamic shared memory: FwdSm90Layout of
// abi/shared_memory.h. Pointers and strides of q, k, v and o must be multiples of 8 elements (16 bytes) and
// fit a TMA descriptor. The runtime refuses others (runtime/call/args.c, runtime/launch/tma_descriptors.c).
#pragma once
#include "arch/warp.cuh"
#include "arch/wgmma.cuh"
#include "ops/half_sigmoid.cuh"
#include "score/distance_terms.cuh"
#include "score/dropout.cuh"
#include "score/fragment.cuh"
#include "score/online_rows.cuh"
#include "sink/padding.cuh"
#include "sink/row_numbers.cuh"
#include "sm90/fwd/bias_loader.cuh"
#include "sm90/fwd/bias_staging.cuh"
#include "sm90/fwd/mask.cuh"
#include "sm90/fwd/o_wgmma.cuh"
#include "sm90/fwd/rescore.cuh"
#ifdef LUATTN_FREE_BOXES
#include "sm90/fwd/term_loader.cuh"
#endif
#include "sm90/pipeline.cuh"
#include "source/cp_async_tile.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/forward_messages.cuh"
#include "tma/forward_producer.cuh"
#include "tma/mbarrier.cuh"
#include "tma/page_loads.cuh"
#include "tma/stages.cuh"
#include "tma/warp_roles.cuh"
#include "work/sequence.cuh"
#ifdef LUATTN_FREE_BOXES
#include "score/box_dropout.cuh"
#endif

// ---- compute ----

// A consumer warpgroup. Its sections, in order: state; pipeline stages; scores; the softmax step; products;
// the loop over tiles; the epilogue.
template <class Spec, class Config>
struct ConsumerSm90 {
  using Sequence = SequenceOf<Config>;
  using Key = typename Sequence::Key;
  using KvMessage = KvTileMessage<typename Sequence::KeyTile>;
  using Shared = SharedSm90<Spec, Config>;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  using Col = typename Spec::Col;
  static_assert(same_type<typename Spec::Real, float>::value && sizeof(Elem) == 2, "f16 or bf16, accumulated in f32");

  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, stages = Config::stages;
  static constexpr int dim = padded_dim(Config::head_dim), dim_v = padded_dim(Config::head_dim_v);
  static constexpr int rows = Fragment::rows(16), cols = Fragment::columns(tile_n);  // scores of a thread
  static constexpr bool two_softcap_poly =
      Spec::has_softcap_poly && Shared::groups == 2;  // two consumers, with the soft cap's fast path
  // Over a grid a third of the tiles may have a mask, and these take the fast path, too.
  static constexpr bool poly_masks = Spec::has_softcap_poly && !Sequence::is_line;
  // A consumer skips kv tiles that the mask leaves only for the rows of other consumers. With two consumers,
  // the one that skips would just wait for the other.
  static constexpr bool skips = Spec::has_mask && Shared::groups > 2 && Sequence::is_line && !has_chunks;
  static constexpr bool skips_last = skips && !Spec::row_from_start;  // else kv_range rarely has a lower end
  // The limit of a thread's sum of P over a tile under lazy rescaling. Below it P is finite in Elem, and sums
  // of products of P with values up to 2^40 are finite in float.
  static constexpr float most = same_type<Elem, half_t>::value ? 0x1p15f : 0x1p80f;
  // A row's maximum grows fast if a tile rescales O by this factor or a smaller one.
  static constexpr float fast = same_type<Elem, half_t>::value ? 0.5f : 0.0625f;
  enum { K_FULL, V_FULL };  // indices of barrier peeks

  // Measurements show that two consumers fall into ping-pong by themselves, except with the soft cap's fast
  // path or with sigmoids. With the fast path, O is not stored by TMA: the store takes uniform registers, and
  // without them ptxas moves the wait for O inside the loop.
  static constexpr bool two_sigmoid = Spec::prob_is_sigmoid && Shared::groups == 2;
  // The code of QK^T has one copy where O is wide, because ptxas checks the live registers of each
  // accumulator that a product writes: a separate copy for a q tile's first scores adds a tenth to its time.
  // One copy needs a branch. The branch costs up to 6 % of the speed where O is narrow, with sigmoids, and
  // where scores read memory. It also costs registers where Q is narrow, since tiles are then wide. With one
  // copy, ping-pong gains a little.
  static constexpr bool once =
      Shared::groups == 2 && dim > 192 && dim_v > 192 && Spec::score_reads == 0 && !Spec::prob_is_sigmoid;
  static constexpr bool ping_pong = Shared::groups > 2 || two_softcap_poly || two_sigmoid || once;
  using Out = OutOf<Config>;
  static constexpr bool is_out_f32 = same_type<Out, float>::value;                      // stored from registers
  static constexpr int o_boxes = two_softcap_poly || is_out_f32 ? 0 : Shared::o_boxes;  // of 64 columns, staged for TMA
  // The softmax step has one copy, in a loop, because it takes most of a kernel's compile time. Three
  // consumers have no registers for scores that live across the loop's end, so they have a second copy for
  // the first kv tile of a q tile.
  static constexpr bool twice = Shared::groups > 2;
  static constexpr bool draws_by_row = Spec::mask_by_inf && Shared::groups == 2;  // see draw
  enum { ping_pong_barrier = 1 };

  const LuattnParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const int group, warp, lane;
  Sequence site;
  int first_row;  // the warp's first query
  Head head;
  Row row[rows];
  using Online = OnlineRows<Spec, rows, cols, Fragment::row_lanes, Fragment::adjacent>;
  Online online;
  PipelineState<stages> k, v;
  PipelineState<1> q;
  using Drops = Dropout<Config>;
  using Kept = DroppedKind<Config, Fragment, false, tile_n / 16>;
  u32 probs[tile_n / 4];  // P, as A operands; O is in registers of sm90/fwd/o_wgmma.cuh
  float scale[rows];      // rescales O before P V is added
  // What the softmax step of the current scores releases: the barriers of K and V (0 for none), and whether
  // it also releases Q.
  u32 k_back, v_back;
  bool q_back;
  bool first;    // the current or next scores are the q tile's first: O is 0, and no P V is in flight
  bool may_lag;  // lazy rescaling: the maxima of the warp's rows may stay as they are
  bool sure;     // lazy rescaling: P is in range, because the maxima have just been updated
  bool exceeds;  // lazy rescaling: a sum of P of the warp's first rows reaches `most`
  Range wanted;  // skips: the q tile's kv tiles that the mask may leave for this consumer's rows
  bool late_v;   // skips: V of the latest skipped tile is still to be released
  using Columns = StagedColumns<Col, Fragment>;
  // Over a grid of several axes staged terms in place of bias rows. (An empty member more changes other kernels' code.)
  ConditionalOf<Shared::has_terms, StagedTerms<Spec, Config>, typename StagedBiasRowsOf<Spec, Config, Fragment>::type>
      bias_rows;
  Drops dropout;
  Kept kept;  // the probs of the tile at work that dropout keeps
  static_assert(!Shared::has_bias_rows || !Spec::has_softcap_poly, "the fast path of the soft cap reads no memory");

  __device__ __forceinline__ ConsumerSm90(const LuattnParams &params, const LuattnTensorMaps &m, const Shared &s, int g)
      : p(params),
        maps(m),
        shared(s),
        group(g),
        warp(int(uniform(threadIdx.x / 32 % 4))),
        lane(int(threadIdx.x) % 32),
        k(0),
        v(0),
        q(0),
        late_v(false),
        bias_rows(shared, group * 4 + warp) {
    if constexpr (Sequence::paged && Shared::groups == 2 && dim_v <= 128) v.parity = unknown_zero();
  }
  // 0, which ptxas does not know to be the same number in the whole warp: it would keep V's parity in uniform
  // registers, whose moves lengthen the loop.
  __device__ __forceinline__ u32 unknown_zero() const { return u32(lane & Sequence::box_rows(p) >> 31); }

  // The position of row r of this thread. `query` clamps it to the last query.
  __device__ __forceinline__ Position position(int r) const {
    return {first_row + Fragment::row(lane), Fragment::row_of(r)};
  }
  __device__ __forceinline__ int query(int r) const { return site.clamped_query(p, position(r)); }

  // Whether this is the last kv tile that this consumer computes for its q tile.
  __device__ __forceinline__ bool ends(KvMessage tile) const {
    if constexpr (skips_last) return tile.last() || tile.tile() <= wanted.lo;
    return tile.last();
  }

  // ---- stages ----

  __device__ __forceinline__ QTileMessage await_q() const {
    barrier_wait(shared.q_full(group), q.parity);
    return QTileMessage::load(shared.q_message(group));
  }
  __device__ __forceinline__ KvMessage await_k() const {
    barrier_wait_peeked<K_FULL>(shared.k_full(k.stage), k.parity);
    return KvMessage::load(shared.k_message(k.stage));
  }
  __device__ __forceinline__ void await_v() const { barrier_wait_peeked<V_FULL>(shared.v_full(v.stage), v.parity); }
  __device__ __forceinline__ void release(u32 barrier) const {
    if (lane == 0) barrier_arrive(barrier);
  }
  __device__ __forceinline__ void release_q() {
    release(shared.q_empty(group));
    q.advance();
  }
  __device__ __forceinline__ void advance_k() {
    k_back = shared.k_empty(k.stage);
    k.advance();
  }
  __device__ __forceinline__ void advance_v() {
    v_back = shared.v_empty(v.stage);
    v.advance();
  }
  __device__ __forceinline__ void give_k() const {
    if (k_back == 0) return;
    if constexpr (Shared::has_cols)
      barrier_arrive(k_back);  // every lane has read its columns
    else
      release(k_back);
  }
  // Releases K, and peeks at the barrier of the next K. If columns are staged with K, K is released later,
  // once P is good, because `rescore` reads the columns again.
  __device__ __forceinline__ void release_k() {
    if constexpr (!Shared::has_cols) give_k();
    barrier_peek<K_FULL>(shared.k_full(k.stage), k.parity);
  }
  __device__ __forceinline__ void release_v() {
    if (v_back != 0) release(v_back);
    barrier_peek<V_FULL>(shared.v_full(v.stage), v.parity);
  }
  __device__ __forceinline__ void give_q_and_v() {
    if (q_back) release_q();
    wgmma_wait<0>();
    release_v();
  }

  // ---- scores ----

  __device__ __forceinline__ void score(const Key &kv0, const float (&s)[tile_n / 2], float (&x)[rows][cols]) {
    if constexpr (Spec::has_row_shift) {
#pragma unroll
      for (int r = 0; r < rows; ++r)
        row[r].shift = Spec::row_shift(p, site, head, row[r], position(r), typename Sequence::KeyPlace{kv0, 0});
    }
    if constexpr (Shared::begins_at_terms) return score_as_sum(s, x);
    if constexpr (Shared::has_terms) return score_by_displacement(kv0, s, x);
    const DistanceTerms<Spec, Fragment, rows, cols / 2> terms(p, site, head, distance(kv0), lane);
#pragma unroll
    for (int j = 0; j < cols; j += 2) score_two(kv0, j, s, terms, x);
  }
  __device__ __forceinline__ void score_as_sum(const float (&s)[tile_n / 2], float (&x)[rows][cols]) const {
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int j = 0; j < cols; ++j) x[r][j] = s[Fragment::element(r, j)];
  }
  __device__ __forceinline__ void score_by_displacement(const Key &kv0, const float (&s)[tile_n / 2],
                                                        float (&x)[rows][cols]) {
#ifdef LUATTN_FREE_BOXES
#pragma unroll
    for (int j = 0; j < cols; j += 2) score_two(kv0, j, s, bias_rows.held, x);
#endif
  }
  // From the warp's last row to the tile's first key.
  static_assert(Sequence::is_line || !Spec::has_distance_term, "distances lie along lines");
  __device__ __forceinline__ int distance(const Key &kv0) const {
    if constexpr (Spec::has_distance_term) {
      return kv0 - Fragment::column(lane) - (first_row + 15);
    } else {
      return 0;
    }
  }
  // Computes the scores of two adjacent keys.
  template <class Terms>
  __device__ __forceinline__ void score_two(const Key &kv0, int j, const float (&s)[tile_n / 2], const Terms &terms,
                                            float (&x)[rows][cols]) {
    float bias[rows][2];
    if constexpr (Shared::has_bias_rows)
#pragma unroll
      for (int r = 0; r < rows; ++r) bias_rows.get(bias[r], r, j / 2, lane);
    Col col[2];
    if constexpr (Shared::has_cols) {
      const auto two = Columns::get(shared.cols_of(k_back), j / 2, lane);
      col[0] = two.col[0], col[1] = two.col[1];
    }
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const typename Sequence::KeyPlace kv{kv0, Fragment::column_of(j + odd)};
      if constexpr (!Shared::has_cols) col[odd] = score_col<Spec>(p, site, head, kv);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const float dot = s[Fragment::element(r, j + odd)];
        float &to = x[r][j + odd];
        if constexpr (Spec::has_bias_row && !Shared::has_bias_rows)
          to = Spec::score(p, site, head, row[r], col[odd], dot, position(r), kv);
        else
          to = score_of<Spec>(p, site, head, row[r], col[odd], dot, position(r), kv,
                              Shared::has_bias_rows ? bias[r][odd] : terms.get(r, j / 2, odd));
      }
    }
  }

  // ---- softmax step ----

  using Mask = MaskSm90<Spec, Sequence, Online, Fragment, tile_n, Sequence::paged && Shared::groups == 2>;
  __device__ __forceinline__ Mask mask() const { return {p, site, head, row, first_row, lane, row_ranges()}; }
  __device__ __forceinline__ typename Sequence::KeyTile key_tile(const KvMessage &tile) const {
#ifdef LUATTN_FREE_BOXES
    return WarpBoxes::box(row_ranges(), tile.tile().number);
#else
    return tile.tile();
#endif
  }
  __device__ __forceinline__ Key first_key(const KvMessage &tile) const {
    return Sequence::template first_key<tile_n>(key_tile(tile));
  }
  // The same for the mask, where kv0 is the thread's. Over a grid it is asked for where a tile is masked: what finds a box
  // by its number divides, and NVVM would do that for each tile. Of a tile that is scored again, K's message is gone.
  __device__ __forceinline__ Key masked_key(const KvMessage &tile, const Key &kv0) const {
#ifdef LUATTN_FREE_BOXES
    const FreeBox at = k_back != 0 ? KvMessage::load_box(shared.k_message_of(k_back))
                                   : WarpBoxes::box(anew(row_ranges()), tile.tile().number).box;
    return {{{uniform(at.at[0]), uniform(at.at[1])}}, kv0.column};
#else
    return kv0;
#endif
  }
  __device__ __forceinline__ u32 row_ranges() const {
    return Shared::row_axes > 0 ? shared.row_ranges(group * 4 + warp) : 0;
  }
  // Turns scores into P by a step of the online function, stores the factors for O in `scale`, and releases
  // K, V and Q. Returns whether P is good, that is, in range.
  __device__ __forceinline__ bool softmax_step(const float (&s)[tile_n / 2], KvMessage tile) {
    float x[rows][cols];
    typename Online::Part part[rows];
    if constexpr (Spec::has_softcap_poly)
      if (!first && (poly_masks || !tile.masked()) && within_softcap_poly(s)) {
        if constexpr (Drops::any) draw(tile);
        if constexpr (poly_masks) {
          float dot[tile_n / 2];
#pragma unroll
          for (int i = 0; i < tile_n / 2; ++i) dot[i] = s[i];
          if (tile.masked())
            drop_dots(tile, dot);
          else
            online.kept.bits = online.all;
          softcap_poly_step(dot, x, part);
        } else {
          online.kept.bits = online.all;
          softcap_poly_step(s, x, part);
        }
        return true;
      }
    const Key kv0 = first_key(tile) + Fragment::column(lane);
    score(kv0, s, x);
    online.enter_tile(kv0);
    if constexpr (Shared::has_bias_rows)
      if (!ends(tile)) bias_rows.release();
    KeepBits<cols> keep[rows];
    if constexpr (Spec::mask_by_inf) {
      sure = !may_lag;
      scale[0] = scale[1] = 1;
      if (!Spec::lazy_rescaling || tile.masked() || !may_lag) {
        if (tile.masked())
          mask().apply(tile, masked_key(tile, kv0), x, keep, online);
        else
          online.kept.bits = online.all;
        if (!Spec::lazy_rescaling || !may_lag) raise(x, part);
      }
      release_k();
      step_by_inf(x, part, tile);
    } else {
      release_k();
      if (tile.masked()) {
        mask().apply(tile, masked_key(tile, kv0), x, keep, online);
        online.template step<true>(p, site, head, row, x, keep, scale);
      } else {
        online.template step<false>(p, site, head, row, x, keep, scale);
      }
      give_q_and_v();
      if (Spec::has_rescale && first) scale[0] = scale[1] = 1;
    }
    if constexpr (Drops::any && !draws_by_row) draw(tile);
    keep_probs(x);
    first = false;
    return end_step(part);
  }
  // Whether all dot products of the warp's rows are small enough for the fast path. Tests sums of 8 squares,
  // or of 10 or 16 with three consumers, which save instructions. A NaN fails the test in either case. The
  // dots are copied so that the compiler does not keep the squares for P, which would take 64 registers.
  __device__ __forceinline__ bool within_softcap_poly(const float (&s)[tile_n / 2]) const {
    constexpr int chains = two_softcap_poly ? tile_n / 16 : 4;
    float sum[chains];
#pragma unroll
    for (int i = 0; i < tile_n / 2; ++i) {
      float dot = s[i];
      asm("" : "+f"(dot));
      sum[i % chains] = i < chains ? dot * dot : op_fma(dot, dot, sum[i % chains]);
    }
    float most = sum[0];
#pragma unroll
    for (int i = 1; i < chains; ++i) most = max_of(most, sum[i]);
    return __all_sync(0xffffffffu, most < Spec::softcap_poly_limit(p, site, head));
  }
  // Replaces dots that the mask drops by one whose cube is so large that its P is 0.
  __device__ __forceinline__ void drop_dots(const KvMessage &tile, float (&dot)[tile_n / 2]) {
    const Key kv0 = first_key(tile) + Fragment::column(lane);
    KeepBits<cols> keep[rows] = {KeepBits<cols>::none(), KeepBits<cols>::none()};
    mask().find_bits(tile, masked_key(tile, kv0), keep, online);
    const float gone = 3e4f * op_sqrt(Spec::softcap_poly_limit(p, site, head));
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int j = 0; j < cols; j += 4) {
        const auto at = [&](int i) -> float & { return dot[Fragment::element(r, j + i)]; };
        keep_4(at(0), at(1), at(2), at(3), keep[r].word[j / 32] >> j % 32, gone);
      }
  }
  // Runs the softmax step by the fast path, and the rest of the step. A 0 that comes through a shuffle keeps
  // the second row's P after the branch, as in step_by_inf.
  __device__ __forceinline__ void softcap_poly_step(const float (&s)[tile_n / 2], float (&x)[rows][cols],
                                                    typename Online::Part (&part)[rows]) {
    release_k();
    scale[0] = scale[1] = 1;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      float none = -0.f, sum[4];
      if (r > 0) {
        if (q_back) release_q();
        none = __int_as_float(__shfl_sync(0xffffffffu, lane, 0));
        wgmma_wait<0>();
        release_v();
      }
#pragma unroll
      for (int j = 0; j < cols; ++j) {
        x[r][j] = Spec::softcap_poly_prob(p, site, head, s[Fragment::element(r, j)], none);
        sum[j % 4] = j < 4 ? x[r][j] : sum[j % 4] + x[r][j];
      }
      if constexpr (Spec::num_reductions > 0) part[r].red[0] = sum[0] + sum[1] + (sum[2] + sum[3]);
      online.end_row(p, site, head, row[r], r, part[r]);
    }
    keep_probs(x);
  }
  // Raises the rows' maxima. Rescaling is lazy from then on, once every row has a maximum, unless a maximum
  // grew fast: the next tile's P would then be out of range as well.
  __device__ __forceinline__ void raise(float (&x)[rows][cols], typename Online::Part (&part)[rows]) {
#pragma unroll
    for (int r = 0; r < rows; ++r) part[r] = online.begin_row_by_inf(p, site, head, row[r], r, x[r], scale[r]);
    if constexpr (Spec::lazy_rescaling) {
      const bool steady = first || min_of(scale[0], scale[1]) > fast;
      may_lag = __all_sync(0xffffffffu, online.kept.bits == online.all && steady);
    }
    if (first) scale[0] = scale[1] = 1;  // there is no O yet
  }
  // Computes the first row's P and then the second's, after the parts of a step that both rows share. ptxas
  // would move the wait for O up, before all the work that is to hide O's product. The branch between the
  // rows stops it: the wait stays there, and uses of the first row's P fill the gaps between the second row's
  // exponentials. With lazy rescaling there is also a branch after both rows, and ptxas would move all P
  // above the first branch, or sums below it. It moves no shuffle past a branch: hence the vote on the first
  // row's sum above the branch, and the shuffle of the second row's maximum below it.
  __device__ __forceinline__ void step_by_inf(float (&x)[rows][cols], typename Online::Part (&part)[rows],
                                              KvMessage tile) {
    if constexpr (Drops::any && draws_by_row) draw<0, 2>(tile);
    softmax_row(0, x, part);
    if constexpr (Spec::lazy_rescaling) exceeds = __any_sync(0xffffffffu, part[0].red[1] >= most);
    give_q_and_v();
    if constexpr (Drops::any && draws_by_row) draw<1, 2>(tile);
    if constexpr (Spec::lazy_rescaling)
#pragma unroll
      for (int i = 0; i < Spec::num_state; ++i)
        if (!Spec::state_deferred(i)) online.state[1].x[i] = __shfl_sync(0xffffffffu, online.state[1].x[i], lane);
    softmax_row(1, x, part);
  }
  __device__ __forceinline__ void softmax_row(int r, float (&x)[rows][cols], typename Online::Part (&part)[rows]) {
    if constexpr (Spec::prob_is_sigmoid) {
#pragma unroll
      for (int j = 0; j < cols; ++j) x[r][j] = op_exp2(x[r][j]);
      return;
    }
    online.weigh_row_by_inf(p, site, head, row[r], r, x[r], part[r]);
    if constexpr (!Spec::lazy_rescaling) online.end_row(p, site, head, row[r], r, part[r]);
  }
  // Adds the sums of P and returns true, or returns false if one may not be finite. Always adds them if the
  // maxima have just been updated: rounding of huge scores must not rescore a tile for ever.
  __device__ __forceinline__ bool end_step(const typename Online::Part (&part)[rows]) {
    if constexpr (Spec::lazy_rescaling) {
      if ((__any_sync(0xffffffffu, part[1].red[1] >= most) | exceeds) & !sure) return false;
      online.end_rows(p, site, head, row, part);
    }
    return true;
  }
  __device__ __forceinline__ void keep_probs(const float (&x)[rows][cols]) {
#pragma unroll
    for (int i = 0; i < tile_n / 16; ++i)
#pragma unroll
      for (int w = 0; w < 4; ++w)
        probs[i * 4 + w] = pack<Elem>(x[w % 2][i * 4 + w / 2 * 2], x[w % 2][i * 4 + w / 2 * 2 + 1]);
    if constexpr (Drops::any && !Spec::prob_is_sigmoid) drop_probs();
  }
  // Draws which probs of a tile dropout keeps: every Step-th word from First on. With two consumers, a step draws half
  // of them with each of its rows, in one stretch of code with that row's exponentials; three have no registers for it.
  template <int First = 0, int Step = 1>
  __device__ __forceinline__ void draw(KvMessage tile) {
    if constexpr (Sequence::is_line) {
      const int q0 = first_row + dropout.first_q(p, site), kv0 = tile.tile() * tile_n + dropout.first_kv(p, site);
#pragma unroll
      for (int w = First; w < Kept::words; w += Step) kept.bits[w] = Kept::draw_word(dropout, q0, kv0, lane, w);
    } else {  // bits of one row have no part of the other
      const Key key0 = first_key(tile) + Fragment::column(lane);
#pragma unroll
      for (int r = First; r < rows; r += Step)
        Kept::draw_keys(kept.bits[r], dropout, p, first_row + Fragment::row(lane, r), key0);
    }
  }
  // Zeroes the probs that dropout drops. Row sums have them all.
  __device__ __forceinline__ void drop_probs() {
#pragma unroll
    for (int i = 0; i < tile_n / 4; ++i) probs[i] &= kept.mask_of_two(i / 4 * 4 + i % 4 / 2 * 2, i % 2);
  }
  // Turns powers into sigmoids while the next QK^T is in flight: only P V waits for them. For the last tile
  // of a q tile the loop is not unrolled where O is wide: there are few sigmoids, and unrolled code is not
  // worth its compile time.
  template <bool Last>
  __device__ __forceinline__ void finish_probs() {
    constexpr bool rolled = Last && dim_v > 192;
    if constexpr (Spec::prob_is_sigmoid) {
      sigmoids_of_powers<Elem, rolled>(probs, sigmoid_steps<Elem>(probs));
      if constexpr (Drops::any) drop_probs();
    }
  }

  // ---- products ----

  __device__ __forceinline__ void begin(const QTileMessage &message) {
    site = {p, message.b, message.h};
    if constexpr (has_chunks) site.enter_queries(p, message.q_tile * tile_m);
    const int q0 = message.q_tile * tile_m + group * 64, q1 = site.last_query(p, q0, 64);
    first_row = q0 + warp * 16;
    wanted = skips && q0 <= q1 ? kv_tiles_of<Spec, tile_n>(p, site, q0, q1) : Range{0, 0};
    head = Spec::head(p, site);
#pragma unroll
    for (int r = 0; r < rows; ++r) row[r] = Spec::row(p, site, head, query(r));
#ifdef LUATTN_FREE_BOXES
    RowRanges::store<Spec>(p, site, site.clamped_query(p, first_row + lane % 16), lane, row_ranges());
    WarpBoxes::store(shared.q_boxes(group), lane, row_ranges());
#endif
    online.init(p, site, head, row);
    if constexpr (Drops::any) dropout.enter_head(p, site);
    if constexpr (Shared::has_bias_rows) bias_rows.begin(p, site, head, first_row, lane);
    may_lag = false;
    zero_out<dim_v / 16>();
  }

  // Ping-pong: consumers alternate in issuing products, so that one's exponentials overlap the other's
  // products.
  __device__ __forceinline__ void ping_pong_wait() const {
    if constexpr (ping_pong) named_sync(ping_pong_barrier + group, 256);
  }
  __device__ __forceinline__ void ping_pong_pass() const {
    if constexpr (ping_pong) named_arrive(ping_pong_barrier + (group + 1) % Shared::groups, 256);
  }
  __device__ __forceinline__ void ping_pong_skip() const {
    ping_pong_wait();
    ping_pong_pass();
  }
  __device__ __forceinline__ void issue_scores(float (&s)[tile_n / 2]) {
    const u64 a = wgmma_operand(shared.q(group), 0), b = wgmma_operand(shared.k(k.stage), 0);
    using Product = Wgmma<Elem, tile_n>;
    if constexpr (Shared::begins_at_terms)
#pragma unroll
      for (int i = 0; i < dim / 64 && i < 2; ++i)
        Product::dots64(s, a + (i * 64 * 128 >> 4), b + (i * tile_n * 128 >> 4), 1);
    else if constexpr (dim >= 128)
      Product::first128(s, a, b);
    else if constexpr (dim >= 64)
      Product::first64(s, a, b);
#pragma unroll
    for (int i = 2; i < dim / 64; ++i) Product::dots64(s, a + (i * 64 * 128 >> 4), b + (i * tile_n * 128 >> 4), 1);
#pragma unroll
    for (int i = dim / 64 * 4; i < dim / 16; ++i)
      Product::dots16(s, a + (i / 4 * 64 * 128 + i % 4 * 32 >> 4), b + (i / 4 * tile_n * 128 + i % 4 * 32 >> 4),
                      i > 0 || Shared::begins_at_terms);
    wgmma_commit();
    advance_k();
  }
  __device__ __forceinline__ void issue_values() {
    const u64 b = wgmma_operand(shared.v(v.stage), tile_n * 128);
    if constexpr (dim_v == 256) {
      out_sums<Elem, 0, 128, tile_n>(probs, b);
      out_sums<Elem, 8, 128, tile_n>(probs, b + (2 * tile_n * 128 >> 4));
    } else {
      out_sums<Elem, 0, dim_v, tile_n>(probs, b);
    }
    wgmma_commit();
    advance_v();
  }

  // Multiplies O by `scale` before the next P V is added.
  __device__ __forceinline__ void rescale() {
    if constexpr (Spec::has_rescale) {
      // After a few tiles, the rows of a warp often have no new maximum.
      if (__any_sync(0xffffffffu, scale[0] != 1.f || scale[1] != 1.f)) scale_out<0, dim_v / 16>(scale[0], scale[1]);
    }
  }

  __device__ __forceinline__ void end_scores(float (&s)[tile_n / 2], KvMessage tile) {
    wgmma_arrived(s);
    if constexpr (has_chunks) site.enter_keys(p, tile.tile() * tile_n);
    if constexpr (Shared::has_bias_rows) bias_rows.await(p, site, head, first_row, first_key(tile), lane);
    q_back = ends(tile);
  }
  // Terms by displacement: where sums begin at them, before QK^T is issued, else behind.
  __device__ __forceinline__ void begin_sums(float (&s)[tile_n / 2]) const {
    if constexpr (Shared::begins_at_terms) {
      bias_rows.await(shared);
      bias_rows.begin(shared, s);
    }
  }
  __device__ __forceinline__ void await_terms() {
    if constexpr (Shared::has_terms && !Shared::begins_at_terms) {
      bias_rows.await(shared);
      bias_rows.hold(shared);
    }
  }
  __device__ __forceinline__ KvMessage first_scores(float (&s)[tile_n / 2]) {
    const KvMessage message = await_k();
    begin_sums(s);
    wgmma_fence();
    issue_scores(s);
    if constexpr (Shared::has_bias_rows) bias_rows.peek();
    await_terms();
    const KvMessage tile = message.shared();
    wgmma_wait<0>();
    end_scores(s, tile);
    return tile;
  }
  // Issues QK^T of the next tile and P V of this one. O is rescaled between the two: QK^T has only begun, and
  // P V would have to wait for it anyway. With `once`, the function also issues a q tile's first scores,
  // which come without a P V, and O is rescaled after the softmax step instead.
  __device__ __forceinline__ KvMessage next_scores(float (&s)[tile_n / 2]) {
    const KvMessage message = await_k();
    if constexpr (Shared::has_cols) give_k();
    if constexpr (Shared::has_terms) bias_rows.release(shared);  // P is good: `rescore` does not read them again
    begin_sums(s);
    ping_pong_wait();
    wgmma_fence();
    issue_scores(s);
    if constexpr (Shared::has_bias_rows) bias_rows.peek();
    KvMessage tile;
    if (once && first) {
      ping_pong_pass();
      await_terms();
      tile = message.shared();
      wgmma_wait<0>();
    } else {
      if constexpr (!once) rescale();
      finish_probs<false>();
      await_v();
      wgmma_fence();
      issue_values();
      ping_pong_pass();
      await_terms();
      tile = message.shared();
      wgmma_wait<1>();
    }
    end_scores(s, tile);
    return tile;
  }
  __device__ __forceinline__ void last_values() {
    if constexpr (Shared::has_cols) give_k();
    if constexpr (Shared::has_terms) bias_rows.release(shared);  // P is good: `rescore` does not read them again
    if constexpr (Shared::has_bias_rows) bias_rows.release();
    if constexpr (!once) rescale();
    finish_probs<true>();
    await_v();
    wgmma_fence();
    issue_values();
    wgmma_wait<0>();
    release_v();
  }
  // Skips the next kv tile, which the mask leaves empty for this consumer's rows. V arrives later than K, so
  // give_late_v() releases it one tile later.
  __device__ __forceinline__ void skip_tile(KvMessage &tile) {
    if (!tile.before_first()) ping_pong_skip();
    tile = await_k().shared();
    give_late_v();
    advance_k();
    if constexpr (Shared::has_cols) give_k();
    if constexpr (Shared::has_bias_rows) bias_rows.skip();
    release_k();
    late_v = true;
  }
  __device__ __forceinline__ void give_late_v() {
    if (!skips || !late_v) return;
    await_v();
    advance_v();
    release_v();
    late_v = false;
  }
  // Skips the q tile's first kv tiles that this consumer does not need. Returns whether a kv tile is left,
  // and sets `tile` to the last one that it skipped.
  __device__ __forceinline__ bool skip_first(KvMessage &tile) {
#pragma unroll 1
    for (; !tile.last(); skip_tile(tile)) {
      const int next = await_k().shared().tile();
      if (next >= wanted.hi) continue;
      if (skips_last && next < wanted.lo) return false;
      if (!tile.before_first()) ping_pong_skip();
      return true;
    }
    return false;
  }
  __device__ __forceinline__ void skip_rest(KvMessage tile) {
    if constexpr (skips_last)
#pragma unroll 1
      while (!tile.last()) skip_tile(tile);
  }
  // Computes tiles from the current scores to the q tile's end, or to a tile whose P is not good. Returns
  // whether all were good; `tile` is then the last tile, otherwise the one that failed.
  __device__ __forceinline__ bool good_tiles(float (&s)[tile_n / 2], KvMessage &tile) {
    asm volatile("");  // otherwise ptxas would merge two loops, and put the rare case in the middle
    bool good = true;
    if constexpr (twice) {
      good = softmax_step(s, tile);
      give_late_v();
#pragma unroll 1
      while (good && !ends(tile)) {
        float next[tile_n / 2];
        tile = next_scores(next);
        good = softmax_step(next, tile);
      }
    } else {
#pragma unroll 1
      while ((good = softmax_step(s, tile)) && !ends(tile)) tile = next_scores(s);
    }
    return good;
  }
  // Recomputes the scores of a tile that exceeded the maximum by too much, for a step with a new maximum.
  __device__ __forceinline__ void rescore(float (&s)[tile_n / 2], KvMessage tile) {
    Sequence at = site;
    // If these addresses stayed in registers, they would spill others. Without a mask there is room for them
    // if scores read nothing, and with three consumers also if scores read only columns.
    if constexpr (Spec::has_mask || Spec::score_reads > (Shared::groups > 2 ? 1 : 0)) at.h = anew(at.h);
    if constexpr (Shared::has_bias_rows)
      if (!ends(tile)) bias_rows.rescore(p, at, head, first_row, first_key(tile), lane);
    if constexpr (Sequence::is_line) {
      const int queries[rows] = {query(0), query(1)};
      scores_from_memory<Elem, Config::head_dim, tile_n>(p, at, queries, key_tile(tile), lane, s);
    } else {
      const Position queries[rows] = {position(0), position(1)};
      scores_of_rows<Elem, Config::head_dim, tile_n>(p, at, queries,
                                                     Sequence::template first_key<tile_n>(key_tile(tile)), lane, s);
    }
    if constexpr (Shared::begins_at_terms)
      bias_rows.add(shared, s);
    else if constexpr (Shared::has_terms)
      bias_rows.hold(shared);
    q_back = may_lag = false;
    v_back = 0;
    if constexpr (!Shared::has_cols) k_back = 0;
  }
  // Computes all kv tiles of a q tile. Returns the last one.
  __device__ __forceinline__ KvMessage all_tiles() {
    float s[tile_n / 2];
    KvMessage tile;
    first = true;
    v_back = 0;
    if constexpr (once) {
      // With two nested loops instead of this one, the mask would be evaluated before the inner loop, even
      // for tiles that need no mask. O is rescaled at the loop's end, for the last P V as well. That costs no
      // time here; where products have two copies it costs 3 %.
      bool good = true;
#pragma unroll 1
      do {
        if (good)
          tile = next_scores(s);
        else
          rescore(s, tile);
        good = softmax_step(s, tile);
        rescale();
      } while (!good || !ends(tile));
    } else {
      tile = first_scores(s);
#pragma unroll 1
      while (!good_tiles(s, tile)) rescore(s, tile);
    }
    last_values();
    return tile;
  }

  __device__ __forceinline__ void run() {
    barrier_peeks_init();
    declare_out();
    if (ping_pong && group == Shared::groups - 1) named_arrive(ping_pong_barrier, 256);
    for (QTileMessage message = await_q(); message.state != QTileMessage::END; message = await_q()) {
      begin(message);
      KvMessage tile = message.state == QTileMessage::SOME ? KvMessage::before() : KvMessage::none();
      bool some = message.state == QTileMessage::SOME;
      if constexpr (skips) some = some && skip_first(tile);
      if (some) {
        const KvMessage latest = all_tiles();
        if constexpr (skips) tile = latest;  // otherwise ptxas would carry it along
      } else {
        release_q();
      }
      finish();
      skip_rest(tile);
    }
    if (o_boxes > 0 && elected()) bulk_wait_read();  // TMA still reads the block's shared memory
  }

  // ---- finish ----

  __device__ __forceinline__ void write_o(const float (&scale)[rows]) const {
    OutRow to[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const Out *row = site.template q_row<Out>(p, p.tensors.o, position(r)) +
                       (is_out_f32 ? Fragment::column(lane) : gathered_column(lane));
      to[r] = {u64(__cvta_generic_to_global(row)), scale[r], site.has_query(p, position(r))};
    }
    if constexpr (is_out_f32)
      store_outs_f32<Config::head_dim_v>(to);
    else
      store_outs<Elem, Config::head_dim_v, o_boxes * 4>(to, lane);
  }
  // Writes O through shared memory by TMA, which stores it while the next q tile is computed, and clips it to
  // the tensor.
  __device__ __forceinline__ void stage_o(const float (&scale)[rows]) const {
    // Without Spec::mask_by_inf, P takes more registers: an address kept in one would spill another.
    const u32 to = shared.o(group * 4 + warp), row = (Spec::mask_by_inf ? lane : anew(lane)) % 16;
    if (elected()) bulk_wait_read();
    __syncwarp();
    constexpr int columns = o_boxes < Shared::boxes_v ? o_boxes * 64 : Config::head_dim_v;
    stage_outs<Elem, columns>(to + row * 128 + (lane / 16 ^ row % 8) * 16, scale[0], scale[1]);
    fence_async();
    __syncwarp();
    if (elected()) {
      const auto box = site.q_box(p, first_row);
#pragma unroll
      for (int i = 0; i < o_boxes; ++i) tensor_store(to + i * Shared::o_box_bytes, maps.o, i * 64, of_o(box), site.h);
      bulk_commit();
    }
  }
  __device__ __forceinline__ void finish() {
    online.finish();
    // Every lane of a row has the row's state, so each of two lanes handles one of the two rows they share.
    const int mine = lane % 2;
    const Row my_row = mine == 0 ? row[0] : row[1];
    const typename Spec::State my_state = mine == 0 ? online.state[0] : online.state[1];
    const bool kept = online.kept[mine];
    float my_scale = kept ? Spec::out_scale(p, site, head, my_row, my_state) : 0.f;
    if constexpr (Drops::any) my_scale *= float(Drops::factor);
    float scale[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) scale[r] = __shfl_sync(0xffffffffu, my_scale, r, Fragment::row_lanes);
    if constexpr (o_boxes > 0) stage_o(scale);
    if constexpr (o_boxes < Shared::boxes_v) write_o(scale);
    // These stores come after O's, which begin with a fence that would otherwise wait for them.
    if (Fragment::lane_in_row(lane) < rows && site.has_query(p, position(mine)))
      write_row<Spec>(p, site, head, my_row, my_state, position(mine), kept);
  }
};

template <class Spec, class Config>
LUATTN_FN void fwd_sm90(const LuattnParams &p, const MapsOf<Config> &maps, void *memory) {
  using Shared = SharedSm90<Spec, Config>;
  static_assert(ForwardSpec<Spec> && has_shared<Config, Shared::bytes>());
  const Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  constexpr bool two = Shared::groups <= 2, computes = Shared::has_bias_rows || Shared::has_terms;
  const int group = int(uniform(threadIdx.x / 128)) - 1;
  if (group < 0) {
    registers_down<(two ? computes ? 56 : 40 : 32)>();
    if (Shared::value_loaders > 0 ? uniform(threadIdx.x / 32) == 0 : threadIdx.x < 32) {
      ForwardProducer<Spec, Config, Shared>(p, maps, shared).run();
      write_padding_by_warp<Spec, Config>(p);  // consumers are still at the last tile
    } else if constexpr (Shared::loaders > 0) {
      const int loader = int(uniform(threadIdx.x / 32)) - 1;
      if constexpr (Shared::bias_loaders > 0)
        if (loader < Shared::bias_loaders) BiasLoaderSm90<Spec, Config>(p, shared, loader).run();
#ifdef LUATTN_FREE_BOXES
      if constexpr (Shared::term_loaders > 0) TermLoaderSm90<Spec, Config>(p, shared, loader).run();
#endif
      if constexpr (Shared::value_loaders > 0)
        if (loader == Shared::bias_loaders) ValueLoader<Spec, Config, Shared>(p, maps, shared).run();
    }
  } else {
    registers_up<(two ? computes ? 224 : 232 : 160)>();
    ConsumerSm90<Spec, Config>(p, usual_maps(maps), shared, group).run();
  }
}
