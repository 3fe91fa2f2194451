#include "gen/lower/prob_range.h"

typedef struct bounds_user {
  iv score;
} bounds_user;

static ir_bounds variable_bounds(void *user, ir_var v, uint32_t index, ir_type type) {
  (void)index, (void)type;
  const iv real = v == VAR_SCORE ? ((const bounds_user *)user)->score : iv_all();
  return (ir_bounds){.real = real, .integer = ivi_all(), .boolean = tri_all()};
}

static ir_bounds load_bounds(void *user, uint32_t input, ir_type type, int n_index, const ivi *index) {
  (void)user, (void)input, (void)type, (void)n_index, (void)index;
  return (ir_bounds){.real = iv_all(), .integer = ivi_all(), .boolean = tri_all()};
}

iv prob_bounds(lowered *f, ir_ref r, iv score) {
  bounds_user user = {score};
  const ir_bounds_env env = {.user = &user, .variable = variable_bounds, .load = load_bounds};
  ir_bounds *scratch = arena_array(f->a, ir_count(f->g), sizeof *scratch), out;
  if (scratch == NULL) return iv_all();
  ir_interval(f->g, &r, 1, &env, scratch, &out);
  return out.real;
}

prob_range prob_range_of(const plan *p) {
  return p->dtype == LUATTN_F16 ? (prob_range){0x1p-14, 0x1p15} : (prob_range){0x1p-112, 0x1p40};
}

static bool in_range(iv x, prob_range allowed) { return x.lo >= allowed.least && x.hi <= allowed.most; }

bool prob_in_range(lowered *f, const online_split *s, iv score) {
  const prob_range allowed = prob_range_of(f->plan);
  bool ok = in_range(prob_bounds(f, s->prob, score), allowed);
  for (int k = 0; k < s->num_red; k++) ok &= in_range(prob_bounds(f, s->term[k], score), allowed);
  return ok;
}

bool prob_exp_unbounded(lowered *f, ir_ref root) {
  bool *need = arena_array(f->a, (size_t)root + 1, sizeof *need);
  if (need == NULL) return true;
  need[root] = true;
  for (ir_ref r = root; r >= 1; r--) { /* users before arguments */
    if (!need[r]) continue;
    const ir_node n = *ir_get(f->g, r);
    for (int i = 0; i < n.nargs; i++) need[n.arg[i]] = true;
    if ((n.op == IR_EXP || n.op == IR_EXP2) && !in_range(prob_bounds(f, r, iv_all()), prob_range_of(f->plan)))
      return true;
  }
  return false;
}
