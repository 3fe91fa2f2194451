/* merge_parts_test.c: luattn_merge and luattn_merge_backward against sums in double here: all layouts, head dims that
 * allow wide accesses and others, one part to sixteen, parts that keep nothing, with an lse of -inf or +inf and an o of
 * NaN, and rows of which none keeps anything. With float64 on the CPU, gradients are also compared with finite
 * differences of the merge itself. Then arguments that are refused.
 *
 * merge_parts_test cuda|cpu PART ELEM: the types of o of the parts, and of the merged o
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/merge.h"
#include "tests/ptx/arrays.h"

enum { BATCH = 2, HEADS = 3, QUERIES = 5, ROWS = BATCH * HEADS * QUERIES, MOST_DIM = 72 };
typedef enum layout { HEADS_FIRST, HEADS_LAST, PACKED, LAYOUTS } layout;

static luattn_engine *engine;
static kind part_kind, elem_kind, real_kind;
static int failures;

/* A tensor with rows, as a call sees it, and its memory. */
typedef struct rows {
  array a;
  int64_t shape[4], strides[4];
  DLTensor t;
} rows;

/* dim 0: a number a row. PACKED has one batch entry of BATCH * QUERIES rows. */
static size_t place(layout l, int dim, int b, int h, int q, int d) {
  const int total = BATCH * QUERIES, row = b * QUERIES + q;
  const int heads_last = l == HEADS_LAST || (l == PACKED && dim > 0);
  const size_t at = heads_last    ? (size_t)(row * HEADS + h)
                    : l == PACKED ? (size_t)(h * total + row)
                                  : (size_t)((b * HEADS + h) * QUERIES + q);
  return dim > 0 ? at * (size_t)dim + (size_t)d : at;
}

static void open_rows(rows *r, kind k, layout l, int dim) {
  const int64_t each = dim > 0 ? dim : 1, total = BATCH * QUERIES;
  make(&r->a, k, 1, (int64_t[]){ROWS * each});
  r->t = r->a.t;
  int64_t shape[4] = {BATCH, HEADS, QUERIES, dim}, strides[4] = {HEADS * QUERIES * each, QUERIES * each, each, 1};
  if (l == HEADS_LAST) strides[1] = each, strides[2] = HEADS * each;
  r->t.ndim = dim > 0 ? 4 : 3;
  if (l == PACKED) {
    r->t.ndim--;
    shape[0] = dim > 0 ? total : HEADS, shape[1] = dim > 0 ? HEADS : total, shape[2] = dim;
    strides[0] = dim > 0 ? HEADS * each : total, strides[1] = dim > 0 ? each : 1, strides[2] = 1;
  }
  memcpy(r->shape, shape, sizeof shape);
  memcpy(r->strides, strides, sizeof strides);
  r->t.shape = r->shape;
  r->t.strides = r->strides;
}
static double at(const rows *r, layout l, int dim, int row, int d) {
  return get(r->a.k, r->a.host, place(l, dim, row / QUERIES / HEADS, row / QUERIES % HEADS, row % QUERIES, d));
}
static void set(rows *r, layout l, int dim, int row, int d, double x) {
  put(r->a.k, r->a.host, place(l, dim, row / QUERIES / HEADS, row / QUERIES % HEADS, row % QUERIES, d), x);
}

typedef struct problem {
  layout l;
  int count, dim;
  struct {
    rows o, lse, d_o, d_lse;
  } part[LUATTN_MERGE_MAX];
  rows o, lse, dout, dlse;
} problem;

static void poison(rows *r) {
  for (size_t i = 0; i < r->a.count; i++) put(r->a.k, r->a.host, i, NAN);
  send(&r->a);
}

