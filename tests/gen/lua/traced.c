#include "traced.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void trace_text(traced_file *t, const char *source) {
  luattn_error err;
  t->a = arena_open(NULL);
  assert_non_null(t->a);
  const luattn_status status = front_trace(t->a, "test.lua", source, strlen(source), &t->spec, &err);
  if (status != LUATTN_OK) fail_msg("%s", err.message);
}

void trace_close(traced_file *t) { arena_close(t->a); }

void expect_error(const char *source, const char *message) {
  luattn_error err;
  traced_spec spec;
  arena *a = arena_open(NULL);
  assert_int_equal(front_trace(a, "test.lua", source, strlen(source), &spec, &err), LUATTN_SPEC);
  assert_string_equal(err.message, message);
  arena_close(a);
}

char *read_file(const char *path, size_t *size) {
  FILE *f = fopen(path, "rb");
  if (f == NULL) fail_msg("cannot open %s", path);
  char *data = NULL;
  *size = 0;
  for (size_t capacity = 4096;; capacity *= 2) {
    data = realloc(data, capacity);
    assert_non_null(data);
    *size += fread(data + *size, 1, capacity - 1 - *size, f);
    if (*size < capacity - 1) break;
  }
  data[*size] = '\0';
  fclose(f);
  return data;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int list_lua(const char *folder, char **path, int max) {
  DIR *dir = opendir(folder);
  if (dir == NULL) fail_msg("cannot open %s", folder);
  int n = 0;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    const size_t length = strlen(entry->d_name);
    if (length < 5 || strcmp(entry->d_name + length - 4, ".lua") != 0) continue;
    assert_true(n < max);
    const size_t size = strlen(folder) + length + 2;
    path[n] = malloc(size);
    assert_non_null(path[n]);
    snprintf(path[n++], size, "%s/%s", folder, entry->d_name);
  }
  closedir(dir);
  qsort(path, (size_t)n, sizeof *path, by_name);
  return n;
}

static void show_node(const traced_file *t, text *out, ir_ref r) {
  const ir *g = t->spec.g;
  const ir_node n = *ir_get(g, r);
  double x;
  if (ir_is_const(g, r, &x)) {
    text_add(out, "%.17g", x);
  } else if (n.op == IR_CONST_BOOL) {
    text_add(out, "%s", n.imm.integer != 0 ? "true" : "false");
  } else if (n.op == IR_VAR) {
    text_add(out, "%s", ir_var_name(ir_var_of(&n)));
    if (ir_index_of(&n) != 0) text_add(out, "%u", ir_index_of(&n));
  } else {
    text_add(out, "(%s", n.op == IR_LOAD ? t->spec.input[n.imm.integer].name : ir_op_name((ir_op)n.op));
    for (int i = 0; i < n.nargs; i++) {
      text_add(out, " ");
      show_node(t, out, n.arg[i]);
    }
    text_add(out, ")");
  }
}

const char *show(const traced_file *t, ir_ref r) {
  text out;
  if (r == IR_NONE) return "none";
  text_init(&out, t->a);
  show_node(t, &out, r);
  return text_get(&out);
}

/* ---- comparing with the oracle ---- */

enum { CHANNELS = 128 };

typedef struct comparison {
  const char *name;
  traced_spec spec;
  arena *a;
  front_oracle *oracle;
  uint64_t seed;
  double var[VAR_COUNT * IR_MAX_AXES][IR_LANES]; /* of axis a from VAR_COUNT * a on */
  double row[IR_LANES][CHANNELS];                /* x is the element at d */
  double scalar[32][IR_LANES], state[SPEC_MAX_STATE][IR_LANES], final[SPEC_MAX_FINAL][IR_LANES];
  bool mask_kept, mask_dropped;
} comparison;

