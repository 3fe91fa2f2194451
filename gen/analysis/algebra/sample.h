/* sample.h: random rows of scores, which propose what a derivation claims, and check it.
 *
 * "This maximum drops out" and "this factor does not depend on the score" are statements about functions, which
 * algebra.h proves. Random points in double precision, with every scalar and input perturbed, say which are worth a
 * proof, and with what constant; what they contradict is not claimed, whatever algebra says. Rows have 1 to 4096 scores
 * of many sizes and signs, of which up to 16 differ; a row on which the function is not finite is left out. Scalars are
 * at and near their defaults, at 1, at random, and in some rows over 60 orders of magnitude. A statement may fail in
 * one arm of a condition only, so edges.c draws some of the scores, and of everything else, where conditions flip. It
 * may also hold wherever a weight vanishes, so far_rows.c draws scores near the large numbers of a
 * function. */
#ifndef LUATTN_GEN_SAMPLE_H
#define LUATTN_GEN_SAMPLE_H

#include "gen/analysis/algebra/split.h"
#include "gen/ir/passes.h"

/* A function without conditions has one form, and a few rows are enough. */
#define SAMPLE_FEW_BLOCKS 4
#define SAMPLE_BLOCKS 32
#define SAMPLE_BLOCK_ROWS 9
#define SAMPLE_FAR_BLOCKS 8
#define SAMPLE_ROWS ((SAMPLE_BLOCKS + SAMPLE_FAR_BLOCKS) * SAMPLE_BLOCK_ROWS) /* at most */
#define SAMPLE_LANES ((SAMPLE_BLOCKS + SAMPLE_FAR_BLOCKS) * IR_LANES)         /* at most */
/* The only near rows with scores beyond exp's range, and on which two steps are compared with one. */
#define SAMPLE_FIRST_ROWS (SAMPLE_FEW_BLOCKS * SAMPLE_BLOCK_ROWS)
#define SAMPLE_EDGES 16
#define SAMPLE_LARGE 16 /* exp and its like are almost saturated this far off */

typedef double *sample_lanes; /* [sample.lanes], one value per score */

typedef struct sample {
  arena *a; /* scratch: programs and results */
  const traced_spec *t;
  int blocks, rows, lanes;
  int near_rows;              /* the rows before those of far_rows.c */
  int first[SAMPLE_ROWS + 1]; /* row r has lanes first[r] .. first[r + 1) */
  int row_of[SAMPLE_LANES];
  double count[SAMPLE_LANES]; /* how often the row has the lane's score */
  bool valid[SAMPLE_ROWS];
  bool extreme[SAMPLE_ROWS]; /* its scalars are: steps are compared on it, and slopes are not, which it rounds to
                                nothing */
  bool moved;                /* scores and scalars are evaluated next to what they are: sample_find_slack */
  bool scaled[SAMPLE_ROWS];  /* a far row of the size that a factor demands */
  double slack[SAMPLE_ROWS]; /* what rounding adds to a relative error where numbers are large */
  sample_lanes score, zeros;
  sample_lanes red[SPEC_MAX_RED], state[SPEC_MAX_STATE], final[SPEC_MAX_FINAL]; /* VAR_RED, VAR_STATE, VAR_FINAL */
  sample_lanes other[SPEC_MAX_STATE];    /* VAR_OTHER; whoever evaluates it sets it */
  int argmax[SPEC_MAX_RED][SAMPLE_ROWS]; /* lane of each REDUCE_MAX */
  int block;                             /* the block being evaluated */
  double edge[SAMPLE_EDGES]; /* numbers that conditions compare with: some rows have inputs, positions and so
                              * on near them */
  int num_edges;
} sample;

/* Draws a few rows, or SAMPLE_ROWS. False: out of memory. */
bool sample_init(sample *s, arena *a, const traced_spec *t);
bool sample_grow(sample *s);
sample_lanes sample_buffer(sample *s); /* zeros; NULL: out of memory */

/* out[i] = values of roots[i] at every lane, in new buffers; s->zeros where roots[i] is IR_NONE. False: out of
 * memory. */
bool sample_eval(sample *s, const ir_ref *roots, int n, sample_lanes *out);
/* The same of the lanes of the first `blocks`, in buffers of this arena. */
bool sample_eval_first(sample *s, arena *a, int blocks, const ir_ref *roots, int n, sample_lanes *out);

/* The same in two steps; the second may be repeated with other scores. out[i]: [s->lanes]. */
typedef struct sample_program {
  const ir_program *program;
  void *scratch;
  double **to;
  int count;
} sample_program;
bool sample_compile(sample *s, const ir_ref *roots, int n, sample_program *out); /* false: out of memory */
void sample_run(sample *s, const sample_program *p, const sample_lanes *out);

/* Draws more rows if there are conditions, moves some scores to where conditions on the score under `roots`
 * flip, and records the numbers that other conditions compare with. Call it before anything is evaluated.
 * False: out of memory. */
bool sample_at_edges(sample *s, ir *g, const ir_ref *roots, int n);
/* Adds rows whose scores lie near the large numbers that appear under `roots`, or are as large as small factors
 * of a score demand; leaves the sample as it is if there are none. Some of them have moderate scalars in place
 * of large ones. Call it after sample_at_edges. False: out of memory. */
bool sample_far(sample *s, const ir *g, const ir_ref *roots, int n);
/* Leaves out far rows of very low scores that only a condition on reductions under `roots` tells from near ones:
 * such a condition, as `m < -1e8`, is there for rows that the mask leaves nothing of. Call it after
 * sample_reduce. False: out of memory. */
bool sample_leave_out_guards(sample *s, const ir *g, const ir_ref *roots, int n);
/* Reports conditions under `roots` that have the same answer on all valid rows. False: out of memory. */
bool sample_unmet(sample *s, const ir *g, const ir_ref *roots, int n, text *how);
uint64_t sample_hash(uint64_t a, uint64_t b);
double sample_draw_score(int row, int lane);
/* Makes room for more rows; near ones keep their scores, and scores of the others are 0. */
bool sample_extend(sample *s, int blocks);

/* Evaluates and reduces term[0 .. n) in order into new s->red, over lanes where part[lane] == which (part NULL:
 * all). */
bool sample_reduce(sample *s, const ir_op *kind, const ir_ref *term, int n, const uint8_t *part, int which);

/* Marks rows invalid where `x` is not finite. */
void sample_require_finite(sample *s, const double *x);
int sample_count_valid(const sample *s); /* number of near rows */
double sample_row_length(const sample *s, int row);
bool sample_reads_scalars(const sample *s, const ir_ref *roots, int n);
/* How much of each lane's x rounding may make, given what it is of the moved sample: into the slack of all rows, or of
 * extreme ones. Those on which that is much are left out. */
void sample_find_slack(sample *s, const double *x, const double *moved, bool all);

#endif
