// linear/recurrent/reverse_state.cuh: a warp's part of a state and of its gradient in registers, taken back over a token.
#pragma once
#include "linear/recurrent/recurrent_state.cuh"

// The vectors along K of a token whose gradients there are.
template <class Spec>
struct KeyGradients {
  static constexpr bool reads = Spec::Read::given, erases = Spec::Erase::given, decays = Spec::Decay::given;
  static constexpr int q = 0, k = 1, r = 2, e = r + reads, g = e + erases, count = g + decays;
};

template <class Spec, class Config>
struct ReverseState : RecurrentState<Spec, Config> {
  using Base = RecurrentState<Spec, Config>;
  using Base::add_lanes, Base::four, Base::group, Base::K, Base::lane8, Base::ones, Base::s, Base::V, Base::written;
  using typename Base::Layout;
  using typename Base::Real;
  using Of = KeyGradients<Spec>;
  static constexpr int one_count = Spec::normalizes ? K : 1;

  Real ds[V][K], d_ones[one_count];
  const bool adds_ones;  // one lane of all that have them adds what is of the channel that is always 1

  __device__ __forceinline__ ReverseState(const StateOrder<Config> &order, int first_value)
      : Base(order, first_value), adds_ones(first_value == 0 && threadIdx.x < 8) {}

  // The gradient of a state, by way of s.
  __device__ __forceinline__ void load_gradient(const LuattnStates &m, const RecurrentPlace<Config> &place) {
    this->load_from(m, place);
#pragma unroll
    for (int i = 0; i < V; ++i)
#pragma unroll
      for (int n = 0; n < K; ++n) ds[i][n] = s[i][n];
#pragma unroll
    for (int n = 0; n < one_count; ++n) d_ones[n] = ones[n];
  }
  __device__ __forceinline__ void store_gradient(const LuattnStates &m, const RecurrentPlace<Config> &place,
                                                 bool with_sum) {
#pragma unroll
    for (int i = 0; i < V; ++i)
#pragma unroll
      for (int n = 0; n < K; ++n) s[i][n] = ds[i][n];
#pragma unroll
    for (int n = 0; n < one_count; ++n) ones[n] = d_ones[n];
    this->store_to(m, place, with_sum);
  }

  // s, the state before the token, which becomes the one before that later; ds: the gradient of the state after it, and then of
  // the one before. row: its rows. dout: the gradient of what q reads, of the block's values.
  // to(which, n, x): takes the warp's part of gradient `which` of four channels from n on. db goes to `dout`.
  template <class Take>
  __device__ __forceinline__ void back(const Real *row, Real *dout, Real d_sum, Take take) {
    Real b[V], y[V] = {}, du[V], db[V] = {}, dy[V] = {};
    if constexpr (Of::reads) this->template read<!Spec::before>(row, y);
#pragma unroll
    for (int i = 0; i < V; ++i) b[i] = row[Layout::written + written + i], du[i] = dout[written + i];
    Real d_one = 0;
#pragma unroll
    for (int n = 0; n < K; n += 4) through_query(row, n, b, y, du, d_sum, db, dy, d_one, take);
    add_lanes(db);
    if constexpr (Of::erases)
      add_lanes(dy);
    else if constexpr (Of::reads)
      for (int i = 0; i < V; ++i) dy[i] = -db[i];
    if constexpr (Spec::normalizes) {
      Real of_lane[1] = {d_one};
      add_lanes(of_lane);
      d_one = of_lane[0];
    }
#pragma unroll
    for (int n = 0; n < K; n += 4) through_decay(row, n, dy, take);
    if (lane8 == 0) {
#pragma unroll
      for (int i = 0; i < V; ++i) dout[written + i] = db[i];
    }
    of_one = d_one;
  }
  Real of_one;  // the gradient of what is written to the channel that is always 1

 private:
  __device__ __forceinline__ void decays_of(const Real *row, int n, Real (&f)[4]) const {
    if constexpr (Layout::decays_channels) {
      four(row, Layout::decay, n, f);
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) f[c] = Of::decays ? row[Layout::factor] : Real(1);
    }
  }
  // What has decayed to nothing is gone, were it infinite.
  LUATTN_FN Real left(Real f, Real x) { return f == 0 ? Real(0) : f * x; }

  template <class Take>
  __device__ __forceinline__ void through_query(const Real *row, int n, const Real (&b)[V], const Real (&y)[V],
                                                const Real (&du)[V], Real d_sum, Real (&db)[V], Real (&dy)[V],
                                                Real &d_one, Take take) {
    Real q[4], k[4], e[4], f[4], dq[4] = {}, dk[4] = {}, de[4] = {};
    four(row, Layout::q, n, q), four(row, Layout::k, n, k);
    decays_of(row, n, f);
    if constexpr (Of::erases) four(row, Layout::erase, n, e);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const Real erased = Of::erases ? e[c] * y[i] : Of::reads ? k[c] * y[i] : Real(0);
        const Real after = op_fma(k[c], b[i], left(f[c], s[i][n + c]) - erased);
        dq[c] = op_fma(after, du[i], dq[c]);
        Real &x = ds[i][n + c];
        x = op_fma(q[c], du[i], x);
        db[i] = op_fma(k[c], x, db[i]);
        dk[c] = op_fma(x, Of::reads && !Of::erases ? b[i] - y[i] : b[i], dk[c]);
        if constexpr (Of::erases) de[c] = op_fma(-x, y[i], de[c]), dy[i] = op_fma(-e[c], x, dy[i]);
      }
      if constexpr (Spec::normalizes) {
        const Real after = op_fma(k[c], row[Layout::one], left(f[c], ones[n + c]));
        Real &x = d_ones[n + c];
        x = op_fma(q[c], d_sum, x);
        d_one = op_fma(k[c], x, d_one);
        if (adds_ones) dq[c] = op_fma(after, d_sum, dq[c]), dk[c] = op_fma(x, row[Layout::one], dk[c]);
      }
    }
    take(Of::q, n, dq), take(Of::k, n, dk);
    if constexpr (Of::erases) take(Of::e, n, de);
  }
  template <class Take>
  __device__ __forceinline__ void through_decay(const Real *row, int n, const Real (&dy)[V], Take take) {
    Real r[4], f[4], dr[4] = {}, dg[4] = {};
    decays_of(row, n, f);
    if constexpr (Of::reads) four(row, Layout::read, n, r);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        Real &x = ds[i][n + c];
        const Real decayed = left(f[c], s[i][n + c]);
        if constexpr (Of::reads) dr[c] = op_fma(Spec::before ? s[i][n + c] : decayed, dy[i], dr[c]);
        if constexpr (Of::reads && !Spec::before) x = op_fma(r[c], dy[i], x);
        if constexpr (Of::decays) dg[c] = op_fma(x, decayed, dg[c]), x = left(f[c], x);
        if constexpr (Of::reads && Spec::before) x = op_fma(r[c], dy[i], x);
      }
      if constexpr (Spec::normalizes && Of::decays) {
        Real &x = d_ones[n + c];
        if (adds_ones) dg[c] = op_fma(x, left(f[c], ones[n + c]), dg[c]);
        x = left(f[c], x);
      }
    }
    if constexpr (Of::reads) take(Of::r, n, dr);
    if constexpr (Of::decays) take(Of::g, n, dg);
  }
};
