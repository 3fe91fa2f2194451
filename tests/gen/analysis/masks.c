#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "masks.h"

enum { OF_LINE = 6, ROWS = 4, COLUMNS = ROWS + OF_LINE, RANGES = COLUMNS + OF_LINE };

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

static ir_ref or_end(ir *g, ir_ref side, bool upper, bool of_kv) {
  if (side != IR_NONE) return side;
  return upper ? ir_variable(g, of_kv ? VAR_KV_LEN : VAR_Q_LEN, 0) : ir_int(g, 0);
}

static void put_line(ir *g, const mask_intervals *m, bool of_kv, ir_ref out[OF_LINE]) {
  for (int i = 0; i < 2; i++) {
    out[2 * i] = or_end(g, m->lo[i], false, of_kv);
    out[2 * i + 1] = or_end(g, m->hi[i], true, of_kv);
  }
  out[4] = or_end(g, m->rest_lo, false, of_kv);
  out[5] = or_end(g, m->rest_hi, false, of_kv);
}

void mask_analyse_case(mask_case *c, ir_ref predicate) {
  ir *g = c->t.g;
  luattn_error err;
  c->t.block_mask = predicate;
  if (mask_analyse(c->a, &c->t, &c->m, &err) != LUATTN_OK) fail_msg("%s", err.message);
  ir_ref range[RANGES];
  const ir_ref side[4] = {c->m.kv_lo, c->m.kv_hi, c->m.q_lo, c->m.q_hi};
  for (int i = 0; i < 4; i++) range[i] = or_end(g, side[i], i % 2 == 1, i < 2);
  put_line(g, &c->m.rows, true, range + ROWS);
  put_line(g, &c->m.columns, false, range + COLUMNS);
  /* Brute force evaluates what the user wrote, not the result of the analysis. */
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

static void load(void *user, uint32_t input, int n_index, const double *const *index, int lanes, double *out) {
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

/* Block minima and maxima, if blocks were tiles. */
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
    const ir_env env = {.user = &p, .variable = variable, .load = load};
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
  const ir_bounds_env env = {.user = &p, .variable = variable_bounds, .load = load_bounds};
  const int got = mask_tile_class(c->t.g, &c->m, &env, c->bounds), truth = true_class(c, tile);
  if (got == truth || (got == 1 && !exact)) return;
  fail_msg("%s: lengths %d x %d, tile q %d..%d kv %d..%d is class %d, but %d by brute force", name, c->q_len, c->kv_len,
           tile[0], tile[1], tile[2], tile[3], got, truth);
}

static void run_ranges(mask_case *c, const place *p, double x[RANGES]) {
  const ir_env env = {.user = (void *)p, .variable = variable, .load = load};
  double *out[RANGES];
  for (int i = 0; i < RANGES; i++) out[i] = &x[i];
  ir_program_run(c->range, &env, 1, c->range_scratch, out);
}

/* of_kv: checks the range of kv for rows lo .. hi; otherwise the range of q for columns lo .. hi. */
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
  fail_msg("%s: lengths %d x %d, %s of %d..%d: range [%g, %g), but [%d, %d) by brute force", name, c->q_len, c->kv_len,
           of_kv ? "kv" : "q", lo, hi, got_lo, got_hi, first, last + 1);
}

static bool is_inside(const mask_intervals *m, const double *x, int at) {
  const bool first = x[0] <= at && at < x[1], second = m->count == 2 && x[2] <= at && at < x[3];
  return (first || second) && (m->period == 0 || (x[4] <= at % m->period && at % m->period < x[5]));
}

/* Checks that the intervals of row or column `at`, combined with the rest of the mask, keep the same pairs as
 * the mask. */
static void check_line(mask_case *c, const char *name, bool is_row, int at) {
  const mask_intervals *m = is_row ? &c->m.rows : &c->m.columns;
  place p = {.c = c, .q = at, .kv = at};
  p.tile[is_row ? 0 : 2] = p.tile[is_row ? 1 : 3] = at;
  const ir_env env = {.user = &p, .variable = variable, .load = load};
  double x[RANGES], holds, *out[1] = {&holds};
  run_ranges(c, &p, x);
  const double *const line = x + (is_row ? ROWS : COLUMNS);
  for (int i = 0; i < (is_row ? c->kv_len : c->q_len); i++) {
    *(is_row ? &p.kv : &p.q) = i;
    ir_program_run(c->rest, &env, 1, c->rest_scratch, out);
    if (m->apart && holds == 0) continue;
    const bool kept = is_row ? c->grid[at][i] : c->grid[i][at];
    if (kept == is_inside(m, line, i)) continue;
    fail_msg(
        "%s: lengths %d x %d, %s %d: %d is kept: %d, but %d of [%g, %g), [%g, %g) and [%g, %g) of %d say "
        "otherwise",
        name, c->q_len, c->kv_len, is_row ? "row" : "column", at, i, kept, m->count, line[0], line[1], line[2], line[3],
        line[4], line[5], m->period);
  }
}

static int least(int x, int y) { return x < y ? x : y; }

void mask_check(mask_case *c, const char *name, int tile_m, int tile_n, bool exact, bool tight) {
  fill_grid(c);
  for (int q = 0; q < c->q_len && c->m.rows.count > 0; q++) check_line(c, name, true, q);
  for (int kv = 0; kv < c->kv_len && c->m.columns.count > 0; kv++) check_line(c, name, false, kv);
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