static void open_problem(problem *p, layout l, int count, int dim) {
  *p = (problem){.l = l, .count = count, .dim = dim};
  open_rows(&p->o, elem_kind, l, dim), open_rows(&p->dout, elem_kind, l, dim);
  open_rows(&p->lse, real_kind, l, 0), open_rows(&p->dlse, real_kind, l, 0);
  poison(&p->o), poison(&p->lse);
  for (int row = 0; row < ROWS; row++) {
    set(&p->dlse, l, 0, row, 0, drawn());
    for (int d = 0; d < dim; d++) set(&p->dout, l, dim, row, d, drawn());
  }
  send(&p->dout.a), send(&p->dlse.a);
  for (int i = 0; i < count; i++) {
    rows *o = &p->part[i].o, *lse = &p->part[i].lse;
    open_rows(o, part_kind, l, dim), open_rows(&p->part[i].d_o, part_kind, l, dim);
    open_rows(lse, real_kind, l, 0), open_rows(&p->part[i].d_lse, real_kind, l, 0);
    for (int row = 0; row < ROWS; row++) {
      const bool none = row % 7 == 0 || (row % 7 == 1 && i != count / 2) || drawn() < -0.7;
      set(lse, l, 0, row, 0, none ? (row % 2 ? INFINITY : -INFINITY) : 6 * drawn());
      for (int d = 0; d < dim; d++) set(o, l, dim, row, d, none ? NAN : drawn());
    }
    send(&o->a), send(&lse->a);
    poison(&p->part[i].d_o), poison(&p->part[i].d_lse);
  }
}

static void close_problem(problem *p) {
  rows *const all[] = {&p->o, &p->lse, &p->dout, &p->dlse};
  for (int i = 0; i < 4; i++) drop(&all[i]->a);
  for (int i = 0; i < p->count; i++) {
    rows *const of_part[] = {&p->part[i].o, &p->part[i].lse, &p->part[i].d_o, &p->part[i].d_lse};
    for (int j = 0; j < 4; j++) drop(&of_part[j]->a);
  }
}

static luattn_merge_args args_of(problem *p, luattn_part *parts, bool backward) {
  for (int i = 0; i < p->count; i++)
    parts[i] = (luattn_part){&p->part[i].o.t, &p->part[i].lse.t, backward ? &p->part[i].d_o.t : NULL,
                             backward ? &p->part[i].d_lse.t : NULL};
  luattn_merge_args a = {.struct_size = sizeof a, .parts = parts, .num_parts = (size_t)p->count};
  if (backward)
    a.dout = &p->dout.t, a.dlse = &p->dlse.t;
  else
    a.o = &p->o.t, a.lse = &p->lse.t;
  return a;
}

static void run(problem *p, bool backward) {
  luattn_part parts[LUATTN_MERGE_MAX];
  const luattn_merge_args a = args_of(p, parts, backward);
  need((backward ? luattn_merge_backward : luattn_merge)(engine, &a, NULL, &err) == LUATTN_OK,
       backward ? "backward" : "merge");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
}

/* ---- in double ---- */

typedef struct expected {
  double weight[LUATTN_MERGE_MAX], lse, o[MOST_DIM], dot[LUATTN_MERGE_MAX], mean;
} expected;

static void expect(const problem *p, int row, expected *e) {
  double largest = -INFINITY, sum = 0;
  memset(e, 0, sizeof *e);
  for (int i = 0; i < p->count; i++) {
    const double lse = at(&p->part[i].lse, p->l, 0, row, 0);
    if (!isinf(lse)) largest = fmax(largest, lse);
  }
  for (int i = 0; i < p->count; i++) {
    const double lse = at(&p->part[i].lse, p->l, 0, row, 0);
    sum += e->weight[i] = isinf(lse) ? 0 : exp(lse - largest);
  }
  e->lse = sum == 0 ? -INFINITY : largest + log(sum);
  for (int i = 0; i < p->count; i++) {
    if (e->weight[i] == 0) continue;
    e->weight[i] /= sum;
    for (int d = 0; d < p->dim; d++) {
      const double x = at(&p->part[i].o, p->l, p->dim, row, d);
      e->o[d] += e->weight[i] * x;
      e->dot[i] += at(&p->dout, p->l, p->dim, row, d) * x;
    }
    e->mean += e->weight[i] * e->dot[i];
  }
}

