/* box_pairs_test.c: forward of the sm90 and sm80 families over grids whose extents take several boxes, full and partial ones, for
 * pairs of boxes that a call names and for those that the engine chooses: O and lse beside the CPU path in double. NaN
 * lies past the ends of every axis, in K and V too, and outputs begin with it.
 *
 * box_pairs_test DTYPE CASE [sm80]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { HEADS = 2, MOST_AXES = 4, DIMS = MOST_AXES + 3 };

typedef struct pair_row {
  const char *name, *text;
  int axes, heads_kv, dim;
  bool heads_last;
  int64_t q[MOST_AXES], kv[MOST_AXES];
  uint64_t query_tile_size, key_tile_size;
} pair_row;

static const pair_row rows[] = {
    {"strided",
     "grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {17, 12}, stride = {4, 1}, is_causal = {false, "
     "true} }",
     2,
     1,
     64,
     false,
     {35, 44},
     {35, 44},
     LUATTN_BOX(0, 0, 8, 16),
     LUATTN_BOX(0, 0, 14, 8)},
    {"long_rows",
     "grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {9, 33} }",
     2,
     2,
     128,
     true,
     {17, 70},
     {17, 70},
     LUATTN_BOX(0, 0, 8, 16),
     LUATTN_BOX(0, 0, 4, 28)},
    {"tall",
     "grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {13, 13} }",
     2,
     2,
     64,
     false,
     {35, 30},
     {35, 30},
     LUATTN_BOX(0, 0, 16, 8),
     LUATTN_BOX(0, 0, 28, 4)},
    {"narrow",
     "grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {20, 20}, is_causal = {true, false} }",
     2,
     1,
     64,
     true,
     {30, 21},
     {30, 21},
     LUATTN_BOX(0, 0, 16, 8),
     LUATTN_BOX(0, 0, 16, 4)},
    {"video",
     "grid = {'t', 'y', 'x'}, block_mask = neighborhood { kernel_size = {5, 10, 7}, stride = {1, 2, 3} }",
     3,
     1,
     128,
     false,
     {9, 14, 11},
     {9, 14, 11},
     LUATTN_BOX(0, 8, 4, 4),
     LUATTN_BOX(0, 6, 4, 4)},
    {"odd_boxes",
     "grid = {'t', 'y', 'x'}, block_mask = causal_along('t')",
     3,
     1,
     64,
     true,
     {5, 9, 13},
     {7, 11, 6},
     LUATTN_BOX(0, 2, 4, 16),
     LUATTN_BOX(0, 3, 4, 12)},
    {"every_key",
     "grid = {'y', 'x'}, score_mod = softcap(2)",
     2,
     1,
     64,
     false,
     {33, 21},
     {19, 40},
     LUATTN_BOX(0, 0, 32, 4),
     LUATTN_BOX(0, 0, 8, 16)},
    {"four",
     "grid = {'a', 't', 'y', 'x'}, block_mask = mask_and(causal_along('a'), neighborhood { kernel_size = {2, 3, 5, 6} "
     "})",
     4,
     2,
     64,
     true,
     {5, 4, 7, 9},
     {5, 4, 7, 9},
     LUATTN_BOX(2, 4, 4, 4),
     LUATTN_BOX(3, 2, 4, 4)},
    {"blocks", "grid = {'y', 'x'}, block_mask = swin({16, 16}, {3, 5})", 2, 1, 128, false, {37, 40}, {37, 40}, 0, 0},
    {"disc",
     "grid = {'y', 'x'}, block_mask = function(b, h, q, k) local y, x = q.y - k.y, q.x - k.x; return y * y + x * x <= "
     "150 end",
     2,
     1,
     64,
     true,
     {31, 34},
     {29, 41},
     0,
     0},
    {"dilated",
     "grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {7, 5}, dilation = {3, 2} }",
     2,
     1,
     64,
     false,
     {25, 33},
     {25, 33},
     0,
     0},
    {"dilated_video",
     "grid = {'t', 'y', 'x'}, block_mask = neighborhood { kernel_size = {3, 2, 9}, dilation = {2, 8, 4}, stride = {1, "
     "1, 3}, is_causal = {true, false, false} }",
     3,
     1,
     128,
     true,
     {7, 19, 41},
     {7, 19, 41},
     LUATTN_BOX(0, 2, 4, 16),
     LUATTN_BOX(0, 3, 4, 12)},
    {"dilated_disc",
     "grid = {'y', 'x'}, score_mod = function(s, b, h, q, k) return s - 0.1 * abs(q.x - k.x) + 0.01 * k.y end, "
     "block_mask = function(b, h, q, k) local y, x = q.y - k.y, q.x - k.x; return y * y + x * x <= 150 and "
     "eq(y % 3, 0) and eq(q.x % 5, k.x % 5) end",
     2,
     2,
     64,
     false,
     {31, 34},
     {29, 41},
     LUATTN_BOX(0, 0, 32, 4),
     LUATTN_BOX(0, 0, 4, 28)},
    {"dilated_four",
     "grid = {'a', 't', 'y', 'x'}, block_mask = function(b, h, q, k) return eq((k.a - q.a) % 2, 0) and eq((q.y - k.y) "
     "% "
     "3, 0) and k.t <= q.t end",
     4,
     1,
     64,
     true,
     {5, 4, 7, 9},
     {6, 3, 8, 5},
     LUATTN_BOX(2, 4, 4, 4),
     LUATTN_BOX(3, 2, 4, 4)},
    {"far",
     "grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {3, 2}, dilation = {1, 9} }",
     2,
     1,
     64,
     true,
     {7, 23},
     {7, 23},
     0,
     0},
    {"far_by_reach",
     "grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {5, 3}, dilation = {1, 8} }",
     2,
     1,
     64,
     false,
     {5, 43},
     {5, 43},
     LUATTN_BOX(0, 0, 2, 64),
     LUATTN_BOX(0, 0, 2, 64)},
    {"far_multiple",
     "grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {2, 5}, dilation = {16, 1}, is_causal = {true, "
     "false} }",
     2,
     2,
     128,
     false,
     {48, 9},
     {48, 9},
     LUATTN_BOX(0, 0, 16, 8),
     LUATTN_BOX(0, 0, 28, 4)},
    {"far_video",
     "grid = {'t', 'y', 'x'}, block_mask = neighborhood { kernel_size = {2, 2, 2}, dilation = {2, 1, 11}, stride = {1, "
     "1, 2} }",
     3,
     1,
     64,
     true,
     {5, 3, 25},
     {5, 3, 25},
     0,
     0},
    {"far_twice",
     "grid = {'t', 'y', 'x'}, block_mask = neighborhood { kernel_size = {2, 2, 2}, dilation = {9, 1, 11} }",
     3,
     2,
     64,
     false,
     {19, 2, 23},
     {19, 2, 23},
     0,
     0},
    {"far_disc",
     "grid = {'y', 'x'}, block_mask = function(b, h, q, k) local y, x = q.y - k.y, q.x - k.x; return y * y + x * x <= "
     "900 and eq(x % 10, 0) end",
     2,
     1,
     64,
     false,
     {6, 9},
     {4, 31},
     0,
     0},
    {"far_four",
     "grid = {'a', 't', 'y', 'x'}, block_mask = function(b, h, q, k) return eq((k.a - q.a) % 70, 0) and eq((q.y - k.y) "
     "% 9, 0) and k.t <= q.t end",
     4,
     1,
     64,
     true,
     {2, 2, 10, 3},
     {3, 2, 19, 3},
     LUATTN_BOX(2, 4, 4, 4),
     LUATTN_BOX(3, 2, 4, 4)},
    /* Of sm80 alone. */
    {"thin_keys",
     "grid = {'y', 'x'}, score_mod = function(s, b, h, q, k) return s + 0.1 * (k.x - q.y) end, block_mask = "
     "neighborhood { kernel_size = {9, 7}, stride = {2, 1}, dilation = {1, 2} }",
     2,
     1,
     64,
     false,
     {19, 23},
     {19, 23},
     LUATTN_BOX(0, 0, 64, 2),
     LUATTN_BOX(0, 0, 32, 2)},
    {"odd_keys",
     "grid = {'t', 'y', 'x'}, score_mod = function(s, b, h, q, k) return s + 0.1 * k.x - 0.2 * k.y end, block_mask = "
     "causal_along('t')",
     3,
     2,
     72,
     true,
     {4, 9, 7},
     {5, 6, 11},
     LUATTN_BOX(0, 1, 4, 16),
     LUATTN_BOX(0, 2, 8, 3)},
    {"one_stage",
     "grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {11, 9}, stride = {3, 1}, is_causal = {false, "
     "true} }",
     2,
     1,
     136,
     false,
     {21, 27},
     {21, 27},
     LUATTN_BOX(0, 0, 8, 8),
     LUATTN_BOX(0, 0, 4, 8)},
    {"one_stage_disc",
     "grid = {'y', 'x'}, block_mask = function(b, h, q, k) local y, x = q.y - k.y, q.x - k.x; return y * y + x * x <= "
     "60 end",
     2,
     2,
     136,
     true,
     {17, 22},
     {19, 21},
     LUATTN_BOX(0, 0, 4, 16),
     LUATTN_BOX(0, 0, 16, 4)},
};
enum { NUM_ROWS = sizeof rows / sizeof *rows, NUM_SM90_ROWS = NUM_ROWS - 4 };

