/* write.c: prints one statement per node, in the order of the IR, each with the line of the spec that it came
 * from.
 */
#include <math.h>
#include <string.h>

#include "common/real.h"
#include "gen/emit/write.h"

void body_begin(writer *w, int has, const char *state) {
  w->has = has;
  w->num_temps = 0;
  w->state = state;
  w->outlined = w->calls_ops = false;
  w->element = "0";
  memset(w->temp, 0, w->f->num_nodes * sizeof *w->temp);
}

static const char *real_literal(writer *w, double x) {
  if (isinf(x)) return x > 0 ? "infinity<Real>()" : "-infinity<Real>()";
  if (isnan(x)) return "(infinity<Real>() - infinity<Real>())";
  char digits[REAL_SIZE];
  return writer_format(w, "Real(%s)", real_write(x, 1, digits));
}

/* INT has 32 bits on the device. A larger constant occurs only in comparisons, so it is clamped to the range
 * of INT. */
static const char *int_literal(writer *w, long long x) {
  if (ir_any_wide(w->f->g) && (x > 2147483647 || x < -2147483647))
    return writer_format(w, x < 0 ? "(%lldll)" : "%lldll", x);
  if (x > 2147483647) x = 2147483647;
  if (x < -2147483647) x = -2147483647;
  return writer_format(w, x < 0 ? "(%lld)" : "%lld", x);
}

static const char *variable(writer *w, const ir_node *n) { return offsets_variable(w, n, writer_own(w, n)); }

static bool is_statement(const ir_node *n) {
  return n->op != IR_CONST_REAL && n->op != IR_CONST_INT && n->op != IR_CONST_BOOL && n->op != IR_VAR &&
         n->op != IR_STOP_GRADIENT;
}

const char *body_value(writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  if (w->outlined && w->param[r] != 0) return writer_parameter(w, r);
  if (writer_in_slot(w, r)) return w->slot_name[r];
  switch (n->op) {
    case IR_CONST_REAL:
      return real_literal(w, n->imm.real);
    case IR_CONST_INT:
      return int_literal(w, n->imm.integer);
    case IR_CONST_BOOL:
      return n->imm.integer ? "true" : "false";
    case IR_VAR:
      return variable(w, n);
    case IR_STOP_GRADIENT:
      return body_value(w, n->arg[0]);
    default:
      return writer_format(w, "t%d", w->temp[r]);
  }
}

/* Argument k of r in the type that r computes in: of 64 bits, or of the 32 of kernels of float. */
static const char *operand(writer *w, ir_ref r, int k) {
  const ir *g = w->f->g;
  const ir_node *n = ir_get(g, r), *x = ir_get(g, n->arg[k]);
  const char *value = body_value(w, n->arg[k]);
  const bool is_wide = writer_is_wide(w, n->arg[k]), real = x->type == IR_REAL;
  if (!ir_any_wide(g) || x->type == IR_BOOL || (real && w->f->plan->dtype == LUATTN_F64)) return value;
  const bool compares = ir_compares_wide(g, r), wants_wide = compares || (ir_is_wide(g, r) && x->type == n->type);
  if (wants_wide == is_wide) return value;
  if (!wants_wide) return real ? writer_format(w, "Real(%s)", value) : value; /* TO_REAL converts 64 bits as well */
  if (!real) return writer_format(w, "i64(%s)", value);
  if (x->op != IR_CONST_REAL || isinf(x->imm.real) || isnan(x->imm.real)) return writer_format(w, "double(%s)", value);
  char digits[REAL_SIZE];
  return writer_format(w, "double(%s)", real_write(x->imm.real, 1, digits));
}

const char *body_int(writer *w, ir_ref r) {
  const char *value = body_value(w, r);
  return writer_is_wide(w, r) ? writer_format(w, "narrow(%s)", value) : value;
}

/* Adds `a + b` for "(%0 + %1)": drops parentheses around a whole statement. */
static void add_spelling(writer *w, const char *spelling, ir_ref r) {
  size_t length = strlen(spelling);
  if (spelling[0] == '(' && spelling[length - 1] == ')') {
    spelling++;
    length -= 2;
  }
  for (size_t i = 0; i < length; i++) {
    if (spelling[i] == '%' && spelling[i + 1] == 't')
      text_add(&w->out, "%s", w->element), i++;
    else if (spelling[i] == '%' && i + 1 < length)
      text_add(&w->out, "%s", operand(w, r, spelling[++i] - '0'));
    else
      text_bytes(&w->out, &spelling[i], 1);
  }
}

/* Of linear attention: an axis of tokens has the rows of all packed sequences, of which there is one batch entry. */
static const char *token_index(writer *w, unsigned input, int axis, ir_ref r) {
  const luattn_input_info *in = &w->f->spec->traced.input[input];
  bool has_tokens = false;
  for (uint32_t i = 0; i < in->num_axes; i++) has_tokens |= in->axis[i] == LUATTN_AXIS_T;
  if (in->axis[axis] == LUATTN_AXIS_T) return "s.row(t)";
  return in->axis[axis] == LUATTN_AXIS_B && has_tokens && w->f->plan->packed ? "0" : body_int(w, r);
}

static const char *index_of(writer *w, unsigned input, int axis, ir_ref r) {
  if (w->names != NULL) return token_index(w, input, axis, r);
  return offsets_index(w, input, axis, r, body_int(w, r));
}

void body_index(writer *w, unsigned input, const ir_ref *index, int n) {
  for (int i = 0; i < n; i++) text_add(&w->out, ", %s", index_of(w, input, i, index[i]));
}

