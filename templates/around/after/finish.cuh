// around/after/finish.cuh: luattn_finish: writes dq, dk and dv from their accumulators, through the derivatives of
// input mods.
//
// Grid: as luattn_mod (around/before/input_mods.cuh), or (.., batch) if only dq has to be written; aux_threads
// threads.
#pragma once
#include "around/row_mods.cuh"
#include "grads/flush.cuh"
#include "sink/dq_state.cuh"
#include "work/tile_walk.cuh"

template <class Spec, int Which, class Real>
LUATTN_FN Real apply_mod_grad(const LuattnParams &p, const Site &s, Real x, Real g, int i, int d,
                              typename Spec::Acc &acc) {
  if constexpr (Which == WHICH_Q)
    return Spec::query_mod_grad(p, s, x, g, i, d, acc);
  else if constexpr (Which == WHICH_K)
    return Spec::key_mod_grad(p, s, x, g, i, d, acc);
  else
    return Spec::value_mod_grad(p, s, x, g, i, d, acc);
}

// The first row of an entry's head in an accumulator.
template <int Which, int Width, class Order, class Real, class Sequence>
LUATTN_FN const Real *acc_of_head(const LuattnParams &p, const Sequence &entry, void *from, int h) {
  if constexpr (Which == WHICH_Q)
    return entry.template q_acc_row<Order, Width, const Real>(p, from, entry.b, h, 0);
  else
    return entry.template kv_acc_row<Order, Width, const Real>(p, from, 0, entry.b, h, 0);
}

template <class Spec, class Elem, class Grad, int Which, int Width, int N, class Order, class Sequence>
LUATTN_FN void finish_elements(const LuattnParams &p, const Sequence &site, void *from, const LuattnTensor &src,
                               const LuattnTensor &dst, const u32 *first_store, typename Spec::Acc &acc) {
  using Real = typename Spec::Real;
  const int end = end_of<Which>(p, site);
  const Real scale = Which == WHICH_V ? Real(1) : Real(p.scale);
  const bool there = first_store == nullptr || *first_store != 0;
  const Real *acc_head = acc_of_head<Which, Width, Order, Real>(p, site, from, site.h);
  for_each_element<Width, N>(rows_of<Which, Grad>(p, site, dst), end, [&](int i, int d) {
    Pack<Real, N> g;
    Order::template load<Width>(g, acc_head, end, i, d);
    if constexpr (Order::writes && Which == WHICH_Q) {
#pragma unroll
      for (int j = 0; j < N; ++j) g[j] = there ? g[j] : Real(0);
    }
    if constexpr (Order::writes && Which != WHICH_Q) {  // partial sums of blocks that shared the queries
      for (int split = 1; split < QShare::count(p); ++split) {
        Pack<Real, N> more;
        Order::template load<Width>(more, acc_head + split * Sequence::template kv_acc_plane<Order, Width>(p), end, i,
                                    d);
#pragma unroll
        for (int j = 0; j < N; ++j) g[j] += more[j];
      }
    }
    Pack<Elem, N> x;
    Pack<Grad, N> y;
    if constexpr (has_mod<Spec, Which>) x.load(rows_of<Which, const Elem>(p, site, src).row(i) + d);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      Real value = g[j] * scale;
      if constexpr (has_mod<Spec, Which>)
        value = apply_mod_grad<Spec, Which>(p, site, to_real(x[j]), value, i, d + j, acc);
      y[j] = from_real<Grad>(value);
    }
    if (dst.data != nullptr) y.store(rows_of<Which, Grad>(p, site, dst).row(i) + d);
  });
}

// Used in the sm90 family, where blocks add dQ in order or claim q tiles. Returns the address of the number
// of head h that is 0 if no block has stored or added dQ of the block's rows; otherwise null.
template <class Spec, class Config>
LUATTN_FN const u32 *dq_first_store_of(const LuattnParams &p, int b, int h) {
  const int first = int(blockIdx.x) * aux_tile;
  if constexpr (Needs<Spec, Config>::dq_in_order || Needs<Spec, Config>::dq_first_store)
    if (h < Site::heads(p) && first < SequenceOf<Config>::longest_q(p)) return dq_state_of<Config>(p, b, h, first);
  return nullptr;
}