static double uniform(comparison *c, double lo, double hi) {
  c->seed = c->seed * 6364136223846793005u + 1442695040888963407u;
  uint64_t x = c->seed ^ (c->seed >> 31);
  x *= 0xbf58476d1ce4e5b9u;
  return lo + (hi - lo) * (double)(x >> 11) * 0x1p-53;
}

static int below(comparison *c, int n) { return (int)uniform(c, 0, n); }

/* Returns the value of an input at an index: any fixed function with few distinct integers, so that ids
 * collide. */
static double input_value(const luattn_input_info *info, int n, const long long *index) {
  uint64_t x = 0x9e3779b97f4a7c15u;
  for (const char *p = info->name; *p != '\0'; p++) x = (x ^ (uint64_t)*p) * 0x100000001b3u;
  for (int i = 0; i < n; i++) {
    /* Adjacent indices share an id, as in documents. */
    const long long at = info->dtype == LUATTN_INPUT_I32 ? index[i] / 16 : index[i];
    x = (x ^ (uint64_t)at) * 0xbf58476d1ce4e5b9u;
  }
  x ^= x >> 32;
  if (info->dtype == LUATTN_INPUT_BOOL) return (double)(x & 1);
  if (info->dtype == LUATTN_INPUT_I32) return (double)(x % 3);
  return (double)(x >> 11 & 0xfffff) / 0x40000 - 2;
}

static double oracle_load(void *user, const char *input, int n, const long long *index) {
  const comparison *c = user;
  for (int i = 0; i < c->spec.num_inputs; i++) {
    if (strcmp(c->spec.input[i].name, input) == 0) return input_value(&c->spec.input[i], n, index);
  }
  fail_msg("%s: the oracle read input '%s'", c->name, input);
  return 0;
}

static void trace_load(void *user, uint32_t input, int n, const double *const *index, int lanes, double *out) {
  const comparison *c = user;
  for (int i = 0; i < lanes; i++) {
    long long at[4] = {0};
    for (int k = 0; k < n; k++) at[k] = (long long)index[k][i];
    out[i] = input_value(&c->spec.input[input], n, at);
  }
}

static void trace_variable(void *user, ir_var v, uint32_t index, int lanes, double *out);

/* Evaluates a read of x[..] in the row of each lane. */
static void trace_read(const comparison *c, uint32_t read, int lanes, double *out) {
  const ir_program *p = ir_program_new(c->a, c->spec.g, &c->spec.read[read], 1);
  const ir_env env = {.user = (void *)(uintptr_t)c, .variable = trace_variable};
  assert_non_null(p);
  ir_program_run(p, &env, lanes, arena_new(c->a, ir_program_scratch(p)), &out);
  for (int i = 0; i < lanes; i++) {
    const int channel = (int)out[i];
    out[i] = channel >= 0 && channel < CHANNELS ? c->row[i][channel] : NAN; /* in an arm that is not taken */
  }
}

static void trace_variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  const comparison *c = user;
  if (v == VAR_READ) {
    trace_read(c, index, lanes, out);
    return;
  }
  const double *from = v == VAR_SCALAR  ? c->scalar[index]
                       : v == VAR_STATE ? c->state[index]
                       : v == VAR_FINAL ? c->final[index]
                                        : c->var[v + VAR_COUNT * (ir_var)index];
  memcpy(out, from, (size_t)lanes * sizeof *out);
}

/* Extents of a grid, and a query and a key in it, near each other where masks change. */
static void draw_places(comparison *c, int i) {
  const int axes = c->spec.grid_axes;
  for (int a = 0; a < axes && axes > 1; a++) {
    const int q_len = 1 + below(c, 40), kv_len = below(c, 2) == 0 ? q_len : 1 + below(c, 40), q = below(c, q_len);
    const int near = q + below(c, 9) - 4, kv = below(c, 3) == 0 ? below(c, kv_len) : near;
    const double values[][2] = {{VAR_Q_LEN, q_len},
                                {VAR_KV_LEN, kv_len},
                                {VAR_Q, q},
                                {VAR_POS, q},
                                {VAR_KV, kv < 0         ? 0
                                         : kv >= kv_len ? kv_len - 1
                                                        : kv}};
    for (size_t k = 0; k < sizeof values / sizeof *values; k++)
      c->var[(int)values[k][0] + VAR_COUNT * a][i] = values[k][1];
  }
}

