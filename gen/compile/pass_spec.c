/* pass_spec.c: writes a row pass as a spec of its own: the scores, masks and mods of the spec, another online function,
 * and the numbers of a row that forward has left as inputs along its queries. */
#include "gen/compile/pass_spec.h"

#include <stdio.h>
#include <string.h>

#include "common/fail.h"

#define MAX_INPUTS (sizeof((traced_spec *)0)->input / sizeof(luattn_input_info))

/* The expressions of a pass: its weight, its factor, and the sums in the first, which saves them, and where its factor
 * reads them. */
typedef struct pass_roots {
  ir_ref ref[2 + DERIVED_MAX_SUMS];
  int count;
} pass_roots;

static pass_roots roots_of(const ir *g, const derived_spec *d, int number) {
  pass_roots r = {{d->pass[number].weight, d->pass[number].factor}, 2};
  const bool sums = number == 0 || ir_uses(g, r.ref[1], VAR_PASS);
  for (int i = 0; i < d->num_sums && sums; i++) r.ref[r.count++] = d->sum[i];
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
  const ir_ref b = ir_variable(t->g, VAR_B, 0), h = ir_variable(t->g, VAR_H, 0), q = ir_variable(t->g, VAR_Q, 0);
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

/* The online function of a pass: sums of weights, of which nothing depends on what came before. */
static void write_online(traced_online *o, ir *g, const pass_roots *roots, int num_passes) {
  const traced_online of = *o;
  const ir_ref one = ir_real(g, 1), zero = ir_real(g, 0), sum = ir_variable(g, VAR_OUT, 0);
  *o = (traced_online){.name = of.name, .lse = -1, .keep = of.keep, .forward = IR_NONE, .backward = IR_NONE};
  o->prob = roots->ref[0];
  o->rescale = one;
  ir_ref factor = roots->ref[1];
  for (int i = 2; i < roots->count; i++) {
    const int k = o->num_state++;
    const ir_ref before = ir_variable(g, VAR_STATE, (uint32_t)k), added = ir_op1(g, IR_REDUCE_SUM, roots->ref[i]);
    o->state_name[k] = "sum";
    o->init[k] = zero;
    o->next[k] = ir_op2(g, IR_ADD, before, added);
    const ir_ref whole = ir_variable(g, VAR_PASS, (uint32_t)(num_passes + k));
    factor = ir_substitute(g, factor, &whole, &before, 1);
  }
  o->out = ir_op2(g, IR_MUL, sum, factor);
}

luattn_status pass_spec_make(arena *a, const luattn_spec *of, int number, luattn_dtype dtype, luattn_spec *out,
                             luattn_error *err) {
  pass_roots roots = roots_of(of->traced.g, &of->derived, number);
  *out = *of;
  out->a = a;
  ir *const g = out->traced.g = ir_clone(a, of->traced.g);
  if (g == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", of->traced.file);
  TRY(declare_rows(a, of, number, dtype == LUATTN_F64, &out->traced, &roots, err));
  write_online(&out->traced.online, g, &roots, of->derived.num_passes);
  const ir_ref zero = ir_real(g, 0);
  out->derived =
      (derived_spec){.missing = "a row pass has no backward", .prob = zero, .ds = zero, .how = "no backward"};
  out->derived.num_saved = number == 0 ? out->traced.online.num_state : 0;
  for (int i = 0; i < out->derived.num_saved; i++) out->derived.saved[i] = ir_variable(g, VAR_STATE, (uint32_t)i);
  return ir_failed(g) ? luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", of->traced.file) : LUATTN_OK;
}