template <class Spec, int Which, class Real, class Values>
LUATTN_FN Real apply_row_mod_grad(const LuattnParams &p, const Site &s, Real x, Real g, const Values &row, int i, int d,
                                  typename Spec::Acc &acc) {
  if constexpr (Which == WHICH_Q)
    return Spec::query_mod_grad(p, s, x, g, row, i, d, acc);
  else if constexpr (Which == WHICH_K)
    return Spec::key_mod_grad(p, s, x, g, row, i, d, acc);
  else
    return Spec::value_mod_grad(p, s, x, g, row, i, d, acc);
}

// Returns N adjacent numbers of an accumulator's row from d on.
template <int Width, class Order, class Real, int N>
LUATTN_FN void load_gradient(Pack<Real, N> &g, const Real *head, int len, int i, int d) {
  constexpr int at_once = Order::neighbours;
  if constexpr (N < at_once) {
    static_assert(N == 1);
    Pack<Real, at_once> some;
    Order::template load<Width>(some, head, len, i, d / at_once * at_once);
    g[0] = Real(0);
#pragma unroll
    for (int c = 0; c < at_once; ++c)
      if (c == d % at_once) g[0] = some[c];
  } else {
    Order::template load<Width>(g, head, len, i, d);
  }
}

// The accumulator of a tensor's gradient, of heads that are finished together.
template <class Spec, class Config, int Which, int Width, class Order>
struct RowGradient {
  using Real = typename Spec::Real;
  using Row = RowMapOf<Spec, Which>;
  static constexpr bool shared = Order::writes && Which != WHICH_Q;  // by several blocks, each with its part

  const LuattnParams &p;
  const SequenceOf<Config> &entry;
  void *const from;
  const int end;  // of positions

  // Loads the row's vectors, of the first part.
  __device__ __forceinline__ void load(RowVectors<Row, Real> &g, int head, int i, int v) const {
    load(g, head, i, v, 0);
  }
  // Completes them: adds the other parts; zeroes them if no block has stored any; multiplies by the scale.
  __device__ __forceinline__ void complete(RowVectors<Row, Real> &g, int head, int i, int v) const {
    if constexpr (shared) {
#pragma unroll 1
      for (int part = 1; part < QShare::count(p); ++part) {
        RowVectors<Row, Real> more;
        load(more, head, i, v, part);
        each(g, [&](int t, int j, Real x) { return x + (t < 0 ? more.own[j] : more.seen[t < 0 ? 0 : t][j]); });
      }
    }
    if constexpr (Order::writes && Which == WHICH_Q) {
      const u32 *first_store = dq_first_store_of<Spec, Config>(p, entry.b, head);
      const bool there = first_store == nullptr || *first_store != 0;
      each(g, [&](int, int, Real x) { return there ? x : Real(0); });
    }
    const Real scale = Which == WHICH_V ? Real(1) : Real(p.scale);
    each(g, [&](int, int, Real x) { return x * scale; });
  }

 private:
  __device__ __forceinline__ void load(RowVectors<Row, Real> &g, int head, int i, int v, int part) const {
    const Real *at = acc_of_head<Which, Width, Order, Real>(p, entry, from, head);
    if constexpr (shared) at += part * SequenceOf<Config>::template kv_acc_plane<Order, Width>(p);
    g.load(v, [&](Pack<Real, Row::width> &to, int d) { load_gradient<Width, Order>(to, at, end, i, d); });
  }
  // Replaces all numbers by body(table, lane, number); table -1: its own.
  template <class Body>
  LUATTN_FN void each(RowVectors<Row, Real> &g, const Body &body) {
#pragma unroll
    for (int j = 0; j < Row::width; ++j) {
      g.own[j] = body(-1, j, g.own[j]);
#pragma unroll
      for (int t = 0; t < Row::count; ++t) g.seen[t][j] = body(t, j, g.seen[t][j]);
    }
  }
};

// Stores 16 bytes by one instruction: NVVM takes stores of two vectors apart into numbers.
template <class T, int N>
LUATTN_FN void store_at_once(T *to, const Pack<T, N> &x) {
  if constexpr (sizeof x == 16) {
    const u32 *w = reinterpret_cast<const u32 *>(&x);
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3]));
  } else {
    x.store(to);
  }
}

