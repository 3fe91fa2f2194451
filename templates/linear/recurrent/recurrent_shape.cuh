// linear/recurrent/recurrent_shape.cuh: which part of the state a lane of the recurrent family has, and how the rows of a
// token lie in shared memory.
//
// A warp owns 4 * v_lane value channels and all of K: 8 lanes share K, 4 groups of them the value channels. Which channels a lane
// has is the order of the state in memory, so that a warp reads and writes whole sectors; rows in shared memory lie so that
// a lane finds its channels by fours, whatever the order.
#pragma once
#include "contract/linear_hooks.cuh"
#include "work/recurrent_work.cuh"

// Where a number is used, what derives from it is computed: addresses that loops keep would take the registers of the state.
template <class T>
LUATTN_FN T here(T x) {
  if constexpr (sizeof(T) == 8)
    asm volatile("" : "+l"(x));
  else
    asm volatile("" : "+r"(x));
  return x;
}

// The type of states that kernels keep between them, and the call's scale, in the numbers that they compute in.
template <class Real>
inline constexpr int state_type_of = sizeof(Real) == 8 ? LUATTN_STATE_F64 : LUATTN_STATE_F32;
template <class Real>
LUATTN_FN Real scale_of(const LuattnLinearParams &p) {
  return sizeof(Real) == 8 ? Real(p.wide_scale) : Real(p.scale);
}

template <class Config>
struct RecurrentShape {
  static constexpr int k_dim = ceil_div(Config::k_dim, 32) * 32;  // padded
  static constexpr int k_lane = k_dim / 8, v_lane = Config::v_lane, v_warp = 4 * v_lane;
  static constexpr int half_unit = k_dim % 64 == 0 ? 8 : 4;  // neighbours in K of 16-bit states that a lane has
};

// Lane l of 8 has channels unit * l, .. of each 8 * unit. Unit 1: memory runs along V, and a lane has neighbours there.
template <class Config>
struct StateOrder {
  using Shape = RecurrentShape<Config>;
  int log2_unit;

  __device__ __forceinline__ explicit StateOrder(const LuattnStates &s) {
    const int unit = linear_state_bytes(s.type) > 2 ? 4 : Shape::half_unit;
    log2_unit = s.value == 1 && s.key != 1 ? 0 : unit == 8 ? 3 : 2;
  }
  __device__ __forceinline__ bool along_v() const { return log2_unit == 0; }
  // The channel of K that is a lane's number n; the lane's place among 8.
  __device__ __forceinline__ int channel(int lane8, int n) const {
    return ((lane8 + (n >> log2_unit) * 8) << log2_unit) + (n & ((1 << log2_unit) - 1));
  }
  // Where channel d lies in a row: lanes have fours.
  __device__ __forceinline__ int place(int d) const {
    const int n = ((d >> (log2_unit + 3)) << log2_unit) + (d & ((1 << log2_unit) - 1));
    return n / 4 * 32 + (d >> log2_unit) % 8 * 4 + n % 4;
  }
  // The value channel of the warp that is number i of a lane of group `group`; where channel v of a block lies.
  __device__ __forceinline__ int value(int group, int i) const {
    return along_v() ? group * Shape::v_lane + i : group + 4 * i;
  }
  __device__ __forceinline__ int value_place(int v) const {
    const int in_warp = v % Shape::v_warp;
    return along_v() ? v : v - in_warp + in_warp % 4 * Shape::v_lane + in_warp / 4;
  }
};

// The rows of a token, in numbers: behind hooks, and o.
template <class Spec, class Config>
struct TokenLayout {
  using Shape = RecurrentShape<Config>;
  static constexpr bool decays_channels = Spec::Decay::given && Spec::Decay::by_channel;
  static constexpr int q = 0, k = Shape::k_dim, read = 2 * Shape::k_dim,
                       erase = read + (Spec::Read::given ? Shape::k_dim : 0),
                       decay = erase + (Spec::Erase::given ? Shape::k_dim : 0),
                       written = decay + (decays_channels ? Shape::k_dim : 0), o = written + Config::v_block,
                       skip = o + Config::v_block, numbers = skip + (Spec::Skip::given ? Config::v_block : 0);
  // Numbers: the token's decay; what is written to the channel that is always 1; the sum that o is divided by; whether
  // it, or a channel's, is 0.
  static constexpr int factor = numbers, one = numbers + 1, sum = numbers + 2, gone = numbers + 3, size = numbers + 4;
};