/* [batch 2, heads, axes of the grid, dim], or without dim contiguous. */
typedef struct placed {
  array a;
  int64_t shape[DIMS], stride[DIMS], count;
  double *values;
  DLTensor t, cpu;
} placed;

static int64_t element(const placed *x, int64_t flat) {
  int64_t at = 0;
  for (int i = x->t.ndim - 1; i >= 0; --i) {
    at += flat % x->shape[i] * x->stride[i];
    flat /= x->shape[i];
  }
  return at;
}

static void place(placed *x, kind k, const pair_row *row, int heads, const int64_t *extent, int dim, bool is_drawn) {
  int order[DIMS], n = 0;
  int64_t all = 1;
  memset(x, 0, sizeof *x);
  x->shape[n++] = 2, x->shape[n++] = heads;
  for (int a = 0; a < row->axes; ++a) x->shape[n++] = extent[a];
  if (dim > 0) x->shape[n++] = dim;
  for (int i = 0; i < n; ++i) order[i] = i;
  if (row->heads_last && dim > 0) {
    for (int i = 1; i < n - 2; ++i) order[i] = i + 1;
    order[n - 2] = 1;
  }
  x->count = 1;
  for (int o = n - 1; o >= 0; --o) {
    const int i = order[o];
    x->stride[i] = all;
    all *= x->shape[i] + (dim > 0 && i >= 2 && i < n - 1 ? 1 : 0);
    x->count *= x->shape[i];
  }
  make(&x->a, k, 1, &all);
  fill(&x->a, NAN);
  fetch(&x->a);
  x->values = calloc((size_t)x->count, sizeof *x->values);
  x->t = (DLTensor){.ndim = n};
  for (int64_t i = 0; i < x->count && is_drawn; ++i) {
    put(k, x->a.host, (size_t)element(x, i), drawn());
    x->values[i] = get(k, x->a.host, (size_t)element(x, i));
  }
  send(&x->a);
  x->t = x->a.t;
  x->t.ndim = n, x->t.shape = x->shape, x->t.strides = x->stride;
  x->cpu =
      (DLTensor){.data = x->values, .device = {kDLCPU, 0}, .ndim = n, .dtype = {kDLFloat, 64, 1}, .shape = x->shape};
}

