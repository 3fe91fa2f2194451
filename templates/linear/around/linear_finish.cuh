// linear/around/linear_finish.cuh: luattn_linear_finish: what main kernels have found for rows of value heads and for numbers
// of tokens becomes gradients of q, k and v, of inputs and of scalars. luattn_linear_round makes numbers of exact sums.
//
// 256 threads. A warp has 16 rows of a head, one after another, whose lanes share a row's channels; or 32 tokens of a value
// head. Sums are in one order, or exact (ops/reproducible_sum.cuh).
#pragma once
#include "linear/around/linear_rows.cuh"
#include "linear/around/linear_sums.cuh"

static constexpr int finish_warps = 8, finish_rows = LUATTN_FINISH_ROWS / finish_warps, round_threads = 256;

// Sums of a run of tokens of one entry.
template <class Hook>
struct RunSums {
  float x[Hook::runs + 1];

  __device__ __forceinline__ RunSums() { clear(); }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i <= Hook::runs; ++i) x[i] = 0;
  }
  // Called by whole warps.
  __device__ __forceinline__ void flush(const LuattnLinearParams &p, const LinearSite &s) {
    if constexpr (Hook::runs > 0) {
      sum_over_warp(x);
      if (threadIdx.x % 32 == 0) Hook::add_runs(p, s, x);
      clear();
    }
  }
};

template <class Spec, class Config, int Which>
struct FinishRows {
  using Elem = typename Config::Elem;
  using Hook = typename HookOf<Spec, Which>::Type;
  static constexpr bool of_v = Which == 2, skips = of_v && HasSkipped<Spec> && !SkipIsAdded<Spec, Config>;
  static constexpr int dim = of_v ? Config::v_dim : Config::k_dim;
  using Skip = typename SkipOf<Spec, skips>::Type;
  using Row = LaneRow<Elem, dim>;

  const LuattnLinearParams &p;
  RunSums<Hook> of_run;
  RunSums<Skip> of_skip;

  // The gradient of the row that main kernels read: of all value heads that read it.
  __device__ __forceinline__ void load_gradient(Row &g, const TokenPlace &at, int head) const {
    const LuattnTensor &made = p.rows.made[Which];
    if constexpr (of_v) {
      g.load(row_of<Config, Elem>(made, at, head));
    } else {
      Row part;
      g.load(row_of<Config, Elem>(made, at, head * p.group));
#pragma unroll 1
      for (int i = 1; i < p.group; ++i) {
        part.load(row_of<Config, Elem>(made, at, head * p.group + i));
#pragma unroll
        for (int n = 0; n < Row::count; ++n) g.x[n] += part.x[n];
      }
    }
  }
  // Turns g, the gradient of what the hook gives, into that of x. Adds to what it turns into if Adds.
  template <class Of, bool Adds>
  __device__ __forceinline__ void derive(Row &dx, const Row &x, const Row &g, const LinearSite &s, int t,
                                         RunSums<Of> &run) const {
    float red[Of::sums + 1], row[Of::sums + 1] = {}, of_row[Of::rows + 1] = {};
    find_sums<Of>(p, s, x, t, red);
    if constexpr (Of::sums > 0) {
#pragma unroll
      for (int i = 0; i < Row::count; ++i)
        if (Row::has(i)) Of::weigh(p, s, x.x[i], g.x[i], t, Row::channel(i), red, row);
      sum_over_warp(row);
    }
    Row found;
#pragma unroll
    for (int i = 0; i < Row::count; ++i) {
      found.x[i] = 0;
      if (!Row::has(i)) continue;
      found.x[i] = Of::dx(p, s, x.x[i], g.x[i], t, Row::channel(i), red, row);
      if constexpr (Of::has_terms) Of::add(p, s, x.x[i], g.x[i], t, Row::channel(i), red, row, run.x, of_row);
    }
    if constexpr (Of::rows > 0) {
      sum_over_warp(of_row);
      if (threadIdx.x % 32 == 0) Of::add_rows(p, s, t, of_row);
    }
#pragma unroll
    for (int i = 0; i < Row::count; ++i) dx.x[i] = (Adds ? dx.x[i] : 0.f) + found.x[i];
  }
  // A row, whose loads are under way.
  struct Loaded {
    TokenPlace at{0, 0, 0, true};
    Row g, x, dout;
  };
  // Whether rows are finished, but for those of no entry.
  __device__ __forceinline__ bool is_done() const {
    return !skips && p.rows.grad[Which].data == p.rows.made[Which].data;
  }
  __device__ __forceinline__ Loaded load(i64 row, int head) const {
    Loaded l;
    l.at = place_of_token<Config>(p, row);
    if (l.at.none || is_done()) return l;
    if (p.rows.made[Which].data != nullptr) load_gradient(l.g, l.at, head);
    if constexpr (Hook::made || skips) l.x.load(row_of<Config, Elem>(p.rows.from[Which], l.at, head));
    if constexpr (skips) l.dout.load(row_of<Config, Elem>(p.rows.dout, l.at, head));
    return l;
  }
  __device__ __forceinline__ void step(const Loaded &l, const LinearSite &s, int head) {
    const LuattnTensor &grad = p.rows.grad[Which];
    const bool has_gradient = p.rows.made[Which].data != nullptr;
    Row dx;
#pragma unroll
    for (int i = 0; i < Row::count; ++i) dx.x[i] = has_gradient ? l.g.x[i] : 0.f;
    if constexpr (Hook::made)
      if (has_gradient) derive<Hook, false>(dx, l.x, l.g, s, l.at.t, of_run);
    if constexpr (skips) derive<Skip, true>(dx, l.x, l.dout, s, l.at.t, of_skip);
    if (grad.data != nullptr) dx.store(row_of<Config, Elem>(grad, l.at, head));
  }
  __device__ __forceinline__ void run(u32 block, int heads) {
    const LuattnTensor &grad = p.rows.grad[Which];
    const int head = int(block % u32(heads));
    const i64 first = i64(block / u32(heads)) * LUATTN_FINISH_ROWS + int(threadIdx.x / 32) * finish_rows,
              all = tokens_of_all<Config>(p);
    const int count = int(max_of(min_of(all - first, i64(finish_rows)), i64(0)));
    LinearSite s{-1, 0, 0, 0};
    Loaded next;
    if (count > 0) next = load(first, head);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const Loaded now = next;
      if (i + 1 < count) next = load(first + i + 1, head);
      const TokenPlace &at = now.at;
      if (at.none) {
        Row zero;
#pragma unroll
        for (int n = 0; n < Row::count; ++n) zero.x[n] = 0;
        if (grad.data != nullptr) zero.store(row_of<Config, Elem>(grad, at, head));
      } else if (!is_done()) {
        if (at.entry != s.b && s.b >= 0) of_run.flush(p, s), of_skip.flush(p, s);
        s = of_v ? LinearSite{at.entry, head, head / p.group, at.first}
                 : LinearSite{at.entry, head * p.group, head, at.first};
        step(now, s, head);
      }
    }
    if (s.b >= 0) of_run.flush(p, s), of_skip.flush(p, s);
  }
};

