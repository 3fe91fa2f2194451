/* pass_launches.c: launches row passes: makes of backward's arguments those of a forward pass whose o and saved lie in
 * backward's workspace, and whose inputs are also the numbers of a row that forward has left. */
#include "runtime/launch/pass_launches.h"

#include <string.h>

#include "common/call/batch.h"
#include "common/fail.h"
#include "runtime/call/sizes.h"
#include "runtime/call/tensor_rule.h"
#include "runtime/launch/launch_parts.h"

/* The shapes of a call's rows: [batch, heads, q_len]; of packed sequences batch is 1, and q_len the rows of all. */
typedef struct row_shape {
  bool packed;
  int64_t batch, heads, q_len;
} row_shape;

static row_shape shape_of(const args_call *c) {
  const int64_t *q = c->args->q->shape;
  return c->info->packed ? (row_shape){true, 1, q[1], q[0]} : (row_shape){false, q[0], q[1], q[2]};
}

static void set_tensor(sized_tensor *out, const args_call *c, DLDataType dtype, void *data, int ndim,
                       const int64_t *shape) {
  memcpy(out->shape, shape, (size_t)ndim * sizeof *shape);
  out->tensor =
      (DLTensor){.data = data, .device = c->args->q->device, .ndim = ndim, .dtype = dtype, .shape = out->shape};
}

static void *at_byte(const DLTensor *t, size_t offset) {
  return t == NULL || t->data == NULL ? NULL : (char *)t->data + t->byte_offset + offset;
}

/* Row `row` of saved, or lse: -1. Without data where the arguments have neither yet. */
static void set_row(const args_call *c, int row, int64_t lse_strides[3], sized_tensor *out) {
  const row_shape s = shape_of(c);
  const int64_t shape[] = {s.batch, s.heads, s.q_len};
  const DLTensor *lse = c->args->lse;
  if (row >= 0) {
    const size_t before = (size_t)row * (size_t)s.batch * (size_t)s.heads * (size_t)s.q_len;
    set_tensor(out, c, args_real(c->info), at_byte(c->args->saved, before * args_real_size(c->info)), 3, shape);
    return;
  }
  set_tensor(out, c, args_real(c->info), at_byte(lse, 0), 3, shape);
  if (lse == NULL || lse->strides == NULL) return;
  lse_strides[0] = s.packed ? 0 : lse->strides[0];
  lse_strides[1] = lse->strides[s.packed ? 0 : 1];
  lse_strides[2] = lse->strides[s.packed ? 1 : 2];
  out->tensor.strides = lse_strides;
}

/* The spec's inputs, of which there are no more than the image says (args_inputs), and the rows that the pass reads. */
static void set_inputs(const args_call *c, const image_manifest *pass, int number, pass_launch *out) {
  const luattn_args *used = c->args;
  const manifest_row_passes *of = &c->info->passes[0];
  const uint32_t rows = of->num_rows[number];
  for (size_t i = 0; i < used->num_inputs; ++i)
    out->input[i] = (luattn_input){.name = used->inputs[i].name, .tensor = used->inputs[i].tensor};
  for (uint32_t i = 0; i < rows; ++i) {
    set_row(c, of->row[number][i], out->lse_strides, &out->row[i]);
    out->input[used->num_inputs + i] =
        (luattn_input){.name = pass->input[pass->num_inputs - rows + i].name, .tensor = &out->row[i].tensor};
  }
  out->args.inputs = out->input;
  out->args.num_inputs = used->num_inputs + rows;
}

/* workspace: of all passes, one after another. */
static void set_call(const luattn_kernel *k, const args_call *c, const prepared *p, void *workspace, int number,
                     pass_launch *out) {
  const luattn_args *used = c->args;
  const LuattnRowPasses *to = &p->all.passes;
  const row_shape s = shape_of(c);
  const int64_t dim_v = c->info->head_dim_v, sums = c->info->passes[0].num_sums;
  const int64_t dense[] = {s.batch, s.heads, s.q_len, dim_v}, packed[] = {s.q_len, s.heads, dim_v};
  const int64_t saved[] = {sums, s.batch, s.heads, s.q_len}, saved_packed[] = {sums, s.heads, s.q_len};
  const int less = s.packed; /* axes */
  set_tensor(&out->o, c, used->q->dtype, to->o[number].data, 4 - less, s.packed ? packed : dense);
  set_tensor(&out->sums, c, args_real(c->info), (void *)(uintptr_t)to->sums, 4 - less, s.packed ? saved_packed : saved);
  out->args = (luattn_args){.struct_size = sizeof out->args,
                            .q = used->q,
                            .k = used->k,
                            .v = used->v,
                            .o = &out->o.tensor,
                            .saved = number == 0 && sums > 0 ? &out->sums.tensor : NULL,
                            .scalars = used->scalars,
                            .num_scalars = used->num_scalars,
                            .scale = used->scale,
                            .workspace = workspace,
                            .skip = used->skip == LUATTN_SKIP_ALWAYS ? LUATTN_SKIP_AUTO : used->skip,
                            .batch = used->batch,
                            .random = used->random};
  set_inputs(c, &k->pass[number]->info, number, out);
}

