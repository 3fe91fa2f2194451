/* tuned.c: tiles that were measured on a device, remembered beside the cache. A record is looked up by what
 * it is about (spec, pass, types, dims, device, class of lengths) and says what it was made with; one of
 * another origin, or a damaged one, is not used, and the plan says so.
 *
 *   luattn tuned 1 <32 digits: hash of what follows>
 *   luattn <version>
 *   key <32 digits, as in its name>
 *   origin <32 digits>
 *   tiles <tile_m> <tile_n> <threads> <stages> <warps_n> <chunk_m>
 *   gain <times as fast as the plan's own>
 *   for <spec> on <device> ..                            for people */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/host.h"
#include "common/real.h"
#include "gen/cache/cache.h"
#include "gen/compile.h"
#include "gen/ir/ir.h"

enum { RECORD_SIZE = 1024, PATH_SIZE = 4096, HEAD_SIZE = sizeof "luattn tuned 1 " - 1 + 32 + 1 };

typedef enum record_state { RECORD_NONE, RECORD_SOUND, RECORD_DAMAGED, RECORD_STALE } record_state;

typedef struct record {
  record_state state;
  luattn_tiles tiles;
  double gain;
  char *path; /* [PATH_SIZE] */
} record;

/* ---- what a record is about ---- */

/* Field by field: a struct may have padding. The line of a node is no part of its identity. */
static void add_nodes(hasher *h, const ir *g) {
  for (ir_ref r = 1; r < ir_count(g); r++) {
    const ir_node *n = ir_get(g, r);
    const int64_t node[] = {n->op, n->type, n->imm.integer};
    hasher_add(h, "node", node, sizeof node);
    hasher_add(h, "args", n->arg, n->nargs * sizeof n->arg[0]);
  }
}

static void add_spec(hasher *h, const compilation *c) {
  const traced_spec *t = &c->spec.traced;
  const traced_online *o = &t->online;
  const ir_ref roots[] = {t->score_mod, t->block_mask, t->query_mod, t->key_mod, t->value_mod,
                          o->prob,      o->rescale,    o->out,       o->forward, o->backward};
  hasher_add(h, "name", t->name, strlen(t->name));
  add_nodes(h, c->loaded);
  hasher_add(h, "roots", roots, sizeof roots);
  hasher_add(h, "init", o->init, (size_t)o->num_state * sizeof o->init[0]);
  hasher_add(h, "next", o->next, (size_t)o->num_state * sizeof o->next[0]);
  hasher_add(h, "final", o->final, (size_t)o->num_final * sizeof o->final[0]);
  for (int i = 0; i < t->num_inputs; i++) {
    const luattn_input_info *in = &t->input[i];
    hasher_add(h, "input", in->name, strlen(in->name));
    hasher_add(h, "axes", in->axis, in->num_axes * sizeof in->axis[0]);
    hasher_add(h, "type", (const uint32_t[]){in->dtype, in->grad}, 2 * sizeof(uint32_t));
  }
  for (int i = 0; i < t->num_scalars; i++)
    hasher_add(h, "scalar", t->scalar_name[i], strlen(t->scalar_name[i]));
}

/* Gradients that the spec does not have make no difference. */
static unsigned effective_wants(const compilation *c) {
  unsigned wants = c->plan.wants;
  bool has_inputs = false;
  for (int i = 0; i < c->spec.traced.num_inputs; i++) has_inputs |= c->spec.traced.input[i].grad != 0;
  if (!has_inputs) wants &= ~(unsigned)LUATTN_WANT_INPUTS;
  if (c->spec.traced.num_scalars == 0) wants &= ~(unsigned)LUATTN_WANT_SCALARS;
  return wants;
}

/* keys[lengths], for each of luattn_lengths. */
static luattn_status record_keys(const compilation *c, hash128 keys[2], luattn_error *err) {
  const plan *p = &c->plan;
  const int numbers[] = {
      p->pass,         p->family, p->dtype, p->arch, p->head_dim, p->head_dim_v, (int)effective_wants(c),
      p->deterministic};
  hasher h;
  if (!hasher_open(&h)) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
  add_spec(&h, c);
  hasher_add(&h, "device", c->target.device, strlen(c->target.device));
  hasher_add(&h, "numbers", numbers, sizeof numbers);
  keys[LUATTN_LONG] = hasher_close(&h);
  keys[LUATTN_SHORT] = hash_bytes(&keys[LUATTN_LONG], sizeof keys[LUATTN_LONG]);
  return LUATTN_OK;
}

/* ---- the text ---- */

