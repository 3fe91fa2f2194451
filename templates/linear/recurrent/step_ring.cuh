// linear/recurrent/step_ring.cuh: a few tokens behind a checkpoint and a ring of rows: the state is read as it streams, and
// written only where the ring is full: then its rows are folded into it first, in the same launch.
//
// A block has value heads one after another, with all of their value channels, so that nobody reads rows that it writes: as many
// blocks as run at once. Rows are filled once a head; parts of its state come by cp.async while the one before is computed with.
#pragma once
#include "linear/recurrent/fwd_recurrent.cuh"
#include "linear/recurrent/ring_rows.cuh"

// Asks for the state of a turn.
template <class Spec, class Config>
__device__ __forceinline__ void ask_state(const LuattnLinearParams &p, const StateOrder<Config> &order,
                                          const RecurrentTurn &turn, u32 stage) {
  if constexpr (Config::staged)
    RecurrentState<Spec, Config>(order, turn.first_value, 0, stage).ask(p, RecurrentAhead(p, turn.head));
}

// Asks for the rows of the head's tokens, which nothing keeps in registers until its turn comes.
template <class Spec, class Config>
__device__ __forceinline__ bool prefetch_rows(const LuattnLinearParams &p, const RecurrentRows<Spec, Config> &rows,
                                              u32 head) {
  asm volatile("" : "+r"(head));
  if (head >= u32(p.entries) * u32(p.heads_v)) return false;
  rows.prefetch(RecurrentPlace<Config>(p, head));
  return true;
}

template <class Spec, class Config>
__device__ __forceinline__ void fold_ring(RecurrentState<Spec, Config> &state, const RingRows<Spec, Config> &ring) {
  using Ring = RingFacts<Spec, Config>;
  const int last = ring.used - 1;
  if constexpr (Ring::decays) state.scale(ring.shared, ring.old_sum(last));
  for (int j = 0; j < ring.used; ++j) {
    const int from = Ring::decays ? ring.old_sum(j) : -1, to = Ring::decays ? ring.old_sum(last) : -1;
    state.add(ring.shared, ring.old_k(j), from, to, ring.u(j), 1);
    if constexpr (Ring::erases) state.add(ring.shared, ring.old_e(j), from, to, ring.y(j), -1);
  }
}

// What new tokens read of the checkpoint: o, and what is written without what is erased; or with `erase` what r reads.
template <class Spec, class Config>
__device__ __forceinline__ void read_checkpoint(const RecurrentState<Spec, Config> &state,
                                                const RingRows<Spec, Config> &ring) {
  using Ring = RingFacts<Spec, Config>;
  using Layout = TokenLayout<Spec, Config>;
  for (int i = 0; i < ring.tokens; ++i) {
    auto *const row = ring.row(i);
    const int n = ring.before + i;
    state.times(ring.shared, ring.row_at(i) + Layout::q, Ring::decays ? ring.new_sum(i) : -1,
                [&](int v, auto x) { row[Layout::o + v] = x; });
    if constexpr (Ring::reads) {
      state.times(ring.shared, ring.row_at(i) + Layout::read, Ring::decays ? ring.read_sum(i) : -1, [&](int v, auto x) {
        ring.u(n)[v] = row[Layout::written + v] - (Ring::erases ? 0 : x);
        if constexpr (Ring::erases) ring.y(n)[v] = x;
      });
    } else {
      state.each([&](int v) { ring.u(n)[v] = row[Layout::written + v]; });
    }
  }
}

// The rows of a value head, and its state, part by part, from `turn` on, which becomes the next head's.
template <class Spec, class Config>
__device__ __forceinline__ void step_ring_head(const LuattnLinearParams &p, const RecurrentRows<Spec, Config> &rows,
                                               const RingRows<Spec, Config> &ring, RecurrentTurn &turn, u32 stage) {
  const int values = int(blockDim.x / 32) * RecurrentShape<Config>::v_warp;
  const bool folds = ring.before < ring.used;
  rows.fill(0, ring.tokens);
  ring.load(ring.tokens * rows.parts);
  if (Config::staged && prefetch_rows(p, rows, turn.head_after())) ring.prefetch(turn.head_after());
  __syncthreads();
  ring.add_up_decays();
  __syncthreads();
  ring.multiply_pairs();
  for (u32 head = turn.head; turn.head == head;) {
    const RecurrentTurn next = turn.after<Config>(values);
    RecurrentState<Spec, Config> state(rows.order, 0, turn.first_value, stage);
    if constexpr (Config::staged) {
      state.take(p, ring.place);
      ask_state<Spec, Config>(p, rows.order, next, stage);
    } else {
      state.load(p, ring.place);
    }
    if (folds) {
      fold_ring(state, ring);
      state.store(p, ring.place, true);
      __syncwarp();  // the warp's part of u of old rows is read
    }
    read_checkpoint(state, ring);
    turn = next;
  }
  __syncthreads();
  for (int v = int(threadIdx.x); v < rows.block_values; v += int(blockDim.x)) ring.solve(v);
  __syncthreads();
  rows.store(0, ring.tokens);
  ring.store_rows();
}

template <class Spec, class Config>
__device__ __forceinline__ void step_ring(const LuattnLinearParams &p, typename Config::Number *shared) {
  if (p.tokens == 0) return;
  const StateOrder<Config> order(p.first);
  const LinearRingPlaces in = RingFacts<Spec, Config>::places(p);
  const u32 stage = shared_address(shared + in.numbers);
  RecurrentTurn turn(0);
  ask_state<Spec, Config>(p, order, turn, stage);
  for (bool begun = false; turn.head < u32(p.entries) * u32(p.heads_v); begun = true) {
    const RecurrentPlace<Config> place(p, turn.head);
    const RecurrentRows<Spec, Config> rows{p, place, order, shared, 0, Config::v_block};
    const int used = place.row < 0 ? 0 : RingRows<Spec, Config>::clamped_used(p, place.entry);
    const RingRows<Spec, Config> ring{p,  place, order,        shared,
                                      in, used,  place.tokens, used + place.tokens > p.ring.count ? 0 : used};
    if (begun) __syncthreads();
    if (place.row >= 0) {
      step_ring_head<Spec, Config>(p, rows, ring, turn, stage);
    } else {
      rows.store_zeros();
      turn = turn.of_next_head(0);
      ask_state<Spec, Config>(p, order, turn, stage);
    }
  }
}
