// linear/recurrent/step_parts.cuh: few tokens of many states: parts of these come, and go, by TMA, several on their way at once.
//
// A block, of which a multiprocessor has two, takes one part of a state after another: all of K and values of its warps. Its warps
// have roles. One warp, the copier, asks for parts that later turns need, and sends those back that are through. Row warps run
// hooks of the next turn's tokens, and store o of the turn before. State warps take a part from shared memory to registers.
#pragma once
#include "linear/recurrent/recurrent_rows.cuh"
#include "linear/recurrent/recurrent_state.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/mbarrier.cuh"
#include "tma/warp_roles.cuh"

template <class Config>
struct StepRoles {
  static constexpr int state_warps = Config::threads / 32, row_warps = 3, copier = state_warps + row_warps,
                       threads = 32 * (copier + 1);
  static constexpr int first_row_thread = 32 * state_warps, row_threads = 32 * row_warps;
  static constexpr int values = state_warps * RecurrentShape<Config>::v_warp;  // of a part: value channels
  static constexpr int parts = ceil_div(Config::v_dim, values);                // of a state
};

// Rows of a slot are of all value channels, or of those of a part.
template <class Config>
struct StepConfig : Config {
  static constexpr int v_block = StepRoles<Config>::values * StepRoles<Config>::parts;
};

// Where the kernel's shared memory has what: barriers, slots of rows, stages of parts.
template <class Config>
struct StepShared {
  using Real = typename Config::Number;
  unsigned char *const base;
  const LuattnLinearStep &step;

  __device__ __forceinline__ StepShared(const LuattnLinearParams &p, unsigned char *base) : base(base), step(p.step) {}
  // A part has come; a part is through; rows of a slot are there; they are read, and o is there.
  __device__ __forceinline__ u32 full(int stage) const { return barrier(stage); }
  __device__ __forceinline__ u32 done(int stage) const { return barrier(LINEAR_STEP_STAGES + stage); }
  __device__ __forceinline__ u32 filled(int slot) const { return barrier(2 * LINEAR_STEP_STAGES + slot); }
  __device__ __forceinline__ u32 read(int slot) const {
    return barrier(2 * LINEAR_STEP_STAGES + LINEAR_STEP_SLOTS + slot);
  }
  // What row warps say of a slot to state warps.
  __device__ __forceinline__ int &said(int slot) const {
    return reinterpret_cast<int *>(base + LINEAR_STEP_BARRIERS - 4 * LINEAR_STEP_SLOTS)[slot];
  }
  __device__ __forceinline__ Real *rows(int slot) const {
    return reinterpret_cast<Real *>(base + LINEAR_STEP_BARRIERS + slot * step.slot);
  }
  __device__ __forceinline__ u32 part(int stage) const {
    return shared_address(base) + layout_ceil(LINEAR_STEP_BARRIERS + step.slots * step.slot, 128) * 128 +
           stage * step.stage;
  }
  __device__ __forceinline__ void init() const {
    using Roles = StepRoles<Config>;
    for (int i = 0; i < step.stages; ++i) barrier_init(full(i), 1), barrier_init(done(i), Roles::state_warps);
    for (int i = 0; i < step.slots; ++i)
      barrier_init(filled(i), Roles::row_warps), barrier_init(read(i), Roles::state_warps);
    barrier_init_done();
  }

 private:
  __device__ __forceinline__ u32 barrier(int i) const { return shared_address(base) + 8 * i; }
};

// A place that is used again and again, with the parity of its phase.
struct StepPlace {
  int place = 0;
  u32 parity = 0;
  __device__ __forceinline__ void next(int count) {
    if (++place == count) place = 0, parity ^= 1;
  }
};

template <class Config>
struct StepTurn : PartTurn<StepRoles<Config>::parts> {
  using PartTurn<StepRoles<Config>::parts>::PartTurn;
  __device__ __forceinline__ int first_value() const { return this->part * StepRoles<Config>::values; }
};

// ---- copies

