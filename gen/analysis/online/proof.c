/* proof.c: says in words what was proved: for `luattn emit --stage grad`. */
#include "gen/analysis/online/steps.h"

enum { MAX_DEPTH = 8 };

static void write_expression(const derivation *d, text *out, ir_ref r, int depth);

static void write_call(const derivation *d, text *out, const ir_node *n, int depth) {
  text_add(out, "%s(", ir_op_name((ir_op)n->op));
  for (int i = 0; i < n->nargs; i++) {
    if (i > 0) text_add(out, ", ");
    write_expression(d, out, n->arg[i], depth - 1);
  }
  text_add(out, ")");
}

static void write_variable(const derivation *d, text *out, const ir_node *n) {
  const uint32_t i = ir_index_of(n);
  switch (ir_var_of(n)) {
    case VAR_STATE:
      text_add(out, "%s", d->o->state_name[i]);
      return;
    case VAR_SCALAR:
      text_add(out, "%s", d->t->scalar_name[i]);
      return;
    case VAR_RED:
      for (int k = 0; k < d->o->num_state; k++) {
        if (d->next[k] != d->red[i]) continue;
        text_add(out, "%s", d->o->state_name[k]);
        return;
      }
      text_add(out, "%s %u", d->step.kind[i] == IR_REDUCE_MAX ? "maximum" : "sum", (unsigned)i + 1);
      return;
    default:
      text_add(out, "%s", ir_var_name(ir_var_of(n)));
  }
}

static void write_binary(const derivation *d, text *out, const ir_node *n, const char *sign, int depth) {
  text_add(out, "(");
  write_expression(d, out, n->arg[0], depth - 1);
  text_add(out, " %s ", sign);
  write_expression(d, out, n->arg[1], depth - 1);
  text_add(out, ")");
}

static void write_expression(const derivation *d, text *out, ir_ref r, int depth) {
  const ir_node n = *ir_get(d->g, r);
  double c;
  if (ir_is_const(d->g, r, &c)) {
    text_add(out, "%.9g", c);
  } else if (n.op == IR_VAR) {
    write_variable(d, out, &n);
  } else if (n.op == IR_LOAD) {
    text_add(out, "%s[..]", d->t->input[n.imm.integer].name);
  } else if (depth == 0) {
    text_add(out, "..");
  } else {
    switch (n.op) {
      case IR_ADD:
        write_binary(d, out, &n, "+", depth);
        return;
      case IR_SUB:
        write_binary(d, out, &n, "-", depth);
        return;
      case IR_MUL:
        write_binary(d, out, &n, "*", depth);
        return;
      case IR_DIV:
        write_binary(d, out, &n, "/", depth);
        return;
      case IR_LT:
        write_binary(d, out, &n, "<", depth);
        return;
      case IR_LE:
        write_binary(d, out, &n, "<=", depth);
        return;
      case IR_NEG:
        text_add(out, "-");
        write_expression(d, out, n.arg[0], depth - 1);
        return;
      default:
        write_call(d, out, &n, depth);
    }
  }
}

void proof_of_factor(derivation *d, int k) {
  text_add(d->how, "; log prob moves with the %s by ", reduction_name(d, k));
  write_expression(d, d->how, d->a_delta[k], MAX_DEPTH);
  text_add(d->how, ", on %d arm%s", d->num_arms, d->num_arms == 1 ? "" : "s");
}
