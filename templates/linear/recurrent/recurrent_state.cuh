// linear/recurrent/recurrent_state.cuh: a warp's part of a state in registers: from and to memory, and over a token.
#pragma once
#include "arch/mma.cuh"
#include "linear/recurrent/recurrent_shape.cuh"

template <class Real>
LUATTN_FN void load_four(Real (&x)[4], const Real *from) {
  if constexpr (sizeof(Real) == 4) {
    const float4 y = *reinterpret_cast<const float4 *>(from);
    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = from[i];
  }
}

// Neighbours in memory that are moved at once.
template <class T, int Count>
union alignas(sizeof(T) * Count < 16 ? sizeof(T) * Count : 16) Neighbours {
  T x[Count];
  u32 word[sizeof(T) * Count / 4];
};

// Loads x, of 4, 8 or 16 bytes, from shared memory.
template <class T>
LUATTN_FN void load_shared_whole(T &x, u32 address) {
  union {
    T x;
    uint4 four;
    u32 one[sizeof(T) / 4];
  } u;
  if constexpr (sizeof(T) == 16) {
    u.four = load_shared_16(address);
  } else {
#pragma unroll
    for (int i = 0; i < int(sizeof(T) / 4); ++i) u.one[i] = load_shared(address + 4 * i);
  }
  x = u.x;
}

// The same from memory.
template <class T>
LUATTN_FN void load_whole(T &x, const void *from) {
  union {
    T x;
    uint4 four;
    uint2 two;
    u32 one;
  } u;
  if constexpr (sizeof(T) == 16)
    u.four = *static_cast<const uint4 *>(from);
  else if constexpr (sizeof(T) == 8)
    u.two = *static_cast<const uint2 *>(from);
  else
    u.one = *static_cast<const u32 *>(from);
  x = u.x;
}

// 16 bytes of memory, that L2 keeps or does not, as `policy` says; not moved behind what follows.
LUATTN_FN uint4 load_as(const void *from, unsigned long long policy) {
  uint4 x;
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(__cvta_generic_to_global(from)), "l"(policy));
  return x;
}

template <class Spec, class Config>
struct RecurrentState {
  using Shape = RecurrentShape<Config>;
  using Layout = TokenLayout<Spec, Config>;
  using Real = typename Config::Number;
  static constexpr int K = Shape::k_lane, V = Shape::v_lane;

  const StateOrder<Config> order;
  const int lane8, group;
  const int first;    // the warp's first value channel
  const int written;  // where the lane's lie in a block's rows
  Real s[V][K];
  Real ones[Spec::normalizes ? K : 1];  // of the channel that is always 1, which every warp has

  // Of value channels first_value + offset on; rows in shared memory begin with first_value.
  __device__ __forceinline__ RecurrentState(const StateOrder<Config> &order, int first_value, int offset = 0)
      : order(order),
        lane8(int(threadIdx.x % 8)),
        group(int(threadIdx.x % 32 / 8)),
        first(first_value + offset + int(threadIdx.x / 32) * Shape::v_warp),
        written(offset + int(threadIdx.x / 32) * Shape::v_warp + group * V) {}

  // ---- memory

  __device__ __forceinline__ void load(const LuattnLinearParams &p, const RecurrentPlace<Config> &place) {
    load_from(p.first, place);
  }
  __device__ __forceinline__ void load_from(const LuattnStates &m, const RecurrentPlace<Config> &place) {
    clear();
    if (m.data != nullptr) move_as<true>(m, place.row, place.site.hv);
  }
  // `with_sum`: the sum's as well, which later value channels still read.
  __device__ __forceinline__ void store(const LuattnLinearParams &p, const RecurrentPlace<Config> &place,
                                        bool with_sum) {
    store_to(p.last, place, with_sum);
  }
  __device__ __forceinline__ void store_to(const LuattnStates &m, const RecurrentPlace<Config> &place, bool with_sum) {
    if (m.data != nullptr) move_as<false>(m, place.row, place.site.hv, with_sum);
  }

  __device__ __forceinline__ void store_to(const LuattnStates &m, i64 row, int hv, bool with_sum) {
    if (m.data != nullptr) move_as<false>(m, row, hv, with_sum);
  }

  // ---- a token