static void record_write(const record *r, hash128 key, hash128 origin, const char *about,
                         char text[RECORD_SIZE]) {
  char name[33], hex[33], check[33], gain[REAL_SIZE];
  const luattn_tiles *t = &r->tiles;
  hash_hex(key, name);
  hash_hex(origin, hex);
  snprintf(text + HEAD_SIZE, RECORD_SIZE - HEAD_SIZE,
           "luattn " LUATTN_VERSION "\nkey %s\norigin %s\ntiles %d %d %d %d %d %d\ngain %s\nfor %s\n", name,
           hex, t->tile_m, t->tile_n, t->threads, t->stages, t->warps_n, t->chunk_m,
           real_write(r->gain, 1, gain), about);
  hash_hex(hash_bytes(text + HEAD_SIZE, strlen(text + HEAD_SIZE)), check);
  char head[HEAD_SIZE + 1];
  snprintf(head, sizeof head, "luattn tuned 1 %s\n", check);
  memcpy(text, head, HEAD_SIZE);
}

static void record_read(const char *text, hash128 key, hash128 origin, record *out) {
  char head[HEAD_SIZE + 1], check[33], version[32], name[33], from[33], want[33], gain[REAL_SIZE], *end;
  luattn_tiles *t = &out->tiles;
  out->state = RECORD_DAMAGED;
  if (strlen(text) <= HEAD_SIZE) return;
  hash_hex(hash_bytes(text + HEAD_SIZE, strlen(text + HEAD_SIZE)), check);
  snprintf(head, sizeof head, "luattn tuned 1 %s\n", check);
  if (memcmp(text, head, HEAD_SIZE) != 0) return;
  if (sscanf(text + HEAD_SIZE, "luattn %31s key %32s origin %32s tiles %d %d %d %d %d %d gain %31s", version,
             name, from, &t->tile_m, &t->tile_n, &t->threads, &t->stages, &t->warps_n, &t->chunk_m,
             gain) != 10)
    return;
  out->gain = real_read(gain, &end);
  if (end == gain || *end != 0) return;
  hash_hex(key, want);
  if (strcmp(name, want) != 0) return; /* copied here from elsewhere */
  hash_hex(origin, want);
  const bool same = strcmp(version, LUATTN_VERSION) == 0 && strcmp(from, want) == 0;
  out->state = same ? RECORD_SOUND : RECORD_STALE;
}

/* ---- looking up ---- */

/* found[lengths]. What was made with what is only asked where there is a record. The names are too large for
 * a stack that planning goes on with. */
