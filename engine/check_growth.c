/* check_growth.c: see check_growth.h. */
#include "engine/check_growth.h"

#include <stdlib.h>
#include <string.h>

#include "common/call/choices.h"
#include "common/fail.h"
#include "gen/cpu/linear_growth.h"
#include "runtime/call/fetch_tensor.h"

/* The call's arguments in host memory, as far as decays read them: inputs, and the lists of entries. Other tensors have memory
 * that nobody touches. */
typedef struct host_args {
  luattn_linear_args args;
  luattn_input input[CHOICES_MAX_INPUTS];
  DLTensor tensor[CHOICES_MAX_INPUTS + 6];
  void *memory[CHOICES_MAX_INPUTS + 6];
  int count;
  bool has_all;
} host_args;

static luattn_status take_numbers(host_args *h, const engine_place *at, void *stream, const char *name,
                                  const DLTensor **t, luattn_error *err) {
  if (*t == NULL) return LUATTN_OK;
  DLTensor *to = &h->tensor[h->count];
  int64_t elements = 1;
  for (int i = 0; i < (*t)->ndim; i++) elements *= (*t)->shape[i];
  *to = **t;
  TRY(fetch_tensor(at->driver, at->device, stream, *t, name, to, &h->memory[h->count], err));
  h->has_all = h->has_all && (h->memory[h->count] != NULL || elements == 0);
  to->device = (DLDevice){kDLCPU, 0};
  *t = to, h->count++;
  return LUATTN_OK;
}

static luattn_status take_shape(host_args *h, const DLTensor **t, luattn_error *err) {
  if (*t == NULL) return LUATTN_OK;
  DLTensor *to = &h->tensor[h->count];
  size_t size = (size_t)(*t)->dtype.bits * (*t)->dtype.lanes / 8;
  *to = **t;
  for (int i = 0; i < to->ndim; i++) size *= (size_t)to->shape[i];
  to->data = h->memory[h->count] = malloc(size + 16);
  to->device = (DLDevice){kDLCPU, 0}, to->strides = NULL, to->byte_offset = 0;
  *t = to, h->count++;
  return to->data != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "LUATTN_CHECK: out of memory");
}

static luattn_status take_all(host_args *h, const engine_place *at, const luattn_linear_args *a, void *stream,
                              luattn_error *err) {
  *h = (host_args){.has_all = true};
  h->args = (luattn_linear_args){.struct_size = sizeof h->args,
                                 .q = a->q,
                                 .k = a->k,
                                 .v = a->v,
                                 .initial_state = a->initial_state != NULL ? a->initial_state : a->final_state,
                                 .state_layout = a->state_layout,
                                 .state_indices = a->state_indices,
                                 .cu_seqlens = a->cu_seqlens,
                                 .inputs = h->input,
                                 .num_inputs = a->num_inputs,
                                 .scalars = a->scalars,
                                 .num_scalars = a->num_scalars,
                                 .scale = a->scale};
  luattn_linear_args *to = &h->args;
  for (size_t i = 0; i < a->num_inputs; i++) {
    h->input[i] = (luattn_input){.name = a->inputs[i].name, .tensor = a->inputs[i].tensor};
    TRY(take_numbers(h, at, stream, a->inputs[i].name, &h->input[i].tensor, err));
  }
  TRY(take_numbers(h, at, stream, "cu_seqlens", &to->cu_seqlens, err));
  TRY(take_numbers(h, at, stream, "state_indices", &to->state_indices, err));
  TRY(take_shape(h, &to->q, err));
  TRY(take_shape(h, &to->k, err));
  TRY(take_shape(h, &to->v, err));
  return take_shape(h, &to->initial_state, err);
}

luattn_status engine_check_growth(const engine_place *at, const luattn_spec *spec, const luattn_linear_args *args,
                                  const char *function, void *stream, luattn_error *err) {
  const char *check = getenv("LUATTN_CHECK");
  if (check == NULL || strcmp(check, "1") != 0 || args->num_inputs > CHOICES_MAX_INPUTS) return LUATTN_OK;
  host_args h;
  luattn_status status = take_all(&h, at, args, stream, err);
  if (status == LUATTN_OK && h.has_all) status = linear_refuse_growth(spec, &h.args, function, err);
  for (int i = 0; i < h.count; i++) free(h.memory[i]);
  return status;
}
