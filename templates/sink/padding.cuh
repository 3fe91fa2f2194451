// sink/padding.cuh: writes the rows of packed outputs that no sequence has: behind a sequence's used rows, behind the
// longest length that the call has tiles for, and behind the last sequence. O and gradients of q, k and v get 0, lse
// -inf, saved numbers 0. Blocks do so once their own work is done, or while it waits (work/padding_rows.cuh).
#pragma once
#include "arch/tensor.cuh"
#include "contract/contract.cuh"
#include "ops/tangent_params.cuh"
#include "work/padding_rows.cuh"

// Threads of each block take part.
template <class Config, int Threads>
struct Padding {
  using Sequence = SequenceOf<Config>;
  const LuattnParams &p;
  const int thread;

  template <class T, int Width>
  __device__ __forceinline__ void zero_row(const LuattnTensor &t, int heads, int row) const {
    constexpr int n = per_access<typename Config::Elem>, vectors = Width / n;
    static_assert(Width % n == 0);
    if (t.data == nullptr) return;
    Pack<T, n> zero = {};
#pragma unroll 1
    for (int i = thread; i < heads * vectors; i += Threads) {
      const int h = i / vectors;
      zero.store(row_of<T>(t, 0, h, row) + (i - h * vectors) * n);
    }
  }

  template <class Spec>
  __device__ __forceinline__ void forward() const {
    using Real = typename Spec::Real;
    const int heads = Sequence::heads(p);
    each_padding_row<Sequence, false>(p, [&](int row) {
      zero_row<OutOf<Config>, Config::head_dim_v>(p.tensors.o, heads, row);
#pragma unroll 1
      for (int h = thread; h < heads; h += Threads) {
        if constexpr (Spec::has_lse)
          if (p.tensors.lse.data != nullptr) *row_of<Real>(p.tensors.lse, 0, h, row) = -infinity<Real>();
        if constexpr (Spec::num_saved > 0) {
          Real *saved = static_cast<Real *>(p.tensors.saved);
          const i64 total = Sequence::total_q(p);
#pragma unroll 1
          for (int i = 0; i < Spec::num_saved && saved != nullptr; ++i) saved[(i64(i) * heads + h) * total + row] = 0;
        }
      }
    });
  }

  // Of a forward kernel with tangents: those of O and lse get 0.
  template <class Spec>
  __device__ __forceinline__ void tangents(const LuattnTangents &to) const {
    using Real = typename Spec::Real;
    const int heads = Sequence::heads(p);
    each_padding_row<Sequence, false>(p, [&](int row) {
      zero_row<OutOf<Config>, Config::head_dim_v>(to.o, heads, row);
#pragma unroll 1
      for (int h = thread; h < heads && to.lse.data != nullptr; h += Threads)
        *row_of<Real>(to.lse, 0, h, row) = Real(0);
    });
  }

  __device__ __forceinline__ void backward() const {
    using Grad = GradOf<Config>;
    each_padding_row<Sequence, false>(
        p, [&](int row) { zero_row<Grad, Config::head_dim>(p.tensors.dq, Sequence::heads(p), row); });
    each_padding_row<Sequence, true>(p, [&](int row) {
      const int heads = Sequence::heads(p) / Sequence::group(p);
      zero_row<Grad, Config::head_dim>(p.tensors.dk, heads, row);
      zero_row<Grad, Config::head_dim_v>(p.tensors.dv, heads, row);
    });
  }
};

// Whether there is a sequence, and one that may have queries. Where there is none, a launch has a block that writes
// padding alone.
template <class Config>
LUATTN_FN bool has_sequences(const LuattnParams &p) {
  if constexpr (SequenceOf<Config>::packed)
    return SequenceOf<Config>::batch(p) > 0;
  else
    return true;
}
template <class Config>
LUATTN_FN bool has_queries(const LuattnParams &p) {
  if constexpr (SequenceOf<Config>::packed)
    return has_sequences<Config>(p) && SequenceOf<Config>::most_queries(p) > 0;
  else
    return true;
}

// Called by all threads of a block of forward.
template <class Spec, class Config>
LUATTN_FN void write_padding(const LuattnParams &p) {
  if constexpr (SequenceOf<Config>::packed)
    Padding<Config, Config::threads>{p, int(threadIdx.x)}.template forward<Spec>();
}
template <class Spec, class Config>
LUATTN_FN void write_tangent_padding(const TangentParams &p) {
  if constexpr (SequenceOf<Config>::packed)
    Padding<Config, Config::threads>{p, int(threadIdx.x)}.template tangents<Spec>(p.tangents);
}
// By one warp.
template <class Spec, class Config>
LUATTN_FN void write_tangent_padding_by_warp(const TangentParams &p) {
  if constexpr (SequenceOf<Config>::packed)
    Padding<Config, 32>{p, int(threadIdx.x) % 32}.template tangents<Spec>(p.tangents);
}
template <class Spec, class Config>
LUATTN_FN void write_padding_by_warp(const LuattnParams &p) {
  if constexpr (SequenceOf<Config>::packed) Padding<Config, 32>{p, int(threadIdx.x) % 32}.template forward<Spec>();
}
// By all threads of a block of a small kernel of backward.
template <class Config, int Threads>
LUATTN_FN void write_gradient_padding(const LuattnParams &p) {
  if constexpr (SequenceOf<Config>::packed) Padding<Config, Threads>{p, int(threadIdx.x)}.backward();
}
