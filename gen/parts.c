/* parts.c: the kernels of an image in two runs of NVRTC side by side, where there are some besides the main
 * ones: these take long, the others a tenth to a half of that. Two cores then compile an image in the time of
 * its main kernels. NVRTC's own threads (--split-compile) leave what ptxas remarks on wgmma out of the log,
 * which plans yield to. */
#include <pthread.h>
#include <string.h>

#include "gen/compile.h"

typedef struct run {
  const compilation *c;
  const nvrtc *lib;
  arena *a;
  int want_ptx;
  nvrtc_result result;
  luattn_status status;
  luattn_error err;
} run;

bool parts_has_two(const compilation *c) {
  bool main = false, others = false;
  for (int i = 0; i < c->plan.num_entries; i++) {
    const bool is_main = luattn_role_is_main((uint32_t)c->plan.entry[i].role) != 0;
    main |= is_main;
    others |= !is_main;
  }
  return main && others && !c->target.one_code;
}

static void *compile_others(void *of_run) {
  run *r = of_run;
  r->status = source_compile(r->c, r->a, r->lib, PART_OTHERS, r->want_ptx, &r->result, &r->err);
  return NULL;
}

/* What the other thread has made, to the compilation's arena. */
static luattn_status take(const run *r, arena *a, nvrtc_result *out, luattn_error *err) {
  if (r->status != LUATTN_OK) {
    if (err != NULL) *err = r->err;
    return r->status;
  }
  *out = r->result;
  out->log = arena_copy(a, r->result.log, strlen(r->result.log));
  out->remark = r->result.remark == NULL ? NULL : arena_copy(a, r->result.remark, strlen(r->result.remark));
  out->cubin = r->result.cubin == NULL ? NULL : arena_copy(a, r->result.cubin, r->result.cubin_size);
  out->ptx = r->result.ptx == NULL ? NULL : arena_copy(a, r->result.ptx, strlen(r->result.ptx));
  const bool lacks = out->log == NULL || (r->result.cubin != NULL && out->cubin == NULL) ||
                     (r->result.remark != NULL && out->remark == NULL) ||
                     (r->result.ptx != NULL && out->ptx == NULL);
  return lacks ? luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory") : LUATTN_OK;
}

static bool has_entry(const nvrtc_result *r, const char *name) {
  for (int i = 0; i < r->num_entries; i++)
    if (strcmp(r->entry[i].name, name) == 0) return true;
  return false;
}

/* What ptxas said of both, in the first. Without registers for one of them there is no image. */
static void join(nvrtc_result *first, nvrtc_result *second) {
  const int room = (int)(sizeof first->entry / sizeof first->entry[0]);
  for (int i = 0; i < second->num_entries; i++)
    if (first->num_entries < room && !has_entry(first, second->entry[i].name))
      first->entry[first->num_entries++] = second->entry[i];
  first->called_spill_bytes += second->called_spill_bytes;
  if (first->remark == NULL) first->remark = second->remark;
  if (second->cubin == NULL) first->cubin = NULL;
}

luattn_status parts_compile(const compilation *c, const nvrtc *lib, int want_ptx, nvrtc_result *main,
                            nvrtc_result *others, luattn_error *err) {
  memset(others, 0, sizeof *others);
  if (!parts_has_two(c)) return source_compile(c, c->a, lib, PART_ALL, want_ptx, main, err);
  run r = {.c = c, .lib = lib, .a = arena_open(NULL), .want_ptx = want_ptx}; /* c's is for one thread */
  pthread_t thread;
  if (r.a == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  const bool beside = pthread_create(&thread, NULL, compile_others, &r) == 0;
  luattn_status status = source_compile(c, c->a, lib, PART_MAIN, want_ptx, main, err);
  if (beside)
    pthread_join(thread, NULL);
  else
    compile_others(&r);
  if (status == LUATTN_OK) status = take(&r, c->a, others, err);
  if (status == LUATTN_OK) join(main, others);
  arena_close(r.a);
  return status;
}

luattn_status parts_image(const compilation *c, luattn_image_info *info, const nvrtc_result *main,
                          const nvrtc_result *others, luattn_image **image, luattn_error *err) {
  const bool ptx = info->is_ptx != 0;
  const char *first = ptx ? main->ptx : main->cubin, *second = ptx ? others->ptx : others->cubin;
  const size_t size = ptx ? strlen(first) + 1 : main->cubin_size;
  if (second == NULL) return luattn_image_create(info, first, size, image, err);
  const size_t rest = ptx ? strlen(second) + 1 : others->cubin_size, at = (size + 127) / 64 * 64;
  char *both = arena_new(c->a, at + rest);
  if (both == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  memcpy(both, first, size);
  memcpy(both + at, second, rest);
  info->second_code = (uint32_t)at;
  return luattn_image_create(info, both, at + rest, image, err);
}
