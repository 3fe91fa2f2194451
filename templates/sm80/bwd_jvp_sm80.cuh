// sm80/bwd_jvp_sm80.cuh: tangents of gradients by mma.sync with f32 accumulation: forward mode of backward, without atomics
// but for inputs and scalars, and in a fixed order.
//
// A block owns tile_m rows of one side, 16 for each warp, and streams rows of the other side, sm80_chunk_m at a time. With
// X and Y for the rows that it owns and streams of the first product, U and V of the second:
//
//     S = X Y^T     S' = X' Y^T + X Y'^T      dP = U V^T    dP' = U' V^T + U V'^T
//     P, P', dS, dS' = Spec::grad_dual, element by element
//     A += dS' Y + dS Y'                      B += P' V + P V'
//
//     luattn_prepare  owns queries (X = Q, U = dO), and instead of grad_dual takes the online function's steps, which with
//                     the sums of P dP give each row's numbers and their tangents (sink/dual_row_numbers.cuh)
//     luattn_dq       owns queries: A is dQ'
//     luattn_dkdv     owns keys (X = K, U = V): A is dK', B is dV'
//     luattn_dq_values, luattn_dkdv_values
//                     of tensors with a mod, where luattn_finish needs them: A is dQ or dK, B is dV
//
// So these are one struct. That dQ' has a kernel of its own costs 6 products of 24, and saves an accumulator in memory,
// and the atomics that would add to it.
//
// Scores lie in fragments whose rows are the owned side's, so that P and dS leave the first products as A fragments of the
// next two. Of the streamed side's rows, each fragment serves a product and its tangent.
//
// Config: tile_m = tile_n = 16 * warps; sm80_chunk_m 16 or 32; stages 2. Dynamic shared memory: BwdJvpSm80Layout of
// abi/shared_memory.h.
#pragma once
#include "arch/mma_registers.cuh"
#include "contract/needs.cuh"
#include "grads/flush.cuh"
#include "score/backward_rows.cuh"
#include "score/dropout.cuh"
#include "score/dual_passes.cuh"
#include "score/dual_rows.cuh"
#include "sink/dual_row_numbers.cuh"
#include "sink/padding.cuh"
#include "score/fragment.cuh"
#include "source/cp_async_tile.cuh"
#include "work/dq_order.cuh"
#include "work/tile_scheduler.cuh"
#include "work/tile_walk.cuh"

// query_values, key_values: what queries and keys do, of gradients in place of their tangents.
enum class DualWork { rows, queries, keys, query_values, key_values };

// Needed: Needs, or of values NeedsValues.
template <class Spec, class Config, DualWork Work, class Needed>
struct BwdJvpSm80 {
  static_assert(DualGradSpec<Spec>);
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  using Col = typename Spec::Col;
  using BwdRow = typename Spec::BwdRow;
  using Acc = typename Spec::Acc;
  using Sequence = SequenceOf<Config>;
  using Need = Needed;
  static_assert(same_type<typename Spec::Real, float>::value, "the sm80 family accumulates in f32");

  // ---- shape -------------------------------------------------------------------------------------------

  static constexpr bool of_values = Work == DualWork::query_values || Work == DualWork::key_values,
                        owns_keys = Work == DualWork::keys || Work == DualWork::key_values;
  static constexpr int D = Config::head_dim, DV = Config::head_dim_v, DP = padded_dim(D), DVP = padded_dim(DV);
  static constexpr int threads = Config::threads, warps = threads / 32, own = 16 * warps, chunk = Config::sm80_chunk_m;
  static_assert(Config::tile_m == own && Config::tile_n == own && (chunk == 16 || chunk == 32) && Config::stages == 2);
  static constexpr int tiles = chunk / 16, columns = Fragment::columns(chunk), chunks = own / chunk;
  // Which of the owned and the streamed side's tensors have tangents.
  static constexpr bool own_x = !of_values && (owns_keys ? Spec::tangent_of_k : Spec::tangent_of_q),
                        own_u = !of_values && (owns_keys ? Spec::tangent_of_v : Spec::tangent_of_dout),
                        other_y = !of_values && (owns_keys ? Spec::tangent_of_q : Spec::tangent_of_k),
                        other_v = !of_values && (owns_keys ? Spec::tangent_of_dout : Spec::tangent_of_v);
  static constexpr bool sums_a = owns_keys ? Need::dk : Work != DualWork::rows, sums_b = owns_keys && Need::dv;
  static constexpr bool adds = owns_keys && Need::parameters;
  static constexpr bool has_rows = !__is_empty(Row);

