/* linear_lowered.h: a spec of linear attention as templates/contract/linear.cuh has it: numbers of a token that rows are
 * multiplied by, and functions of one element. */
#ifndef LUATTN_GEN_LINEAR_LOWERED_H
#define LUATTN_GEN_LINEAR_LOWERED_H

#include "gen/analysis/linear/linear_adjoint.h"
#include "gen/plan/linear_plan.h"

/* How the terms of a gradient are added up: a warp's lanes have channels of a row, or tokens. */
typedef enum linear_term_kind {
  LINEAR_TERM_RUN,    /* to one place for all tokens of a head */
  LINEAR_TERM_ROW,    /* to one place for all channels of a row */
  LINEAR_TERM_ELEMENT /* each on its own */
} linear_term_kind;

typedef struct linear_terms {
  int count, kinds[3]; /* of each kind */
  derived_term *term;
  uint8_t *kind;
} linear_terms;

/* A hook of rows of q, k or v that luattn_linear_prepare makes, or that gradients go through: channel_sums and its
 * derivative. */
typedef struct linear_row_hook {
  bool made, of_queries, of_v;
  int num_sums;
  ir_ref sum[CHANNEL_SUMS_MAX], value, weight[CHANNEL_SUMS_MAX], dx;
  linear_terms terms;
} linear_row_hook;

typedef struct linear_lowered {
  arena *a;
  ir *g; /* a clone: the spec's own is shared */
  const luattn_spec *spec;
  bool packed, backward;
  linear_decay decay_of;
  /* IR_NONE: absent. Factors of rows of q and k, and the one of k that read is, are of a token; value_mod and skip are of
   * VAR_X, too. Where the family takes them, decay is of VAR_D, too, write of VAR_D of v, and read and erase are elements,
   * of VAR_X, which is that of k behind key_mod, and VAR_D. */
  ir_ref decay, write, read, erase, query_factor, key_factor, value_mod, skip;
  bool before, reads_rows, writes_channels;
  linear_row_hook row[3]; /* of q, k and v */
  linear_terms of_decay, of_write,
      of_read;             /* backward: of VAR_GRAD, the gradient of a token's number; of_write: of all that
                                    * `write` is made of */
  linear_row_hook skipped; /* backward: dx and terms */
  unsigned alone, sole;    /* manifest_linear */
  int64_t max_len;         /* of a sequence: up to it, integers of hooks fit 32 bits. 0: they never do, */
  ir_ref too_large;        /* because of this one, */
  double reach;            /* which reaches that */
} linear_lowered;

/* What kernels are lowered for. */
typedef struct linear_lowering {
  const struct linear_family *family;
  int k_dim, v_dim;
  bool packed, backward;
  unsigned wants; /* luattn_wants */
  uint32_t real;  /* luattn_input_dtype: of inputs of any type */
} linear_lowering;

/* Errors: LUATTN_UNSUPPORTED (what the family's kernels lack, and of which hook), LUATTN_NO_MEMORY. */
luattn_status lower_linear(arena *a, const luattn_spec *spec, const linear_lowering *to, linear_lowered *out,
                           luattn_error *err);

#endif
