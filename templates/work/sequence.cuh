// work/sequence.cuh: one head of one entry of the batch: its lengths, and where its rows lie in tensors, in
// arrays that have a number a row, and to TMA. Positions are the entry's own, and begin at 0.
//
// Hooks see the Site that a sequence is, never where its rows lie.
#pragma once
#include "arch/tensor.cuh"
#include "ops/hook_types.cuh"

// TMA coordinates of a box of rows: along the descriptor's position axis, and along its last axis.
struct RowBox {
  int row, entry;
};

struct DenseSequence : Site {
  DenseSequence() = default;
  __device__ __forceinline__ DenseSequence(const LuattnParams &p, int b, int h)
      : Site{b, h, p.q_len, p.kv_len} {}

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
    return (i64(b) * p.heads + h) * q_len + position;
  }
  __device__ __forceinline__ i64 q_rows(const LuattnParams &p) const {
    return i64(p.batch) * p.heads * q_len;
  }

  __device__ __forceinline__ RowBox q_box(const LuattnParams &, int position) const { return {position, b}; }
  __device__ __forceinline__ RowBox kv_box(const LuattnParams &, int position) const { return {position, b}; }
};

template <class Config>
using SequenceOf = DenseSequence;
