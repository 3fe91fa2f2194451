#include "gen/compile/linear_image.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "abi/image.h"
#include "abi/linear_params.h"
#include "common/fail.h"
#include "gen/base/hash.h"
#include "gen/cache/cache.h"
#include "gen/compile/build_id.h"
#include "gen/compile/compilation.h"
#include "gen/compile/linear_source.h"
#include "gen/plan/linear_family.h"

typedef struct making {
  linear_source s;
  nvrtc_search search;
  nvrtc_file file;
  image_manifest info; /* complete except for registers and the hash */
  char dir[1024];
  size_t limit;
  hash128 key;
  char warning[512];
  luattn_compile_report *report;
} making;

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* ---- the manifest ---- */

static void fill_entry(const linear_plan *p, const linear_entry *of, image_manifest *m) {
  m->linear_facts[0].early |= (uint32_t)of->early << m->num_entries;
  manifest_entry *e = &m->entry[m->num_entries++];
  snprintf(e->name, sizeof e->name, "%s", of->name);
  e->role = (uint32_t)of->role;
  e->threads = (uint32_t)of->threads;
  e->shared_bytes = (uint32_t)of->shared_bytes;
  e->tile_m = of->role == LUATTN_ROLE_LINEAR_PREPARE ? (uint32_t)of->threads / 32 * LUATTN_PREPARE_ROWS
              : of->role == LUATTN_ROLE_LINEAR_ROUND ? (uint32_t)of->threads
                                                     : LUATTN_CHUNK;
  e->tile_n = (uint32_t)(of->role == LUATTN_ROLE_LINEAR_STEP ? p->v_part : p->v_block);
}

static uint32_t numbers_of(const linear_lowered *f) {
  return (uint32_t)((f->of_decay.count > 0) | (f->of_write.count > 0) << 1 | (f->of_read.count > 0) << 2);
}

static uint32_t terms_of(const linear_lowered *f) {
  uint32_t bits = (uint32_t)(f->skipped.terms.count > 0) << 3;
  for (int i = 0; i < 3; i++) bits |= (uint32_t)(f->row[i].terms.count > 0) << i;
  return bits;
}

static void fill_manifest(const linear_source *s, image_manifest *m) {
  const traced_spec *t = &s->lowered.spec->traced; /* whose inputs have types */
  const linear_plan *p = &s->plan;
  memset(m, 0, sizeof *m);
  snprintf(m->spec_name, sizeof m->spec_name, "%s", t->name);
  m->pass = p->pass, m->family = p->family->family, m->dtype = p->dtype;
  m->arch = (uint32_t)s->target.arch;
  if (m->family == LUATTN_SM90) m->arch_suffix[0] = 'a';
  m->head_dim = (uint32_t)p->k_dim, m->head_dim_v = (uint32_t)p->v_dim;
  m->has_query_mod = s->spec->linear->hook[LINEAR_QUERY].given;
  m->has_key_mod = s->spec->linear->hook[LINEAR_KEY].given;
  m->has_value_mod = s->spec->linear->hook[LINEAR_VALUE].given;
  m->is_ptx = s->target.ptx != 0;
  m->max_len = s->lowered.max_len;
  m->params_version = LUATTN_PARAMS_VERSION;
  m->params_bytes = sizeof(LuattnLinearParams);
  m->packed = p->packed;
  m->linear = 1;
  m->wants = p->pass == LUATTN_FORWARD ? 0 : s->target.wants != 0 ? s->target.wants : (uint32_t)LUATTN_WANT_ALL;
  const uint32_t numbers = (uint32_t)(p->token_numbers > 0 ? p->token_numbers : p->numbers_kept);
  m->linear_facts[0] = (manifest_linear){.scale = t->linear.scale,
                                         .v_block = (uint32_t)p->v_block,
                                         .cuts = !p->cuts    ? MANIFEST_WHOLE
                                                 : p->erases ? MANIFEST_CUT_MAPS
                                                             : MANIFEST_CUT_SUMS,
                                         .v_warp = (uint32_t)p->v_warp,
                                         .ring = (uint32_t)p->ring,
                                         .step = (uint32_t)p->step,
                                         .ring_width = (uint32_t)p->ring_width,
                                         .ring_erases = p->ring_erases,
                                         .run = (uint32_t)p->run,
                                         .keys = (uint32_t)p->keys,
                                         .numbers_kept = numbers,
                                         .room = (uint32_t)p->room,
                                         .normalizes = p->normalizes,
                                         .made = p->made,
                                         .skips = s->lowered.skip != IR_NONE,
                                         .numbers = numbers_of(&s->lowered),
                                         .terms = terms_of(&s->lowered),
                                         .decays = s->lowered.decay_of == LINEAR_DECAY_CHANNEL ? (uint32_t)p->k_dim : 1,
                                         .alone = s->lowered.alone,
                                         .sole = s->lowered.sole};
  m->num_inputs = (uint32_t)t->num_inputs;
  m->num_scalars = (uint32_t)t->num_scalars;
  m->has_ranges = t->num_ranges > 0;
  for (int i = 0; i < t->num_inputs; i++) m->input[i] = t->input[i];
  for (int i = 0; i < t->num_scalars; i++) {
    snprintf(m->scalar[i].name, sizeof m->scalar[i].name, "%s", t->scalar_name[i]);
    m->scalar[i].value = t->scalar_default[i];
    m->ranges[0].of[i] = t->scalar_range[i];
  }
  for (int i = 0; i < p->num_entries; i++) fill_entry(p, &p->entry[i], m);
}

