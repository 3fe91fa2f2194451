// work/sequence.cuh: one head of one batch entry: its lengths, and where its rows lie in tensors, in arrays
// with one number per row, and for TMA. Positions are the entry's own, and begin at 0.
//
//   DenseSequence    entries have equal lengths, and tensors a batch axis
//   PackedSequence   entries follow one another along the position axis (LuattnPacked)
//
// Nothing past an entry's end is read or written: by TMA because the descriptor ends there, elsewhere because
// copies compare positions with the entry's lengths. Hooks see the Site that a sequence is, never where its
// rows lie.
#pragma once
#include "arch/tensor.cuh"
#include "ops/hook_types.cuh"

// TMA coordinates of a box of rows: along the descriptor's position axis, and along its last axis.
struct RowBox {
  int row, entry;
};

struct DenseSequence : Site {
  using Params = LuattnParams;
  enum : bool { packed = false };
  DenseSequence() = default;
  __device__ __forceinline__ DenseSequence(const LuattnParams &p, int b, int h)
      : Site{b, h, p.shape.q_len, p.shape.kv_len} {}

  // The row of a position in a tensor with an axis of queries, and in one with an axis of keys.
  template <class Elem>
  __device__ __forceinline__ Elem *q_row(const LuattnTensor &t, int position) const {
    return static_cast<Elem *>(t.data) + b * t.batch + h * t.head + position * t.seq;
  }
  template <class Elem>
  __device__ __forceinline__ Elem *kv_row(const LuattnTensor &t, int h_kv, int position) const {
    return static_cast<Elem *>(t.data) + b * t.batch + h_kv * t.head + position * t.seq;
  }
  // Index of a query in an array [batch][heads][q_len], and the array's size.
  __device__ __forceinline__ i64 q_index(const LuattnParams &p, int position) const {
    return (i64(b) * p.shape.heads + h) * q_len + position;
  }
  __device__ __forceinline__ i64 q_rows(const LuattnParams &p) const {
    return i64(p.shape.batch) * p.shape.heads * q_len;
  }

  __device__ __forceinline__ RowBox q_box(const LuattnParams &, int position) const { return {position, b}; }
  __device__ __forceinline__ RowBox kv_box(const LuattnParams &, int position) const { return {position, b}; }
};

struct PackedSequence : Site {
  using Params = LuattnPackedParams;
  enum : bool { packed = true };
  int first_q, first_kv;

  PackedSequence() = default;
  __device__ __forceinline__ PackedSequence(const LuattnParams &p, int entry, int head)
      : Site{entry, head, 0, 0}, first_q(of(p).cu_seqlens_q[entry]), first_kv(of(p).cu_seqlens_k[entry]) {
    // If an entry is longer than its declared maximum, only its first rows: the grid and descriptors end
    // there.
    q_len = min(of(p).cu_seqlens_q[entry + 1] - first_q, p.shape.q_len);
    kv_len = min(of(p).cu_seqlens_k[entry + 1] - first_kv, p.shape.kv_len);
  }

  template <class Elem>
  __device__ __forceinline__ Elem *q_row(const LuattnTensor &t, int position) const {
    return row_of<Elem>(t, 0, h, first_q + position);
  }
  template <class Elem>
  __device__ __forceinline__ Elem *kv_row(const LuattnTensor &t, int h_kv, int position) const {
    return row_of<Elem>(t, 0, h_kv, first_kv + position);
  }
  // Index in an array [heads][total_q].
  __device__ __forceinline__ i64 q_index(const LuattnParams &p, int position) const {
    return i64(h) * of(p).total_q + first_q + position;
  }
  __device__ __forceinline__ i64 q_rows(const LuattnParams &p) const {
    return i64(p.shape.heads) * of(p).total_q;
  }

  // The descriptor's position axis is as long as the longest entry, and its last axis also steps by rows
  // (runtime/tma_descriptors.c). A box starts as far before the end of the position axis as rows remain in
  // the entry, so that TMA clips it at the entry's end; the coordinate on the last axis moves it to its
  // place.
  __device__ __forceinline__ RowBox q_box(const LuattnParams &p, int position) const {
    return {p.shape.q_len - q_len + position, first_q + q_len};
  }
  __device__ __forceinline__ RowBox kv_box(const LuattnParams &p, int position) const {
    return {p.shape.kv_len - kv_len + position, first_kv + kv_len};
  }

 private:
  LUATTN_FN const LuattnPacked &of(const LuattnParams &p) {
    return static_cast<const LuattnPackedParams &>(p).packed;
  }
};

template <bool Packed>
struct SequenceKind {
  using type = DenseSequence;
};
template <>
struct SequenceKind<true> {
  using type = PackedSequence;
};
template <class Config>
using SequenceOf = typename SequenceKind<Config::packed>::type;

// The parameters that kernels take.
template <bool Offsets, class Params>
struct ParamsKind {
  using type = Params;
};
template <class Params>
struct ParamsKind<true, Params> {
  using type = LuattnOffsetParams;
};
template <class Config>
using ParamsOf = typename ParamsKind<Config::offsets, typename SequenceOf<Config>::Params>::type;