  // Blocks of C: sums, then S, S', dP and dP', which become P, P', dS and dS'.
  static constexpr int c_a = 0, c_b = c_a + (sums_a ? DP / 16 : 0), c_s = c_b + (sums_b ? DVP / 16 : 0);
  static constexpr int S = c_s, ST = c_s + tiles, DS = c_s + 2 * tiles, DST = c_s + 3 * tiles;
  static_assert(DST + tiles <= num_c_blocks && num_a_blocks >= 4);

  using YTile = SharedTile<DP>;
  using VTile = SharedTile<DVP>;
  static constexpr BwdJvpSm80Layout layout = bwd_jvp_sm80_layout(layout_sizes<Config>(
      {.row = has_rows ? int(sizeof(SharedRow<Row>)) : 0, .bwd_row = int(sizeof(SharedRow<BwdRow>)), .chunk = chunk}));
  static_assert(has_shared<Config, layout.bytes>());

  // ---- a thread's view ---------------------------------------------------------------------------------

  const TangentParams &p;
  Sequence site;
  Head head;
  Acc acc;
  using Drops = Dropout<Config>;
  using Dropped = DroppedKind<Config, Fragment, owns_keys, tiles>;
  Drops dropout;
  unsigned char *shared;
  u32 base;
  int thread, lane, warp, own0, h_kv;

  __device__ __forceinline__ BwdJvpSm80(const TangentParams &p, unsigned char *shared, int tile, int b, int h, int h_kv)
      : p(p),
        site(p, b, h),
        shared(shared),
        base(shared_address(shared)),
        thread(int(threadIdx.x)),
        lane(thread % 32),
        warp(thread / 32),
        own0(tile * own),
        h_kv(h_kv) {
    declare_fragments();
    zero_blocks<0, c_s>();
  }

  __device__ __forceinline__ decltype(auto) ends() const { return site.reread(); }
  __device__ __forceinline__ SharedRow<BwdRow> *shared_bwd(int stage) const {
    return reinterpret_cast<SharedRow<BwdRow> *>(shared + layout.at_bwd_row + stage * layout.bwd_row);
  }
  __device__ __forceinline__ SharedRow<Row> *shared_rows(int stage) const {
    return reinterpret_cast<SharedRow<Row> *>(shared + layout.at_row + stage * layout.row);
  }

  // ---- loads -------------------------------------------------------------------------------------------