// Gradients of numbers of tokens.
template <class Config>
struct FinishNumbers {
  const LuattnLinearParams &p;

  template <class Hook>
  __device__ __forceinline__ void add(const float *of, const TokenPlace &at, const LinearSite &s, i64 row) const {
    if constexpr (Hook::has_terms) {
      if (of == nullptr) return;
      RunSums<Hook> run;
      float of_row[Hook::rows + 1] = {};
      if (!at.none) {
        const float g = of[row * p.heads_v + s.hv];
        Hook::add(p, s, 1.f, g, at.t, 0, nullptr, nullptr, run.x, of_row);
        if constexpr (Hook::rows > 0) Hook::add_rows(p, s, at.t, of_row);
      }
      if constexpr (Hook::runs > 0) add_runs<Hook>(run, at, s);
    }
  }
  // One entry's sums are added up first, of the whole block if it has one: exact sums are few addresses, which all blocks add to.
  template <class Hook>
  __device__ __forceinline__ void add_runs(RunSums<Hook> &run, const TokenPlace &at, const LinearSite &s) const {
    __shared__ int entries[finish_warps];
    __shared__ float parts[finish_warps][Hook::runs];
    const int warp = int(threadIdx.x / 32), lane = int(threadIdx.x % 32), mine = at.none ? -1 : s.b;
    int same;
    __match_all_sync(0xffffffffu, mine, &same);
    if (same) sum_over_warp(run.x);
    if (lane == 0) entries[warp] = same ? mine : -2 - warp;
#pragma unroll
    for (int i = 0; i < Hook::runs; ++i)
      if (lane == 0) parts[warp][i] = run.x[i];
    __syncthreads();
    bool all = true;
#pragma unroll
    for (int w = 1; w < finish_warps; ++w) all &= entries[w] == entries[0];
    if (all && threadIdx.x == 0)
#pragma unroll
      for (int w = 1; w < finish_warps; ++w)
#pragma unroll
        for (int i = 0; i < Hook::runs; ++i) run.x[i] += parts[w][i];
    if (!at.none && (all ? threadIdx.x == 0 : !same || lane == 0)) Hook::add_runs(p, s, run.x);
    __syncthreads();
  }
  // Where decays differ between channels: a warp's tokens one after another, a lane for each channel.
  template <class Hook>
  __device__ __forceinline__ void add_channels(const float *of, int hv, i64 first) const {
    if constexpr (Hook::has_terms) {
      if (of == nullptr) return;
      const i64 all = tokens_of_all<Config>(p);
      RunSums<Hook> run;
      LinearSite s{-1, 0, 0, 0};
#pragma unroll 1
      for (i64 row = first; row < first + 32 && row < all; ++row) {
        const TokenPlace at = place_of_token<Config>(p, row);
        if (at.none) continue;
        if (at.entry != s.b && s.b >= 0) run.flush(p, s);
        s = {at.entry, hv, hv / p.group, at.first};
        float of_row[Hook::rows + 1] = {};
#pragma unroll 1
        for (int d = int(threadIdx.x % 32); d < Config::k_dim; d += 32) {
          const float g = of[(row * p.heads_v + hv) * Config::k_dim + d];
          Hook::add(p, s, 1.f, g, at.t, d, nullptr, nullptr, run.x, of_row);
        }
        __syncwarp();
        if constexpr (Hook::rows > 0) {
          sum_over_warp(of_row);
          if (threadIdx.x % 32 == 0) Hook::add_rows(p, s, at.t, of_row);
        }
      }
      if (s.b >= 0) run.flush(p, s);
    }
  }
  // Whether hooks add up sums over runs of one head's tokens, which a warp then has.
  template <class Hook>
  static constexpr bool has_runs() {
    if constexpr (Hook::has_terms)
      return Hook::runs > 0;
    else
      return false;
  }
  template <class Spec>
  __device__ __forceinline__ void run(u32 block) const {
    constexpr bool of_head = Spec::decay_of == DECAY_CHANNEL || has_runs<typename Spec::OfDecay>() ||
                             has_runs<typename Spec::OfWrite>() || has_runs<typename Spec::OfRead>();
    constexpr int threads = 32 * finish_warps;
    const i64 number = i64(block) * threads + int(threadIdx.x);  // else lanes have numbers that are adjacent in memory
    const int hv = int(of_head ? block % u32(p.heads_v) : u32(number % p.heads_v));
    const i64 row = of_head ? i64(block / u32(p.heads_v)) * threads + int(threadIdx.x) : number / p.heads_v;
    TokenPlace at{0, 0, 0, true};
    if (row < tokens_of_all<Config>(p)) at = place_of_token<Config>(p, row);
    const LinearSite s{at.entry, hv, hv / p.group, at.first};
    if constexpr (DecayEndsHere<Spec>) {
    } else if constexpr (Spec::decay_of == DECAY_CHANNEL)
      add_channels<typename Spec::OfDecay>(p.sums.decay, hv, row - threadIdx.x % 32);
    else
      add<typename Spec::OfDecay>(p.sums.decay, at, s, row);
    add<typename Spec::OfWrite>(p.sums.write, at, s, row);
    add<typename Spec::OfRead>(p.sums.read, at, s, row);
  }
};

