#include "cli/extents.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PLACES = 1 << 30 };

static const char *const length_names[] = {"Sq", "Skv"};

const char *extents_read(const char *at, int most, int *out, int *count) {
  for (*count = 0; *count < most;) {
    char *end;
    if (*at < '0' || *at > '9') return NULL; /* strtol would take spaces and signs */
    errno = 0;
    const long x = strtol(at, &end, 10);
    if (errno != 0 || x > INT32_MAX) return NULL;
    out[(*count)++] = (int)x;
    if (*end != 'x') return end;
    at = end + 1;
  }
  return NULL;
}

static int count_places(const int *extent, int axes) {
  int64_t places = 1;
  for (int a = 0; a < axes; a++) {
    places *= extent[a];
    if (places > INT_MAX) places = INT_MAX;
  }
  return (int)places;
}

/* Returns how many sizes the text has, 0 if it is no list of them. */
static int read_sizes(const char *at, cli_problem *p, int axes[2]) {
  int *const to[] = {&p->batch, &p->heads, &p->heads_kv, &p->q_len, &p->kv_len, &p->dim, &p->dim_v};
  for (int n = 0; n < 7; at++) {
    const bool is_length = n == 3 || n == 4;
    int one, count, *const extent = is_length ? p->extent[n - 3] : &one;
    at = extents_read(at, is_length ? LUATTN_MAX_AXES : 1, extent, &count);
    if (at == NULL) return 0;
    if (is_length) axes[n - 3] = count;
    *to[n++] = count_places(extent, count);
    if (*at == 0) return n;
    if (*at != ',') return 0;
  }
  return 0;
}

luattn_status extents_parse(const char *text, cli_problem *p, luattn_error *err) {
  int axes[2] = {0};
  const int n = read_sizes(text, p, axes);
  if (n < 6)
    return luattn_fail(err, LUATTN_INVALID,
                       "--shape: '%s' is not B,H,Hkv,Sq,Skv,D[,Dv]; give six or seven sizes up to 2147483647 such as "
                       "2,8,2,1024,1024,128, over a grid extents for Sq and Skv such as 24x32",
                       text);
  if (n == 6) p->dim_v = p->dim;
  if (axes[0] != axes[1])
    return luattn_fail(err, LUATTN_INVALID,
                       "--shape: '%s': Sq has %d axes, and Skv %d; give both the extents of one grid", text, axes[0],
                       axes[1]);
  p->axes = axes[0];
  for (int side = 0; side < 2 && p->axes > 1; side++)
    if ((side == 0 ? p->q_len : p->kv_len) > MAX_PLACES)
      return luattn_fail(err, LUATTN_INVALID, "--shape: '%s': %s has more than 2^30 places; give smaller extents", text,
                         length_names[side]);
  return LUATTN_OK;
}

luattn_status extents_check(const cli_options *o, cli_problem *p, luattn_error *err) {
  static const char *const defaults[] = {"", "", "16x16", "6x7x8", "4x4x4x4"};
  const char *const *name = NULL;
  const int axes = luattn_spec_grid(p->spec, &name);
  if (axes <= 1 && p->axes <= 1) return LUATTN_OK;
  if (axes <= 1)
    return luattn_fail(err, LUATTN_INVALID,
                       "--shape: '%s': Sq and Skv have %d extents, and the spec '%s' has no grid of several axes; give "
                       "a length for each",
                       o->shape, p->axes, p->info.name);
  if (o->cu_seqlens != NULL || o->cu_seqlens_q != NULL || o->cu_seqlens_k != NULL)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "--cu-seqlens: is of sequences, and the spec '%s' has a grid of %d axes, whose calls have no packed "
        "sequences; leave it out",
        p->info.name, axes);
  if (o->shape == NULL && p->axes <= 1) {
    int count;
    p->axes = axes;
    for (int side = 0; side < 2; side++) (void)extents_read(defaults[axes], axes, p->extent[side], &count);
    p->q_len = p->kv_len = count_places(p->extent[0], axes);
  }
  if (p->axes == axes) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "--shape: '%s': Sq has %d %s, and the grid of the spec '%s' has %d axes (%s, %s%s); give %s for "
                     "Sq and for Skv, with your numbers",
                     o->shape, p->axes, p->axes == 1 ? "extent" : "extents", p->info.name, axes, name[0], name[1],
                     axes > 2 ? ", .." : "", defaults[axes]);
}

void extents_take(cli_problem *p, int side, const array *tensor) {
  p->axes = tensor->t.ndim - 3;
  for (int a = 0; a < p->axes; a++) p->extent[side][a] = (int)tensor->shape[2 + a];
  *(side == 0 ? &p->q_len : &p->kv_len) = count_places(p->extent[side], p->axes);
}

const char *extents_text(const cli_problem *p, int side, char text[64]) {
  size_t used = 0;
  if (p->axes <= 1) return snprintf(text, 64, "%d", side == 0 ? p->q_len : p->kv_len), text;
  for (int a = 0; a < p->axes; a++)
    used += (size_t)snprintf(text + used, 64 - used, "%s%d", a > 0 ? "x" : "", p->extent[side][a]);
  return text;
}

int extents_coordinates(const cli_problem *p, int side, int place, double at[LUATTN_MAX_AXES]) {
  if (p->axes <= 1) return at[0] = place, 1;
  for (int a = p->axes; a-- > 0; place /= p->extent[side][a]) at[a] = place % p->extent[side][a];
  return p->axes;
}

int extents_draw_number(const cli_problem *p, int side, int place) {
  double at[LUATTN_MAX_AXES];
  if (p->axes <= 1) return place;
  const int axes = extents_coordinates(p, side, place, at);
  int patch = 0;
  for (int a = 0; a < axes; a++) {
    const int extent = p->extent[side][a];
    patch = a < axes - 2 ? patch * extent + (int)at[a] : patch * ((extent + 3) / 4) + (int)at[a] / 4;
  }
  const int y = (int)at[axes - 2], x = (int)at[axes - 1];
  return 16 * patch + y % 2 * 8 + y / 2 % 2 * 4 + x % 4;
}
