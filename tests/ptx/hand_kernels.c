/* hand_kernels.c: see hand_kernels.h. */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/ptx/hand_kernels.h"

/* ---- the driver ---- */

typedef unsigned long long device_ptr;
static struct {
  int (*init)(unsigned);
  int (*retain)(void **, int);
  int (*push)(void *);
  int (*load)(void **, const void *);
  int (*unload)(void *);
  int (*function)(void **, void *, const char *);
  int (*attribute)(void *, int, int);
  int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  int (*alloc)(device_ptr *, size_t);
  int (*release)(device_ptr);
  int (*to_device)(device_ptr, const void *, size_t);
  int (*to_host)(void *, device_ptr, size_t);
  int (*encode)(void *, int, unsigned, void *, const unsigned long long *, const unsigned long long *, const unsigned *,
                const unsigned *, int, int, int, int);
} cuda;

int hand_open_driver(void **state) {
  (void)state;
  const char *name = getenv("LUATTN_LIBCUDA");
  void *lib = dlopen(name != NULL ? name : "libcuda.so.1", RTLD_NOW), *context;
  if (lib == NULL) fail_msg("%s", dlerror());
#define FIND(member, name)                   \
  *(void **)&cuda.member = dlsym(lib, name); \
  assert_non_null(*(void **)&cuda.member)
  FIND(init, "cuInit");
  FIND(retain, "cuDevicePrimaryCtxRetain");
  FIND(push, "cuCtxPushCurrent_v2");
  FIND(load, "cuModuleLoadData");
  FIND(unload, "cuModuleUnload");
  FIND(function, "cuModuleGetFunction");
  FIND(attribute, "cuFuncSetAttribute");
  FIND(launch, "cuLaunchKernel");
  FIND(alloc, "cuMemAlloc_v2");
  FIND(release, "cuMemFree_v2");
  FIND(to_device, "cuMemcpyHtoD_v2");
  FIND(to_host, "cuMemcpyDtoH_v2");
  FIND(encode, "cuTensorMapEncodeTiled");
#undef FIND
  assert_int_equal(cuda.init(0), 0);
  assert_int_equal(cuda.retain(&context, 0), 0);
  assert_int_equal(cuda.push(context), 0);
  return 0;
}

void *hand_device(size_t bytes, const void *from) {
  device_ptr p;
  const size_t room = bytes > 0 ? bytes : 16;
  assert_int_equal(cuda.alloc(&p, room), 0);
  unsigned char *poison = malloc(room);
  memset(poison, 0xff, room);
  assert_int_equal(cuda.to_device(p, from != NULL ? from : poison, bytes), 0);
  free(poison);
  return (void *)(uintptr_t)p;
}
void hand_host(void *to, const void *from, size_t bytes) {
  assert_int_equal(cuda.to_host(to, (device_ptr)(uintptr_t)from, bytes), 0);
}
void hand_release(void *data) {
  if (data != NULL) cuda.release((device_ptr)(uintptr_t)data);
}
void hand_release_all(void *const *all, size_t count) {
  for (size_t i = 0; i < count; i++) hand_release(all[i]);
}

/* ---- images ---- */

/* Reads LUATTN_LINEINFO: with 1 compute-sanitizer and profilers name lines of templates on a GPU. */
static bool has_line_info(void) {
  const char *value = getenv("LUATTN_LINEINFO");
  return value != NULL && strcmp(value, "1") == 0;
}
/* What this process has compiled: calls of a test that differ in numbers alone take one image. */
static struct {
  uint64_t source;
  void *image;
} compiled[64];
static int num_compiled;

