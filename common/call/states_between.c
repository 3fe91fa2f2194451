#include "common/call/states_between.h"

#include <inttypes.h>
#include <stdio.h>

bool states_between_open(const luattn_linear_args *args, int64_t tokens, int64_t entries, states_between *out,
                         char *wrong, size_t size) {
  const DLTensor *t = args->intermediate_states;
  const bool packed = args->cu_seqlens != NULL;
  const int64_t every = args->states_every, batch = packed ? 1 : entries;
  if (every < STATES_BETWEEN_CHUNK || every > INT32_MAX || every % STATES_BETWEEN_CHUNK != 0) {
    snprintf(wrong, size,
             "states_every: is %" PRId64 ", expected a multiple of %d up to %d, as intermediate_states is given", every,
             STATES_BETWEEN_CHUNK, INT32_MAX / STATES_BETWEEN_CHUNK * STATES_BETWEEN_CHUNK);
    return false;
  }
  if (t->ndim != 5 || t->shape == NULL) {
    snprintf(wrong, size, "intermediate_states: has %d axes, expected 5: [batch, count, heads_v, ..]", t->ndim);
    return false;
  }
  *out = (states_between){.every = every, .rows = *t};
  out->count = packed ? tokens / every + entries : (tokens + every - 1) / every;
  if (t->shape[0] != batch || t->shape[1] != out->count) {
    snprintf(wrong, size, "intermediate_states: has %" PRId64 " x %" PRId64 " states, expected %" PRId64 " x %" PRId64,
             t->shape[0], t->shape[1], batch, out->count);
    return false;
  }
  if (t->strides != NULL && batch > 1 && t->strides[0] != out->count * t->strides[1]) {
    snprintf(wrong, size,
             "intermediate_states: its first two axes have strides %" PRId64 " and %" PRId64
             ", expected those of a contiguous tensor; make it contiguous",
             t->strides[0], t->strides[1]);
    return false;
  }
  out->shape[0] = batch * out->count;
  for (int i = 1; i < 4; i++) out->shape[i] = t->shape[i + 1];
  out->rows.ndim = 4, out->rows.shape = out->shape;
  if (t->strides != NULL) out->rows.strides = t->strides + 1;
  return true;
}
