/* pages.h: a problem whose keys are in pages, for the seeds and the launches of images. */
#ifndef LUATTN_TESTS_FUZZ_PAGES_H
#define LUATTN_TESTS_FUZZ_PAGES_H

#include <stdlib.h>
#include <string.h>

#include "abi/params.h"
#include "luattn/batch.h"
#include "tests/support/problem.h"

/* One at a time has the batch's arrays. Its image takes no parameters besides slopes, and modifies no keys. */
static inline void pages_open(problem *p, luattn_batch **batch) {
  enum { PAGES = 5, PAGE_SIZE = 16, MAX_PAGES = 7 };
  static tensor table, used;
  luattn_error err;
  problem_open(p, LUATTN_FORWARD);
  p->used = 0;
  p->info.paged = 1;
  p->info.paged_layout[0] = 1;
  p->info.params_bytes = sizeof(LuattnPagedParams);
  p->info.has_key_mod = 0;
  p->info.num_inputs = 1;
  p->info.num_stats = 0;
  p->info.entry[0] = p->info.entry[2]; /* the main kernel alone */
  memset(p->info.entry + 1, 0, 2 * sizeof *p->info.entry);
  p->info.num_entries = 1;
  tensor_set(p, &p->q, kDLBfloat, 16, 4, BATCH, HEADS, Q_LEN, HEAD_DIM);
  tensor_set(p, &p->k, kDLBfloat, 16, 4, PAGES, HEADS_KV, PAGE_SIZE, HEAD_DIM);
  tensor_set(p, &p->v, kDLBfloat, 16, 4, PAGES, HEADS_KV, PAGE_SIZE, HEAD_DIM_V);
  tensor_set(p, &p->o, kDLBfloat, 16, 4, BATCH, HEADS, Q_LEN, HEAD_DIM_V);
  tensor_set(p, &p->lse, kDLFloat, 32, 3, BATCH, HEADS, Q_LEN, 1);
  tensor_set(p, &p->saved, kDLFloat, 32, 4, NUM_SAVED, BATCH, HEADS, Q_LEN);
  tensor_set(p, &p->slopes, kDLFloat, 32, 1, HEADS, 1, 1, 1);
  tensor_set(p, &table, kDLInt, 32, 2, BATCH, MAX_PAGES, 1, 1);
  tensor_set(p, &used, kDLInt, 32, 1, BATCH, 1, 1, 1);
  p->args.num_inputs = 1;
  const luattn_batch_options options = {.struct_size = sizeof options, .block_table = &table.t, .seqused_k = &used.t};
  if (luattn_batch_open(&options, batch, &err) != LUATTN_OK) abort();
  p->args.batch = *batch;
}

#endif
