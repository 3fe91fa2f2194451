#include "runtime/call/tangents.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/call/choices.h"
#include "common/call/input_dtype.h"
#include "common/call/overlap.h"
#include "common/call/tangent_bits.h"
#include "runtime/call/args.h"

/* Refuses the tangent of an input that has other sizes, as kernels take the input's for both. */
static luattn_status same_sizes(const args_call *c, const char *name, const DLTensor *a, const DLTensor *b) {
  if (a == NULL || b == NULL || a->ndim != b->ndim || a->shape == NULL || b->shape == NULL) return LUATTN_OK;
  for (int axis = 0; axis < a->ndim; ++axis)
    if (a->shape[axis] != b->shape[axis])
      return args_fail(c, "tangent of input '%s': axis %d has size %lld, expected %lld, that of the input", name, axis,
                       (long long)a->shape[axis], (long long)b->shape[axis]);
  return LUATTN_OK;
}

/* Puts the tangents of inputs in the places of inputs. */
static luattn_status take_inputs(const args_call *c, const luattn_tangents *t, luattn_input *inputs) {
  const image_manifest *m = c->info;
  char shown[FAIL_NAME_SIZE];
  if (t->num_inputs > 0 && t->inputs == NULL)
    return args_fail(c, "tangents: inputs is NULL, but num_inputs is %zu", t->num_inputs);
  for (size_t i = 0; i < t->num_inputs; ++i) {
    const char *name = t->inputs[i].name;
    uint32_t found = 0;
    size_t at = 0;
    if (name == NULL) return args_fail(c, "tangents: input number %zu has no name", i);
    while (found < m->num_inputs && strcmp(name, m->input[found].name) != 0) ++found;
    while (at < c->args->num_inputs && strcmp(name, c->args->inputs[at].name) != 0) ++at;
    if (found == m->num_inputs || at == c->args->num_inputs)
      return args_fail(c, "tangent of input '%s': the spec has no such input; take it out", fail_name(name, shown));
    if (!input_is_real(m->input[found].dtype))
      return args_fail(
          c, "tangent of input '%s': the input holds no real numbers, which alone have tangents; take it out", name);
    if (t->inputs[i].grad != NULL && m->pass == LUATTN_FORWARD)
      return args_fail(c, "tangent of input '%s': has a grad, which tangents have not; leave it NULL", name);
    for (size_t j = 0; j < i; ++j)
      if (strcmp(name, t->inputs[j].name) == 0) return args_fail(c, "tangent of input '%s': was given twice", name);
    if (t->inputs[i].tensor == NULL && m->pass == LUATTN_BACKWARD) continue; /* its gradient alone has a tangent */
    TRY(same_sizes(c, name, t->inputs[i].tensor, inputs[at].tensor));
    inputs[at].tensor = t->inputs[i].tensor;
  }
  return LUATTN_OK;
}

static luattn_status check_scalars(const args_call *c, const luattn_tangents *t) {
  const image_manifest *m = c->info;
  char shown[FAIL_NAME_SIZE];
  if (t->num_scalars > 0 && t->scalars == NULL)
    return args_fail(c, "tangents: scalars is NULL, but num_scalars is %zu", t->num_scalars);
  for (size_t i = 0; i < t->num_scalars; ++i) {
    const char *name = t->scalars[i].name;
    uint32_t found = 0;
    while (name != NULL && found < m->num_scalars && strcmp(name, m->scalar[found].name) != 0) ++found;
    if (name == NULL || found == m->num_scalars)
      return args_fail(c, "tangent of scalar '%s': the spec has no such scalar; take it out",
                       name != NULL ? fail_name(name, shown) : "NULL");
    if (!isfinite(t->scalars[i].value))
      return args_fail(c, "tangent of scalar '%s': is not finite, expected a number", name);
    for (size_t j = 0; j < i; ++j)
      if (strcmp(name, t->scalars[j].name) == 0) return args_fail(c, "tangent of scalar '%s': was given twice", name);
  }
  return LUATTN_OK;
}

