/* dual_rows.h: rows of forward and their tangents, in double. A row is one step of the online function over all that it
 * keeps, which is what backward differentiates: so a maximum is one of the whole row, whose ties share alike in all
 * modes. */
#ifndef LUATTN_GEN_CPU_DUAL_ROWS_H
#define LUATTN_GEN_CPU_DUAL_ROWS_H

#include "gen/analysis/specs/spec_tangents.h"
#include "gen/cpu/row_blocks.h"
#include "gen/cpu/score_row.h"

/* What a row keeps: of its elements, one after the other. */
typedef struct dual_row {
  int count;
  double *kv_idx, *raw, *raw_t; /* scale * dot, and its tangent */
  double *x, *x_t;              /* after score_mod */
  double *prob, *prob_t;
} dual_row;

typedef struct dual_rows {
  cpu_problem p;
  cpu_scores scores;
  spec_tangents tangents;
  int num_state;
  cpu_program mod[3]; /* tangents of q, k and v after their mods; without one where there is none */
  cpu_program score_mod, init, term[SPEC_MAX_RED], prob, step, finish; /* each its values, then their tangents */
  cpu_view given[3];                                                   /* of luattn_tangents: q, k and v */
  double *tangent[3];                                                  /* after their mods; NULL: 0 */
  dual_row *row;                                                       /* of each thread */
  row_blocks blocks;
} dual_rows;

/* Numbers of a row's end; FACTOR: that of O. */
enum { FACTOR, FACTOR_TANGENT, LSE, LSE_TANGENT, NUM_LAST };
/* The state of a row after its step, its end, A = sum p v and B, its tangent. */
typedef struct row_end {
  double state[SPEC_MAX_STATE], state_t[SPEC_MAX_STATE], last[NUM_LAST];
  double *A, *B; /* [dim_v], of the worker */
} row_end;

/* Opens a call, but for what it writes. */
luattn_status dual_rows_open(dual_rows *f, const cpu_call *given, bool is_forward, const luattn_tangents *t, arena *a,
                             luattn_error *err);
/* Starts threads; then converts the call's tensors and tangents. */
luattn_status dual_rows_start(dual_rows *f, int threads, luattn_error *err);
void dual_rows_convert(dual_rows *f);
/* Computes a row, whose place `lanes` has, but for A and B; its elements are f->row[worker]. Where it keeps nothing its
 * state is the initial one. */
void dual_row_run(const dual_rows *f, int worker, cpu_lanes *lanes, const unsigned char *class_of_tile, row_end *end);
/* Puts its weights, and their tangents, through dropout, and writes A = sum p v and B = sum (p' v + p v'). */
void dual_row_sum(const dual_rows *f, int worker, cpu_lanes *lanes, const row_end *end);

/* A program of n values, then their tangents. */
luattn_status dual_open(cpu_problem *p, const ir_ref *value, const ir_ref *tangent, int n, cpu_program *out,
                        luattn_error *err);

#endif