// Finishes a tensor whose mod reads x[..] (around/row_mods.cuh). Gradients that come back from the channels
// that read this one are loaded in the same way as the elements that this one reads. Where vectors of both
// halves read each other, a thread has both, and loads each once.
template <class Spec, class Config, int Which, int Width, class Order>
LUATTN_FN void finish_rows(const LuattnParams &p, const SequenceOf<Config> &entry, void *from, const LuattnTensor &src,
                           const LuattnTensor &dst) {
  using Sequence = SequenceOf<Config>;
  using Elem = typename Config::Elem;
  using Grad = GradOf<Config>;
  using Real = typename Spec::Real;
  using Row = RowMapOf<Spec, Which>;
  constexpr int n = Row::width;
  constexpr bool flushes = Needs<Spec, Config>::parameters && Spec::num_acc > 0;  // of one head at a time
  constexpr bool both = Row::swaps_halves;
  constexpr int together = flushes ? 1 : both ? (row_heads<Row> + 1) / 2 : row_heads<Row>;
  typename Spec::Acc acc = zero_acc<typename Spec::Acc>();
  const int end = end_of<Which>(p, entry);
  const RowShare share = row_share<together>(heads_of<Which, Sequence>(p), end);
  const RowGradient<Spec, Config, Which, Width, Order> gradient{p, entry, from, end};
  constexpr int vectors = both ? Width / n / 2 : Width / n;
  for_each_vector<vectors>(share, rows_of<Which, const Elem>(p, entry, src), [&](int i, int at) {
    const int v = int(u32(at) % vectors);  // `at`, for NVVM to see which half it lies in
    RowVectors<Row, Elem> x[together];
    RowVectors<Row, Real> g[together];
    // All loads come before the first number that decides what they are good for, and without branches: they
    // are in flight together. Heads that the share lacks load its last one.
#pragma unroll
    for (int h = 0; h < together; ++h) {
      const int head = share.head + min_of(h, share.heads - 1);
      x[h].load(v, [&](Pack<Elem, n> &to, int d) {
        to.load(row_in<Which, const Elem>(p, entry.of_head(p, head), src, i) + d);
      });
      gradient.load(g[h], head, i, v);
    }
#pragma unroll
    for (int h = 0; h < together; ++h) gradient.complete(g[h], share.head + min_of(h, share.heads - 1), i, v);
#pragma unroll
    for (int h = 0; h < together; ++h) {
      // A mod may add to gradients of inputs, once for each head. Otherwise there is no branch: what a mod reads
      // of inputs is then read once for all heads.
      if (Needs<Spec, Config>::parameters && h >= share.heads) continue;
      const Sequence site = entry.of_head(p, share.head + min_of(h, share.heads - 1));
      Pack<Grad, n> y[both ? 2 : 1];
#pragma unroll
      for (int half = 0; half < (both ? 2 : 1); ++half) {
        const int w = v + half * (Width / n / 2);
        if (half == 1) x[h].swap(), g[h].swap();
#pragma unroll
        for (int j = 0; j < n; ++j) {
          const auto row = row_values<Row, Real>(x[h], w, j, [&](int t) { return g[h].at(t, j); });
          y[half][j] = from_real<Grad>(
              apply_row_mod_grad<Spec, Which>(p, site, to_real(x[h].own[j]), g[h].own[j], row, i, w * n + j, acc));
        }
      }
      Grad *to = row_in<Which, Grad>(p, site, dst, i) + v * n;
      if (dst.data == nullptr || h >= share.heads) continue;
#pragma unroll
      for (int half = 0; half < (both ? 2 : 1); ++half) store_at_once(to + half * (Width / 2), y[half]);
    }
  });
  if constexpr (flushes) {
    const Sequence site = entry.of_head(p, share.head);
    flush_block<Spec, aux_threads>(p, site, Spec::head(p, site), acc);
  }
}

// Finishes a tensor of head blockIdx.y. `first_store` comes from dq_first_store_of.
template <class Spec, class Config, int Which, int Width, class Order>
LUATTN_FN void finish_tensor(const LuattnParams &p, int b, void *from, const LuattnTensor &src, const LuattnTensor &dst,
                             const u32 *first_store = nullptr) {
  using Elem = typename Config::Elem;
  SequenceOf<Config> site(p, b, int(blockIdx.y));
  enter_rows<Which>(p, site);
  if (site.h >= heads_of<Which, SequenceOf<Config>>(p) || from == nullptr) return;
  if (site.packed && int(blockIdx.x) * aux_tile >= end_of<Which>(p, site)) return;  // the grid is for the longest entry
  if constexpr (reads_row<Spec, Which>) {
    finish_rows<Spec, Config, Which, Width, Order>(p, site, from, src, dst);
  } else {
    typename Spec::Acc acc = zero_acc<typename Spec::Acc>();
    finish_elements<Spec, Elem, GradOf<Config>, Which, Width, per_access<Elem>, Order>(p, site, from, src, dst,
                                                                                       first_store, acc);
    if constexpr (has_mod<Spec, Which> && Needs<Spec, Config>::parameters)
      flush_block<Spec, aux_threads>(p, site, Spec::head(p, site), acc);
  }
}

