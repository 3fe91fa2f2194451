/* prepared_rows.c: moves terms of gradients that depend only on row numbers into prepare. */
#include <string.h>

#include "gen/lower/lowering.h"

/* Moves everything that a gradient computes only from row numbers into prepare, so that an element of a
 * softmax costs one multiply-add, one exp2, one subtraction and one product. */
void prepared_rows_take(lowered *f, ir_ref *roots, int n) {
  ir *g = f->g;
  const uint32_t count = ir_count(g);
  bool *need = arena_array(f->a, count, sizeof *need), *found = arena_array(f->a, count, sizeof *found);
  if (need == NULL || found == NULL) return; /* harmless: the rows stay unchanged */
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) need[roots[i]] = true;
  for (uint32_t r = count; r-- > 1;) {
    if (!need[r]) continue;
    const int mask = deps_of(&f->deps, r);
    if ((mask & DEP_ROW) != 0 && !deps_element(mask)) {
      found[r] = ir_typeof(g, r) == IR_REAL;
      if (found[r]) continue;
    }
    const ir_node *node = ir_get(g, r);
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
  }
  ir_ref from[LOWERED_MAX_ROWS], to[LOWERED_MAX_ROWS], old[LOWERED_MAX_ROWS], row[LOWERED_MAX_ROWS];
  const int most = lowered_dual_gradient(f) ? LOWERED_MAX_ROWS : DERIVED_MAX_ROWS;
  int num = 0;
  for (uint32_t r = 1; r < count; r++) {
    if (!found[r]) continue;
    if (num == most || num > f->num_rows) return; /* more numbers per row than before: not worth it */
    from[num++] = r;
  }
  for (int i = 0; i < f->num_rows; i++) old[i] = ir_variable(g, VAR_ROW, (uint32_t)i);
  for (int j = 0; j < num; j++) {
    to[j] = ir_variable(g, VAR_ROW, (uint32_t)j);
    row[j] = ir_substitute(g, from[j], old, f->row, f->num_rows);
  }
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) roots[i] = ir_substitute(g, roots[i], from, to, num);
  memcpy(f->row, row, (size_t)num * sizeof *row);
  f->num_rows = num;
}