luattn_status tangents_fill(const args_call *c, const luattn_tangents *t, LuattnCallParams *out) {
  luattn_args beside = *c->args;
  luattn_input inputs[CHOICES_MAX_INPUTS];
  args_call of_tangents = *c;
  for (size_t i = 0; i < beside.num_inputs; ++i) inputs[i] = beside.inputs[i];
  TRY(take_inputs(c, t, inputs));
  TRY(check_scalars(c, t));
  beside.inputs = inputs;
  if (t->q != NULL) beside.q = t->q;
  if (t->k != NULL) beside.k = t->k;
  if (t->v != NULL) beside.v = t->v;
  if (c->info->pass == LUATTN_FORWARD) {
    if (t->o != NULL) beside.o = t->o;
    if (t->lse != NULL) beside.lse = t->lse;
  } else {
    if (t->dout != NULL) beside.dout = t->dout;
    if (t->dlse != NULL) beside.dlse = t->dlse;
    if (beside.o != NULL) beside.o = t->o, beside.lse = t->lse;
  }
  const DLTensor *const pairs[][2] = {{beside.q, c->args->q}, {beside.k, c->args->k}, {beside.v, c->args->v}};
  static const char *const name[] = {"q", "k", "v"};
  for (int i = 0; i < 3; ++i) { /* lengths come from q and k, so that all but these are compared */
    const DLTensor *a = pairs[i][0], *b = pairs[i][1];
    for (int axis = 0; a->ndim == b->ndim && a->shape != NULL && axis < a->ndim; ++axis)
      if (a->shape[axis] != b->shape[axis])
        return args_fail(c, "tangents: %s: axis %d has size %lld, expected %lld, that of %s", name[i], axis,
                         (long long)a->shape[axis], (long long)b->shape[axis], name[i]);
  }
  of_tangents.args = &beside;
  of_tangents.place = c->info->pass == LUATTN_FORWARD ? "forward_jvp: tangents" : "backward_jvp: tangents";
  return args_fill(&of_tangents, out);
}

/* What the kernel has tangents of is what the call gives. */
static luattn_status check_bits(const args_call *c, const luattn_tangents *t) {
  const image_manifest *m = c->info;
  const char *scalars[MANIFEST_MAX_SCALARS];
  for (uint32_t i = 0; i < m->num_scalars; ++i) scalars[i] = m->scalar[i].name;
  const uint64_t wanted = m->tangents_of[0].bits,
                 differ = wanted ^ tangent_bits(t, m->input, m->num_inputs, scalars, m->num_scalars);
  static const struct {
    uint64_t bit;
    const char *name;
  } of_tensor[] = {{LUATTN_TANGENT_Q, "q"},
                   {LUATTN_TANGENT_K, "k"},
                   {LUATTN_TANGENT_V, "v"},
                   {LUATTN_TANGENT_DOUT, "dout"},
                   {LUATTN_TANGENT_DLSE, "dlse"}};
  const char *name = NULL;
  uint64_t bit = 0;
  for (size_t i = 0; bit == 0 && i < sizeof of_tensor / sizeof *of_tensor; ++i)
    if (differ & of_tensor[i].bit) name = of_tensor[i].name, bit = of_tensor[i].bit;
  for (uint32_t i = 0; bit == 0 && i < m->num_inputs; ++i)
    if (differ & LUATTN_TANGENT_INPUT(i)) name = m->input[i].name, bit = LUATTN_TANGENT_INPUT(i);
  for (uint32_t i = 0; bit == 0 && i < m->num_scalars; ++i)
    if (differ & LUATTN_TANGENT_SCALAR(i)) name = m->scalar[i].name, bit = LUATTN_TANGENT_SCALAR(i);
  if (bit == 0) return LUATTN_OK;
  return args_fail(c, "tangents: %s: %s", name,
                   wanted & bit ? "is missing, and the kernel is compiled for it (luattn_target.tangents)"
                                : "is given, and the kernel is compiled without it (luattn_target.tangents)");
}

/* Over a grid: the strides along its axes. */
static void take_steps(const image_manifest *m, const LuattnGrid *of, LuattnTangentSteps *out) {
  const bool backward = m->pass == LUATTN_BACKWARD;
  if (!m->over_grid) return;
  memset(out, 0, sizeof *out);
  out->q = of->q, out->k = of->k, out->v = of->v;
  out->o = backward ? of->dout : of->o;
  out->of_o = of->o;
}

