// linear/around/linear_rows.cuh: rows of q, k and v, or of their gradients, a warp for each, around the main kernels of
// linear attention. What a row's hook is, is said in contract/linear.cuh (RowHook).
#pragma once
#include "arch/warp.cuh"
#include "contract/linear.cuh"
#include "ops/math.cuh"
#include "source/cp_async_tile.cuh"

// Token number `row` of all entries, [entries][tokens] or packed.
struct TokenPlace {
  int entry, t, first;
  bool none;  // of no entry, or of one that is left alone
};
template <class Config>
LUATTN_FN i64 tokens_of_all(const LuattnLinearParams &p) {
  return Config::packed ? i64(p.tokens) : i64(p.entries) * p.tokens;
}
template <class Config>
LUATTN_FN TokenPlace place_of_token(const LuattnLinearParams &p, i64 row) {
  TokenPlace at{0, 0, 0, false};
  if constexpr (Config::packed) {
    int last = p.entries;  // the last entry that begins at the row or before it
    while (at.entry + 1 < last) {
      const int middle = (at.entry + last) / 2;
      if (__ldg(p.cu_seqlens + middle) <= row)
        at.entry = middle;
      else
        last = middle;
    }
    if (p.entries == 0) return {0, int(row), 0, true};
    at.first = max_of(__ldg(p.cu_seqlens + at.entry), 0);
    at.t = int(row) - at.first;
    at.none = row < at.first || row >= __ldg(p.cu_seqlens + at.entry + 1);
  } else {
    at.entry = row >> 32 == 0 ? int(u32(row) / u32(p.tokens)) : int(row / p.tokens);
    at.t = int(row - i64(at.entry) * p.tokens);
  }
  if (p.state_rows != nullptr) at.none |= __ldg(p.state_rows + at.entry) < 0;
  return at;
}
template <class Config, class Elem>
LUATTN_FN Elem *row_of(const LuattnTensor &t, const TokenPlace &at, int head) {
  return static_cast<Elem *>(t.data) + (Config::packed ? 0 : at.entry * t.batch) + (at.first + at.t) * t.seq +
         head * t.head;
}

// A lane's elements of a row: four neighbours at a time.
template <class Elem, int Dim>
struct LaneRow {
  static constexpr int vectors = ceil_div(Dim, 128), count = 4 * vectors;
  static_assert(Dim % 4 == 0);
  float x[count];

  LUATTN_FN int channel(int i) { return (i / 4 * 32 + int(threadIdx.x % 32)) * 4 + i % 4; }
  LUATTN_FN bool has(int i) { return Dim % 128 == 0 || channel(i) < Dim; }
  __device__ __forceinline__ void load(const Elem *row) {
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      uint2 two = {0, 0};
      if (has(4 * v)) two = __ldg(reinterpret_cast<const uint2 *>(row + channel(4 * v)));
      const u32 of[2] = {two.x, two.y};
#pragma unroll
      for (int i = 0; i < 4; ++i) x[4 * v + i] = to_real(Elem{u16(i % 2 == 0 ? of[i / 2] : of[i / 2] >> 16)});
    }
  }
  __device__ __forceinline__ void store(Elem *row) const {
#pragma unroll
    for (int v = 0; v < vectors; ++v)
      if (has(4 * v))
        *reinterpret_cast<uint2 *>(row + channel(4 * v)) = {pack<Elem>(x[4 * v], x[4 * v + 1]),
                                                            pack<Elem>(x[4 * v + 2], x[4 * v + 3])};
  }
};

// The hook's sums over the row's channels.
template <class Hook, class Row>
LUATTN_FN void find_sums(const LuattnLinearParams &p, const LinearSite &s, const Row &x, int t,
                         float (&red)[Hook::sums + 1]) {
#pragma unroll
  for (int i = 0; i <= Hook::sums; ++i) red[i] = 0;
  if constexpr (Hook::sums > 0) {
#pragma unroll
    for (int i = 0; i < Row::count; ++i)
      if (Row::has(i)) Hook::sum(p, s, x.x[i], t, Row::channel(i), red);
    sum_over_warp(red);
  }
}
