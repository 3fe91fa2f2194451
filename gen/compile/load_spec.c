/* load_spec.c: loads a spec: from its file to expressions and declarations. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/call/need_attention.h"
#include "common/host.h"
#include "gen/analysis/linear/linear_adjoint.h"
#include "gen/analysis/specs/adjoint.h"
#include "gen/analysis/specs/reads_elsewhere.h"
#include "gen/analysis/specs/int_range.h"
#include "gen/analysis/specs/large_scores.h"
#include "gen/analysis/specs/part_rule.h"
#include "gen/base/hash.h"
#include "gen/compile/large_integers.h"
#include "gen/lua/front.h"
#include "gen/lua/prelude.h"
#include "luattn/merge.h"

#define MAX_SPEC_BYTES (4u << 20)
/* Bounds expressions: passes recurse over them, derivatives are several times as deep as their originals, and
 * the stack is HOST_STACK_LEAST. A kernel with this many operations per score would take minutes to
 * compile. */
#define MAX_OPERATIONS 4096u

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Hashes the spec's text and the prelude. A spec's meaning depends on nothing else: the sandbox reads no file
 * and no environment variable. */
static bool hash_spec(luattn_spec *spec, const char *text, size_t size) {
  hasher h;
  if (!hasher_open(&h)) return false;
  hasher_add(&h, "spec", text, size);
  hasher_add(&h, "prelude", front_prelude, front_prelude_size);
  const hash128 hash = hasher_close(&h);
  spec->hash[0] = hash.lo;
  spec->hash[1] = hash.hi;
  return true;
}

/* Gives the spec the hash of what was made of it. */
static bool hash_made(luattn_spec *spec, const char *what, int number) {
  hasher h;
  if (!hasher_open(&h)) return false;
  hasher_add(&h, "spec", spec->hash, sizeof spec->hash);
  hasher_add(&h, what, &number, sizeof number);
  const hash128 hash = hasher_close(&h);
  spec->hash[0] = hash.lo, spec->hash[1] = hash.hi;
  return true;
}

static luattn_status check_size(const traced_spec *t, const char *name, luattn_error *err) {
  const uint32_t count = (uint32_t)ir_count(t->g);
  if (count <= MAX_OPERATIONS) return LUATTN_OK;
  return luattn_fail(err, LUATTN_SPEC,
                     "%s: its hooks come to %u operations in all, and %u are possible; shorten the loops that "
                     "build them, or read a table from an input",
                     name, (unsigned)count, MAX_OPERATIONS);
}

/* Of attention's kernels. */
static luattn_status look_at_integers(arena *a, traced_spec *t, const char *name, luattn_error *err) {
  if (t->form != LUATTN_FORM_ATTENTION) return LUATTN_OK;
  TRY(large_integers_check(a, t, err));
  if (spec_find_elsewhere(t) && int_range_find(t)) return LUATTN_OK;
  return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", name);
}

static luattn_status derive_form(arena *a, luattn_spec *spec, luattn_error *err) {
  if (spec->traced.form == LUATTN_FORM_ATTENTION) return derive_spec(a, &spec->traced, &spec->derived, err);
  const ir_ref zero = ir_real(spec->traced.g, 0);
  spec->derived = (derived_spec){.prob = zero, .ds = zero, .how = "of linear attention"};
  return derive_linear(&spec->traced, &spec->linear, err);
}

typedef struct load_call {
  const char *name, *text; /* the name is that of the file, if any */
  size_t size;
  const luattn_allocator *allocator;
  luattn_spec **spec;
} load_call;

