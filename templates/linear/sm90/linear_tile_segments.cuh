// linear/sm90/linear_tile_segments.cuh: what a segment of chunks makes of a state where decays differ between channels, by the
// chains of linear_tile_chain.cuh:
//
//     S <- M S + N     additive: M is diagonal
//
// N is what the segment makes of 0, and M of an update that erases what it makes of the unit matrix where nothing is written, by
// blocks for channels of the map, as in linear_segments.cuh.
//
// Where decays are great N is found from the segment's last chunks alone, and M is 0: what lies before chunks that leave less than
// 2^-40 of it adds less to a state than float rounds away from what it was. Additive updates leave of each channel what its decays
// do. One that erases by (I - b k k') with b k'k in [0, 2] makes no vector longer, but moves what lies in one channel to another,
// which may have decayed before: each of its tokens leaves as much as of the channel that keeps most, and no channel's sum over
// tokens says more. Where b is anything else no chunk is left out.
#pragma once
#include "linear/sm90/linear_tile_chain.cuh"

template <class Spec, class Config>
struct SegmentEnd {
  using Chain = LinearChain<Config>;
  static constexpr int most = 4, lanes = ceil_div(Config::k_dim, 4);
  static constexpr float least = 1.f / (1ll << 40);
  static constexpr int bytes = linear_tiles_layout(Config::k_dim, Spec::erases, Config::pass != LINEAR_FORWARD).bytes,
                       at_numbers = linear_tiles_layout(Config::k_dim, Spec::erases, 0).at_numbers;
  static_assert(Config::k_dim % 4 == 0);

  const LuattnLinearParams &p;
  const Chain &chain;
  const int lane;

  __device__ __forceinline__ const float4 *numbers(int n) const {
    return reinterpret_cast<const float4 *>(static_cast<const unsigned char *>(p.kept.tiles) +
                                            chain.slot(p, chain.at(n)) * bytes + at_numbers);
  }
  // What is left of a lane's four channels over a chunk; of channels that do not exist nothing.
  __device__ __forceinline__ float4 left(int n) const { return lane < lanes ? numbers(n)[lane] : float4{0, 0, 0, 0}; }
  __device__ __forceinline__ bool shrinks(int n) const {
    if constexpr (!Spec::erases) return true;
    const float4 x = numbers(n)[LINEAR_TILE_SHRINKS / 16];
    return x.x + x.y + x.z + x.w == 4.f;
  }
  // What a chunk leaves of the lane's channels, of updates that erase of a state.
  __device__ __forceinline__ float4 left_at_most(int n) const {
    if constexpr (!Spec::erases) return left(n);
    const float4 x = numbers(n)[LINEAR_TILE_LEFT / 16];
    return {fast_exp2(x.x), fast_exp2(x.y), fast_exp2(x.z), fast_exp2(x.w)};
  }
  // How many of the last chunks, in the order of the pass, decide what becomes of a state; -1: all. By a warp.
  __device__ __forceinline__ int find() const {
    const int chunks = chain.chunks();
    float4 of[most], all = {1, 1, 1, 1};
    bool good[most], shrinking = true;
    int found = -1;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const int n = max_of(chunks - 1 - i, 0);
      of[i] = chunks > 0 ? left_at_most(n) : float4{1, 1, 1, 1};
      good[i] = chunks > 0 && shrinks(n);
    }
#pragma unroll
    for (int i = 0; i < most; ++i) {
      all.x *= of[i].x, all.y *= of[i].y, all.z *= of[i].z, all.w *= of[i].w;
      shrinking = shrinking && good[i];
      const bool gone = Spec::erases ? all.x * all.y * all.z * all.w < least
                                     : max_of(max_of(all.x, all.y), max_of(all.z, all.w)) < least;
      if (__all_sync(0xffffffffu, gone && shrinking && i < chunks) && found < 0) found = i + 1;
    }
    return found;
  }
  // Of additive updates the diagonal of M.
  __device__ __forceinline__ void store_left() const {
    float4 all = {1, 1, 1, 1};
#pragma unroll 4
    for (int n = 0; n < chain.chunks(); ++n) {
      const float4 x = left(n);
      all.x *= x.x, all.y *= x.y, all.z *= x.z, all.w *= x.w;
    }
    float4 *const to = reinterpret_cast<float4 *>(p.segments.decays + chain.number(p, chain.segment) * Config::k_dim);
    if (lane < lanes) to[lane] = all;
  }
};

template <class Spec, class Config>
struct TileSums : TileChain<Spec, Config, true> {
  using Chain = TileChain<Spec, Config, true>;
  using Chain::chain, Chain::k_dim, Chain::p;

  // N or M of a segment, from its first chunk that counts.
  __device__ __forceinline__ void run_sums(bool forgets) {
    float state[k_dim / 2];
    u32 none[4][4];
    this->rows().begin_sums(state, p, forgets);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) this->take_step(state, none, n);
    if (chain.of_map)
      this->rows().store(state, this->rows().map(p, chain.segment));
    else
      this->rows().store(state, this->rows().slot(p, chain.segment + 1));
  }
};
