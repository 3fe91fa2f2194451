/* linear_launch.c: launches a kernel of linear attention, after that of its segments' states. */
#include "common/host.h"
#include "common/struct_size.h"
#include "luattn/linear.h"
#include "runtime/call/linear_args.h"
#include "runtime/device/launch_entry.h"
#include "runtime/launch/tma_descriptors.h"

static luattn_status take(const luattn_kernel *kernel, const luattn_linear_args *given, luattn_linear_args *used,
                          luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_linear_args, workspace);
  return struct_take(&rule, args_place(kernel), given, used, err);
}

static luattn_status start(const luattn_kernel *k, linear_call *l, cu_stream stream) {
  const image_manifest *m = &k->info;
  LuattnTensorMaps maps;
  TRY(descriptors_fill_linear(k->driver, k->descriptors, &l->c, &l->p, &maps));
  for (uint32_t i = 0; i < m->num_entries; ++i) {
    const bool of_states = m->entry[i].role == LUATTN_ROLE_LINEAR_STATES;
    const int64_t segments = l->p.segments.count - of_states;
    const unsigned grid[] = {(unsigned)(l->blocks * segments), 1, 1};
    TRY(launch_entry(k, i, &l->p, &maps, grid, stream, l->c.err));
  }
  return LUATTN_OK;
}

luattn_status luattn_linear_launch(const luattn_kernel *kernel, const luattn_linear_args *args, void *stream,
                                   luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_linear_args used;
  linear_call l;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  TRY(take(kernel, args, &used, err));
  TRY(linear_args_fill(kernel, &used, false, &l, err));
  TRY(linear_args_check(kernel, &l, stream));
  TRY(driver_push(kernel->driver, kernel->context, err));
  const luattn_status status = start(kernel, &l, stream);
  driver_pop(kernel->driver);
  return status;
}

luattn_status luattn_linear_launch_size(const luattn_kernel *kernel, const luattn_linear_args *args, size_t *size,
                                        luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_linear_args used;
  linear_call l;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  NEED(size);
  TRY(take(kernel, args, &used, err));
  TRY(linear_args_fill(kernel, &used, true, &l, err));
  *size = l.workspace;
  return LUATTN_OK;
}