// Each lane has the same lines of every part, so that it waits for its own copies alone.
template <class Config>
struct StepCopier {
  using Roles = StepRoles<Config>;
  const LuattnLinearParams &p;
  const int lane, size;
  const bool by_v;

  __device__ __forceinline__ explicit StepCopier(const LuattnLinearParams &p)
      : p(p), lane(int(threadIdx.x % 32)), size(p.first.type == LUATTN_STATE_F32 ? 4 : 2), by_v(p.step.by_v != 0) {}

  __device__ __forceinline__ void load(const StepTurn<Config> &turn, u32 to, u32 full) const {
    const RecurrentAhead head(p, turn);
    if (lane == 0) barrier_arrive_expect(full, head.row < 0 ? 0 : values(turn) * Config::k_dim * size);
    __syncwarp();
    if (head.row >= 0)
      each_line(p.first, head, turn, to, [&](char *at, u32 line, int n) { bulk_load(line, at, n, full); });
  }
  __device__ __forceinline__ void store(const StepTurn<Config> &turn, u32 from) const {
    const RecurrentAhead head(p, turn);
    if (head.row >= 0)
      each_line(p.last, head, turn, from, [&](char *at, u32 line, int n) { bulk_store(at, line, n, true); });
  }

 private:
  LUATTN_FN int values(const StepTurn<Config> &turn) {
    return min_of(Roles::values, Config::v_dim - turn.first_value());
  }
  template <class Copy>
  __device__ __forceinline__ void each_line(const LuattnStates &m, const RecurrentAhead &head,
                                            const StepTurn<Config> &turn, u32 shared, const Copy &copy) const {
    char *const at =
        static_cast<char *>(m.data) + (head.row * m.row + head.hv * m.head + turn.first_value() * m.value) * size;
    const i64 stride = by_v ? m.key : m.value;
    const int n = values(turn), line = (by_v ? n : Config::k_dim) * size;
    if (!by_v && stride == Config::k_dim) {
      if (lane == 0) copy(at, shared, n * line);
      return;
    }
    const int pitch = linear_step_pitch((by_v ? Roles::values : Config::k_dim) * size, by_v);
    for (int i = lane; i < (by_v ? Config::k_dim : n); i += 32) copy(at + i * stride * size, shared + i * pitch, line);
  }
};

template <class Config>
__device__ __forceinline__ void copy_states(const LuattnLinearParams &p, const StepShared<Config> &shared) {
  const StepCopier<Config> copier(p);
  const int stages = p.step.stages;
  StepTurn<Config> asked(p);
  StepPlace asking, through;
  const auto ask = [&]() {
    if (!asked.is_there(p)) return;
    copier.load(asked, shared.part(asking.place), shared.full(asking.place));
    asked.next(), asking.next(stages);
  };
  // The stage that is asked for was sent back two turns before, or one where stages are few.
  const int late = stages > 3 ? 2 : 1;
  for (int i = 0; i < stages - late; ++i) ask();
  for (StepTurn<Config> turn(p); turn.is_there(p); turn.next()) {
    if (late > 1)
      bulk_wait_read_but_last();
    else
      bulk_wait_read();
    ask();
    barrier_wait(shared.done(through.place), through.parity);
    copier.store(turn, shared.part(through.place));
    bulk_commit();
    through.next(stages);
  }
  bulk_wait_read();  // the block's memory is free; what it has written is there once the kernel ends
}

// ---- states

LUATTN_FN void store_shared_words(u32 at, const u32 (&x)[4]) {
  store_shared_16(at, __uint_as_float(x[0]), __uint_as_float(x[1]), __uint_as_float(x[2]), __uint_as_float(x[3]));
}

// A warp's part of a state, from and to shared memory.
template <class Spec, class Config>
struct StepState : RecurrentState<Spec, Config> {
  using Base = RecurrentState<Spec, Config>;
  using Shape = RecurrentShape<Config>;
  using Base::s;
  static constexpr int K = Base::K, V = Base::V, part_values = StepRoles<Config>::values;
  static constexpr bool is_whole = Config::v_dim % part_values == 0;
  const int values;  // that are left from the part on

