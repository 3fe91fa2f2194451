/* parts.c: the kernels of an image in two runs of NVRTC side by side, where there are some besides the main
 * one: that takes long, the others a tenth of it to as much again. Two cores then compile an image in the
 * time of its main kernel. NVRTC's front end takes one program at a time, and the main kernel does not wait:
 * the others start when it is through. NVRTC's own threads (--split-compile) leave what ptxas remarks on
 * wgmma out of the log, which plans yield to. */
#include <string.h>

#include "common/host.h"
#include "gen/compile.h"

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

bool parts_has_two(const compilation *c) {
  bool main = false, others = false;
  for (int i = 0; i < c->plan.num_entries; i++) {
    const bool is_main = luattn_role_is_main((uint32_t)c->plan.entry[i].role) != 0;
    main |= is_main;
    others |= !is_main;
  }
  return main && others && !c->target.one_code;
}

static void *compile_others(void *of_second_run) {
  HOST_SCOPE;
  second_run *r = of_second_run;
  r->status = source_compile(r->c, r->lib, PART_OTHERS, NULL, r->want_ptx, &r->result, &r->err);
  return NULL;
}

static void start_others(void *of_second_run) {
  second_run *r = of_second_run;
  if (!r->is_due) r->has_thread = host_thread(&r->thread, compile_others, r) == 0;
  r->is_due = true;
}

/* What ptxas said of both, in the first. Without registers for one of them there is no image. What entries of
 * both call stands in both logs. */
static void join(nvrtc_result *main, const nvrtc_result *others) {
  const int room = (int)(sizeof main->entry / sizeof main->entry[0]);
  for (int i = 0; i < others->num_entries && main->num_entries < room; i++)
    main->entry[main->num_entries++] = others->entry[i];
  if (others->called_spill_bytes > main->called_spill_bytes)
    main->called_spill_bytes = others->called_spill_bytes;
  if (main->remark == NULL || (main->cubin != NULL && others->cubin == NULL)) main->remark = others->remark;
  if (others->cubin == NULL) main->cubin = NULL;
}

luattn_status parts_compile(const compilation *c, const nvrtc *lib, int want_ptx, nvrtc_result *main,
                            nvrtc_result *others, luattn_error *err) {
  memset(others, 0, sizeof *others);
  if (!parts_has_two(c)) return source_compile(c, lib, PART_ALL, NULL, want_ptx, main, err);
  second_run second = {.c = c, .lib = lib, .want_ptx = want_ptx};
  nvrtc_watcher watcher = {start_others, &second};
  const luattn_status status = source_compile(c, lib, PART_MAIN, &watcher, want_ptx, main, err);
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

luattn_status parts_image(const compilation *c, image_manifest *info, const nvrtc_result *main,
                          const nvrtc_result *others, luattn_image **image, luattn_error *err) {
  const bool ptx = info->is_ptx != 0;
  const char *first = ptx ? main->ptx : main->cubin, *second = ptx ? others->ptx : others->cubin;
  const size_t size = ptx ? strlen(first) + 1 : main->cubin_size;
  const luattn_tiles tiles = plan_tiles(&c->plan);
  const image_plan planned = {c->plan.why, tiles, c->every_length || plan_same_tiles(&tiles, &c->other)};
  if (second == NULL) return image_create(info, &planned, first, size, image, err);
  const size_t rest = ptx ? strlen(second) + 1 : others->cubin_size, at = (size + 127) / 64 * 64;
  char *both = arena_new(c->a, at + rest);
  if (both == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  memcpy(both, first, size);
  memcpy(both + at, second, rest);
  info->second_code = (uint32_t)at;
  return image_create(info, &planned, both, at + rest, image, err);
}
