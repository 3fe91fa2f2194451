/* print.c: prints an IR as text. */
#include <inttypes.h>

#include "common/real.h"
#include "gen/ir/graph.h"
#include "gen/ir/passes.h"

static void print_real(text *out, double x) {
  char digits[REAL_SIZE];
  text_add(out, "%s", real_write(x, 15, digits));
}

static void print_args(text *out, const ir_node *n, const uint32_t *number) {
  for (int i = 0; i < n->nargs; ++i) text_add(out, "%s%%%" PRIu32, i > 0 ? ", " : "", number[n->arg[i]]);
}

static void print_node(const ir *g, text *out, ir_ref r, const uint32_t *number, const char *const *input_names) {
  const ir_node *n = ir_get(g, r);
  text_add(out, "%%%" PRIu32 " = %s ", number[r], ir_op_name((ir_op)n->op));
  switch (n->op) {
    case IR_CONST_REAL:
      print_real(out, n->imm.real);
      break;
    case IR_CONST_INT:
      text_add(out, "%" PRId64, n->imm.integer);
      break;
    case IR_CONST_BOOL:
      text_add(out, "%s", n->imm.integer != 0 ? "true" : "false");
      break;
    case IR_VAR:
      text_add(out, "%s", ir_var_name(ir_var_of(n)));
      if (ir_var_indexed(ir_var_of(n)) && !(ir_is_line(g) && ir_var_is_along_axis(ir_var_of(n))))
        text_add(out, "[%" PRIu32 "]", ir_index_of(n));
      break;
    case IR_LOAD:
      if (input_names != NULL)
        text_add(out, "%s[", input_names[n->imm.integer]);
      else
        text_add(out, "input%" PRId64 "[", n->imm.integer);
      print_args(out, n, number);
      text_add(out, "]");
      break;
    default:
      print_args(out, n, number);
  }
  text_add(out, " : %s\n", ir_type_name((ir_type)n->type));
}

void ir_print(const ir *g, text *out, const ir_ref *roots, const char *const *names, int n,
              const char *const *input_names) {
  /* Nodes are numbered as they are printed, so that other nodes of g do not show. */
  uint32_t *number = arena_array(out->a, g->count, sizeof *number);
  if (number == NULL) {
    out->failed = true;
    return;
  }
  for (int i = 0; i < n; ++i) number[roots[i]] = 1;
  for (ir_ref r = g->count - 1; r > 0; --r) {
    if (number[r] == 0) continue;
    const ir_node *node = ir_get(g, r);
    for (int k = 0; k < node->nargs; ++k) number[node->arg[k]] = 1;
  }
  uint32_t next = 1;
  for (ir_ref r = 1; r < g->count; ++r) {
    if (number[r] == 0) continue;
    number[r] = next++;
    print_node(g, out, r, number, input_names);
  }
  for (int i = 0; i < n; ++i) {
    if (roots[i] == IR_NONE)
      text_add(out, "%s = none\n", names[i]);
    else
      text_add(out, "%s = %%%" PRIu32 "\n", names[i], number[roots[i]]);
  }
}
