#include "gen/analysis/specs/int_range.h"

#include <stdio.h>
#include <string.h>

#include "gen/spec.h"

/* How far apart the values of an input are: less than 2^24, less than 2^31, or more. */
enum { SPREAD_NEAR, SPREAD_WORD, SPREAD_FAR };

/* What a node may be of the input, besides a number less than 2^24 from 0, from the least restricted on. */
typedef enum origin {
  NO_VALUE,
  DIFFERENCE, /* of two of its values, beyond 2^24: an integer of 32 bits, which may be converted once */
  ELEMENT,    /* one of its values */
  VALUE       /* an integer of any size made of these */
} origin;

static void mark(bool *set, ir_ref r) {
  if (r != IR_NONE) set[r] = true;
}

static void mark_roots(const traced_spec *t, int_range_hooks hooks, bool *is_used) {
  const traced_online *o = &t->online;
  mark(is_used, t->block_mask);
  if (hooks == INT_RANGE_MASK) return;
  const ir_ref roots[] = {t->score_mod, t->query_mod, t->key_mod, t->value_mod, o->prob,
                          o->rescale,   o->out,       o->forward, o->backward};
  for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) mark(is_used, roots[i]);
  for (int i = 0; i < o->num_state; i++) mark(is_used, o->init[i]), mark(is_used, o->next[i]);
  for (int i = 0; i < o->num_final; i++) mark(is_used, o->final[i]);
}

static bool is_bitwise(ir_op op) { return op == IR_BAND || op == IR_BOR || op == IR_BXOR || op == IR_SHR_BAND; }

static bool is_choice(ir_op op) { return op == IR_SELECT || op == IR_MIN || op == IR_MAX; }

/* ~x, which is -1 - x. */
static bool is_flip(const ir *g, const ir_node *n) {
  double ones;
  return n->op == IR_SUB && ir_is_const(g, n->arg[0], &ones) && ones == -1;
}

/* Takes any integer, and gives none: a comparison, or a load, which clamps its indices. */
static bool ends_with(ir_op op) { return op == IR_LT || op == IR_LE || op == IR_EQ || op == IR_NE || op == IR_LOAD; }

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
  return masks && ir_is_const(g, n->arg[n->nargs - 1], &mask) && mask >= 0 && mask <= INT_RANGE;
}

/* Exact for an integer of any size, and may be one. */
static bool keeps_exact(const ir *g, const ir_node *n) {
  return is_choice((ir_op)n->op) || is_bitwise((ir_op)n->op) || is_flip(g, n) || is_remainder(g, n);
}

/* A choice among elements alone is one of them. Of a SELECT the first argument is the condition. */
static bool chooses_element(const ir_node *n, const origin *of) {
  bool all = is_choice((ir_op)n->op);
  for (int i = n->op == IR_SELECT; i < n->nargs; i++) all = all && of[n->arg[i]] == ELEMENT;
  return all;
}

/* What node n is, given its arguments; *computes: it is not exact for what they may be. */
static origin origin_of(const ir *g, const ir_node *n, int input, int spread, const origin *of, bool *computes) {
  origin most = NO_VALUE;
  if (n->op == IR_LOAD) return n->imm.integer == input ? ELEMENT : NO_VALUE;
  for (int i = 0; i < n->nargs; i++)
    if (of[n->arg[i]] > most) most = of[n->arg[i]];
  if (most == NO_VALUE || ends_with((ir_op)n->op)) return NO_VALUE;
  if (chooses_element(n, of)) return is_clamp(g, n) ? NO_VALUE : ELEMENT;
  if (keeps_exact(g, n)) return is_clamp(g, n) || is_masked(g, n) ? NO_VALUE : most == DIFFERENCE ? DIFFERENCE : VALUE;
  if (n->op == IR_SUB && of[n->arg[0]] == ELEMENT && of[n->arg[1]] == ELEMENT && spread < SPREAD_FAR)
    return spread == SPREAD_NEAR ? NO_VALUE : DIFFERENCE;
  if (most == DIFFERENCE && n->op == IR_TO_REAL) return NO_VALUE;
  if (most == DIFFERENCE && (n->op == IR_NEG || n->op == IR_ABS)) return DIFFERENCE;
  *computes = true;
  return VALUE;
}

