// linear/recurrent/recurrent_rows.cuh: the hooks of a batch of tokens, a warp for a row, to shared memory; and o from there.
#pragma once
#include "linear/recurrent/recurrent_shape.cuh"
#include "ops/math.cuh"

inline constexpr float least_logarithm = -1000.f;  // of a decay: what lies below counts as that

template <class Real>
LUATTN_FN Real warp_sum(Real x) {
#pragma unroll
  for (int m = 16; m > 0; m /= 2) x += __shfl_xor_sync(0xffffffffu, x, m);
  return x;
}

// A hook over a row of Dim channels, of which a lane has lane, lane + 32, ..
template <class Hook, int Dim, class Real>
struct HookRow {
  static constexpr int count = ceil_div(Dim, 32);
  static constexpr bool whole = Dim % 32 == 0;
  using Row = Real[count];

  const LuattnLinearParams &p;
  const LinearSite &s;
  const int t, lane;

  __device__ __forceinline__ int channel(int j) const { return lane + 32 * j; }
  __device__ __forceinline__ bool has(int j) const { return whole || channel(j) < Dim; }

  __device__ __forceinline__ void add_up(const Row &x, Real *sums) const {
    if constexpr (Hook::sums > 0) {
#pragma unroll
      for (int i = 0; i < Hook::sums; ++i) sums[i] = 0;
#pragma unroll
      for (int j = 0; j < count; ++j)
        if (has(j)) Hook::terms(p, s, x[j], t, channel(j), sums);
#pragma unroll
      for (int i = 0; i < Hook::sums; ++i) sums[i] = warp_sum(sums[i]);
    }
  }
  // y may be x. Of channels that the row lacks: 0.
  __device__ __forceinline__ void run(const Row &x, Row &y) const {
    Real sums[Hook::sums > 0 ? Hook::sums : 1];
    add_up(x, sums);
#pragma unroll
    for (int j = 0; j < count; ++j) y[j] = has(j) ? Real(Hook::value(p, s, x[j], t, channel(j), sums)) : Real(0);
  }
  // Of a hook that is the same at every channel, and reads no element.
  __device__ __forceinline__ Real number() const {
    const Row none = {};
    Real sums[Hook::sums > 0 ? Hook::sums : 1];
    add_up(none, sums);
    return Real(Hook::value(p, s, Real(0), t, 0, sums));
  }
};

// The type of o: in runs for backward numbers that are not rounded.
template <class Config, int Run = Config::run>
struct RecurrentOut {
  using Type = typename Config::Number;
};
template <class Config>
struct RecurrentOut<Config, 0> {
  using Type = typename Config::Elem;
};

template <class Spec, class Config>
struct RecurrentRows {
  using Shape = RecurrentShape<Config>;
  using Layout = TokenLayout<Spec, Config>;
  using Real = typename Config::Number;
  using Elem = typename Config::Elem;
  using Out = typename RecurrentOut<Config>::Type;
  static constexpr int parts = 3;  // of a token's rows, which have a warp each

  const LuattnLinearParams &p;
  const RecurrentPlace<Config> &place;
  const StateOrder<Config> order;
  Real *const shared;
  const int first_value, block_values;                    // of the block
  const int first_thread = 0, threads = int(blockDim.x);  // that share the work

  __device__ __forceinline__ int own_thread() const { return here(int(threadIdx.x)) - first_thread; }
  __device__ __forceinline__ Real *of(int i) const { return shared + i * Layout::size; }

  // Tokens first .. first + count.
  __device__ __forceinline__ void fill(int first, int count) const {
    const int thread = own_thread(), lane = thread % 32, warps = threads / 32;
    for (int i = thread / 32; i < count * parts; i += warps) {
      const int part = i % parts, t = first + i / parts;
      Real *to = of(i / parts);
      if (part == 0) fill_query(to, t, lane);
      if (part == 1) fill_keys(to, t, lane);
      if (part == 2) fill_values(to, t, lane);
    }
  }