static void compare(const char *what, const problem *p, int row, kind k, double got, double want) {
  const double slack = k == F64 ? 1e-13 : kind_unit[k] * 2 + (real_kind == F64 ? 0 : 4e-6);
  if (got == want || fabs(got - want) <= slack * (1 + fabs(want))) return;
  if (failures++ < 8)
    fprintf(stderr, "FAILED: layout %d, %d parts, head dim %d, row %d: %s is %.9g, expected %.9g\n", (int)p->l,
            p->count, p->dim, row, what, got, want);
}

static void check_forward(problem *p) {
  run(p, false);
  fetch(&p->o.a), fetch(&p->lse.a);
  for (int row = 0; row < ROWS; row++) {
    expected e;
    expect(p, row, &e);
    compare("lse", p, row, real_kind, at(&p->lse, p->l, 0, row, 0), e.lse);
    for (int d = 0; d < p->dim; d++) compare("o", p, row, elem_kind, at(&p->o, p->l, p->dim, row, d), e.o[d]);
  }
}

static void check_backward(problem *p) {
  run(p, true);
  for (int i = 0; i < p->count; i++) fetch(&p->part[i].d_o.a), fetch(&p->part[i].d_lse.a);
  for (int row = 0; row < ROWS; row++) {
    expected e;
    expect(p, row, &e);
    const double dlse = at(&p->dlse, p->l, 0, row, 0);
    for (int i = 0; i < p->count; i++) {
      compare("d_lse", p, row, real_kind, at(&p->part[i].d_lse, p->l, 0, row, 0),
              e.weight[i] * (e.dot[i] - e.mean + dlse));
      for (int d = 0; d < p->dim; d++)
        compare("d_o", p, row, part_kind, at(&p->part[i].d_o, p->l, p->dim, row, d),
                e.weight[i] * at(&p->dout, p->l, p->dim, row, d));
    }
  }
}

/* ---- finite differences ---- */

/* <dout, o> + <dlse, lse> over the rows that keep something. */
static double loss(problem *p) {
  double sum = 0;
  run(p, false);
  fetch(&p->o.a), fetch(&p->lse.a);
  for (int row = 0; row < ROWS; row++) {
    const double lse = at(&p->lse, p->l, 0, row, 0);
    if (lse == -INFINITY) continue;
    sum += at(&p->dlse, p->l, 0, row, 0) * lse;
    for (int d = 0; d < p->dim; d++) sum += at(&p->dout, p->l, p->dim, row, d) * at(&p->o, p->l, p->dim, row, d);
  }
  return sum;
}
static double slope(problem *p, rows *x, int dim, int row, int d) {
  const double h = 1e-4, before = at(x, p->l, dim, row, d);
  double f[2];
  for (int i = 0; i < 2; i++) set(x, p->l, dim, row, d, i == 0 ? before - h : before + h), f[i] = loss(p);
  set(x, p->l, dim, row, d, before);
  return (f[1] - f[0]) / (2 * h);
}
static void check_slopes(problem *p) {
  for (int row = 0; row < ROWS; row++)
    for (int i = 0; i < p->count; i++) {
      if (at(&p->part[i].lse, p->l, 0, row, 0) == -INFINITY) continue;
      const double of_lse = slope(p, &p->part[i].lse, 0, row, 0), of_o = slope(p, &p->part[i].o, p->dim, row, 1);
      if (fabs(of_lse - at(&p->part[i].d_lse, p->l, 0, row, 0)) < 1e-7 &&
          fabs(of_o - at(&p->part[i].d_o, p->l, p->dim, row, 1)) < 1e-7)
        continue;
      failures++;
      fprintf(stderr, "FAILED: row %d, part %d: d_lse and the slope: %.9g %.9g, d_o: %.9g %.9g\n", row, i,
              at(&p->part[i].d_lse, p->l, 0, row, 0), of_lse, at(&p->part[i].d_o, p->l, p->dim, row, 1), of_o);
    }
}

