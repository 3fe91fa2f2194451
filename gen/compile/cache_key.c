#include "gen/compile/cache_key.h"

#include <string.h>

#include "abi/kernel_facts.h"
#include "gen/compile/build_id.h"

/* Field by field, because a struct may have padding. Line numbers of nodes are in a printed source, but not
 * in a tuning record. */
static void add_nodes(hasher *h, const ir *g, bool with_lines) {
  for (ir_ref r = 1; r < ir_count(g); r++) {
    const ir_node *n = ir_get(g, r);
    const int64_t node[] = {n->op, n->type, n->imm.integer};
    hasher_add(h, "node", node, sizeof node);
    hasher_add(h, "args", n->arg, n->nargs * sizeof n->arg[0]);
    if (with_lines) hasher_add(h, "line", &n->line, sizeof n->line);
  }
}

static void add_spec(hasher *h, const compilation *c, bool with_lines) {
  const traced_spec *t = c->given; /* the head dims, which c->spec is for, are the target's */
  const traced_online *o = &t->online;
  const ir_ref roots[] = {t->score_mod, t->block_mask, t->query_mod, t->key_mod, t->value_mod,
                          o->prob,      o->rescale,    o->out,       o->forward, o->backward};
  hasher_add(h, "name", t->name, strlen(t->name));
  add_nodes(h, c->loaded, with_lines);
  hasher_add(h, "roots", roots, sizeof roots);
  hasher_add(h, "reads", t->read, (size_t)t->num_reads * sizeof t->read[0]);
  hasher_add(h, "init", o->init, (size_t)o->num_state * sizeof o->init[0]);
  if (o->keep != SPEC_KEEP_ALL) hasher_add(h, "keep", &o->keep, sizeof o->keep);
  hasher_add(h, "next", o->next, (size_t)o->num_state * sizeof o->next[0]);
  hasher_add(h, "final", o->final, (size_t)o->num_final * sizeof o->final[0]);
  for (int i = 0; i < t->num_inputs; i++) {
    const luattn_input_info *in = &t->input[i];
    hasher_add(h, "input", in->name, strlen(in->name));
    hasher_add(h, "axes", in->axis, in->num_axes * sizeof in->axis[0]);
    const uint32_t dtype = in->dtype == LUATTN_INPUT_ANY ? c->spec.traced.input[i].dtype : in->dtype;
    hasher_add(h, "type", (const uint32_t[]){dtype, in->grad}, 2 * sizeof(uint32_t));
  }
  for (int i = 0; i < t->num_scalars; i++) hasher_add(h, "scalar", t->scalar_name[i], strlen(t->scalar_name[i]));
}

/* Drops gradients that the spec does not have, so that they do not change the key. */
static unsigned effective_wants(const compilation *c) {
  unsigned wants = c->at.plan.wants;
  bool has_inputs = false;
  for (int i = 0; i < c->spec.traced.num_inputs; i++) has_inputs |= c->spec.traced.input[i].grad != 0;
  if (!has_inputs) wants &= ~(unsigned)LUATTN_WANT_INPUTS;
  if (c->spec.traced.num_scalars == 0) wants &= ~(unsigned)LUATTN_WANT_SCALARS;
  return wants;
}

