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

/* Blocks of each role's entries; 0: not launched. */
static int64_t all_segments(const linear_call *l) { return l->blocks * l->p.segments.count; }
static int64_t but_last_segments(const linear_call *l) { return l->blocks * (l->p.segments.count - 1); }

static int64_t (*const blocks_of[LUATTN_ROLE_COUNT])(const linear_call *) = {
    [LUATTN_ROLE_LINEAR_STATES] = but_last_segments,
    [LUATTN_ROLE_LINEAR] = all_segments,
};

/* Of kernels that walk tokens: (entries * value heads, blocks of value channels). */
static luattn_status start_walk(const luattn_kernel *k, linear_call *l, cu_stream stream) {
  const manifest_linear *of = &k->info.linear_facts[0];
  const unsigned values = (unsigned)l->warps * of->v_warp;
  const unsigned grid[] = {(unsigned)(l->p.entries * (int64_t)l->p.heads_v),
                           of->normalizes ? 1 : (k->info.head_dim_v + values - 1) / values, 1};
  return launch_threads(k, 0, 32 * (unsigned)l->warps, &l->p, grid, stream, l->c.err);
}

static luattn_status start(const luattn_kernel *k, linear_call *l, cu_stream stream) {
  const image_manifest *m = &k->info;
  if (l->warps > 0) return start_walk(k, l, stream);
  LuattnTensorMaps maps;
  const bool by_tma = m->family == LUATTN_SM90;
  if (by_tma) TRY(descriptors_fill_linear(k->driver, k->descriptors, &l->c, &l->p, &maps));
  for (uint32_t i = 0; i < m->num_entries; ++i) {
    const unsigned grid[] = {(unsigned)blocks_of[m->entry[i].role](l), 1, 1};
    TRY(launch_entry(k, i, &l->p, by_tma ? &maps : NULL, grid, stream, l->c.err));
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
