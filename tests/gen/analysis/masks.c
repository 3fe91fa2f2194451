#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "masks.h"

enum { RANGES = 10 };

static void declare(luattn_input_info *info, const char *name, int32_t axis) {
  memset(info, 0, sizeof *info);
  snprintf(info->name, sizeof info->name, "%s", name);
  info->dtype = LUATTN_INPUT_I32;
  info->num_axes = 1;
  info->axis[0] = axis;
}

void mask_open(mask_case *c) {
  memset(c, 0, sizeof *c);
  c->a = arena_open(NULL);
  c->t = (traced_spec){.a = c->a, .g = ir_open(c->a), .file = "test.lua", .name = "test"};
  c->t.num_inputs = 2;
  declare(&c->t.input[0], "ids", LUATTN_AXIS_FREE);
  declare(&c->t.input[1], "prefix", LUATTN_AXIS_B);
  c->t.num_scalars = 1;
  c->t.scalar_name[0] = "window";
  c->t.score_mod = c->t.online.prob = ir_variable(c->t.g, VAR_SCORE, 0);
  c->t.online.out = ir_variable(c->t.g, VAR_OUT, 0);
}

void mask_close(mask_case *c) { arena_close(c->a); }

static ir_program *compile(mask_case *c, const ir_ref *roots, int n, void **scratch) {
  ir_program *p = ir_program_new(c->a, c->t.g, roots, n);
  assert_non_null(p);
  *scratch = arena_new(c->a, ir_program_scratch(p));
  return p;
}

void mask_analyse_case(mask_case *c, ir_ref predicate) {
  ir *g = c->t.g;
  luattn_error err;
  c->t.block_mask = predicate;
  if (mask_analyse(c->a, &c->t, &c->m, &err) != LUATTN_OK) fail_msg("%s", err.message);
  const ir_ref zero = ir_int(g, 0);
  const mask_columns *columns = &c->m.columns;
  const bool grid = c->m.period > 0, column_grid = columns->period > 0;
  const ir_ref range[RANGES] = {
      c->m.kv_lo != IR_NONE ? c->m.kv_lo : zero,
      c->m.kv_hi != IR_NONE ? c->m.kv_hi : ir_variable(g, VAR_KV_LEN, 0),
      c->m.q_lo != IR_NONE ? c->m.q_lo : zero,
      c->m.q_hi != IR_NONE ? c->m.q_hi : ir_variable(g, VAR_Q_LEN, 0),
      grid ? c->m.rest_lo : zero,
      grid ? c->m.rest_hi : zero,
      columns->lo != IR_NONE ? columns->lo : zero,
      columns->hi != IR_NONE ? columns->hi : ir_variable(g, VAR_Q_LEN, 0),
      column_grid ? columns->rest_lo : zero,
      column_grid ? columns->rest_hi : zero,
  };
  /* Brute force evaluates what the user wrote, not what analysis made of it. */
  c->keep = compile(c, &predicate, 1, &c->keep_scratch);
  c->range = compile(c, range, RANGES, &c->range_scratch);
  c->rest = compile(c, c->m.rest != IR_NONE ? &c->m.rest : &predicate, 1, &c->rest_scratch);
  c->bounds = arena_array(c->a, ir_count(g), sizeof *c->bounds);
}

/* ---- values ---- */

typedef struct place {
  const mask_case *c;
  int q, kv, tile[4];
} place; /* kv of lane 0; tile: q0, q1, kv0, kv1 */

static int uniform_value(const place *p, ir_var v, uint32_t index) {
  switch (v) {
    case VAR_B:
      return p->c->b;
    case VAR_Q_LEN:
      return p->c->q_len;
    case VAR_KV_LEN:
      return p->c->kv_len;
    case VAR_TILE:
      return p->tile[index];
    case VAR_HEADS:
    case VAR_HEADS_KV:
      return 4;
    default:
      return 0;
  }
}

static void variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  const place *p = user;
  for (int i = 0; i < lanes; i++) {
    if (v == VAR_Q)
      out[i] = p->q;
    else if (v == VAR_KV)
      out[i] = p->kv + i;
    else if (v == VAR_SCALAR)
      out[i] = p->c->window;
    else
      out[i] = uniform_value(p, v, index);
  }
}

