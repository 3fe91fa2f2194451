// simt/weights_simt.cuh: writes the weights of V, P, for tests and pictures: those without dropout, negative where
// dropout drops them, 0 where the mask does. Of any element type; it is correct, not fast.
//
// luattn_weights: grid (ceil(q_len / tile_m), heads, batch). A block owns the rows of a q tile and runs the online
// function over their kv tiles. A later step scales what the row has, as it would scale O, and so does the epilogue.
// Each element of P has one thread, which alone reads and writes it.
//
// Config: elem of any type; the rest as for simt/fwd_simt.cuh. Dynamic shared memory: a table of distance terms.
#pragma once
#include "simt/fwd_simt.cuh"

// Computes the dot products of a thread's elements from memory. Rows and columns past the ends repeat the last ones.
template <class Spec, class Config, class Sequence>
LUATTN_FN void dot_from_memory(const Simt<Spec, Config> &t, const LuattnParams &p, const Sequence &site, int h_kv,
                               int q0, int kv0,
                               typename Spec::Real (&s)[Simt<Spec, Config>::rows][Simt<Spec, Config>::cols]) {
  using T = Simt<Spec, Config>;
  using Real = typename Spec::Real;
  using Elem = typename Config::Elem;
  const Elem *q[T::rows], *k[T::cols];
#pragma unroll
  for (int r = 0; r < T::rows; ++r)
    q[r] = site.template q_row<const Elem>(p, p.tensors.q, site.clamped_query(p, q0 + t.row_at(r)));
#pragma unroll
  for (int c = 0; c < T::cols; ++c) {
    k[c] = site.template kv_row<const Elem>(p, p.tensors.k, h_kv, site.clamped_key(p, kv0 + t.col_at(c)));
#pragma unroll
    for (int r = 0; r < T::rows; ++r) s[r][c] = Real(0);
  }
#pragma unroll 1
  for (int d = 0; d < Config::head_dim; ++d) {
    Real x[T::rows];
#pragma unroll
    for (int r = 0; r < T::rows; ++r) x[r] = to_real(q[r][d]);
#pragma unroll
    for (int c = 0; c < T::cols; ++c) {
      const Real y = to_real(k[c][d]);
#pragma unroll
      for (int r = 0; r < T::rows; ++r) s[r][c] += x[r] * y;
    }
  }
}

// A thread's elements of the array of weights: its rows of a q tile, and columns lane, lane + 16, ..
template <class Spec, class Config>
struct WeightRows {
  using T = Simt<Spec, Config>;
  using Real = typename Spec::Real;
  Real *first;  // of the head's first row
  i64 stride;
  int q0, rows, columns;  // of the array, which has those of the longest entry
  const LuattnParams &p;

  __device__ __forceinline__ WeightRows(const LuattnParams &p, const LuattnWeights &to, const BlockSite &at, int q0)
      : first(static_cast<Real *>(to.to.data) + at.b * to.to.batch + at.h * to.to.head),
        stride(to.to.seq),
        q0(q0),
        rows(to.rows),
        columns(to.columns),
        p(p) {}

  __device__ __forceinline__ void clear(const T &t) const {
    each(t, [](int, Real &x) { x = Real(0); });
  }
  // What is 0 stays so: a row that has nothing yet has no factor that means anything.
  __device__ __forceinline__ void scale(const T &t, const Real (&factor)[T::rows]) const {
    each(t, [&](int r, Real &x) {
      if (x != Real(0)) x *= factor[r];
    });
  }
  __device__ __forceinline__ void set(const T &t, int r, int column, Real x) const {
    const int row = place<false>(q0 + t.row_at(r)), at = place<true>(column);
    if (row < rows && at < columns) first[row * stride + at] = x;
  }

 private:
  // The row or column of a position, which may lie past the last one.
  template <bool Keys>
  __device__ __forceinline__ int place(int position) const {
#ifdef LUATTN_GRID
    return GridSideOf<Keys>::has(p, position) ? int(GridSideOf<Keys>::number(p, position)) : 0x7fffffff;
#else
    return position;
#endif
  }
  template <class Change>
  __device__ __forceinline__ void each(const T &t, const Change &change) const {
#pragma unroll
    for (int r = 0; r < T::rows; ++r) {
      const int row = place<false>(q0 + t.row_at(r));
      if (row >= rows) continue;
#pragma unroll 1
      for (int column = t.lane; column < columns; column += T::lanes) change(r, first[row * stride + column]);
    }
  }
};

