/* masks.h: masks against brute force over every pair of positions. */
#ifndef LUATTN_TESTS_MASKS_H
#define LUATTN_TESTS_MASKS_H

#include "gen/analysis/analysis.h"
#include "gen/ir/passes.h"

#define MAX_LEN 48

/* Inputs: 0 = "ids"[free], 1 = "prefix"[b], both i32. Scalar 0 = "window". */
typedef struct mask_case {
  arena *a;
  traced_spec t;
  mask_info m;
  ir_program *keep,
      *range;       /* kv_lo, kv_hi, q_lo, q_hi, absent ones 0 or the length; then of rows and of columns: lo,
                     * hi, those of the second interval, rest_lo, rest_hi */
  ir_program *rest; /* the rest of the mask, or `keep` if the mask has no rest */
  void *keep_scratch, *range_scratch, *rest_scratch;
  ir_bounds *bounds;

  int q_len, kv_len, b;
  int ids[MAX_LEN], prefix[2];
  double window;
  bool grid[MAX_LEN][MAX_LEN]; /* kept [q][kv] */
} mask_case;

void mask_open(mask_case *c);
void mask_close(mask_case *c);
void mask_analyse_case(mask_case *c, ir_ref predicate); /* after the predicate was built in c->t.g */

/* Brute force over c's lengths. Always checks soundness; with `exact` that classes, with `tight` that ranges
 * are the best possible. Fails the test with a message that starts with `name`. */
void mask_check(mask_case *c, const char *name, int tile_m, int tile_n, bool exact, bool tight);

#endif
