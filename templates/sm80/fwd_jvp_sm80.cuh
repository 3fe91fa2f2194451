// sm80/fwd_jvp_sm80.cuh: forward together with the tangents of O and lse: f16 or bf16, mma.sync with f32 accumulation, any
// GPU from sm_80 on.
//
// Grid, tiles, masks and copies are those of sm80/fwd_sm80.cuh, whose struct this one extends. A warp has 16 rows, and of
// a tile of keys computes
//   S = Q K^T and S' = Q' K^T + Q K'^T; a step of the online function on both (score/dual_rows.cuh), which makes P and
//   P' in place; A += P V and B += P' V + P V', blocks of O's registers and as many behind them.
// Fragments of K serve S and S', those of V serve A and B: S' is the second row of fragments of a product with K, and B of
// one with V. What has no tangent has no product. Tangents of scores are centred (score/dual_centres.cuh).
//
// A thread has tile_n numbers of S and S', and as many of A and B as V has channels. Of more than 128 a block takes one half
// after the other, and S and S' twice: 9 products for 6, where A and B of all of them would not fit.
//
// Config: as for sm80/fwd_sm80.cuh, but tile_m is 16 times the warps, and stages 2; a head_dim_v above 128 is a multiple of 16.
#pragma once
#include "score/dual_centres.cuh"
#include "score/dual_rows.cuh"
#include "sink/dual_out.cuh"
#include "sm80/fwd_sm80.cuh"

template <class Spec>
struct DualSm80 {
  static constexpr int sums = 2, q_parts = 1 + Spec::tangent_of_q, tangents = tangent_bits<Spec>();
  template <int Rows, int Cols, class Fragment>
  using Online = DualRows<Spec, Rows, Cols, Fragment::row_lanes>;
};

// The Config of the channels of V that a block takes at once.
template <class Config, bool Halves>
struct ValuesAtOnce {
  using Type = Config;
};
template <class Config>
struct ValuesAtOnce<Config, true> {
  struct Type : Config {
    static constexpr int head_dim_v = jvp_value_dim(Config::head_dim_v);
    static_assert(2 * head_dim_v == Config::head_dim_v && head_dim_v % 8 == 0);
  };
};
template <class Config>
using ValueConfig = typename ValuesAtOnce<Config, (Config::head_dim_v > 128)>::Type;

// Config: a ValueConfig.
template <class Spec, class Config>
struct ForwardJvpSm80 : ForwardSm80<Spec, Config, DualSm80<Spec>> {
  using Base = ForwardSm80<Spec, Config, DualSm80<Spec>>;
  using Elem = typename Config::Elem;
  using Fragment = typename Base::Fragment;
  using Drops = typename Base::Drops;
  using Base::p, Base::site, Base::head, Base::row, Base::online, Base::lane, Base::q_tile, Base::warp_row;
  using Base::q_shared, Base::k_shared, Base::v_shared, Base::k_bytes, Base::v_bytes, Base::q_tiles;
  using Base::rows, Base::cols, Base::n_tiles, Base::v_tiles, Base::v_blocks, Base::tile_m, Base::tile_n;
  static_assert(TangentSpec<Spec> && Base::m_tiles == 1 && Base::stages == 2 && Base::dim_v <= 128);
  static constexpr bool has_dots = Spec::tangent_of_q || Spec::tangent_of_k;  // S' has products
  static constexpr bool has_sums = Spec::has_prob_tangent || Spec::tangent_of_v;
  // Masked scores are -inf, and no others need a test, as in sm90/fwd_jvp.
  static constexpr bool by_inf = Spec::mask_by_inf && Spec::centres;

  DualCentres<Spec, rows, cols, Fragment::row_lanes> centres;
  const int channel;  // of V, the first

  __device__ __forceinline__ ForwardJvpSm80(const LuattnParams &p, u32 shared, const BlockSite &block, int channel)
      : Base(p, shared, block), channel(channel) {}

  __device__ __forceinline__ void begin() {
    head = Spec::head(p, site);
#pragma unroll
    for (int r = 0; r < rows; ++r) row[r] = Spec::row(p, site, head, Base::query(r, lane));
    online.init(p, site, head, row);
    centres.init();
    if constexpr (Drops::any) Base::dropout.enter_head(p, site);
    zero_out<2 * v_blocks>();
  }

  // ---- load ----

