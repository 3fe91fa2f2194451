/* linear_kernels.c: see linear_kernels.h. */
#include "linear_kernels.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen/nvrtc/embedded.h"

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

void linear_open_driver(void) {
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
}

void *linear_device(size_t bytes, const void *from) {
  device_ptr p;
  assert_int_equal(cuda.alloc(&p, bytes + 16), 0);
  unsigned char *poison = malloc(bytes + 16);
  memset(poison, 0xff, bytes + 16);
  assert_int_equal(cuda.to_device(p, from != NULL ? from : poison, bytes), 0);
  free(poison);
  return (void *)(uintptr_t)p;
}
void linear_host(void *to, const void *from, size_t bytes) {
  assert_int_equal(cuda.to_host(to, (device_ptr)(uintptr_t)from, bytes), 0);
}
void linear_release(void *data) {
  if (data != NULL) cuda.release((device_ptr)(uintptr_t)data);
}

static char *read_file(arena *a, const char *path) {
  char *text = arena_new(a, 1 << 16);
  FILE *f = fopen(path, "rb");
  if (f == NULL) fail_msg("%s is missing", path);
  assert_true(fread(text, 1, (1 << 16) - 1, f) > 0);
  fclose(f);
  return text;
}

void *linear_load(const linear_kernel *k, linear_pass pass, const char *entry) {
  nvrtc_file file;
  nvrtc lib;
  luattn_error err;
  if (nvrtc_find(NULL, &file, &err) != LUATTN_OK || nvrtc_open(&file, &lib, &err) != LUATTN_OK) skip();
  arena *a = arena_open(NULL);
  template_file headers[256];
  int count = 0, n = 2;
  const char *text = NULL;
  for (int i = 0; i < luattn_embedded_template_count; i++) {
    headers[count++] = luattn_embedded_templates[i];
    if (strcmp(luattn_embedded_templates[i].name, entry) == 0) text = luattn_embedded_templates[i].data;
  }
  assert_non_null(text);
  headers[count++] = (template_file){"config.cuh", read_file(a, LINEAR "/config.cuh"), 0};
  headers[count++] = (template_file){"spec.cuh", read_file(a, LINEAR "/spec.cuh"), 0};
  assert_true(count <= (int)(sizeof headers / sizeof headers[0]));
  const char *options[16] = {"-std=c++20", "-default-device"};
#define NUMBER(name, value) options[n++] = arena_printf(a, "-D" name "=%d", value)
#define WORD(name, value) options[n++] = arena_printf(a, "-D" name "=%s", value)
  WORD("ELEM", k->elem), WORD("DECAY", k->decay), WORD("UPDATE", k->update), WORD("MODS", k->mods);
  WORD("SKIP", k->skip), WORD("PACKED", k->packed ? "true" : "false");
  NUMBER("PASS", pass), NUMBER("K_DIM", k->k_dim), NUMBER("V_DIM", k->v_dim), NUMBER("V_BLOCK", k->v_block),
      NUMBER("STAGES", k->stages);
#undef NUMBER
#undef WORD
  nvrtc_result r;
  if (nvrtc_compile(&lib, a, entry, text, headers, count, "sm_90a", (nvrtc_options){.list = options, .count = n}, 1, &r,
                    &err) != LUATTN_OK)
    fail_msg("%s", err.message);
  void *module;
  assert_int_equal(cuda.load(&module, r.ptx), 0);
  arena_close(a);
  return module;
}
void linear_unload(void *module) { cuda.unload(module); }

void linear_launch(void *module, const char *name, int blocks, int threads, int shared, LuattnLinearParams *p,
                   void *maps) {
  void *function, *params[] = {p, maps};
  if (blocks == 0) return;
  assert_int_equal(cuda.function(&function, module, name), 0);
  assert_int_equal(cuda.attribute(function, 8, shared), 0);
  assert_int_equal(
      cuda.launch(function, (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, (unsigned)shared, NULL, params, NULL), 0);
}

LuattnTensorMap linear_map(const LuattnTensor *t, bool bf16, bool packed, int dim, int tokens, int heads, int entries) {
  LuattnTensorMap map;
  memset(&map, 0, sizeof map);
  if (tokens == 0 || entries == 0) return map;
  typedef unsigned long long number;
  const number wrap = (number)1 << LUATTN_WRAP_LOG2, row = (number)t->seq * 2, head = (number)t->head * 2;
  const number dense[5] = {(number)dim, (number)tokens, (number)heads, (number)entries},
               dense_steps[4] = {row, head, (number)t->batch * 2},
               rows[5] = {(number)dim, wrap, (number)heads, (number)tokens + 1, wrap + 1},
               rows_steps[4] = {row, head, row, ((number)1 << (64 - LUATTN_WRAP_LOG2)) - row};
  const unsigned box[5] = {64, 64, 1, 1, 1}, step[5] = {1, 1, 1, 1, 1};
  assert_int_equal(cuda.encode(&map, bf16 ? 9 : 6, packed ? 5 : 4, t->data, packed ? rows : dense,
                               packed ? rows_steps : dense_steps, box, step, 0, 3, 0, 0),
                   0);
  return map;
}
