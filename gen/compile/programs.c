/* programs.c: compiles the main kernel of an image in one run of NVRTC and the other kernels, if any, in a
 * second. The others take from a tenth of the main kernel's time to as much again, so two cores compile an
 * image in the time of its main kernel. NVRTC's front end takes one program at a time, and the main kernel
 * goes first. NVRTC's own threads (--split-compile) would drop ptxas's remarks on wgmma from the log, which
 * plans react to. */
#include "gen/compile/programs.h"

#include <stdio.h>
#include <string.h>

#include "common/host.h"
#include "gen/cache/cache.h"
#include "gen/plan/policy.h"

/* Which kernels a program contains (LUATTN_PART of the templates). Results of the second program lie in
 * c->second. */
typedef enum program_part { PROGRAM_ALL, PROGRAM_MAIN, PROGRAM_OTHERS } program_part;

bool programs_may_be_two(const image_manifest *m) {
  bool main = false, others = false;
  for (uint32_t i = 0; i < m->num_entries; i++) {
    const bool is_main = luattn_role_is_main(m->entry[i].role) != 0;
    main |= is_main;
    others |= !is_main;
  }
  return main && others;
}

static bool are_two(const compilation *c) { return !c->target.one_code && programs_may_be_two(&c->at.info); }

enum { MAX_OPTIONS = COMPILATION_NVRTC_OPTIONS + 1 + 4 * POLICY_MAX_LEFT_OUT };

static nvrtc_options options(const compilation *c, program_part part, bool recent, bool apart,
                             const char *out[MAX_OPTIONS]) {
  const char *left_out[POLICY_MAX_LEFT_OUT];
  int n = compilation_nvrtc_options(recent, apart, out);
  if (part != PROGRAM_ALL) out[n++] = part == PROGRAM_MAIN ? "-DLUATTN_PART=1" : "-DLUATTN_PART=2";
  const int num_left_out = recent ? policy_left_out_passes(&c->at.plan, c->mask.rows.period >= MASK_GRID, left_out) : 0;
  for (int i = 0; i < num_left_out; i++) {
    out[n++] = "-Xnvvm"; /* the next option is for NVVM's optimizer */
    out[n++] = "-Xopt";
    out[n++] = "-Xnvvm";
    out[n++] = left_out[i];
  }
  return (nvrtc_options){.list = out, .count = n, .optional = 4 * num_left_out};
}

static const template_file *entry_file(const compilation *c) {
  for (int i = 0; i < c->num_templates; i++)
    if (strcmp(c->templates[i].name, plan_kernel(&c->at.plan)->file) == 0) return &c->templates[i];
  return NULL;
}

static bool is_entry(const template_file *f) {
  const size_t n = strlen(f->name);
  return n > 3 && strcmp(f->name + n - 3, ".cu") == 0;
}

