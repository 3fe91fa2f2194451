/* pass_spec.c: writes a row pass as a spec of its own: the scores, masks and mods of the spec, another online function,
 * and the numbers of a row that forward has left as inputs along its queries. */
#include "gen/compile/pass_spec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/fail.h"

#define MAX_INPUTS (sizeof((traced_spec *)0)->input / sizeof(luattn_input_info))

/* The expressions of a pass: its weight, its factor, and of the row's numbers those that it makes: the first all, which
 * it saves, another the sums that its factor reads. */
typedef struct pass_roots {
  ir_ref ref[2 + DERIVED_MAX_SUMS];
  int number[2 + DERIVED_MAX_SUMS]; /* which of the row's numbers ref is, from 2 on */
  int count;
} pass_roots;

static pass_roots roots_of(const ir *g, const derived_spec *d, int number) {
  pass_roots r = {.ref = {d->pass[number].weight, d->pass[number].factor}, .count = 2};
  const bool sums = ir_uses(g, r.ref[1], VAR_PASS);
  for (int i = 0; i < d->num_sums; i++) {
    if (number != 0 && (!sums || d->sum[i].kind != PASS_SUM)) continue;
    r.number[r.count] = i;
    r.ref[r.count++] = d->sum[i].of;
  }
  return r;
}

int pass_spec_rows(arena *scratch, const luattn_spec *of, int number, int row[PASS_MAX_ROWS]) {
  const ir *g = of->traced.g;
  const pass_roots roots = roots_of(of->traced.g, &of->derived, number);
  const int has_lse = of->traced.online.lse >= 0;
  bool *used = arena_array(scratch, ir_count(g), sizeof *used), reads[PASS_MAX_ROWS] = {false};
  int count = 0;
  if (used == NULL) return -1;
  for (int i = 0; i < roots.count; i++) used[roots.ref[i]] = true;
  for (ir_ref r = ir_count(g); r-- > 1;) { /* users before arguments */
    const ir_node *n = ir_get(g, r);
    for (int i = 0; used[r] && i < n->nargs; i++) used[n->arg[i]] = true;
    if (used[r] && n->op == IR_VAR && ir_var_of(n) == VAR_FINAL) reads[ir_index_of(n)] = true;
  }
  for (int i = 0; i < PASS_MAX_ROWS; i++)
    if (reads[i]) row[count++] = i - has_lse;
  return count;
}

/* An input along batch, head and query, that no spec can declare by this name. Returns a load of it at the element's
 * row. */
static ir_ref declare_row(traced_spec *t, int row, bool is_double) {
  luattn_input_info *in = &t->input[t->num_inputs];
  memset(in, 0, sizeof *in);
  if (row < 0)
    snprintf(in->name, sizeof in->name, "lse of the row");
  else
    snprintf(in->name, sizeof in->name, "saved %d of the row", row);
  in->dtype = is_double ? LUATTN_INPUT_F64 : LUATTN_INPUT_F32;
  in->num_axes = 3;
  in->axis[0] = LUATTN_AXIS_B, in->axis[1] = LUATTN_AXIS_H, in->axis[2] = LUATTN_AXIS_Q;
  const ir_ref b = ir_variable(t->g, VAR_B, 0), h = ir_variable(t->g, VAR_H, 0),
               q = ir_linear_index(t->g, VAR_Q, VAR_Q_LEN);
  if (is_double) ir_input_wide(t->g, (uint32_t)t->num_inputs);
  return ir_load(t->g, (uint32_t)t->num_inputs++, IR_REAL, (const ir_ref[]){b, h, q}, 3);
}

/* Puts loads of inputs in place of row numbers. */
static luattn_status declare_rows(arena *a, const luattn_spec *of, int number, bool is_double, traced_spec *t,
                                  pass_roots *roots, luattn_error *err) {
  const int has_lse = of->traced.online.lse >= 0;
  int row[PASS_MAX_ROWS];
  ir_ref from[PASS_MAX_ROWS], to[PASS_MAX_ROWS];
  const int count = pass_spec_rows(a, of, number, row);
  if (count < 0) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
  if ((size_t)(t->num_inputs + count) > MAX_INPUTS)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "%s: online_func '%s': its backward takes a row pass, which reads %d numbers of the row beside "
                       "the spec's %d inputs, and "
                       "a kernel has room for %d in all; read fewer inputs, or put several into one with one more axis",
                       t->file, t->online.name, count, t->num_inputs, (int)MAX_INPUTS);
  for (int i = 0; i < count; i++) {
    from[i] = ir_variable(t->g, VAR_FINAL, (uint32_t)(row[i] + has_lse));
    to[i] = declare_row(t, row[i], is_double);
  }
  for (int i = 0; i < roots->count; i++) roots->ref[i] = ir_substitute(t->g, roots->ref[i], from, to, count);
  return LUATTN_OK;
}

