/* struct_size_test.c: passes each struct with a struct_size as an earlier and as a later luattn defines it
 * (luattn/status.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/merge.h"
#include "luattn/pages.h"
#include "tests/api/setup.h"

static api_call c, on_cpu;
static luattn_engine *engine;
static luattn_kernel *kernel;
static luattn_pack *pack;

/* Calls a function with a struct of `given` bytes. */
typedef luattn_status use(const void *given, luattn_error *err);

static luattn_status use_cpu_forward(const void *a, luattn_error *err) {
  return luattn_cpu_forward(on_cpu.spec, a, err);
}
static luattn_status use_cpu_backward(const void *a, luattn_error *err) {
  return luattn_cpu_backward(on_cpu.spec, a, err);
}
static luattn_status use_mask_count(const void *a, luattn_error *err) {
  int64_t kept;
  return luattn_mask_count(on_cpu.spec, a, &kept, err);
}
static luattn_status use_mask_tiles(const void *a, luattn_error *err) {
  unsigned char tile[4];
  return luattn_mask_tiles(on_cpu.spec, a, 0, 0, API_LEN, API_LEN, tile, err);
}
static luattn_status use_forward(const void *a, luattn_error *err) {
  return luattn_forward(engine, c.spec, a, NULL, err);
}
static luattn_status use_backward(const void *a, luattn_error *err) {
  return luattn_backward(engine, c.spec, a, NULL, err);
}
static luattn_status use_launch(const void *a, luattn_error *err) { return luattn_launch(kernel, a, NULL, err); }
static luattn_status use_workspace(const void *a, luattn_error *err) {
  size_t size;
  return luattn_workspace_size(kernel, a, &size, err);
}
static luattn_status use_target(const void *t, luattn_error *err) {
  luattn_image *image = NULL;
  const luattn_status status = luattn_compile(c.spec, t, &image, NULL, err);
  luattn_image_free(image);
  return status;
}
static luattn_status use_options(const void *o, luattn_error *err) {
  luattn_engine *opened = NULL;
  const luattn_status status = luattn_engine_open(o, &opened, err);
  luattn_engine_close(opened);
  return status;
}
static luattn_status use_query(const void *q, luattn_error *err) {
  size_t index;
  return luattn_pack_find(pack, q, &index, err);
}

/* `known` is this version's size, `least` the earliest version's. An earlier version's struct ended at `old`;
 * members from there on have values that this version refuses. */
static void check(const char *name, const void *right, size_t known, size_t least, size_t old, use *f) {
  luattn_error err;
  char text[128], *s = calloc(1, known + 8192);
  assert_non_null(s);
  const size_t sizes[] = {known, known + 8, known + 4096, old};
  for (int i = 0; i < 4; i++) {
    memset(s, 0, known + 8192);
    memcpy(s, right, known);
    memcpy(s, &sizes[i], sizeof sizes[i]);
    if (sizes[i] < known) memset(s + sizes[i], 0xa5, 8192); /* beyond the caller's struct */
    if (sizes[i] > known) memset(s + sizes[i], 0xa5, 4000);
    api_ok(f(s, &err), &err);
  }
  const size_t wrong[] = {0, 8, least - 8, known - 4, known + 4104, SIZE_MAX};
  for (int i = 0; i < 6; i++) {
    if (wrong[i] >= least && wrong[i] < known && wrong[i] % 8 == 0) continue;
    memcpy(s, &wrong[i], sizeof wrong[i]);
    snprintf(text, sizeof text, "%s: struct_size is %zu, expected sizeof(%s), which is %zu in luattn %s", name,
             wrong[i], name, known, luattn_version());
    api_refused(f(s, &err), LUATTN_INVALID, &err, text);
  }
  memset(s, 0, known + 8192);
  memcpy(s, right, known);
  const size_t later = known + 16;
  memcpy(s, &later, sizeof later);
  s[known + 9] = 1;
  snprintf(text, sizeof text, "%s: struct_size is %zu, and byte %zu is set, which luattn %s does not know: it has %zu",
           name, later, known + 9, luattn_version(), known);
  api_refused(f(s, &err), LUATTN_INVALID, &err, text);
  free(s);
}

static luattn_engine *cpu_engine;
static luattn_status use_merge(const void *a, luattn_error *err) { return luattn_merge(cpu_engine, a, NULL, err); }
static luattn_status use_merge_backward(const void *a, luattn_error *err) {
  return luattn_merge_backward(cpu_engine, a, NULL, err);
}