  // Asks for the rows of the first tokens of another value head to come to L2.
  __device__ __forceinline__ void prefetch(const RecurrentPlace<Config> &next) const {
    constexpr int of_k = ceil_div(Config::k_dim * int(sizeof(Elem)), 128),
                  of_v = ceil_div(Config::v_dim * int(sizeof(Elem)), 128);
    const int count = next.row < 0 ? 0 : min_of(Config::batch, next.tokens);
    for (int i = own_thread(); i < count * (2 * of_k + of_v); i += threads) {
      const int t = i / (2 * of_k + of_v), line = i % (2 * of_k + of_v);
      const char *from =
          reinterpret_cast<const char *>(line < of_k       ? next.template at<const Elem>(p.q, next.site.h, t)
                                         : line < 2 * of_k ? next.template at<const Elem>(p.k, next.site.h, t)
                                                           : next.template at<const Elem>(p.v, next.site.hv, t));
      const int at = line < 2 * of_k ? line % of_k : line - 2 * of_k;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at * 128));
    }
  }

  // o of these, behind the sums over K; in runs for backward what is divided by the sum, without what skips, and not rounded:
  // gradients of q are differences to it.
  __device__ __forceinline__ void store(int first, int count) const {
    const int n = min_of(block_values, Config::v_dim - first_value);
    for (int t = 0; t < count; ++t) {
      const Real *from = of(t);
      Out *const to = place.template at<Out>(p.o, place.site.hv, first + t) + first_value;
      if constexpr (Spec::normalizes && Config::run > 0)
        if (own_thread() == 0)
          static_cast<Real *>(p.reverse.sums)[place.row_of_all(p, first + t) * p.heads_v + place.site.hv] =
              from[Layout::sum];
      for (int v = own_thread(); v < n; v += threads) {
        const int at = order.value_place(v);
        Real x = from[Layout::o + at];
        if constexpr (Spec::normalizes)
          x = x / from[Layout::sum];
        else
          x *= scale_of<Real>(p);
        if constexpr (Spec::Skip::given && Config::run == 0) x += from[Layout::skip + at];
        to[v] = from_real<Out>(x);
      }
    }
  }
  // Of an entry without a state.
  __device__ __forceinline__ void store_zeros() const {
    const int n = min_of(block_values, Config::v_dim - first_value);
    for (i64 i = own_thread(); i < i64(place.tokens) * n; i += threads)
      place.template at<Elem>(p.o, place.site.hv, int(i / n))[first_value + int(i % n)] = from_real<Elem>(Real(0));
  }

 protected:
  template <class Hook>
  using OfK = HookRow<Hook, Config::k_dim, Real>;
  template <class Hook>
  using OfV = HookRow<Hook, Config::v_dim, Real>;
  using KRow = typename OfK<NoHook>::Row;
  using VRow = typename OfV<NoHook>::Row;

  template <class Kind, int N>
  __device__ __forceinline__ void load(const LuattnTensor &x, int head, int t, const Kind &kind, Real (&to)[N]) const {
    const Elem *from = place.template at<const Elem>(x, head, t);
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = kind.has(j) ? Real(to_real(from[kind.channel(j)])) : Real(0);
  }
  // A row along K: padding too, which is 0.
  __device__ __forceinline__ void keep(Real *to, int lane, const KRow &x) const {
#pragma unroll
    for (int j = 0; j < Shape::k_dim / 32; ++j) to[order.place(lane + 32 * j)] = x[j];
  }
  // The block's part of a row along V.
  __device__ __forceinline__ void keep_values(Real *to, int lane, const VRow &x) const {
#pragma unroll
    for (int j = 0; j < OfV<NoHook>::count; ++j) {
      const int v = lane + 32 * j - first_value;
      if (v >= 0 && v < block_values) to[order.value_place(v)] = x[j];
    }
  }

  __device__ __forceinline__ void fill_query(Real *to, int t, int lane) const {
    const OfK<typename Spec::Query> hook{p, place.site, t, lane};
    KRow x;
    load(p.q, place.site.h, t, hook, x);
    fill_decay(to, t, lane);  // whose loads are on their way with those of the row
    if constexpr (Spec::Query::given) hook.run(x, x);
    keep(to + Layout::q, lane, x);
  }
  __device__ __forceinline__ void fill_keys(Real *to, int t, int lane) const {
    const OfK<typename Spec::Key> hook{p, place.site, t, lane};
    KRow x, y;
    load(p.k, place.site.h, t, hook, x);
    if constexpr (Spec::Key::given) hook.run(x, x);
    keep(to + Layout::k, lane, x);
    if constexpr (Spec::Read::given) {
      OfK<typename Spec::Read>{p, place.site, t, lane}.run(x, y);
      keep(to + Layout::read, lane, y);
    }
    if constexpr (Spec::Erase::given) {
      OfK<typename Spec::Erase>{p, place.site, t, lane}.run(x, y);
      keep(to + Layout::erase, lane, y);
    }
  }
  // A NaN stays one. Rings keep logarithms.
  LUATTN_FN Real factor(Real g) {
    if constexpr (Config::ring > 0) return decay_within(g);
    return op_exp(g < Real(least_logarithm) ? Real(least_logarithm) : g);
  }
  __device__ __forceinline__ void fill_decay(Real *to, int t, int lane) const {
    if constexpr (Spec::Decay::given) {
      const OfK<typename Spec::Decay> hook{p, place.site, t, lane};
      if constexpr (Spec::Decay::by_channel) {
        KRow x = {};
        bool gone = false;
        hook.run(x, x);
#pragma unroll
        for (int j = 0; j < hook.count; ++j) x[j] = factor(x[j]), gone |= x[j] == 0;
        keep(to + Layout::decay, lane, x);
        gone = __any_sync(0xffffffffu, gone);
        if (lane == 0) to[Layout::gone] = gone;
      } else {
        const Real f = factor(hook.number());
        if (lane == 0) to[Layout::factor] = f, to[Layout::gone] = f == 0;
      }
    }
  }
  __device__ __forceinline__ void fill_values(Real *to, int t, int lane) const {
    const OfV<typename Spec::Value> hook{p, place.site, t, lane};
    VRow x, y;
    load(p.v, place.site.hv, t, hook, x);
    if constexpr (Spec::Skip::given) {
      OfV<typename Spec::Skip>{p, place.site, t, lane}.run(x, y);
      keep_values(to + Layout::skip, lane, y);
    }
    if constexpr (Spec::Value::given) hook.run(x, x);
    Real w = 1;
    if constexpr (Spec::Write::given) w = weigh(t, lane, x);
    if (Spec::normalizes && lane == 0) to[Layout::one] = w;
    keep_values(to + Layout::written, lane, x);
  }
  // What is written, by its weight, which is returned where channels have one.
  __device__ __forceinline__ Real weigh(int t, int lane, VRow &x) const {
    const OfV<typename Spec::Write> hook{p, place.site, t, lane};
    if constexpr (Spec::Write::by_channel) {
      VRow none = {}, w;
      hook.run(none, w);
#pragma unroll
      for (int j = 0; j < hook.count; ++j) x[j] *= w[j];
      return 1;
    } else {
      const Real w = hook.number();
#pragma unroll
      for (int j = 0; j < hook.count; ++j) x[j] *= w;
      return w;
    }
  }
};
