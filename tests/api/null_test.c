/* null_test.c: passes NULL for each pointer parameter of each public function. The message names the
 * parameter, and nothing crashes; `err` may be NULL everywhere. */
#include <stdio.h>
#include <string.h>

#include "luattn/linear.h"
#include "luattn/merge.h"
#include "luattn/natten.h"
#include "luattn/pages.h"
#include "luattn/parallel.h"
#include "tests/api/setup.h"

static api_call c;
static luattn_engine *engine;
static luattn_driver *driver;
static luattn_kernel *kernel;
static luattn_image *image;
static luattn_pack *pack;
static luattn_timer *timer;
static const char pack_path[] = "/tmp/luattn_api_null.pack";

/* `call` uses `err` as its luattn_error. */
#define REFUSES(function, parameter, ...)                                                                    \
  do {                                                                                                       \
    luattn_error said, *err = &said;                                                                         \
    api_refused(function(__VA_ARGS__), LUATTN_INVALID, err, #function ": " parameter ": is NULL; give one"); \
    err = NULL;                                                                                              \
    assert_int_equal(function(__VA_ARGS__), LUATTN_INVALID);                                                 \
  } while (0)

static void compiler(void **state) {
  (void)state;
  luattn_spec *spec = NULL;
  luattn_target target = api_target();
  luattn_image *out = NULL;
  char *text = NULL;
  int number = 0;
  REFUSES(luattn_spec_load, "path", NULL, NULL, &spec, err);
  REFUSES(luattn_spec_load, "spec", "x.lua", NULL, NULL, err);
  REFUSES(luattn_spec_load_text, "name", NULL, "", 0, NULL, &spec, err);
  REFUSES(luattn_spec_load_text, "text", "x", NULL, 0, NULL, &spec, err);
  REFUSES(luattn_spec_load_text, "spec", "x", "", 0, NULL, NULL, err);
  REFUSES(luattn_compile, "spec", NULL, &target, &out, NULL, err);
  REFUSES(luattn_compile, "target", c.spec, NULL, &out, NULL, err);
  REFUSES(luattn_compile, "image", c.spec, &target, NULL, NULL, err);
  REFUSES(luattn_nvrtc_version, "major", NULL, NULL, &number, err);
  REFUSES(luattn_nvrtc_version, "minor", NULL, &number, NULL, err);
  REFUSES(luattn_emit, "spec", NULL, &target, "ir", &text, err);
  REFUSES(luattn_emit, "target", c.spec, NULL, "ir", &text, err);
  REFUSES(luattn_emit, "stage", c.spec, &target, NULL, &text, err);
  REFUSES(luattn_emit, "text", c.spec, &target, "ir", NULL, err);
  REFUSES(luattn_emit_source, "spec", NULL, &target, image, &text, err);
  REFUSES(luattn_emit_source, "target", c.spec, NULL, image, &text, err);
  REFUSES(luattn_emit_source, "image", c.spec, &target, NULL, &text, err);
  REFUSES(luattn_emit_source, "text", c.spec, &target, image, NULL, err);
}

static void cpu(void **state) {
  (void)state;
  unsigned char tile[64];
  int64_t kept;
  luattn_linear_args linear = {.struct_size = sizeof linear};
  REFUSES(luattn_cpu_linear_forward, "spec", NULL, &linear, err);
  REFUSES(luattn_cpu_linear_forward, "args", c.spec, NULL, err);
  REFUSES(luattn_cpu_linear_backward, "spec", NULL, &linear, err);
  REFUSES(luattn_cpu_linear_backward, "args", c.spec, NULL, err);
  REFUSES(luattn_cpu_forward, "spec", NULL, &c.args, err);
  REFUSES(luattn_cpu_forward, "args", c.spec, NULL, err);
  REFUSES(luattn_cpu_backward, "spec", NULL, &c.args, err);
  REFUSES(luattn_cpu_backward, "args", c.spec, NULL, err);
  REFUSES(luattn_cpu_forward_jvp, "spec", NULL, &c.args, err);
  REFUSES(luattn_cpu_forward_jvp, "args", c.spec, NULL, err);
  REFUSES(luattn_cpu_backward_jvp, "spec", NULL, &c.args, err);
  REFUSES(luattn_cpu_backward_jvp, "args", c.spec, NULL, err);
  REFUSES(luattn_cpu_weights, "spec", NULL, &c.args, c.args.o, err);
  REFUSES(luattn_cpu_weights, "args", c.spec, NULL, c.args.o, err);
  REFUSES(luattn_cpu_weights, "weights", c.spec, &c.args, NULL, err);
  REFUSES(luattn_cpu_forward_in, "spec", NULL, &c.args, LUATTN_F32, err);
  REFUSES(luattn_cpu_forward_in, "args", c.spec, NULL, LUATTN_F32, err);
  REFUSES(luattn_cpu_backward_in, "spec", NULL, &c.args, LUATTN_F32, err);
  REFUSES(luattn_cpu_backward_in, "args", c.spec, NULL, LUATTN_F32, err);
  REFUSES(luattn_mask_tiles, "spec", NULL, &c.args, 0, 0, 8, 8, tile, err);
  REFUSES(luattn_mask_tiles, "args", c.spec, NULL, 0, 0, 8, 8, tile, err);
  REFUSES(luattn_mask_tiles, "out", c.spec, &c.args, 0, 0, 8, 8, NULL, err);
  char *drawn;
  const luattn_mask_picture picture = {
      .title = "t", .classes = tile, .q_len = 8, .kv_len = 8, .tile_m = 8, .tile_n = 8};
  REFUSES(luattn_mask_svg, "picture", NULL, &drawn, err);
  REFUSES(luattn_mask_svg, "out", &picture, NULL, err);
  luattn_mask_places places = {.struct_size = sizeof places};
  const char *const names[] = {"y", "x"};
  REFUSES(luattn_mask_places_of, "spec", NULL, &c.args, &places, err);
  REFUSES(luattn_mask_places_of, "args", c.spec, NULL, &places, err);
  REFUSES(luattn_mask_places_of, "places", c.spec, &c.args, NULL, err);
  REFUSES(luattn_mask_places_svg, "places", NULL, names, "t", &drawn, err);
  REFUSES(luattn_mask_places_svg, "names", &places, NULL, "t", &drawn, err);
  REFUSES(luattn_mask_places_svg, "title", &places, names, NULL, &drawn, err);
  REFUSES(luattn_mask_places_svg, "out", &places, names, "t", NULL, err);
  luattn_mask_counts counts = {.struct_size = sizeof counts};
  REFUSES(luattn_mask_survey, "spec", NULL, NULL, &c.args, 8, 8, &counts, err);
  REFUSES(luattn_mask_survey, "args", c.spec, NULL, NULL, 8, 8, &counts, err);
  REFUSES(luattn_mask_survey, "out", c.spec, NULL, &c.args, 8, 8, NULL, err);
  REFUSES(luattn_mask_count, "spec", NULL, &c.args, &kept, err);
  REFUSES(luattn_mask_count, "args", c.spec, NULL, &kept, err);
  REFUSES(luattn_mask_count, "kept", c.spec, &c.args, NULL, err);
}

static void tuning(void **state) {
  (void)state;
  const luattn_target target = api_target();
  const luattn_problem problem = {.batch = 1, .heads = 1, .heads_kv = 1, .q_len = 8, .kv_len = 8};
  luattn_memory_estimate estimate;
  luattn_tiles tiles;
  luattn_box_pair boxes;
  int m, n;
  REFUSES(luattn_plan_tiles, "spec", NULL, &target, &m, &n, err);
  REFUSES(luattn_plan_tiles, "target", c.spec, NULL, &m, &n, err);
  REFUSES(luattn_plan_tiles, "tile_m", c.spec, &target, NULL, &n, err);
  REFUSES(luattn_plan_tiles, "tile_n", c.spec, &target, &m, NULL, err);
  REFUSES(luattn_estimate_memory, "spec", NULL, &target, &problem, &estimate, err);
  REFUSES(luattn_estimate_memory, "target", c.spec, NULL, &problem, &estimate, err);
  REFUSES(luattn_estimate_memory, "problem", c.spec, &target, NULL, &estimate, err);
  REFUSES(luattn_estimate_memory, "estimate", c.spec, &target, &problem, NULL, err);
  REFUSES(luattn_plan_candidates, "spec", NULL, &target, &tiles, 1, &n, err);
  REFUSES(luattn_plan_candidates, "target", c.spec, NULL, &tiles, 1, &n, err);
  REFUSES(luattn_plan_candidates, "out", c.spec, &target, NULL, 1, &n, err);
  REFUSES(luattn_plan_candidates, "count", c.spec, &target, &tiles, 1, NULL, err);
  REFUSES(luattn_tuned_store, "spec", NULL, &target, 1, NULL, 0, err);
  REFUSES(luattn_tuned_store, "target", c.spec, NULL, 1, NULL, 0, err);
  REFUSES(luattn_plan_box_pairs, "spec", NULL, &target, &c.args, &boxes, 1, &n, err);
  REFUSES(luattn_plan_box_pairs, "target", c.spec, NULL, &c.args, &boxes, 1, &n, err);
  REFUSES(luattn_plan_box_pairs, "args", c.spec, &target, NULL, &boxes, 1, &n, err);
  REFUSES(luattn_plan_box_pairs, "out", c.spec, &target, &c.args, NULL, 1, &n, err);
  REFUSES(luattn_plan_box_pairs, "count", c.spec, &target, &c.args, &boxes, 1, NULL, err);
  REFUSES(luattn_tuned_boxes_store, "spec", NULL, &target, &c.args, 1, NULL, 0, err);
  REFUSES(luattn_tuned_boxes_store, "target", c.spec, NULL, &c.args, 1, NULL, 0, err);
  REFUSES(luattn_tuned_boxes_store, "args", c.spec, &target, NULL, 1, NULL, 0, err);
}

static void images_and_packs(void **state) {
  (void)state;
  luattn_image *out = NULL;
  luattn_pack *opened = NULL;
  luattn_kernel *loaded = NULL;
  luattn_kernel_description description = {.struct_size = sizeof description};
  const luattn_pack_query query = {.struct_size = sizeof query, .dtype = LUATTN_F32, .head_dim = API_DIM, .arch = 90};
  const luattn_pack_item item = {.kind = LUATTN_PACK_IMAGE, .image = image};
  size_t size, index;
  void *bytes;
  const void *code = luattn_image_cubin(image, &size);
  REFUSES(luattn_image_describe, "image", NULL, &description, err);
  REFUSES(luattn_image_describe, "description", image, NULL, err);
  REFUSES(luattn_image_open, "bytes", NULL, 0, &out, err);
  REFUSES(luattn_image_open, "image", code, size, NULL, err);
  REFUSES(luattn_pack_open, "path", NULL, &opened, err);
  REFUSES(luattn_pack_open, "pack", pack_path, NULL, err);
  REFUSES(luattn_pack_open_bytes, "name", NULL, code, size, &opened, err);
  REFUSES(luattn_pack_open_bytes, "bytes", "x", NULL, size, &opened, err);
  REFUSES(luattn_pack_open_bytes, "pack", "x", code, size, NULL, err);
  REFUSES(luattn_pack_image, "pack", NULL, 0, &out, err);
  REFUSES(luattn_pack_image, "image", pack, 0, NULL, err);
  REFUSES(luattn_pack_read, "pack", NULL, 0, &bytes, &size, err);
  REFUSES(luattn_pack_read, "bytes", pack, 0, NULL, &size, err);
  REFUSES(luattn_pack_read, "size", pack, 0, &bytes, NULL, err);
  REFUSES(luattn_pack_find, "pack", NULL, &query, &index, err);
  REFUSES(luattn_pack_find, "query", pack, NULL, &index, err);
  REFUSES(luattn_pack_find, "index", pack, &query, NULL, err);
  REFUSES(luattn_pack_kernel, "pack", NULL, driver, 0, &query, &loaded, &index, err);
  REFUSES(luattn_pack_kernel, "driver", pack, NULL, 0, &query, &loaded, &index, err);
  REFUSES(luattn_pack_kernel, "query", pack, driver, 0, NULL, &loaded, &index, err);
  REFUSES(luattn_pack_kernel, "kernel", pack, driver, 0, &query, NULL, &index, err);
  REFUSES(luattn_pack_write, "path", NULL, "", &item, 1, err);
  REFUSES(luattn_pack_write, "items", pack_path, "", NULL, 1, err);
}

static void devices(void **state) {
  (void)state;
  luattn_driver *opened = NULL;
  luattn_device_info info;
  luattn_timer *made = NULL;
  void *memory = NULL;
  char byte = 0;
  double ms;
  int number;
  REFUSES(luattn_driver_open, "driver", NULL, err);
  REFUSES(luattn_driver_version, "driver", NULL, &number, err);
  REFUSES(luattn_driver_version, "version", driver, NULL, err);
  REFUSES(luattn_device_count, "driver", NULL, &number, err);
  REFUSES(luattn_device_count, "count", driver, NULL, err);
  REFUSES(luattn_device_get_info, "driver", NULL, 0, &info, err);
  REFUSES(luattn_device_get_info, "info", driver, 0, NULL, err);
  REFUSES(luattn_device_alloc, "driver", NULL, 0, 8, &memory, err);
  REFUSES(luattn_device_alloc, "ptr", driver, 0, 8, NULL, err);
  REFUSES(luattn_device_free, "driver", NULL, 0, &byte, err);
  REFUSES(luattn_device_fill, "driver", NULL, 0, &byte, 0, 1, NULL, err);
  REFUSES(luattn_device_fill, "ptr", driver, 0, NULL, 0, 1, NULL, err);
  REFUSES(luattn_copy_to_device, "driver", NULL, 0, &byte, &byte, 1, err);
  REFUSES(luattn_copy_to_device, "dst", driver, 0, NULL, &byte, 1, err);
  REFUSES(luattn_copy_to_device, "src", driver, 0, &byte, NULL, 1, err);
  REFUSES(luattn_copy_to_host, "driver", NULL, 0, &byte, &byte, 1, err);
  REFUSES(luattn_copy_to_host, "dst", driver, 0, NULL, &byte, 1, err);
  REFUSES(luattn_copy_to_host, "src", driver, 0, &byte, NULL, 1, err);
  REFUSES(luattn_synchronize, "driver", NULL, 0, NULL, err);
  REFUSES(luattn_timer_open, "driver", NULL, 0, &made, err);
  REFUSES(luattn_timer_open, "timer", driver, 0, NULL, err);
  REFUSES(luattn_timer_start, "timer", NULL, NULL, err);
  REFUSES(luattn_timer_stop, "timer", NULL, NULL, err);
  REFUSES(luattn_timer_read, "timer", NULL, &ms, err);
  REFUSES(luattn_timer_read, "ms", timer, NULL, err);
  (void)opened;
}

static void tangents(void **state) {
  (void)state;
  size_t size;
  REFUSES(luattn_forward_jvp, "engine", NULL, c.spec, &c.args, NULL, err);
  REFUSES(luattn_forward_jvp, "spec", engine, NULL, &c.args, NULL, err);
  REFUSES(luattn_forward_jvp, "args", engine, c.spec, NULL, NULL, err);
  REFUSES(luattn_backward_jvp, "engine", NULL, c.spec, &c.args, NULL, err);
  REFUSES(luattn_backward_jvp, "spec", engine, NULL, &c.args, NULL, err);
  REFUSES(luattn_backward_jvp, "args", engine, c.spec, NULL, NULL, err);
  REFUSES(luattn_backward_jvp_workspace_size, "engine", NULL, c.spec, &c.args, &size, err);
  REFUSES(luattn_backward_jvp_workspace_size, "spec", engine, NULL, &c.args, &size, err);
  REFUSES(luattn_backward_jvp_workspace_size, "args", engine, c.spec, NULL, &size, err);
  REFUSES(luattn_backward_jvp_workspace_size, "size", engine, c.spec, &c.args, NULL, err);
}

static void parallel_engine(void **state) {
  (void)state;
  size_t size = 0;
  const luattn_parallel_call call = {.struct_size = sizeof call};
  REFUSES(luattn_parallel_workspace_size, "engine", NULL, c.spec, LUATTN_FORWARD, &c.args, &call, &size, err);
  REFUSES(luattn_parallel_workspace_size, "size", engine, c.spec, LUATTN_FORWARD, &c.args, &call, NULL, err);
  REFUSES(luattn_parallel_forward, "engine", NULL, c.spec, &c.args, &call, NULL, err);
  REFUSES(luattn_parallel_forward, "spec", engine, NULL, &c.args, &call, NULL, err);
  REFUSES(luattn_parallel_forward, "args", engine, c.spec, NULL, &call, NULL, err);
  REFUSES(luattn_parallel_forward, "call", engine, c.spec, &c.args, NULL, NULL, err);
  REFUSES(luattn_parallel_backward, "engine", NULL, c.spec, &c.args, &call, NULL, err);
  REFUSES(luattn_parallel_backward, "call", engine, c.spec, &c.args, NULL, NULL, err);
}

static void linear_engine(void **state) {
  (void)state;
  size_t size = 0;
  luattn_linear_args linear = {.struct_size = sizeof linear};
  REFUSES(luattn_linear_forward, "engine", NULL, c.spec, &linear, NULL, err);
  REFUSES(luattn_linear_forward, "spec", engine, NULL, &linear, NULL, err);
  REFUSES(luattn_linear_forward, "args", engine, c.spec, NULL, NULL, err);
  REFUSES(luattn_linear_backward, "engine", NULL, c.spec, &linear, NULL, err);
  REFUSES(luattn_linear_backward, "spec", engine, NULL, &linear, NULL, err);
  REFUSES(luattn_linear_backward, "args", engine, c.spec, NULL, NULL, err);
  REFUSES(luattn_linear_workspace_size, "engine", NULL, c.spec, &linear, &size, err);
  REFUSES(luattn_linear_workspace_size, "size", engine, c.spec, &linear, NULL, err);
  REFUSES(luattn_linear_kept_size, "engine", NULL, c.spec, &linear, &size, err);
  REFUSES(luattn_linear_kept_size, "spec", engine, NULL, &linear, &size, err);
  REFUSES(luattn_linear_kept_size, "size", engine, c.spec, &linear, NULL, err);
  REFUSES(luattn_linear_backward_workspace_size, "engine", NULL, c.spec, &linear, &size, err);
  REFUSES(luattn_linear_backward_workspace_size, "size", engine, c.spec, &linear, NULL, err);
}

static void launches(void **state) {
  (void)state;
  luattn_kernel *loaded = NULL;
  const luattn_kernel *found = NULL;
  const char *plan = NULL;
  size_t size;
  const luattn_request request = {.spec = c.spec, .dtype = LUATTN_F32, .head_dim = API_DIM};
  REFUSES(luattn_kernel_load, "driver", NULL, 0, image, &loaded, err);
  REFUSES(luattn_kernel_load, "image", driver, 0, NULL, &loaded, err);
  REFUSES(luattn_kernel_load, "kernel", driver, 0, image, NULL, err);
  luattn_kernel_description description = {.struct_size = sizeof description};
  REFUSES(luattn_kernel_describe, "kernel", NULL, &description, err);
  REFUSES(luattn_kernel_describe, "description", kernel, NULL, err);
  REFUSES(luattn_workspace_size, "kernel", NULL, &c.args, &size, err);
  REFUSES(luattn_workspace_size, "args", kernel, NULL, &size, err);
  REFUSES(luattn_workspace_size, "size", kernel, &c.args, NULL, err);
  REFUSES(luattn_launch, "kernel", NULL, &c.args, NULL, err);
  REFUSES(luattn_launch, "args", kernel, NULL, NULL, err);
  REFUSES(luattn_launch_jvp, "kernel", NULL, &c.args, NULL, err);
  REFUSES(luattn_launch_jvp, "args", kernel, NULL, NULL, err);
  REFUSES(luattn_launch_weights, "kernel", NULL, &c.args, c.args.o, NULL, err);
  REFUSES(luattn_launch_weights, "args", kernel, NULL, c.args.o, NULL, err);
  REFUSES(luattn_launch_weights, "weights", kernel, &c.args, NULL, NULL, err);
  REFUSES(luattn_engine_open, "engine", NULL, NULL, err);
  REFUSES(luattn_engine_kernel, "engine", NULL, c.spec, LUATTN_FORWARD, &c.args, &found, err);
  REFUSES(luattn_engine_kernel, "spec", engine, NULL, LUATTN_FORWARD, &c.args, &found, err);
  REFUSES(luattn_engine_kernel, "args", engine, c.spec, LUATTN_FORWARD, NULL, &found, err);
  REFUSES(luattn_engine_kernel, "kernel", engine, c.spec, LUATTN_FORWARD, &c.args, NULL, err);
  REFUSES(luattn_engine_plan, "engine", NULL, c.spec, LUATTN_FORWARD, &c.args, &plan, err);
  REFUSES(luattn_engine_plan, "spec", engine, NULL, LUATTN_FORWARD, &c.args, &plan, err);
  REFUSES(luattn_engine_plan, "args", engine, c.spec, LUATTN_FORWARD, NULL, &plan, err);
  REFUSES(luattn_engine_plan, "plan", engine, c.spec, LUATTN_FORWARD, &c.args, NULL, err);
  REFUSES(luattn_engine_workspace_size, "engine", NULL, c.spec, LUATTN_FORWARD, &c.args, &size, err);
  REFUSES(luattn_engine_workspace_size, "spec", engine, NULL, LUATTN_FORWARD, &c.args, &size, err);
  REFUSES(luattn_engine_workspace_size, "args", engine, c.spec, LUATTN_FORWARD, NULL, &size, err);
  REFUSES(luattn_engine_workspace_size, "size", engine, c.spec, LUATTN_FORWARD, &c.args, NULL, err);
  REFUSES(luattn_forward, "engine", NULL, c.spec, &c.args, NULL, err);
  REFUSES(luattn_forward, "spec", engine, NULL, &c.args, NULL, err);
  REFUSES(luattn_forward, "args", engine, c.spec, NULL, NULL, err);
  REFUSES(luattn_prepare_calls, "engine", NULL, NULL, 0, 1, NULL, NULL, err);
  REFUSES(luattn_prepare_calls, "calls", engine, NULL, 1, 1, NULL, NULL, err);
  REFUSES(luattn_weights, "engine", NULL, c.spec, &c.args, c.args.o, NULL, err);
  REFUSES(luattn_weights, "spec", engine, NULL, &c.args, c.args.o, NULL, err);
  REFUSES(luattn_weights, "args", engine, c.spec, NULL, c.args.o, NULL, err);
  REFUSES(luattn_weights, "weights", engine, c.spec, &c.args, NULL, NULL, err);
  REFUSES(luattn_weights_workspace_size, "engine", NULL, c.spec, &c.args, &size, err);
  REFUSES(luattn_weights_workspace_size, "spec", engine, NULL, &c.args, &size, err);
  REFUSES(luattn_weights_workspace_size, "args", engine, c.spec, NULL, &size, err);
  REFUSES(luattn_weights_workspace_size, "size", engine, c.spec, &c.args, NULL, err);
  REFUSES(luattn_backward, "engine", NULL, c.spec, &c.args, NULL, err);
  REFUSES(luattn_backward, "spec", engine, NULL, &c.args, NULL, err);
  REFUSES(luattn_backward, "args", engine, c.spec, NULL, NULL, err);
  REFUSES(luattn_prepare, "engine", NULL, &request, 1, 1, NULL, NULL, err);
  REFUSES(luattn_prepare, "requests", engine, NULL, 1, 1, NULL, NULL, err);
  REFUSES(luattn_engine_forget, "engine", NULL, c.spec, err);
  REFUSES(luattn_engine_forget, "spec", engine, NULL, err);
}

static void merges_and_pages(void **state) {
  (void)state;
  REFUSES(luattn_spec_merges, "spec", NULL, err);
  luattn_spec *parts;
  REFUSES(luattn_spec_parts, "spec", NULL, &parts, err);
  REFUSES(luattn_spec_parts, "parts", c.spec, NULL, err);
  const luattn_merge_args merge = {.struct_size = sizeof merge};
  REFUSES(luattn_merge, "engine", NULL, &merge, NULL, err);
  REFUSES(luattn_merge, "args", engine, NULL, NULL, err);
  REFUSES(luattn_merge_backward, "engine", NULL, &merge, NULL, err);
  REFUSES(luattn_merge_backward, "args", engine, NULL, NULL, err);
  const luattn_na_qk_args qk = {.struct_size = sizeof qk};
  const luattn_na_av_args av = {.struct_size = sizeof av};
  const luattn_na_args na = {.struct_size = sizeof na};
  size_t na_size;
  REFUSES(luattn_na_workspace_size, "engine", NULL, LUATTN_FORWARD, &na, &na_size, err);
  REFUSES(luattn_na_workspace_size, "args", engine, LUATTN_FORWARD, NULL, &na_size, err);
  REFUSES(luattn_na_workspace_size, "size", engine, LUATTN_FORWARD, &na, NULL, err);
  REFUSES(luattn_na_forward, "engine", NULL, &na, NULL, err);
  REFUSES(luattn_na_forward, "args", engine, NULL, NULL, err);
  REFUSES(luattn_na_backward, "engine", NULL, &na, NULL, err);
  REFUSES(luattn_na_backward, "args", engine, NULL, NULL, err);
  REFUSES(luattn_na_qk, "engine", NULL, &qk, NULL, err);
  REFUSES(luattn_na_qk, "args", engine, NULL, NULL, err);
  REFUSES(luattn_na_qk_backward, "engine", NULL, &qk, NULL, err);
  REFUSES(luattn_na_qk_backward, "args", engine, NULL, NULL, err);
  REFUSES(luattn_na_av, "engine", NULL, &av, NULL, err);
  REFUSES(luattn_na_av, "args", engine, NULL, NULL, err);
  REFUSES(luattn_na_av_backward, "engine", NULL, &av, NULL, err);
  REFUSES(luattn_na_av_backward, "args", engine, NULL, NULL, err);
  const luattn_page_lists pages = {.struct_size = sizeof pages};
  const DLTensor table = {.data = NULL};
  REFUSES(luattn_page_table, "engine", NULL, &pages, &table, &table, NULL, err);
  REFUSES(luattn_page_table, "lists", engine, NULL, &table, &table, NULL, err);
  REFUSES(luattn_page_table, "block_table", engine, &pages, NULL, &table, NULL, err);
  REFUSES(luattn_page_table, "seqused_k", engine, &pages, &table, NULL, NULL, err);
}

/* Functions without a status return an empty result for NULL, and those that free or close ignore NULL. */
static void without_status(void **state) {
  (void)state;
  luattn_spec_info info;
  luattn_pack_info of_pack;
  size_t size = 7;
  memset(&info, 0xff, sizeof info);
  memset(&of_pack, 0xff, sizeof of_pack);
  luattn_spec_get_info(NULL, &info);
  assert_null(info.name);
  assert_int_equal(info.num_inputs, 0);
  luattn_spec_get_info(c.spec, NULL);
  assert_int_equal(luattn_spec_wants(NULL), 0);
  assert_int_equal(luattn_spec_parameter(NULL, 0), 0);
  assert_int_equal(luattn_spec_mask_differs(NULL), 0);
  luattn_pack_get_info(NULL, &of_pack);
  assert_int_equal(of_pack.num_entries, 0);
  luattn_pack_get_info(pack, NULL);
  assert_null(luattn_pack_get_entry(NULL, 0));
  assert_null(luattn_image_bytes(NULL, &size));
  assert_int_equal(size, 0);
  assert_non_null(luattn_image_bytes(image, NULL));
  assert_null(luattn_image_cubin(NULL, NULL));
  assert_null(luattn_engine_driver(NULL));
  luattn_spec_free(NULL);
  luattn_text_free(NULL);
  luattn_image_free(NULL);
  luattn_pack_close(NULL);
  luattn_pack_free(NULL);
  luattn_kernel_unload(NULL);
  luattn_timer_close(NULL);
  luattn_engine_close(NULL);
  luattn_driver_close(NULL);
}

/* Parameters that may be NULL: an allocator, a report, options, a progress callback, a stream, memory to
 * free. */
static void what_may_be_null(void **state) {
  (void)state;
  luattn_error err;
  api_ok(luattn_device_free(driver, 0, NULL, &err), &err);
  api_ok(luattn_device_free(NULL, 0, NULL, &err), &err);
  api_ok(luattn_prepare(engine, NULL, 0, 1, NULL, NULL, &err), &err);
  api_ok(luattn_forward(engine, c.spec, &c.args, NULL, &err), &err);
  assert_int_equal(luattn_forward(engine, c.spec, &c.args, NULL, NULL), LUATTN_OK);
  assert_int_equal(luattn_backward(engine, c.spec, &c.args, NULL, NULL), LUATTN_OK);
}

static int open_all(void **state) {
  (void)state;
  luattn_error err;
  const luattn_target target = api_target();
  api_open(&c, kDLCUDA);
  engine = api_engine(NULL);
  driver = luattn_engine_driver(engine);
  api_ok(luattn_compile(c.spec, &target, &image, NULL, &err), &err);
  api_ok(luattn_kernel_load(driver, 0, image, &kernel, &err), &err);
  api_ok(luattn_timer_open(driver, 0, &timer, &err), &err);
  const luattn_pack_item item = {.kind = LUATTN_PACK_IMAGE, .image = image};
  api_ok(luattn_pack_write(pack_path, NULL, &item, 1, &err), &err);
  api_ok(luattn_pack_open(pack_path, &pack, &err), &err);
  return 0;
}

static int close_all(void **state) {
  (void)state;
  luattn_pack_close(pack);
  luattn_timer_close(timer);
  luattn_kernel_unload(kernel);
  luattn_image_free(image);
  luattn_engine_close(engine);
  api_close(&c);
  return remove(pack_path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(compiler),        cmocka_unit_test(linear_engine),
      cmocka_unit_test(parallel_engine), cmocka_unit_test(cpu),
      cmocka_unit_test(tuning),          cmocka_unit_test(images_and_packs),
      cmocka_unit_test(devices),         cmocka_unit_test(tangents),
      cmocka_unit_test(launches),        cmocka_unit_test(merges_and_pages),
      cmocka_unit_test(without_status),  cmocka_unit_test(what_may_be_null),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
