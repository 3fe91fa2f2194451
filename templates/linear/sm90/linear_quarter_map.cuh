// linear/sm90/linear_quarter_map.cuh: by how much some chunks may make a state longer at most: the norm of their map M, S <- M S
// where nothing is written, which two warpgroups find as those of linear_quarter_chain.cuh find states, from the unit matrix. A
// square's norm of all elements is no less than what it does to any vector.
#pragma once
#include "linear/sm90/linear_quarter_chain.cuh"
#include "linear/sm90/linear_quarter_maker.cuh"

template <class Spec, class Config>
struct QuarterMap : QuarterChain<Spec, Config> {
  using Values = QuarterChain<Spec, Config>;
  using Shared = typename Values::Shared;
  using Elem = typename Values::Elem;
  using Fragment = MmaFragment;
  using Values::chain, Values::group, Values::k_dim, Values::lane, Values::shared, Values::warp;

  // Channels that do not exist have nothing.
  __device__ __forceinline__ void load_unit(float (&state)[k_dim / 2]) const {
    const int row = group * 64 + 16 * warp + Fragment::row(lane);
#pragma unroll
    for (int j = 0; j < k_dim / 4; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        state[Fragment::element(r, j)] =
            Fragment::column(lane, j) == row + r * 8 && row + r * 8 < Config::k_dim ? 1.f : 0.f;
  }
  __device__ __forceinline__ void step(float (&state)[k_dim / 2], int n, int quarter) {
    const int slot = n % 2 * 4 + quarter;
    u32 rounded[k_dim / 16][4], v[4] = {}, inverse[4];
    float x[8], u[8] = {};
    lane = lane_anew();
#pragma unroll
    for (int s = 0; s < k_dim / 16; ++s) Values::round(rounded[s], state + 8 * s);
    barrier_wait(shared.full(slot), u32(n / 2) & 1);
    wgmma_fence();
    WgmmaNarrow<Elem>::dots128(x, rounded, wgmma_operand(shared.rows(slot), 0),
                               wgmma_operand(shared.rows(slot) + Shared::rows_box, 0));
    wgmma_commit();
    this->load_square(inverse, shared.inverse(slot));
    const typename Values::Numbers none{}, reads(shared.reads(slot), lane);
    this->decay(state, slot);
    wgmma_arrived(state);
    wgmma_wait<0>();
    wgmma_arrived(x);
    Values::subtract(v, x, none, reads);
    Values::add_product(u, v, inverse);
    Values::round(v, u);
    wgmma_fence();
    WgmmaNarrow<Elem>::sums16(state, v, wgmma_operand(shared.keys(slot), Shared::keys_box));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(state);
    __syncwarp();
    if (elected()) barrier_arrive(shared.empty(slot));
  }
  // The sum of squares of the warp's elements of M, in each of its lanes.
  __device__ __forceinline__ float run() {
    float state[k_dim / 2], sum = 0;
    load_unit(state);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n)
#pragma unroll 1
      for (int quarter = 0; quarter < 4; ++quarter) step(state, n, quarter);
#pragma unroll
    for (int i = 0; i < k_dim / 2; ++i) sum += state[i] * state[i];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
  }
};