/* ---- the cache ---- */

/* Of the texts that are compiled, of the templates, and of what a launch takes from the manifest. */
static luattn_status find_key(making *k, luattn_error *err) {
  const template_file *templates;
  int count;
  hasher h;
  TRY(templates_get(k->s.a, &templates, &count, err));
  if (!hasher_open(&h)) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  hasher_add(&h, "luattn", luattn_version(), strlen(luattn_version()));
  hasher_add(&h, "build", gen_build_id, strlen(gen_build_id));
  for (int i = 0; i < count; i++) hasher_add(&h, templates[i].name, templates[i].data, templates[i].size);
  hasher_add(&h, "nvrtc", k->file.identity, strlen(k->file.identity));
  hasher_add(&h, "linear", k->s.spec_text, strlen(k->s.spec_text));
  hasher_add(&h, "config", k->s.config, strlen(k->s.config));
  hasher_add(&h, "manifest", &k->info, sizeof k->info); /* all of it was zeroed: there is no padding of chance */
  hasher_add(&h, "lines", (const int[]){compilation_has_line_info()}, sizeof(int));
  k->key = hasher_close(&h);
  return LUATTN_OK;
}

static luattn_status keep(making *k, const luattn_image *image, luattn_error *err) {
  TRY(cache_store(k->dir, k->key, image, k->warning, sizeof k->warning, err));
  if (k->dir[0] == 0 || k->warning[0] != 0) return LUATTN_OK;
  TRY(cache_trim(k->dir, k->limit, err));
  k->report->is_kept = cache_has(k->dir, k->key);
  return LUATTN_OK;
}

/* ---- NVRTC ---- */

static luattn_status take_code(making *k, const nvrtc_result *r, luattn_image **image, luattn_error *err) {
  image_manifest info = k->info;
  if (r->cubin == NULL)
    return luattn_fail(err, LUATTN_COMPILE, "compile: %s: its hooks need more registers than a thread has: %s",
                       info.spec_name, r->remark != NULL ? r->remark : "ptxas made no code");
  info.source_hash[0] = k->key.lo, info.source_hash[1] = k->key.hi;
  for (uint32_t i = 0; i < info.num_entries; i++)
    for (int j = 0; j < r->num_entries; j++) {
      const nvrtc_entry *e = &r->entry[j];
      if (strcmp(e->name, info.entry[i].name) != 0) continue;
      info.entry[i].registers = (uint32_t)e->registers;
      info.entry[i].local_bytes = (uint32_t)(e->stack_bytes > e->spill_bytes ? e->stack_bytes : e->spill_bytes);
    }
  const char *why = r->remark != NULL ? compilation_add_line(k->s.a, k->s.plan.why, r->remark) : k->s.plan.why;
  const image_plan planned = {.text = why, .every_length = true};
  return image_create(&info, &planned, info.is_ptx ? (const void *)r->ptx : r->cubin,
                      info.is_ptx ? strlen(r->ptx) + 1 : r->cubin_size, image, err);
}