  // Tangents lie behind what they are of: Q' as another tile of rows.
  __device__ __forceinline__ void load_q() const {
    constexpr int dim = Config::head_dim, threads = Config::threads;
    const int first = q_tile * tile_m;
    copy_rows_async<dim, threads>(q_shared, site.template q_rows<const Elem>(p, p.tensors.q), tile_m, first,
                                  Base::copier());
    if constexpr (Spec::tangent_of_q)
      copy_rows_async<dim, threads>(q_shared + tile_m * Base::dim * 2,
                                    site.template q_rows<const Elem>(p, tangents_of(p).q), tile_m, first,
                                    Base::copier());
    cp_async_commit();
  }
  template <class T>
  __device__ __forceinline__ LuattnTensor from_channel(LuattnTensor t) const {
    t.data = static_cast<char *>(t.data) + channel * int(sizeof(T));
    return t;
  }
  LUATTN_FN constexpr int k_tangent() { return tile_n * Base::dim * 2; }
  LUATTN_FN constexpr int v_tangent() { return tile_n * Base::dim_v * 2; }
  __device__ __forceinline__ void load(Tile tile, int slot) const {
    constexpr int dim = Config::head_dim, dim_v = Config::head_dim_v;
    if (tile.valid()) {
      const u32 k = k_shared + slot * k_bytes, v = v_shared + slot * v_bytes;
      Base::template copy_tile<dim>(k, p.tensors.k, tile);
      if constexpr (Spec::tangent_of_k) Base::template copy_tile<dim>(k + k_tangent(), tangents_of(p).k, tile);
      Base::template copy_tile<dim_v>(v, from_channel<Elem>(p.tensors.v), tile);
      if constexpr (Spec::tangent_of_v)
        Base::template copy_tile<dim_v>(v + v_tangent(), from_channel<Elem>(tangents_of(p).v), tile);
    }
    cp_async_commit();
  }

  // ---- compute ----

  using Scores = float[2][n_tiles][4];  // S, S'

  __device__ __forceinline__ void dots(Scores &s, int slot) const {
    const u32 k = k_shared + slot * k_bytes;
    Base::zero(s);
    Base::template add_dots<0, q_tiles>(s, k);
    if constexpr (Spec::tangent_of_k) Base::template add_dots<1, 1>(s, k + k_tangent());
  }
  LUATTN_FN float score_at(const Scores &s, int of, int r, int j) { return s[of][j / 2][Fragment::element(r, j % 2)]; }