static void load(void *user, uint32_t input, int n_index, const double *const *index, int lanes,
                 double *out) {
  const place *p = user;
  (void)n_index;
  for (int i = 0; i < lanes; i++) {
    const int at = (int)index[0][i];
    assert_true(at >= 0 && at < (input == 0 ? MAX_LEN : 2));
    out[i] = input == 0 ? p->c->ids[at] : p->c->prefix[at];
  }
}

/* ---- bounds ---- */

static ir_bounds variable_bounds(void *user, ir_var v, uint32_t index, ir_type type) {
  const place *p = user;
  ir_bounds b = {.integer = ivi_all()};
  if (type == IR_REAL)
    b.real = iv_make(p->c->window, p->c->window, false);
  else if (v == VAR_Q)
    b.integer = ivi_make(p->tile[0], p->tile[1]);
  else if (v == VAR_KV)
    b.integer = ivi_make(p->tile[2], p->tile[3]);
  else
    b.integer = ivi_point(uniform_value(p, v, index));
  return b;
}

/* What block minima and maxima would say if the blocks were the tiles. */
static ir_bounds load_bounds(void *user, uint32_t input, ir_type type, int n_index, const ivi *index) {
  const place *p = user;
  (void)type;
  (void)n_index;
  ir_bounds b = {.integer = ivi_all()};
  if (index[0].lo < 0 || index[0].hi >= (input == 0 ? MAX_LEN : 2)) return b;
  int lo = INT32_MAX, hi = INT32_MIN;
  for (long long i = index[0].lo; i <= index[0].hi; i++) {
    const int x = input == 0 ? p->c->ids[i] : p->c->prefix[i];
    lo = x < lo ? x : lo;
    hi = x > hi ? x : hi;
  }
  b.integer = ivi_make(lo, hi);
  return b;
}

/* ---- brute force ---- */

static void fill_grid(mask_case *c) {
  for (int q = 0; q < c->q_len; q++) {
    place p = {.c = c, .q = q};
    const ir_env env = {&p, variable, load};
    double x[IR_LANES], *out[1] = {x};
    ir_program_run(c->keep, &env, c->kv_len, c->keep_scratch, out);
    for (int kv = 0; kv < c->kv_len; kv++) c->grid[q][kv] = x[kv] != 0;
  }
}

static int true_class(const mask_case *c, const int tile[4]) {
  bool some = false, all = true;
  for (int q = tile[0]; q <= tile[1]; q++) {
    for (int kv = tile[2]; kv <= tile[3]; kv++) {
      some |= c->grid[q][kv];
      all &= c->grid[q][kv];
    }
  }
  return all ? 2 : some ? 1 : 0;
}

static void check_class(mask_case *c, const char *name, const int tile[4], bool exact) {
  place p = {.c = c, .tile = {tile[0], tile[1], tile[2], tile[3]}};
  const ir_bounds_env env = {&p, variable_bounds, load_bounds};
  const int got = mask_tile_class(c->t.g, &c->m, &env, c->bounds), truth = true_class(c, tile);
  if (got == truth || (got == 1 && !exact)) return;
  fail_msg("%s: lengths %d x %d, tile q %d..%d kv %d..%d is class %d, but %d by brute force", name, c->q_len,
           c->kv_len, tile[0], tile[1], tile[2], tile[3], got, truth);
}

static void run_ranges(mask_case *c, const place *p, double x[RANGES]) {
  const ir_env env = {(void *)p, variable, load};
  double *out[RANGES];
  for (int i = 0; i < RANGES; i++) out[i] = &x[i];
  ir_program_run(c->range, &env, 1, c->range_scratch, out);
}