static luattn_status compile(making *k, bool *next, luattn_image **image, luattn_error *err) {
  nvrtc lib;
  nvrtc_result r;
  const double start = now_ms();
  *next = true; /* until the library is known to work */
  TRY(nvrtc_open(&k->file, &lib, err));
  TRY(nvrtc_check_driver(&k->search, &lib, err));
  if (!nvrtc_supports(&lib, k->s.target.arch))
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "nvrtc: %s: is of CUDA %d.%d, which does not compile for sm_%d; install a later one", lib.path,
                       lib.major, lib.minor, k->s.target.arch);
  *next = false;
  TRY(linear_source_compile(&k->s, &lib, k->info.is_ptx != 0, &r, err));
  k->report->nvrtc_ms = now_ms() - start;
  return take_code(k, &r, image, err);
}

static luattn_status find_or_compile(making *k, bool *next, luattn_image **image, luattn_error *err) {
  const double start = now_ms();
  *next = false;
  TRY(nvrtc_next(&k->search, &k->file, err));
  TRY(find_key(k, err));
  TRY(cache_find(k->dir, k->key, image, err));
  k->report->cache_hit = k->report->is_kept = *image != NULL;
  k->report->cache_ms = now_ms() - start;
  if (*image != NULL) return LUATTN_OK;
  TRY(compile(k, next, image, err));
  return keep(k, *image, err);
}

static luattn_status make(const luattn_spec *spec, const luattn_target *target, making *k, luattn_image **image,
                          luattn_error *err) {
  const double start = now_ms();
  luattn_status status;
  bool next;
  image_plan planned = {.text = ""};
  TRY(linear_source_make(k->s.a, spec, target, &k->s, err));
  fill_manifest(&k->s, &k->info);
  TRY(cache_resolve(k->s.target.cache_dir, k->dir, sizeof k->dir, err));
  TRY(cache_limit(&k->limit, err));
  k->report->trace_ms = spec->load_ms;
  k->report->plan_ms = now_ms() - start;
  nvrtc_search_start(&k->search, k->s.target.nvrtc, (int)k->s.target.driver_version, k->s.target.ptx != 0);
  do {
    status = find_or_compile(k, &next, image, err);
  } while (status != LUATTN_OK && next && nvrtc_pass_over(&k->search, err));
  if (status != LUATTN_OK) return status;
  image_get_plan(*image, &planned);
  snprintf(k->report->plan, sizeof k->report->plan, "%s", planned.text);
  k->report->every_length = 1;
  fail_clear(err); /* another NVRTC may have failed first */
  if (k->warning[0] != 0) luattn_warn(err, "%s", k->warning);
  return LUATTN_OK;
}

luattn_status linear_image_make(const luattn_spec *spec, const luattn_target *target, luattn_image **image,
                                luattn_compile_report *report, luattn_error *err) {
  luattn_compile_report own, *used = report != NULL ? report : &own;
  luattn_image *made = NULL;
  luattn_error said; /* the caller may have no error struct, and this one is needed here */
  fail_clear(&said);
  memset(used, 0, sizeof *used);
  arena *a = arena_open(arena_allocator(spec->a));
  making *k = a != NULL ? arena_new(a, sizeof *k) : NULL;
  luattn_status status = LUATTN_OK;
  if (k == NULL) {
    status = luattn_fail(&said, LUATTN_NO_MEMORY, "compile: %s: out of memory", spec->traced.name);
  } else {
    k->s.a = a, k->report = used;
    status = make(spec, target, k, &made, &said);
  }
  arena_close(a);
  if (status == LUATTN_OK) *image = made;
  if (status != LUATTN_OK) luattn_image_free(made);
  if (err != NULL) *err = said;
  return status;
}
