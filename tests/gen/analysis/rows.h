/* rows.h: builds small specs by hand and evaluates them on one row, for the tests of analysis/. */
#ifndef LUATTN_TESTS_ROWS_H
#define LUATTN_TESTS_ROWS_H

#include "gen/ir/passes.h"
#include "gen/spec.h"

#define MAX_ROW 64

/* Online functions for the tests, each built as a user would write it. */
typedef enum online_kind {
  SOFTMAX,
  SOFTMAX_FORWARD,
  SOFTMAX_GIVEN,
  SOFTMAX_ONE,
  SINK,
  TEMPERATURE,
  RETENTION,
  RETENTION_DETACHED,
  SIGMOID,
  RELU,
  RELU_SQUARED,
  IDENTITY,
  RELU_L2,
  NUM_ONLINE
} online_kind;

typedef struct fixture {
  arena *a;
  traced_spec t;
  uint64_t seed;
} fixture;

void fixture_open(fixture *f); /* 2 scalars "tau" = 1.3 and "beta" = 0.7; inputs slopes[h] and table[free] with grad */
void fixture_close(fixture *f);
void fixture_online(fixture *f, online_kind kind);
double fixture_uniform(fixture *f, double lo, double hi);
int fixture_int(fixture *f, int n); /* 0 .. n - 1 */

/* Values of all variables that an expression may read, for one row. */
typedef struct row_env {
  double var[VAR_COUNT];
  double state[SPEC_MAX_STATE], other[SPEC_MAX_STATE], final[DERIVED_MAX_ROWS + 1], row[DERIVED_MAX_ROWS],
      red[SPEC_MAX_RED], scalar[2];
  double slopes[4], table[2 * MAX_ROW];
} row_env;

double row_eval(const fixture *f, ir_ref r, const row_env *e); /* one lane */

/* The differentiated function of a row: loss = g * O + dlse * lse, O = sum of P_j v_j. */
typedef struct row_case {
  int n;
  double t[MAX_ROW], v[MAX_ROW];
  double g, dlse;
  row_env env;
} row_case;

void row_draw(fixture *f, row_case *c, int n, double size);

/* What forward saves for one row. */
typedef struct row_result {
  double p[MAX_ROW], state[SPEC_MAX_STATE], out, lse;
} row_result;

typedef struct row_gradient {
  double p[MAX_ROW], dt[MAX_ROW], scalar[2], slopes[4], table[2 * MAX_ROW];
} row_gradient;

/* Runs the derived backward on one row, given what forward saved. */
void row_backward(const fixture *f, const derived_spec *d, const row_case *c, const row_result *r, row_gradient *out);

#endif
