#include "tests/runtime/packed_problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/call/packed.h"

void packed_resize(packed_problem *c, int sequences, int total_q, int total_k) {
  problem *p = &c->p;
  p->used = 0;
  tensor_set(p, &p->q, kDLBfloat, 16, 3, total_q, HEADS, HEAD_DIM, 1);
  tensor_set(p, &p->k, kDLBfloat, 16, 3, total_k, HEADS_KV, HEAD_DIM, 1);
  tensor_set(p, &p->v, kDLBfloat, 16, 3, total_k, HEADS_KV, HEAD_DIM_V, 1);
  tensor_set(p, &p->o, kDLBfloat, 16, 3, total_q, HEADS, HEAD_DIM_V, 1);
  tensor_set(p, &p->lse, kDLFloat, 32, 2, HEADS, total_q, 1, 1);
  tensor_set(p, &p->saved, kDLFloat, 32, 3, NUM_SAVED, HEADS, total_q, 1);
  tensor_set(p, &p->slopes, kDLFloat, 32, 1, HEADS, 1, 1, 1);
  tensor_set(p, &c->cu_q, kDLInt, 32, 1, sequences + 1, 1, 1, 1);
  tensor_set(p, &c->cu_k, kDLInt, 32, 1, sequences + 1, 1, 1, 1);
}

void packed_open(packed_problem *c, luattn_family family) {
  problem *p = &c->p;
  problem_open(p, LUATTN_FORWARD);
  p->info.family = family;
  p->info.packed = 1;
  p->info.params_bytes = LUATTN_PARAMS_THROUGH(used);
  p->info.has_key_mod = 0;
  p->info.num_inputs = 1; /* slopes */
  p->info.num_stats = 0;
  p->info.entry[0] = p->info.entry[2]; /* no luattn_stats or luattn_mod before the main kernel */
  memset(p->info.entry + 1, 0, 2 * sizeof *p->info.entry);
  p->info.num_entries = 1;
  packed_resize(c, BATCH, TOTAL_Q, TOTAL_K);
  p->args.num_inputs = 1;
  p->args.dout = p->args.dlse = p->args.dq = p->args.dk = p->args.dv = p->args.scalar_grads = NULL;
  p->inputs[0].grad = NULL;
  c->batch = (luattn_batch_options){.struct_size = sizeof c->batch};
  c->batch.cu_seqlens_q = &c->cu_q.t;
  c->batch.cu_seqlens_k = &c->cu_k.t;
  c->batch.max_seqlen_q = LONGEST_Q;
  c->batch.max_seqlen_k = LONGEST_K;
}

luattn_status packed_open_batch(packed_problem *c, luattn_batch **batch, luattn_error *err) {
  const luattn_status status = luattn_batch_open(&c->batch, batch, err);
  c->p.args.batch = *batch;
  return status;
}

luattn_status launch_packed(packed_problem *c, luattn_error *err) {
  luattn_batch *batch;
  TRY(packed_open_batch(c, &batch, err));
  const luattn_status status = try_launch(&c->p, err);
  luattn_batch_close(batch);
  return status;
}

LuattnCallParams packed_filled(packed_problem *c) {
  luattn_error err;
  luattn_batch *batch;
  if (packed_open_batch(c, &batch, &err) != LUATTN_OK) fail_msg("%s", err.message);
  const args_call call = {.info = &c->p.info, .args = &c->p.args, .multiprocessors = 132, .err = &err};
  LuattnCallParams out;
  if (args_fill(&call, &out) != LUATTN_OK) fail_msg("%s", err.message);
  luattn_batch_close(batch);
  return out;
}
