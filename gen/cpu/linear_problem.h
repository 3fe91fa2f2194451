/* linear_problem.h: one call of linear attention on the CPU: its arguments as views, and the compiled programs of hooks. */
#ifndef LUATTN_GEN_CPU_LINEAR_PROBLEM_H
#define LUATTN_GEN_CPU_LINEAR_PROBLEM_H

#include "gen/analysis/linear/linear_adjoint.h"
#include "gen/cpu/cpu.h"
#include "luattn/linear.h"

/* The programs of one hook. NULL: no roots. */
typedef struct linear_programs {
  int channels, width; /* of a row; of the values of a token: 1 of a decay or strength that is one for all */
  const ir_program *sums, *value;
  const ir_program *weights, *dx, *by_value, *by_sums; /* backward */
} linear_programs;

typedef struct linear_problem {
  arena *a;
  const luattn_spec *spec;
  const derived_linear *derived;
  ir *g; /* a clone: the spec's own is shared */
  const luattn_linear_args *args;
  int entries, heads, heads_v, group, k_dim, v_dim;
  int state_v;       /* channels of v that a state has */
  int64_t rows;      /* of the tensors' axis of tokens */
  int64_t most;      /* tokens of the longest entry */
  int64_t *starts;   /* [entries + 1] of packed sequences; else NULL */
  int64_t *state_of; /* [entries]: rows of states, -1: none; NULL: row i is entry i's */
  bool kv_layout;
  bool decides_in_double;
  uint32_t double_inputs;
  double scale, scalar[32];
  cpu_view q, k, v, o, dout, dq, dk, dv; /* [batch, tokens, heads, dim]; data NULL: not given */
  cpu_view first, last, dfirst, dlast;   /* states */
  cpu_view between; /* states before each `every` tokens, 0: none are wanted; rows as linear.h has them */
  int64_t every, between_count;
  cpu_view input[12], input_grad[12], scalar_grads;
  linear_programs hook[LINEAR_HOOKS];
  size_t scratch_bytes; /* the most that any program needs */
  int most_roots;       /* likewise: values of a program */
} linear_problem;

/* Checks the arguments of a pass and compiles the hooks. Errors: LUATTN_INVALID, LUATTN_NO_MEMORY. */
luattn_status linear_open(const luattn_spec *spec, const luattn_linear_args *args, bool is_forward, arena *a,
                          linear_problem *out, luattn_error *err);

/* An entry's first row, and its tokens; the batch index of its rows. */
static inline int64_t linear_start(const linear_problem *p, int entry) {
  return p->starts != NULL ? p->starts[entry] : 0;
}
static inline int64_t linear_tokens(const linear_problem *p, int entry) {
  return p->starts != NULL ? p->starts[entry + 1] - p->starts[entry] : p->rows;
}
static inline int linear_batch(const linear_problem *p, int entry) { return p->starts != NULL ? 0 : entry; }
/* The row of the states that the entry has; -1: it has none, and is left alone. */
static inline int64_t linear_state_row(const linear_problem *p, int entry) {
  return p->state_of != NULL ? p->state_of[entry] : entry;
}

/* Where a hook runs: `count` tokens of a value head, or in query_mod and key_mod of a head of q. */
typedef struct linear_site {
  const linear_problem *p;
  int entry, head;
  int64_t first; /* the first one's position in its entry */
  int count;
  void *scratch;
  double *roots; /* [most_roots][IR_LANES] */
} linear_site;

/* Where gradients of inputs and scalars are added; NULL: not wanted. */
typedef struct linear_sums {
  double *input[12];
  double *scalar;
} linear_sums;

/* What a hook gives for tokens of a site: out [count][width]. x [count][channels]; red [count][CHANNEL_SUMS_MAX] gets the
 * sums. */
void linear_hook_run(const linear_site *s, linear_hook_id id, const double *x, double *red, double *out);

/* Its derivative: with grad [count][width], adds to dx [count][channels] (NULL: not wanted) and to sums. row: room as red */
void linear_hook_back(const linear_site *s, linear_hook_id id, const double *x, const double *red, const double *grad,
                      double *row, double *dx, const linear_sums *sums);

#endif
