#include "tests/api/setup.h"

#include <stdlib.h>
#include <string.h>

static const char source[] =
    "return attention {\n"
    "  name = 'api', scalars = { cap = 30.0 }, inputs = { slopes = { axes = {'h'}, grad = true } },\n"
    "  score_mod = function(score, b, h, q_idx, kv_idx)\n"
    "    return cap * tanh(score / cap) + slopes[h] * (kv_idx - q_idx) end,\n"
    "  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end,\n"
    "}\n";

enum { TENSOR_BYTES = 4 * API_BATCH * API_HEADS * API_LEN * API_DIM, WORKSPACE_BYTES = 1 << 20 };

static void place(api_call *c, api_tensor *t, int number, DLDeviceType device, int ndim, const int64_t shape[4]) {
  memcpy(t->shape, shape, sizeof t->shape);
  t->t = (DLTensor){.data = c->memory + (size_t)number * TENSOR_BYTES,
                    .device = {device, 0},
                    .ndim = ndim,
                    .dtype = {kDLFloat, 32, 1},
                    .shape = t->shape};
}

void api_open(api_call *c, DLDeviceType device) {
  const int64_t rows[4] = {API_BATCH, API_HEADS, API_LEN, API_DIM}, heads[4] = {API_HEADS}, one[4] = {1};
  luattn_error err;
  void *memory = NULL;
  memset(c, 0, sizeof *c);
  if (posix_memalign(&memory, 256, API_TENSORS * TENSOR_BYTES + WORKSPACE_BYTES) != 0) abort();
  c->memory = memory;
  memset(memory, 0, API_TENSORS * TENSOR_BYTES);
  api_ok(luattn_spec_load_text("api.lua", source, sizeof source - 1, NULL, &c->spec, &err), &err);
  api_tensor *const all[] = {&c->q, &c->k, &c->v, &c->o, &c->dout, &c->dq, &c->dk, &c->dv};
  int number = 0;
  for (; number < 8; number++) place(c, all[number], number, device, 4, rows);
  place(c, &c->lse, number++, device, 3, rows);
  place(c, &c->slopes, number++, device, 1, heads);
  place(c, &c->slopes_grad, number++, device, 1, heads);
  place(c, &c->scalar_grads, number++, device, 1, one);
  c->input = (luattn_input){"slopes", &c->slopes.t, &c->slopes_grad.t};
  c->args = (luattn_args){.struct_size = sizeof c->args,
                          .q = &c->q.t,
                          .k = &c->k.t,
                          .v = &c->v.t,
                          .o = &c->o.t,
                          .lse = &c->lse.t,
                          .dout = &c->dout.t,
                          .dq = &c->dq.t,
                          .dk = &c->dk.t,
                          .dv = &c->dv.t,
                          .inputs = &c->input,
                          .num_inputs = 1,
                          .scalar_grads = &c->scalar_grads.t,
                          .workspace = c->memory + API_TENSORS * TENSOR_BYTES,
                          .workspace_size = WORKSPACE_BYTES};
}

void api_close(api_call *c) {
  luattn_spec_free(c->spec);
  free(c->memory);
}

luattn_engine *api_engine(const luattn_engine_options *options) {
  luattn_engine *engine = NULL;
  luattn_error err;
  api_ok(luattn_engine_open(options, &engine, &err), &err);
  return engine;
}

luattn_target api_target(void) {
  return (luattn_target){
      .struct_size = sizeof(luattn_target), .dtype = LUATTN_F32, .head_dim = API_DIM, .arch = 90, .cache_dir = ""};
}

void api_ok(luattn_status status, const luattn_error *err) {
  if (status != LUATTN_OK) fail_msg("%s: %s", luattn_status_text(status), err->message);
  assert_int_equal(err->status, LUATTN_OK);
}

void api_refused(luattn_status got, luattn_status status, const luattn_error *err, const char *text) {
  if (got == LUATTN_OK) fail_msg("accepted: %s", text);
  if (strstr(err->message, text) == NULL) fail_msg("'%s' lacks '%s'", err->message, text);
  assert_int_equal(got, status);
  assert_int_equal(err->status, status);
}
