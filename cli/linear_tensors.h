/* linear_tensors.h: the tensors of one call of linear attention, for `luattn run` and `luattn check`. */
#ifndef LUATTN_CLI_LINEAR_TENSORS_H
#define LUATTN_CLI_LINEAR_TENSORS_H

#include "cli/cli.h"
#include "luattn/linear.h"

typedef struct linear_tensors {
  const luattn_spec *spec;
  luattn_spec_info info;
  int batch, tokens, heads, heads_v, dim, dim_v; /* packed: batch is 1, tokens those of all sequences */
  int entries, state_v;                          /* states; channels of v that these have */
  luattn_dtype dtype;
  array q, k, v, dout;   /* [batch, tokens, heads, dim] */
  array ends;            /* int32: 0, and where each packed sequence ends; without storage: none */
  array initial, dfinal; /* [entries, heads_v, dim_v, dim], of check alone */
  array input[12];
  luattn_scalar scalar[CLI_MAX_PAIRS];
  int num_scalars;
  double scale;                                                       /* 0: the spec's */
  array o, final, dq, dk, dv, dinitial, input_grad[12], scalar_grads; /* results */
  luattn_input binding[12];
} linear_tensors;

/* Refuses options that only attention has. */
luattn_status linear_refuse_options(const cli_options *o, luattn_error *err);

/* The type of states and of gradients of inputs and scalars that kernels write. */
DLDataType linear_sums_type(const linear_tensors *t);

/* Fills tensors from files where given, with random numbers elsewhere. shape: without --shape. with_states: random ones. */
luattn_status linear_tensors_read(const luattn_spec *spec, const cli_options *o, const char *shape, bool with_states,
                                  linear_tensors *out, luattn_error *err);
/* Makes results: rows of tokens of type `rows`; states, and gradients of states, inputs and scalars of type `sums`. */
luattn_status linear_results_new(linear_tensors *t, DLDataType rows, DLDataType sums, bool backward, luattn_error *err);
void linear_results_free(linear_tensors *t);
void linear_tensors_free(linear_tensors *t);

/* Arguments that point into t, as long as it stays where it is. */
luattn_linear_args linear_tensors_args(linear_tensors *t);

/* "B1 T256 H2/4 K64 V64" */
const char *linear_tensors_text(const linear_tensors *t, char text[PROBLEM_TEXT]);

/* By the definition: hooks called in plain Lua, and what each token has written carried to each later one, without a state.
 * Fills o and final, of one entry after another. */
luattn_status linear_naive(const cli_options *o, linear_tensors *t, array *out, array *final, luattn_error *err);

int linear_run(const cli_options *o, const luattn_spec *spec);
int linear_check(const cli_options *o, const luattn_spec *spec);

#endif
