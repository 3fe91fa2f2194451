/* linear_kernels.c: see linear_kernels.h. */
#include "linear_kernels.h"

#include <string.h>

#include "tests/ptx/hand_kernels.h"

void *linear_load(const linear_kernel *k, linear_pass pass, const char *entry) {
  hand_source s;
  hand_open_source(&s, entry);
  hand_add_header(&s, "config.cuh", hand_read(&s, LINEAR "/config.cuh"));
  hand_add_header(&s, "spec.cuh", hand_read(&s, LINEAR "/spec.cuh"));
  hand_define_word(&s, "ELEM", k->elem), hand_define_word(&s, "DECAY", k->decay);
  hand_define_word(&s, "UPDATE", k->update), hand_define_word(&s, "MODS", k->mods);
  hand_define_word(&s, "SKIP", k->skip), hand_define_word(&s, "PACKED", k->packed ? "true" : "false");
  hand_define(&s, "PASS", pass), hand_define(&s, "STAGES", k->stages);
  hand_define(&s, "K_DIM", k->k_dim), hand_define(&s, "V_DIM", k->v_dim), hand_define(&s, "V_BLOCK", k->v_block);
  return hand_load(&s);
}

void linear_launch(void *module, const char *name, int blocks, int threads, int shared, LuattnLinearParams *p,
                   void *maps) {
  hand_launch(module, name, (const unsigned[]){(unsigned)blocks, 1, 1}, threads, shared, p, maps);
}

LuattnTensorMap linear_map(const LuattnTensor *t, bool bf16, bool packed, int dim, int tokens, int heads, int entries) {
  if (tokens == 0 || entries == 0) return (LuattnTensorMap){0};
  typedef unsigned long long number;
  const number wrap = (number)1 << LUATTN_WRAP_LOG2, row = (number)t->seq * 2, head = (number)t->head * 2;
  const hand_map dense = {.data = t->data,
                          .axes = 4,
                          .size = {(number)dim, (number)tokens, (number)heads, (number)entries},
                          .stride = {row, head, (number)t->batch * 2},
                          .box = {64, 64, 1, 1}},
                 rows = {.data = t->data,
                         .axes = 5,
                         .size = {(number)dim, wrap, (number)heads, (number)tokens + 1, wrap + 1},
                         .stride = {row, head, row, ((number)1 << (64 - LUATTN_WRAP_LOG2)) - row},
                         .box = {64, 64, 1, 1, 1}};
  return hand_encode(packed ? &rows : &dense, bf16);
}
