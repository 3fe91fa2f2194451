#include "tests/gpu/memory.h"

#include <stdlib.h>
#include <string.h>

#define WORKSPACE "workspace"
enum { GAP = 4096, ALIGN = 256, NAN_BYTE = 0xff };

luattn_status memory_open(luattn_driver *driver, size_t size, memory *m, luattn_error *err) {
  void *device = NULL;
  *m = (memory){.driver = driver, .size = size};
  m->before = malloc(size);
  m->after = malloc(size);
  if (m->before == NULL || m->after == NULL)
    return luattn_fail(err, LUATTN_NO_MEMORY, "memory: no %zu bytes on the host", 2 * size);
  TRY(luattn_device_alloc(driver, 0, size, &device, err));
  m->device = device;
  m->used = size;
  memory_clear(m);
  return LUATTN_OK;
}

void memory_close(memory *m) {
  if (m->device != NULL) luattn_device_free(m->driver, 0, m->device, NULL);
  free(m->before), free(m->after);
  *m = (memory){0};
}

void memory_clear(memory *m) {
  memset(m->before, NAN_BYTE, m->used);
  m->used = GAP;
  m->count = 0;
}

luattn_status memory_reserve(memory *m, const char *name, size_t size, size_t *first, luattn_error *err) {
  const size_t end = (m->used + size + GAP + ALIGN - 1) / ALIGN * ALIGN;
  if (end > m->size || m->count == MEMORY_REGIONS)
    return luattn_fail(err, LUATTN_INTERNAL, "memory: %s of %zu bytes: the block of %zu is full", name, size, m->size);
  *first = m->used;
  memory_region *r = &m->region[m->count++];
  snprintf(r->name, sizeof r->name, "%s", name);
  r->first = *first, r->size = size;
  m->used = end;
  return LUATTN_OK;
}

luattn_status memory_upload(const memory *m, luattn_error *err) {
  return luattn_copy_to_device(m->driver, 0, m->device, m->before, m->used, err);
}

luattn_status memory_download(const memory *m, luattn_error *err) {
  return luattn_copy_to_host(m->driver, 0, m->after, m->device, m->used, err);
}

luattn_status memory_unchanged(const memory *m, luattn_error *err) {
  size_t at = 0;
  if (memcmp(m->before, m->after, m->used) == 0) return LUATTN_OK;
  while (m->before[at] == m->after[at]) at++;
  int i = 0;
  while (i + 1 < m->count && m->region[i + 1].first <= at) i++;
  const memory_region *r = &m->region[i];
  return luattn_fail(err, LUATTN_INTERNAL,
                     "a kernel wrote at byte %lld of %s (%zu bytes), where no element of an output is",
                     (long long)at - (long long)r->first, r->name, r->size);
}

luattn_status memory_place(memory *m, const char *name, const DLTensor *like, const int64_t *stride, placed *out,
                           luattn_error *err) {
  const size_t elem = like->dtype.bits / 8u;
  int64_t low = 0, high = 0;
  *out = (placed){.t = *like};
  for (int i = 0; i < like->ndim; i++) {
    const int64_t reach = (like->shape[i] - 1) * (stride != NULL ? stride : like->strides)[i];
    out->shape[i] = like->shape[i];
    out->stride[i] = (stride != NULL ? stride : like->strides)[i];
    low += reach < 0 ? reach : 0;
    high += reach > 0 ? reach : 0;
  }
  out->bytes = (size_t)(high - low + 1) * elem;
  TRY(memory_reserve(m, name, out->bytes, &out->first, err));
  out->origin = out->first + (size_t)-low * elem;
  out->t.shape = out->shape;
  out->t.strides = out->stride;
  out->t.device = (DLDevice){kDLCUDA, 0};
  out->t.data = m->device + out->origin;
  return LUATTN_OK;
}

/* A strided view of elements. */
typedef struct view {
  unsigned char *data;
  const int64_t *stride;
} view;

/* Copies row by row, or element by element if a view is strided along the last axis. */
static void copy_elements(const DLTensor *like, view to, view from) {
  const int last = like->ndim - 1;
  const int64_t elem = like->dtype.bits / 8, inner = last >= 0 ? like->shape[last] : 1;
  const int64_t to_step = last >= 0 ? to.stride[last] : 1, from_step = last >= 0 ? from.stride[last] : 1;
  const int64_t run = to_step == 1 && from_step == 1 ? inner : 1; /* elements per copy */
  int64_t rows = 1;
  for (int i = 0; i < last; i++) rows *= like->shape[i];
  for (int64_t row = 0; row < rows; row++) {
    int64_t a = 0, b = 0, rest = row;
    for (int i = last - 1; i >= 0; i--) {
      a += rest % like->shape[i] * to.stride[i];
      b += rest % like->shape[i] * from.stride[i];
      rest /= like->shape[i];
    }
    for (int64_t j = 0; j < inner; j += run)
      memcpy(to.data + (a + j * to_step) * elem, from.data + (b + j * from_step) * elem, (size_t)(run * elem));
  }
}