// Writes dq of one head of a packed entry, without a query_mod.
template <class Spec, class Config, class Order>
LUATTN_FN void finish_packed(const LuattnParams &p, int b, int h) {
  using Grad = GradOf<Config>;
  using Real = typename Spec::Real;
  constexpr int width = Config::head_dim, n = per_access<typename Config::Elem>;
  const RowBlock block = row_block<Config>(p, b);
  if (block.none) return;
  const int first = block.first;
  const SequenceOf<Config> site(p, block.entry, h);
  if (first >= site.q_end(p)) return;  // the grid is for the longest entry
  if constexpr (Order::writes) {
    constexpr bool has_state = Needs<Spec, Config>::dq_in_order || Needs<Spec, Config>::dq_first_store;
    Order::template write_packed<Config>(p, site, first,
                                         has_state ? dq_state_of<Config>(p, site.b, h, first) : nullptr);
  } else {
    const Real *head = site.template q_acc_head<Order, width, const Real>(p, p.scratch.dq_acc, site.b, h);
    const auto to = site.template q_rows<Grad>(p, p.tensors.dq);
    for_each_element<width, n>(to, site.q_end(p), [&](int i, int d) {
      Pack<Real, n> g;
      Pack<Grad, n> y;
      Order::template load<width>(g, head, site.q_end(p), i, d);
#pragma unroll
      for (int j = 0; j < n; ++j) y[j] = from_real<Grad>(g[j] * Real(p.scale));
      y.store(to.row(i) + d);
    });
  }
}

// Writes dq, dk and dv from dq_acc, dk_acc and dv_acc: multiplies q's and k's by scale, applies the
// derivative of the mod, and converts to the storage type. DqOrder and KvOrder are the layouts of the
// family's main kernel. A layout that `writes` also writes tensors without a mod itself, including dk and dv
// if luattn_dkdv has not.
template <class Spec, class Config, class DqOrder = PlainRows, class KvOrder = PlainRows>
LUATTN_FN void aux_finish(const LuattnParams &p) {
  static_assert(BackwardSpec<Spec>);
  using Need = Needs<Spec, Config>;
  using Sequence = SequenceOf<Config>;
  const bool q_alone = int(gridDim.z) == Sequence::batch(p);
  // The last heads come first, because what was just added to them is still in the cache.
  const int which = q_alone ? WHICH_Q : int(blockIdx.z) % 3,
            b = Sequence::batch(p) - 1 - (q_alone ? int(blockIdx.z) : int(blockIdx.z) / 3);
  const LuattnTensors &t = p.tensors;
  const u32 *first_store = nullptr;
  if constexpr (DqOrder::writes && !(Sequence::packed && !Spec::has_query_mod))
    if (Need::dq && which == WHICH_Q) first_store = dq_first_store_of<Spec, Config>(p, b, int(blockIdx.y));
  if constexpr (Sequence::packed) {  // dk and dv without a mod are complete
    if constexpr (Need::finish_q && !Spec::has_query_mod)
      if (which == WHICH_Q) return finish_packed<Spec, Config, DqOrder>(p, b, Site::heads(p) - 1 - int(blockIdx.y));
  } else if constexpr (DqOrder::writes) {
    const bool has_mod = which == WHICH_Q   ? Spec::has_query_mod
                         : which == WHICH_K ? Spec::has_key_mod
                                            : Spec::has_value_mod;
    if (!has_mod) return DqOrder::template write<Config>(p, which, b, first_store);
  }
  if constexpr (Need::finish_q && !((Sequence::packed || DqOrder::writes) && !Spec::has_query_mod))
    if (which == WHICH_Q)
      finish_tensor<Spec, Config, WHICH_Q, Config::head_dim, DqOrder>(p, b, p.scratch.dq_acc, t.src_q, t.dq,
                                                                      first_store);
  if constexpr (Need::finish_k)
    if (which == WHICH_K)
      finish_tensor<Spec, Config, WHICH_K, Config::head_dim, KvOrder>(p, b, p.scratch.dk_acc, t.src_k, t.dk);
  if constexpr (Need::finish_v)
    if (which == WHICH_V)
      finish_tensor<Spec, Config, WHICH_V, Config::head_dim_v, KvOrder>(p, b, p.scratch.dv_acc, t.src_v, t.dv);
}