static void draw_lane(comparison *c, int i) {
  const int lengths[] = {20, 400, 10000}, longest = lengths[below(c, 3)];
  const int q_len = 1 + below(c, longest), kv_len = below(c, 2) == 0 ? q_len : 1 + below(c, longest);
  const int heads_kv = 1 + below(c, 4), q = below(c, q_len);
  int kv = below(c, kv_len);
  if (below(c, 3) != 0) kv = q + below(c, 33) - 16; /* near the diagonal, where masks change */
  kv = kv < 0 ? 0 : kv >= kv_len ? kv_len - 1 : kv;
  const double values[][2] = {
      {VAR_Q_LEN, q_len},
      {VAR_KV_LEN, kv_len},
      {VAR_HEADS_KV, heads_kv},
      {VAR_HEADS, heads_kv * (1 + below(c, 4))},
      {VAR_Q, q},
      {VAR_KV, kv},
      {VAR_B, below(c, 3)},
      {VAR_SCORE, uniform(c, -4, 4)},
      {VAR_POS, q},
      {VAR_D, below(c, CHANNELS)},
      {VAR_HEAD_DIM, CHANNELS},
      {VAR_HEAD_DIM_V, CHANNELS},
      {VAR_OUT, uniform(c, -3, 3)},
      {VAR_P, uniform(c, 0, 1)},
      {VAR_DP, uniform(c, -2, 2)},
      {VAR_DELTA, uniform(c, -2, 2)},
  };
  for (size_t k = 0; k < sizeof values / sizeof *values; k++) c->var[(int)values[k][0]][i] = values[k][1];
  c->var[VAR_H][i] = below(c, (int)c->var[VAR_HEADS][i]);
  draw_places(c, i);
  for (int d = 0; d < CHANNELS; d++) c->row[i][d] = uniform(c, -3, 3);
  c->var[VAR_X][i] = c->row[i][(int)c->var[VAR_D][i]];
  for (int k = 0; k < c->spec.num_scalars; k++) c->scalar[k][i] = uniform(c, 0.2, 3) * c->spec.scalar_default[k];
  for (int k = 0; k < SPEC_MAX_STATE; k++) c->state[k][i] = uniform(c, 0.1, 4);
  for (int k = 0; k < SPEC_MAX_FINAL; k++) c->final[k][i] = uniform(c, 0.1, 4);
}

/* Replaces reductions by their arguments, innermost first, because rows of the oracle have a single
 * element. */
static ir_ref without_reductions(ir *g, ir_ref r) {
  while (ir_uses_op(g, r, IR_REDUCE_SUM) || ir_uses_op(g, r, IR_REDUCE_MAX)) {
    for (ir_ref i = 1; i <= r; i++) {
      const ir_node n = *ir_get(g, i);
      if (n.op != IR_REDUCE_SUM && n.op != IR_REDUCE_MAX) continue;
      const ir_ref from = i, next = ir_substitute(g, r, &from, &n.arg[0], 1);
      if (next == r) continue;
      r = next;
      break;
    }
  }
  return r;
}

static bool same(double x, double y) {
  if (x == y || (isnan(x) && isnan(y))) return true;
  return fabs(x - y) <= 1e-12 * fmax(1, fmax(fabs(x), fabs(y)));
}