  // Rows in shared memory have value channel `first_value` of the state first, and those of the part from `offset` on.
  __device__ __forceinline__ StepState(const StateOrder<Config> &order, int first_value, int offset = 0)
      : Base(order, first_value, offset), values(Config::v_dim - first_value - offset) {}

  template <bool Load>
  __device__ __forceinline__ void move_part(const LuattnLinearParams &p, u32 part) {
    if (p.first.type == LUATTN_STATE_F32)
      move_order<Load, float, 4>(p, part);
    else if (p.first.type == LUATTN_STATE_BF16)
      move_order<Load, bf16_t, Shape::half_unit>(p, part);
    else
      move_order<Load, half_t, Shape::half_unit>(p, part);
  }

 private:
  LUATTN_FN int first_of_warp() { return int(threadIdx.x / 32) * Shape::v_warp; }
  template <bool Load, class T, int Unit>
  __device__ __forceinline__ void move_order(const LuattnLinearParams &p, u32 part) {
    if (p.step.by_v)
      move_lines_of_v<Load, T>(part);
    else
      move_lines_of_k<Load, T, Unit>(part);
  }
  template <bool Load, class T, int N>
  __device__ __forceinline__ void move_some(Neighbours<T, N> &some, u32 at) {
    constexpr int words = sizeof(some) / 4;
    if constexpr (Load)
      load_shared_whole(some, at);
    else if constexpr (words == 4)
      store_shared_words(at, some.word);
    else
#pragma unroll
      for (int i = 0; i < words; ++i) store_shared(at + 4 * i, some.word[i]);
  }
  template <bool Load, class T, int Unit>
  __device__ __forceinline__ void move_lines_of_k(u32 part) {
    constexpr int pitch = linear_step_pitch(Config::k_dim * sizeof(T), 0);
    const int first = first_of_warp() + this->group;
    const u32 at = part + first * pitch + this->lane8 * Unit * sizeof(T);
    Neighbours<T, Unit> some[Load ? V * K / Unit : 1];
    if constexpr (Load) {
#pragma unroll
      for (int j = 0; j < V * K / Unit; ++j) some[j] = {};
    }
#pragma unroll
    for (int pass = Load ? 0 : 1; pass < 2; ++pass)  // all are on their way before one is converted
#pragma unroll
      for (int i = 0; i < V; ++i)
#pragma unroll
        for (int n = 0; n < K; n += Unit) {
          auto &x = some[Load ? (i * K + n) / Unit : 0];
          const bool has = (is_whole || first + 4 * i < values) && this->has_channel(this->lane8 * Unit + n * 8);
          if (pass == 1)
#pragma unroll
            for (int c = 0; c < Unit; c += 2) Base::template move_two<Load>(s[i][n + c], s[i][n + c + 1], x, c);
          if (pass == (Load ? 0 : 1) && has) move_some<Load>(x, at + 4 * i * pitch + n * 8 * int(sizeof(T)));
        }
  }
  template <bool Load, class T>
  __device__ __forceinline__ void move_lines_of_v(u32 part) {
    constexpr int pitch = linear_step_pitch(part_values * sizeof(T), 1);
    const int v = first_of_warp() + this->group * V;
    const u32 at = part + this->lane8 * pitch + v * sizeof(T);
    Neighbours<T, V> some[Load ? K : 1];
    if constexpr (Load) {
#pragma unroll
      for (int j = 0; j < K; ++j) some[j] = {};
    }
#pragma unroll
    for (int pass = Load ? 0 : 1; pass < 2; ++pass)
#pragma unroll
      for (int n = 0; n < K; ++n) {
        auto &x = some[Load ? n : 0];
        const bool has = (is_whole || v < values) && this->has_channel(this->lane8 + n * 8);
        if (pass == 1)
#pragma unroll
          for (int i = 0; i < V; i += 2) Base::template move_two<Load>(s[i][n], s[i + 1][n], x, i);
        if (pass == (Load ? 0 : 1) && has) move_some<Load>(x, at + n * 8 * pitch);
      }
  }
};
