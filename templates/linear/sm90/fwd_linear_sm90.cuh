// linear/sm90/fwd_linear_sm90.cuh: linear attention forward by TMA and wgmma, in chunks of 64 tokens.
//
// Kernels behind luattn_linear_inverses are launched while the one before runs, and wait for it before all else.
//
// Config: Elem half_t or bf16_t; k_dim up to 128 and v_dim multiples of 8; v_block 64 or 128; stages 2 or more, as many as
// shared memory has room for; packed. Threads: SharedLinear::threads.
// Spec: updates that add, or erase by the key (the delta rule).
//
// A block has a warp that loads, three that make numbers of tokens (LinearNumbers) and of channels (LinearGates), a warpgroup
// that makes the products of q and k ahead of the others (LinearScores), and one or two that own 64 value channels each
// (LinearValues). q, k, v are read once and o is written once; the state stays in registers. Updates that erase take T of each
// chunk, which luattn_linear_inverses has made, or where the kernel makes T itself another warpgroup does (linear_whole.cuh); where
// decays differ between channels, they have chains of tiles (linear_tile_forward.cuh).
#pragma once
#include "arch/early_launch.cuh"
#include "linear/sm90/linear_gates.cuh"
#include "linear/sm90/linear_join.cuh"
#include "linear/sm90/linear_kept.cuh"
#include "linear/sm90/linear_producer.cuh"
#include "linear/sm90/linear_segment_end.cuh"
#include "linear/sm90/linear_values.cuh"
#include "linear/sm90/linear_whole.cuh"
#include "arch/warp.cuh"

// Of a thread of each warpgroup: 512 in all, of blocks that share a multiprocessor 256.
template <class Spec, class Config, bool HasScores>
struct LinearRegisters {
  static constexpr bool by_channel = Spec::decay_of == DECAY_CHANNEL, few = Spec::erases || by_channel;
  static constexpr int load = MakesInverse<Config> ? 64 : by_channel ? 48 : 40;
  static constexpr int values = !HasScores ? 224 : few || TwoHeads<Config> ? 192 : 200;
  static constexpr int scores = 512 - load - 2 * values;
};

template <class Spec, class Config>
  requires SharesMultiprocessor<Config>
struct LinearRegisters<Spec, Config, false> {
  static constexpr int load = 40, scores = 0, values = 256 - load;
};

// Leaves to the chain of a segment the chunks that decide what becomes of a state; whether that is not all.
template <class Spec, class Config>
LUATTN_FN bool leave_last(const LuattnLinearParams &p, const SharedLinear<Spec, Config> &shared,
                          LinearChain<Config> &chain, int warp, int lane) {
  const int count = TokenSegmentEnd<Spec, Config>{p, chain, shared, warp, lane}.find();
  if (chain.of_map && threadIdx.x == 0) p.segments.decays[chain.number(p, chain.segment)] = count < 0 ? 1.f : 0.f;
  if (count >= 0) chain.keep_last(count);
  return count >= 0;
}

// OnlyState: without o and q. Sums: what segments add to a state, and their maps, but those of each entry's last segment.
template <class Spec, class Config, bool OnlyState, bool Sums = OnlyState && !SharedLinear<Spec, Config>::keeps>
LUATTN_FN void fwd_linear_sm90(const LuattnLinearParams &p, const LuattnTensorMaps &maps, void *memory) {
  using Shared = SharedLinear<Spec, Config>;
  static_assert(LinearSpec<Spec>);
  const Shared shared{shared_address(memory)};
  constexpr bool has_scores = !OnlyState || Shared::by_channel, has_maps = Sums && Spec::erases && !Shared::keeps;
  using Registers = LinearRegisters<Spec, Config, has_scores>;
  if constexpr (Sums) let_next_start();
  wait_for_previous();
  if (threadIdx.x == 0) shared.init_barriers(has_scores);
  __syncthreads();
  LinearChain<Config> chain(p, p.segments.count - (Sums ? 1 : 0), Truth<has_maps>());
  const int warp = int(uniform(threadIdx.x / 32)), lane = int(threadIdx.x % 32);
  const bool left_alone = chain.state_row(p) < 0;
  bool forgets = false;
  if constexpr (Sums && Shared::by_token) {
    if (left_alone) return;
    forgets = leave_last<Spec, Config>(p, shared, chain, warp, lane);
    if (forgets && chain.of_map) return;  // it counts as 0
  }
  if constexpr (Sums && !Shared::keeps) chain.turned = LinearValues<Spec, Config, OnlyState>::sums_turned;
  if (warp < 4) {
    registers_down<Registers::load>();
    if (left_alone) return;
    if constexpr (Shared::makes_inverse)
      WholePairs<Spec, Config>{{p, maps, shared, chain, warp, lane}}.run();
    else if (warp == 0)
      LinearProducer<Spec, Config, OnlyState>{p, maps, shared, chain}.run();
    else if constexpr (Shared::by_channel)
      LinearGates<Spec, Config>{p, shared, chain, warp - 1, lane}.run();
    else
      LinearNumbers<Spec, Config>{{p, chain, lane}, shared, warp - 1}.run();
  } else if (!SharesMultiprocessor<Config> && warp < 8) {
    if constexpr (!SharesMultiprocessor<Config>) registers_down<Registers::scores>();
    if constexpr (has_scores) {
      if (left_alone) return;
      if constexpr (Shared::makes_inverse)
        WholeInverses<Spec, Config>{{p, maps, shared, chain, warp % 4, lane}}.run();
      else
        LinearScores<Spec, Config>{shared, chain.chunks(), warp % 4, lane}.run();
    }
  } else {
    registers_up<Registers::values>();
    const int group = warp / 4 - (SharesMultiprocessor<Config> ? 1 : 2);
    if constexpr (Shared::two_heads) {
      chain.site.hv += group;
      LinearValues<Spec, Config, OnlyState> of_head{p, maps, shared, chain, group, warp % 4, lane};
      of_head.begin_of_two();
      return left_alone ? of_head.store_nothing() : of_head.run();
    }
    LinearValues<Spec, Config, OnlyState> values{p, maps, shared, chain, group, warp % 4, lane};
    if (left_alone) {
      if constexpr (!OnlyState && !Shared::keeps) values.store_nothing();
    } else if constexpr (Shared::keeps && Sums) {
      KeptStates<Spec, Config, OnlyState>{values}.run_sums(forgets);
    } else if constexpr (Shared::keeps) {
      KeptStates<Spec, Config, OnlyState>{values}.run();
    } else if constexpr (OnlyState && Spec::erases) {
      SegmentChain<Spec, Config>{{values}}.run(forgets);
    } else if constexpr (OnlyState) {
      values.run_state(forgets);
    } else {
      values.run();
    }
  }
}
