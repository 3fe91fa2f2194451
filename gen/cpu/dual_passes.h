/* dual_passes.h: row passes (derived_pass of gen/spec.h) with their tangents, of a row whose elements a dual_row has. */
#ifndef LUATTN_GEN_CPU_DUAL_PASSES_H
#define LUATTN_GEN_CPU_DUAL_PASSES_H

#include "gen/cpu/dual_rows.h"

typedef struct dual_passes {
  const derived_spec *derived;
  cpu_program element, factors; /* weights, then sums; factors of passes: each its values, then their tangents */
} dual_passes;

/* A row of dO and its tangent: [dim_v]. */
typedef struct dual_dout {
  double *x, *x_t;
} dual_dout;

luattn_status dual_passes_open(cpu_problem *p, const backward_tangents *b, dual_passes *out, luattn_error *err);
/* dO . v and its tangent of the lanes' keys, through dropout. */
void dual_products(const dual_rows *f, const dual_dout *dout, const cpu_lanes *lanes, int count, double *dp,
                   double *dp_t);
/* Writes VAR_PASS of the row, whose final values and place `lanes` has, and right after them their tangents. */
#define DUAL_PASSES_MAX (DERIVED_MAX_PASSES + DERIVED_MAX_SUMS)
void dual_passes_run(const dual_passes *w, const dual_rows *f, const dual_row *row, const dual_dout *dout,
                     cpu_lanes *lanes, double pass[2 * DUAL_PASSES_MAX]);

#endif
