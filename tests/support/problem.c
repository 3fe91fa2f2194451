#include "tests/support/problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/params.h"

void tensor_set(problem *p, tensor *t, int code, int bits, int ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
  const int64_t shape[4] = {a, b, c, d};
  size_t size = (size_t)bits / 8;
  memcpy(t->shape, shape, sizeof shape);
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    t->strides[i] = stride;
    stride *= shape[i];
    size *= (size_t)shape[i];
  }
  t->t = (DLTensor){.data = p->memory + p->used,
                    .device = {kDLCUDA, 0},
                    .ndim = ndim,
                    .dtype = {(uint8_t)code, (uint8_t)bits, 1},
                    .shape = t->shape,
                    .strides = t->strides};
  p->used += (size + 255) / 256 * 256;
  if (p->used > PROBLEM_MEMORY) abort();
}

static void add_entry(image_manifest *m, const char *name, luattn_role role, unsigned threads, unsigned shared,
                      unsigned tile_m, unsigned tile_n) {
  manifest_entry *e = &m->entry[m->num_entries++];
  memcpy(e->name, name, strlen(name) + 1);
  e->role = role;
  e->threads = threads;
  e->shared_bytes = shared;
  e->tile_m = tile_m;
  e->tile_n = tile_n;
}

static void describe(image_manifest *m, luattn_pass pass) {
  *m = (image_manifest){
      .spec_name = "demo",
      .pass = pass,
      .family = LUATTN_SM80,
      .dtype = LUATTN_BF16,
      .arch = 90,
      .head_dim = HEAD_DIM,
      .head_dim_v = HEAD_DIM_V,
      .params_version = LUATTN_PARAMS_VERSION,
      .params_bytes = sizeof(LuattnParams),
      .num_inputs = 4,
      .num_scalars = 2,
      .num_stats = 1,
      .num_saved = NUM_SAVED,
      .num_bwd_rows = pass == LUATTN_BACKWARD ? 3 : 0,
      .has_lse = 1,
      .has_key_mod = 1,
      .accumulates_dq = pass == LUATTN_BACKWARD,
      .wants = pass == LUATTN_BACKWARD ? LUATTN_WANT_ALL : 0,
      .max_len = 1 << 20,
      .input = {{.name = "slopes", .dtype = LUATTN_INPUT_F32, .num_axes = 1, .axis = {LUATTN_AXIS_H}, .grad = 1},
                {.name = "ids", .dtype = LUATTN_INPUT_I32, .num_axes = 2, .axis = {LUATTN_AXIS_B, LUATTN_AXIS_KV}},
                {.name = "flags", .dtype = LUATTN_INPUT_BOOL, .num_axes = 1, .axis = {LUATTN_AXIS_Q}},
                {.name = "table", .dtype = LUATTN_INPUT_F16, .num_axes = 2, .axis = {LUATTN_AXIS_FREE, 16}, .grad = 1}},
      .scalar = {{"cap", 50}, {"temperature", 2}},
      .stat = {{.input = 1, .axis = 1, .block = 64}},
      .source_hash = {1, 2}};
  add_entry(m, "luattn_stats", LUATTN_ROLE_STATS, 64, 0, 0, 0);
  add_entry(m, "luattn_mod", LUATTN_ROLE_MOD, 128, 0, 4, 0);
  if (pass == LUATTN_FORWARD) {
    add_entry(m, "luattn_fwd", LUATTN_ROLE_FORWARD, 256, 100000, 64, 128);
  } else {
    add_entry(m, "luattn_prepare", LUATTN_ROLE_PREPARE, 128, 0, 32, 0);
    add_entry(m, "luattn_dkdv", LUATTN_ROLE_DKDV, 256, 200000, 64, 48);
    add_entry(m, "luattn_finish", LUATTN_ROLE_FINISH, 128, 0, 8, 0);
  }
}

