// linear/recurrent/step_part.cuh: one token of many states whose lines are along K. A block has a few value channels of a head, and
// comes and goes, in the order of memory: what is under way is then a narrow band of addresses, which memory serves fastest.
//
// Each warp asks for its part of the state before all else, and writes it back by one bulk copy, which is faster than stores of
// threads. Hooks are run for each part of a head anew.
#pragma once
#include "arch/early_launch.cuh"
#include "linear/recurrent/recurrent_rows.cuh"
#include "linear/recurrent/recurrent_state.cuh"
#include "tma/bulk_copies.cuh"

template <class Config, bool Half>
struct PartConfig : Config {
  static constexpr int v_block = Half ? LINEAR_PART_HALF_VALUES : LINEAR_PART_VALUES,
                       v_lane = v_block / (LINEAR_PART_THREADS / 8);
};

// A warp's part: Unit neighbours a lane, as memory has them.
template <class Spec, class Config, class T, int Unit>
struct PartState : RecurrentState<Spec, Config> {
  using Base = RecurrentState<Spec, Config>;
  using Shape = RecurrentShape<Config>;
  using Base::first, Base::group, Base::lane8, Base::s;
  static constexpr int K = Base::K, V = Base::V, values = 4 * V, line = Config::k_dim * sizeof(T);
  static constexpr bool is_whole = Config::v_dim % Config::v_block == 0;
  Neighbours<T, Unit> raw[V * K / Unit];

  using Base::Base;

  __device__ __forceinline__ bool has(int i, int n) const {
    return (is_whole || first + group + 4 * i < Config::v_dim) && this->has_channel(lane8 * Unit + n * 8);
  }
  __device__ __forceinline__ T *place(const LuattnStates &m, i64 row, int hv) const {
    return static_cast<T *>(m.data) + row * m.row + hv * m.head + first * m.value;
  }
  __device__ __forceinline__ void ask(const LuattnStates &m, i64 row, int hv) {
    const T *from = place(m, row, hv) + group * m.value + lane8 * Unit;
    const unsigned long long policy = l2_policy<L2_LAST>();
#pragma unroll
    for (int i = 0; i < V; ++i, from += 4 * m.value)
#pragma unroll
      for (int n = 0; n < K; n += Unit) {
        auto &x = raw[(i * K + n) / Unit];
        x = {};
        if constexpr (sizeof(x) == 16) {
          if (has(i, n)) {
            const uint4 y = load_as(from + n * 8, policy);
            x.word[0] = y.x, x.word[1] = y.y, x.word[2] = y.z, x.word[3] = y.w;
          }
        } else if (has(i, n)) {
          load_whole(x, from + n * 8);
        }
      }
  }
  template <bool Load>
  __device__ __forceinline__ void convert() {
#pragma unroll
    for (int i = 0; i < V; ++i)
#pragma unroll
      for (int n = 0; n < K; n += 2)
        Base::template move_two<Load>(s[i][n], s[i][n + 1], raw[(i * K + n) / Unit], n % Unit);
  }
  // By way of shared memory, which lane 0 lets nobody have before the copy has read it.
  __device__ __forceinline__ void put(const LuattnStates &m, i64 row, int hv, u32 shared) {
    const int lane = int(threadIdx.x % 32), left = min_of(values, Config::v_dim - first);
    shared += int(threadIdx.x / 32) * values * line;
    convert<false>();
#pragma unroll
    for (int i = 0; i < V; ++i)
#pragma unroll
      for (int n = 0; n < K; n += Unit)
        if (has(i, n))
          store_words(shared + (group + 4 * i) * line + (lane8 * Unit + n * 8) * int(sizeof(T)),
                      raw[(i * K + n) / Unit]);
    fence_async();
    __syncwarp();
    T *const to = place(m, row, hv);
    if (m.value == Config::k_dim) {
      if (lane == 0 && left > 0) bulk_store(to, shared, left * line, true);
    } else if (lane < left) {
      bulk_store(to + lane * m.value, shared + lane * line, line, true);
    }
    bulk_commit();
  }

 private:
  template <int N>
  LUATTN_FN void store_words(u32 at, const Neighbours<T, N> &x) {
    constexpr int words = sizeof(x) / 4;
    if constexpr (words == 4)
      store_shared_16(at, __uint_as_float(x.word[0]), __uint_as_float(x.word[1]), __uint_as_float(x.word[2]),
                      __uint_as_float(x.word[3]));
    else
#pragma unroll
      for (int i = 0; i < words; ++i) store_shared(at + 4 * i, x.word[i]);
  }
};

template <class Spec, class Config, class T, int Unit>
__device__ __forceinline__ void step_part_of(const LuattnLinearParams &p, const RecurrentPlace<Config> &place,
                                             const RecurrentRows<Spec, Config> &rows, u32 staged) {
  PartState<Spec, Config, T, Unit> state(rows.order, rows.first_value);
  state.ask(p.first, place.row, place.site.hv);
  rows.fill(0, 1);
  __syncthreads();
  state.template convert<true>();
  state.step(rows.of(0));
  state.put(p.last, place.row, place.site.hv, staged);
  __syncthreads();
  rows.store(0, 1);
  bulk_wait_read();
}

template <class Spec, class Walk, bool Half>
__device__ __forceinline__ void step_part(const LuattnLinearParams &p, unsigned char *base) {
  using Config = PartConfig<Walk, Half>;
  using Real = typename Config::Number;
  constexpr int parts = ceil_div(Config::v_dim, Config::v_block), unit = RecurrentShape<Config>::half_unit,
                staged = layout_ceil(TokenLayout<Spec, Config>::size * int(sizeof(Real)), 128) * 128;
  let_next_start();
  wait_for_previous();
  const HeadPart<parts> own;
  const RecurrentPlace<Config> place(p, own.head);
  const StateOrder<Config> order(p.first);
  const RecurrentRows<Spec, Config> rows{
      p, place, order, reinterpret_cast<Real *>(base), own.part * Config::v_block, Config::v_block};
  const u32 to = shared_address(base) + staged;
  if (place.row < 0)
    rows.store_zeros();
  else if constexpr (!Half)
    step_part_of<Spec, Config, float, 4>(p, place, rows, to);
  else if (p.first.type == LUATTN_STATE_BF16)
    step_part_of<Spec, Config, bf16_t, unit>(p, place, rows, to);
  else
    step_part_of<Spec, Config, half_t, unit>(p, place, rows, to);
}
