// linear/recurrent/reverse_hooks.cuh: luattn_linear_hooks: gradients of rows behind hooks become those of q, k and v, of inputs
// and of scalars: a warp for each token and head of q, whose value heads it takes in order.
#pragma once
#include "linear/recurrent/reverse_recurrent.cuh"

// The derivative of a hook over a row: g, the gradient of what it gives; adds to dx, and to gradients of parameters. What is
// multiplied by 0 may be infinite, where a gate has closed: nothing is made of a gradient of 0.
template <class Hook, int Dim, class Real>
struct HookBack : HookRow<Hook, Dim, Real> {
  using Base = HookRow<Hook, Dim, Real>;
  using Base::add_up, Base::channel, Base::count, Base::has, Base::lane, Base::p, Base::s, Base::t;
  using typename Base::Row;

  __device__ __forceinline__ void run(const Row &x, const Row &g, Row &dx) const {
    Real red[Hook::sums + 1] = {};
    Real row[Hook::sums + 1] = {};
    add_up(x, red);
    if constexpr (Hook::sums > 0) {
#pragma unroll
      for (int j = 0; j < count; ++j)
        if (has(j) && g[j] != 0) Hook::weights(p, s, x[j], t, channel(j), red, g[j], row);
#pragma unroll
      for (int i = 0; i < Hook::sums; ++i) row[i] = warp_sum(row[i]);
    }
    bool by_sums = false;
#pragma unroll
    for (int i = 0; i < Hook::sums; ++i) by_sums |= row[i] != 0;
#pragma unroll
    for (int j = 0; j < count; ++j) {
      if (!has(j) || (g[j] == 0 && !by_sums)) continue;
      dx[j] += Hook::dx(p, s, x[j], t, channel(j), red, row, g[j]);
      if (g[j] != 0) Hook::add_value(p, s, x[j], t, channel(j), red, row, g[j]);
      if (by_sums) Hook::add_sums(p, s, x[j], t, channel(j), red, row, g[j]);
    }
  }
  // Of a hook that is the same at every channel, and reads no element: g is the sum over them.
  __device__ __forceinline__ void run(Real g) const {
    const Row none = {};
    Real red[Hook::sums + 1] = {};
    Real row[Hook::sums + 1] = {};
    add_up(none, red);
    if (g == 0) return;
    if constexpr (Hook::sums > 0) {
      Hook::weights(p, s, Real(0), t, 0, red, g, row);
#pragma unroll
      for (int j = 0; j < count; ++j)
        if (has(j)) Hook::add_sums(p, s, Real(0), t, channel(j), red, row, g);
    }
    if (lane == 0) Hook::add_value(p, s, Real(0), t, 0, red, row, g);
  }
};

template <class Spec, class Config>
struct ReverseHooks {
  using Real = typename Config::Number;
  using Elem = typename Config::Elem;
  using Of = KeyGradients<Spec>;
  template <class Hook>
  using OfK = HookBack<Hook, Config::k_dim, Real>;
  template <class Hook>
  using OfV = HookBack<Hook, Config::v_dim, Real>;
  using KRow = typename OfK<NoHook>::Row;
  using VRow = typename OfV<NoHook>::Row;

  const LuattnLinearParams &p;
  const RecurrentPlace<Config> place;  // of the group's first value head
  const int t, lane;

  __device__ __forceinline__ void run() const {
    const OfK<NoHook> kind{{p, place.site, t, lane}};
    KRow q, k, mod_k, dq = {}, dk = {};
    load(p.rows.from[0], place.site.h, kind, q), load(p.rows.from[1], place.site.h, kind, k);
#pragma unroll
    for (int j = 0; j < kind.count; ++j) mod_k[j] = k[j];
    if constexpr (Spec::Key::given)
      HookRow<typename Spec::Key, Config::k_dim, Real>{p, place.site, t, lane}.run(k, mod_k);
    for (int i = 0; i < p.group; ++i) {
      RecurrentPlace<Config> own = place;
      own.site.hv = place.site.hv + i;
      of_value_head(own, mod_k, dq, dk);
    }
    finish<typename Spec::Query>(p.rows.grad[0], q, dq), finish<typename Spec::Key>(p.rows.grad[1], k, dk);
  }
  __device__ __forceinline__ void store_zeros() const {
    const OfK<NoHook> of_k{{p, place.site, t, lane}};
    const OfV<NoHook> of_v{{p, place.site, t, lane}};
    const KRow k = {};
    const VRow v = {};
    store(p.rows.grad[0], place.site.h, of_k, k), store(p.rows.grad[1], place.site.h, of_k, k);
    for (int i = 0; i < p.group; ++i) store(p.rows.grad[2], place.site.hv + i, of_v, v);
  }

