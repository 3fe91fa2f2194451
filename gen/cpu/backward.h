/* backward.h: the state of a backward pass on the CPU. */
#ifndef LUATTN_GEN_CPU_BACKWARD_H
#define LUATTN_GEN_CPU_BACKWARD_H

#include "gen/cpu/row_blocks.h"
#include "gen/cpu/score_row.h"

#define MAX_ROOTS (DERIVED_MAX_TERMS * 5)

/* A term with a wanted gradient: its sum, and which root its value is; its indices follow. */
typedef struct wanted_term {
  const derived_term *term;
  int root;
  double *sum;
} wanted_term;

/* Gradients of parameters: for each term a value and its indices. */
typedef struct term_program {
  const derived_terms *terms;
  cpu_program program; /* for each term its value, then its indices */
  int num_roots, num_wanted;
  wanted_term wanted[DERIVED_MAX_TERMS];
} term_program;

/* Computes gradients, or what cpu_gradient_noise, cpu_gradient_kinks or cpu_backward_score_noise writes in
 * their place. */
typedef enum purpose { GRADIENTS, PARAMETER_NOISE, TENSOR_NOISE, KINKS, SCORE_NOISE } purpose;

/* State shared by a row's tiles. */
typedef struct row_state {
  bool is_live; /* the row may have kept a score */
  double number[DERIVED_MAX_ROWS], delta, dlse;
  double size; /* SCORE_NOISE: |lse| */
} row_state;

/* P and dS of one tile: each row's kept columns, contiguous. */
typedef struct tile_stage {
  unsigned char count[CPU_TILE], column[CPU_TILE][CPU_TILE];
  double prob[CPU_TILE][CPU_TILE], ds[CPU_TILE][CPU_TILE];
} tile_stage;

/* The results of rows for columns. Rows are computed in parallel, for a run of blocks and a run of kv tiles
 * at a time. Then dk and dv of each kv tile, and each sum of a parameter, belong to one thread, which adds in
 * the order of rows: so every number of threads gives the same bits. The sizes of runs depend only on the
 * problem. */
typedef struct gradient_stage {
  row_blocks blocks;
  int most_tiles;              /* of a run */
  int first_tile, num_tiles;   /* of the current run */
  row_state *row;              /* [blocks][CPU_TILE] */
  tile_stage *tile;            /* [blocks][most_tiles] */
  double *value, *row_value;   /* of wanted terms: [blocks][most_tiles][CPU_TILE][terms][CPU_TILE],
                                * [blocks][CPU_TILE][terms] */
  size_t *offset, *row_offset; /* offsets of the values in their sums */
  int num_sums;
  double *sum[12 + 32];
} gradient_stage;

typedef struct backward {
  cpu_problem p;
  purpose purpose; /* noise: sums of squares of magnitudes instead of values */
  double unit;     /* unit roundoff of the scores, if purpose is KINKS */
  bool magnifies;  /* SCORE_NOISE: cpu_magnifies_scores */
  cpu_scores scores;
  cpu_program passes, factors; /* of row passes: weights, then sums; their factors */
  cpu_program rows, element;   /* row numbers; prob and ds */
  term_program row_terms, element_terms;
  cpu_program mod_dx[3]; /* of the mods of q, k and v */
  term_program mod_terms[3];
  cpu_view o, lse, saved, dout, dlse;
  cpu_view dq_out, dk_out, dv_out, scalars_out; /* the caller's; data NULL: not wanted */
  double *dout_rows;                            /* as doubles */
  double *dq, *dk, *dv;                         /* with respect to q', k', v' */
  double *input_grad[12]; /* NULL: not wanted, or without elements, though a row gathers even from such */
  double scalar_grad[32];
  gradient_stage stage;
} backward;

static inline bool is_noise(const backward *w) { return w->purpose == PARAMETER_NOISE || w->purpose == TENSOR_NOISE; }

static inline bool has_parameters(const backward *w) {
  return w->purpose == GRADIENTS || w->purpose == PARAMETER_NOISE || w->purpose == SCORE_NOISE;
}

/* Whether gradients of q, k and v are written as sums of squares. */
static inline bool squares_tensors(const backward *w) {
  return w->purpose == TENSOR_NOISE || w->purpose == SCORE_NOISE;
}

static inline bool squares_parameters(const backward *w) {
  return w->purpose == PARAMETER_NOISE || w->purpose == SCORE_NOISE;
}

/* gradient_terms.c */
luattn_status terms_open(backward *w, const derived_terms *terms, term_program *out, luattn_error *err);
/* Called once the gradients' arrays exist. */
void terms_want(backward *w, term_program *t);
/* Computes, for the wanted terms, the value that each lane adds, and its offset: value[term * stride + lane].
 * weight: factors of the values, one a lane; NULL: 1. */
void terms_run(const backward *w, const term_program *t, cpu_lanes *lanes, int count, const double *weight, int stride,
               double *value, size_t *offset);
/* Adds the values of one term's lanes to its sum. The sum of a scalar has no offsets, so they are neither read
 * nor written. */
void terms_add_lanes(const wanted_term *t, const double *value, const size_t *offset, int count);
/* Runs a program and adds all of its terms. For one thread at a time. */
void terms_add(const backward *w, const term_program *t, cpu_lanes *lanes, int count);

/* row_passes.c: the programs, and VAR_PASS of a row, whose final values and place `lanes` has, in `pass`. classes: of
 * the tiles of its block. */
#define PASSES_MAX (DERIVED_MAX_PASSES + DERIVED_MAX_SUMS)
luattn_status passes_open(backward *w, luattn_error *err);
void passes_run(const backward *w, cpu_lanes *lanes, const unsigned char *classes, double *pass);

/* gradient_walk.c: dq, dk, dv and the gradients of parameters. Call stage_open after everything else is
 * opened. */
luattn_status stage_open(backward *w, luattn_error *err);
void gradient_walk(backward *w);

#endif
