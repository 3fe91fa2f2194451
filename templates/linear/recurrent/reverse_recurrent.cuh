// linear/recurrent/reverse_recurrent.cuh: gradients of linear attention token by token, whatever the class, in three kernels:
//
//   luattn_linear_runs      the walk of fwd_recurrent.cuh, which keeps the state before each run of tokens
//   luattn_linear_reverse   a block for a value head: for each run, the last one first, walks again and keeps the state before
//                           each token, then takes the gradient of the state back over these. Rows of gradients behind hooks,
//                           of each value head, go to memory
//   luattn_linear_hooks     (reverse_hooks.cuh) a warp for a token and head of q: through the hooks
//
// All sums have one order.
#pragma once
#include "linear/recurrent/fwd_recurrent.cuh"
#include "linear/recurrent/reverse_state.cuh"

// The order of states that kernels of backward keep.
template <class Config>
LUATTN_FN StateOrder<Config> kept_order() {
  return StateOrder<Config>(LuattnStates{nullptr, 0, 0, Config::k_dim, 1, state_type_of<typename Config::Number>, 0});
}

// What the kernels hand on.
template <class Spec, class Config>
struct ReverseRows {
  using Of = KeyGradients<Spec>;
  using Real = typename Config::Number;
  static constexpr int K = Config::k_dim, V = Config::v_dim + Spec::normalizes;
  const LuattnLinearParams &p;
  const RecurrentPlace<Config> &place;

  __device__ __forceinline__ i64 of_head(int t) const { return place.row_of_all(p, t) * p.heads_v + place.site.hv; }
  __device__ __forceinline__ Real *keys(int t, int which) const {
    return static_cast<Real *>(p.reverse.keys) + (of_head(t) * Of::count + which) * K;
  }
  __device__ __forceinline__ Real *written(int t) const {
    return static_cast<Real *>(p.reverse.written) + of_head(t) * V;
  }
  __device__ __forceinline__ Real *sum(int t) const { return static_cast<Real *>(p.reverse.sums) + of_head(t); }
  // The state before run number `run`; V of K neighbours.
  __device__ __forceinline__ LuattnStates start(int run) const {
    const i64 slot = place.row_of_all(p, 0) / Config::run + place.entry + run;
    Real *const at = static_cast<Real *>(p.reverse.starts) + (slot * p.heads_v + place.site.hv) * (i64(V) * K);
    return {at, 0, 0, K, 1, state_type_of<Real>, 0};
  }
};

template <class Spec, class Config>
struct ReverseWalk {
  using Layout = TokenLayout<Spec, Config>;
  using Of = KeyGradients<Spec>;
  using State = ReverseState<Spec, Config>;
  using Real = typename Config::Number;
  static constexpr int K = State::K, V = State::V, k_dim = RecurrentShape<Config>::k_dim;
  // Shared memory, in numbers: rows of a batch, gradients of what q reads, and each warp's gradients of rows along K, twice.
  static constexpr int read_grads = Config::batch * Layout::size, d_sum = read_grads + Config::batch * Config::v_block,
                       d_one = d_sum + Config::batch, parts = (d_one + Config::batch + 3) / 4 * 4,
                       part = Of::count * k_dim, size = parts + 2 * (Config::threads / 32) * part;

  const LuattnLinearParams &p;
  const RecurrentPlace<Config> &place;
  const RecurrentRows<Spec, Config> &rows;
  const ReverseRows<Spec, Config> to;
  Real *const shared;
  const bool is_first;  // of the blocks of value channels, whose gradients of rows along K are added up

  __device__ __forceinline__ int value_place(int v) const { return kept_order<Config>().value_place(v); }
  __device__ __forceinline__ int channel_place(int d) const { return kept_order<Config>().place(d); }

  // A token's state in memory, the thread's own numbers.
  using Four = Neighbours<Real, 4>;
  __device__ __forceinline__ Four *kept(int i) const {
    const i64 each = V * K / 4 + (Spec::normalizes ? K / 4 : 0);
    return static_cast<Four *>(p.reverse.states) + (i64(number_of_head()) * Config::run + i) * each * Config::threads +
           threadIdx.x;
  }
  __device__ __forceinline__ u32 number_of_head() const {
    return u32(place.entry) * u32(p.heads_v) + u32(place.site.hv);
  }
  template <bool Load, int N>
  LUATTN_FN void move(Real (&x)[N], Four *&at) {
#pragma unroll
    for (int n = 0; n < N; n += 4, at += Config::threads) {
      if constexpr (Load) {
        const Four y = *at;
#pragma unroll
        for (int c = 0; c < 4; ++c) x[n + c] = y.x[c];
      } else {
        *at = {x[n], x[n + 1], x[n + 2], x[n + 3]};
      }
    }
  }
  template <bool Load>
  __device__ __forceinline__ void move(State &state, int i) const {
    Four *at = kept(i);
#pragma unroll
    for (int v = 0; v < V; ++v) move<Load>(state.s[v], at);
    if constexpr (Spec::normalizes) move<Load>(state.ones, at);
  }

