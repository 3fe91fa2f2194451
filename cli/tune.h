/* tune.h: compiles the candidate tiles of a pass on a device, runs them, compares with the plan's own choice,
 * and times them. */
#ifndef LUATTN_CLI_TUNE_H
#define LUATTN_CLI_TUNE_H

#include "cli/cli.h"

#define TUNE_MAX_SHAPES 8
#define TUNE_MAX_CANDIDATES 66 /* two choices of the plan, and what luattn_plan_candidates lists */

typedef struct tune_candidate {
  luattn_tiles tiles;
  luattn_box_pair boxes; /* over a grid: what is chosen, whose tiles follow from it; else zeros */
  luattn_kernel *kernel; /* NULL: refused, or out of time; `why` says which */
  uint32_t registers, local_bytes;
  double compile_ms; /* 0: it was in the cache */
  bool is_wrong;     /* its results differ from those of the plan's choice; `why` says where */
  char why[320];
  double ms[TUNE_MAX_SHAPES]; /* medians by shape; 0: not measured */
} tune_candidate;

/* One pass. The plan's own choices come first: for long lengths and, if it differs, for short ones. */
typedef struct tune_field {
  const luattn_spec *spec;
  luattn_target target; /* except for lengths, device, tiles and boxes */
  int axes;             /* of a grid of several; else 0 */
  int num_defaults, count;
  tune_candidate candidate[TUNE_MAX_CANDIDATES];
} tune_field;

double tune_now(void); /* seconds */
enum { TUNE_NAME = 64 };
const char *tune_tiles_name(const luattn_tiles *t, char out[TUNE_NAME]);
const char *tune_boxes_name(const luattn_box_pair *pair, int axes, char out[TUNE_NAME]);
const char *tune_name(const tune_field *f, const tune_candidate *c, char out[TUNE_NAME]); /* of either */
/* Makes what a candidate chooses part of a target. */
void tune_take(const tune_field *f, const tune_candidate *c, luattn_target *target);
/* The class of a problem's lengths, or with luattn_target.decode of its rows of a kv head. */
luattn_lengths tune_lengths(const tune_field *f, const cli_problem *p);
/* The plan's choice for these lengths, and whether candidate i competes with it there. */
const tune_candidate *tune_default(const tune_field *f, luattn_lengths lengths);
bool tune_competes(const tune_field *f, int i, luattn_lengths lengths);

/* Compiles and loads the candidates until `deadline`. Fails if the plan's own choice does. */
luattn_status tune_compile(cli_gpu *g, tune_field *f, double deadline, luattn_error *err);
/* Likewise over a grid, for the extents of a problem, whose q and k need no data. */
luattn_status tune_compile_boxes(cli_gpu *g, tune_field *f, const cli_problem *p, double deadline, luattn_error *err);
/* Tensors of a problem's extents and heads, without data. */
typedef struct tune_call {
  int64_t shape[2][ARRAY_MAX_AXES];
  DLTensor tensor[2];
  luattn_args args;
} tune_call;
const luattn_args *tune_extents(const cli_problem *p, tune_call *out);
/* Lists these candidates: the first is the plan's choice. */
luattn_status tune_list_boxes(tune_field *f, const cli_problem *p, luattn_error *err);
/* Runs, checks and times the passes of one problem, in rounds that take each candidate in turn: `repeat`
 * rounds, or fewer at `deadline`, but at least three. */
luattn_status tune_measure(cli_gpu *g, const cli_problem *p, tune_field *f, int passes, int shape, int repeat,
                           double deadline, luattn_error *err);
void tune_close(tune_field *f);

/* Whether two kernels' results agree up to their roundings. Otherwise why[size] says where they do not. */
bool tune_agrees(const char *name, const array *want, const array *got, luattn_dtype dtype, char *why, size_t size);

#endif
