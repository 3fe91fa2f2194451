#include "runtime/launch/launch.h"

#include <string.h>

#include "common/choices.h"
#include "common/host.h"
#include "runtime/parts/batch_masks.h"
#include "runtime/launch/launch_grids.h"
#include "runtime/launch/order.h"
#include "runtime/call/packed.h"
#include "runtime/call/paged.h"
#include "runtime/call/random.h"
#include "runtime/call/sizes.h"
#include "runtime/parts/split_list.h"
#include "runtime/parts/tile_table.h"
#include "runtime/call/weights_array.h"

static void find_alone(const image_manifest *m, LuattnParams *p) {
  p->inputs.alone = 0;
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

static luattn_status zero(const luattn_kernel *k, void *ptr, size_t size, const char *what, cu_stream stream,
                          luattn_error *err) {
  if (ptr == NULL || size == 0) return LUATTN_OK;
  const cu_result result = k->driver->fill_words((cu_pointer)(uintptr_t)ptr, 0, size / 4, stream);
  if (result == 0) return LUATTN_OK;
  return driver_fail(k->driver, err, result, "cuMemsetD32Async", "zeroing %s (%zu bytes at %p)", what, size,
                     ptr);
}

/* Sets the work counter of a launch. The workspace has room for one, which is zeroed and used only if none of
 * the kernel's own counters is free for this launch. */
static luattn_status place_counter(const luattn_kernel *k, const void *workspace, LuattnParams *p,
                                   cu_stream stream, luattn_error *err) {
  if (k->counters == NULL) return LUATTN_OK;
  unsigned *counter = counter_find(k->counters, k->driver, workspace, stream);
  if (counter == NULL)
    return zero(k, p->scratch.tickets, sizeof *p->scratch.tickets, "the work counter", stream, err);
  p->scratch.tickets = counter;
  return LUATTN_OK;
}

/* Zeroes what kernels add to; also gradients that are stored, because skipped tiles store nothing. */
static luattn_status zero_sums(const luattn_kernel *k, const LuattnParams *p, void *sums, size_t size,
                               cu_stream stream, luattn_error *err) {
  const image_manifest *m = &k->info;
  const size_t real = args_real_size(m);
  TRY(zero(k, sums, size, m->deterministic ? "sums" : "dq_acc", stream, err));
  for (uint32_t i = 0; i < m->num_inputs; ++i) {
    size_t count = 1;
    for (uint32_t a = 0; a < m->input[i].num_axes; ++a) count *= (size_t)p->inputs.input[i].size[a];
    TRY(zero(k, p->inputs.input[i].grad, count * real, m->input[i].name, stream, err));
  }
  return zero(k, p->inputs.scalar_grad, m->num_scalars * real, "scalar_grads", stream, err);
}

/* With libcuda of CUDA 11.8 and newer, cuLaunchKernelEx takes 0.1 us less. */
static cu_result launch_entry(const luattn_driver *d, cu_function f, const manifest_entry *e,
                              const unsigned grid[3], cu_stream stream, void **pointers) {
  const cu_launch how = {{grid[0], grid[1], grid[2]}, {e->threads, 1, 1}, e->shared_bytes, stream, NULL, 0};
  if (d->launch_ex != NULL) return d->launch_ex(&how, f, pointers, NULL);
  return d->launch(f, grid[0], grid[1], grid[2], e->threads, 1, 1, e->shared_bytes, stream, pointers, NULL);
}

static luattn_status launch_one(const luattn_kernel *k, uint32_t i, void *p, LuattnTensorMaps *maps, const unsigned g[3],
                                cu_stream stream, luattn_error *err) {
  void *pointers[] = {p, maps}; /* an entry takes a prefix of the first, and may lack the second */
  const manifest_entry *e = &k->info.entry[i];
  if (g[0] == 0 || g[1] == 0 || g[2] == 0) return LUATTN_OK;
  const cu_result result = launch_entry(k->driver, k->function[i], e, g, stream, pointers);
  if (result == 0) return LUATTN_OK;
  return driver_fail(k->driver, err, result, k->driver->launch_ex != NULL ? "cuLaunchKernelEx" : "cuLaunchKernel",
                     "%s of '%s', grid %u x %u x %u, %u threads, %u bytes of shared memory", e->name,
                     k->info.spec_name, g[0], g[1], g[2], (unsigned)e->threads, (unsigned)e->shared_bytes);
}

luattn_status launch_tile_bits(const luattn_kernel *kernel, const args_call *c, LuattnCallParams *params,
                               cu_stream stream) {
  const image_manifest *m = &kernel->info;
  const workspace_need makes = {.has_tile_bits = true, .has_tile_order = params->tile_order.tiles != NULL};
  LuattnTensorMaps maps;
  unsigned grid[MANIFEST_MAX_ENTRIES][3];
  memset(&maps, 0, sizeof maps);
  for (int launches = 0; launches < 2; ++launches) /* all checks come first */
    for (uint32_t i = 0; i < m->num_entries; ++i) {
      const manifest_entry *e = &m->entry[i];
      if (e->role != LUATTN_ROLE_STATS && e->role != LUATTN_ROLE_TILE_BITS && e->role != LUATTN_ROLE_TILE_ORDER) continue;
      if (launches)
        TRY(launch_one(kernel, i, params, &maps, grid[i], stream, c->err));
      else
        TRY(grid_of_entry(c, e, params, &makes, grid[i]));
    }
  return LUATTN_OK;
}

static luattn_status launch_entries(const luattn_kernel *k, LuattnCallParams *p, LuattnTensorMaps *maps,
                                    unsigned (*grid)[3], cu_stream stream, luattn_error *err) {
  for (uint32_t i = 0; i < k->info.num_entries; ++i) TRY(launch_one(k, i, p, maps, grid[i], stream, err));
  return LUATTN_OK;
}

luattn_status launch_tile_table(const luattn_kernel *kernel, const args_call *c, LuattnCallParams *params, cu_stream stream) {
  const workspace_need makes = {.makes_table = true};
  for (uint32_t i = 0; i < kernel->info.num_entries; ++i) {
    const manifest_entry *e = &kernel->info.entry[i];
    unsigned grid[3];
    if (e->role != LUATTN_ROLE_TILE_TABLE) continue;
    TRY(grid_of_entry(c, e, params, &makes, grid));
    return launch_one(kernel, i, params, NULL, grid, stream, c->err);
  }
  return luattn_fail(c->err, LUATTN_INTERNAL, "%s: has no luattn_tile_table", kernel->info.spec_name);
}

luattn_status launch_split_list(const luattn_kernel *kernel, const args_call *c, LuattnCallParams *params, cu_stream stream) {
  static const unsigned grid[] = {1, 1, 1};
  for (uint32_t i = 0; i < kernel->info.num_entries; ++i)
    if (kernel->info.entry[i].role == LUATTN_ROLE_SPLIT_LIST) return launch_one(kernel, i, params, NULL, grid, stream, c->err);
  return luattn_fail(c->err, LUATTN_INTERNAL, "%s: has no luattn_split_list", kernel->info.spec_name);
}

luattn_status launch_block_table(const luattn_kernel *kernel, const args_call *c, LuattnBlockTable *params,
                                 const int64_t size[3], cu_stream stream) {
  for (uint32_t i = 0; i < kernel->info.num_entries; ++i) {
    const manifest_entry *e = &kernel->info.entry[i];
    if (e->role != LUATTN_ROLE_BLOCK_TABLE) continue;
    TRY(grid_check(c, e, size));
    const unsigned grid[] = {(unsigned)size[0], (unsigned)size[1], (unsigned)size[2]};
    return launch_one(kernel, i, params, NULL, grid, stream, c->err);
  }
  return args_fail(c, "luattn_block_table: its mask reads no table of bytes along positions; take a kernel of a spec with an "
                      "input of dtype u8 and four axes, which its mask indexes with q // n and kv // m");
}

luattn_status launch_append(const luattn_kernel *kernel, const args_call *c, LuattnCallParams *params, cu_stream stream) {
  const image_manifest *m = c->info;
  const int64_t widest = m->head_dim > m->head_dim_v ? m->head_dim : m->head_dim_v;
  /* Half precision is copied 16 bytes at a time; other tensors may have to be by elements. */
  const bool has_mods = m->append_mods[0].key_mod || m->append_mods[0].value_mod;
  LuattnAppend *const append = &params->append;
  const int64_t vectors = sizes_elem(m) == 2 ? (widest + 7) / 8 : widest;
  for (uint32_t i = 0; i < m->num_entries; ++i) {
    const manifest_entry *e = &m->entry[i];
    if (e->role != LUATTN_ROLE_APPEND) continue;
    const int64_t groups = ceil_div(append->heads_kv.d, e->tile_n > 0 && e->tile_n < e->tile_m ? e->tile_n : 1),
                  size[] = {ceil_div(append->total * groups * vectors, e->tile_m), 2, 1};
    TRY(grid_check(c, e, size));
    append->groups = order_divisor(groups);
    const unsigned grid[] = {(unsigned)size[0], 2, 1};
    return launch_one(kernel, i, has_mods ? (void *)params : append, NULL, grid, stream, c->err);
  }
  return luattn_fail(c->err, LUATTN_INTERNAL, "%s: has no luattn_append", m->spec_name);
}

const char *launch_place(const luattn_kernel *k) { return manifest_pass_name(&k->info); }

args_call launch_call(const luattn_kernel *kernel, const luattn_args *used, bool shapes_only, luattn_error *err) {
  return (args_call){.info = &kernel->info,
                     .args = used,
                     .device = kernel->device,
                     .multiprocessors = kernel->multiprocessors,
                     .zero = (const void *)(uintptr_t)kernel->zero,
                     .shapes_only = shapes_only,
                     .err = err};
}

luattn_status luattn_workspace_size(const luattn_kernel *kernel, const luattn_args *args, size_t *size,
                                    luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  NEED(size);
  TRY(choices_take(args, launch_place(kernel), &used, err));
  if (kernel->info.weights) weights_take(&used);
  if (kernel->cpu_run != NULL) return cpu_kernel_workspace(kernel, &used, size, err);
  const args_call c = launch_call(kernel, &used, true, err);
  LuattnCallParams p;
  workspace_need need;
  TRY(args_fill(&c, &p));
  TRY(workspace_layout(&c, 0, &p, &need));
  *size = need.size;
  return LUATTN_OK;
}

/* Launches with arguments of this version; `weights` NULL: the kernel does not write them. All checks come before the first
 * operation on the stream. */
static luattn_status launch(const luattn_kernel *kernel, const luattn_args *used, const DLTensor *weights, void *stream,
                            luattn_error *err) {
  if (kernel->cpu_run != NULL) return cpu_kernel_launch(kernel, used, weights, stream, err);
  const args_call c = launch_call(kernel, used, false, err);
  LuattnCallParams all;
  LuattnParams *p = &all.dense;
  LuattnPagedMaps maps; /* other kernels take the first part */
  TRY(args_fill(&c, &all));
  workspace_need need;
  TRY(workspace_layout(&c, (uintptr_t)used->workspace, &all, &need));
  all.table = need.table;
  TRY(packed_used(&c, &all.used));
  all.splits = need.splits;
  all.list = need.has_list ? need.list : (LuattnSplitList){.items = NULL};
  TRY(random_fill(&c, &all));
  TRY(paged_table(&c, p, &all.paging));
  if (weights != NULL) TRY(weights_fill(&c, weights, p, &all.weights));
  TRY(workspace_check(&c, need.size));
  unsigned grid[MANIFEST_MAX_ENTRIES][3];
  for (uint32_t i = 0; i < kernel->info.num_entries; ++i)
    TRY(grid_of_entry(&c, &kernel->info.entry[i], &all, &need, grid[i]));
  TRY(weights != NULL ? weights_apart(&c, weights, need.size) : args_apart(&c, need.size));
  TRY(packed_check(kernel, &c, &all.packed, &all.used, stream));
  TRY(batch_masks_check(kernel, &c, &all, need.has_tile_bits, stream));
  if (need.has_table) TRY(tile_table_check(kernel, &c, &all, need.makes_table, stream));
  TRY(paged_check(kernel, &c, &all, stream));
  TRY(split_list_check(kernel, &c, &all, need.makes_list, stream));
  choose_order(&kernel->info, p, &all.tile_order);
  find_alone(&kernel->info, p);
  TRY(driver_push(kernel->driver, kernel->context, err));
  luattn_status status = LUATTN_OK;
  if (kernel->info.family == LUATTN_SM90)
    status = descriptors_fill(kernel->driver, kernel->descriptors, &c, &all, &all.paging, &maps.usual);
  if (status == LUATTN_OK && kernel->info.family == LUATTN_SM90 && kernel->info.paged)
    status = descriptors_fill_pages(kernel->driver, kernel->descriptors, &c, p, &all.paging, &maps);
  if (status == LUATTN_OK) status = append_first(kernel, used, stream, err);
  if (status == LUATTN_OK) status = place_counter(kernel, used->workspace, p, stream, err);
  if (status == LUATTN_OK)
    status = zero_sums(kernel, p, (char *)used->workspace + need.sums, need.sums_size, stream, err);
  if (status == LUATTN_OK) status = launch_entries(kernel, &all, &maps.usual, grid, stream, err);
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
  TRY(choices_take(args, launch_place(kernel), &used, err));
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
