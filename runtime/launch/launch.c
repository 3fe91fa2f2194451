/* launch.c: launches a kernel: checks the call, prepares what its entries take, and starts them. */
#include "common/choices.h"
#include "common/host.h"
#include "runtime/call/args.h"
#include "runtime/call/order.h"
#include "runtime/call/packed.h"
#include "runtime/call/paged.h"
#include "runtime/call/random.h"
#include "runtime/call/sizes.h"
#include "runtime/call/tensor_rule.h"
#include "runtime/call/weights_array.h"
#include "runtime/device/launch_entry.h"
#include "runtime/launch/cpu_kernel.h"
#include "runtime/launch/launch_parts.h"
#include "runtime/launch/pass_launches.h"
#include "runtime/launch/tma_descriptors.h"
#include "runtime/parts/append.h"

/* Finds inputs whose gradients may be stored. */
static void find_alone(const image_manifest *m, LuattnParams *p) {
  if (m->pass == LUATTN_FORWARD) return;
  for (uint32_t i = 0; i < m->num_inputs; ++i) {
    const pairs_sizes s = sizes_of_pairs(m, i, p);
    if (pairs_alone(&m->input[i], &s)) p->inputs.alone |= 1u << i;
  }
}

/* Chooses the order of a forward kernel's q tiles; its grid is known to be within the limits. If the first of each head
 * come before all others (LuattnTileOrder), it is the order of the others, none of which is long. */
static void choose_order(const image_manifest *m, LuattnParams *p, const LuattnTileOrder *by_length) {
  const manifest_entry *main = sizes_entry(m, LUATTN_ROLE_FORWARD);
  if (main == NULL || m->family == LUATTN_SIMT || m->decode) return;
  const int64_t q_tiles = ceil_div(p->shape.q_len, main->tile_m),
                tiles = q_tiles * p->shape.heads * p->shape.batch;
  if (tiles == 0) return;
  const bool stays = m->family == LUATTN_SM90;
  const int64_t kv_bytes = (int64_t)sizes_elem(m) * (m->head_dim + m->head_dim_v);
  order_fill(p, q_tiles - by_length->first,
             stays ? order_groups_resident(p, q_tiles, m->has_mask && by_length->tiles == NULL, kv_bytes) : order_groups(tiles));
  p->order.tiles = (unsigned)tiles;
}

/* Sets the work counter of a launch. The workspace has room for one, which is zeroed and used only if none of
 * the kernel's own counters is free for this launch. */
static luattn_status place_counter(const luattn_kernel *k, const void *workspace, LuattnParams *p,
                                   cu_stream stream, luattn_error *err) {
  if (k->counters == NULL) return LUATTN_OK;
  unsigned *counter = counter_find(k->counters, k->driver, workspace, stream);
  if (counter == NULL)
    return launch_zero(k, p->scratch.tickets, sizeof *p->scratch.tickets, "the work counter", stream, err);
  p->scratch.tickets = counter;
  return LUATTN_OK;
}

/* Zeroes what kernels add to; also gradients that are stored, because skipped tiles store nothing. */
static luattn_status zero_sums(const luattn_kernel *k, const LuattnParams *p, void *sums, size_t size,
                               cu_stream stream, luattn_error *err) {
  const image_manifest *m = &k->info;
  const size_t real = args_real_size(m);
  TRY(launch_zero(k, sums, size, m->deterministic ? "sums" : "dq_acc", stream, err));
  for (uint32_t i = 0; i < m->num_inputs; ++i) {
    size_t count = 1;
    for (uint32_t a = 0; a < m->input[i].num_axes; ++a) count *= (size_t)p->inputs.input[i].size[a];
    TRY(launch_zero(k, p->inputs.input[i].grad, count * real, m->input[i].name, stream, err));
  }
  return launch_zero(k, p->inputs.scalar_grad, m->num_scalars * real, "scalar_grads", stream, err);
}

luattn_status luattn_workspace_size(const luattn_kernel *kernel, const luattn_args *args, size_t *size,
                                    luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  NEED(size);
  TRY(choices_take(args, args_place(kernel), &used, err));
  if (kernel->info.weights) weights_take(&used);
  if (kernel->cpu_run != NULL) return cpu_kernel_workspace(kernel, &used, size, err);
  const args_call c = args_call_of(kernel, &used, true, err);
  prepared p;
  TRY(args_fill(&c, &p.all));
  TRY(parts_take(&c, 0, &p));
  pass_room passes;
  TRY(pass_launches_take(kernel, &c, &p, &passes));
  *size = p.room.used;
  return LUATTN_OK;
}