  template <int Rows, int Dim>
  __device__ __forceinline__ void load(int at, const LuattnTensor &t, bool of_keys, int row0) const {
    if (of_keys)
      copy_tile_async<Rows, Dim, threads>(base + at, ends().template kv_rows<const Elem>(p, t, h_kv), row0, thread);
    else
      copy_tile_async<Rows, Dim, threads>(base + at, ends().template q_rows<const Elem>(p, t), row0, thread);
  }
  __device__ __forceinline__ void load_own() const {
    const LuattnTensors &x = p.tensors;
    const LuattnTangents &d = p.tangents;
    load<own, D>(layout.at_x, owns_keys ? x.k : x.q, owns_keys, own0);
    load<own, DV>(layout.at_u, owns_keys ? x.v : x.dout, owns_keys, own0);
    if constexpr (own_x) load<own, D>(layout.at_x + layout.x, owns_keys ? d.k : d.q, owns_keys, own0);
    if constexpr (own_u) load<own, DV>(layout.at_u + layout.u, owns_keys ? d.v : d.o, owns_keys, own0);
  }
  __device__ __forceinline__ int y_at(int stage) const { return layout.at_y + stage * 2 * layout.y; }
  __device__ __forceinline__ int v_at(int stage) const { return layout.at_v + stage * 2 * layout.v; }
  __device__ __forceinline__ void load_chunk(int row0, int stage) const {
    const LuattnTensors &x = p.tensors;
    const LuattnTangents &d = p.tangents;
    load<chunk, D>(y_at(stage), owns_keys ? x.q : x.k, !owns_keys, row0);
    load<chunk, DV>(v_at(stage), owns_keys ? x.dout : x.v, !owns_keys, row0);
    if constexpr (other_y) load<chunk, D>(y_at(stage) + layout.y, owns_keys ? d.q : d.k, !owns_keys, row0);
    if constexpr (other_v) load<chunk, DV>(v_at(stage) + layout.v, owns_keys ? d.o : d.v, !owns_keys, row0);
    if constexpr (owns_keys) {
      if (thread < chunk) {
        const int q = ends().clamped_query(p, row0 + thread);
        const float *from = static_cast<const float *>(p.scratch.bwd_rows) + site.q_index(p, q);
        const u32 to = shared_address(reinterpret_cast<unsigned char *>(shared_bwd(stage) + thread));
#pragma unroll
        for (int i = 0; i < Spec::num_bwd_rows; ++i) cp_async_4(to + 4 * i, from + i * site.q_count(p));
        if constexpr (has_rows) shared_rows(stage)[thread].value = Spec::row(p, site, head, q);
      }
    }
    cp_async_commit();
  }

  // ---- products ----------------------------------------------------------------------------------------

  // Blocks C + j = owned times streamed rows, and CT + j their tangents.
  template <int Cols, int C, int CT, bool Own, bool Other>
  __device__ __forceinline__ void multiply_scores(u32 x, u32 x_tangent, u32 y, u32 y_tangent) const {
    const LanePointer<Cols, false> a_lane{u32(lane)};
    const LanePointer<Cols, true> b_lane{u32(lane)};
    const u32 row = u32(warp * 16);
    zero_blocks<C, tiles>();
    zero_blocks<CT, tiles>();
#pragma unroll
    for (int d = 0; d < Cols; d += 16) {
      load_a<false, 0, 1>(a_lane.at(x, row, d), 0);
      if constexpr (Own) load_a<false, 1, 1>(a_lane.at(x_tangent, row, d), 0);
      multiply<Elem, false, Own ? 2 : 1, 0, C, CT - C>(b_lane.at(y, 0, d));
      if constexpr (tiles == 2) multiply<Elem, false, Own ? 2 : 1, 0, C + 1, CT - C>(b_lane.at(y, 16, d));
      if constexpr (Other) multiply<Elem, false, 1, 0, CT, 1>(b_lane.at(y_tangent, 0, d));
      if constexpr (Other && tiles == 2) multiply<Elem, false, 1, 0, CT + 1, 1>(b_lane.at(y_tangent, 16, d));
    }
  }
  __device__ __forceinline__ void multiply_all(int stage) const {
    const u32 x = base + layout.at_x, u = base + layout.at_u, y = base + u32(y_at(stage)), v = base + u32(v_at(stage));
    multiply_scores<DP, S, ST, own_x, other_y>(x, x + layout.x, y, y + layout.y);
    multiply_scores<DVP, DS, DST, own_u, other_v>(u, u + layout.u, v, v + layout.v);
  }

  // Blocks C .. += block A (16 owned rows x 16 streamed) times 16 streamed rows, tile by tile of 16 columns.
  template <int Cols, int A, int C, int T = 0>
  __device__ __forceinline__ void multiply_rows(u32 rows, u32 row0) const {
    if constexpr (T * 16 < Cols) {
      const LanePointer<Cols, false> b_lane{u32(lane)};
      multiply<Elem, true, 1, A, C + T, 1>(b_lane.at(rows, row0, T * 16));
      multiply_rows<Cols, A, C, T + 1>(rows, row0);
    }
  }
  template <int J = 0>
  __device__ __forceinline__ void accumulate(int stage) const {
    if constexpr (J < tiles) {
      const u32 y = base + u32(y_at(stage)), v = base + u32(v_at(stage));
      if constexpr (sums_b) {
        round_block<Elem, 0, (of_values ? S : ST) + J>();
        multiply_rows<DVP, 0, c_b>(v, J * 16);
        if constexpr (other_v) {
          round_block<Elem, 1, S + J>();
          multiply_rows<DVP, 1, c_b>(v + layout.v, J * 16);
        }
      }
      if constexpr (sums_a) {
        round_block<Elem, 2, (of_values ? DS : DST) + J>();
        multiply_rows<DP, 2, c_a>(y, J * 16);
        if constexpr (other_y) {
          round_block<Elem, 3, DS + J>();
          multiply_rows<DP, 3, c_a>(y + layout.y, J * 16);
        }
      }
      accumulate<J + 1>(stage);
    }
  }