template <class Spec, class Config>
LUATTN_FN void linear_finish(const LuattnLinearParams &p, u32 block) {
  const unsigned *blocks = p.rows.blocks;
  if (block < blocks[0]) return FinishRows<Spec, Config, 0>{p}.run(block, p.heads);
  block -= blocks[0];
  if (block < blocks[1]) return FinishRows<Spec, Config, 1>{p}.run(block, p.heads);
  block -= blocks[1];
  if (block < blocks[2]) return FinishRows<Spec, Config, 2>{p}.run(block, p.heads_v);
  FinishNumbers<Config>{p}.template run<Spec>(block - blocks[2]);
}

// Adds the exact sum of an element of an input's gradient, or after the inputs of the scalars', to that of what is not finite.
template <class Real = float>
LUATTN_FN void linear_round(const LuattnLinearParams &p, i64 at, u32 input, u32 inputs) {
  const LuattnInput &in = p.inputs.input[input < inputs ? input : 0];
  Real *const grad = static_cast<Real *>(input < inputs ? in.grad : p.inputs.scalar_grad);
  const u64 *const exact = reinterpret_cast<const u64 *>(input < inputs ? in.exact : p.inputs.scalar_exact);
  const i64 count = input < inputs ? in.count : p.inputs.num_scalars;
  if (grad != nullptr && exact != nullptr && at < count) grad[at] += exact_value<Real>(exact + at, count);
}