void problem_resize(problem *p, int batch, int q_len, int kv_len) {
  p->used = 0;
  tensor_set(p, &p->q, kDLBfloat, 16, 4, batch, HEADS, q_len, HEAD_DIM);
  tensor_set(p, &p->k, kDLBfloat, 16, 4, batch, HEADS_KV, kv_len, HEAD_DIM);
  tensor_set(p, &p->v, kDLBfloat, 16, 4, batch, HEADS_KV, kv_len, HEAD_DIM_V);
  tensor_set(p, &p->o, kDLBfloat, 16, 4, batch, HEADS, q_len, HEAD_DIM_V);
  tensor_set(p, &p->lse, kDLFloat, 32, 3, batch, HEADS, q_len, 1);
  tensor_set(p, &p->saved, kDLFloat, 32, 4, NUM_SAVED, batch, HEADS, q_len);
  tensor_set(p, &p->dout, kDLBfloat, 16, 4, batch, HEADS, q_len, HEAD_DIM_V);
  tensor_set(p, &p->dlse, kDLFloat, 32, 3, batch, HEADS, q_len, 1);
  tensor_set(p, &p->dq, kDLBfloat, 16, 4, batch, HEADS, q_len, HEAD_DIM);
  tensor_set(p, &p->dk, kDLBfloat, 16, 4, batch, HEADS_KV, kv_len, HEAD_DIM);
  tensor_set(p, &p->dv, kDLBfloat, 16, 4, batch, HEADS_KV, kv_len, HEAD_DIM_V);
  tensor_set(p, &p->scalar_grads, kDLFloat, 32, 1, 2, 1, 1, 1);
  tensor_set(p, &p->slopes, kDLFloat, 32, 1, HEADS, 1, 1, 1);
  tensor_set(p, &p->slopes_grad, kDLFloat, 32, 1, HEADS, 1, 1, 1);
  tensor_set(p, &p->ids, kDLInt, 32, 2, batch, kv_len, 1, 1);
  tensor_set(p, &p->flags, kDLUInt, 8, 1, q_len, 1, 1, 1);
  tensor_set(p, &p->table, kDLFloat, 16, 2, 5, 16, 1, 1);
}

void problem_open(problem *p, luattn_pass pass) {
  memset(p, 0, sizeof *p);
  void *memory = NULL;
  if (posix_memalign(&memory, 256, PROBLEM_MEMORY) != 0) abort();
  p->memory = memory;
  describe(&p->info, pass);
  problem_resize(p, BATCH, Q_LEN, KV_LEN);
  p->inputs[0] = (luattn_input){"slopes", &p->slopes.t, &p->slopes_grad.t};
  p->inputs[1] = (luattn_input){"ids", &p->ids.t, NULL};
  p->inputs[2] = (luattn_input){"flags", &p->flags.t, NULL};
  p->inputs[3] = (luattn_input){"table", &p->table.t, NULL};
  p->scalars[0] = (luattn_scalar){"cap", 30};
  p->args = (luattn_args){.struct_size = sizeof p->args,
                          .decode = LUATTN_DECODE_NEVER, /* by whatever lengths */
                          .q = &p->q.t,
                          .k = &p->k.t,
                          .v = &p->v.t,
                          .o = &p->o.t,
                          .lse = &p->lse.t,
                          .saved = &p->saved.t,
                          .dout = &p->dout.t,
                          .dlse = &p->dlse.t,
                          .dq = &p->dq.t,
                          .dk = &p->dk.t,
                          .dv = &p->dv.t,
                          .inputs = p->inputs,
                          .num_inputs = 4,
                          .scalars = p->scalars,
                          .num_scalars = 1,
                          .scalar_grads = &p->scalar_grads.t,
                          .workspace = p->memory + PROBLEM_MEMORY / 2,
                          .workspace_size = PROBLEM_MEMORY / 2};
}

void problem_close(problem *p) { free(p->memory); }

luattn_image *problem_image(const problem *p) {
  static const char others[] =
      "luattn_stats luattn_mod luattn_prepare luattn_finish luattn_dq luattn_round luattn_norms luattn_tile_bitmap "
      "luattn_append luattn_merge luattn_tile_bits "
      "luattn_tile_order";
  char code[512] = {0};
  const size_t second = p->info.second_code;
  if (second == 0)
    snprintf(code, sizeof code, "FAKE luattn_fwd luattn_split_list luattn_dkdv %s", others);
  else
    snprintf(code, second, "FAKE luattn_fwd luattn_split_list luattn_dkdv"),
        snprintf(code + second, sizeof code - second, "FAKE %s", others);
  luattn_image *image = NULL;
  if (image_create(&p->info, p->plan, code, sizeof code, &image, NULL) != LUATTN_OK) abort();
  return image;
}