  __device__ __forceinline__ void rescale(const Dual<float> (&scale)[rows]) {
    if constexpr (Spec::has_rescale) {
      if (!__any_sync(0xffffffffu, scale[0].x != 1.f || scale[1].x != 1.f || scale[0].d != 0.f || scale[1].d != 0.f))
        return;
      if constexpr (has_sums) scale_out<v_blocks, v_blocks>(scale[0].x, scale[1].x);
      if constexpr (Spec::has_rescale_tangent) add_scaled_out<0, v_blocks, v_blocks>(scale[0].d, scale[1].d);
      scale_out<0, v_blocks>(scale[0].x, scale[1].x);
    }
  }
  __device__ __forceinline__ void drop(int kv0, float (&x)[rows][cols], float (&xt)[rows][cols]) const {
    const auto kept = DroppedBlocks<Config, Fragment, false, tile_n / 16>::draw(
        Base::dropout, q_tile * tile_m + warp_row + Base::dropout.first_q(p, site),
        kv0 + Base::dropout.first_kv(p, site), lane);
#pragma unroll
    for (int j = 0; j < cols; ++j)
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const bool keeps = kept.get(j, r);
        x[r][j] = keeps ? x[r][j] : 0.f, xt[r][j] = keeps ? xt[r][j] : 0.f;
      }
  }

  // Adds P V to A, and P' V + P V' to B.
  __device__ __forceinline__ void add_values(const float (&x)[rows][cols], const float (&xt)[rows][cols], int slot) {
    const LanePointer<Base::dim_v, false> pointer{u32(lane)};
    const u32 tile = v_shared + slot * v_bytes;
#pragma unroll
    for (int step = 0; step < tile_n / 16; ++step) {
      round_probs<Elem, 0>(x[0] + step * 4, x[1] + step * 4);
      if constexpr (Spec::has_prob_tangent) round_probs<Elem, 1>(xt[0] + step * 4, xt[1] + step * 4);
      add_products<0>(pointer, tile, step * 16);
    }
  }
  template <int N>
  LUATTN_FN void add_products(const LanePointer<Base::dim_v, false> &pointer, u32 tile, int row) {
    if constexpr (N < v_blocks) {
      add_values_16<Elem, Spec::has_prob_tangent ? 2 : 1, N, v_blocks>(pointer.at(tile, row, N * 16));
      if constexpr (Spec::tangent_of_v)
        add_values_16<Elem, 1, N + v_blocks, v_blocks>(pointer.at(tile + v_tangent(), row, N * 16));
      add_products<N + 1>(pointer, tile, row);
    }
  }

  // Turns S and S' into P and P', and finds the factors for what has been summed.
  __device__ __forceinline__ void step(const Scores &s, int kv0, bool masked, float (&x)[rows][cols],
                                       float (&xt)[rows][cols], Dual<float> (&scale)[rows]) {
    const float unit = float(p.scale);
    const auto tangent_of = [&](int r, int j) { return has_dots ? score_at(s, 1, r, j) : 0.f; };
    online.score(
        p, site, head, row, [&](int r, int j) { return Dual<float>{score_at(s, 0, r, j), unit * tangent_of(r, j)}; },
        [&](int r) { return Base::position(r, lane); }, [&](int j) { return Base::column(kv0, j); }, x, xt);
    KeepBits<cols> keep[rows];
    if (masked) {
      Base::find_kept(kv0, keep);
      Base::mask(keep, x);
      if constexpr (by_inf) online.kept.bits |= online.kept_rows(keep);
    } else {
      online.kept.bits = online.all;
    }
    centres.take_off(unit, tangent_of, x, xt);
    if (Spec::mask_by_inf && masked) {
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int j = 0; j < cols; ++j) xt[r][j] = x[r][j] == -infinity<float>() ? 0.f : xt[r][j];
    }
    if (by_inf || !masked)
      online.step_by_inf(p, site, head, row, x, xt, scale);
    else
      online.template step<true>(p, site, head, row, x, xt, keep, scale);
  }
  __device__ __forceinline__ void absorb(const Scores &s, Tile tile, int slot) {
    float x[rows][cols], xt[rows][cols];
    Dual<float> scale[rows];
    const int kv0 = tile.index * tile_n;
    step(s, kv0, __any_sync(0xffffffffu, tile.masked), x, xt, scale);  // the vote: as in fwd_sm80.cuh
    rescale(scale);
    if constexpr (Drops::any) drop(kv0, x, xt);
    add_values(x, xt, slot);
  }

  // One barrier a tile: after it the tile has arrived, and the other stage is free.
  __device__ __forceinline__ void run() {
    KvTilesOf<Spec, SequenceOf<Config>, tile_m, tile_n> walk{p, site, q_tile};
    Tile tile = walk.next(p, site);
    int slot = 0;
    begin();
    load_q();
    load(tile, slot);
    Base::keep_q();
#pragma unroll 1
    while (tile.valid()) {
      const bool work = Base::has_work(tile);
      cp_async_wait<0>();
      __syncthreads();
      const Tile next = walk.next(p, site);
      load(next, slot ^ 1);
      if (work) {
        Scores s;
        dots(s, slot);
        absorb(s, tile, slot);
      }
      slot ^= 1;
      tile = next;
    }
  }

  // ---- finish ----

  __device__ __forceinline__ void finish() {
    using Out = OutOf<Config>;
    const LuattnTangents &to = tangents_of(p);
    DualOut<rows> out;
    online.finish();
    out.template find<Spec, Drops>(p, site, head, row, online, centres);
    Base::template write_output<0>(from_channel<Out>(p.tensors.o), out.of_o);
    if (to.o.data != nullptr) {
      scale_out<v_blocks, v_blocks>(out.of_b[0], out.of_b[1]);
      add_scaled_out<0, v_blocks, v_blocks>(out.of_a[0], out.of_a[1]);
      Base::template write_output<v_tiles>(from_channel<Out>(to.o), out.of_kept);
    }
    const int mine = Fragment::lane_in_row(lane), r = mine % 2;
    const Position at = Base::position(r, lane);
    const typename Spec::Row my_row = r == 0 ? row[0] : row[1];
    const typename Spec::State state = r == 0 ? online.state[0] : online.state[1],
                               tangent = r == 0 ? online.tangent[0] : online.tangent[1];
    if (channel == 0 && mine < rows && site.has_query(p, at))
      write_dual_numbers<Spec>(p, site, head, my_row, state, tangent, at, online.kept[r]);
    cp_async_wait<0>();  // a block without tiles has not waited for Q
  }
};

template <class Spec, class Config>
LUATTN_FN void fwd_jvp_sm80(const TangentParams &p, void *shared) {
  using Kernel = ForwardJvpSm80<Spec, ValueConfig<Config>>;
  constexpr int at_once = ValueConfig<Config>::head_dim_v;
  const BlockSite block = BlockSite::of_block<Spec::has_tile_bits>(p);
  declare_out();
  declare_weights();
#pragma unroll 1
  for (int channel = 0; channel < Config::head_dim_v; channel += at_once) {
    Kernel kernel(p, shared_address(shared), block, channel);
    if (kernel.site.packed && !kernel.site.has_query(p, kernel.q_tile * Config::tile_m)) return;  // as in fwd_simt
    kernel.run();
    kernel.finish();
    if constexpr (at_once < Config::head_dim_v) __syncthreads();  // Q and a tile may still be read
  }
}