void body_row_index(writer *w, unsigned input, const ir_ref *index, int n) {
  body_index(w, input, index, n - 1);
  text_add(&w->out, ", %s", offsets_own_index(w, input, n - 1, index[n - 1], body_int(w, index[n - 1])));
}

/* NVRTC's front end checks whether the initializer of an integer or a bool is a constant. The check recurses
 * through the variables that the initializer reads, once for each read, so a chain of variables that are read
 * twice doubles the work with each step. The front end does not check an assignment. */
static void declare(writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  const int number = w->temp[r] = ++w->num_temps;
  double reach = 1;
  for (int i = 0; i < n->nargs; i++)
    if (w->temp[n->arg[i]] != 0) reach += (double)w->reach[n->arg[i]];
  const bool apart = n->type != IR_REAL && reach > POLICY_INITIALIZER_MAX;
  w->reach[r] = apart ? 1 : (float)reach;
  if (apart)
    text_add(&w->out, "%s t%d;\nt%d = ", writer_type(w, r), number, number);
  else
    text_add(&w->out, "const %s t%d = ", writer_type(w, r), number);
}

/* Sums of 64 bits wrap around, where CUDA's signed ones are undefined. NULL: not such a sum. */
static const char *wrapping(const writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  if (n->type != IR_INT || !writer_is_wide(w, r)) return NULL;
  switch (n->op) {
    case IR_ADD:
    case IR_SUM_APART:
      return "op_add_wide(%0, %1)";
    case IR_SUB:
      return "op_sub_wide(%0, %1)";
    case IR_MUL:
      return "op_mul_wide(%0, %1)";
    case IR_NEG:
      return "op_neg_wide(%0)";
    default:
      return NULL;
  }
}

/* "op_sin_called(%0)" for "op_sin(%0)". */
static const char *spelling_of(writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  const char *spelling = ir_op_cuda((ir_op)n->op), *wraps = wrapping(w, r);
  if (wraps != NULL) return wraps;
  /* Forward and backward have to round a score alike, so no compiler chooses what to merge. */
  if (w->f->plan->large_scores && n->op == IR_MUL && n->type == IR_REAL) return "op_product(%0, %1)";
  if (!w->calls_ops || !lowered_is_long(w->f, r)) return spelling;
  const size_t name = strcspn(spelling, "(");
  return writer_format(w, "%.*s_called%s", (int)name, spelling, spelling + name);
}

void body_list(writer *w, const ir_node *n) {
  const ir_list l = ir_list_of(n);
  text_add(&w->out, "<%s, %d, %d, %d>(p.inputs.input[%u]", writer_input_type(w, l.input), l.axis, l.first, l.count,
           l.input);
}

static void listed(writer *w, const ir_node *n) {
  const ir_list l = ir_list_of(n);
  text_add(&w->out, "is_listed");
  body_list(w, n);
  text_add(&w->out, ", %s", body_value(w, l.x));
  for (int i = 0; i < l.num_axes - 1; i++)
    text_add(&w->out, ", %s", index_of(w, l.input, i + (i >= l.axis), l.index[i]));
  text_add(&w->out, ")");
}

/* Of an input, or of its tangent, which lies where the input does. */
static void load(writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  const unsigned given = ir_index_of(n), input = given % SPEC_INPUT_TANGENT;
  if (given >= SPEC_INPUT_TANGENT)
    text_add(&w->out, "load_input<%s, %s>(input_tangent(p, %u)", writer_type(w, r), writer_input_type(w, input), input);
  else if (n->type == IR_INT && writer_is_wide(w, r))
    text_add(&w->out, "load_wide(p.inputs.input[%u]", input);
  else
    text_add(&w->out, "load_input<%s, %s>(p.inputs.input[%u]", writer_type(w, r), writer_input_type(w, input), input);
  body_index(w, input, n->arg, n->nargs);
  text_add(&w->out, ")");
}

static void statement(writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  declare(w, r);
  if (n->op == IR_LOAD) {
    load(w, r);
  } else if (n->op == IR_LISTED) {
    listed(w, n);
  } else if (n->op == IR_RANDOM) {
    text_add(&w->out, "random_number<Real>(p");
    for (int i = 0; i < n->nargs; i++) text_add(&w->out, ", %s", body_int(w, n->arg[i]));
    text_add(&w->out, ")");
  } else if (ir_op_cuda((ir_op)n->op) != NULL) {
    add_spelling(w, spelling_of(w, r), r);
  } else {
    w->failed = true; /* a reduction that split_online should have removed */
  }
  writer_line_end(w, n);
}

void body_lines(writer *w, const ir_ref *roots, int n) {
  memset(w->need, 0, w->f->num_nodes * sizeof *w->need);
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) w->need[roots[i]] = true;
  for (uint32_t r = w->f->num_nodes; r-- > 1;) {
    if (!w->need[r] || w->temp[r] != 0 || writer_in_slot(w, r)) continue;
    const ir_node *node = ir_get(w->f->g, r);
    for (int i = 0; i < node->nargs; i++) w->need[node->arg[i]] = true;
  }
  for (uint32_t r = 1; r < w->f->num_nodes; r++)
    if (w->need[r] && w->temp[r] == 0 && !writer_in_slot(w, r) && is_statement(ir_get(w->f->g, r))) statement(w, r);
}

void body_return(writer *w, ir_ref r) {
  body_lines(w, &r, 1);
  text_add(&w->out, "return %s;\n", body_value(w, r));
}