  // ---- elements ----------------------------------------------------------------------------------------

  // Positions of the thread's element of owned row `half` and streamed row number c.
  __device__ __forceinline__ Position owned_at(int half) const {
    return {own0 + warp * 16 + Fragment::row(lane), Fragment::row_of(half)};
  }
  __device__ __forceinline__ Position streamed_at(int first, int c) const {
    return {first + Fragment::column(lane), Fragment::column_of(c)};
  }
  LUATTN_FN int at(const Position &x) { return x.base + x.offset; }
  __device__ __forceinline__ int query_at(int first, int half, int c) const {
    return owns_keys ? at(streamed_at(first, c)) : at(owned_at(half));
  }
  __device__ __forceinline__ Dropped draw(int first) const {
    Dropped kept;
    if constexpr (Drops::any) {
      const int row = own0 + warp * 16, q = dropout.first_q(p, site), kv = dropout.first_kv(p, site);
      kept = Dropped::draw(dropout, row + (owns_keys ? kv : q), first + (owns_keys ? q : kv), lane);
    }
    return kept;
  }
  __device__ __forceinline__ float factor(const Dropped &kept, int half, int c) const {
    if constexpr (Drops::any)
      return kept.get(c, half) ? float(Drops::factor) : 0.f;
    else
      return 1.f;
  }
  __device__ __forceinline__ bool keeps(const Row &row, const Col &col, int q, int kv) const {
    bool kept = kv < ends().keys_of(p, q);
    if constexpr (Spec::has_mask) kept = kept && Spec::keep(p, site, head, row, col, q, kv);
    return kept;
  }
  LUATTN_FN constexpr int block_of(int c) { return c / 4; }
  LUATTN_FN constexpr int element_of(int half, int c) { return Fragment::element(half, c % 4); }

