/* tangent.c: forward mode: tangents of an expression, in topological order. */
#include "gen/ir/derivative.h"
#include "gen/ir/graph.h"
#include "gen/ir/passes.h"

/* used[r]: some root is reached from r. */
static void mark_used(const ir *g, uint8_t *used, const ir_ref *y, int n_y, ir_ref top) {
  for (int i = 0; i < n_y; ++i)
    if (y[i] != IR_NONE) used[y[i]] = 1;
  for (ir_ref r = top; r > 0; --r) {
    const ir_node *n = ir_get(g, r);
    for (int k = 0; used[r] && k < n->nargs; ++k) used[n->arg[k]] = 1;
  }
}

/* Arguments precede their users. */
static void walk(ir *g, const uint8_t *used, ir_ref *tangent, ir_ref top) {
  reach w;
  if (!reach_open(&w, g)) return;
  for (ir_ref r = 1; r <= top; ++r) {
    const ir_node n = *ir_get(g, r);
    if (!used[r] || n.type != IR_REAL || !ir_has_derivative((ir_op)n.op)) continue;
    ir_set_line(g, n.line);
    for (int k = 0; k < n.nargs; ++k) {
      const ir_ref d = tangent[n.arg[k]];
      if (ir_typeof(g, n.arg[k]) == IR_REAL && !ir_is_zero(g, d))
        tangent[r] = ir_sum_of(g, tangent[r], ir_contribution(&w, &w, &n, k, r, d));
    }
  }
}

void ir_tangent(ir *g, const ir_ref *y, int n_y, const ir_ref *wrt, const ir_ref *d, int n_wrt, ir_ref *out) {
  for (int i = 0; i < n_y; ++i) out[i] = IR_NONE;
  if (g->failed) return;
  ir_ref top = 0;
  for (int i = 0; i < n_y; ++i)
    if (y[i] > top) top = y[i];
  ir_ref *tangent = ir_push(g, (size_t)top + 1, sizeof *tangent);
  if (tangent == NULL) return;
  uint8_t *used = ir_push(g, (size_t)top + 1, sizeof *used);
  if (used != NULL) {
    const uint32_t line = g->line;
    mark_used(g, used, y, n_y, top);
    for (int j = 0; j < n_wrt; ++j)
      if (wrt[j] != IR_NONE && wrt[j] <= top && !ir_is_zero(g, d[j]))
        tangent[wrt[j]] = ir_sum_of(g, tangent[wrt[j]], d[j]);
    walk(g, used, tangent, top);
    for (int i = 0; i < n_y; ++i)
      if (y[i] != IR_NONE && !ir_is_zero(g, tangent[y[i]])) out[i] = tangent[y[i]];
    g->line = line;
    ir_pop(g);
  }
  ir_pop(g);
}