static luattn_status compile_program(const compilation *c, const nvrtc *lib, program_part part, nvrtc_watcher *watcher,
                                     int want_ptx, nvrtc_result *out, luattn_error *err) {
  arena *a = part == PROGRAM_OTHERS ? c->second : c->a;
  const char *opts[MAX_OPTIONS], *arch = compilation_arch(c, a);
  const template_file *entry = entry_file(c);
  template_file *headers = arena_array(a, (size_t)c->num_templates + 2, sizeof *headers);
  if (arch == NULL || headers == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  if (entry == NULL)
    return luattn_fail(err, LUATTN_INTERNAL, "compile: %s: is not among the templates", plan_kernel(&c->at.plan)->file);
  int n = 0;
  for (int i = 0; i < c->num_templates; i++)
    if (!is_entry(&c->templates[i])) headers[n++] = c->templates[i];
  headers[n++] = (template_file){"config.cuh", c->at.config, strlen(c->at.config)};
  headers[n++] = (template_file){"spec.cuh", c->at.spec_text, strlen(c->at.spec_text)};
  for (int apart = 0; apart < 2; apart++) {
    nvrtc_options told = options(c, part, lib->major >= 13, apart != 0, opts);
    told.watcher = watcher;
    TRY(nvrtc_compile(lib, a, entry->name, entry->data, headers, n, arch, told, want_ptx, out, err));
    if (out->lost_sign == NULL) return LUATTN_OK;
  }
  return luattn_fail(
      err, LUATTN_COMPILE,
      "compile: %s: ptxas would leave out a minus in max(max(a, -b), c) or min(min(a, -b), c) of integers; write "
      "max(x, y) of the spec as where(x < y, y, x) there, and please report this",
      out->lost_sign);
}

luattn_status programs_ptx(const compilation *c, const nvrtc *lib, nvrtc_result *out, luattn_error *err) {
  return compile_program(c, lib, PROGRAM_ALL, NULL, 1, out, err);
}

/* ---- two runs at once ---- */

typedef struct second_run {
  const compilation *c;
  const nvrtc *lib;
  int want_ptx;
  pthread_t thread;
  bool is_due, has_thread;
  nvrtc_result result;
  luattn_status status;
  luattn_error err;
} second_run;

static void *compile_others(void *of_second_run) {
  HOST_SCOPE;
  second_run *r = of_second_run;
  r->status = compile_program(r->c, r->lib, PROGRAM_OTHERS, NULL, r->want_ptx, &r->result, &r->err);
  return NULL;
}

static void start_others(void *of_second_run) {
  second_run *r = of_second_run;
  if (!r->is_due) r->has_thread = host_thread(&r->thread, compile_others, r) == 0;
  r->is_due = true;
}

/* Merges the ptxas results of both into the first. Without the register counts of both there is no image.
 * Functions that both programs call appear in both logs. */
static void join(nvrtc_result *main, const nvrtc_result *others) {
  const int room = (int)(sizeof main->entry / sizeof main->entry[0]);
  for (int i = 0; i < others->num_entries && main->num_entries < room; i++)
    main->entry[main->num_entries++] = others->entry[i];
  if (others->called_spill_bytes > main->called_spill_bytes) main->called_spill_bytes = others->called_spill_bytes;
  if (main->remark == NULL || (main->cubin != NULL && others->cubin == NULL)) main->remark = others->remark;
  if (others->cubin == NULL) main->cubin = NULL;
}

luattn_status programs_compile(const compilation *c, const nvrtc *lib, int want_ptx, nvrtc_result *main,
                               nvrtc_result *others, luattn_error *err) {
  memset(others, 0, sizeof *others);
  if (!are_two(c)) return compile_program(c, lib, PROGRAM_ALL, NULL, want_ptx, main, err);
  second_run second = {.c = c, .lib = lib, .want_ptx = want_ptx};
  nvrtc_watcher watcher = {start_others, &second};
  const luattn_status status = compile_program(c, lib, PROGRAM_MAIN, &watcher, want_ptx, main, err);
  if (second.has_thread)
    pthread_join(second.thread, NULL);
  else if (status == LUATTN_OK)
    compile_others(&second);
  if (status != LUATTN_OK) return status;
  if (second.status != LUATTN_OK) {
    if (err != NULL) *err = second.err;
    return second.status;
  }
  *others = second.result;
  join(main, others);
  return LUATTN_OK;
}

luattn_status programs_image(const compilation *c, image_manifest *info, const nvrtc_result *main,
                             const nvrtc_result *others, luattn_image **image, luattn_error *err) {
  const bool ptx = info->is_ptx != 0;
  const char *first = ptx ? main->ptx : main->cubin, *second = ptx ? others->ptx : others->cubin;
  const size_t size = ptx ? strlen(first) + 1 : main->cubin_size;
  if (second == NULL) return image_create(info, &c->planned, first, size, image, err);
  const size_t rest = ptx ? strlen(second) + 1 : others->cubin_size, at = (size + 127) / 64 * 64;
  char *both = arena_new(c->a, at + rest);
  if (both == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  memcpy(both, first, size);
  memcpy(both + at, second, rest);
  info->second_code = (uint32_t)at;
  return image_create(info, &c->planned, both, at + rest, image, err);
}

void programs_keep(const compilation *c, const char *dir, hash128 key, luattn_error *err) {
  char path[512];
  const char *text = arena_printf(c->a, "// %s\n\n// ---- config.cuh\n%s\n// ---- spec.cuh\n%s",
                                  err != NULL ? err->message : "", c->at.config, c->at.spec_text);
  if (text == NULL) return; /* the message is complete without it */
  cache_keep_source(dir, key, text, path, sizeof path);
  if (err == NULL || path[0] == 0) return;
  const size_t used = strlen(err->message);
  snprintf(err->message + used, sizeof err->message - used, "; the generated source is in %s", path);
}
