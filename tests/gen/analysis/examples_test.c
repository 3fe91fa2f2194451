/* examples_test.c: traces every spec in examples/. Compares derived gradients with central differences of the
 * traced forward pass, and masks with brute force at a few hundred positions. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen/analysis/masks/mask.h"
#include "gen/analysis/specs/adjoint.h"
#include "gen/analysis/online/merge.h"
#include "gen/analysis/algebra/split.h"
#include "gen/ir/passes.h"
#include "gen/lua/front.h"

enum { ROW = 9, MAX_KEYS = 64, MAX_SPECS = 64, LONGEST = 600 };

/* Identifies an element of an input by the indices of the read. */
typedef struct key {
  uint32_t input;
  int n, index[4];
} key;

typedef struct world {
  arena *a;
  traced_spec t;
  derived_spec d;
  online_split split;
  mask_info mask;
  uint64_t seed;
  double var[VAR_COUNT], scalar[32], state[SPEC_MAX_STATE], other[SPEC_MAX_STATE], red[SPEC_MAX_RED],
      final[DERIVED_MAX_ROWS + 1], row[DERIVED_MAX_ROWS];
  int tile[4];
  key touched[MAX_KEYS];
  int num_touched;
  int perturbed; /* index in touched, or -1 */
  double nudge;
} world;

static double draw(world *w, double lo, double hi) {
  w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
  return lo + (hi - lo) * (double)(w->seed >> 11) * 0x1p-53;
}

static key key_of(uint32_t input, int n_index, const double *const *index, int lane) {
  key k = {.input = input, .n = n_index};
  for (int i = 0; i < n_index; i++) k.index[i] = (int)index[i][lane];
  return k;
}

static int find_key(world *w, const key *k) {
  for (int i = 0; i < w->num_touched; i++) {
    if (memcmp(&w->touched[i], k, sizeof *k) == 0) return i;
  }
  if (w->num_touched == MAX_KEYS) fail_msg("too many numbers of the inputs are read");
  w->touched[w->num_touched] = *k;
  return w->num_touched++;
}

static double input_value(const world *w, const key *k) {
  const uint32_t dtype = w->t.input[k->input].dtype;
  if (dtype == LUATTN_INPUT_I32) return k->index[k->n - 1] / 7; /* non-decreasing, like document ids */
  uint64_t h = k->input + 1;
  for (int i = 0; i < k->n; i++) h = (h * 31 + (uint64_t)k->index[i] + 1) * 0x9e3779b97f4a7c15u;
  h ^= h >> 31;
  if (dtype == LUATTN_INPUT_BOOL) return (double)(h & 1);
  return (double)(h % 2001) / 1000 - 1;
}

static void variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  const world *w = user;
  for (int i = 0; i < lanes; i++) {
    switch (v) {
      case VAR_STATE:
        out[i] = w->state[index];
        break;
      case VAR_OTHER:
        out[i] = w->other[index];
        break;
      case VAR_RED:
        out[i] = w->red[index];
        break;
      case VAR_FINAL:
        out[i] = w->final[index];
        break;
      case VAR_ROW:
        out[i] = w->row[index];
        break;
      case VAR_SCALAR:
        out[i] = w->scalar[index];
        break;
      case VAR_TILE:
        out[i] = w->tile[index];
        break;
      case VAR_KV:
        out[i] = w->var[v] + i;
        break;
      default:
        out[i] = w->var[v];
        break;
    }
  }
}

static void load(void *user, uint32_t input, int n_index, const double *const *index, int lanes, double *out) {
  world *w = user;
  for (int i = 0; i < lanes; i++) {
    const key k = key_of(input, n_index, index, i);
    out[i] = input_value(w, &k);
    if (w->t.input[input].grad) out[i] += find_key(w, &k) == w->perturbed ? w->nudge : 0;
  }
}