  // Keeps the state before each token of a run.
  __device__ __forceinline__ void replay(State &state, int begin, int end) const {
    for (int first = begin; first < end; first += Config::batch) {
      const int count = min_of(Config::batch, end - first);
      __syncthreads();
      rows.fill(first, count);
      __syncthreads();
      for (int i = 0; i < count; ++i) {
        move<false>(state, first - begin + i);
        state.step(rows.of(i));
      }
    }
  }
  // The gradient of what q reads, of that of o: o is divided by a sum where it is normalised.
  __device__ __forceinline__ void load_dout(int first, int count) const {
    const int lane = int(threadIdx.x % 32);
    for (int i = int(threadIdx.x / 32); i < count; i += Config::threads / 32) {
      const auto *from = place.template at<const typename Config::Elem>(p.rows.dout, place.site.hv, first + i);
      const Real *o = place.template at<const Real>(p.o, place.site.hv, first + i);
      Real factor = Spec::normalizes ? Real(1) / Real(*to.sum(first + i)) : scale_of<Real>(p), dot = 0;
      for (int v = lane; v < Config::v_dim; v += 32) {
        const Real x = from == nullptr ? Real(0) : factor * Real(to_real(from[v]));
        const int of_block = v - rows.first_value;
        if (of_block >= 0 && of_block < rows.block_values)
          shared[read_grads + i * Config::v_block + value_place(of_block)] = x;
        if constexpr (Spec::normalizes) dot = op_fma(x, o[v], dot);
      }
      for (int v = Config::v_dim - rows.first_value + lane; v < rows.block_values; v += 32)
        if (v >= 0) shared[read_grads + i * Config::v_block + value_place(v)] = 0;
      if constexpr (Spec::normalizes) dot = warp_sum(dot);
      if (lane == 0) shared[d_sum + i] = -dot;
    }
  }
  // Adds up what warps have of a token's gradients along K.
  __device__ __forceinline__ void store_keys(int t, int half) const {
    for (int i = int(threadIdx.x); i < Of::count * Config::k_dim; i += Config::threads) {
      const int which = i / Config::k_dim, d = i % Config::k_dim, at = which * k_dim + channel_place(d);
      Real x = 0;
      for (int w = 0; w < Config::threads / 32; ++w)
        x += shared[parts + (half * (Config::threads / 32) + w) * part + at];
      Real *const out = to.keys(t, which) + d;
      *out = is_first ? x : *out + x;
    }
  }
  __device__ __forceinline__ void back_batch(State &state, int begin, int first, int count) const {
    __syncthreads();
    rows.fill(first, count);
    load_dout(first, count);
    __syncthreads();
    for (int i = count - 1; i >= 0; --i) {
      const int half = i % 2, at = parts + (half * (Config::threads / 32) + int(threadIdx.x / 32)) * part;
      move<true>(state, first - begin + i);
      state.back(rows.of(i), shared + read_grads + i * Config::v_block, shared[d_sum + i],
                 [&](int which, int n, Real(&x)[4]) {
#pragma unroll
                   for (int c = 0; c < 4; ++c) {
                     x[c] += __shfl_xor_sync(0xffffffffu, x[c], 8);
                     x[c] += __shfl_xor_sync(0xffffffffu, x[c], 16);
                     if (state.group == 0) shared[at + which * k_dim + n * 8 + state.lane8 * 4 + c] = x[c];
                   }
                 });
      if (Spec::normalizes && threadIdx.x == 0) shared[d_one + i] = state.of_one;
      __syncthreads();
      store_keys(first + i, half);
    }
    __syncthreads();
    store_written(first, count);
  }
  __device__ __forceinline__ void store_written(int first, int count) const {
    const int n = min_of(rows.block_values, Config::v_dim - rows.first_value);
    for (int i = int(threadIdx.x); i < count * n; i += Config::threads)
      to.written(first + i / n)[rows.first_value + i % n] =
          shared[read_grads + i / n * Config::v_block + value_place(i % n)];
    if (Spec::normalizes && is_first)
      for (int i = int(threadIdx.x); i < count; i += Config::threads)
        to.written(first + i)[Config::v_dim] = shared[d_one + i];
  }
};

template <class Spec, class Config>
__device__ __forceinline__ void recurrent_runs(const LuattnLinearParams &p, typename Config::Number *shared) {
  fwd_recurrent<Spec, Config>(
      p, shared, kept_order<Config>(),
      [](const LuattnLinearParams &p, const RecurrentPlace<Config> &place, int t, const auto &store) {
        if (t < place.tokens && t % Config::run == 0)
          store(ReverseRows<Spec, Config>{p, place}.start(t / Config::run), place.row);
      });
}

template <class Spec, class Config>
__device__ __forceinline__ void reverse_recurrent(const LuattnLinearParams &p, typename Config::Number *shared) {
  using Walk = ReverseWalk<Spec, Config>;
  const RecurrentPlace<Config> place(p);
  const StateOrder<Config> order = kept_order<Config>();
  if (place.row < 0) return;
  const int values = Config::threads / 32 * RecurrentShape<Config>::v_warp, runs = ceil_div(place.tokens, Config::run);
  for (int first = 0; first < Config::v_dim; first += values) {
    const RecurrentRows<Spec, Config> rows{p, place, order, shared, first, values};
    const Walk walk{p, place, rows, {p, place}, shared, first == 0};
    typename Walk::State state(order, first);
    state.load_gradient(p.reverse.dlast, place);
    for (int run = runs - 1; run >= 0; --run) {
      const int begin = run * Config::run, end = min_of(begin + Config::run, place.tokens);
      state.load_from(walk.to.start(run), place);
      walk.replay(state, begin, end);
      for (int at = (end - 1 - begin) / Config::batch * Config::batch + begin; at >= begin; at -= Config::batch)
        walk.back_batch(state, begin, at, min_of(Config::batch, end - at));
    }
    state.store_gradient(p.reverse.dfirst, place, first + values >= Config::v_dim);
    __syncthreads();
  }
}
