/* low_bits.c: takes integer arithmetic modulo 2^32 where a mask of bits keeps no more of it.
 *
 * A spec's integers are Lua's, and kernels have 32 bits. Sums, products and bit operations that leave these are
 * computed modulo 2^32 (IR_WRAP), and what follows reads their lower words: exactly, where it depends on those alone. A
 * value in [0, 2^32), as x & 0xFFFFFFFF, is a word without a sign: shifts, quotients, remainders and comparisons of it
 * are too. */
#include "gen/ir/graph.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"

#define FITS_AT (INT64_C(1) << 24) /* arithmetic that stays within 32 bits up to this length is left as it is */
#define LONGEST (INT64_C(1) << 30) /* of lengths */
#define SIGN INT32_MIN

typedef struct words {
  ir *g;
  const ir_bounds *common, *most; /* at FITS_AT; at every length */
  bool *lacks;                    /* the node itself needs more than 32 bits */
  ir_ref *whole;                  /* the node itself, of these of its arguments */
  ir_ref *low;                    /* a number of 32 bits that is equal to it modulo 2^32; IR_NONE: unknown */
} words;

static ir_ref int_of(words *w, int64_t x) { return ir_int(w->g, x); }
static ir_ref wrap(words *w, ir_ref x, ir_ref y, ir_ref z) { return ir_op3(w->g, IR_WRAP, x, y, z); }

static bool within(ivi x, int64_t lo, int64_t hi) { return x.lo >= lo && x.hi <= hi; }
static bool fits(const words *w, ir_ref r) { return within(w->most[r].integer, INT32_MIN, INT32_MAX); }
/* What is computed from i64 inputs has 64 bits in kernels (ir_is_wide), and needs no words. */
static bool is_wide(const words *w, ir_ref r) {
  return ir_typeof(w->g, r) == IR_INT && !ir_is_wide(w->g, r) && !within(w->common[r].integer, INT32_MIN, INT32_MAX);
}
/* Whether the lower word, without a sign, is the value. */
static bool is_word(const words *w, ir_ref r) {
  return w->low[r] != IR_NONE && within(w->most[r].integer, 0, UINT32_MAX);
}

static bool is_power(int64_t c, int *n) {
  for (*n = 0; *n < 32 && (INT64_C(1) << *n) < c; ++*n) {}
  return (INT64_C(1) << *n) == c;
}

/* A word shifted right by n: 0 < n < 32. */
static ir_ref word_down(words *w, ir_ref low, int n) {
  return ir_op3(w->g, IR_SHR_BAND, low, int_of(w, n), int_of(w, (INT64_C(1) << (32 - n)) - 1));
}

/* Numbers without a sign compare as numbers with one do, once the sign is flipped. */
static ir_ref flipped(words *w, ir_ref x) { return ir_op2(w->g, IR_BXOR, x, int_of(w, SIGN)); }

/* A word // c and a word % c of c from 2^30 on: the quotient is at most 3. */
static ir_ref word_divided_by_large(words *w, ir_op op, ir_ref low, int64_t c) {
  ir_ref quotient = int_of(w, 0);
  for (int64_t k = c; k <= UINT32_MAX; k += c) {
    const ir_ref limit = int_of(w, (int32_t)((uint32_t)k ^ UINT32_C(0x80000000)));
    const ir_ref reached = ir_op2(w->g, IR_LE, limit, flipped(w, low));
    quotient = ir_op2(w->g, IR_ADD, quotient, ir_op3(w->g, IR_SELECT, reached, int_of(w, 1), int_of(w, 0)));
  }
  return op == IR_FLOORDIV ? quotient : wrap(w, quotient, int_of(w, (int32_t)(uint32_t)-c), low);
}

/* A word // c and a word % c, of its upper 31 bits and its last. */
static ir_ref word_divided(words *w, ir_op op, ir_ref low, int64_t c) {
  ir *g = w->g;
  if (c >= INT64_C(1) << 30) return word_divided_by_large(w, op, low, c);
  const ir_ref by = int_of(w, c), half = word_down(w, low, 1), last = ir_op2(g, IR_BAND, low, int_of(w, 1));
  const ir_ref rest = ir_op2(g, IR_ADD, ir_op2(g, IR_MUL, ir_op2(g, IR_MOD, half, by), int_of(w, 2)), last);
  if (op == IR_MOD) return ir_op2(g, IR_MOD, rest, by);
  const ir_ref twice = ir_op2(g, IR_MUL, ir_op2(g, IR_FLOORDIV, half, by), int_of(w, 2));
  return ir_op2(g, IR_ADD, twice, ir_op2(g, IR_FLOORDIV, rest, by));
}

