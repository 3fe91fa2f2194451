// around/after/na_taps.cuh: scores of each query with the keys of its window, sums by such weights, and gradients of both
// (luattn/natten.h). A warp computes a row of the result: its lanes are taps of scores, channels of sums.
#pragma once
#include "abi/na_params.h"
#include "arch/types.cuh"

static constexpr int na_taps_threads = 128;

// A row of the result: of queries, or of keys.
struct NaRow {
  int b, h, number;  // head: of q, of keys their own
  LuattnNaPlace place;
};

LUATTN_FN NaRow na_row(const LuattnNaParams &p, int row, int heads) {
  const int places = na_places(&p), head = row / places;
  return {head / heads, head % heads, row % places, na_place(&p, row % places)};
}

template <class Real>
LUATTN_FN Real na_hidden(const LuattnNaParams &p) {
  return p.hides != 0 ? -infinity<Real>() : Real(0);
}

template <class Elem, class Real>
LUATTN_FN void na_scores(const LuattnNaParams &p, int row, int lane) {
  const NaRow r = na_row(p, row, p.heads);
  const Elem *q = static_cast<const Elem *>(p.q.data) + na_offset(&p.q, r.b, r.h, r.place),
             *bias = static_cast<const Elem *>(p.bias.data);
  Elem *to = static_cast<Elem *>(p.taps.data) + na_offset(&p.taps, r.b, r.h, r.place);
  const int taps = na_taps(&p);
  for (int t = lane; t < taps; t += 32) {
    const LuattnNaTap tap = na_tap(&p, r.place, t);
    Real sum = na_hidden<Real>(p);
    if (tap.exists != 0) {
      const Elem *k = static_cast<const Elem *>(p.k.data) + na_offset(&p.k, r.b, r.h / p.group, tap.key);
      sum = 0;
      for (int d = 0; d < p.dim; ++d) sum += to_real(q[d]) * to_real(k[d]);
      if (bias != nullptr) sum += to_real(bias[r.h * p.bias.head + tap.bias]);
    }
    to[t] = from_real<Elem>(sum);
  }
}

template <class Elem, class Real>
LUATTN_FN void na_queries(const LuattnNaParams &p, int row, int lane) {
  const NaRow r = na_row(p, row, p.heads);
  const Elem *weight = static_cast<const Elem *>(p.taps.data) + na_offset(&p.taps, r.b, r.h, r.place);
  Elem *to = static_cast<Elem *>(p.q.data) + na_offset(&p.q, r.b, r.h, r.place);
  const int taps = na_taps(&p);
  for (int d = lane; d < p.dim; d += 32) {
    Real sum = 0;
    for (int t = 0; t < taps; ++t) {
      const LuattnNaTap tap = na_tap(&p, r.place, t);
      if (tap.exists == 0) continue;
      const Elem *k = static_cast<const Elem *>(p.k.data) + na_offset(&p.k, r.b, r.h / p.group, tap.key);
      sum += to_real(weight[t]) * to_real(k[d]);
    }
    to[d] = from_real<Elem>(sum);
  }
}

// Calls f(place, tap) for each query that has the key among its taps.
template <class F>
LUATTN_FN void for_each_query(const LuattnNaParams &p, LuattnNaPlace key, F f) {
  const LuattnNaRun run[] = {na_queries_of(p.axis[0], key.at[0]), na_queries_of(p.axis[1], key.at[1]),
                             na_queries_of(p.axis[2], key.at[2])};
  const int count = run[0].count * run[1].count * run[2].count;
  for (int n = 0; n < count; ++n) {
    LuattnNaPlace query = {{0, 0, 0}};
    int rest = n, tap = 0, step = 1;
    for (int a = LUATTN_NA_AXES - 1; a >= 0; --a) {
      query.at[a] = run[a].first + rest % run[a].count * p.axis[a].dilation;
      rest /= run[a].count;
      tap += na_tap_of(p.axis[a], query.at[a], key.at[a]) * step;
      step *= p.axis[a].kernel;
    }
    f(query, tap);
  }
}

template <class Elem, class Real>
LUATTN_FN void na_keys(const LuattnNaParams &p, int row, int lane) {
  const NaRow r = na_row(p, row, p.heads / p.group);
  Elem *to = static_cast<Elem *>(p.k.data) + na_offset(&p.k, r.b, r.h, r.place);
  for (int d = lane; d < p.dim; d += 32) {
    Real sum = 0;
    for (int h = r.h * p.group; h < (r.h + 1) * p.group; ++h)
      for_each_query(p, r.place, [&](LuattnNaPlace query, int tap) {
        const Elem *q = static_cast<const Elem *>(p.q.data) + na_offset(&p.q, r.b, h, query),
                   *weight = static_cast<const Elem *>(p.taps.data) + na_offset(&p.taps, r.b, h, query);
        sum += to_real(weight[tap]) * to_real(q[d]);
      });
    to[d] = from_real<Elem>(sum);
  }
}

// An element of the bias's gradient: the sum over all queries that have a key at its displacement.
template <class Elem, class Real>
LUATTN_FN void na_bias(const LuattnNaParams &p, int row, int lane) {
  int rest = row, shift[LUATTN_NA_AXES];
  long long at = 0;
  for (int a = LUATTN_NA_AXES - 1; a >= 0; --a) {
    const int size = 2 * p.axis[a].kernel - 1, n = rest % size;
    shift[a] = (n - p.axis[a].kernel + 1) * p.axis[a].dilation;
    at += n * p.bias.axis[a];
    rest /= size;
  }
  const int h = rest, places = na_places(&p);
  Real sum = 0;
  for (int i = lane; i < p.batch * places; i += 32) {
    const LuattnNaPlace query = na_place(&p, i % places);
    int tap = 0, step = 1, exists = 1;
    for (int a = LUATTN_NA_AXES - 1; a >= 0; --a) {
      const LuattnNaRun run = na_keys_of(p.axis[a], query.at[a]);
      const int behind = query.at[a] + shift[a] - run.first, n = behind / p.axis[a].dilation;
      exists &= behind >= 0 && n < run.count;
      tap += n * step;
      step *= p.axis[a].kernel;
    }
    if (exists != 0)
      sum += to_real(static_cast<const Elem *>(p.taps.data)[na_offset(&p.taps, i / places, h, query) + tap]);
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0) static_cast<Real *>(p.bias.data)[h * p.bias.head + at] = sum;
}

template <class Config>
LUATTN_FN void na_taps(const LuattnNaParams &p) {
  using Elem = typename Config::Elem;
  using Real = typename Config::Real;
  const int lane = int(threadIdx.x % 32), row = int(blockIdx.x * (na_taps_threads / 32) + threadIdx.x / 32);
  if (row >= p.rows) return;
  switch (p.op) {
    case LUATTN_NA_SCORES:
      return na_scores<Elem, Real>(p, row, lane);
    case LUATTN_NA_QUERIES:
      return na_queries<Elem, Real>(p, row, lane);
    case LUATTN_NA_KEYS:
      return na_keys<Elem, Real>(p, row, lane);
    default:
      return na_bias<Elem, Real>(p, row, lane);
  }
}
