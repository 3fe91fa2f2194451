/* result.c: what a pass over a problem writes, and the arguments of its call. */
#include "cli/problem.h"

size_t problem_num_saved(const cli_problem *p) {
  return p->large_scores ? p->info.num_saved_large_scores : p->info.num_saved;
}

/* float32 where the call asks for it in place of a half type. */
static DLDataType result_type(DLDataType storage, bool is_f32) {
  return is_f32 && storage.bits == 16 ? dtype_dl(LUATTN_F32) : storage;
}

luattn_status result_new(const cli_problem *p, DLDataType storage, DLDataType real, bool backward, cli_result *r,
                         luattn_error *err) {
  int64_t rows[ARRAY_MAX_AXES], saved[1 + ARRAY_MAX_AXES] = {(int64_t)problem_num_saved(p)};
  const int ndim = problem_tensor_shape(p, p->heads, 0, p->dim_v, rows), lse_ndim = problem_lse_shape(p, saved + 1);
  *r = (cli_result){0};
  const DLDataType of_gradients = result_type(storage, p->grad_f32);
  luattn_status s = array_new(&r->o, result_type(storage, p->out_f32), ndim, rows, p->heads_last, err);
  if (s == LUATTN_OK && p->info.has_lse) s = array_new(&r->lse, real, lse_ndim, saved + 1, false, err);
  if (s == LUATTN_OK && problem_num_saved(p) > 0) s = array_new(&r->saved, real, 1 + lse_ndim, saved, false, err);
  if (s == LUATTN_OK && backward) {
    s = array_new(&r->dq, of_gradients, ndim, p->q.shape, p->heads_last, err);
    if (s == LUATTN_OK) s = array_new(&r->dk, of_gradients, ndim, p->k.shape, p->heads_last, err);
    if (s == LUATTN_OK) s = array_new(&r->dv, of_gradients, ndim, p->v.shape, p->heads_last, err);
    for (size_t i = 0; i < p->info.num_inputs && s == LUATTN_OK; i++) {
      if (p->info.inputs[i].grad)
        s = array_new(&r->input_grad[i], real, p->input[i].t.ndim, p->input[i].shape, false, err);
    }
    const int64_t scalars[] = {(int64_t)p->info.num_scalars};
    if (s == LUATTN_OK && p->info.num_scalars > 0) s = array_new(&r->scalar_grads, real, 1, scalars, false, err);
  }
  if (s != LUATTN_OK) result_free(r);
  return s;
}

void result_free(cli_result *r) {
  array *const owned[] = {&r->o, &r->lse, &r->saved, &r->weights, &r->dq, &r->dk, &r->dv, &r->scalar_grads};
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) array_free(owned[i]);
  for (int i = 0; i < 12; i++) array_free(&r->input_grad[i]);
}

luattn_lengths problem_decode_rows(const cli_problem *p) {
  return (int64_t)p->q_len * p->heads > (int64_t)LUATTN_DECODE_TILE * p->heads_kv ? LUATTN_LONG : LUATTN_SHORT;
}

bool problem_has_many_rows(const cli_problem *p) {
  return (int64_t)p->q_len * p->heads > (int64_t)LUATTN_DECODE_MANY * p->heads_kv;
}

luattn_args problem_args(const cli_problem *p, const cli_result *r, bool backward, cli_binding *bind) {
  for (size_t i = 0; i < p->info.num_inputs; i++) {
    bind->inputs[i] = (luattn_input){p->info.inputs[i].name, array_tensor(&p->input[i]),
                                     backward ? array_tensor(&r->input_grad[i]) : NULL};
  }
  luattn_args args = {
      .struct_size = sizeof args,
      .q = array_tensor(&p->q),
      .k = array_tensor(&p->k),
      .v = array_tensor(&p->v),
      .o = array_tensor(&r->o),
      .lse = array_tensor(&r->lse),
      .saved = array_tensor(&r->saved),
      .inputs = bind->inputs,
      .num_inputs = p->info.num_inputs,
      .scalars = p->scalar,
      .num_scalars = (size_t)p->num_scalars,
      .scale = p->scale,
      .skip = p->skip,
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks) .name = p->name,
#include "abi/kernel_facts.def"
      .decode = p->decode      ? LUATTN_DECODE_ALWAYS
                : p->no_decode ? LUATTN_DECODE_NEVER
                               : LUATTN_DECODE_AUTO,
      .random = &bind->random,
      .batch = p->sequences,
  };
  bind->random = (luattn_random){.struct_size = sizeof bind->random, .seed = p->seed};
  if (backward) {
    args.dout = array_tensor(&p->dout), args.dlse = array_tensor(&p->dlse);
    args.dq = array_tensor(&r->dq), args.dk = array_tensor(&r->dk), args.dv = array_tensor(&r->dv);
    args.scalar_grads = array_tensor(&r->scalar_grads);
    args.num_splits = p->decode ? 0 : p->num_splits;
  } else if (p->decode) {
    args.num_splits = p->num_splits;
  }
  return args;
}
