#include "runtime/launch/launch_kernel.h"

#include "runtime/call/args.h"
#include "runtime/call/order.h"
#include "runtime/call/packed.h"
#include "runtime/call/paged.h"
#include "runtime/call/random.h"
#include "runtime/call/sizes.h"
#include "runtime/call/tangents.h"
#include "runtime/call/tensor_rule.h"
#include "runtime/call/weights_array.h"
#include "runtime/device/launch_entry.h"
#include "runtime/launch/launch_parts.h"
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
  if (main == NULL || !manifest_traits(m)->numbers_tiles) return;
  const int64_t q_tiles = ceil_div(p->shape.q_len, main->tile_m), tiles = q_tiles * p->shape.heads * p->shape.batch;
  if (tiles == 0) return;
  const bool stays = manifest_traits(m)->is_resident;
  const int64_t kv_bytes = (int64_t)sizes_elem(m) * (m->head_dim + m->head_dim_v);
  order_fill(p, q_tiles - by_length->first,
             stays ? order_groups_resident(p, q_tiles, m->has_mask && by_length->tiles == NULL, kv_bytes)
                   : order_groups(tiles));
  p->order.tiles = (unsigned)tiles;
}

/* Sets the work counter of a launch. The workspace has room for one, which is zeroed and used only if none of
 * the kernel's own counters is free for this launch. */
static luattn_status place_counter(const luattn_kernel *k, const void *workspace, LuattnParams *p, cu_stream stream,
                                   luattn_error *err) {
  if (k->counters == NULL) return LUATTN_OK;
  unsigned *counter = counter_find(k->counters, k->driver, workspace, stream);
  if (counter == NULL)
    return launch_zero(k, p->scratch.work_counter, sizeof *p->scratch.work_counter, "the work counter", stream, err);
  p->scratch.work_counter = counter;
  return LUATTN_OK;
}

/* Zeroes what kernels add to; also gradients that are stored, because skipped tiles store nothing. */
static luattn_status zero_sums(const luattn_kernel *k, const LuattnParams *p, void *sums, size_t size, cu_stream stream,
                               luattn_error *err) {
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

luattn_status kernel_launch_fill(kernel_launch *l, const luattn_kernel *kernel, const luattn_args *used,
                                 const DLTensor *weights, bool shapes_only, luattn_error *err) {
  LuattnCallParams *const all = &l->p.all;
  const args_call *c = &l->c;
  l->kernel = kernel;
  l->c = args_call_of(kernel, used, shapes_only, err);
  l->weights = weights;
  if (kernel->info.linear) return args_fail(c, "the kernel is of linear attention; give it to luattn_linear_launch");
  TRY(args_fill(c, all));
  if (!shapes_only) {
    TRY(packed_used(c, &all->used));
    TRY(random_fill(c, all));
    TRY(paged_table(c, &all->dense, &all->paging));
    if (used->tangents != NULL) TRY(tangents_take(c, used->tangents, all));
    if (weights != NULL) TRY(weights_fill(c, weights, &all->dense, &all->weights));
  }
  return parts_take(c, shapes_only ? 0 : (uintptr_t)used->workspace, &l->p);
}

luattn_status kernel_launch_check(kernel_launch *l, cu_stream stream) {
  const args_call *c = &l->c;
  LuattnCallParams *const all = &l->p.all;
  const size_t size = l->p.room.used;
  TRY(parts_check_workspace(c, size));
  TRY(parts_grids(c, &l->p, l->grid));
  TRY(l->weights != NULL          ? weights_apart(c, l->weights, size)
      : c->args->tangents != NULL ? tangents_apart(c, c->args->tangents, size)
                                  : args_apart(c, size));
  TRY(packed_check(l->kernel, c, &all->packed, &all->used, stream));
  TRY(paged_check(l->kernel, c, all, stream));
  TRY(parts_check(l->kernel, c, &l->p, stream));
  choose_order(c->info, &all->dense, &all->tile_order);
  find_alone(c->info, &all->dense);
  return LUATTN_OK;
}

luattn_status kernel_launch_describe(kernel_launch *l) {
  const luattn_kernel *k = l->kernel;
  LuattnCallParams *all = &l->p.all;
  if (!manifest_traits(&k->info)->takes_descriptors) return LUATTN_OK;
  if (k->info.tangents) return descriptors_fill_tangents(k->driver, k->descriptors, &l->c, all, &l->tangent_maps);
  TRY(descriptors_fill(k->driver, k->descriptors, &l->c, all, &all->paging, &l->maps.usual));
  if (!k->info.paged) return LUATTN_OK;
  return descriptors_fill_pages(k->driver, k->descriptors, &l->c, &all->dense, &all->paging, &l->maps);
}

luattn_status kernel_launch_start(kernel_launch *l, cu_stream stream) {
  const luattn_kernel *k = l->kernel;
  const luattn_args *used = l->c.args;
  LuattnCallParams *const all = &l->p.all;
  luattn_error *const err = l->c.err;
  TRY(append_first(k, used, stream, err));
  TRY(place_counter(k, used->workspace, &all->dense, stream, err));
  TRY(zero_sums(k, &all->dense, (char *)used->workspace + l->p.sums, l->p.sums_size, stream, err));
  for (uint32_t i = 0; i < k->info.num_entries; ++i)
    TRY(launch_entry(k, i, all, &l->maps.usual, l->grid[i], stream, err));
  return LUATTN_OK;
}