static void clear(placed *x) {
  drop(&x->a);
  free(x->values);
}

/* The largest difference relative to the largest expected value; infinite where NaN past an end was overwritten. */
static double difference(placed *x) {
  double most = 1e-30, worst = 0;
  size_t missing = x->a.count - (size_t)x->count;
  fetch(&x->a);
  for (size_t i = 0; i < x->a.count; ++i) missing -= isnan(get(x->a.k, x->a.host, i)) ? 1 : 0;
  for (int64_t i = 0; i < x->count; ++i) {
    const double want = x->values[i], off = fabs(get(x->a.k, x->a.host, (size_t)element(x, i)) - want);
    most = fmax(most, fabs(want));
    worst = worse(worst, off);
  }
  return missing == 0 ? worst / most : INFINITY;
}

static bool check(luattn_engine *engine, const pair_row *row, kind k) {
  char text[400];
  size_t size;
  luattn_spec *spec;
  placed q, key, v, o, lse;
  array workspace;
  snprintf(text, sizeof text, "return attention { %s }", row->text);
  need(luattn_spec_load_text(row->name, text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "spec");
  place(&q, k, row, HEADS, row->q, row->dim, true), place(&key, k, row, row->heads_kv, row->kv, row->dim, true);
  place(&v, k, row, row->heads_kv, row->kv, row->dim, true), place(&o, k, row, HEADS, row->q, row->dim, false);
  place(&lse, F32, row, HEADS, row->q, 0, false);
  luattn_args args = {.struct_size = sizeof args,
                      .q = &q.t,
                      .k = &key.t,
                      .v = &v.t,
                      .o = &o.t,
                      .lse = &lse.t,
                      .query_tile_size = row->query_tile_size,
                      .key_tile_size = row->key_tile_size};
  luattn_args want = {
      .struct_size = sizeof want, .q = &q.cpu, .k = &key.cpu, .v = &v.cpu, .o = &o.cpu, .lse = &lse.cpu};
  need(luattn_cpu_forward(spec, &want, &err) == LUATTN_OK, "cpu forward");
  need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  args.workspace = workspace.device, args.workspace_size = size;
  need(luattn_forward(engine, spec, &args, NULL, &err) == LUATTN_OK, "forward");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  const double off = difference(&o), off_lse = difference(&lse), allowed = 16 * kind_unit[k];
  const bool ok = off <= allowed && off_lse <= allowed;
  if (!ok) fprintf(stderr, "FAILED: %s: o is off by %g, lse by %g, allowed %g\n", row->name, off, off_lse, allowed);
  placed *const all[] = {&q, &key, &v, &o, &lse};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) clear(all[i]);
  drop(&workspace);
  need(luattn_engine_forget(engine, spec, &err) == LUATTN_OK, "forget");
  luattn_spec_free(spec);
  return ok;
}

int main(int argc, char **argv) {
  const bool is_sm80 = argc > 3 && strcmp(argv[3], "sm80") == 0;
  const luattn_engine_options options = {.struct_size = sizeof options,
                                         .family = 1 + (is_sm80 ? LUATTN_SM80 : LUATTN_SM90)};
  luattn_engine *engine;
  int k = 0, failed = 0;
  while (argc > 1 && k < 4 && strcmp(argv[1], kind_name[k]) != 0) ++k;
  if (argc < 2 || k == 4) return 2;
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  for (int i = 0; i < (is_sm80 ? NUM_ROWS : NUM_SM90_ROWS); ++i)
    if (argc < 3 || strcmp(argv[2], rows[i].name) == 0) failed += !check(engine, &rows[i], (kind)k);
  luattn_engine_close(engine);
  return failed != 0;
}