  // What of rows and columns the owned side has.
  Row own_row[2];
  Col own_col[2];
  BwdRow own_bwd[2];
  __device__ __forceinline__ void enter_head() {
    head = Spec::head(p, site);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (owns_keys) {
        own_col[half] = Spec::col(p, site, head, ends().clamped_key(p, owned_at(half)));
      } else {
        const int q = ends().clamped_query(p, at(owned_at(half)));
        own_row[half] = Spec::row(p, site, head, q);
        if constexpr (Work != DualWork::rows) own_bwd[half] = load_bwd_row<Spec>(p, site, q);
      }
    }
    acc = zero_acc<Acc>();
    if constexpr (Drops::any) dropout.enter_head(p, site);
  }

  // Replaces an element's S, S', dP and dP' by P, P', dS and dS'. grad_dual is called for elements that are not kept,
  // too, where that does no harm: after a branch, each element would wait for the one before it.
  __device__ __forceinline__ void differentiate_element(const Row &row, const Col &col, const BwdRow &bwd, Position q,
                                                        Position kv, bool masked, float drop, float &s, float &st,
                                                        float &dp, float &dpt) {
    constexpr bool by_lanes = adds && HasLaneSums<Spec>, always = by_lanes || !adds || !Spec::grad_adds;
    const bool kept = !masked || keeps(row, col, at(q), at(kv));
    Dual<float> prob = {}, ds = {};
    if constexpr (by_lanes) acc.lanes.kept = kept;
    if (always || kept)
      Spec::template grad_dual<adds>(p, site, head, row, col, bwd, s, float(p.scale) * st, drop * dp, drop * dpt, q, kv,
                                     prob, ds, acc);
    s = kept ? drop * prob.x : 0.f, st = kept ? drop * prob.d : 0.f;
    dp = kept ? ds.x : 0.f, dpt = kept ? ds.d : 0.f;
  }
  __device__ __forceinline__ void differentiate(int first, bool masked, int stage) {
    float s[4][tiles][8];
    read_blocks<S, tiles>(s[0]), read_blocks<ST, tiles>(s[1]), read_blocks<DS, tiles>(s[2]);
    read_blocks<DST, tiles>(s[3]);
    const Dropped kept = draw(first);
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      Row row;
      Col col;
      BwdRow bwd;
      const Position there = streamed_at(first, c);
      if constexpr (owns_keys) {
        const int m = Fragment::column(lane) + Fragment::column_of(c);
#pragma unroll
        for (int i = 0; i < Spec::num_bwd_rows; ++i) bwd.x[i] = shared_bwd(stage)[m].value.x[i];  // never a memcpy
        if constexpr (has_rows) row = shared_rows(stage)[m].value;
      } else {
        col = Spec::col(p, site, head, ends().clamped_key(p, there));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = block_of(c), e = element_of(half, c);
        const Position here = owned_at(half);
        differentiate_element(owns_keys ? row : own_row[half], owns_keys ? own_col[half] : col,
                              owns_keys ? bwd : own_bwd[half], owns_keys ? there : here, owns_keys ? here : there,
                              masked, factor(kept, half, c), s[0][j][e], s[1][j][e], s[2][j][e], s[3][j][e]);
      }
    }
    write_blocks<S, tiles>(s[0]), write_blocks<ST, tiles>(s[1]), write_blocks<DS, tiles>(s[2]);
    write_blocks<DST, tiles>(s[3]);
  }

  // ---- rows --------------------------------------------------------------------------------------------

  using Online = DualRows<Spec, 2, columns, Fragment::row_lanes>;
  Online online;
  Dual<float> sum[2];  // of P dP, by lanes

  __device__ __forceinline__ void step(int first, bool masked) {
    float blocks[4][tiles][8], s[2][columns], st[2][columns];
    read_blocks<S, tiles>(blocks[0]), read_blocks<ST, tiles>(blocks[1]), read_blocks<DS, tiles>(blocks[2]);
    read_blocks<DST, tiles>(blocks[3]);
    KeepBits<columns> keep[2] = {KeepBits<columns>::none(), KeepBits<columns>::none()};
    online.score(
        p, site, head, own_row,
        [&](int half, int c) {
          const int j = block_of(c), e = element_of(half, c);
          return Dual<float>{blocks[0][j][e], float(p.scale) * blocks[1][j][e]};
        },
        [&](int half) { return owned_at(half); }, [&](int c) { return streamed_at(first, c); }, s, st);
    if (masked) {
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const Position kv = streamed_at(first, c);
        const Col col = Spec::col(p, site, head, ends().clamped_key(p, kv));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const bool kept = keeps(own_row[half], col, at(owned_at(half)), at(kv));
          keep[half].set(c, kept);
          s[half][c] = kept ? s[half][c] : Spec::mask_by_inf ? -infinity<float>() : 0.f;
          st[half][c] = kept ? st[half][c] : 0.f;
        }
      }
    }
    Dual<float> scale[2];
    if (masked)
      online.template step<true>(p, site, head, own_row, s, st, keep, scale);
    else
      online.template step<false>(p, site, head, own_row, s, st, keep, scale);
    const Dropped kept = draw(first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Dual<float> more = {};
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const float dp = blocks[2][block_of(c)][element_of(half, c)], dpt = blocks[3][block_of(c)][element_of(half, c)],
                    drop = factor(kept, half, c);
        more.x += drop * s[half][c] * dp;
        more.d += drop * (st[half][c] * dp + s[half][c] * dpt);
      }
      sum[half].d = scale[half].x * sum[half].d + scale[half].d * sum[half].x + more.d;
      sum[half].x = scale[half].x * sum[half].x + more.x;
    }
  }
  // Adds a chunk to the row passes.
  using Passes = DualPasses<Spec, 2, Fragment::row_lanes>;
  Passes passes;
  __device__ __forceinline__ void add_to_passes(int first, bool masked) {
    float s[4][tiles][8];
    read_blocks<S, tiles>(s[0]), read_blocks<ST, tiles>(s[1]), read_blocks<DS, tiles>(s[2]);
    read_blocks<DST, tiles>(s[3]);
    const Dropped kept = draw(first);
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const Position kv = streamed_at(first, c);
      const Col col = Spec::col(p, site, head, ends().clamped_key(p, kv));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = block_of(c), e = element_of(half, c);
        const float drop = factor(kept, half, c);
        if (!masked || keeps(own_row[half], col, at(owned_at(half)), at(kv)))
          passes.add(p, site, head, own_row[half], col, half, s[0][j][e], float(p.scale) * s[1][j][e],
                     {drop * s[2][j][e], drop * s[3][j][e]}, owned_at(half), kv);
      }
    }
  }
  __device__ __forceinline__ void write_rows() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int q = at(owned_at(half));
      const Dual<float> all = {lanes_sum<Fragment::row_lanes>(sum[half].x),
                               lanes_sum<Fragment::row_lanes>(sum[half].d)};
      passes.finish(half);
      if (Fragment::first_in_row(lane) && ends().has_query(p, q))
        write_dual_row<Spec>(p, site, head, own_row[half], online, half, q, passes.finals[half], all, acc);
    }
    if constexpr (Need::parameters) flush_block<Spec, threads>(p, site, head, acc);
  }

  // ---- results -----------------------------------------------------------------------------------------

  // Where a row's results go: to the caller's tensor or, behind a mod, to an accumulator.
  template <bool ToAcc, int Dim>
  __device__ __forceinline__ auto *row_of_result(const LuattnTensor &t, void *acc, int row) const {
    if constexpr (ToAcc && owns_keys)
      return site.template kv_acc_row<PlainRows, Dim, float>(p, acc, 0, site.b, h_kv, row);
    else if constexpr (ToAcc)
      return site.template q_acc_row<PlainRows, Dim, float>(p, acc, site.b, site.h, row);
    else if constexpr (owns_keys)
      return site.template kv_row<GradOf<Config>>(p, t, h_kv, row);
    else
      return site.template q_row<GradOf<Config>>(p, t, row);
  }
  // Stores blocks C and on, of Dim columns, times `scale` unless they are behind a mod.
  template <bool ToAcc, int Dim, int C, int T = 0>
  __device__ __forceinline__ void store(const LuattnTensor &t, void *acc, float scale) const {
    if constexpr (T * 16 < Dim) {
      using Grad = ConditionalOf<ToAcc, float, GradOf<Config>>;
      float x[8];
      if ((ToAcc ? acc : t.data) == nullptr) return;
      read_block<C + T>(x);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = at(owned_at(half));
        if (!(owns_keys ? ends().has_key(p, row) : ends().has_query(p, row))) continue;
        Grad *to = row_of_result<ToAcc, Dim>(t, acc, row);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int d = T * 16 + Fragment::column(lane) + Fragment::column_of(c);
          if (d < Dim) to[d] = from_real<Grad>(ToAcc ? x[element_of(half, c)] : x[element_of(half, c)] * scale);
        }
      }
      store<ToAcc, Dim, C, T + 1>(t, acc, scale);
    }
  }

  // Accumulators behind mods.
  __device__ __forceinline__ const LuattnTangentMods &values() const {
    return static_cast<const TangentModParams &>(p).tangent_mods;
  }
  __device__ __forceinline__ void *dq_acc() const {
    if constexpr (of_values) return values().dq_acc;
    return p.scratch.dq_acc;
  }
  __device__ __forceinline__ void *dk_acc() const {
    if constexpr (of_values) return values().dk_acc;
    return p.scratch.dk_acc;
  }
  __device__ __forceinline__ void *dv_acc() const {
    if constexpr (of_values) return values().dv_acc;
    return p.scratch.dv_acc;
  }

  // ---- loop --------------------------------------------------------------------------------------------

  template <bool OfPasses>
  __device__ __forceinline__ void work(int first, bool masked, int stage) {
    multiply_all(stage);
    if constexpr (OfPasses) {
      add_to_passes(first, masked);
    } else if constexpr (Work == DualWork::rows) {
      step(first, masked);
    } else {
      differentiate(first, masked, stage);
      accumulate(stage);
    }
  }

  // All tiles of the other side that meet the block's rows, of one query head. One barrier for each chunk: after it the
  // chunk has arrived, and the other stage is free.
  template <bool OfPasses = false, class Walk>
  __device__ __forceinline__ void run_tiles(Walk &walk) {
    Tile tile = walk.next(p, site);
    int stage = 0;
    if (tile.valid()) load_chunk(tile.index * own, 0);
#pragma unroll 1
    while (tile.valid()) {
      Tile next = tile;
#pragma unroll 1
      for (int i = 0; i < chunks; ++i) {
        cp_async_wait<0>();
        __syncthreads();
        const int first = tile.index * own + i * chunk;
        if (i + 1 < chunks) {
          load_chunk(first + chunk, stage ^ 1);
        } else {
          next = walk.next(p, site);
          if (next.valid()) load_chunk(next.index * own, stage ^ 1);
        }
        work<OfPasses>(first, tile.masked, stage);
        stage ^= 1;
      }
      tile = next;
    }
    cp_async_wait<0>();
    __syncthreads();
  }

  __device__ __forceinline__ void run_queries() {
    if (site.packed && !site.has_query(p, own0)) return;  // the grid is for the longest entry
    load_own();
    cp_async_commit();
    enter_head();
    if constexpr (Work == DualWork::rows) {
      online.init(p, site, head, own_row);
      sum[0] = sum[1] = {};
    }
    KvTilesOf<Spec, Sequence, own, own> walk(p, site, own0 / own);
    run_tiles(walk);
    if constexpr (Work == DualWork::rows) {
      online.finish();
      passes.init(p, site, head, own_row, online);
      if constexpr (Passes::any) {
        KvTilesOf<Spec, Sequence, own, own> again(p, site, own0 / own);
        run_tiles<true>(again);
      }
      write_rows();
    } else {
      store<Spec::has_query_mod, D, c_a>(p.tensors.dq, dq_acc(), float(p.scale));
    }
  }
  __device__ __forceinline__ void run_keys() {
    if (site.packed && !site.has_key(p, own0)) return;
    load_own();
    cp_async_commit();
    const int first = site.first_head(p, h_kv);
#pragma unroll 1
    for (int h = first; h < first + site.group(p); ++h) {
      site.h = h;
      enter_head();
      QTilesOf<Spec, Sequence, own, own> walk(p, site, own0 / own);
      run_tiles(walk);
      if constexpr (adds) flush_block<Spec, threads>(p, site, head, acc);
      if constexpr (adds && HasLaneSums<Spec>) flush_lanes<Spec, threads>(p, site, head, acc);
    }
    if constexpr (sums_a) store<Spec::has_key_mod, D, c_a>(p.tensors.dk, dk_acc(), float(p.scale));
    if constexpr (sums_b) store<Spec::has_value_mod, DV, c_b>(p.tensors.dv, dv_acc(), 1.f);
  }
};

// The kernels.
template <class Spec, class Config, DualWork Work, class Needed>
LUATTN_FN void bwd_jvp_sm80(const TangentParams &p, unsigned char *shared) {
  using Kernel = BwdJvpSm80<Spec, Config, Work, Needed>;
  if constexpr (Kernel::owns_keys) {
    const KvBlock at = KvBlock::of_grid<Spec::has_tile_bits>(p);
    Kernel(p, shared, at.tile, at.b, SequenceOf<Config>::first_head(p, at.h), at.h).run_keys();
  } else {
    const BlockSite at = BlockSite::of_grid<false>(p);
    Kernel(p, shared, at.q_tile, at.b, at.h, at.h_kv).run_queries();
  }
}
