#include "gen/analysis/specs/append_mods.h"

#include "common/fail.h"

static const char *const names[2] = {"key_mod", "value_mod"};

static luattn_status refuse(const traced_spec *t, int side, const char *what, luattn_error *err) {
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "%s: %s: reads %s, and keys_modified is 1: luattn_append applies it to a new row of a cache, "
                     "where there is none; "
                     "leave that out of %s, or leave keys_modified 0 and give attention k and v as they are",
                     t->file, names[side], what, names[side]);
}

/* Finds the inputs that a mod loads. Arguments come before their users. */
static luattn_status find_inputs(arena *a, const traced_spec *t, int side, ir_ref mod, unsigned *inputs,
                                 luattn_error *err) {
  bool *used = arena_array(a, ir_count(t->g), sizeof *used);
  if (used == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
  used[mod] = true;
  for (ir_ref r = mod; r > IR_NONE; r--) {
    const ir_node *n = ir_get(t->g, r);
    for (int i = 0; used[r] && i < n->nargs; i++) used[n->arg[i]] = true;
    if (!used[r] || n->op != IR_LOAD) continue;
    const luattn_input_info *in = &t->input[n->imm.integer];
    for (uint32_t i = 0; i < in->num_axes; i++)
      if (in->axis[i] == LUATTN_AXIS_Q || in->axis[i] == LUATTN_AXIS_H)
        return refuse(t, side,
                      arena_printf(a, "input '%s', whose axis %u is %s", in->name, (unsigned)i,
                                   in->axis[i] == LUATTN_AXIS_Q ? "q" : "h"),
                      err);
    *inputs |= 1u << n->imm.integer;
  }
  return LUATTN_OK;
}

static luattn_status check_mod(arena *a, const traced_spec *t, int side, ir_ref mod, unsigned *inputs,
                               luattn_error *err) {
  static const struct {
    ir_var var;
    const char *name;
  } absent[] = {{VAR_Q_LEN, "q_len"}, {VAR_KV_LEN, "kv_len"}, {VAR_HEADS, "heads"}};
  if (mod == IR_NONE) return LUATTN_OK;
  for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
    if (ir_uses(t->g, mod, absent[i].var)) return refuse(t, side, absent[i].name, err);
  if (ir_uses_op(t->g, mod, IR_RANDOM)) return refuse(t, side, "random()", err);
  return find_inputs(a, t, side, mod, inputs, err);
}

luattn_status append_mods_take(arena *a, struct luattn_spec *spec, bool appends, int *keys_modified,
                               luattn_error *err) {
  traced_spec *t = &spec->traced;
  const ir_ref mod[2] = {t->key_mod, t->value_mod};
  *keys_modified = mod[0] != IR_NONE || mod[1] != IR_NONE;
  for (int i = 0; i < 2 && appends; i++) {
    TRY(check_mod(a, t, i, mod[i], &t->append_inputs, err));
    t->append_mod[i] = mod[i];
  }
  t->key_mod = t->value_mod = IR_NONE;
  return LUATTN_OK;
}
