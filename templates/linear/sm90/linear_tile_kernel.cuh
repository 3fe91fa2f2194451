// linear/sm90/linear_tile_kernel.cuh: the block of a chain of tiles, in its roles.
#pragma once
#include "linear/sm90/linear_tile_forward.cuh"
#include "linear/sm90/linear_tile_segments.cuh"

// Sums: what segments add to a state, and their maps, but those of each entry's last segment.
template <class Spec, class Config, bool Sums>
LUATTN_FN void linear_tile_chain(const LuattnLinearParams &p, const LuattnTensorMaps &maps, void *memory) {
  using Shared = SharedChain<Spec, Config, Sums>;
  using Registers = ChainRegisters<Shared::groups>;
  constexpr bool has_maps = Sums && Spec::erases && !Shared::backwards;
  const Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  LinearChain<Config> chain(p, p.segments.count - (Sums ? 1 : 0), Truth<has_maps>());
  const int warp = int(uniform(threadIdx.x / 32)), lane = int(threadIdx.x % 32);
  const bool left_alone = chain.state_row(p) < 0;
  bool forgets = false;
  if constexpr (Sums) {
    if (left_alone) return;
    const SegmentEnd<Spec, Config> end{p, chain, lane};
    const int count = end.find();
    const bool stores = warp == 1 && chain.first_value == 0 && !Shared::backwards;
    forgets = count >= 0;
    if (stores && !Spec::erases) end.store_left();
    if (stores && chain.of_map && lane == 0) p.segments.decays[chain.number(p, chain.segment)] = forgets ? 0.f : 1.f;
    if (forgets) chain.keep_last(chain.of_map ? 0 : count);
  }
  if (warp < 4) {
    registers_down<Registers::load>();
    if (warp == 0 && !left_alone) ChainProducer<Spec, Config, Sums>{p, maps, shared, chain}.run();
  } else {
    registers_up<Registers::values>();
    if constexpr (Sums) {
      TileSums<Spec, Config>{{p, maps, shared, chain, warp / 4 - 1, warp % 4, lane}}.run_sums(forgets);
    } else if constexpr (Shared::forward) {
      TileForward<Spec, Config> values{{p, maps, shared, chain, warp / 4 - 1, warp % 4, lane}};
      if (left_alone)
        values.store_nothing();
      else
        values.run();
    } else {
      if (!left_alone) TileChain<Spec, Config, false>{p, maps, shared, chain, warp / 4 - 1, warp % 4, lane}.run();
    }
  }
}
