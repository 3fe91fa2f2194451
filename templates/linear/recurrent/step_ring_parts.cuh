// linear/recurrent/step_ring_parts.cuh: a few tokens behind checkpoints and rings, as step_ring.cuh has it, by the roles of
// step_parts.cuh: row warps load the rows of a head's ring, and multiply pairs of them, while state warps are with the head before.
#pragma once
#include "linear/recurrent/step_parts.cuh"
#include "linear/recurrent/step_ring.cuh"

// What a block needs to know of a head, and where its rows lie.
template <class Spec, class Config>
struct StepRingHead {
  using Rows = RecurrentRows<Spec, Config>;
  using Ring = RingRows<Spec, Config>;
  const LuattnLinearParams &p;
  const StateOrder<Config> order;
  const int first_thread, threads;

  // Rows of the ring that count; of a head that has none of a state there are none.
  __device__ __forceinline__ int used(const RecurrentPlace<Config> &place) const {
    return place.row < 0 ? 0 : Ring::clamped_used(p, place.entry);
  }
  __device__ __forceinline__ Rows rows(const RecurrentPlace<Config> &place, typename Config::Number *shared) const {
    return {p, place, order, shared, 0, Config::v_block, first_thread, threads};
  }
  __device__ __forceinline__ Ring ring(const RecurrentPlace<Config> &place, typename Config::Number *shared,
                                       int used) const {
    return {p,
            place,
            order,
            shared,
            RingFacts<Spec, Config>::places(p),
            used,
            place.tokens,
            folds(p, used) ? 0 : used,
            first_thread,
            threads};
  }
  LUATTN_FN bool folds(const LuattnLinearParams &p, int used) { return used + p.tokens > p.ring.count; }
};

// What is said of a slot: how many rows of its ring count; negative: there is no state.
template <class Spec, class Config>
__device__ __forceinline__ void run_ring_rows(const LuattnLinearParams &p, const StepShared<Config> &shared) {
  using Roles = StepRoles<Config>;
  const StepRingHead<Spec, Config> of{p, StateOrder<Config>(p.first), Roles::first_row_thread, Roles::row_threads};
  StepPlace filling, storing;
  StepTurn<Config> before(p);
  bool has_before = false;
  const auto store_before = [&]() {
    if (!has_before) return;
    barrier_wait(shared.read(storing.place), storing.parity);
    const RecurrentPlace<Config> place(p, before);
    auto *const at = shared.rows(storing.place);
    if (place.row >= 0) {
      of.rows(place, at).store(0, place.tokens);
      of.ring(place, at, shared.said(storing.place)).store_rows();
    }
    named_sync(1, Roles::row_threads);  // rows of the slot may be written
    storing.next(p.step.slots);
  };
  for (StepTurn<Config> turn(p); turn.is_there(p); turn.next_rows()) {
    const RecurrentPlace<Config> place(p, turn);
    const auto rows = of.rows(place, shared.rows(filling.place));
    const auto ring = of.ring(place, shared.rows(filling.place), of.used(place));
    if (place.row < 0) {
      rows.store_zeros();
    } else {
      rows.fill(0, ring.tokens);
      ring.load(ring.tokens * rows.parts);
      named_sync(1, Roles::row_threads);
      ring.add_up_decays();
      named_sync(1, Roles::row_threads);
      ring.multiply_pairs();
    }
    if (threadIdx.x == Roles::first_row_thread) shared.said(filling.place) = place.row < 0 ? -1 : ring.used;
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared.filled(filling.place));
    filling.next(p.step.slots);
    store_before();
    before = turn, has_before = true;
  }
  store_before();
}

// A lane solves for value channels of its own warp.
template <class Spec, class Config>
__device__ __forceinline__ void solve_of_warp(const RingRows<Spec, Config> &ring) {
  using Roles = StepRoles<Config>;
  constexpr int width = RecurrentShape<Config>::v_warp;
  __syncwarp();
#pragma unroll 1
  for (int i = int(threadIdx.x % 32); i < Roles::parts * width; i += 32)
    ring.solve(i / width * Roles::values + int(threadIdx.x / 32) * width + i % width);
  __syncwarp();
}

template <class Spec, class Config>
__device__ __forceinline__ void read_states(const LuattnLinearParams &p, const StepShared<Config> &shared) {
  using Roles = StepRoles<Config>;
  const StepRingHead<Spec, Config> of{p, StateOrder<Config>(p.first), 0, 32 * Roles::state_warps};
  const bool leads = threadIdx.x % 32 == 0;
  StepPlace stage, slot;
  for (StepTurn<Config> turn(p); turn.is_there(p);) {
    RecurrentPlace<Config> place(p, turn);
    barrier_wait(shared.filled(slot.place), slot.parity);
    const int used = shared.said(slot.place);
    const auto ring = of.ring(place, shared.rows(slot.place), max_of(used, 0));
    for (int i = 0; i < Roles::parts; ++i, turn.next()) {
      StepState<Spec, Config> state(of.order, 0, turn.first_value());
      const u32 part = shared.part(stage.place);
      const bool folds = used >= 0 && of.folds(p, used);
      barrier_wait(shared.full(stage.place), stage.parity);
      if (used >= 0) state.template move_part<true>(p, part);
      if (folds) {
        fold_ring(state, ring);
        state.template move_part<false>(p, part);
        fence_async();
      }
      __syncwarp();  // the warp's part of u of old rows is read
      if (leads) barrier_arrive(shared.done(stage.place));
      if (used >= 0) read_checkpoint(state, ring);
      stage.next(p.step.stages);
    }
    if (used >= 0) solve_of_warp(ring);
    if (leads) barrier_arrive(shared.read(slot.place));
    slot.next(p.step.slots);
  }
}

template <class Spec, class Config>
__device__ __forceinline__ void step_rings(const LuattnLinearParams &p, unsigned char *base) {
  using Roles = StepRoles<Config>;
  if (p.tokens == 0) return;
  const StepShared<Config> shared(p, base);
  const int warp = int(threadIdx.x / 32);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (warp < Roles::state_warps)
    read_states<Spec, Config>(p, shared);
  else if (warp < Roles::copier)
    run_ring_rows<Spec, Config>(p, shared);
  else
    copy_states<Config>(p, shared, [&](const StepTurn<Config> &turn) {
      using Ring = RingRows<Spec, Config>;
      return StepRingHead<Spec, Config>::folds(p, Ring::clamped_used(p, turn.entry));
    });
}
