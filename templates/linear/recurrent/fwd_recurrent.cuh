// linear/recurrent/fwd_recurrent.cuh: linear attention token by token, whatever the class: a block has an entry and value head,
// and a block of value channels, whose part of the state it keeps in registers. It reads the state once and writes it once.
//
// The grid is (entries * value heads, blocks of value channels): each block takes as many warps as the launch gives it, and of
// value channels that no block has what is left. Where o is normalised, one block has all of a head: the sum's state is read
// by all of its warps and written once. Of a few tokens the state's bytes are the limit: as many blocks as run at once then
// have one value head after another, with the rows of all of its value channels, and ask for the next part of a state while they
// compute (Config::staged): what it takes to find and fill rows would else bound them.
#pragma once
#include "linear/recurrent/recurrent_rows.cuh"
#include "linear/recurrent/recurrent_state.cuh"

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

// Calls store(states, row) where the state before token t, the first one of a batch, or behind the last token goes to memory.
struct ForwardGoals {
  template <class Config, class Store>
  __device__ __forceinline__ void operator()(const LuattnLinearParams &p, const RecurrentPlace<Config> &place, int t,
                                             const Store &store) const {
    const bool is_last = t >= place.tokens;
    if (is_last ? p.last.data == nullptr : p.between.every == 0 || t % p.between.every != 0) return;
    store(is_last ? p.last : p.between.states,
          is_last ? place.row : linear_state_between(&p.between, place.entry, place.start, t, Config::packed));
  }
};

// A turn. `once`: rows of all tokens and of all of the block's value channels are filled in its first turn of the head, and o
// is stored in the last one.
template <class Spec, class Config, class Goals>
__device__ __forceinline__ void fwd_recurrent_values(const LuattnLinearParams &p, const RecurrentPlace<Config> &place,
                                                     const RecurrentRows<Spec, Config> &rows, const RecurrentTurn &turn,
                                                     const RecurrentTurn &next, u32 stage, bool once,
                                                     const Goals &goals) {
  const int values = int(blockDim.x / 32) * RecurrentShape<Config>::v_warp,
            offset = turn.first_value - rows.first_value;
  const bool is_first = turn.is_first(values), is_last = next.head != turn.head;
  RecurrentState<Spec, Config> state(rows.order, rows.first_value, offset, stage);
  if constexpr (!Config::staged) state.load(p, place);
  for (int first = 0;; first += Config::batch) {
    const int count = min_of(Config::batch, place.tokens - first);
    const bool fills = count > 0 && (!once || is_first);
    if (first > 0 || (!once && !is_first)) __syncthreads();  // rows are read
    if (fills) rows.fill(first, count);
    if (Config::staged && first == 0) {  // while that came, the state did
      if (is_first) prefetch_rows(p, rows, turn.head_after());
      state.take(p, place);
      ask_state<Spec, Config>(p, rows.order, next, stage);
    }
    if (fills || (Spec::normalizes && count <= 0)) __syncthreads();  // or all warps have the sum's state
    goals(p, place, first, [&](const LuattnStates &to, i64 row) { state.store_to(to, row, place.site.hv, is_last); });
    if (count <= 0) break;
    for (int i = 0; i < count; ++i) state.step(rows.of(i));
    if (once && !is_last) continue;
    __syncthreads();
    if constexpr (Config::run == 0 || Spec::normalizes)  // in backward o is for its sums alone
      rows.store(first, count, once ? 0 : offset, once ? rows.block_values : values);
  }
}

template <class Spec, class Config, class Goals>
__device__ __forceinline__ void fwd_recurrent(const LuattnLinearParams &p, typename Config::Number *shared,
                                              const StateOrder<Config> order, const Goals &goals) {
  const int values = int(blockDim.x / 32) * RecurrentShape<Config>::v_warp;
  const u32 stage = Config::staged ? shared_address(shared + Config::batch * TokenLayout<Spec, Config>::size) : 0;
  const bool whole = Config::staged && RecurrentTurn::has_whole_heads();
  RecurrentTurn turn(values);
  ask_state<Spec, Config>(p, order, turn, stage);
  for (bool begun = false; turn.head < u32(p.entries) * u32(p.heads_v) && turn.first_value < Config::v_dim;
       begun = true) {
    const RecurrentPlace<Config> place(p, turn.head);
    const bool once =
        Config::staged && place.tokens <= Config::batch && (whole || RecurrentTurn::has_one_part<Config>(values));
    if (begun) __syncthreads();
    for (u32 head = turn.head; turn.head == head;) {
      const RecurrentRows<Spec, Config> rows{
          p, place, order, shared, whole ? 0 : turn.first_value, whole ? Config::v_block : values};
      RecurrentTurn next = turn.after<Config>(values);
      if (place.row < 0) {
        if (whole) next = turn.of_next_head(values);
        rows.store_zeros(), ask_state<Spec, Config>(p, order, next, stage);
      } else {
        fwd_recurrent_values<Spec, Config>(p, place, rows, turn, next, stage, once, goals);
      }
      turn = next;
    }
  }
}

template <class Spec, class Config>
__device__ __forceinline__ void fwd_recurrent(const LuattnLinearParams &p, typename Config::Number *shared) {
  const StateOrder<Config> order(p.first.data != nullptr ? p.first : p.last);
  fwd_recurrent<Spec, Config>(p, shared, order, ForwardGoals());
}