static void eval_many(world *w, ir_ref r, int lanes, double *x) {
  arena *a = arena_open(NULL);
  ir_program *p = ir_program_new(a, w->t.g, &r, 1);
  const ir_env env = {.user = w, .variable = variable, .load = load};
  ir_program_run(p, &env, lanes, arena_new(a, ir_program_scratch(p)), (double *[]){x});
  arena_close(a);
}

static double eval(world *w, ir_ref r) {
  double x;
  eval_many(w, r, 1, &x);
  return x;
}

/* ---- one row ---- */

typedef struct row {
  double t[ROW], v[ROW], g, dlse, p[ROW], out, lse;
} row;

static void step(world *w, const double *s, int lo, int hi, double *p) {
  const traced_online *o = &w->t.online;
  for (int k = 0; k < w->split.num_red; k++) {
    const bool is_max = w->split.kind[k] == IR_REDUCE_MAX;
    double sum = is_max ? -INFINITY : 0;
    for (int j = lo; j < hi; j++) {
      w->var[VAR_SCORE] = s[j];
      const double x = eval(w, w->split.term[k]);
      sum = is_max ? fmax(sum, x) : sum + x;
    }
    w->red[k] = sum;
  }
  const double rescale = eval(w, w->split.rescale);
  for (int j = 0; j < lo; j++) p[j] *= rescale;
  for (int j = lo; j < hi; j++) {
    w->var[VAR_SCORE] = s[j];
    p[j] = eval(w, w->split.prob);
  }
  double next[SPEC_MAX_STATE] = {0};
  for (int i = 0; i < o->num_state; i++) next[i] = eval(w, w->split.next[i]);
  memcpy(w->state, next, sizeof next);
}

static void begin(world *w) {
  for (int i = 0; i < w->t.online.num_state; i++) w->state[i] = eval(w, w->t.online.init[i]);
}

/* `frozen`: the factor of a detached normaliser; 0: the row's own factor */
static double run_row(world *w, row *r, double frozen) {
  const traced_online *o = &w->t.online;
  double s[ROW];
  for (int j = 0; j < ROW; j++) {
    w->var[VAR_SCORE] = r->t[j];
    w->var[VAR_KV] = j;
    s[j] = eval(w, w->t.score_mod);
  }
  begin(w);
  step(w, s, 0, 4, r->p);
  step(w, s, 4, ROW, r->p);
  w->var[VAR_OUT] = 1;
  const double norm = eval(w, o->out);
  r->out = 0;
  for (int j = 0; j < ROW; j++) {
    r->p[j] = frozen != 0 ? s[j] * frozen : r->p[j] * norm;
    r->out += r->p[j] * r->v[j];
  }
  r->lse = o->lse >= 0 ? eval(w, o->final[o->lse]) : 0;
  return r->g * r->out + (o->lse >= 0 ? r->dlse * r->lse : 0);
}

/* Compares a row in two steps with its two parts, each from the initial state, merged. */
static void check_merge(world *w, const row *r) {
  const traced_online *o = &w->t.online;
  online_merge m;
  luattn_error err;
  if (merge_derive(w->a, &w->t, &m, &err) != LUATTN_OK) fail_msg("%s", err.message);
  double s[ROW], p[ROW], merged[SPEC_MAX_STATE] = {0};
  for (int j = 0; j < ROW; j++) {
    w->var[VAR_SCORE] = r->t[j];
    w->var[VAR_KV] = j;
    s[j] = eval(w, w->t.score_mod);
  }
  begin(w);
  step(w, s, 4, ROW, p);
  memcpy(w->other, w->state, sizeof w->other);
  begin(w);
  step(w, s, 0, 4, p);
  for (int i = 0; i < o->num_state; i++) merged[i] = eval(w, m.state[i]);
  const double factor = eval(w, m.factor), other_factor = eval(w, m.other_factor);
  memcpy(w->state, merged, sizeof w->state);
  w->var[VAR_OUT] = 1;
  const double norm = eval(w, o->out);
  for (int j = 0; j < ROW; j++) {
    const double x = p[j] * (j < 4 ? factor : other_factor) * norm;
    if (fabs(x - r->p[j]) > 1e-12 * (1 + fabs(r->p[j])))
      fail_msg("%s: prob %.17g, merged %.17g", w->t.name, r->p[j], x);
  }
  if (o->lse >= 0 && fabs(eval(w, o->final[o->lse]) - r->lse) > 1e-12 * (1 + fabs(r->lse)))
    fail_msg("%s: lse %.17g, merged %.17g", w->t.name, r->lse, eval(w, o->final[o->lse]));
}

