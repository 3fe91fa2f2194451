// around/after/merge_parts.cuh: luattn_merge_parts: merges finished parts by their lse or their state, or computes the
// gradient of the former (include/luattn/merge.h has the formulas).
//
// Grid (ceil(rows / (merge_parts_threads / lanes))); merge_parts_threads threads. p.lanes threads of a warp share a
// row. Both are memory-bound: a thread accesses 16 bytes of the parts' type at once where all rows allow it. A kernel
// is for up to 2, 4 or 16 parts, as weights are in registers.
#pragma once
#include "arch/divisor.cuh"
#include "arch/tensor.cuh"
#include "abi/merge_params.h"

static constexpr int merge_parts_threads = 128;

struct NoState {};
template <class Rule, bool ByLse = Rule::by_lse>
struct StateOf {
  using Type = NoState;
};
template <class Rule>
struct StateOf<Rule, false> {
  using Type = typename Rule::State;
};
template <class Rule>
using RowState = typename StateOf<Rule>::Type;

// Config: Part, the type of the parts' O; Elem, that of the merged O; Real, that of lse and of sums; most_parts, which
// p.count does not exceed; backward.
// Rule: by_lse; else also State { Real x[] }, of which num_rows numbers are in memory, and functions of states:
//   merge               the state of both parts
//   factor, other_factor  of mine's and theirs' sums of prob * v
//   scale, lse          what makes O of a sum; the lse
//   save                num_saved numbers that backward reads
template <class Config, class Rule>
struct MergeParts {
  static constexpr int most = Config::most_parts;
  static_assert(most <= LUATTN_MOST_PARTS);
  using Part = typename Config::Part;
  using Elem = typename Config::Elem;
  using Real = typename Config::Real;

  const LuattnMergeParams &p;
  const int lane;
  bool exists;  // of this thread: its row
  int b, h, q;
  Real weight[most], lse;
  RowState<Rule> all;  // of all parts

  __device__ __forceinline__ MergeParts(const LuattnMergeParams &p) : p(p), lane(int(threadIdx.x) % p.lanes) {
    const int rows = p.rows;
    const int number = int(blockIdx.x) * (merge_parts_threads / p.lanes) + int(threadIdx.x) / p.lanes;
    const int row = min_of(number, rows - 1);  // all lanes of a warp take part in shuffles
    exists = number < rows;
    const int of_head = int(quotient(u32(row), p.q_len));
    q = row - of_head * int(p.q_len.d);
    b = int(quotient(u32(of_head), p.heads));
    h = of_head - b * int(p.heads.d);
    if constexpr (Rule::by_lse)
      find_weights();
    else
      find_weights_by_state();
  }
  template <class T>
  __device__ __forceinline__ T *row_at(const LuattnTensor &t) const {
    return row_of<T>(t, b, h, q);
  }

