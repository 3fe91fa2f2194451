/* problem.h: shared by the files that make a problem (problem.c, problem_inputs.c) and its results (result.c). */
#ifndef LUATTN_CLI_PROBLEM_H
#define LUATTN_CLI_PROBLEM_H

#include "cli/cli.h"

/* The shape of a tensor with this many heads and the rows of q (side 0) or kv (1), and its number of axes. */
int problem_tensor_shape(const cli_problem *p, int heads, int side, int dim, int64_t shape[ARRAY_MAX_AXES]);
/* The same of lse. */
int problem_lse_shape(const cli_problem *p, int64_t shape[ARRAY_MAX_AXES]);

/* Fills p->input from files or with random numbers. */
luattn_status problem_read_inputs(const cli_options *o, cli_problem *p, uint64_t *seed, luattn_error *err);

#endif
