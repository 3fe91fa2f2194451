/* derivative.h: the derivative column of ops.def, for reverse mode (grad.c) and forward mode (tangent.c).
 *
 * The column gives what a node contributes to the adjoint of an argument, linear in the node's own adjoint d. Forward mode
 * reads it with the argument's tangent as d: what the argument contributes to the node's tangent. */
#ifndef LUATTN_GEN_DERIVATIVE_H
#define LUATTN_GEN_DERIVATIVE_H

#include "gen/ir/ir.h"

/* Whether any argument takes part. */
bool ir_has_derivative(ir_op op);

bool ir_is_zero(const ir *g, ir_ref r); /* IR_NONE, or a constant 0 */

/* Where adjoints, or tangents, are nonzero.
 *
 * A node of an arm that is not taken has the adjoint 0, and its derivative may be infinite or NaN there: it must not be
 * multiplied by that 0. So contributions stay below the selects that guard them. The condition under which a node is
 * used, the OR over all its uses, is read off its adjoint, whose selects say where it is 0. Of a tangent likewise: where a
 * node's value is that of an arm without one, its users contribute nothing. */
typedef struct reach {
  ir *g;
  ir_ref always, never;
  ir_ref *memo; /* [capacity], IR_NONE: unknown */
  uint32_t capacity;
  bool products; /* factors of an adjoint are finite, so that its selects also say where the product is 0 */
} reach;

bool reach_open(reach *w, ir *g); /* false: out of memory */

/* Returns a condition for where d may differ from 0, derived from its selects and from sums and multiples of them. */
ir_ref reach_of(reach *w, ir_ref d);

/* The contribution of node r, which is *n, with adjoint d to its argument k; or of argument k with tangent d to the node.
 * Where d is `select(c, d', 0)` the select moves outermost; the result is the same since contributions are linear in d.
 * Where d is a sum of such, the contribution is guarded by the condition of d, unless `shown` says that it shows that
 * condition itself, as -d does. IR_NONE: 0. */
ir_ref ir_contribution(reach *w, reach *shown, const ir_node *n, int k, ir_ref r, ir_ref d);

/* a + b. Merges what the arms of one select contribute separately, also where a is a sum already. */
ir_ref ir_sum_of(ir *g, ir_ref a, ir_ref b);

#endif