/* One online function being written: a state for each number, several for a maximum. */
typedef struct pass_writer {
  ir *g;
  traced_online *o;
  ir_ref saved[DERIVED_MAX_SUMS];
} pass_writer;

static ir_ref add_state(pass_writer *w, const char *name, double init) {
  const int i = w->o->num_state++;
  w->o->state_name[i] = name;
  w->o->init[i] = ir_real(w->g, init);
  return ir_variable(w->g, VAR_STATE, (uint32_t)i);
}

static ir_ref either(ir *g, ir_ref condition, ir_ref x, ir_ref y) { return ir_op3(g, IR_SELECT, condition, x, y); }

/* A maximum, which steps find in any order: the largest x so far and the next below it, at which places and how often
 * it was met. What is equal is so in all bits, as one kernel finds all of them. */
typedef struct running_maximum {
  ir_ref score_counts, x, of_step, is_largest; /* of an element */
  ir_ref grows, stays;                         /* of the row, by this step */
  ir_ref top, place, count, next;              /* states */
} running_maximum;

/* What becomes of a number that belongs to the largest: `mine` is the step's, `both` of two that are equal. */
static void follow(pass_writer *w, const running_maximum *m, ir_ref state, ir_ref mine, ir_ref both) {
  const ir_ref as_it_was = either(w->g, m->stays, both, state);
  w->o->next[ir_index_of(ir_get(w->g, state))] = either(w->g, m->grows, mine, as_it_was);
}

static running_maximum add_maximum(pass_writer *w, ir_ref x) {
  ir *g = w->g;
  const ir_ref score = ir_variable(g, VAR_SCORE, 0), lowest = ir_real(g, -INFINITY);
  const ir_ref zero = ir_real(g, 0), one = ir_real(g, 1);
  running_maximum m = {.score_counts = ir_op2(g, IR_LT, lowest, score)};
  m.x = x == score ? x : either(g, m.score_counts, x, lowest);
  m.of_step = ir_op1(g, IR_REDUCE_MAX, m.x);
  m.is_largest = ir_op2(g, IR_AND, m.score_counts, ir_op2(g, IR_LE, m.of_step, m.x));
  m.top = add_state(w, "largest", -INFINITY), m.place = add_state(w, "place", -INFINITY);
  m.count = add_state(w, "count", 0), m.next = add_state(w, "next", -INFINITY);
  m.grows = ir_op2(g, IR_LT, m.top, m.of_step), m.stays = ir_op2(g, IR_EQ, m.top, m.of_step);
  w->o->next[ir_index_of(ir_get(g, m.top))] = ir_op2(g, IR_MAX, m.top, m.of_step);
  const ir_ref kv = ir_to_real(g, ir_linear_index(g, VAR_KV, VAR_KV_LEN)),
               among = either(g, m.is_largest, zero, lowest);
  const ir_ref first = ir_op1(g, IR_REDUCE_MAX, ir_op2(g, IR_SUB, among, kv)); /* the kernel's REDUCE_PLACE */
  follow(w, &m, m.place, first, ir_op2(g, IR_MAX, m.place, first));
  const ir_ref many = ir_op1(g, IR_REDUCE_SUM, either(g, m.is_largest, one, zero));
  follow(w, &m, m.count, many, ir_op2(g, IR_ADD, m.count, many));
  const ir_ref is_below = ir_op2(g, IR_AND, m.score_counts, ir_op2(g, IR_LT, m.x, m.of_step));
  const ir_ref below = ir_op1(g, IR_REDUCE_MAX, either(g, is_below, m.x, lowest));
  const ir_ref next = either(g, m.stays, below, m.of_step), no_less = ir_op2(g, IR_MAX, m.next, next);
  const ir_ref after = ir_op2(g, IR_MAX, m.top, below);
  w->o->next[ir_index_of(ir_get(g, m.next))] = either(g, m.grows, after, no_less);
  return m;
}