static luattn_status look_up(compilation *c, record found[2], luattn_error *err) {
  char *dir = arena_new(c->a, PATH_SIZE), *text[2];
  hash128 keys[2], origin = {0, 0};
  bool is_there[2], any = false;
  if (dir == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
  TRY(cache_resolve(c->target.cache_dir, dir, PATH_SIZE, err));
  TRY(record_keys(c, keys, err));
  for (int i = 0; i < 2; i++) {
    found[i].state = RECORD_NONE;
    found[i].path = arena_new(c->a, PATH_SIZE);
    text[i] = arena_new(c->a, RECORD_SIZE);
    if (found[i].path == NULL || text[i] == NULL)
      return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
    is_there[i] = cache_find_record(dir, keys[i], text[i], RECORD_SIZE, found[i].path, PATH_SIZE);
    any |= is_there[i];
  }
  if (!any) return LUATTN_OK;
  TRY(compile_find_nvrtc(c, err));
  TRY(source_origin(c, &origin, err));
  for (int i = 0; i < 2; i++)
    if (is_there[i]) record_read(text[i], keys[i], origin, &found[i]);
  return LUATTN_OK;
}

static luattn_status add_note(compilation *c, const char *note, luattn_error *err) {
  c->plan.why = note == NULL ? NULL : arena_printf(c->a, "%s%s\n", c->plan.why, note);
  return c->plan.why != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
}

static luattn_status not_used(compilation *c, const record *r, const char *why, luattn_error *err) {
  return add_note(c, arena_printf(c->a, "tuned: not used, run luattn tune again: %s %s", r->path, why), err);
}

/* Plans again with the remembered tiles. */
static luattn_status use(compilation *c, const record *r, luattn_error *err) {
  const luattn_tiles own = plan_tiles(&c->plan);
  luattn_tiles *tiles = arena_new(c->a, sizeof *tiles);
  if (tiles == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
  *tiles = r->tiles;
  c->target.tiles = tiles;
  const luattn_status status = source_plan(c, err);
  if (status == LUATTN_OK) {
    const char *lengths = c->target.lengths == LUATTN_SHORT ? "short" : "long";
    return add_note(
        c,
        arena_printf(c->a, "tuned: %.2f times as fast as %d x %d, %d stages, at %s lengths on %s: %s",
                     r->gain, own.tile_m, own.tile_n, own.stages, lengths, c->target.device, r->path),
        err);
  }
  if (status == LUATTN_NO_MEMORY) return status;
  c->target.tiles = NULL;
  TRY(source_plan(c, err));
  return not_used(c, r, "names tiles that are no candidates", err);
}

/* Where the first choices for short and for long lengths are the same, so is all that follows from them. */
static luattn_status compare_lengths(compilation *c, luattn_error *err) {
  luattn_target target = c->target;
  luattn_tiles first[2];
  for (int i = 0; i < 2; i++) {
    plan p;
    target.lengths = (luattn_lengths)i;
    TRY(plan_choose(c->a, &c->spec, &target, &p, err));
    first[i] = plan_tiles(&p);
  }
  c->other = first[c->target.lengths == LUATTN_LONG ? LUATTN_SHORT : LUATTN_LONG];
  c->every_length = plan_same_tiles(&first[0], &first[1]);
  return LUATTN_OK;
}

luattn_status plan_and_emit(compilation *c, luattn_error *err) {
  record found[2]; /* by luattn_lengths */
  TRY(source_plan(c, err));
  TRY(compare_lengths(c, err));
  if (c->target.device == NULL || c->plan.forced) return LUATTN_OK;
  TRY(look_up(c, found, err));
  const record *r = &found[c->target.lengths],
               *other = &found[c->target.lengths == LUATTN_LONG ? LUATTN_SHORT : LUATTN_LONG];
  if (other->state == RECORD_SOUND) c->other = other->tiles;
  if (other->state == RECORD_SOUND || r->state == RECORD_SOUND) c->every_length = false;
  if (r->state == RECORD_SOUND) return use(c, r, err);
  if (r->state == RECORD_DAMAGED) return not_used(c, r, "is damaged", err);
  if (r->state == RECORD_STALE)
    return not_used(c, r, "was made with another luattn, NVRTC or set of templates", err);
  return LUATTN_OK;
}

/* ---- storing ---- */

static const char *about(const compilation *c) {
  static const char *const dtypes[] = {"f64", "f32", "bf16", "f16"};
  const plan *p = &c->plan;
  return arena_printf(c->a, "%.64s on %.128s, sm_%d: %s, %s, head dims %d and %d, %s lengths",
                      c->spec.traced.name, c->target.device, p->arch,
                      p->pass == LUATTN_FORWARD ? "forward" : "backward", dtypes[p->dtype], p->head_dim,
                      p->head_dim_v, c->target.lengths == LUATTN_SHORT ? "short" : "long");
}

static luattn_status store(compilation *c, double gain, char *path, size_t size, luattn_error *err) {
  char dir[PATH_SIZE], text[RECORD_SIZE];
  const luattn_tiles *tiles = c->target.tiles;
  hash128 origin, keys[2];
  plan p;
  nvrtc lib;
  if (c->target.device == NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "tuned: device: is NULL; give the luattn_device_info.name that was measured");
  if (tiles != NULL && !(isfinite(gain) && gain > 0))
    return luattn_fail(err, LUATTN_INVALID, "tuned: gain: is %g, expected how many times as fast they are",
                       gain);
  TRY(cache_resolve(c->target.cache_dir, dir, sizeof dir, err));
  if (dir[0] == 0)
    return luattn_fail(
        err, LUATTN_INVALID,
        "tuned: there is no cache on disk to remember tiles beside, as its directory is empty; "
        "name one with cache_dir or LUATTN_CACHE_DIR");
  if (tiles != NULL) TRY(plan_choose(c->a, &c->spec, &c->target, &p, err)); /* a candidate? */
  c->target.tiles = NULL;
  TRY(source_plan(c, err));                                /* the origin is that of the plan's own choice */
  TRY(nvrtc_open_first(&c->search, &c->nvrtc, &lib, err)); /* the one that they were compiled with */
  TRY(source_origin(c, &origin, err));
  TRY(record_keys(c, keys, err));
  const hash128 key = keys[c->target.lengths];
  if (tiles == NULL) return cache_store_record(dir, key, NULL, path, size, err);
  const record r = {.tiles = *tiles, .gain = gain};
  const char *what = about(c);
  if (what == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
  record_write(&r, key, origin, what, text);
  return cache_store_record(dir, key, text, path, size, err);
}

typedef struct store_call {
  const luattn_spec *spec;
  const luattn_target *target;
  double gain;
  char *path;
  size_t size;
} store_call;

static luattn_status store_within(void *arguments, luattn_error *err) {
  const store_call *s = arguments;
  compilation *c;
  luattn_status status = compile_open(s->spec, s->target, &c, err);
  if (status == LUATTN_OK) status = store(c, s->gain, s->path, s->path != NULL ? s->size : 0, err);
  compile_close(c);
  if (status == LUATTN_OK) fail_clear(err);
  return status;
}

luattn_status luattn_tuned_store(const luattn_spec *spec, const luattn_target *target, double gain,
                                 char *path, size_t size, luattn_error *err) {
  fail_clear(err);
  NEED(spec);
  NEED(target);
  return host_run(store_within, &(store_call){spec, target, gain, path, size}, err);
}