  // row: its rows; o of it goes there.
  __device__ __forceinline__ void step(Real *row) {
    Real y[V] = {}, u[V], o[V] = {};
    if constexpr (Spec::Read::given && Spec::before) read<false>(row, y);
    if constexpr (Spec::Decay::given) forget(row);
    if constexpr (Spec::Read::given && !Spec::before) read<true>(row, y);
    values(row, u);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if constexpr (Spec::Read::given && !Spec::Erase::given) u[i] -= y[i];
    }
    Real sum = 0;
#pragma unroll
    for (int n = 0; n < K; n += 4) write(row, n, u, y, o, sum);
    add_lanes(o);
    if (lane8 == 0) {
#pragma unroll
      for (int i = 0; i < V; ++i) row[Layout::o + written + i] = o[i];
    }
    if constexpr (Spec::normalizes) {
      Real of_lane[1] = {sum};
      add_lanes(of_lane);
      if (threadIdx.x == 0) row[Layout::sum] = of_lane[0];
    }
  }

 protected:
  template <int N>
  LUATTN_FN void add_lanes(Real (&x)[N]) {
#pragma unroll
    for (int m = 1; m < 8; m *= 2)
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] += __shfl_xor_sync(0xffffffffu, x[i], m);
  }
  // What is written to the lane's value channels.
  __device__ __forceinline__ void values(const Real *row, Real (&u)[V]) const {
    if constexpr (V == 4) {
      load_four(u, row + Layout::written + written);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) u[i] = row[Layout::written + written + i];
    }
  }
  __device__ __forceinline__ void four(const Real *row, int at, int n, Real (&x)[4]) const {
    load_four(x, row + at + n * 8 + lane8 * 4);
  }
  // What has decayed to nothing is gone, were it infinite.
  __device__ __forceinline__ void forget(const Real *row) {
    if (row[Layout::gone] == 0) return;
    if constexpr (Layout::decays_channels) {
#pragma unroll
      for (int n = 0; n < K; n += 4) {
        Real f[4];
        four(row, Layout::decay, n, f);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
#pragma unroll
          for (int i = 0; i < V; ++i) s[i][n + c] = f[c] == 0 ? Real(0) : s[i][n + c];
          if constexpr (Spec::normalizes) ones[n + c] = f[c] == 0 ? Real(0) : ones[n + c];
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < K; ++n) {
#pragma unroll
        for (int i = 0; i < V; ++i) s[i][n] = 0;
        if constexpr (Spec::normalizes) ones[n] = 0;
      }
    }
  }
  // y = r' S, of the state behind its decay, which s is not yet.
  template <bool Decayed>
  __device__ __forceinline__ void read(const Real *row, Real (&y)[V]) const {
#pragma unroll
    for (int n = 0; n < K; n += 4) {
      Real r[4], f[4];
      four(row, Layout::read, n, r);
      if constexpr (Decayed && Layout::decays_channels) four(row, Layout::decay, n, f);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if constexpr (Decayed && Layout::decays_channels) r[c] *= f[c];
#pragma unroll
        for (int i = 0; i < V; ++i) y[i] = op_fma(r[c], s[i][n + c], y[i]);
      }
    }
    add_lanes(y);
    if constexpr (Decayed && Spec::Decay::given && !Layout::decays_channels) {
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] *= row[Layout::factor];
    }
  }
  // Four channels of K: what decay leaves, less what is erased, and what is written; o of these.
  __device__ __forceinline__ void write(const Real *row, int n, const Real (&u)[V], const Real (&y)[V], Real (&o)[V],
                                        Real &sum) {
    Real q[4], k[4], f[4], e[4];
    four(row, Layout::q, n, q), four(row, Layout::k, n, k);
    if constexpr (Layout::decays_channels) four(row, Layout::decay, n, f);
    if constexpr (Spec::Erase::given) four(row, Layout::erase, n, e);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const Real left = Layout::decays_channels ? f[c] : Spec::Decay::given ? row[Layout::factor] : Real(1);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        Real &x = s[i][n + c];
        if constexpr (Spec::Decay::given) x *= left;
        if constexpr (Spec::Erase::given) x = op_fma(-e[c], y[i], x);
        x = op_fma(k[c], u[i], x);
        o[i] = op_fma(q[c], x, o[i]);
      }
      if constexpr (Spec::normalizes) {
        Real &x = ones[n + c];
        if constexpr (Spec::Decay::given) x *= left;
        x = op_fma(k[c], row[Layout::one], x);
        sum = op_fma(q[c], x, sum);
      }
    }
  }

  // ---- memory

  __device__ __forceinline__ bool has_value(int v) const {
    return Config::v_dim % Config::v_block == 0 || v < Config::v_dim;
  }
  __device__ __forceinline__ bool has_channel(int d) const {
    return Config::k_dim == Shape::k_dim || d < Config::k_dim;
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < V; ++i)
#pragma unroll
      for (int n = 0; n < K; ++n) s[i][n] = 0;