/* Saves what derived_sum says of a maximum. */
static void save_maximum(pass_writer *w, const derived_spec *d, int at, const running_maximum *m) {
  ir *g = w->g;
  const ir_ref one = ir_real(g, 1), infinite = ir_real(g, INFINITY), top = m->top;
  const ir_ref size = ir_op2(g, IR_ADD, one, ir_op1(g, IR_ABS, top)), gap = ir_op2(g, IR_SUB, top, m->next);
  const ir_ref from_start = ir_op2(g, IR_LE, d->sum[at + 1].of, top);
  const ir_ref some = ir_op2(g, IR_AND, ir_op2(g, IR_LT, ir_real(g, -INFINITY), top), from_start);
  const ir_ref wide = ir_op2(g, IR_LT, ir_op2(g, IR_MUL, ir_real(g, MAXIMUM_GAP), size), gap);
  const ir_ref share = ir_op2(g, IR_AND, ir_op2(g, IR_LT, one, m->count), wide);
  const ir_ref two = ir_real(g, 2), half = ir_op2(g, IR_DIV, ir_op2(g, IR_MIN, gap, size), two);
  const ir_ref least = either(g, share, ir_op2(g, IR_SUB, top, half), infinite);
  const ir_ref minus = ir_op1(g, IR_NEG, m->count), place = ir_op1(g, IR_NEG, m->place);
  w->saved[at] = either(g, some, either(g, share, minus, place), infinite);
  w->saved[at + 1] = either(g, some, least, infinite);
}

/* The online function of a pass, d being that of the spec with inputs in place of row numbers: sums of weights, of
 * which nothing depends on what came before, and the row's numbers. */
static void write_online(pass_writer *w, const pass_roots *roots, derived_spec *d) {
  ir *g = w->g;
  const traced_online of = *w->o;
  const ir_ref one = ir_real(g, 1), sum = ir_variable(g, VAR_OUT, 0);
  *w->o = (traced_online){.name = of.name, .lse = -1, .keep = of.keep, .forward = IR_NONE, .backward = IR_NONE};
  w->o->prob = roots->ref[0];
  w->o->rescale = one;
  ir_ref factor = roots->ref[1];
  for (int i = 2; i < roots->count; i++) d->sum[roots->number[i]].of = roots->ref[i];
  for (int i = 2; i < roots->count; i++) {
    const int at = roots->number[i];
    if (d->sum[at].kind == PASS_PLACE) {
      const running_maximum m = add_maximum(w, roots->ref[i]);
      save_maximum(w, d, at, &m);
    }
    if (d->sum[at].kind != PASS_SUM) continue;
    const ir_ref before = w->saved[at] = add_state(w, "sum", 0), added = ir_op1(g, IR_REDUCE_SUM, roots->ref[i]);
    w->o->next[ir_index_of(ir_get(g, before))] = ir_op2(g, IR_ADD, before, added);
    const ir_ref whole = ir_variable(g, VAR_PASS, (uint32_t)(d->num_passes + at));
    factor = ir_substitute(g, factor, &whole, &before, 1);
  }
  w->o->out = ir_op2(g, IR_MUL, sum, factor);
}

luattn_status pass_spec_make(arena *a, const luattn_spec *of, int number, luattn_dtype dtype, luattn_spec *out,
                             luattn_error *err) {
  pass_roots roots = roots_of(of->traced.g, &of->derived, number);
  *out = *of;
  out->a = a;
  ir *const g = out->traced.g = ir_clone(a, of->traced.g);
  if (g == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", of->traced.file);
  TRY(declare_rows(a, of, number, dtype == LUATTN_F64, &out->traced, &roots, err));
  pass_writer w = {.g = g, .o = &out->traced.online};
  write_online(&w, &roots, &out->derived);
  const ir_ref zero = ir_real(g, 0);
  const int num_sums = out->derived.num_sums;
  out->derived =
      (derived_spec){.missing = "a row pass has no backward", .prob = zero, .ds = zero, .how = "no backward"};
  out->derived.num_saved = number == 0 ? num_sums : 0;
  for (int i = 0; i < out->derived.num_saved; i++) out->derived.saved[i] = w.saved[i];
  return ir_failed(g) ? luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", of->traced.file) : LUATTN_OK;
}