/* Facts that are 0 are left out, so that a new one changes no key. */
static void add_target(hasher *h, const luattn_target *t) {
#define TARGET_FACT(name, type, range, expected, key)                     \
  do {                                                                    \
    const int64_t value = (int64_t)t->name;                               \
    if (value != 0) hasher_add(h, "target." #name, &value, sizeof value); \
  } while (0);
#include "abi/kernel_facts.def"
}

luattn_status cache_key_tuned(const compilation *c, hash128 keys[2], luattn_error *err) {
  luattn_target t = plan_target(&c->at.plan, &c->target);
  t.wants = effective_wants(c);
  t.many_rows = t.decode != 0 ? c->target.many_rows : 0;
  t.lengths = LUATTN_LONG;                      /* the keys below tell them apart */
  t.tile_m = t.tile_n = t.ptx = t.one_code = 0; /* which are tuned, or do not count */
  t.input_types = 0;                            /* add_spec has the inputs' types */
  hasher h;
  if (!hasher_open(&h)) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
  add_spec(&h, c, false);
  hasher_add(&h, "device", c->target.device, strlen(c->target.device));
  add_target(&h, &t);
  keys[LUATTN_LONG] = hasher_close(&h);
  keys[LUATTN_SHORT] = hash_bytes(&keys[LUATTN_LONG], sizeof keys[LUATTN_LONG]);
  return LUATTN_OK;
}

/* ---- images ---- */

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

/* Adds what a launch checks: a grid's axes and least extents, and the ranges of scalars. */
static void add_checks(hasher *h, const traced_spec *t) {
  for (int a = 0; a < t->grid_axes && t->grid_axes > 1; a++)
    hasher_add(h, "grid", t->grid_axis[a], strlen(t->grid_axis[a]));
  for (int a = 0; a < LUATTN_MAX_AXES; a++)
    if (t->least_extent[a] > 0) hasher_add(h, "extent", (const int[]){a, t->least_extent[a]}, 2 * sizeof(int));
  for (int i = 0; i < t->num_scalars && t->num_ranges > 0; i++) {
    const scalar_range *r = &t->scalar_range[i];
    hasher_add(h, "range", (const double[]){r->least, r->most, r->whole, r->above}, 4 * sizeof(double));
    hasher_add(h, "by", r->by, strlen(r->by));
  }
}

/* Adds the declarations that affect an image besides the IR. */
static void add_declarations(hasher *h, const traced_spec *t) {
  const char *file = base_name(t->file);
  hasher_add(h, "file", file, strlen(file));
  hasher_add(h, "lse", &t->online.lse, sizeof t->online.lse);
  hasher_add(h, "defaults", t->scalar_default, (size_t)t->num_scalars * sizeof t->scalar_default[0]);
  add_checks(h, t);
}

/* The target, and what else the plan starts from. */
static void add_plan(hasher *h, const compilation *c, bool one_code) {
  const plan *p = &c->at.plan;
  luattn_target t = plan_target(p, &c->target);
  const int numbers[] = {p->may_fall_back, p->small_pages, compilation_has_line_info()};
  t.one_code = one_code;
  t.input_types = 0; /* add_spec has the inputs' types */
  add_target(h, &t);
  hasher_add(h, "plan", numbers, sizeof numbers);
  if (t.tiles != NULL) {
    const luattn_tiles *x = t.tiles;
    const int tiles[] = {x->tile_m, x->tile_n, x->threads, x->stages, x->warps_n, x->chunk_m};
    hasher_add(h, "tiles", tiles, sizeof tiles);
  }
}

luattn_status cache_key(const compilation *c, bool one_code, hash128 *key, luattn_error *err) {
  hasher h;
  if (!hasher_open(&h)) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  hasher_add(&h, "luattn", luattn_version(), strlen(luattn_version())); /* versions may share a cache */
  hasher_add(&h, "build", gen_build_id, strlen(gen_build_id));
  for (int i = 0; i < c->num_templates; i++)
    hasher_add(&h, c->templates[i].name, c->templates[i].data, c->templates[i].size);
  hasher_add(&h, "nvrtc", c->nvrtc.identity, strlen(c->nvrtc.identity));
  add_spec(&h, c, true);
  add_declarations(&h, c->given);
  add_plan(&h, c, one_code);
  *key = hasher_close(&h);
  return LUATTN_OK;
}

/* ---- origin of tuned tiles ---- */

static bool is_entry(const template_file *f) {
  const size_t n = strlen(f->name);
  return n > 3 && strcmp(f->name + n - 3, ".cu") == 0;
}

luattn_status cache_key_origin(const compilation *c, hash128 *origin, luattn_error *err) {
  const char *arch = compilation_arch(c, c->a), *entry = plan_kernel(&c->at.plan)->file;
  hasher h;
  if (arch == NULL || !hasher_open(&h)) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  for (int i = 0; i < c->num_templates; i++)
    if (!is_entry(&c->templates[i]) || strcmp(c->templates[i].name, entry) == 0)
      hasher_add(&h, c->templates[i].name, c->templates[i].data, c->templates[i].size);
  hasher_add(&h, "entry", entry, strlen(entry));
  hasher_add(&h, "arch", arch, strlen(arch));
  hasher_add(&h, "nvrtc", c->nvrtc.identity, strlen(c->nvrtc.identity));
  *origin = hasher_close(&h);
  return LUATTN_OK;
}
