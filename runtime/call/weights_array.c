#include "runtime/call/weights_array.h"

#include <stdio.h>

#include "common/call/overlap.h"
#include "runtime/call/grid_call.h"
#include "runtime/call/tensor_rule.h"

void weights_take(luattn_args *args) {
  args->o = args->lse = args->saved = NULL;
  args->large_scores = args->out_f32 = 0; /* they decide what forward saves, and of which type o is */
}

luattn_status weights_fill(const args_call *c, const DLTensor *weights, const LuattnParams *params,
                           LuattnWeights *out) {
  const LuattnShape *s = &params->shape;
  const LuattnCallParams *all = (const LuattnCallParams *)(const void *)params;
  const int64_t rows = c->info->over_grid ? grid_places(all, false) : s->q_len,
                columns = c->info->over_grid ? grid_places(all, true) : s->kv_len;
  const tensor_rule rule = {.name = "weights",
                            .axes = "batch, heads, q_len, kv_len",
                            .ndim = 4,
                            .shape = {s->batch, s->heads, rows, columns},
                            .dtype = args_real(c->info),
                            .is_output = true,
                            .is_row = true};
  long long stride[4];
  TRY(args_tensor(c, &rule, weights, stride, &out->to.data));
  out->to.batch = stride[0], out->to.head = stride[1], out->to.seq = stride[2];
  out->rows = (int)rows, out->columns = (int)columns;
  return LUATTN_OK;
}

luattn_status weights_apart(const args_call *c, const DLTensor *weights, size_t workspace_size) {
  luattn_args used = *c->args; /* as if they were O, which no other tensor of the call may overlap */
  overlap_pair pair;
  char text[400];
  used.o = weights;
  used.workspace_size = workspace_size;
  if (!overlap_find(&used, true, &pair)) return LUATTN_OK;
  if (pair.output[0] == 'o' && pair.output[1] == 0) snprintf(pair.output, sizeof pair.output, "weights");
  overlap_text(&pair, text, sizeof text);
  return args_fail(c, "%s", text);
}