static ir_ref low_remainder(words *w, const ir_node *n) {
  const ir_ref x = w->low[n->arg[0]];
  double c;
  int bits;
  if (!ir_is_const(w->g, n->arg[1], &c) || c < 1 || c > 0x1p32) return IR_NONE;
  if (is_power((int64_t)c, &bits))
    return ir_op2(w->g, IR_BAND, x, int_of(w, bits == 32 ? -1 : (INT64_C(1) << bits) - 1));
  return is_word(w, n->arg[0]) ? word_divided(w, IR_MOD, x, (int64_t)c) : IR_NONE;
}

static ir_ref low_quotient(words *w, const ir_node *n) {
  const ir_ref x = w->low[n->arg[0]];
  double c;
  int bits;
  if (!is_word(w, n->arg[0]) || !ir_is_const(w->g, n->arg[1], &c) || c < 1) return IR_NONE;
  if (c >= 0x1p32) return int_of(w, 0);
  if (is_power((int64_t)c, &bits)) return bits == 0 ? x : word_down(w, x, bits);
  return word_divided(w, IR_FLOORDIV, x, (int64_t)c);
}

/* The lower word of a number of 32 bits with a sign, shifted right by 0 < n < 64: zeros come down before bit 63. */
static ir_ref signed_down(words *w, ir_ref x, int n) {
  if (n <= 30) return ir_op2(w->g, IR_FLOORDIV, x, int_of(w, INT64_C(1) << n));
  const uint32_t ones = n <= 32 ? UINT32_MAX : (UINT32_C(1) << (64 - n)) - 1;
  return ir_op3(w->g, IR_SELECT, ir_op2(w->g, IR_LT, x, int_of(w, 0)), int_of(w, (int32_t)ones), int_of(w, 0));
}

/* Shifts by a constant. */
static ir_ref low_shift(words *w, const ir_node *n) {
  const ir_ref x = w->low[n->arg[0]];
  double by;
  if (!ir_is_const(w->g, n->arg[1], &by) || by < 0 || by > 63) return IR_NONE;
  const int count = (int)by;
  if (n->op == IR_SHL)
    return count < 32 ? wrap(w, x, int_of(w, (int32_t)(UINT32_C(1) << count)), int_of(w, 0)) : int_of(w, 0);
  const bool is_signed = !w->lacks[n->arg[0]] && !is_wide(w, n->arg[0]);
  if (count > 0 && !is_word(w, n->arg[0]) && !is_signed) return IR_NONE;
  const ir_ref down = count == 0               ? x
                      : !is_word(w, n->arg[0]) ? signed_down(w, w->whole[n->arg[0]], count)
                      : count < 32             ? word_down(w, x, count)
                                               : int_of(w, 0);
  return n->op == IR_SHR ? down : ir_op2(w->g, IR_BAND, down, w->low[n->arg[2]]);
}

static ir_ref low_extreme(words *w, const ir_node *n) {
  if (!is_word(w, n->arg[0]) || !is_word(w, n->arg[1])) return IR_NONE;
  return flipped(w, ir_op2(w->g, (ir_op)n->op, flipped(w, w->low[n->arg[0]]), flipped(w, w->low[n->arg[1]])));
}

/* The lower word of a node, of those of its arguments. */
static ir_ref low_of(words *w, const ir_node *n) {
  const ir_ref x = n->nargs > 0 ? w->low[n->arg[0]] : IR_NONE, y = n->nargs > 1 ? w->low[n->arg[1]] : IR_NONE;
  for (int i = n->op == IR_SELECT; i < n->nargs; i++)
    if (ir_typeof(w->g, n->arg[i]) != IR_INT || w->low[n->arg[i]] == IR_NONE) return IR_NONE;
  switch ((ir_op)n->op) {
    case IR_CONST_INT:
      return int_of(w, (int32_t)(uint32_t)n->imm.integer);
    case IR_ADD:
      return wrap(w, x, int_of(w, 1), y);
    case IR_SUB:
      return wrap(w, y, int_of(w, -1), x);
    case IR_NEG:
      return wrap(w, x, int_of(w, -1), int_of(w, 0));
    case IR_MUL:
      return wrap(w, x, y, int_of(w, 0));
    case IR_BAND:
    case IR_BOR:
    case IR_BXOR:
      return ir_op2(w->g, (ir_op)n->op, x, y);
    case IR_SHL:
    case IR_SHR:
    case IR_SHR_BAND:
      return low_shift(w, n);
    case IR_MOD:
      return low_remainder(w, n);
    case IR_FLOORDIV:
      return low_quotient(w, n);
    case IR_MIN:
    case IR_MAX:
      return low_extreme(w, n);
    case IR_ABS:
      return is_word(w, n->arg[0]) ? x : IR_NONE;
    case IR_SELECT:
      return ir_op3(w->g, IR_SELECT, w->whole[n->arg[0]], w->low[n->arg[1]], w->low[n->arg[2]]);
    default:
      return IR_NONE;
  }
}

