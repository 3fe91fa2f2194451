/* pages.h: a problem whose keys are in pages, for the seeds and the launches of images. */
#ifndef LUATTN_TESTS_FUZZ_PAGES_H
#define LUATTN_TESTS_FUZZ_PAGES_H

#include <stdlib.h>
#include <string.h>

#include "abi/params.h"
#include "luattn/batch.h"
#include "tests/support/problem.h"

/* New rows of keys and values, of the problem that was opened last. */
static inline tensor *pages_new_rows(void) {
  static tensor rows[2];
  return rows;
}

/* One at a time has the batch's arrays. Its image takes no parameters besides slopes, and modifies no keys. */
static inline void pages_open(problem *p, luattn_batch **batch) {
  enum { PAGES = 5, PAGE_SIZE = 16, MAX_PAGES = 7 };
  static tensor table, used;
  luattn_error err;
  problem_open(p, LUATTN_FORWARD);
  p->used = 0;
  p->info.paged = 1;
  p->info.paged_layout[0] = 1;
  p->info.params_bytes = LUATTN_PARAMS_THROUGH(paging);
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
  tensor_set(p, &pages_new_rows()[0], kDLBfloat, 16, 4, BATCH, HEADS_KV, 3, HEAD_DIM);
  tensor_set(p, &pages_new_rows()[1], kDLBfloat, 16, 4, BATCH, HEADS_KV, 3, HEAD_DIM_V);
  p->args.num_inputs = 1;
  const luattn_batch_options options = {.struct_size = sizeof options, .block_table = &table.t, .seqused_k = &used.t};
  if (luattn_batch_open(&options, batch, &err) != LUATTN_OK) abort();
  p->args.batch = *batch;
}

/* New rows that such an image appends first, where it has a function for that. */
static inline void pages_append(problem *p, const image_manifest *m, luattn_append_args *rows) {
  tensor *new_rows = pages_new_rows();
  bool appends = false;
  for (uint32_t i = 0; i < m->num_entries; ++i) appends = appends || m->entry[i].role == LUATTN_ROLE_APPEND;
  p->args.keys_modified = m->keys_modified != 0;
  p->args.append = NULL;
  if (!appends || !m->keys_modified || (!m->append_mods[0].key_mod && !m->append_mods[0].value_mod))
    return; /* a fake launch reads as many parameters */
  *rows = (luattn_append_args){
      .struct_size = sizeof *rows, .new_k = &new_rows[0].t, .new_v = &new_rows[1].t, .batch = p->args.batch};
  p->args.append = rows;
}

#endif