/* Writes the arguments of an oracle call: variables, and the elements of row scalar tables. */
static int arguments(const comparison *c, const ir_var *var, int n, int lane, double *out) {
  int count = 0;
  for (int i = 0; i < n; i++) {
    if (var[i] == VAR_STATE) {
      for (int k = 0; k < c->spec.online.num_state; k++) out[count++] = c->state[k][lane];
    } else if (var[i] == VAR_FINAL) {
      for (int k = 0; k < c->spec.online.num_final; k++) out[count++] = c->final[k][lane];
    } else {
      const bool is_place = var[i] == VAR_Q || var[i] == VAR_KV || var[i] == VAR_POS;
      const int axes = is_place && c->spec.grid_axes > 1 ? c->spec.grid_axes : 1;
      for (int a = 0; a < axes; a++) out[count++] = c->var[var[i] + VAR_COUNT * (ir_var)a][lane];
    }
  }
  return count;
}

static void set_lane(comparison *c, int lane) {
  const char *const names[] = {"q_len", "kv_len", "heads", "heads_kv", "head_dim", "head_dim_v"};
  const ir_var vars[] = {VAR_Q_LEN, VAR_KV_LEN, VAR_HEADS, VAR_HEADS_KV, VAR_HEAD_DIM, VAR_HEAD_DIM_V};
  front_oracle_set_row(c->oracle, c->row[lane], CHANNELS);
  for (int k = 0; k < 6; k++) {
    assert_int_equal(front_oracle_set(c->oracle, names[k], c->var[vars[k]][lane], NULL), LUATTN_OK);
  }
  for (int a = 0; a < c->spec.grid_axes; a++)
    for (int k = 0; k < 2; k++) {
      char name[LUATTN_NAME_SIZE + 8];
      snprintf(name, sizeof name, "%s.%s", names[k], c->spec.grid_axis[a]);
      assert_int_equal(front_oracle_set(c->oracle, name, c->var[vars[k] + VAR_COUNT * (ir_var)a][lane], NULL),
                       LUATTN_OK);
    }
  for (int k = 0; k < c->spec.num_scalars; k++) {
    assert_int_equal(front_oracle_set(c->oracle, c->spec.scalar_name[k], c->scalar[k][lane], NULL), LUATTN_OK);
  }
}

static void compare(comparison *c, const char *hook, ir_ref traced, const ir_var *var, int num_var) {
  if (traced == IR_NONE) return;
  const ir_type type = ir_typeof(c->spec.g, traced);
  const ir_ref root = without_reductions(c->spec.g, traced);
  const ir_program *p = ir_program_new(c->a, c->spec.g, &root, 1);
  assert_non_null(p);
  double x[IR_LANES], *out = x;
  const ir_env env = {.user = c, .variable = trace_variable, .load = trace_load};
  ir_program_run(p, &env, IR_LANES, arena_new(c->a, ir_program_scratch(p)), &out);
  for (int lane = 0; lane < IR_LANES; lane++) {
    double args[32], y = 0;
    luattn_error err;
    set_lane(c, lane);
    const int n = arguments(c, var, num_var, lane, args);
    if (front_oracle_call(c->oracle, hook, args, n, &y, &err) != LUATTN_OK) fail_msg("%s", err.message);
    if (type == IR_BOOL ? x[lane] != y : !same(x[lane], y)) {
      fail_msg(
          "%s: %s: traced %.17g, plain Lua %.17g (b %g, h %g, q %g of %g, kv %g of %g, heads %g, score "
          "%.17g)",
          c->name, hook, x[lane], y, c->var[VAR_B][lane], c->var[VAR_H][lane], c->var[VAR_Q][lane],
          c->var[VAR_Q_LEN][lane], c->var[VAR_KV][lane], c->var[VAR_KV_LEN][lane], c->var[VAR_HEADS][lane],
          c->var[VAR_SCORE][lane]);
    }
    if (type == IR_BOOL) *(y != 0 ? &c->mask_kept : &c->mask_dropped) = true;
  }
}

