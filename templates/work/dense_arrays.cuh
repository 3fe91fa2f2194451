// work/dense_arrays.cuh: arrays of the workspace with as many rows for each head of each entry: those of sequences
// whose entries have equal numbers of positions, q_end(p) and kv_end(p).
#pragma once
#include "arch/tensor.cuh"
#include "work/positions.cuh"

// The first number of a row in an array, and the distance from it to the next number of the same row.
template <class Real>
struct RowNumbers {
  Real *first;
  i64 plane;
};

// Positions: a Site, and which of its positions exist.
template <class Sequence, class Positions>
struct DenseArrays : Positions {
  using Positions::b, Positions::h;
  using Positions::Positions;

  LUATTN_FN int batch(const LuattnParams &p) { return p.shape.batch; }
  // The number of query heads that read one kv head; the kv head of this query head; the first query head of
  // a kv head.
  LUATTN_FN int group(const LuattnParams &p) { return p.shape.group; }
  __device__ __forceinline__ int kv_head(const LuattnParams &p) const { return h / p.shape.group; }
  LUATTN_FN int first_head(const LuattnParams &p, int h_kv) { return h_kv * p.shape.group; }

  // The number of a head among the query heads of all entries, and the sequence of a number.
  LUATTN_FN int number(const LuattnParams &p, int b, int h) { return b * p.shape.heads + h; }
  LUATTN_FN Sequence numbered(const LuattnParams &p, int number) { return {p, 0, number}; }

  // Whether there is a row, or the group of rows that begins there, for a position in arrays of queries, and of keys; how
  // many of the `count` rows from `first` on.
  LUATTN_FN bool has_q_acc(const LuattnParams &p, int position) { return position < Sequence::q_end(p); }
  LUATTN_FN bool has_kv_acc(const LuattnParams &p, int position) { return position < Sequence::kv_end(p); }
  template <class Order>
  LUATTN_FN int q_acc_count(const LuattnParams &p, int first, int count) {
    return min_of(count, Order::head_rows(Sequence::q_end(p)) - first);
  }
  // For head h of entry b in an array [batch][heads][rows of Order]: a query's row of Width numbers, and the
  // first row of the head.
  template <class Order, int Width, class Real>
  LUATTN_FN Real *q_acc_row(const LuattnParams &p, void *const &acc, int b, int h, int position) {
    return acc_row<Width, Real>(acc, p.shape.heads, Order::head_rows(Sequence::q_end(p)), b, h, position);
  }
  template <class Order, int Width, class Real>
  LUATTN_FN Real *q_acc_head(const LuattnParams &p, void *const &acc, int b, int h) {
    const i64 rows = Order::head_rows(Sequence::q_end(p));
    return static_cast<Real *>(acc) + (i64(b) * p.shape.heads + h) * rows * Width;
  }
  // A query's numbers in an array [numbers][batch][heads][rows of Order].
  template <class Order, class Real>
  LUATTN_FN RowNumbers<Real> q_numbers(const LuattnParams &p, void *const &array, int b, int h, int position) {
    const i64 rows = Order::head_rows(Sequence::q_end(p)), plane = i64(p.shape.batch) * p.shape.heads * rows;
    return {static_cast<Real *>(array) + (i64(b) * p.shape.heads + h) * rows + position, plane};
  }
  // A query's index in one plane of such an array, and the number of rows in a plane.
  template <class Order>
  __device__ __forceinline__ i64 q_acc_index(const LuattnParams &p, int position) const {
    return (i64(b) * p.shape.heads + h) * Order::head_rows(Sequence::q_end(p)) + position;
  }
  template <class Order>
  LUATTN_FN i64 q_acc_rows(const LuattnParams &p) {
    return i64(p.shape.batch) * p.shape.heads * Order::head_rows(Sequence::q_end(p));
  }
  // The same where the caller has `rows`, Order::head_rows of the positions.
  template <class Order>
  __device__ __forceinline__ i64 q_acc_index(const LuattnParams &p, int rows, int position) const {
    return (i64(b) * p.shape.heads + h) * rows + position;
  }
  template <class Order>
  LUATTN_FN i64 q_acc_rows(const LuattnParams &p, int rows) {
    return i64(p.shape.batch) * p.shape.heads * rows;
  }
  // Index of a q tile in an array [batch][heads][q tiles].
  template <int TileM>
  LUATTN_FN i64 q_tile_index(const LuattnParams &p, int b, int h, int tile) {
    return (i64(b) * p.shape.heads + h) * ceil_div(Sequence::q_end(p), TileM) + tile;
  }
  // The row of a key of a kv head in an array [num_splits][batch][heads_kv][rows of Order].
  template <class Order, int Width, class Real>
  LUATTN_FN Real *kv_acc_row(const LuattnParams &p, void *const &acc, int split, int b, int h_kv, int position) {
    return acc_row<Width, Real>(acc, p.shape.heads_kv, Order::head_rows(Sequence::kv_end(p)), split * p.shape.batch + b,
                                h_kv, position);
  }
  // From a split's numbers to the next one's.
  template <class Order, int Width>
  LUATTN_FN i64 kv_acc_plane(const LuattnParams &p) {
    return i64(p.shape.batch) * p.shape.heads_kv * Order::head_rows(Sequence::kv_end(p)) * Width;
  }
};