/* A comparison, or a conversion, of words without a sign; IR_NONE: they are none. */
static ir_ref of_words(words *w, const ir_node *n) {
  ir *g = w->g;
  for (int i = 0; i < n->nargs; i++)
    if (ir_typeof(g, n->arg[i]) != IR_INT || !is_word(w, n->arg[i])) return IR_NONE;
  const ir_ref x = w->low[n->arg[0]], y = n->nargs > 1 ? w->low[n->arg[1]] : IR_NONE;
  switch ((ir_op)n->op) {
    case IR_LT:
    case IR_LE:
      return ir_op2(g, (ir_op)n->op, flipped(w, x), flipped(w, y));
    case IR_EQ:
    case IR_NE:
      return ir_op2(g, (ir_op)n->op, x, y);
    case IR_TO_REAL: {
      const ir_ref high = ir_op1(g, IR_TO_REAL, word_down(w, x, 16));
      const ir_ref last = ir_op1(g, IR_TO_REAL, ir_op2(g, IR_BAND, x, int_of(w, 0xffff)));
      return ir_op2(g, IR_ADD, ir_op2(g, IR_MUL, high, ir_real(g, 65536)), last);
    }
    default:
      return IR_NONE;
  }
}

static ir_ref rebuilt(words *w, ir_ref r, const ir_node *n) {
  ir_ref args[4] = {IR_NONE, IR_NONE, IR_NONE, IR_NONE};
  bool same = true;
  for (int i = 0; i < n->nargs; i++) args[i] = w->whole[n->arg[i]], same = same && args[i] == n->arg[i];
  return same ? r : ir_rebuild(w->g, r, args);
}

static void visit(words *w, ir_ref r) {
  const ir_node n = *ir_get(w->g, r); /* new nodes may move the array */
  bool of_wide = is_wide(w, r);
  for (int i = 0; i < n.nargs; i++) of_wide = of_wide || is_wide(w, n.arg[i]) || w->lacks[n.arg[i]];
  ir_set_line(w->g, n.line);
  w->whole[r] = rebuilt(w, r, &n);
  if (!of_wide) {
    w->low[r] = n.type == IR_INT && !ir_is_wide(w->g, r) ? w->whole[r] : IR_NONE;
    return;
  }
  w->low[r] = n.type == IR_INT ? low_of(w, &n) : IR_NONE;
  const ir_ref word = n.type != IR_INT ? of_words(w, &n) : fits(w, r) ? w->low[r] : IR_NONE;
  if (word != IR_NONE) w->whole[r] = word;
  w->lacks[r] = word == IR_NONE;
}

bool ir_keep_low_bits(ir *g, ir_ref *const *roots, int n) {
  ir_ref *root = arena_array(g->a, (size_t)n, sizeof *root), top = 0;
  const uint32_t count = g->count;
  if (root == NULL) return false;
  for (int i = 0; i < n; i++) {
    root[i] = *roots[i];
    if (root[i] > top) top = root[i];
  }
  if (ir_ints_fit(g, root, n, FITS_AT)) return true;
  words w = {.g = g, .common = ir_int_bounds(g, root, n, FITS_AT), .most = ir_int_bounds(g, root, n, LONGEST)};
  w.whole = arena_array(g->a, count, sizeof *w.whole);
  w.low = arena_array(g->a, count, sizeof *w.low);
  w.lacks = arena_array(g->a, count, sizeof *w.lacks);
  uint8_t *reached = arena_array(g->a, count, 1);
  if (w.common == NULL || w.most == NULL || w.whole == NULL || w.low == NULL || w.lacks == NULL || reached == NULL)
    return false;
  for (int i = 0; i < n; i++) reached[root[i]] = 1;
  for (ir_ref r = top; r > 0; r--)
    for (int i = 0; reached[r] && i < ir_get(g, r)->nargs; i++) reached[ir_get(g, r)->arg[i]] = 1;
  for (ir_ref r = 1; r <= top; r++)
    if (reached[r]) visit(&w, r);
  for (int i = 0; i < n; i++) *roots[i] = w.whole[*roots[i]];
  return !ir_failed(g);
}