  // The weights sum to 1, or are all 0.
  __device__ __forceinline__ void find_weights() {
    Real largest = -infinity<Real>(), sum = 0;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      weight[i] = i < p.count ? *row_at<const Real>(p.part[i].lse) : -infinity<Real>();
      if (weight[i] == infinity<Real>()) weight[i] = -infinity<Real>();  // of a row without keys, as flash-attn says it
      largest = max_of(largest, weight[i]);
    }
#pragma unroll
    for (int i = 0; i < most; ++i) {
      weight[i] = weight[i] == -infinity<Real>() ? Real(0) : exp(weight[i] - largest);
      sum += weight[i];
    }
    lse = sum == Real(0) ? -infinity<Real>() : largest + log(sum);
    const Real inverse = sum == Real(0) ? Real(0) : Real(1) / sum;
#pragma unroll
    for (int i = 0; i < most; ++i) weight[i] = weight[i] == Real(0) ? Real(0) : weight[i] * inverse;
  }

  __device__ __forceinline__ RowState<Rule> state_of(int i) const {
    const Real *x = row_at<const Real>(p.part[i].state.first);
    RowState<Rule> s = {};
#pragma unroll
    for (int k = 0; k < Rule::num_rows; ++k) s.x[k] = x[k * p.part[i].state.plane];
    return s;
  }
  // A part that keeps nothing has no weight, and its state is not merged.
  __device__ __forceinline__ void find_weights_by_state() {
    bool any = false;
    all = state_of(0);  // with which a row stays that keeps nothing
#pragma unroll
    for (int i = 0; i < most; ++i) {
      weight[i] = Real(0);
      if (i >= p.count || *row_at<const Real>(p.part[i].lse) == -infinity<Real>()) continue;
      const RowState<Rule> theirs = state_of(i);
      const Real scale = Rule::scale(theirs), factor = any ? Rule::factor(all, theirs) : Real(1),
                 other = any ? Rule::other_factor(all, theirs) : Real(1);
#pragma unroll
      for (int j = 0; j < i; ++j) weight[j] = weight[j] == Real(0) ? Real(0) : weight[j] * factor;
      weight[i] = scale == Real(0) ? Real(0) : other / scale;
      all = any ? Rule::merge(all, theirs) : theirs;
      any = true;
    }
    const Real scale = any ? Rule::scale(all) : Real(0);
#pragma unroll
    for (int i = 0; i < most; ++i) weight[i] = weight[i] == Real(0) ? Real(0) : weight[i] * scale;
    lse = any ? Rule::lse(all) : -infinity<Real>();
  }
  // Called by one thread of a row.
  __device__ __forceinline__ void store_state() const {
    if (p.state.first.data != nullptr) {
      Real *to = row_at<Real>(p.state.first);
#pragma unroll
      for (int k = 0; k < Rule::num_rows; ++k) to[k * p.state.plane] = all.x[k];
    }
    if constexpr (Rule::num_saved > 0) {
      if (p.saved.first.data == nullptr) return;
      Real *to = row_at<Real>(p.saved.first), x[Rule::num_saved];
      Rule::save(all, x);
#pragma unroll
      for (int k = 0; k < Rule::num_saved; ++k) to[k * p.saved.plane] = x[k];
    }
  }

  // Calls body(channel) for this lane's share of a row, in units of N channels.
  template <int N, class Body>
  __device__ __forceinline__ void each(const Body &body) const {
#pragma unroll 1
    for (int d = lane * N; d < p.dim; d += p.lanes * N) body(d);
  }
  template <int N>
  __device__ __forceinline__ void merge() const {
    each<N>([&](int d) {
      Real sum[N] = {};
#pragma unroll
      for (int i = 0; i < most; ++i) {
        if (weight[i] == Real(0)) continue;
        Pack<Part, N> x;
        x.load(row_at<const Part>(p.part[i].o) + d);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += weight[i] * Real(to_real(x[j]));
      }
      Pack<Elem, N> y;
#pragma unroll
      for (int j = 0; j < N; ++j) y[j] = from_real<Elem>(sum[j]);
      if (exists) y.store(row_at<Elem>(p.o) + d);
    });
  }

  // The gradient of o at N channels.
  template <int N>
  __device__ __forceinline__ void load_dout(Pack<Elem, N> &g, int d) const {
    if (p.dout.data != nullptr)
      g.load(row_at<const Elem>(p.dout) + d);
    else
      g = Pack<Elem, N>{};
  }
  // Stores d_o, and adds <dout, o_i> of this lane's channels to dot[i].
  template <int N>
  __device__ __forceinline__ void store_d_o(Real (&dot)[most]) const {
    each<N>([&](int d) {
      Pack<Elem, N> g;
      load_dout<N>(g, d);
      Pack<Part, N> x[most];
#pragma unroll
      for (int i = 0; i < most; ++i)
        if (weight[i] != Real(0)) x[i].load(row_at<const Part>(p.part[i].o) + d);
#pragma unroll
      for (int i = 0; i < most; ++i) {
        if (i >= p.count) continue;
        const bool counts = weight[i] != Real(0);
        Pack<Part, N> y;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const Real of_out = Real(to_real(g[j]));
          if (counts) dot[i] += of_out * Real(to_real(x[i][j]));
          y[j] = from_real<Part>(counts ? weight[i] * of_out : Real(0));
        }
        if (exists && p.part[i].d_o.data != nullptr) y.store(row_at<Part>(p.part[i].d_o) + d);
      }
    });
  }
  __device__ __forceinline__ void store_d_lse(Real (&dot)[most]) const {
    const Real dlse = p.dlse.data != nullptr ? *row_at<const Real>(p.dlse) : Real(0);
    Real mean = 0;
#pragma unroll
    for (int i = 0; i < most; ++i) {
#pragma unroll 1
      for (int m = p.lanes / 2; m > 0; m /= 2) dot[i] += __shfl_xor_sync(0xffffffffu, dot[i], m);
      if (weight[i] != Real(0)) mean += weight[i] * dot[i];
    }
#pragma unroll
    for (int i = 0; i < most; ++i)
      if (i < p.count && p.part[i].d_lse.data != nullptr && lane == 0 && exists)
        *row_at<Real>(p.part[i].d_lse) = weight[i] == Real(0) ? Real(0) : weight[i] * (dot[i] - mean + dlse);
  }
};

// Numbers of the parts' type in 16 bytes; 1: rows do not allow them.
template <class Config>
inline constexpr int merge_parts_width = 16 / int(sizeof(typename Config::Part));

template <class Config, class Rule>
LUATTN_FN void merge_parts(const LuattnMergeParams &p) {
  const MergeParts<Config, Rule> m(p);
  if (p.wide != 0)
    m.template merge<merge_parts_width<Config>>();
  else
    m.template merge<1>();
  if (m.lane != 0 || !m.exists) return;
  if (p.lse.data != nullptr) *m.template row_at<typename Config::Real>(p.lse) = m.lse;
  if constexpr (!Rule::by_lse) m.store_state();
}

template <class Config, class Rule>
LUATTN_FN void merge_parts_backward(const LuattnMergeParams &p) {
  static_assert(Rule::by_lse);
  const MergeParts<Config, Rule> m(p);
  typename Config::Real dot[Config::most_parts] = {};
  if (p.wide != 0)
    m.template store_d_o<merge_parts_width<Config>>(dot);
  else
    m.template store_d_o<1>(dot);
  m.store_d_lse(dot);
}