static double difference(world *w, row *r, double *x, double frozen) {
  row copy = *r;
  double *at = x >= r->t && x < r->t + ROW ? copy.t + (x - r->t) : x;
  const double keep = *at, h = 2e-6;
  *at = keep + h;
  const double up = run_row(w, &copy, frozen);
  *at = keep - h;
  const double down = run_row(w, &copy, frozen);
  *at = keep;
  return (up - down) / (2 * h);
}

typedef struct gradients {
  double t[ROW], scalar[32], key[MAX_KEYS];
} gradients;

static void add_terms(world *w, const derived_terms *terms, gradients *out) {
  for (int i = 0; i < terms->count; i++) {
    const derived_term *term = &terms->term[i];
    const double value = eval(w, term->value);
    if (term->input < 0) {
      out->scalar[term->scalar] += value;
      continue;
    }
    key k = {.input = (uint32_t)term->input, .n = term->num_index};
    for (int j = 0; j < k.n; j++) k.index[j] = (int)eval(w, term->index[j]);
    out->key[find_key(w, &k)] += value;
  }
}

static void backward(world *w, const row *r, gradients *out) {
  const int has_lse = w->t.online.lse >= 0;
  double kept[DERIVED_MAX_ROWS];
  for (int i = 0; i < w->d.num_saved; i++) kept[i] = eval(w, w->d.saved[i]);
  w->final[0] = r->lse;
  for (int i = 0; i < w->d.num_saved; i++) w->final[i + has_lse] = kept[i];
  w->var[VAR_DELTA] = r->g * r->out;
  w->var[VAR_DLSE] = r->dlse;
  for (int i = 0; i < w->d.num_rows; i++) kept[i] = eval(w, w->d.row[i]);
  memcpy(w->row, kept, sizeof kept);
  add_terms(w, &w->d.row_terms, out);
  for (int j = 0; j < ROW; j++) {
    w->var[VAR_SCORE] = r->t[j];
    w->var[VAR_KV] = j;
    w->var[VAR_DP] = r->g * r->v[j];
    out->t[j] = eval(w, w->d.ds);
    const double p = eval(w, w->d.prob);
    if (fabs(p - r->p[j]) > 1e-9 * (1 + fabs(p))) fail_msg("%s: prob is %.12g, should be %.12g", w->t.file, p, r->p[j]);
    add_terms(w, &w->d.element_terms, out);
  }
}

static void expect_near(const world *w, const char *what, int i, double x, double y) {
  if (fabs(x - y) > 3e-6 * (1 + fabs(y))) fail_msg("%s: %s[%d] is %.12g, should be %.12g", w->t.file, what, i, x, y);
}

