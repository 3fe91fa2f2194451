// linear/sm90/linear_states.cuh: states in memory, from and to the accumulators of a warpgroup, which has 64 value channels
// (rows) of S' [V, K].
#pragma once
#include "linear/sm90/linear_pipeline.cuh"
#include "ops/math.cuh"
#include "score/fragment.cuh"

// Where a thread's first element lies, and steps to the others.
template <class Real>
struct StatePlace {
  Real *first, *any;  // any: an element that exists
  i64 value, key;
  // Of row number r, 0 or 1, and column number j.
  __device__ __forceinline__ Real *at(int r, int j) const {
    return first + r * 8 * value + MmaFragment::column_of(j) * key;
  }
};

template <class Config>
struct StateRows {
  static constexpr int k_dim = ceil_div(Config::k_dim, 64) * 64;
  static constexpr int columns = k_dim / 4;  // of a thread

  const LinearChain<Config> &chain;
  const int value;  // the first row of the thread
  const int lane;

  // Whether the state has an element, or it pads a box.
  __device__ __forceinline__ bool has(int r, int j) const {
    return ((Config::v_dim % Config::v_block == 0 && !chain.of_map) ||
            value + r * 8 < (chain.of_map ? Config::k_dim : Config::v_dim)) &&
           (Config::k_dim == k_dim || MmaFragment::column(lane, j) < Config::k_dim);
  }
  template <class Real>
  __device__ __forceinline__ StatePlace<Real> place(const LuattnStates &s, i64 of) const {
    Real *row = static_cast<Real *>(s.data) + of * s.row + chain.site.hv * s.head;
    return {row + value * s.value + MmaFragment::column(lane) * s.key, row, s.value, s.key};
  }
  // 0 for one that does not exist. Selects: ptxas waits for products behind branches.
  template <class Real>
  __device__ __forceinline__ float read(const StatePlace<Real> &from, int r, int j) const {
    const Real *at = has(r, j) ? from.at(r, j) : from.any;
    const float x = to_real(*at);
    return has(r, j) ? x : 0.f;
  }
  // Columns number j and j + 1, neighbours of a state of segments.
  __device__ __forceinline__ float2 read_two(const StatePlace<float> &from, int r, int j) const {
    const float2 x = *reinterpret_cast<const float2 *>(has(r, j) ? from.at(r, j) : from.any);
    return has(r, j) ? x : float2{0, 0};
  }
  template <class Real>
  __device__ __forceinline__ void load(float (&x)[k_dim / 2], const StatePlace<Real> &from) const {
#pragma unroll
    for (int j = 0; j < columns; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) x[MmaFragment::element(r, j)] = read(from, r, j);
  }
  template <class Real>
  __device__ __forceinline__ void store(const float (&x)[k_dim / 2], const StatePlace<Real> &to) const {
#pragma unroll
    for (int j = 0; j < columns; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (has(r, j)) *to.at(r, j) = from_real<Real>(x[MmaFragment::element(r, j)]);
  }

  // The caller's states, or 0.
  __device__ __forceinline__ void load_first(float (&x)[k_dim / 2], const LuattnLinearParams &p) const {
    const LuattnStates &s = p.first;
    if (s.data == nullptr) {
#pragma unroll
      for (int i = 0; i < k_dim / 2; ++i) x[i] = 0;
    } else if (s.type == LUATTN_STATE_F32) {
      load(x, place<float>(s, chain.state_row(p)));
    } else if (s.type == LUATTN_STATE_BF16) {
      load(x, place<bf16_t>(s, chain.state_row(p)));
    } else {
      load(x, place<half_t>(s, chain.state_row(p)));
    }
  }
  __device__ __forceinline__ void store_last(const float (&x)[k_dim / 2], const LuattnLinearParams &p) const {
    if (p.last.data != nullptr) store_as(x, p.last, chain.state_row(p));
  }
  __device__ __forceinline__ void store_as(const float (&x)[k_dim / 2], const LuattnStates &s, i64 row) const {
    if (s.type == LUATTN_STATE_F32)
      store(x, place<float>(s, row));
    else if (s.type == LUATTN_STATE_BF16)
      store(x, place<bf16_t>(s, row));
    else
      store(x, place<half_t>(s, row));
  }

  // Where the caller wants it: the state before a chunk.
  __device__ __forceinline__ void store_between(const float (&x)[k_dim / 2], const LuattnLinearParams &p,
                                                int chunk) const {
    const LuattnStatesBetween &b = p.between;
    const int t = chunk * LUATTN_CHUNK;
    if (b.every == 0 || t % b.every != 0) return;
    const i64 row = linear_state_between(&b, chain.entry, chain.start, t, Config::packed);
    store_as(x, b.states, row);
  }

  // ---- of segments ----

  // 0, or of a map the unit matrix.
  __device__ __forceinline__ void load_unit(float (&x)[k_dim / 2]) const {
#pragma unroll
    for (int j = 0; j < columns; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        x[MmaFragment::element(r, j)] = chain.of_map && MmaFragment::column(lane, j) == value + r * 8 ? 1.f : 0.f;
  }
  // What the chunks of a segment are added to: 0, of a map the unit matrix, or in the first segment the first state, which is
  // copied. Nothing of that is left if the segment forgets it.
  __device__ __forceinline__ void begin_sums(float (&x)[k_dim / 2], const LuattnLinearParams &p, bool forgets) const {
    load_unit(x);
    if (chain.segment == 0 && !chain.of_map) {
      load_first(x, p);
      store(x, slot(p, 0));
    }
    if (forgets)
#pragma unroll
      for (int i = 0; i < k_dim / 2; ++i) x[i] = 0;
  }
  // The same behind sums: adds what is left of the first state, in the first segment, where it is copied.
  __device__ __forceinline__ void add_first(float (&x)[k_dim / 2], const LuattnLinearParams &p, float left) const {
    if (chain.segment > 0) return;
    float first[k_dim / 2];
    load_first(first, p);
    store(first, slot(p, 0));
    if (left == 0) return;
#pragma unroll
    for (int i = 0; i < k_dim / 2; ++i) x[i] += left * first[i];
  }
  // M, [K, K], a row for each row of the state that it makes; the thread's rows are M's columns.
  __device__ __forceinline__ StatePlace<float> map(const LuattnLinearParams &p, int segment) const {
    float *s = p.segments.maps + chain.number(p, segment) * (Config::k_dim * Config::k_dim);
    return {s + value + MmaFragment::column(lane) * Config::k_dim, s, 1, Config::k_dim};
  }

  __device__ __forceinline__ StatePlace<float> slot(const LuattnLinearParams &p, int segment) const {
    float *s = p.segments.states + chain.number(p, segment) * (Config::v_dim * Config::k_dim);
    return {s + value * Config::k_dim + MmaFragment::column(lane), s, Config::k_dim, 1};
  }
  // The same where decays differ between channels and updates add: x <- left x + what a segment adds.
  __device__ __forceinline__ void load_decayed(float (&x)[k_dim / 2], const LuattnLinearParams &p) const {
    load(x, slot(p, chain.segment > 0 ? 1 : 0));
#pragma unroll 1
    for (int i = 1; i < chain.segment; ++i) {
      const int of = LinearChain<Config>::backwards ? p.segments.count - 1 - i : i;
      const float *const left = p.segments.decays + chain.number(p, of) * Config::k_dim;
      const auto from = slot(p, i + 1);
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        const int key = MmaFragment::column(lane, j);
        const float by = key < Config::k_dim ? left[key] : 0.f;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float &e = x[MmaFragment::element(r, j)];
          e = by * e + read(from, r, j);
        }
      }
    }
  }
  // The first slot of those that decide what the segment begins with: sums of segments before one over which a state decays by
  // 2^-40 do not (linear_segment_end.cuh).
  __device__ __forceinline__ int first_that_counts(const LuattnLinearParams &p) const {
    float left = 0;
    int i = chain.segment;
#pragma unroll 1
    for (; i > 1; --i) {
      left += p.segments.decays[chain.number(p, i - 1)];
      if (left < -40) break;
    }
    return i;
  }
  // x <- e^decays x + what a segment adds, for each before it, in columns from number `first` on: those of several segments are
  // under way at once.
  template <int Count>
  __device__ __forceinline__ void load_columns(float (&x)[k_dim / 2], const LuattnLinearParams &p, int from,
                                               int first) const {
    const auto add = [&](int i, float left) {
      const auto of = slot(p, i);
#pragma unroll
      for (int j = first; j < first + Count; j += 2)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float2 more = read_two(of, r, j);
          float &a = x[MmaFragment::element(r, j)], &b = x[MmaFragment::element(r, j + 1)];
          a = left * a + more.x, b = left * b + more.y;
        }
    };
#pragma unroll
    for (int j = first; j < first + Count; ++j) x[MmaFragment::element(0, j)] = 0, x[MmaFragment::element(1, j)] = 0;
    add(from, 0);
#pragma unroll 4
    for (int i = from; i < chain.segment; ++i) add(i + 1, fast_exp2(p.segments.decays[chain.number(p, i)]));
  }
  // The state at the segment's beginning. Where updates erase, linear_join.cuh has made it.
  template <bool Erases>
  __device__ __forceinline__ void load_segment(float (&x)[k_dim / 2], const LuattnLinearParams &p) const {
    if constexpr (Erases) return load(x, slot(p, chain.segment));
    const int from = first_that_counts(p);
#pragma unroll
    for (int first = 0; first < columns; first += columns / 2) load_columns<columns / 2>(x, p, from, first);
  }
};