#pragma unroll
    for (int n = 0; n < (Spec::normalizes ? K : 1); ++n) ones[n] = 0;
  }
  template <bool Load>
  __device__ __forceinline__ void move_as(const LuattnStates &m, i64 row, int hv, bool with_sum = true) {
    if constexpr (sizeof(Real) == 8)
      if (m.type == LUATTN_STATE_F64) return move<Load, double, 4>(m, row, hv, with_sum);
    if (m.type == LUATTN_STATE_F32)
      move<Load, float, 4>(m, row, hv, with_sum);
    else if (m.type == LUATTN_STATE_BF16)
      move<Load, bf16_t, Shape::half_unit>(m, row, hv, with_sum);
    else
      move<Load, half_t, Shape::half_unit>(m, row, hv, with_sum);
  }
  template <bool Load, class T, int Unit>
  __device__ __forceinline__ void move(const LuattnStates &m, i64 row, int hv, bool with_sum) {
    T *const at = static_cast<T *>(m.data) + row * m.row + here(hv) * m.head;
    const u64 places = reinterpret_cast<u64>(m.data) | u64(m.row | m.head) * sizeof(T);
    const bool by_k = m.key == 1 && (places | u64(m.value) * sizeof(T)) % 16 == 0 && 1 << order.log2_unit == Unit;
    const bool by_v = m.value == 1 && (places | u64(m.key) * sizeof(T)) % 16 == 0 && order.along_v();
    constexpr bool is_word = V * sizeof(T) >= 4;  // what neighbours take at least
    if (by_k) {
      move_by_k<Load, T, Unit>(at, here(i64(m.value)));
    } else if (is_word && by_v) {
      if constexpr (is_word) move_by_v<Load, T>(at, here(i64(m.key)));
    } else {
      move_singly<Load, T>(at, here(i64(m.value)), here(i64(m.key)));
    }
    if (Spec::normalizes && with_sum) move_ones<Load, T>(at + Config::v_dim * m.value, m.key);
  }
  template <bool Load, class T>
  LUATTN_FN void move_number(Real &x, T *at) {
    if constexpr (Load)
      x = Real(to_real(*at));
    else if constexpr (sizeof(T) == 2)
      *at = from_real<T>(float(x));
    else
      *at = from_real<T>(x);
  }
  // Numbers c and c + 1; of 16 bits they are rounded by twos.
  template <bool Load, class T, int N>
  LUATTN_FN void move_two(Real &x, Real &y, Neighbours<T, N> &some, int c) {
    if constexpr (!Load && sizeof(T) == 2)
      some.word[c / 2] = pack<T>(float(x), float(y));
    else
      move_number<Load>(x, &some.x[c]), move_number<Load>(y, &some.x[c + 1]);
  }
  template <bool Load, class T, int Unit>
  __device__ __forceinline__ void move_by_k(T *at, i64 value) {
    using Some = Neighbours<T, Unit>;
    const int first_v = here(first + group);
    at += first_v * value + lane8 * Unit;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int v = first_v + 4 * i;
      T *const of_v = at + 4 * i * value;
#pragma unroll
      for (int n = 0; n < K; n += Unit) {
        if (!has_value(v) || !has_channel(lane8 * Unit + n * 8)) continue;
        Some some, *const place = reinterpret_cast<Some *>(of_v + n * 8);
        if constexpr (Load) some = *place;
#pragma unroll
        for (int c = 0; c < Unit; c += 2) move_two<Load>(s[i][n + c], s[i][n + c + 1], some, c);
        if constexpr (!Load) *place = some;
      }
    }
  }
  template <bool Load, class T>
  __device__ __forceinline__ void move_by_v(T *at, i64 key) {
    using Some = Neighbours<T, V>;
    const int v = here(first + group * V);
    at += lane8 * key + v;
#pragma unroll
    for (int n = 0; n < K; ++n) {
      if (!has_value(v) || !has_channel(lane8 + n * 8)) continue;
      Some some, *const place = reinterpret_cast<Some *>(at + n * 8 * key);
      if constexpr (Load) some = *place;
#pragma unroll
      for (int i = 0; i < V; i += 2 - V % 2) {
        if constexpr (V % 2 == 0)
          move_two<Load>(s[i][n], s[i + 1][n], some, i);
        else
          move_number<Load>(s[i][n], &some.x[i]);
      }
      if constexpr (!Load) *place = some;
    }
  }
  // Of any strides, in any order: one by one, as addresses of all would need more registers than there are.
  template <bool Load, class T>
  __device__ __forceinline__ void move_singly(T *at, i64 value, i64 key) {
#pragma unroll 1
    for (int n = 0; n < K; ++n) {
      const int d = order.channel(lane8, n);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const int v = first + order.value(group, i);
        const bool has = has_value(v) && has_channel(d);
        Real x = 0;
        if (Load && has) move_number<true>(x, at + v * value + d * key);
#pragma unroll
        for (int m = 0; m < K; ++m) {
          if (Load && m == n) s[i][m] = x;
          if (!Load && m == n) x = s[i][m];
        }
        if (!Load && has) move_number<false>(x, at + v * value + d * key);
      }
    }
  }
  // Every warp reads them, the first one writes them.
  template <bool Load, class T>
  __device__ __forceinline__ void move_ones(T *at, i64 key) {
    if (!Load && threadIdx.x >= 8) return;
#pragma unroll
    for (int n = 0; n < K; ++n) {
      const int d = order.channel(lane8, n);
      if (has_channel(d)) move_number<Load>(ones[n], at + d * key);
    }
  }
};
