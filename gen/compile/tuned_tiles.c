/* tuned_tiles.c: reads and writes tiles that were measured on a device, remembered beside the cache. A record
 * is looked up by what it is about (spec, pass, types, dims, device, class of lengths) and says what it was
 * made with; one of another origin, or a damaged one, is not used, and the plan says so.
 *
 *   luattn tuned 1 <32 digits: hash of what follows>
 *   luattn <version>
 *   key <32 digits, as in its name>
 *   origin <32 digits>
 *   tiles <tile_m> <tile_n> <threads> <stages> <warps_n> <chunk_m>
 *   gain <times as fast as the plan's own>
 *   for <spec> on <device> ..                            for people */
#include "gen/compile/tuned_tiles.h"

#include <stdio.h>
#include <string.h>

#include "common/real.h"
#include "gen/cache/cache.h"
#include "gen/compile/cache_key.h"

enum { RECORD_SIZE = 1024, PATH_SIZE = 4096, HEAD_SIZE = sizeof "luattn tuned 1 " - 1 + 32 + 1 };

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
  unsigned wants = c->at.plan.wants;
  bool has_inputs = false;
  for (int i = 0; i < c->spec.traced.num_inputs; i++) has_inputs |= c->spec.traced.input[i].grad != 0;
  if (!has_inputs) wants &= ~(unsigned)LUATTN_WANT_INPUTS;
  if (c->spec.traced.num_scalars == 0) wants &= ~(unsigned)LUATTN_WANT_SCALARS;
  return wants;
}

/* keys[lengths], for each of luattn_lengths. */
static luattn_status record_keys(const compilation *c, hash128 keys[2], luattn_error *err) {
  const plan *p = &c->at.plan;
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

static void record_write(const tuned_record *r, hash128 key, hash128 origin, const char *about,
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

static void record_read(const char *text, hash128 key, hash128 origin, tuned_record *out) {
  char head[HEAD_SIZE + 1], check[33], version[32], name[33], from[33], want[33], gain[REAL_SIZE], *end;
  luattn_tiles *t = &out->tiles;
  out->state = TUNED_DAMAGED;
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
  out->state = same ? TUNED_SOUND : TUNED_STALE;
}

/* ---- looking up ---- */

/* found[lengths]. What was made with what is only asked where there is a record. The names are too large for
 * a stack that planning goes on with. */
luattn_status tuned_find(compilation *c, tuned_record found[2], luattn_error *err) {
  char *dir = arena_new(c->a, PATH_SIZE), *text[2];
  hash128 keys[2], origin = {0, 0};
  bool is_there[2], any = false;
  if (dir == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
  TRY(cache_resolve(c->target.cache_dir, dir, PATH_SIZE, err));
  TRY(record_keys(c, keys, err));
  for (int i = 0; i < 2; i++) {
    found[i].state = TUNED_NONE;
    found[i].path = arena_new(c->a, PATH_SIZE);
    text[i] = arena_new(c->a, RECORD_SIZE);
    if (found[i].path == NULL || text[i] == NULL)
      return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
    is_there[i] = cache_find_record(dir, keys[i], text[i], RECORD_SIZE, found[i].path, PATH_SIZE);
    any |= is_there[i];
  }
  if (!any) return LUATTN_OK;
  TRY(compilation_find_nvrtc(c, err));
  TRY(cache_key_origin(c, &origin, err));
  for (int i = 0; i < 2; i++)
    if (is_there[i]) record_read(text[i], keys[i], origin, &found[i]);
  return LUATTN_OK;
}

static const char *about(const compilation *c) {
  static const char *const dtypes[] = {"f64", "f32", "bf16", "f16"};
  const plan *p = &c->at.plan;
  return arena_printf(c->a, "%.64s on %.128s, sm_%d: %s, %s, head dims %d and %d, %s lengths",
                      c->spec.traced.name, c->target.device, p->arch,
                      p->pass == LUATTN_FORWARD ? "forward" : "backward", dtypes[p->dtype], p->head_dim,
                      p->head_dim_v, c->target.lengths == LUATTN_SHORT ? "short" : "long");
}

luattn_status tuned_store(compilation *c, const luattn_tiles *tiles, double gain, char *path, size_t size,
                          luattn_error *err) {
  char dir[PATH_SIZE], text[RECORD_SIZE];
  hash128 origin, keys[2];
  TRY(cache_resolve(c->target.cache_dir, dir, sizeof dir, err));
  TRY(cache_key_origin(c, &origin, err));
  TRY(record_keys(c, keys, err));
  const hash128 key = keys[c->target.lengths];
  if (tiles == NULL) return cache_store_record(dir, key, NULL, path, size, err);
  const tuned_record r = {.tiles = *tiles, .gain = gain};
  const char *what = about(c);
  if (what == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
  record_write(&r, key, origin, what, text);
  return cache_store_record(dir, key, text, path, size, err);
}