/* ---- refusals ---- */

static void refused(const luattn_merge_args *a, bool backward, const char *message) {
  const luattn_status status = (backward ? luattn_merge_backward : luattn_merge)(engine, a, NULL, &err);
  if (status == LUATTN_INVALID && strstr(err.message, message) != NULL) return;
  failures++;
  fprintf(stderr, "FAILED: status %d, '%s', expected '%s'\n", (int)status, err.message, message);
}

static void refuse(problem *p) {
  luattn_part parts[LUATTN_MERGE_MAX];
  luattn_merge_args a = args_of(p, parts, false);
  a.num_parts = 17;
  refused(&a, false, "forward of 'merge': num_parts: is 17, expected 1 to 16 and an array; merge more parts in turn");
  a = args_of(p, parts, false);
  a.o = NULL;
  refused(&a, false, "forward of 'merge': o: is missing");
  a = args_of(p, parts, false);
  parts[1].lse = NULL;
  refused(&a, false, "forward of 'merge': parts[1].lse: is missing");
  a = args_of(p, parts, false);
  parts[1].o = &p->part[1].lse.t;
  refused(&a, false, "forward of 'merge': parts[1].o: has 3 axes, expected 4: [batch, heads, q_len, head_dim_v]");
  a = args_of(p, parts, false);
  parts[1].lse = &p->part[1].o.t;
  refused(&a, false, "forward of 'merge': parts[1].lse: has 4 axes, expected 3: [batch, heads, q_len]");
  a = args_of(p, parts, false);
  a.o = parts[0].o;
  refused(&a, false, "forward of 'merge': o: its memory, 0x");
  a = args_of(p, parts, true);
  a.dout = a.dlse = NULL;
  refused(&a, true, "backward of 'merge': dout, dlse: both are missing");
  a = args_of(p, parts, true);
  parts[0].d_o = parts[1].d_o;
  refused(&a, true, "is shared with parts[0].d_o");
  DLTensor other = p->o.t;
  other.dtype = part_kind == F64 ? (DLDataType){kDLFloat, 32, 1} : (DLDataType){kDLFloat, 64, 1};
  a = args_of(p, parts, false);
  a.o = &other;
  refused(&a, false,
          part_kind == F64 ? "forward of 'merge': o: has dtype another than float64, and the parts have float64"
                           : "forward of 'merge': o: has dtype float64, and the parts do not have float64");
}

static kind kind_of(const char *name) {
  for (int k = F64; k <= F16; k++)
    if (strcmp(kind_name[k], name) == 0) return (kind)k;
  fprintf(stderr, "%s is no type\n", name);
  exit(2);
}

int main(int argc, char **argv) {
  if (argc != 4) return fprintf(stderr, "usage: merge_parts_test cuda|cpu PART ELEM\n"), 2;
  const bool on_cpu = strcmp(argv[1], "cpu") == 0;
  const luattn_engine_options options = {.struct_size = sizeof options, .device = on_cpu ? LUATTN_CPU : 0};
  part_kind = kind_of(argv[2]), elem_kind = kind_of(argv[3]), real_kind = part_kind == F64 ? F64 : F32;
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  static const struct {
    int count, dim;
  } sizes[] = {{1, 8}, {2, 64}, {3, 72}, {16, 24}, {5, 5}, {4, 1}};
  static problem p;
  for (int l = HEADS_FIRST; l < LAYOUTS; l++)
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      open_problem(&p, (layout)l, sizes[i].count, sizes[i].dim);
      check_forward(&p);
      check_backward(&p);
      if (on_cpu && part_kind == F64 && i == 4) check_slopes(&p);
      if (l == HEADS_FIRST && i == 1) refuse(&p);
      close_problem(&p);
    }
  luattn_engine_close(engine);
  printf("merges of %s to %s: %d failures\n", argv[2], argv[3], failures);
  return failures > 0;
}