static void compare_online(comparison *c) {
  const traced_online *o = &c->spec.online;
  const ir_var site[] = {VAR_B, VAR_H}, fwd[] = {VAR_SCORE, VAR_STATE, VAR_B, VAR_H, VAR_Q};
  const ir_var epilogue[] = {VAR_OUT, VAR_STATE, VAR_B, VAR_H, VAR_Q};
  const ir_var forward[] = {VAR_SCORE, VAR_FINAL, VAR_B, VAR_H, VAR_Q, VAR_KV};
  const ir_var backward[] = {VAR_DP, VAR_P, VAR_FINAL, VAR_DELTA, VAR_B, VAR_H, VAR_Q, VAR_KV, VAR_SCORE};
  char hook[128];
  compare(c, "online.prob", o->prob, fwd, 5);
  compare(c, "online.rescale", o->rescale, fwd, 5);
  for (int i = 0; i < o->num_state; i++) {
    snprintf(hook, sizeof hook, "online.init.%s", o->state_name[i]);
    compare(c, hook, o->init[i], site, 2);
    snprintf(hook, sizeof hook, "online.next.%s", o->state_name[i]);
    compare(c, hook, o->next[i], fwd, 5);
  }
  compare(c, "online.out", o->out, epilogue, 5);
  for (int i = 0; i < o->num_final; i++) {
    snprintf(hook, sizeof hook, "online.final.%s", o->final_name[i]);
    compare(c, hook, o->final[i], epilogue, 5);
  }
  compare(c, "online.forward", o->forward, forward, 6);
  compare(c, "online.backward", o->backward, backward, 9);
}

static void compare_file(const char *name, const char *source, size_t size, int rounds, bool any_mask, bool selects) {
  comparison *c = calloc(1, sizeof *c);
  luattn_error err;
  const front_options options = {.selects = selects};
  assert_non_null(c);
  *c = (comparison){.name = name, .a = arena_open(NULL), .seed = 20240229};
  if (front_trace_with(c->a, name, source, size, &options, &c->spec, &err) != LUATTN_OK) {
    static int dropped; /* few random hooks may leave a read input unused */
    if (strstr(err.message, "nothing is made of its numbers") == NULL || ++dropped > 30) fail_msg("%s", err.message);
    arena_close(c->a);
    free(c);
    return;
  }
  if (front_oracle_open(name, source, size, oracle_load, c, &c->oracle, &err) != LUATTN_OK) fail_msg("%s", err.message);
  const ir_var score[] = {VAR_SCORE, VAR_B, VAR_H, VAR_Q, VAR_KV}, mod[] = {VAR_X, VAR_B, VAR_H, VAR_POS, VAR_D};
  const bool has_score_mod = !ir_is_var(c->spec.g, c->spec.score_mod, VAR_SCORE);
  for (int round = 0; round < rounds; round++) {
    for (int lane = 0; lane < IR_LANES; lane++) draw_lane(c, lane);
    compare(c, "score_mod", has_score_mod ? c->spec.score_mod : IR_NONE, score, 5);
    compare(c, "block_mask", c->spec.block_mask, score + 1, 4);
    compare(c, "query_mod", c->spec.query_mod, mod, 5);
    compare(c, "key_mod", c->spec.key_mod, mod, 5);
    compare(c, "value_mod", c->spec.value_mod, mod, 5);
    compare_online(c);
  }
  if (!any_mask && c->spec.block_mask != IR_NONE && !(c->mask_kept && c->mask_dropped)) {
    fail_msg("%s: the mask %s every one of the tuples drawn", name, c->mask_kept ? "kept" : "dropped");
  }
  front_oracle_close(c->oracle);
  arena_close(c->a);
  free(c);
}

void compare_with_oracle(const char *name, const char *source, size_t size, int rounds) {
  compare_file(name, source, size, rounds, false, false);
}

void compare_with_oracle_any(const char *name, const char *source, size_t size, int rounds) {
  compare_file(name, source, size, rounds, true, false);
}

void compare_selects_with_oracle(const char *name, const char *source, size_t size, int rounds) {
  compare_file(name, source, size, rounds, true, true);
}
