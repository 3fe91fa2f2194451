#include "gen/cpu/part_merge.h"

#include <math.h>
#include <stdint.h>

#include "gen/cpu/cpu.h"

enum { AXIS_BATCH, AXIS_HEAD, AXIS_SEQ, AXIS_DIM };

static cpu_view view_of(const LuattnTensor *t, luattn_dtype type) {
  static const int codes[] = {kDLFloat, kDLFloat, kDLBfloat, kDLFloat}, bits[] = {64, 32, 16, 16};
  return (cpu_view){.data = t->data, .code = codes[type], .bits = bits[type], .kind = VIEW_REAL, .ndim = 4,
                    .stride = {t->batch, t->head, t->seq, 1}};
}

/* One row: where it is, and the parts' weights. */
typedef struct merge_row {
  const LuattnMergeParams *p;
  const part_merge_types *types;
  int64_t at[4];
  double weight[LUATTN_MOST_PARTS], lse;
} merge_row;

static double get(merge_row *r, const LuattnTensor *t, luattn_dtype type, int d) {
  const cpu_view v = view_of(t, type);
  r->at[AXIS_DIM] = d;
  return view_get(&v, r->at);
}

static void set(merge_row *r, const LuattnTensor *t, luattn_dtype type, int d, double x) {
  const cpu_view v = view_of(t, type);
  r->at[AXIS_DIM] = d;
  view_set(&v, r->at, x);
}

/* The weights sum to 1, or are all 0. */
static void find_weights(merge_row *r) {
  const int n = r->p->count;
  double largest = -INFINITY, sum = 0;
  for (int i = 0; i < n; i++) {
    r->weight[i] = get(r, &r->p->part[i].lse, r->types->real, 0);
    largest = fmax(largest, r->weight[i]);
  }
  for (int i = 0; i < n; i++) {
    r->weight[i] = r->weight[i] == -INFINITY ? 0 : exp(r->weight[i] - largest);
    sum += r->weight[i];
  }
  r->lse = sum == 0 ? -INFINITY : largest + log(sum);
  for (int i = 0; i < n; i++) r->weight[i] = r->weight[i] == 0 ? 0 : r->weight[i] / sum;
}

static void merge_forward(merge_row *r) {
  const LuattnMergeParams *p = r->p;
  for (int d = 0; d < p->dim; d++) {
    double sum = 0;
    for (int i = 0; i < p->count; i++)
      if (r->weight[i] != 0) sum += r->weight[i] * get(r, &p->part[i].o, r->types->part, d);
    set(r, &p->o, r->types->elem, d, sum);
  }
  if (p->lse.data != NULL) set(r, &p->lse, r->types->real, 0, r->lse);
}

static void merge_backward(merge_row *r) {
  const LuattnMergeParams *p = r->p;
  double dot[LUATTN_MOST_PARTS] = {0}, mean = 0;
  for (int d = 0; d < p->dim; d++) {
    const double g = p->dout.data != NULL ? get(r, &p->dout, r->types->elem, d) : 0;
    for (int i = 0; i < p->count; i++) {
      const bool counts = r->weight[i] != 0;
      if (counts) dot[i] += g * get(r, &p->part[i].o, r->types->part, d);
      if (p->part[i].d_o.data != NULL) set(r, &p->part[i].d_o, r->types->part, d, counts ? r->weight[i] * g : 0);
    }
  }
  for (int i = 0; i < p->count; i++)
    if (r->weight[i] != 0) mean += r->weight[i] * dot[i];
  const double dlse = p->dlse.data != NULL ? get(r, &p->dlse, r->types->real, 0) : 0;
  for (int i = 0; i < p->count; i++)
    if (p->part[i].d_lse.data != NULL)
      set(r, &p->part[i].d_lse, r->types->real, 0, r->weight[i] == 0 ? 0 : r->weight[i] * (dot[i] - mean + dlse));
}

void part_merge_rows(const LuattnMergeParams *p, const part_merge_types *types, bool backward, int64_t first, int64_t end) {
  for (int64_t i = first; i < end; i++) {
    merge_row r = {.p = p, .types = types, .at = {i / p->q_len.d / p->heads.d, i / p->q_len.d % p->heads.d, i % p->q_len.d, 0}};
    find_weights(&r);
    if (backward)
      merge_backward(&r);
    else
      merge_forward(&r);
  }
}
