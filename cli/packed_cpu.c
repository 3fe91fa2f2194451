#include "cli/packed_cpu.h"

static luattn_status as_double(const array *from, array *to, luattn_error *err) {
  if (from->storage == NULL) return LUATTN_OK;
  TRY(array_new(to, dtype_dl(LUATTN_F64), from->t.ndim, from->shape, false, err));
  for (int64_t i = 0, n = array_count(from); i < n; i++) array_set(to, i, array_get(from, i));
  return LUATTN_OK;
}

static luattn_status run_in_double(luattn_engine *engine, const cli_problem *p, bool backward, cli_result *r,
                                   luattn_error *err) {
  cli_problem wide = *p; /* an engine takes tensors of one type; inputs have the spec's */
  array *const to[] = {&wide.q, &wide.k, &wide.v, &wide.dout, &wide.dlse};
  const array *const from[] = {&p->q, &p->k, &p->v, &p->dout, &p->dlse};
  cli_binding bind;
  luattn_status s = LUATTN_OK;
  for (int i = 0; i < 5; i++) *to[i] = (array){0};
  for (int i = 0; i < 5 && s == LUATTN_OK; i++) s = as_double(from[i], to[i], err);
  const luattn_args forward = problem_args(&wide, r, false, &bind);
  if (s == LUATTN_OK) s = luattn_forward(engine, p->spec, &forward, NULL, err);
  if (s == LUATTN_OK && r->weights.storage != NULL)
    s = luattn_weights(engine, p->spec, &forward, &r->weights.t, NULL, err);
  const luattn_args both = problem_args(&wide, r, backward, &bind);
  if (s == LUATTN_OK && backward) s = luattn_backward(engine, p->spec, &both, NULL, err);
  for (int i = 0; i < 5; i++) array_free(to[i]);
  return s;
}

luattn_status packed_run_cpu(const cli_problem *p, bool backward, cli_result *r, luattn_error *err) {
  const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU};
  luattn_engine *engine;
  TRY(luattn_engine_open(&options, &engine, err));
  const luattn_status s = run_in_double(engine, p, backward, r, err);
  luattn_engine_close(engine);
  return s;
}
