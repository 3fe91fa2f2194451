/* kernel_key.h: the key that identifies a kernel of an engine. */
#ifndef LUATTN_ENGINE_KERNEL_KEY_H
#define LUATTN_ENGINE_KERNEL_KEY_H

#include <stdbool.h>

#include "luattn/engine.h"

typedef struct kernel_key {
  const luattn_spec *spec;
  uint64_t spec_hash[2]; /* another spec may come to lie where a freed one has been */
  luattn_pass pass;
  luattn_dtype dtype;
  int head_dim, head_dim_v;
  unsigned wants; /* 0 in forward */
  luattn_lengths lengths;
  bool packed;  /* luattn_args.batch has cu_seqlens */
  int pages;    /* luattn_target.pages, by luattn_args.batch and k's page size */
  luattn_offsets offsets; /* what luattn_args.batch has */
  bool large_scores;      /* luattn_args.large_scores */
  int decode;             /* luattn_target.decode */
  bool many_rows;         /* luattn_target.many_rows */
  bool weights;           /* luattn_target.weights */
  bool keys_modified;     /* luattn_args.keys_modified */
  uint64_t input_types; /* luattn_target.input_types */
} kernel_key;

#endif
