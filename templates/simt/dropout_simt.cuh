// simt/dropout_simt.cuh: which of a thread's scores dropout keeps, in the simt family.
//
// A warp has two rows of 16 lanes. Each 16 of their columns meet two patches (abi/philox.h), so the warp's
// lanes draw for sixteen elements of a thread at a time, and shuffles bring each lane what it needs.
#pragma once
#include "score/dropout.cuh"
#include "simt/tile_products.cuh"

template <class Spec, class Config>
struct DroppedSimt {
  using T = Simt<Spec, Config>;
  static constexpr int elements = T::rows * T::cols, words = ceil_div(elements, 32);
  u32 bits[words];

  __device__ __forceinline__ bool get(int r, int c) const {
    const int i = r * T::cols + c;
    return (bits[words == 1 ? 0 : i / 32] >> i % 32 & 1u) != 0;
  }
  // The factor of an element's weight.
  __device__ __forceinline__ typename Spec::Real factor(int r, int c) const {
    return get(r, c) ? typename Spec::Real(Dropout<Config>::factor) : typename Spec::Real(0);
  }

  // q0 and kv0 are multiples of 16.
  template <class Sequence>
  LUATTN_FN DroppedSimt draw(const Dropout<Config> &from, const T &t, const LuattnParams &p, const Sequence &site,
                             int q0, int kv0) {
    DroppedSimt made;
    if constexpr (!Sequence::is_line) {
#pragma unroll
      for (int w = 0; w < words; ++w) made.bits[w] = of_places(from, t, p, q0, kv0, w * 32);
      return made;
    }
    const int q = q0 + from.first_q(p, site), kv = kv0 + from.first_kv(p, site);
    const bool whole = ((q | kv) & 15) == 0;
#pragma unroll
    for (int w = 0; w < words; ++w) {
      made.bits[w] = 0;
#pragma unroll 1
      for (int first = w * 32; first < (w + 1) * 32 && first < elements; first += 16)
        made.bits[w] |= (whole ? sixteen(from, t, q, kv, first) : each_of_sixteen(from, t, q, kv, first)) << first % 32;
    }
    return made;
  }

 private:
  // Elements `first` .. `first` + 31 of a box: each is drawn alone.
  LUATTN_FN u32 of_places(const Dropout<Config> &from, const T &t, const LuattnParams &p, int q0, int kv0, int first) {
    u32 kept = 0;
#ifdef LUATTN_GRID
#pragma unroll 1
    for (int i = first; i < first + 32 && i < elements; ++i)
      kept |= u32(from.keeps(GridSideOf<false>::drawn_at(p, q0 + t.row_at(i / T::cols)),
                             GridSideOf<true>::drawn_at(p, kv0 + t.col_at(i % T::cols))))
              << (i - first);
#endif
    return kept;
  }
  // Elements `first` .. `first` + 15.
  LUATTN_FN u32 sixteen(const Dropout<Config> &from, const T &t, int q, int kv, int first) {
    const int lane = int(threadIdx.x) % 32, of = first + lane / 2,
              row = q + (t.group & ~1) + T::groups * (of / T::cols);
    const u32 drawn = from.draw(dropout_q_patch(row), u32((kv >> 4) + of % T::cols) * 4 + u32(lane % 2 * 2));
    u32 kept = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const u32 patch = __shfl_sync(0xffffffffu, drawn, i * 2 + t.lane % 8 / 4);
      kept |= (patch >> dropout_bit(t.row_at((first + i) / T::cols), t.lane) & 1u) << i;
    }
    return kept;
  }
  // The same where an offset is no multiple of 16.
  LUATTN_FN u32 each_of_sixteen(const Dropout<Config> &from, const T &t, int q, int kv, int first) {
    u32 kept = 0;
#pragma unroll 1
    for (int i = 0; i < 16; ++i)
      kept |= u32(from.keeps(q + t.row_at((first + i) / T::cols), kv + t.col_at((first + i) % T::cols))) << i;
    return kept;
  }
};
