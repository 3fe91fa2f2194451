#include "gen/analysis/specs/reads_elsewhere.h"

/* The position and the head that a hook is called with: key_mod and value_mod have those of keys. */
typedef struct hook_place {
  ir_ref root;
  bool of_queries, of_keys; /* an input mod's */
} hook_place;

static bool is_group(const ir *g, ir_ref r) {
  const ir_node *n = ir_get(g, r);
  return n->op == IR_FLOORDIV && ir_is_var(g, n->arg[0], VAR_HEADS) && ir_is_var(g, n->arg[1], VAR_HEADS_KV);
}

/* h * (heads // heads_kv), the first query head of a kv head. */
static bool is_first_of_group(const ir *g, ir_ref r) {
  const ir_node *n = ir_get(g, r);
  return n->op == IR_MUL && ((ir_is_var(g, n->arg[0], VAR_H) && is_group(g, n->arg[1])) ||
                             (ir_is_var(g, n->arg[1], VAR_H) && is_group(g, n->arg[0])));
}

/* h // (heads // heads_kv); by a constant, it is the same where there are as many heads in a group. */
static bool is_kv_head(const ir *g, ir_ref r) {
  double c;
  const ir_node *n = ir_get(g, r);
  return n->op == IR_FLOORDIV && ir_is_var(g, n->arg[0], VAR_H) &&
         (is_group(g, n->arg[1]) || ir_is_const(g, n->arg[1], &c));
}

static bool is_own(const ir *g, const hook_place *at, int32_t axis, ir_ref index) {
  switch (axis) {
    case LUATTN_AXIS_Q:
      return ir_is_var(g, index, at->of_queries ? VAR_POS : VAR_Q);
    case LUATTN_AXIS_KV:
      return ir_is_var(g, index, at->of_keys ? VAR_POS : VAR_KV);
    case LUATTN_AXIS_H:
      return at->of_keys ? is_first_of_group(g, index) : ir_is_var(g, index, VAR_H);
    case LUATTN_AXIS_HKV:
      return at->of_keys ? ir_is_var(g, index, VAR_H) : is_kv_head(g, index);
    default: /* batch entries and free axes are those of the call */
      return true;
  }
}

static void note(traced_spec *t, uint8_t input, uint8_t axis) {
  for (int i = 0; i < t->num_elsewhere; i++)
    if (t->elsewhere[i].input == input && t->elsewhere[i].axis == axis) return;
  t->elsewhere[t->num_elsewhere++] = (spec_elsewhere){input, axis};
}

static void find_in_hook(traced_spec *t, const hook_place *at, bool *reached) {
  const ir *g = t->g;
  for (ir_ref r = 1; r <= at->root; r++) reached[r] = r == at->root;
  for (ir_ref r = at->root; r > 0; r--) {
    const ir_node *n = ir_get(g, r);
    for (int i = 0; reached[r] && i < n->nargs; i++) {
      reached[n->arg[i]] = true;
      const luattn_input_info *in = n->op == IR_LOAD ? &t->input[ir_index_of(n)] : NULL;
      if (in != NULL && i < (int)in->num_axes && !is_own(g, at, in->axis[i], n->arg[i]))
        note(t, (uint8_t)ir_index_of(n), (uint8_t)i);
    }
  }
}

bool spec_find_elsewhere(traced_spec *t) {
  const traced_online *o = &t->online;
  bool *reached = arena_array(t->a, ir_count(t->g), sizeof *reached);
  if (reached == NULL) return false;
  const hook_place hooks[] = {{t->score_mod, false, false}, {t->block_mask, false, false}, {t->query_mod, true, false},
                              {t->key_mod, false, true},    {t->value_mod, false, true},   {o->prob, false, false},
                              {o->rescale, false, false},   {o->out, false, false},        {o->forward, false, false},
                              {o->backward, false, false}};
  t->num_elsewhere = 0;
  for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++)
    if (hooks[i].root != IR_NONE) find_in_hook(t, &hooks[i], reached);
  for (int i = 0; i < 2 * o->num_state; i++)
    find_in_hook(t, &(hook_place){i % 2 ? o->next[i / 2] : o->init[i / 2], false, false}, reached);
  for (int i = 0; i < o->num_final; i++) find_in_hook(t, &(hook_place){o->final[i], false, false}, reached);
  return true;
}

bool spec_reads_batch(const traced_spec *t) {
  bool reads = false;
  for (ir_ref r = 1; r < ir_count(t->g); r++) {
    const ir_node *n = ir_get(t->g, r);
    for (int i = 0; i < n->nargs; i++) {
      const bool is_axis = n->op == IR_LOAD && t->input[ir_index_of(n)].axis[i] == LUATTN_AXIS_B;
      reads |= ir_is_var(t->g, n->arg[i], VAR_B) ? n->op != IR_RANDOM && !is_axis : is_axis;
    }
  }
  return reads;
}
