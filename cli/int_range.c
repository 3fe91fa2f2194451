/* int_range.c: warns about integers of inputs beyond the range that kernels compute with. */
#include <math.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "common/input_dtype.h"
#include "gen/spec.h"

#define BEYOND 0x1p24 /* gen/ir/interval.h assumes that loaded integers are nearer to 0 */

static void mark(bool *set, ir_ref r) {
  if (r != IR_NONE) set[r] = true;
}

static void mark_roots(const traced_spec *t, bool *is_used) {
  const traced_online *o = &t->online;
  const ir_ref roots[] = {t->score_mod, t->block_mask, t->query_mod, t->key_mod, t->value_mod,
                          o->prob,      o->rescale,    o->out,       o->forward, o->backward};
  for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) mark(is_used, roots[i]);
  for (int i = 0; i < o->num_state; i++) mark(is_used, o->init[i]), mark(is_used, o->next[i]);
  for (int i = 0; i < o->num_final; i++) mark(is_used, o->final[i]);
}

static bool is_bitwise(ir_op op) {
  return op == IR_BAND || op == IR_BOR || op == IR_BXOR || op == IR_SHR_BAND;
}

static bool hands_on(ir_op op) { return op == IR_SELECT || op == IR_MIN || op == IR_MAX || is_bitwise(op); }

/* ~x, which is -1 - x. */
static bool is_flip(const ir *g, const ir_node *n) {
  double ones;
  return n->op == IR_SUB && ir_is_const(g, n->arg[0], &ones) && ones == -1;
}

/* An integer of any size may be compared, its bits may be taken, and it may be an index, which is clamped. */
static bool takes_any(ir_op op) {
  return op == IR_LT || op == IR_LE || op == IR_EQ || op == IR_NE || op == IR_LOAD || hands_on(op);
}

static bool takes_constant(const ir *g, const ir_node *n) {
  double value;
  return ir_is_const(g, n->arg[0], &value) || ir_is_const(g, n->arg[1], &value);
}

/* A clamp: min of a constant and max of another and x, or the other way round. */
static bool is_clamp(const ir *g, const ir_node *n) {
  if ((n->op != IR_MIN && n->op != IR_MAX) || !takes_constant(g, n)) return false;
  for (int i = 0; i < 2; i++) {
    const ir_node *inner = ir_get(g, n->arg[i]);
    if (inner->op == (n->op == IR_MIN ? IR_MAX : IR_MIN) && takes_constant(g, inner)) return true;
  }
  return false;
}

/* x % n of a constant n: some of its bits, where that is a power of two. */
static bool is_remainder(const ir *g, const ir_node *n) {
  double by;
  return n->op == IR_MOD && ir_is_const(g, n->arg[1], &by) && by > 0;
}

/* Less than 2^24, whatever x is. */
static bool is_masked(const ir *g, const ir_node *n) {
  double mask;
  const bool masks = n->op == IR_BAND || n->op == IR_SHR_BAND || is_remainder(g, n);
  return masks && ir_is_const(g, n->arg[n->nargs - 1], &mask) && mask >= 0 && mask <= BEYOND;
}

/* Exact for an integer of any size, which may be handed on. */
static bool keeps_exact(const ir *g, const ir_node *n) {
  return hands_on((ir_op)n->op) || is_flip(g, n) || is_remainder(g, n);
}

/* Marks *used nodes, and *value those that may be a value of the input. Arguments come before their users. `close`: values
 * are less than 2^24 apart, so that a difference of two, which is one of integers, is as any other small number. */
static bool computes(const ir *g, int input, bool close, bool *used, bool *value) {
  for (ir_ref r = ir_count(g) - 1; r > IR_NONE; r--) {
    const ir_node *n = ir_get(g, r);
    for (int i = 0; used[r] && i < n->nargs; i++) used[n->arg[i]] = true;
  }
  for (ir_ref r = IR_NONE + 1; r < ir_count(g); r++) {
    const ir_node *n = ir_get(g, r);
    bool any = false;
    for (int i = 0; i < n->nargs; i++) any |= value[n->arg[i]];
    if (close && n->op == IR_SUB && value[n->arg[0]] && value[n->arg[1]]) any = false;
    if (used[r] && any && !takes_any((ir_op)n->op) && !keeps_exact(g, n)) return true;
    value[r] = n->op == IR_LOAD ? n->imm.integer == input
                                : any && keeps_exact(g, n) && !is_clamp(g, n) && !is_masked(g, n);
  }
  return false;
}

/* Whether the spec uses values of the input in anything but comparisons and indices. */
static bool spec_computes_with(const luattn_spec *spec, int input, bool close) {
  const traced_spec *t = &spec->traced;
  const size_t count = ir_count(t->g);
  bool *sets = calloc(2 * count + 1, sizeof *sets);
  if (sets == NULL) return true;
  mark_roots(t, sets);
  const bool answer = computes(t->g, input, close, sets, sets + count);
  free(sets);
  return answer;
}

static bool are_close(const array *a) {
  double least = INFINITY, most = -INFINITY;
  for (int64_t i = 0, n = array_count(a); i < n; i++) {
    least = fmin(least, array_get(a, i));
    most = fmax(most, array_get(a, i));
  }
  return most - least < BEYOND;
}

void warn_of_int_range(const cli_problem *p, int input) {
  const luattn_input_info *info = &p->info.inputs[input];
  const array *a = &p->input[input];
  if (!input_is_integer(info->dtype) || info->dtype == LUATTN_INPUT_I64) return; /* kernels compute with i64 in 64 bits */
  for (int64_t i = 0, n = array_count(a); i < n; i++) {
    const double x = array_get(a, i);
    if (fabs(x) < BEYOND) continue;
    if (!spec_computes_with(p->spec, input, are_close(a))) return;
    fprintf(stderr,
            "luattn: warning: --input: %s: element %lld is %.0f, and kernels compute with integers less than "
            "2^24 = %.0f from 0 alone: results may be wrong; declare the input i64, "
            "subtract a base from all of them first, or clamp them\n",
            info->name, (long long)i, x, BEYOND);
    return;
  }
}
