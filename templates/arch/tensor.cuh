// arch/tensor.cuh: addresses in the tensors of LuattnParams, and vector accesses to them.
#pragma once
#include "arch/types.cuh"
#include "abi/params.h"

template <class Elem>
LUATTN_FN Elem *row_of(const LuattnTensor &t, int b, int h, int position) {
  return static_cast<Elem *>(t.data) + b * t.batch + h * t.head + position * t.seq;
}
// Returns an address in a workspace array [batch][heads][len][Width].
template <int Width, class Real>
LUATTN_FN Real *acc_row(void *acc, int heads, int len, int b, int h, int position) {
  return static_cast<Real *>(acc) + ((i64(b) * heads + h) * len + position) * Width;
}
template <class Elem>
LUATTN_FN bool allows_16_bytes(const LuattnTensor &t) {
  const u64 strides = u64(t.batch) | u64(t.head) | u64(t.seq);
  return ((u64(t.data) | strides * sizeof(Elem)) & 15) == 0;
}
LUATTN_FN bool allows_16_bytes(const void *p) { return (u64(p) & 15) == 0; }

// Elements per access of the small kernels. The runtime refuses tensors of 16-bit elements that do not allow
// 16 bytes, and their head dims are multiples of 8.
template <class Elem>
inline constexpr int per_access = sizeof(Elem) == 2 ? 8 : 1;

// Loads N elements, 16 bytes at a time if they fill 16 bytes.
template <class T, int N>
struct Pack {
  static constexpr int each = N * sizeof(T) < 16 ? N : 16 / int(sizeof(T));
  struct alignas(sizeof(T) * each) Part {
    T x[each];
  };
  Part part[N / each];
  __device__ __forceinline__ T &operator[](int i) { return part[i / each].x[i % each]; }
  __device__ __forceinline__ void load(const T *p) {
#pragma unroll
    for (int i = 0; i < N / each; ++i) part[i] = reinterpret_cast<const Part *>(p)[i];
  }
  // Loads data that is read once and never written meanwhile, without keeping it in the L1 cache.
  __device__ __forceinline__ void load_once(const T *p) {
    static_assert(sizeof(Part) == 16);
#pragma unroll
    for (int i = 0; i < N / each; ++i) {
      alignas(16) u32 x[4];
      asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
          : "l"(__cvta_generic_to_global(p + i * each)));
      part[i] = *reinterpret_cast<const Part *>(x);
    }
  }
  __device__ __forceinline__ void store(T *p) const {
#pragma unroll
    for (int i = 0; i < N / each; ++i) reinterpret_cast<Part *>(p)[i] = part[i];
  }
};

// The row-major layout of a head's accumulator, q_len x Dim. sink/dq_acc.cuh has other layouts.
struct PlainRows {
  static constexpr bool zeroes = false;
  static constexpr bool writes = false;
  static constexpr int neighbours = 1;  // that `load` reads at least
  LUATTN_FN int head_rows(int len) { return len; }
  template <int Dim, int N, class Real>
  LUATTN_FN void load(Pack<Real, N> &x, const Real *head, int, int row, int d) {
    x.load(head + i64(row) * Dim + d);
  }
};
