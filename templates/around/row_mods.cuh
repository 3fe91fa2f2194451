// around/row_mods.cuh: input mods that read x[..], other elements of their row.
//
// A thread has a vector of channels, and also loads the vectors that these channels read. Other threads of
// the warp load the same vectors, so they are in the L1 cache. What a mod reads of inputs is usually the same
// for all heads, such as the sines of a rotary embedding. So a thread computes one position of several heads,
// and the compiler reads the inputs once.
#pragma once
#include "around/around.cuh"
#include "arch/tensor.cuh"

struct NoRow {};
template <class Spec, int Which>
LUATTN_FN auto row_map() {
  if constexpr (Which == WHICH_Q && QueryReadsRow<Spec>)
    return typename Spec::QueryRow();
  else if constexpr (Which == WHICH_K && KeyReadsRow<Spec>)
    return typename Spec::KeyRow();
  else if constexpr (Which == WHICH_V && ValueReadsRow<Spec>)
    return typename Spec::ValueRow();
  else
    return NoRow();
}
template <class Spec, int Which>
using RowMapOf = decltype(row_map<Spec, Which>());
template <class Spec, int Which>
inline constexpr bool reads_row = RowMap<RowMapOf<Spec, Which>>;

// The number of heads that a thread computes at once. Their values must fit into registers.
template <class Row>
inline constexpr int row_heads = Row::count * Row::width <= 16 ? 4 : 1;

// The share of a block in the grid of luattn_mod: instead of aux_tile positions of one head, a part of them
// for up to Heads heads.
struct RowShare {
  int head, heads, first, count;
};
template <int Heads>
LUATTN_FN RowShare row_share(int heads, int end) {
  const int y = int(blockIdx.y), head = y / Heads * Heads, n = min_of(Heads, heads - head);
  const int each = ceil_div(aux_tile, n), tile = int(blockIdx.x) * aux_tile, first = tile + (y - head) * each;
  return {head, n, first, min_of(first + each, min_of(tile + aux_tile, end)) - first};
}

// Calls body(position, vector) for every vector of the share's positions, spread over the threads, that exist in `rows`.
template <int Vectors, class Rows, class Body>
LUATTN_FN void for_each_vector(const RowShare &share, const Rows &rows, const Body &body) {
#pragma unroll 1
  for (int i = int(threadIdx.x); i < share.count * Vectors; i += aux_threads)
    if (Rows::is_line || rows.has(share.first + i / Vectors)) body(share.first + i / Vectors, i % Vectors);
}

// A vector of a row, and the vectors that its channels read.
template <class Row, class T>
struct RowVectors {
  static constexpr int width = Row::width;
  Pack<T, width> own, seen[Row::count];

  // load(pack, channel) loads the vector that begins there.
  template <class Load>
  __device__ __forceinline__ void load(int v, const Load &load) {
    load(own, v * width);
#pragma unroll
    for (int t = 0; t < Row::count; ++t) load(seen[t], Row::vector(t, v) * width);
  }
  // Turns to the vector that is seen, if that one sees this one.
  __device__ __forceinline__ void swap() {
    const Pack<T, width> before = own;
    own = seen[0];
    seen[0] = before;
  }
  __device__ __forceinline__ T at(int table, int j) { return seen[table][Row::lane(table, j)]; }
};

// What channel j of vector v reads: gradient(table) is what comes in there.
template <class Row, class Real, class T, class Gradient>
LUATTN_FN RowValues<Real, Row::count> row_values(RowVectors<Row, T> &x, int v, int j, const Gradient &gradient) {
  RowValues<Real, Row::count> row;
#pragma unroll
  for (int t = 0; t < Row::count; ++t) {
    row.x[t] = to_real(x.at(t, j)), row.g[t] = gradient(t);
    row.d[t] = Row::vector(t, v) * Row::width + Row::lane(t, j);
  }
  return row;
}

template <class Spec, int Which, class Real, class Values>
LUATTN_FN Real apply_row_mod(const LuattnParams &p, const Site &s, Real x, const Values &row, int i, int d) {
  if constexpr (Which == WHICH_Q)
    return Spec::query_mod(p, s, x, row, i, d);
  else if constexpr (Which == WHICH_K)
    return Spec::key_mod(p, s, x, row, i, d);
  else
    return Spec::value_mod(p, s, x, row, i, d);
}

template <class Spec, class Elem, int Which, int Width, class Sequence>
LUATTN_FN void mod_rows(const LuattnParams &p, const Sequence &entry, const LuattnTensor &src,
                        const LuattnTensor &dst) {
  using Row = RowMapOf<Spec, Which>;
  using Real = typename Spec::Real;
  constexpr int n = Row::width;
  constexpr int together = row_heads<Row>;
  const RowShare share = row_share<together>(heads_of<Which, Sequence>(p), end_of<Which>(p, entry));
  for_each_vector<Width / n>(share, rows_of<Which, const Elem>(p, entry, src), [&](int i, int v) {
    RowVectors<Row, Elem> x[together];
#pragma unroll
    for (int h = 0; h < together; ++h)
      if (h < share.heads)
        x[h].load(v, [&](Pack<Elem, n> &to, int d) {
          to.load(rows_of<Which, const Elem>(p, entry.of_head(p, share.head + h), src).row(i) + d);
        });
#pragma unroll
    for (int h = 0; h < together; ++h) {
      if (h >= share.heads) break;
      const Sequence site = entry.of_head(p, share.head + h);
      Pack<Elem, n> y;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const auto row = row_values<Row, Real>(x[h], v, j, [](int) { return Real(0); });
        y[j] = from_real<Elem>(apply_row_mod<Spec, Which>(p, site, to_real(x[h].own[j]), row, i, v * n + j));
      }
      y.store(rows_of<Which, Elem>(p, site, dst).row(i) + v * n);
    }
  });
}