static uint64_t add_text(uint64_t hash, const char *text) {
  do hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
  while (*text++ != 0);
  return hash;
}
static uint64_t hash_source(const hand_source *s) {
  uint64_t hash = add_text(0xcbf29ce484222325u, s->entry);
  for (int i = 0; i < s->num_options; i++) hash = add_text(hash, s->options[i]);
  for (int i = 0; i < s->num_headers; i++) hash = add_text(add_text(hash, s->headers[i].name), s->headers[i].data);
  return hash;
}
/* Compiles to what a program's own kernels are, or to PTX where ptxas has no registers for it. */
static void *compile_image(hand_source *s) {
  nvrtc_result r;
  luattn_error err;
  const nvrtc_options options = {.list = s->options, .count = s->num_options};
  if (nvrtc_compile(&s->lib, s->a, s->entry, s->text, s->headers, s->num_headers, "sm_90a", options, 1, &r, &err) !=
      LUATTN_OK)
    fail_msg("%s", err.message);
  assert_non_null(r.ptx);
  const size_t bytes = r.cubin != NULL ? r.cubin_size : strlen(r.ptx) + 1;
  return memcpy(malloc(bytes), r.cubin != NULL ? r.cubin : r.ptx, bytes);
}
static const void *find_image(hand_source *s) {
  const uint64_t source = hash_source(s);
  for (int i = 0; i < num_compiled; i++)
    if (compiled[i].source == source) return compiled[i].image;
  assert_true(num_compiled < (int)(sizeof compiled / sizeof compiled[0]));
  compiled[num_compiled].image = compile_image(s);
  compiled[num_compiled].source = source;
  return compiled[num_compiled++].image;
}

void hand_open_source(hand_source *s, const char *entry) {
  nvrtc_file file;
  luattn_error err;
  *s = (hand_source){.entry = entry};
  if (nvrtc_find(NULL, &file, &err) != LUATTN_OK || nvrtc_open(&file, &s->lib, &err) != LUATTN_OK) skip();
  s->a = arena_open(NULL);
  const template_file *files;
  int count;
  if (templates_get(s->a, &files, &count, &err) != LUATTN_OK) fail_msg("%s", err.message);
  for (int i = 0; i < count; i++) {
    assert_true(s->num_headers < (int)(sizeof s->headers / sizeof s->headers[0]));
    s->headers[s->num_headers++] = files[i];
    if (strcmp(files[i].name, entry) == 0) s->text = files[i].data;
  }
  assert_non_null(s->text);
  hand_add_option(s, "-std=c++20"), hand_add_option(s, "-default-device");
  if (has_line_info()) hand_add_option(s, "-lineinfo");
}
char *hand_read(hand_source *s, const char *path) {
  const size_t most = 1 << 17;
  char *text = arena_new(s->a, most);
  FILE *f = fopen(path, "rb");
  if (f == NULL) fail_msg("%s is missing", path);
  assert_true(fread(text, 1, most - 1, f) > 0);
  fclose(f);
  return text;
}
void hand_add_header(hand_source *s, const char *name, const char *text) {
  assert_true(s->num_headers < (int)(sizeof s->headers / sizeof s->headers[0]));
  s->headers[s->num_headers++] = (template_file){name, text, 0};
}
void hand_add_option(hand_source *s, const char *option) {
  assert_true(s->num_options < (int)(sizeof s->options / sizeof s->options[0]));
  s->options[s->num_options++] = option;
}
void hand_define(hand_source *s, const char *name, int value) {
  hand_add_option(s, arena_printf(s->a, "-D%s=%d", name, value));
}
void hand_define_word(hand_source *s, const char *name, const char *value) {
  hand_add_option(s, arena_printf(s->a, "-D%s=%s", name, value));
}
void *hand_load(hand_source *s) {
  void *module;
  assert_int_equal(cuda.load(&module, find_image(s)), 0);
  arena_close(s->a);
  return module;
}
void hand_unload(void *module) { cuda.unload(module); }

void hand_launch(void *module, const char *name, const unsigned grid[3], int threads, int shared, void *p, void *maps) {
  void *function, *params[] = {p, maps};
  if (grid[0] == 0) return;
  assert_int_equal(cuda.function(&function, module, name), 0);
  if (shared > 0) assert_int_equal(cuda.attribute(function, 8, shared), 0);
  assert_int_equal(
      cuda.launch(function, grid[0], grid[1], grid[2], (unsigned)threads, 1, 1, (unsigned)shared, NULL, params, NULL),
      0);
}

LuattnTensorMap hand_encode(const hand_map *m, bool bf16) {
  LuattnTensorMap map;
  const unsigned step[5] = {1, 1, 1, 1, 1};
  assert_int_equal(cuda.encode(&map, bf16 ? 9 : 6, m->axes, m->data, m->size, m->stride, m->box, step, 0, 3, 0, 0), 0);
  return map;
}

/* ---- halves ---- */

float hand_of_bf16(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float y;
  memcpy(&y, &bits, sizeof y);
  return y;
}
uint16_t hand_to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (isnan(x)) return 0x7fff;
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
