// linear/recurrent/step_state.cuh: a few tokens of many states, token by token as fwd_recurrent.cuh has it, by the roles of
// step_parts.cuh.
#pragma once
#include "linear/recurrent/step_parts.cuh"

// Rows of a turn come by batches, each in a slot; what is said of it: how many tokens it has, of the turn's last ones all bits
// turned.
template <class Spec, class Config>
struct StepRowWarps {
  using Roles = StepRoles<Config>;
  using Rows = RecurrentRows<Spec, Config>;
  const LuattnLinearParams &p;
  const StepShared<Config> &shared;
  const StateOrder<Config> order;
  StepPlace filling, storing;
  StepTurn<Config> before;  // whose o is stored next
  int first_before = 0, count_before = -1;

  __device__ __forceinline__ StepRowWarps(const LuattnLinearParams &p, const StepShared<Config> &shared)
      : p(p), shared(shared), order(p.first), before(p) {}

  __device__ __forceinline__ void run() {
    for (StepTurn<Config> turn(p); turn.is_there(p); turn.next_rows()) {
      RecurrentPlace<Config> place(p, turn);
      prefetch_after(place, turn);
      if (place.row < 0) {
        rows_of(place, turn, 0).store_zeros();
        place.tokens = 0;
      }
      for (int first = 0;; first += p.step.batch) {
        const int count = max_of(min_of(p.step.batch, place.tokens - first), 0);
        const bool is_last = first + p.step.batch >= place.tokens;
        fill(place, turn, first, count, is_last);
        store_before();
        before = turn, first_before = first, count_before = count;
        if (is_last) break;
      }
    }
    store_before();
  }

 private:
  __device__ __forceinline__ Rows rows_of(const RecurrentPlace<Config> &place, const StepTurn<Config> &turn,
                                          int slot) const {
    const int values = p.step.whole ? Config::v_block : Roles::values;
    return {
        p, place, order, shared.rows(slot), turn.first_value(), values, Roles::first_row_thread, Roles::row_threads};
  }
  // L2 is asked for rows of the next turn.
  __device__ __forceinline__ void prefetch_after(const RecurrentPlace<Config> &place, StepTurn<Config> turn) const {
    turn.next_rows();
    if (turn.is_there(p)) rows_of(place, turn, 0).prefetch(RecurrentPlace<Config>(p, turn));
  }
  __device__ __forceinline__ void fill(const RecurrentPlace<Config> &place, const StepTurn<Config> &turn, int first,
                                       int count, bool is_last) {
    rows_of(place, turn, filling.place).fill(first, count);
    if (threadIdx.x == Roles::first_row_thread) shared.said(filling.place) = is_last ? ~count : count;
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared.filled(filling.place));
    filling.next(p.step.slots);
  }
  __device__ __forceinline__ void store_before() {
    if (count_before < 0) return;
    barrier_wait(shared.read(storing.place), storing.parity);
    if (count_before > 0) {
      const RecurrentPlace<Config> place(p, before);
      rows_of(place, before, storing.place).store(first_before, count_before);
    }
    named_sync(1, Roles::row_threads);  // rows of the slot may be written
    storing.next(p.step.slots);
  }
};

template <class Spec, class Config>
__device__ __forceinline__ void walk_states(const LuattnLinearParams &p, const StepShared<Config> &shared) {
  using Layout = TokenLayout<Spec, Config>;
  const StateOrder<Config> order(p.first);
  const bool leads = threadIdx.x % 32 == 0;
  StepPlace stage, slot;
  for (StepTurn<Config> turn(p); turn.is_there(p);) {
    const int first = p.step.whole ? 0 : turn.first_value();
    StepState<Spec, Config> state(order, first, turn.first_value() - first);
    const u32 part = shared.part(stage.place);
    barrier_wait(shared.filled(slot.place), slot.parity);
    int count = shared.said(slot.place);
    const bool has_tokens = count != ~0;
    barrier_wait(shared.full(stage.place), stage.parity);
    if (has_tokens) state.template move_part<true>(p, part);
    const bool keeps = p.step.whole && turn.part + 1 < StepRoles<Config>::parts;  // the next part reads the same slot
    turn.next();
    while (true) {
      const int tokens = count < 0 ? ~count : count;
      auto *row = shared.rows(slot.place);
      for (int i = 0; i < tokens; ++i, row += Layout::size) state.step(row);
      __syncwarp();
      if (keeps) break;
      if (leads) barrier_arrive(shared.read(slot.place));
      slot.next(p.step.slots);
      if (count < 0) break;
      barrier_wait(shared.filled(slot.place), slot.parity);
      count = shared.said(slot.place);
    }
    if (has_tokens) state.template move_part<false>(p, part);
    fence_async();
    __syncwarp();
    if (leads) barrier_arrive(shared.done(stage.place));
    stage.next(p.step.stages);
  }
}

template <class Spec, class Walk, class Config = StepConfig<Walk>>
__device__ __forceinline__ void step_states(const LuattnLinearParams &p, unsigned char *base) {
  using Roles = StepRoles<Config>;
  static_assert(!Spec::normalizes, "the sum's state is of all blocks of a head");
  const StepShared<Config> shared(p, base);
  const int warp = int(threadIdx.x / 32);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (warp < Roles::state_warps)
    walk_states<Spec, Config>(p, shared);
  else if (warp < Roles::copier)
    StepRowWarps<Spec, Config>(p, shared).run();
  else
    copy_states<Config>(p, shared);
}
