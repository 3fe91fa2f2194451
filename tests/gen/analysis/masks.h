/* masks.h: compares masks with brute force over every pair of positions. */
#ifndef LUATTN_TESTS_MASKS_H
#define LUATTN_TESTS_MASKS_H

#include "gen/analysis/masks/mask.h"
#include "gen/ir/passes.h"

#define MAX_LEN 48

/* Inputs: 0 = "ids"[free], 1 = "prefix"[b], both i32. Scalar 0 = "window". */
typedef struct mask_case {
  arena *a;
  traced_spec t;
  mask_info m;
  ir_program *keep, *range; /* kv_lo, kv_hi, q_lo, q_hi, or 0 and the length if absent; then for rows and for columns:
                             * lo and hi of both intervals, rest_lo, rest_hi */
  ir_program *rest;         /* `keep` if there is none */
  void *keep_scratch, *range_scratch, *rest_scratch;
  ir_bounds *bounds;

  int q_len, kv_len, b;
  int ids[MAX_LEN], prefix[2];
  double window;
  bool grid[MAX_LEN][MAX_LEN]; /* [q][kv]: the mask keeps the pair */
} mask_case;

void mask_open(mask_case *c);
void mask_close(mask_case *c);
void mask_analyse_case(mask_case *c, ir_ref predicate); /* the predicate must be in c->t.g */

/* Compares the analysis with brute force over c's lengths. Always checks soundness; `exact` also checks that
 * tile classes, and `tight` that ranges, are the best possible. A failure message starts with `name`. */
void mask_check(mask_case *c, const char *name, int tile_m, int tile_n, bool exact, bool tight);

#endif
