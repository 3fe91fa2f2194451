/* mask_survey.h: which tiles kernels compute, by what means, and which of them the mask needs, without an array of
 * q_len x kv_len. */
#ifndef LUATTN_GEN_MASK_SURVEY_H
#define LUATTN_GEN_MASK_SURVEY_H

#include "gen/cpu/cpu.h"

/* A tile, as bounds of expressions over it are found (ir_bounds_env.user). */
typedef struct tile_box {
  const cpu_problem *p;
  int b, h, q0, q1, kv0, kv1; /* inclusive */
} tile_box;
ir_bounds tile_box_variable(void *user, ir_var v, uint32_t index, ir_type type);
/* Of the numbers that the tile reads: a kernel would read block minima, but the CPU can afford this. */
ir_bounds tile_box_load(void *user, uint32_t input, ir_type type, int n_index, const ivi *index);
/* ir_bounds_env.refine, as equal_if_met in templates/ops/input_bounds.cuh does: numbers that are compared for equality
 * are not equal where the sets of those that a box reads have none in common. The second with sets of whole blocks of
 * so many queries and keys. */
void tile_box_refine(void *user, ir_ref r, const ir_bounds *bounds, ir_bounds *out);
void tile_box_refine_by(const tile_box *t, int64_t queries, int64_t keys, ir_ref r, const ir_bounds *bounds,
                        ir_bounds *out);

typedef struct mask_survey_call {
  const luattn_spec *spec;
  const luattn_args *args; /* choices_take_dense */
  bool evaluates;          /* kernels evaluate masks from data for cells, rather than leave it to ranges and minima */
  int tile_m, tile_n;
  luattn_mask_counts *counts; /* of all batch entries and heads, or NULL */
  unsigned char *classes;     /* of tiles of entry b, head h, as of luattn_mask_tiles, or NULL */
  int b, h;
  double *chunks; /* or NULL: tiles that kernels compute, the mean of batch entries and heads, by chunk of `chunk_tiles`
                   * rows of tiles and chunk of as many columns: [rows][columns] of chunks, zeroed by the caller */
  int chunk_tiles;
  bool may_evaluate; /* filled: kernels of this mask can evaluate it */
} mask_survey_call;

/* For host_run. With neither counts nor classes it fills may_evaluate alone. */
luattn_status mask_survey_run(void *call, luattn_error *err);

/* Bounds of integers, of minima and maxima that were rounded to doubles. */
ir_bounds int_bounds(double low, double high);

#endif