 private:
  template <class Kind, int N>
  __device__ __forceinline__ void load(const LuattnTensor &x, int head, const Kind &kind, Real (&to)[N]) const {
    const Elem *from = place.template at<const Elem>(x, head, t);
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = kind.has(j) ? Real(to_real(from[kind.channel(j)])) : Real(0);
  }
  template <class Kind, int N>
  __device__ __forceinline__ void store(const LuattnTensor &x, int head, const Kind &kind,
                                        const Real (&from)[N]) const {
    if (x.data == nullptr) return;
    Elem *to = place.template at<Elem>(x, head, t);
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (kind.has(j)) to[kind.channel(j)] = from_real<Elem>(from[j]);
  }
  template <class Kind, int N>
  LUATTN_FN void load_made(const Real *from, const Kind &kind, Real (&to)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = kind.has(j) ? Real(from[kind.channel(j)]) : Real(0);
  }
  template <class Hook>
  __device__ __forceinline__ void finish(const LuattnTensor &to, const KRow &x, const KRow &g) const {
    const OfK<Hook> hook{{p, place.site, t, lane}};
    if constexpr (Hook::given) {
      KRow dx = {};
      hook.run(x, g, dx);
      store(to, place.site.h, hook, dx);
    } else {
      store(to, place.site.h, hook, g);
    }
  }
  __device__ __forceinline__ void of_value_head(const RecurrentPlace<Config> &own, const KRow &k, KRow &dq,
                                                KRow &dk) const {
    const ReverseRows<Spec, Config> made{p, own};
    const OfK<NoHook> kind{{p, own.site, t, lane}};
    KRow g, unused = {};
    load_made(made.keys(t, Of::q), kind, g);
#pragma unroll
    for (int j = 0; j < kind.count; ++j) dq[j] += g[j];
    load_made(made.keys(t, Of::k), kind, g);
#pragma unroll
    for (int j = 0; j < kind.count; ++j) dk[j] += g[j];
    if constexpr (Of::reads) {
      load_made(made.keys(t, Of::r), kind, g);
      OfK<typename Spec::Read>{{p, own.site, t, lane}}.run(k, g, dk);
    }
    if constexpr (Of::erases) {
      load_made(made.keys(t, Of::e), kind, g);
      OfK<typename Spec::Erase>{{p, own.site, t, lane}}.run(k, g, dk);
    }
    if constexpr (Of::decays) {
      const OfK<typename Spec::Decay> decay{{p, own.site, t, lane}};
      load_made(made.keys(t, Of::g), kind, g);
      if constexpr (Spec::Decay::by_channel) {
        decay.run(unused, g, unused);
      } else {
        Real sum = 0;
#pragma unroll
        for (int j = 0; j < kind.count; ++j) sum += g[j];
        decay.run(warp_sum(sum));
      }
    }
    of_values(own, made);
  }
  // The gradient of what is written, through its strength and value_mod; and that of o through skip.
  __device__ __forceinline__ void of_values(const RecurrentPlace<Config> &own,
                                            const ReverseRows<Spec, Config> &made) const {
    const OfV<typename Spec::Value> hook{{p, own.site, t, lane}};
    VRow v, mod_v, db, dv = {};
    load(p.rows.from[2], own.site.hv, hook, v);
    load_made(made.written(t), hook, db);
#pragma unroll
    for (int j = 0; j < hook.count; ++j) mod_v[j] = v[j];
    if constexpr (Spec::Value::given)
      HookRow<typename Spec::Value, Config::v_dim, Real>{p, own.site, t, lane}.run(v, mod_v);
    if constexpr (Spec::Write::given) through_write(own, made, mod_v, db);
    if constexpr (Spec::Value::given)
      hook.run(v, db, dv);
    else
#pragma unroll
      for (int j = 0; j < hook.count; ++j) dv[j] = db[j];
    if constexpr (Spec::Skip::given) {
      if (p.rows.dout.data != nullptr) {
        VRow dout;
        load(p.rows.dout, own.site.hv, hook, dout);
        OfV<typename Spec::Skip>{{p, own.site, t, lane}}.run(v, dout, dv);
      }
    }
    store(p.rows.grad[2], own.site.hv, hook, dv);
  }
  __device__ __forceinline__ void through_write(const RecurrentPlace<Config> &own,
                                                const ReverseRows<Spec, Config> &made, const VRow &v, VRow &db) const {
    const OfV<typename Spec::Write> hook{{p, own.site, t, lane}};
    VRow none = {}, g;
    if constexpr (Spec::Write::by_channel) {
      VRow w, unused = {};
      static_cast<const HookRow<typename Spec::Write, Config::v_dim, Real> &>(hook).run(none, w);
#pragma unroll
      for (int j = 0; j < hook.count; ++j) g[j] = db[j] * v[j], db[j] *= w[j];
      hook.run(none, g, unused);
    } else {
      const Real w = hook.number();
      Real sum = 0;
#pragma unroll
      for (int j = 0; j < hook.count; ++j) sum = op_fma(db[j], v[j], sum), db[j] *= w;
      sum = warp_sum(sum);
      if constexpr (Spec::normalizes) sum += Real(made.written(t)[Config::v_dim]);
      hook.run(sum);
    }
  }
};

// The grid is entries * heads of q * parts of an entry's tokens; without an entry that of one, as packed rows are all nobody's.
template <class Spec, class Config>
__device__ __forceinline__ void reverse_hooks(const LuattnLinearParams &p) {
  const QueryBlock block(p);
  const RecurrentPlace<Config> place(p, block.entry, block.h);
  const int warps = int(blockDim.x / 32), warp = int(threadIdx.x / 32), lane = int(threadIdx.x % 32);
  for (int t = block.part * warps + warp; t < place.tokens; t += p.reverse.parts * warps) {
    const ReverseHooks<Spec, Config> token{p, place, t, lane};
    if (place.row < 0)
      token.store_zeros();
    else
      token.run();
  }
  if constexpr (Config::packed) {  // rows before the first entry, and behind the last
    if (block.entry == 0)
      for (int t = -1 - block.part * warps - warp; t >= -place.start; t -= p.reverse.parts * warps)
        ReverseHooks<Spec, Config>{p, place, t, lane}.store_zeros();
    if (block.entry + 1 >= p.entries)
      for (int t = place.tokens + block.part * warps + warp; t < p.tokens - place.start; t += p.reverse.parts * warps)
        ReverseHooks<Spec, Config>{p, place, t, lane}.store_zeros();
  }
}