static void check_gradients(world *w) {
  row r;
  for (int i = 0; i < w->t.num_scalars; i++) w->scalar[i] = w->t.scalar_default[i] * draw(w, 0.8, 1.2);
  for (int j = 0; j < ROW; j++) {
    r.t[j] = draw(w, -2, 2);
    r.v[j] = draw(w, -1, 1);
  }
  r.g = draw(w, 0.5, 2);
  r.dlse = draw(w, -1, 1);
  w->var[VAR_B] = 1;
  w->var[VAR_H] = 2;
  w->var[VAR_HEADS] = w->var[VAR_HEADS_KV] = 4;
  w->var[VAR_Q] = 5;
  w->var[VAR_Q_LEN] = w->var[VAR_KV_LEN] = 20;
  w->var[VAR_SCALE] = 1;
  run_row(w, &r, 0);
  gradients got = {.t = {0}};
  backward(w, &r, &got);
  double s0 = 0;
  w->var[VAR_SCORE] = r.t[0];
  w->var[VAR_KV] = 0;
  s0 = eval(w, w->t.score_mod);
  const double frozen = strstr(w->t.file, "detached") != NULL ? r.p[0] / s0 : 0;
  for (int j = 0; j < ROW; j++) expect_near(w, "ds", j, got.t[j], difference(w, &r, &r.t[j], frozen));
  for (int i = 0; i < w->t.num_scalars; i++) {
    expect_near(w, w->t.scalar_name[i], 0, got.scalar[i], difference(w, &r, &w->scalar[i], frozen));
  }
  for (int i = 0, n = w->num_touched; i < n; i++) {
    w->perturbed = i;
    expect_near(w, w->t.input[w->touched[i].input].name, i, got.key[i], difference(w, &r, &w->nudge, frozen));
  }
  w->perturbed = -1;
  run_row(w, &r, 0);
  check_merge(w, &r);
}

static void check_mod(world *w, const char *name, ir_ref mod, const derived_mod *d) {
  if (mod == IR_NONE) {
    assert_int_equal(d->dx, IR_NONE);
    return;
  }
  const double h = 1e-6;
  w->var[VAR_X] = 0.3;
  w->var[VAR_POS] = 11;
  w->var[VAR_D] = 5;
  w->var[VAR_GRAD] = 1.3;
  const double got = eval(w, d->dx);
  w->var[VAR_X] = 0.3 + h;
  const double up = eval(w, mod);
  w->var[VAR_X] = 0.3 - h;
  expect_near(w, name, 0, got, 1.3 * (up - eval(w, mod)) / (2 * h));
}

/* ---- masks ---- */

static ir_bounds variable_bounds(void *user, ir_var v, uint32_t index, ir_type type) {
  const world *w = user;
  ir_bounds b = {.integer = ivi_all()};
  if (type == IR_REAL)
    b.real = v == VAR_SCALAR ? iv_make(w->scalar[index], w->scalar[index], false) : iv_all();
  else if (v == VAR_Q)
    b.integer = ivi_make(w->tile[0], w->tile[1]);
  else if (v == VAR_KV)
    b.integer = ivi_make(w->tile[2], w->tile[3]);
  else
    b.integer = ivi_point((long long)w->var[v]);
  return b;
}

static ir_bounds load_bounds(void *user, uint32_t input, ir_type type, int n_index, const ivi *index) {
  const world *w = user;
  ir_bounds b = {.real = iv_all(), .integer = ivi_all(), .boolean = tri_all()};
  if (type == IR_INT && w->t.input[input].dtype == LUATTN_INPUT_I32 && index[n_index - 1].lo >= 0) {
    b.integer = ivi_make(index[n_index - 1].lo / 7, index[n_index - 1].hi / 7);
  }
  return b;
}

static bool grid[LONGEST][LONGEST];