/* Whether used nodes compute with values of the input that are `spread` apart. Arguments come before their users. */
static bool computes_with(const ir *g, int input, int spread, const bool *used, origin *of) {
  bool computes = false;
  for (ir_ref r = IR_NONE + 1; r < ir_count(g) && !computes; r++)
    of[r] = used[r] ? origin_of(g, ir_get(g, r), input, spread, of, &computes) : NO_VALUE;
  return computes;
}

bool int_range_find(traced_spec *t) {
  const ir *g = t->g;
  bool any = false;
  memset(t->inexact_ints, 0, sizeof t->inexact_ints);
  for (int i = 0; i < t->num_inputs; i++) any |= t->input[i].dtype == LUATTN_INPUT_I32;
  if (!any) return true;
  origin *of = arena_array(t->a, ir_count(g), sizeof *of);
  for (int hooks = INT_RANGE_MASK; hooks <= INT_RANGE_SPEC; hooks++) {
    bool *used = arena_array(t->a, ir_count(g), sizeof *used);
    if (used == NULL || of == NULL) return false;
    mark_roots(t, (int_range_hooks)hooks, used);
    for (ir_ref r = ir_count(g) - 1; r > IR_NONE; r--) {
      const ir_node *n = ir_get(g, r);
      for (int i = 0; used[r] && i < n->nargs; i++) used[n->arg[i]] = true;
    }
    for (int i = 0; i < t->num_inputs; i++)
      for (int spread = SPREAD_FAR; spread >= SPREAD_NEAR && t->input[i].dtype == LUATTN_INPUT_I32; spread--) {
        if (!computes_with(g, i, spread, used, of)) break; /* then it does not with nearer values, either */
        t->inexact_ints[hooks][spread] |= (uint16_t)(1u << i);
      }
  }
  return true;
}

unsigned int_range_inputs(const luattn_spec *spec, int_range_hooks hooks) {
  return spec->traced.inexact_ints[hooks][SPREAD_FAR];
}

/* What is seen of the values: the least and the most, and the first that is beyond the range. */
typedef struct seen {
  int32_t least, most, first;
  int64_t at; /* of `first`; -1: none is */
} seen;

static seen look_at(const DLTensor *values) {
  int64_t count = 1, index[4] = {0};
  seen s = {.least = INT32_MAX, .most = INT32_MIN, .at = -1};
  for (int i = 0; i < values->ndim; i++) count *= values->shape[i];
  if (count == 0) return s; /* perhaps at NULL */
  const char *base = (const char *)values->data + values->byte_offset;
  for (int64_t at = 0; at < count; at++) {
    int64_t element = values->strides == NULL ? at : 0;
    int32_t x;
    for (int i = 0; values->strides != NULL && i < values->ndim; i++) element += index[i] * values->strides[i];
    memcpy(&x, base + element * (int64_t)sizeof x, sizeof x);
    if (x < s.least) s.least = x;
    if (x > s.most) s.most = x;
    if (s.at < 0 && (x >= (int32_t)INT_RANGE || x <= -(int32_t)INT_RANGE)) s.first = x, s.at = at;
    for (int i = values->ndim - 1; i >= 0 && ++index[i] == values->shape[i]; i--) index[i] = 0;
  }
  return s;
}

bool int_range_warning(const luattn_spec *spec, int input, int_range_hooks hooks, const DLTensor *values,
                       char text[INT_RANGE_TEXT]) {
  if ((int_range_inputs(spec, hooks) >> input & 1) == 0) return false;
  const seen s = look_at(values);
  if (s.at < 0) return false;
  const int64_t apart = (int64_t)s.most - s.least;
  const int spread = apart < (int64_t)INT_RANGE ? SPREAD_NEAR : apart <= INT32_MAX ? SPREAD_WORD : SPREAD_FAR;
  if ((spec->traced.inexact_ints[hooks][spread] >> input & 1) == 0) return false;
  snprintf(
      text, INT_RANGE_TEXT,
      "element %lld is %d, and kernels compute with integers less than 2^24 = %d from 0 alone: results may be wrong; "
      "declare the input i64, subtract a base from all of them first, or clamp them",
      (long long)s.at, (int)s.first, (int)INT_RANGE);
  return true;
}
