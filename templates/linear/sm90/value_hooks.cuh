// linear/sm90/value_hooks.cuh: mods of v, and what skips, in the registers of a warp that has 16 value channels by 64 tokens:
// v' as an A operand, o' as an accumulator.
#pragma once
#include "score/fragment.cuh"
#include "work/linear_work.cuh"

template <class Spec, class Config>
struct ValueHooks {
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;

  const LuattnLinearParams &p;
  const LinearChain<Config> &chain;
  const int first, lane;  // first: of the warp's value channels

  // The token of column number j, and the value channel of row number r.
  __device__ __forceinline__ int token(int chunk, int j) const {
    return chunk * LUATTN_CHUNK + Fragment::column(lane, j);
  }
  __device__ __forceinline__ int value(int r) const { return first + Fragment::row(lane, r); }

  __device__ __forceinline__ void modify(u32 (&v)[4][4], int chunk) const {
    if constexpr (Spec::has_value_mod)
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        float x[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int t = token(chunk, i / 4 * 2 + n);
          x[n] = chain.has(t)
                     ? float(Spec::value_mod(p, chain.site, half_of<Elem>(v[i / 8][i / 2 % 4], n), t, value(i / 2 % 2)))
                     : 0.f;
        }
        v[i / 8][i / 2 % 4] = pack<Elem>(x[0], x[1]);
      }
  }
  // Adds what skips, of v before its mod.
  __device__ __forceinline__ void skip(float (&o)[32], const u32 (&v)[4][4], int chunk) const {
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = Fragment::element(r, j), t = chain.clamped(token(chunk, j));
        o[i] += Spec::skip(p, chain.site, half_of<Elem>(v[i / 8][i / 2 % 4], i % 2), t, value(r));
      }
  }
};