static void check_tiles(world *w, int q_len, int kv_len, int tile_m, int tile_n, ir_bounds *bounds) {
  const ir_bounds_env env = {.user = w, .variable = variable_bounds, .load = load_bounds};
  for (int q0 = 0; q0 < q_len; q0 += tile_m) {
    w->tile[0] = q0;
    w->tile[1] = (q0 + tile_m < q_len ? q0 + tile_m : q_len) - 1;
    const double lo = w->mask.kv_lo == IR_NONE ? 0 : eval(w, w->mask.kv_lo);
    const double hi = w->mask.kv_hi == IR_NONE ? kv_len : eval(w, w->mask.kv_hi);
    for (int kv0 = 0; kv0 < kv_len; kv0 += tile_n) {
      w->tile[2] = kv0;
      w->tile[3] = (kv0 + tile_n < kv_len ? kv0 + tile_n : kv_len) - 1;
      const double q_lo = w->mask.q_lo == IR_NONE ? 0 : eval(w, w->mask.q_lo);
      const double q_hi = w->mask.q_hi == IR_NONE ? q_len : eval(w, w->mask.q_hi);
      const int class = mask_tile_class(w->t.g, &w->mask, &env, bounds);
      for (int q = q0; q <= w->tile[1]; q++) {
        for (int kv = kv0; kv <= w->tile[3]; kv++) {
          const bool inside = kv >= lo && kv < hi && q >= q_lo && q < q_hi;
          if (grid[q][kv] ? class == 0 || !inside : class == 2) {
            fail_msg("%s: lengths %d x %d, q %d, kv %d: kept %d, tile class %d, in range %d", w->t.file, q_len, kv_len,
                     q, kv, grid[q][kv], class, inside);
          }
        }
      }
    }
  }
}

static void check_mask(world *w) {
  static const int lengths[][2] = {{LONGEST, LONGEST}, {257, 100}, {90, 311}};
  if (w->mask.keep == IR_NONE) return;
  ir_bounds *bounds = arena_array(w->a, ir_count(w->t.g), sizeof *bounds);
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    const int q_len = lengths[i][0], kv_len = lengths[i][1];
    w->var[VAR_Q_LEN] = q_len;
    w->var[VAR_KV_LEN] = kv_len;
    for (int q = 0; q < q_len; q++) {
      w->var[VAR_Q] = q;
      for (int kv = 0; kv < kv_len; kv += IR_LANES) {
        const int lanes = kv_len - kv < IR_LANES ? kv_len - kv : IR_LANES;
        double x[IR_LANES];
        w->var[VAR_KV] = kv;
        eval_many(w, w->t.block_mask, lanes, x);
        for (int j = 0; j < lanes; j++) grid[q][kv + j] = x[j] != 0;
      }
    }
    check_tiles(w, q_len, kv_len, 64, 64, bounds);
    check_tiles(w, q_len, kv_len, 16, 48, bounds);
  }
}

/* ---- files ---- */

static void check_spec(const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", LUATTN_EXAMPLES, name);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  char *source = calloc(1, 1 << 16);
  const size_t size = fread(source, 1, 1 << 16, file);
  fclose(file);
  world *w = calloc(1, sizeof *w);
  w->a = arena_open(NULL);
  w->seed = 99;
  w->perturbed = -1;
  luattn_error err = {.message = ""};
  if (front_trace(w->a, name, source, size, &w->t, &err) != LUATTN_OK ||
      derive_spec(w->a, &w->t, &w->d, &err) != LUATTN_OK || mask_analyse(w->a, &w->t, &w->mask, &err) != LUATTN_OK ||
      split_online(w->t.g, &w->t.online, name, &w->split, &err) != LUATTN_OK) {
    fail_msg("%s", err.message);
  }
  check_gradients(w);
  check_mod(w, "query_mod", w->t.query_mod, &w->d.query_mod);
  check_mod(w, "key_mod", w->t.key_mod, &w->d.key_mod);
  check_mod(w, "value_mod", w->t.value_mod, &w->d.value_mod);
  check_mask(w);
  arena_close(w->a);
  free(w);
  free(source);
}

static void test_examples(void **state) {
  (void)state;
  DIR *dir = opendir(LUATTN_EXAMPLES);
  assert_non_null(dir);
  int count = 0;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    const size_t n = strlen(entry->d_name);
    if (n < 5 || strcmp(entry->d_name + n - 4, ".lua") != 0) continue;
    check_spec(entry->d_name);
    count++;
  }
  closedir(dir);
  assert_true(count >= 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_examples)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