luattn_status tangents_take(const args_call *c, const luattn_tangents *t, LuattnCallParams *all) {
  const image_manifest *m = c->info;
  LuattnTangents *const out = tangents_place(m, all);
  LuattnCallParams like;
  TRY(tangents_fill(c, t, &like));
  TRY(check_bits(c, t));
  const LuattnTensors *of = &like.dense.tensors;
  memset(out, 0, sizeof *out);
  take_steps(m, &like.grid, &all->grid_tangents.steps);
  out->q = of->q, out->k = of->k, out->v = of->v;
  if (m->pass == LUATTN_FORWARD) {
    if (t->o != NULL) out->o = of->o;
    if (t->lse != NULL) out->lse = of->lse;
  } else {
    if (t->dout != NULL) out->o = of->dout;
    if (t->dlse != NULL) out->lse = of->dlse;
    out->of_o = of->o, out->of_lse = of->lse;
  }
  for (uint32_t i = 0; i < m->num_inputs; ++i) {
    const LuattnInput *in = &like.dense.inputs.input[i];
    if (!(m->tangents_of[0].bits & LUATTN_TANGENT_INPUT(i))) continue;
    out->input[i].data = in->data;
    for (int axis = 0; axis < LUATTN_MAX_AXES; ++axis) {
      if (in->stride[axis] != (int)in->stride[axis])
        return args_fail(c, "tangents: input '%s': has a stride of %lld elements, expected at most %d; copy it",
                         m->input[i].name, in->stride[axis], INT32_MAX);
      out->input[i].stride[axis] = (int)in->stride[axis];
    }
  }
  for (size_t i = 0; i < t->num_scalars; ++i)
    for (uint32_t at = 0; at < m->num_scalars; ++at)
      if (strcmp(t->scalars[i].name, m->scalar[at].name) == 0) out->scalar[at] = t->scalars[i].value;
  return LUATTN_OK;
}

/* What forward and tangents write and read; how many. */
enum { OF_FORWARD = 8, OF_BACKWARD = 8, OF_BOTH = 3 };
static int items_of_forward(const luattn_args *a, const luattn_tangents *t, overlap_item *item) {
  const overlap_item made[OF_FORWARD] = {{"tangents.o", t->o, true}, {"tangents.lse", t->lse, true},
                                         {"o", a->o, true},          {"lse", a->lse, true},
                                         {"saved", a->saved, true},  {"q", a->q, false},
                                         {"k", a->k, false},         {"v", a->v, false}};
  memcpy(item, made, sizeof made);
  return OF_FORWARD;
}

/* Of backward, whose gradients args_apart compares with the rest. */
static int items_of_backward(const luattn_tangents *t, overlap_item *item) {
  const overlap_item made[] = {{"tangents.dq", t->dq, true},      {"tangents.dk", t->dk, true},
                               {"tangents.dv", t->dv, true},      {"tangents.scalar_grads", t->scalar_grads, true},
                               {"tangents.o", t->o, false},       {"tangents.lse", t->lse, false},
                               {"tangents.dout", t->dout, false}, {"tangents.dlse", t->dlse, false}};
  memcpy(item, made, sizeof made);
  return (int)(sizeof made / sizeof *made);
}

luattn_status tangents_apart(const args_call *c, const luattn_tangents *t, size_t workspace_size) {
  const luattn_args *a = c->args;
  const overlap_item both[OF_BOTH] = {
      {"tangents.q", t->q, false}, {"tangents.k", t->k, false}, {"tangents.v", t->v, false}};
  overlap_item item[OF_BACKWARD + OF_BOTH + 2 * CHOICES_MAX_INPUTS];
  overlap_pair pair;
  char text[400];
  int n = c->info->pass == LUATTN_FORWARD ? items_of_forward(a, t, item) : items_of_backward(t, item);
  for (int i = 0; i < OF_BOTH; ++i) item[n++] = both[i];
  for (size_t i = 0; i < a->num_inputs && c->info->pass == LUATTN_FORWARD; ++i)
    item[n++] = (overlap_item){a->inputs[i].name, a->inputs[i].tensor, false};
  for (size_t i = 0; i < t->num_inputs; ++i) {
    item[n++] = (overlap_item){t->inputs[i].name, t->inputs[i].tensor, false};
    if (c->info->pass == LUATTN_BACKWARD)
      item[n++] = (overlap_item){"grad of an input's tangent", t->inputs[i].grad, true};
  }
  if (!overlap_find_among(item, n, &pair)) return args_apart(c, workspace_size);
  overlap_text(&pair, text, sizeof text);
  return args_fail(c, "%s", text);
}