static view in_image(unsigned char *image, const placed *x) { return (view){image + x->origin, x->stride}; }
static view on_host(const DLTensor *t) { return (view){t->data, t->strides}; }

void memory_scatter(memory *m, const placed *x, const DLTensor *from) {
  copy_elements(from, in_image(m->before, x), on_host(from));
}

void memory_settle(memory *m, const placed *x, const DLTensor *host) {
  copy_elements(host, on_host(host), in_image(m->before, x));
}

void memory_take(memory *m, const placed *x, const DLTensor *to) {
  copy_elements(to, on_host(to), in_image(m->after, x));
  copy_elements(to, in_image(m->after, x), in_image(m->before, x));
}

/* ---- a whole call ---- */

static const struct {
  const char *name;
  size_t at;
  bool output;
} slots[CALL_SLOTS] = {
    [CALL_Q] = {"q", offsetof(luattn_args, q), false},
    [CALL_K] = {"k", offsetof(luattn_args, k), false},
    [CALL_V] = {"v", offsetof(luattn_args, v), false},
    [CALL_DOUT] = {"dout", offsetof(luattn_args, dout), false},
    [CALL_DLSE] = {"dlse", offsetof(luattn_args, dlse), false},
    [CALL_O] = {"o", offsetof(luattn_args, o), true},
    [CALL_LSE] = {"lse", offsetof(luattn_args, lse), true},
    [CALL_SAVED] = {"saved", offsetof(luattn_args, saved), true},
    [CALL_DQ] = {"dq", offsetof(luattn_args, dq), true},
    [CALL_DK] = {"dk", offsetof(luattn_args, dk), true},
    [CALL_DV] = {"dv", offsetof(luattn_args, dv), true},
    [CALL_SCALAR_GRADS] = {"scalar_grads", offsetof(luattn_args, scalar_grads), true},
};

luattn_status call_place(memory *m, const cli_problem *p, const cli_result *r, bool backward, call_strides strides,
                         int layout, call *c, luattn_error *err) {
  int64_t stride[4];
  memset(c, 0, sizeof *c);
  c->args = problem_args(p, r, backward, &c->bind);
  for (int i = 0; i < CALL_SLOTS; i++) {
    const DLTensor **slot = (const DLTensor **)(void *)((char *)&c->args + slots[i].at);
    if (*slot == NULL) continue;
    const bool own = strides != NULL && strides(layout, i, *slot, stride);
    TRY(memory_place(m, slots[i].name, *slot, own ? stride : NULL, &c->slot[i], err));
    c->host[i] = *slot;
    *slot = &c->slot[i].t;
  }
  for (size_t i = 0; i < c->args.num_inputs; i++) {
    luattn_input *in = &c->bind.inputs[i];
    c->host_input[i] = in->tensor;
    const bool own = strides != NULL && strides(layout, CALL_INPUT, in->tensor, stride);
    TRY(memory_place(m, in->name, in->tensor, own ? stride : NULL, &c->input[i], err));
    in->tensor = &c->input[i].t;
    if (in->grad == NULL) continue;
    c->host_grad[i] = in->grad;
    TRY(memory_place(m, "an input's gradient", in->grad, NULL, &c->grad[i], err));
    in->grad = &c->grad[i].t;
  }
  return LUATTN_OK;
}

void call_write(memory *m, const call *c) {
  for (int i = 0; i < CALL_SLOTS; i++) {
    if (c->host[i] == NULL || slots[i].output) continue;
    memory_scatter(m, &c->slot[i], c->host[i]);
    memory_settle(m, &c->slot[i], c->host[i]);
  }
  for (size_t i = 0; i < c->args.num_inputs; i++) memory_scatter(m, &c->input[i], c->host_input[i]);
}

void call_read(memory *m, const call *c) {
  for (int i = 0; i < CALL_SLOTS; i++)
    if (c->host[i] != NULL && slots[i].output) memory_take(m, &c->slot[i], c->host[i]);
  for (size_t i = 0; i < c->args.num_inputs; i++)
    if (c->host_grad[i] != NULL) memory_take(m, &c->grad[i], c->host_grad[i]);
  for (int i = 0; i < m->count; i++)
    if (strcmp(m->region[i].name, WORKSPACE) == 0)
      memcpy(m->after + m->region[i].first, m->before + m->region[i].first, m->region[i].size);
}

luattn_status call_workspace(memory *m, luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                             luattn_args *args, luattn_error *err) {
  size_t first;
  TRY(luattn_engine_workspace_size(engine, spec, pass, args, &args->workspace_size, err));
  TRY(memory_reserve(m, WORKSPACE, args->workspace_size, &first, err));
  args->workspace = m->device + first;
  return LUATTN_OK;
}