/* One part, which is merged into o. */
static void merge(void **state) {
  (void)state;
  float number[6] = {1, 2, 3, 4, 5, 6};
  int64_t shape[] = {1, 1, 1, 1};
  DLTensor o[6];
  for (int i = 0; i < 6; i++)
    o[i] = (DLTensor){.data = &number[i],
                      .device = {kDLCPU, 0},
                      .ndim = i % 2 == 0 ? 4 : 3,
                      .dtype = {kDLFloat, 32, 1},
                      .shape = shape};
  const luattn_part part = {.o = &o[0], .lse = &o[1]};
  const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU};
  luattn_error err;
  api_ok(luattn_engine_open(&options, &cpu_engine, &err), &err);
  const luattn_merge_args forward = {
      .struct_size = sizeof forward, .parts = &part, .num_parts = 1, .o = &o[2], .lse = &o[3]};
  luattn_merge_args backward = forward;
  backward.dout = &o[4];
  const size_t known = sizeof forward;
  check("luattn_merge_args", &forward, known, offsetof(luattn_merge_args, dlse), offsetof(luattn_merge_args, dlse),
        use_merge);
  check("luattn_merge_args", &backward, known, offsetof(luattn_merge_args, dlse), offsetof(luattn_merge_args, dlse),
        use_merge_backward);
  luattn_engine_close(cpu_engine);
}

static DLTensor page_table, page_used;
static luattn_status use_pages(const void *a, luattn_error *err) {
  return luattn_page_table(cpu_engine, a, &page_table, &page_used, NULL, err);
}

/* One entry of one page. */
static void pages(void **state) {
  (void)state;
  int32_t indptr[] = {0, 1}, one[] = {1, 0, 0};
  int64_t two[] = {2}, single[] = {1}, square[] = {1, 1};
  const DLTensor array = {.data = one, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = single};
  DLTensor of_indptr = array;
  of_indptr.data = indptr, of_indptr.shape = two;
  page_used = page_table = array;
  page_used.data = &one[1], page_table.data = &one[2];
  page_table.ndim = 2, page_table.shape = square;
  const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU};
  luattn_error err;
  api_ok(luattn_engine_open(&options, &cpu_engine, &err), &err);
  const luattn_page_lists lists = {sizeof lists, &of_indptr, &array, &array, 16};
  const size_t known = sizeof lists;
  check("luattn_page_lists", &lists, known, known, known, use_pages);
  luattn_engine_close(cpu_engine);
}

static void args(void **state) {
  (void)state;
  const size_t known = sizeof(luattn_args), least = offsetof(luattn_args, o), old = offsetof(luattn_args, num_splits);
  static use *const of_cpu[] = {use_cpu_forward, use_cpu_backward, use_mask_count, use_mask_tiles};
  static use *const of_device[] = {use_forward, use_backward, use_launch, use_workspace};
  for (int i = 0; i < 4; i++) check("luattn_args", &on_cpu.args, known, least, old, of_cpu[i]);
  for (int i = 0; i < 4; i++) check("luattn_args", &c.args, known, least, old, of_device[i]);
}

static void target(void **state) {
  (void)state;
  const luattn_target t = api_target();
  check("luattn_target", &t, sizeof t, offsetof(luattn_target, wants), offsetof(luattn_target, driver_version),
        use_target);
}

static void options(void **state) {
  (void)state;
  const luattn_engine_options o = {.struct_size = sizeof o};
  check("luattn_engine_options", &o, sizeof o, offsetof(luattn_engine_options, device),
        offsetof(luattn_engine_options, nvrtc), use_options);
}

static void query(void **state) {
  (void)state;
  const luattn_pack_query q = {.struct_size = sizeof q, .dtype = LUATTN_F32, .head_dim = API_DIM, .arch = 90};
  check("luattn_pack_query", &q, sizeof q, offsetof(luattn_pack_query, head_dim_v), offsetof(luattn_pack_query, family),
        use_query);
}

/* New members begin after the old struct, never in its padding, whose bytes are arbitrary. */
_Static_assert(offsetof(luattn_target, driver_version) % 8 == 0, "behind the padding");
_Static_assert(offsetof(luattn_engine_options, nvrtc) % 8 == 0, "behind the padding");

static int open_all(void **state) {
  (void)state;
  static const char path[] = "/tmp/luattn_api_struct_size.pack";
  luattn_error err;
  luattn_image *image;
  const luattn_target t = api_target();
  api_open(&c, kDLCUDA);
  api_open(&on_cpu, kDLCPU);
  engine = api_engine(NULL);
  api_ok(luattn_compile(c.spec, &t, &image, NULL, &err), &err);
  api_ok(luattn_kernel_load(luattn_engine_driver(engine), 0, image, &kernel, &err), &err);
  const luattn_pack_item item = {.kind = LUATTN_PACK_IMAGE, .image = image};
  api_ok(luattn_pack_write(path, NULL, &item, 1, &err), &err);
  api_ok(luattn_pack_open(path, &pack, &err), &err);
  luattn_image_free(image);
  return remove(path);
}

static int close_all(void **state) {
  (void)state;
  luattn_pack_close(pack);
  luattn_kernel_unload(kernel);
  luattn_engine_close(engine);
  api_close(&on_cpu);
  api_close(&c);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(args),  cmocka_unit_test(target),  cmocka_unit_test(merge),
                                     cmocka_unit_test(pages), cmocka_unit_test(options), cmocka_unit_test(query)};
  return cmocka_run_group_tests(tests, open_all, close_all);
}