/* A row pass sums over the keys of a call, so these have to be the row's. */
static luattn_status need_whole_rows(const args_call *c) {
  if (c->args->batch == NULL) return LUATTN_OK;
  const batch_offset *keys = &c->args->batch->offset[1];
  const int64_t own = c->info->packed ? -1 : c->args->k->shape[2];
  const bool offset = keys->number != 0 || c->args->batch->array[BATCH_KV_OFFSETS].is_given;
  if (!offset && (keys->whole == 0 || keys->whole == own)) return LUATTN_OK;
  return args_fail(
      c,
      "batch: says that k is some keys of a whole, and this backward takes a row pass, which needs all keys of a row "
      "in one call; give "
      "all, or write backward = function(dp, p, final_rowscales, doosum, b, h, q_idx, kv_idx, scores) .. end");
}

/* Takes room for what the passes leave for prepare. */
static void take_results(const args_call *c, prepared *p) {
  const image_manifest *m = c->info;
  const manifest_row_passes *of = &m->passes[0];
  LuattnRowPasses *to = &p->all.passes;
  const row_shape s = shape_of(c);
  const long long dim = m->head_dim_v, row = s.packed ? s.heads * dim : dim;
  for (uint32_t i = 0; i < of->count; ++i) {
    void *o = room_take(&p->room, sizes_elem(m), s.batch, s.heads, s.q_len, dim);
    to->o[i] = (LuattnTensor){o, s.packed ? 0 : s.heads * s.q_len * dim, s.packed ? dim : s.q_len * dim, row};
  }
  to->sums = room_take(&p->room, args_real_size(m), of->num_sums, s.batch, s.heads, s.q_len);
}

/* Whether the results lie in memory that the launch has; otherwise it is refused once all that it needs is known. */
static bool has_room(const args_call *c, const prepared *p) {
  args_call quiet = *c;
  quiet.err = NULL;
  return !c->shapes_only && !p->room.overflow && parts_check_workspace(&quiet, p->room.used) == LUATTN_OK;
}

luattn_status pass_launches_take(const luattn_kernel *kernel, const args_call *c, prepared *p, pass_launches *out) {
  out->count = 0;
  if (!c->info->row_passes) return LUATTN_OK;
  TRY(need_whole_rows(c));
  take_results(c, p);
  const bool shapes_only = !has_room(c, p);
  void *workspace = room_take(&p->room, 1, 0, 1, 1, 1); /* where the next room is, however large */
  size_t size = 0;
  for (; out->count < c->info->passes[0].count; ++out->count) {
    pass_launch *pass = &out->pass[out->count];
    set_call(kernel, c, p, workspace, (int)out->count, pass);
    TRY(kernel_launch_fill(&pass->launch, kernel->pass[out->count], &pass->args, NULL, shapes_only, c->err));
    if (pass->launch.p.room.used > size) size = pass->launch.p.room.used;
  }
  (void)room_take(&p->room, 1, (int64_t)size, 1, 1, 1);
  for (uint32_t i = 0; i < out->count; ++i) out->pass[i].args.workspace_size = size;
  if (!p->room.overflow) return LUATTN_OK;
  return args_fail(c, "workspace: would exceed what this machine can address; use smaller tensors");
}

luattn_status pass_launches_check(pass_launches *l, cu_stream stream) {
  for (uint32_t i = 0; i < l->count; ++i) TRY(kernel_launch_check(&l->pass[i].launch, stream));
  return LUATTN_OK;
}

luattn_status pass_launches_start(pass_launches *l, cu_stream stream) {
  for (uint32_t i = 0; i < l->count; ++i) {
    TRY(kernel_launch_describe(&l->pass[i].launch));
    TRY(kernel_launch_start(&l->pass[i].launch, stream));
  }
  return LUATTN_OK;
}