static luattn_status load_text(void *arguments, luattn_error *err) {
  const load_call *given = arguments;
  const char *name = given->name;
  const double start = now_ms();
  arena *a = arena_open(given->allocator);
  luattn_spec *spec = a == NULL ? NULL : arena_new(a, sizeof *spec);
  if (spec == NULL) {
    arena_close(a);
    return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", name);
  }
  spec->a = a;
  luattn_status status = front_trace(a, name, given->text, given->size, &spec->traced, err);
  if (status == LUATTN_OK) status = check_size(&spec->traced, name, err);
  if (status == LUATTN_OK) status = look_at_integers(a, &spec->traced, name, err);
  const char *passes = getenv("LUATTN_ROW_PASSES");
  spec->traced.by_passes = passes != NULL && strcmp(passes, "1") == 0;
  if (status == LUATTN_OK) ir_set_line(spec->traced.g, 0); /* derived nodes have no source line */
  if (status == LUATTN_OK) status = derive_form(a, spec, err);
  if (status == LUATTN_OK && (!hash_spec(spec, given->text, given->size) ||
                              (spec->traced.by_passes && !hash_made(spec, "by passes", 1)) || arena_failed(a)))
    status = luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", name);
  if (status != LUATTN_OK) {
    arena_close(a);
    return status;
  }
  fail_clear(err); /* drops the errors of derivations that were tried */
  spec->load_ms = now_ms() - start;
  *given->spec = spec;
  return LUATTN_OK;
}

luattn_status luattn_spec_load_text(const char *name, const char *text, size_t size, const luattn_allocator *allocator,
                                    luattn_spec **spec, luattn_error *err) {
  fail_clear(err);
  NEED(name);
  NEED(text);
  NEED(spec);
  return host_run(load_text, &(load_call){name, text, size, allocator, spec}, err);
}

/* Reads to the end, so that a pipe works as well as a file. NULL: out of memory. */
static char *read_all(arena *a, FILE *f, size_t *size) {
  size_t capacity = 1 << 14;
  char *text = arena_new(a, capacity);
  *size = 0;
  while (text != NULL) {
    *size += fread(text + *size, 1, capacity - *size, f);
    if (*size < capacity || *size > MAX_SPEC_BYTES) break;
    char *more = arena_new(a, 2 * capacity);
    if (more != NULL) memcpy(more, text, *size);
    text = more;
    capacity *= 2;
  }
  return text;
}

static luattn_status load_file(void *arguments, luattn_error *err) {
  load_call *given = arguments;
  const char *path = given->name;
  FILE *f = fopen(path, "rb");
  if (f == NULL) return luattn_fail(err, LUATTN_IO, "%s: cannot be opened: %s; name a Lua file", path, strerror(errno));
  arena *a = arena_open(given->allocator);
  given->text = a == NULL ? NULL : read_all(a, f, &given->size);
  const bool broken = ferror(f) != 0;
  fclose(f);
  luattn_status status;
  if (given->text == NULL)
    status = luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", path);
  else if (broken)
    status = luattn_fail(err, LUATTN_IO, "%s: cannot be read; name a Lua file", path);
  else if (given->size > MAX_SPEC_BYTES)
    status =
        luattn_fail(err, LUATTN_SPEC, "%s: is larger than %u bytes; a spec is a short Lua file", path, MAX_SPEC_BYTES);
  else
    status = load_text(given, err);
  arena_close(a);
  return status;
}

luattn_status luattn_spec_load(const char *path, const luattn_allocator *allocator, luattn_spec **spec,
                               luattn_error *err) {
  fail_clear(err);
  NEED(path);
  NEED(spec);
  load_call call = {.name = path, .allocator = allocator, .spec = spec};
  return host_run(load_file, &call, err);
}

luattn_status spec_drop_weights(luattn_spec *spec, int keep, luattn_error *err) {
  traced_online *online = &spec->traced.online;
  if (keep == SPEC_KEEP_ALL) return LUATTN_OK;
  const char *name = arena_printf(spec->a, "dropout(%d/%d, %s)", SPEC_KEEP_ALL - keep, SPEC_KEEP_ALL, online->name);
  if (name == NULL || !hash_made(spec, "dropout", keep))
    return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", spec->traced.name);
  online->name = name, online->keep = keep;
  return LUATTN_OK;
}

typedef struct parts_call {
  const luattn_spec *from;
  luattn_spec **parts;
} parts_call;

