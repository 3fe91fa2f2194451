// linear/sm90/linear_column_decays.cuh: the gradient of a chunk's decays of channels (linear_columns_sm90.cuh), by sums over ways.
#pragma once
#include "linear/sm90/columns_pipeline.cuh"
#include "score/fragment.cuh"

template <class Spec, class Config>
struct ColumnDecays {
  using Shared = SharedColumns<Spec, Config>;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  using Fragment = MmaFragment;
  static constexpr int block = 16, k_dim = Shared::k_dim, v_dim = Shared::v_dim;

  const LuattnLinearParams &p;
  const Shared shared;
  const int which, lane;  // which block of tokens

  // Over a block's rows of each of the thread's columns: sums of y from the row on, and of z before it; and all of both.
  __device__ __forceinline__ void sum_ways(float (&ways)[8], const float (&y)[8], const float (&z)[8],
                                           u32 totals) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int upper = Fragment::element(0, j), lower = Fragment::element(1, j);
      float from[2] = {y[upper], y[lower]}, to[2] = {z[upper], z[lower]};
#pragma unroll
      for (int step = 4; step < 32; step *= 2)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float down = __shfl_down_sync(0xffffffffu, from[r], step),
                      up = __shfl_up_sync(0xffffffffu, to[r], step);
          if (lane + step < 32) from[r] += down;
          if (lane >= step) to[r] += up;
        }
      const float behind = __shfl_sync(0xffffffffu, from[1], Fragment::lane_in_row(lane)),
                  first = __shfl_sync(0xffffffffu, to[0], 28 + Fragment::lane_in_row(lane));
      float sooner[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float up = __shfl_up_sync(0xffffffffu, to[r], 4);
        sooner[r] = lane >= 4 ? up : 0.f;
      }
      ways[upper] = from[0] + behind + sooner[0], ways[lower] = from[1] + first + sooner[1];
      const u32 at = totals + which * 512 + Fragment::column(lane, j) * 4;
      if (lane < 4) store_number(at + TOTAL_BEHIND, from[0] + behind);
      if (lane >= 28) store_number(at + TOTAL_BEFORE, first + to[1]);
    }
  }
  // Sums over value channels of ways from state to state: of a warp as many channels as its share of all.
  __device__ __forceinline__ void sum_across(int warp, u32 to) const {
    constexpr int channels = k_dim / Shared::warps;  // 8 or 4
    float sum[8] = {};
#pragma unroll
    for (int i = 0; i < v_dim / 32; ++i) {
      const u32 at = shared.at_state(0, i * 32 + lane, warp * channels) - shared.at(0) + warp * channels % 8 * 2;
#pragma unroll
      for (int n = 0; n < channels / 4; ++n) {
        const u64 s = load_four_halves(shared.at(COLUMN_STATE) + at + n * 8),
                  d = load_four_halves(shared.at(COLUMN_GRAD_STATE) + at + n * 8);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[4 * n + e] += to_real(Elem{u16(s >> 16 * e)}) * to_real(Elem{u16(d >> 16 * e)});
      }
    }
    // Halves of lanes keep halves of channels.
    int count = channels, first = 0;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const bool upper = (lane & step) != 0;
      if (count > 1) {
        count /= 2;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (i < count) {
            const float mine = upper ? sum[i + count] : sum[i], other = upper ? sum[i] : sum[i + count];
            sum[i] = mine + __shfl_xor_sync(0xffffffffu, other, step);
          }
        first += upper ? count : 0;
      } else {
        sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], step);
      }
    }
    if (lane % (32 / channels) != 0) return;
    const u32 at = (warp * channels + first) * 4;
    float left = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) left += load_number(shared.gates() + (i * block + block - 1) * Shared::row_bytes + at);
    store_number(to + at, sum[0] * fast_exp2(left));
  }
  // What all tokens of the block have: of ways that cross other blocks, and all; of two adjacent channels.
  __device__ __forceinline__ float2 of_block(int channel, u32 across) const {
    const u32 at = shared.totals() + channel * 4;
    float2 sum = load_pair(across + channel * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i == which) continue;
      const float2 x = load_pair(at + (i > which ? TOTAL_BEHIND : TOTAL_BEFORE) + i * 512);
      sum.x += x.x, sum.y += x.y;
    }
    return sum;
  }
  // Where gradients of a token's channels are stored, of row number r of the thread; null: hooks make something of them first.
  __device__ __forceinline__ float *place(const Chain &chain, int chunk, int r) const {
    const int t = chunk * LUATTN_CHUNK + which * block + Fragment::row(lane, r);
    if constexpr (DecayIsElement<Spec>)
      return chain.has(t) ? Spec::OfDecay::place(p, chain.site, t) : nullptr;
    else
      return DecayEndsHere<Spec> ? nullptr : p.sums.decay + chain.token(p, t) * Config::k_dim;
  }
  // Whether pairs of numbers can be stored there.
  __device__ __forceinline__ static bool takes_pairs(const float *to) {
    return to != nullptr && reinterpret_cast<unsigned long long>(to) % 8 == 0;
  }
  __device__ __forceinline__ void add(const Chain &chain, int t, int channel, float2 x) const {
    if constexpr (DecayEndsHere<Spec>) {
      using Terms = typename Spec::OfDecay;
      float none[1];
      Terms::add(p, chain.site, 1.f, x.x, t, channel, nullptr, nullptr, none, none);
      Terms::add(p, chain.site, 1.f, x.y, t, channel + 1, nullptr, nullptr, none, none);
    }
  }
  // Adds to a thread's ways of 16 channels what all tokens of its block have, and stores the gradient, or what it makes of
  // inputs. to: places of the thread's rows; InPairs: which take pairs.
  template <bool InPairs>
  __device__ __forceinline__ void store(const float (&ways)[8], const Chain &chain, int chunk, int step, u32 across,
                                        float *const (&to)[2]) const {
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const int channel = step * 16 + Fragment::column(lane, j);
      const float2 all = of_block(channel, across);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int t = chunk * LUATTN_CHUNK + which * block + Fragment::row(lane, r), e = Fragment::element(r, j);
        if (!chain.has(t) || channel >= Config::k_dim) continue;
        const float2 x = {ways[e] + all.x, ways[e + 1] + all.y};
        if constexpr (InPairs)
          *reinterpret_cast<float2 *>(to[r] + channel) = x;
        else if (to[r] != nullptr)
          to[r][channel] = x.x, to[r][channel + 1] = x.y;
        else
          add(chain, t, channel, x);
      }
    }
  }
  template <int Steps>
  __device__ __forceinline__ void store_all(const float (&ways)[Steps][8], const Chain &chain, int chunk, int share,
                                            u32 across) const {
    if (p.sums.decay == nullptr) return;
    float *const to[2] = {place(chain, chunk, 0), place(chain, chunk, 1)};
    const int t = chunk * LUATTN_CHUNK + which * block + Fragment::row(lane);
    const bool in_pairs = (takes_pairs(to[0]) || !chain.has(t)) && (takes_pairs(to[1]) || !chain.has(t + 8));
    if (in_pairs) {
#pragma unroll
      for (int i = 0; i < Steps; ++i) store<true>(ways[i], chain, chunk, share * Steps + i, across, to);
    } else {
#pragma unroll
      for (int i = 0; i < Steps; ++i) store<false>(ways[i], chain, chunk, share * Steps + i, across, to);
    }
  }
};