/* of_kv: the range of kv for rows lo .. hi; else that of q for columns lo .. hi */
static void check_range(mask_case *c, const char *name, bool of_kv, int lo, int hi, bool tight) {
  const int len = of_kv ? c->kv_len : c->q_len;
  place p = {.c = c};
  p.tile[of_kv ? 0 : 2] = lo;
  p.tile[of_kv ? 1 : 3] = hi;
  double x[RANGES];
  run_ranges(c, &p, x);
  const double got_lo = fmax(x[of_kv ? 0 : 2], 0), got_hi = fmin(x[of_kv ? 1 : 3], len);
  int first = len, last = -1;
  for (int i = lo; i <= hi; i++) {
    for (int j = 0; j < len; j++) {
      if (!(of_kv ? c->grid[i][j] : c->grid[j][i])) continue;
      first = j < first ? j : first;
      last = j > last ? j : last;
    }
  }
  bool ok = last < 0 || (got_lo <= first && got_hi >= last + 1);
  if (tight) ok = last < 0 ? got_lo >= got_hi : got_lo == first && got_hi == last + 1;
  if (ok) return;
  fail_msg("%s: lengths %d x %d, %s of %d..%d: range [%g, %g), but [%d, %d) by brute force", name, c->q_len,
           c->kv_len, of_kv ? "kv" : "q", lo, hi, got_lo, got_hi, first, last + 1);
}

/* An interval is what its range says: all between the bounds is kept. */
static void check_interval(mask_case *c, const char *name, int q) {
  int count = 0;
  check_range(c, name, true, q, q, true);
  for (int kv = 1; kv < c->kv_len; kv++) count += c->grid[q][kv] != c->grid[q][kv - 1];
  if (count + c->grid[q][0] + c->grid[q][c->kv_len - 1] <= 2) return;
  fail_msg("%s: lengths %d x %d, row %d: said to be an interval, but %d columns differ from the one before",
           name, c->q_len, c->kv_len, q, count);
}

static void check_grid(mask_case *c, const char *name, int q) {
  const place p = {.c = c, .tile = {q, q}};
  double x[RANGES];
  run_ranges(c, &p, x);
  for (int kv = 0; kv < c->kv_len; kv++) {
    const int at = kv % c->m.period;
    if (c->grid[q][kv] == (x[0] <= kv && kv < x[1] && x[4] <= at && at < x[5])) continue;
    fail_msg("%s: lengths %d x %d, row %d: kv %d is kept: %d, but [%g, %g) and [%g, %g) of %d say otherwise",
             name, c->q_len, c->kv_len, q, kv, c->grid[q][kv], x[0], x[1], x[4], x[5], c->m.period);
  }
}

/* All that a key is kept for, or, of pairs for which the rest of the mask holds. */
static void check_column(mask_case *c, const char *name, int kv) {
  const int period = c->m.columns.period;
  place p = {.c = c, .kv = kv, .tile = {0, 0, kv, kv}};
  const ir_env env = {&p, variable, load};
  double x[RANGES], holds, *out[1] = {&holds};
  run_ranges(c, &p, x);
  for (int q = 0; q < c->q_len; q++) {
    p.q = q;
    ir_program_run(c->rest, &env, 1, c->rest_scratch, out);
    if (c->m.columns.apart && holds == 0) continue;
    const bool inside = x[6] <= q && q < x[7];
    if (c->grid[q][kv] == (inside && (period == 0 || (x[8] <= q % period && q % period < x[9])))) continue;
    fail_msg(
        "%s: lengths %d x %d, column %d: q %d is kept: %d, but [%g, %g) and [%g, %g) of %d say otherwise",
        name, c->q_len, c->kv_len, kv, q, c->grid[q][kv], x[6], x[7], x[8], x[9], period);
  }
}

static int least(int x, int y) { return x < y ? x : y; }

void mask_check(mask_case *c, const char *name, int tile_m, int tile_n, bool exact, bool tight) {
  fill_grid(c);
  for (int q = 0; q < c->q_len && c->m.is_interval; q++) check_interval(c, name, q);
  for (int q = 0; q < c->q_len && c->m.period > 0; q++) check_grid(c, name, q);
  for (int kv = 0; kv < c->kv_len && c->m.columns.known; kv++) check_column(c, name, kv);
  for (int q0 = 0; q0 < c->q_len; q0 += tile_m) {
    const int q1 = least(q0 + tile_m, c->q_len) - 1;
    check_range(c, name, true, q0, q1, tight);
    for (int kv0 = 0; kv0 < c->kv_len; kv0 += tile_n) {
      check_class(c, name, (const int[4]){q0, q1, kv0, least(kv0 + tile_n, c->kv_len) - 1}, exact);
    }
  }
  for (int kv0 = 0; kv0 < c->kv_len; kv0 += tile_n) {
    check_range(c, name, false, kv0, least(kv0 + tile_n, c->kv_len) - 1, tight);
  }
}