/* Checks a call, and fills everything that its kernels take but descriptors; `weights` NULL: the kernel does not write them. */
static luattn_status prepare(const luattn_kernel *kernel, const args_call *c, const DLTensor *weights, prepared *p, pass_room *passes,
                             unsigned (*grid)[3], cu_stream stream) {
  LuattnCallParams *const all = &p->all;
  TRY(args_fill(c, all));
  TRY(packed_used(c, &all->used));
  TRY(random_fill(c, all));
  TRY(paged_table(c, &all->dense, &all->paging));
  if (weights != NULL) TRY(weights_fill(c, weights, &all->dense, &all->weights));
  TRY(parts_take(c, (uintptr_t)c->args->workspace, p));
  TRY(pass_launches_take(kernel, c, p, passes));
  TRY(parts_check_workspace(c, p->room.used));
  TRY(parts_grids(c, p, grid));
  TRY(weights != NULL ? weights_apart(c, weights, p->room.used) : args_apart(c, p->room.used));
  TRY(packed_check(kernel, c, &all->packed, &all->used, stream));
  TRY(paged_check(kernel, c, all, stream));
  TRY(parts_check(kernel, c, p, stream));
  choose_order(c->info, &all->dense, &all->tile_order);
  find_alone(c->info, &all->dense);
  return LUATTN_OK;
}

/* Starts what is prepared, in the order of the stream. The device's context is current. */
static luattn_status start(const luattn_kernel *kernel, const args_call *c, prepared *p, const pass_room *passes,
                           unsigned (*grid)[3], cu_stream stream) {
  const luattn_args *used = c->args;
  LuattnPagedMaps maps; /* other kernels take the first part */
  if (kernel->info.family == LUATTN_SM90)
    TRY(descriptors_fill(kernel->driver, kernel->descriptors, c, &p->all, &p->all.paging, &maps.usual));
  if (kernel->info.family == LUATTN_SM90 && kernel->info.paged)
    TRY(descriptors_fill_pages(kernel->driver, kernel->descriptors, c, &p->all.dense, &p->all.paging, &maps));
  TRY(append_first(kernel, used, stream, c->err));
  TRY(pass_launches_start(kernel, c, p, passes, stream));
  TRY(place_counter(kernel, used->workspace, &p->all.dense, stream, c->err));
  TRY(zero_sums(kernel, &p->all.dense, (char *)used->workspace + p->sums, p->sums_size, stream, c->err));
  for (uint32_t i = 0; i < kernel->info.num_entries; ++i)
    TRY(launch_entry(kernel, i, &p->all, &maps.usual, grid[i], stream, c->err));
  return LUATTN_OK;
}

/* Launches with arguments of this version. All checks come before the first operation on the stream. */
static luattn_status launch(const luattn_kernel *kernel, const luattn_args *used, const DLTensor *weights, void *stream,
                            luattn_error *err) {
  if (kernel->cpu_run != NULL) return cpu_kernel_launch(kernel, used, weights, stream, err);
  const args_call c = args_call_of(kernel, used, false, err);
  unsigned grid[MANIFEST_MAX_ENTRIES][3];
  prepared p;
  pass_room passes;
  TRY(prepare(kernel, &c, weights, &p, &passes, grid, stream));
  TRY(driver_push(kernel->driver, kernel->context, err));
  const luattn_status status = start(kernel, &c, &p, &passes, grid, stream);
  driver_pop(kernel->driver);
  return status;
}

luattn_status luattn_launch(const luattn_kernel *kernel, const luattn_args *args, void *stream,
                            luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  TRY(choices_take(args, args_place(kernel), &used, err));
  if (kernel->info.weights)
    return luattn_fail(err, LUATTN_INVALID,
                       "forward of '%s': the kernel is compiled with luattn_target.weights, which writes the weights of V and no o; give "
                       "it to luattn_launch_weights, or take another kernel",
                       kernel->info.spec_name);
  return launch(kernel, &used, NULL, stream, err);
}

luattn_status luattn_launch_weights(const luattn_kernel *kernel, const luattn_args *args, const DLTensor *weights, void *stream,
                                    luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  NEED(weights);
  TRY(choices_take(args, "weights", &used, err));
  if (!kernel->info.weights)
    return luattn_fail(err, LUATTN_INVALID,
                       "weights of '%s': the kernel writes none; compile one with luattn_target.weights = 1, or call luattn_weights",
                       kernel->info.spec_name);
  weights_take(&used);
  return launch(kernel, &used, weights, stream, err);
}