// Writes a tile of P, negative where dropout drops it.
template <class Spec, class Config, class Sequence>
LUATTN_FN void write_weights(const Simt<Spec, Config> &t, const LuattnParams &p, const Sequence &site,
                             const Dropout<Config> &dropout, const WeightRows<Spec, Config> &to, int kv0,
                             const typename Spec::Real (&s)[Simt<Spec, Config>::rows][Simt<Spec, Config>::cols]) {
  using T = Simt<Spec, Config>;
  using Real = typename Spec::Real;
  if constexpr (Dropout<Config>::any) {
    const auto kept = DroppedSimt<Spec, Config>::draw(dropout, t, p, site, to.q0, kv0);
#pragma unroll
    for (int r = 0; r < T::rows; ++r)
#pragma unroll
      for (int c = 0; c < T::cols; ++c)
        to.set(t, r, kv0 + t.col_at(c), s[r][c] != Real(0) && !kept.get(r, c) ? -s[r][c] : s[r][c]);
  } else {
#pragma unroll
    for (int r = 0; r < T::rows; ++r)
#pragma unroll
      for (int c = 0; c < T::cols; ++c) to.set(t, r, kv0 + t.col_at(c), s[r][c]);
  }
}

template <class Config>
using WeightParamsOf = ConditionalOf<HasAxes<Config>, LuattnGridParams, LuattnWeightParams>;

template <class Spec, class Config>
LUATTN_FN void weights_simt(const WeightParamsOf<Config> &p) {
  using Real = typename Spec::Real;
  using T = Simt<Spec, Config>;
  static_assert(ForwardSpec<Spec> && !finds_places<Spec>());
  static_assert(has_shared<Config, int((T::tile_m + T::tile_n) * sizeof(Real))>());
  constexpr int rows = T::rows, cols = T::cols;
  const BlockSite block = BlockSite::of_grid<Spec::has_tile_bits>(p);
  const SequenceOf<Config> site(p, block.b, block.h);
  const int q_tile = block.q_tile, q0 = q_tile * T::tile_m;
  T t;
  WeightRows<Spec, Config> to(p, p.weights, block, q0);
  to.clear(t);
  if (!site.has_query(p, q0)) return;  // the grid is for the longest entry
  if constexpr (SequenceOf<Config>::is_line) {
    static_assert(SequenceOf<Config>::is_line, "the entry's rows are the array's first ones");
    to.rows = min_of(to.rows, site.q_len);
  }

  const typename Spec::Head head = Spec::head(p, site);
  typename Spec::Row row[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) row[r] = Spec::row(p, site, head, site.clamped_query(p, q0 + t.row_at(r)));
  OnlineRows<Spec, rows, cols, T::lanes, 1> online;
  online.init(p, site, head, row);
  Dropout<Config> dropout;
  if constexpr (Dropout<Config>::any) dropout.enter_head(p, site);
  const DistanceTable<Spec, Config> terms{t.shared};

  KvTilesOf<Spec, SequenceOf<Config>, T::tile_m, T::tile_n> walk(p, site, q_tile);
#pragma unroll 1
  for (Tile tile = walk.next(p, site); tile.valid(); tile = walk.next(p, site)) {
    const int kv0 = tile.index * T::tile_n;
    terms.fill(p, site, head, q0, kv0);
    __syncthreads();
    Real s[rows][cols], scale[rows];
    dot_from_memory(t, p, site, block.h_kv, q0, kv0, s);
    KeepBits<cols> keep[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) keep[r] = KeepBits<cols>::none();
    score_tile(t, p, site, head, row, q0, kv0, terms, s);
    if (tile.masked) mask_tile(t, p, site, head, row, q0, kv0, s, keep);
    if constexpr (Spec::mask_by_inf || Spec::mask_by_zero) {
      online.kept.bits |= tile.masked ? online.kept_rows(keep) : online.all;
      online.step_by_inf(p, site, head, row, s, scale);
    } else if (tile.masked) {
      online.template step<true>(p, site, head, row, s, keep, scale);
    } else {
      online.template step<false>(p, site, head, row, s, keep, scale);
    }
    if constexpr (Spec::has_rescale) to.scale(t, scale);
    write_weights(t, p, site, dropout, to, kv0, s);
    __syncthreads();
  }

  online.finish();
  Real factor[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r)
    factor[r] = online.kept[r] ? Spec::out_scale(p, site, head, row[r], online.state[r]) : Real(0);
  to.scale(t, factor);
}
