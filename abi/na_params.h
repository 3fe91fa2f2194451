/* na_params.h: the parameters of the kernels of luattn_na_qk and luattn_na_av (luattn/natten.h), and which keys a query's
 * taps are, for host and device. */
#ifndef LUATTN_ABI_NA_PARAMS_H
#define LUATTN_ABI_NA_PARAMS_H

#include "abi/host_device.h"

#define LUATTN_NA_AXES 3

/* Element (b, h, place, d) is `d` elements behind b * batch + h * head + the sum of place[a] * axis[a]. */
typedef struct LuattnNaTensor {
  void *data;
  long long batch, head, axis[LUATTN_NA_AXES];
} LuattnNaTensor;

typedef struct LuattnNaAxis {
  int extent, kernel, dilation, is_causal;
} LuattnNaAxis;

typedef enum LuattnNaOp {
  LUATTN_NA_SCORES,  /* taps[i, t] = <q[i], k[j(i, t)]> + bias */
  LUATTN_NA_QUERIES, /* q[i] = sum over t of taps[i, t] k[j(i, t)] */
  LUATTN_NA_KEYS,    /* k[j] = sum over i of taps[i, t(i, j)] q[i] */
  LUATTN_NA_BIAS     /* bias[h, r] = sum over b, i of taps[i, t] of the keys at displacement r */
} LuattnNaOp;

/* Unused axes come first, with an extent, a kernel and a dilation of 1. */
typedef struct LuattnNaParams {
  LuattnNaTensor q, k, taps; /* [batch, heads, ..]; k has heads / group heads */
  LuattnNaTensor bias;       /* [heads, 2 kernel - 1 an axis]; data may be NULL */
  LuattnNaAxis axis[LUATTN_NA_AXES];
  int op, batch, heads, group, dim;
  int hides; /* scores of taps that a causal window lacks are -inf, else 0 */
  int rows;  /* of the result: queries of all heads and entries, keys, or elements of the bias */
  int unused;
} LuattnNaParams;

/* The taps of a position are `count` keys from position `first` on, `dilation` apart, of `kernel`: the rest does not exist. */
typedef struct LuattnNaRun {
  int first, count;
} LuattnNaRun;

ABI_FN int na_min(int a, int b) { return a < b ? a : b; }
ABI_FN int na_max(int a, int b) { return a > b ? a : b; }

/* Positions of a dilation group. */
ABI_FN int na_members(LuattnNaAxis a, int group) { return (a.extent - group + a.dilation - 1) / a.dilation; }

ABI_FN LuattnNaRun na_keys_of(LuattnNaAxis a, int position) {
  const int group = position % a.dilation, at = position / a.dilation, members = na_members(a, group);
  const int first =
      a.is_causal ? na_max(at - a.kernel + 1, 0) : na_max(na_min(at - a.kernel / 2, members - a.kernel), 0);
  const LuattnNaRun run = {group + first * a.dilation, a.is_causal ? at - first + 1 : a.kernel};
  return run;
}

/* The queries that have a key among their taps: `count` from `first` on, `dilation` apart. */
ABI_FN LuattnNaRun na_queries_of(LuattnNaAxis a, int position) {
  const int group = position % a.dilation, at = position / a.dilation, members = na_members(a, group);
  int low = at, high = na_min(at + a.kernel - 1, members - 1);
  if (!a.is_causal) {
    low = at < a.kernel ? 0 : at - a.kernel + 1 + a.kernel / 2;
    high = at >= members - a.kernel ? members - 1 : at + a.kernel / 2;
  }
  const LuattnNaRun run = {group + low * a.dilation, high - low + 1};
  return run;
}

/* Which tap of a query a key is. */
ABI_FN int na_tap_of(LuattnNaAxis a, int query, int key) { return (key - na_keys_of(a, query).first) / a.dilation; }

/* The coordinates of a row-major number. */
typedef struct LuattnNaPlace {
  int at[LUATTN_NA_AXES];
} LuattnNaPlace;

ABI_FN LuattnNaPlace na_place(const LuattnNaParams *p, int number) {
  LuattnNaPlace place = {{0, 0, 0}};
  for (int a = LUATTN_NA_AXES - 1; a >= 0; --a) {
    place.at[a] = number % p->axis[a].extent;
    number /= p->axis[a].extent;
  }
  return place;
}

ABI_FN long long na_offset(const LuattnNaTensor *t, int b, int h, LuattnNaPlace place) {
  long long at = b * t->batch + h * t->head;
  for (int a = 0; a < LUATTN_NA_AXES; ++a) at += place.at[a] * t->axis[a];
  return at;
}

ABI_FN int na_places(const LuattnNaParams *p) { return p->axis[0].extent * p->axis[1].extent * p->axis[2].extent; }
ABI_FN int na_taps(const LuattnNaParams *p) { return p->axis[0].kernel * p->axis[1].kernel * p->axis[2].kernel; }

/* The key of a tap, and whether there is one; `bias`: where its displacement is in the table. */
typedef struct LuattnNaTap {
  LuattnNaPlace key;
  long long bias;
  int exists;
} LuattnNaTap;

ABI_FN LuattnNaTap na_tap(const LuattnNaParams *p, LuattnNaPlace query, int tap) {
  LuattnNaTap t = {{{0, 0, 0}}, 0, 1};
  for (int a = LUATTN_NA_AXES - 1; a >= 0; --a) {
    const LuattnNaAxis axis = p->axis[a];
    const LuattnNaRun run = na_keys_of(axis, query.at[a]);
    const int n = tap % axis.kernel;
    tap /= axis.kernel;
    t.exists &= n < run.count;
    t.key.at[a] = run.first + n * axis.dilation;
    t.bias += ((t.key.at[a] - query.at[a]) / axis.dilation + axis.kernel - 1) * p->bias.axis[a];
  }
  return t;
}

#endif