/* Names and tables stay where they are, in the arena of the spec that this is made of. */
static luattn_status make_parts(void *arguments, luattn_error *err) {
  const parts_call *c = arguments;
  const luattn_spec *from = c->from;
  if (from->parts != NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_spec_parts: %s: is a spec of parts already; give the one that it was made of",
                       from->traced.name);
  arena *a = arena_open(arena_allocator(from->a)), *scratch = arena_open(arena_allocator(from->a));
  luattn_spec *spec = a == NULL ? NULL : arena_new(a, sizeof *spec);
  luattn_status status = LUATTN_NO_MEMORY;
  if (spec != NULL && scratch != NULL) {
    *spec = *from;
    spec->a = a;
    memcpy(spec->whole_hash, from->hash, sizeof from->hash);
    spec->traced.g = ir_clone(a, from->traced.g);
    if (spec->traced.g != NULL && hash_made(spec, "parts", 1)) status = part_rule_take(scratch, spec, err);
  }
  if (status == LUATTN_NO_MEMORY)
    (void)luattn_fail(err, status, "luattn_spec_parts: %s: out of memory", from->traced.name);
  arena_close(scratch);
  if (status != LUATTN_OK) {
    arena_close(a);
    return status;
  }
  fail_clear(err); /* other ways of merging may have failed first */
  *c->parts = spec;
  return LUATTN_OK;
}

luattn_status luattn_spec_parts(const luattn_spec *spec, luattn_spec **parts, luattn_error *err) {
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(parts);
  return host_run(make_parts, &(parts_call){spec, parts}, err);
}

void luattn_spec_free(luattn_spec *spec) {
  if (spec != NULL) arena_close(spec->a);
}

void luattn_spec_get_info(const luattn_spec *spec, luattn_spec_info *info) {
  if (info != NULL) memset(info, 0, sizeof *info);
  if (info == NULL || spec == NULL) return;
  const traced_spec *t = &spec->traced;
  info->name = t->name;
  info->num_inputs = (size_t)t->num_inputs;
  info->num_scalars = (size_t)t->num_scalars;
  info->num_saved = (size_t)spec->derived.num_saved;
  info->num_saved_large_scores = info->num_saved + (size_t)large_scores_count(spec);
  info->inputs = t->input;
  info->axis_names = t->axis_name;
  info->scalar_names = t->scalar_name;
  info->scalar_defaults = t->scalar_default;
  info->has_lse = t->online.lse >= 0;
  info->has_mask = t->block_mask != IR_NONE;
  memcpy(info->hash, spec->hash, sizeof info->hash);
  info->has_backward = spec->derived.missing == NULL;
  info->why_no_backward = spec->derived.missing;
}

luattn_form luattn_spec_form(const luattn_spec *spec) {
  return spec != NULL ? spec->traced.form : LUATTN_FORM_ATTENTION;
}

int luattn_spec_draws(const luattn_spec *spec) { return spec != NULL && spec_draws(&spec->traced); }

int luattn_spec_reads_batch(const luattn_spec *spec) { return spec != NULL && spec_reads_batch(&spec->traced); }

int luattn_spec_modifies_keys(const luattn_spec *spec) {
  return spec != NULL && (spec->traced.key_mod != IR_NONE || spec->traced.value_mod != IR_NONE);
}

int luattn_spec_grid(const luattn_spec *spec, const char *const **names) {
  if (names != NULL) *names = spec != NULL ? spec->traced.grid_axis : NULL;
  return spec != NULL ? spec->traced.grid_axes : 0;
}

int luattn_spec_row_passes(const luattn_spec *spec) { return spec != NULL ? spec->derived.num_passes : 0; }

unsigned luattn_spec_wants(const luattn_spec *spec) {
  luattn_spec_info info;
  if (spec == NULL) return 0;
  luattn_spec_get_info(spec, &info);
  if (!info.has_backward) return 0;
  unsigned wants = LUATTN_WANT_DQ | LUATTN_WANT_DK | LUATTN_WANT_DV;
  if (info.num_scalars > 0) wants |= LUATTN_WANT_SCALARS;
  for (size_t i = 0; i < info.num_inputs; ++i)
    if (info.inputs[i].grad) wants |= LUATTN_WANT_INPUTS;
  return wants;
}
