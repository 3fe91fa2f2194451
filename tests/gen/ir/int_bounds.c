/* int_bounds.c: bounds of one integer op, from templates/ops/interval.cuh, with small bounds or in the
 * general form. INT_BOUNDS is the name of the function. */
#define LUATTN_INTERVAL_HOST
#define LUATTN_NO_REAL_BOUNDS
#include "templates/ops/bits.cuh"
#include "templates/ops/interval.cuh"

#include "gen/ir/ir.h"

void INT_BOUNDS(ir_op op, const long long end[4], long long out[2]);

static void put_integer(ivi r, long long out[2]) { out[0] = r.lo, out[1] = r.hi; }
static void put_boolean(tri r, long long out[2]) { out[0] = r.can_be_false, out[1] = r.can_be_true; }

void INT_BOUNDS(ir_op op, const long long end[4], long long out[2]) {
  const ivi a = ivi_make((ivi_end)end[0], (ivi_end)end[1]), b = ivi_make((ivi_end)end[2], (ivi_end)end[3]);
  switch (op) {
#define CASE(id, put, value) \
  case IR_##id:              \
    put(value, out);         \
    break
    CASE(ADD, put_integer, ivi_add(a, b));
    CASE(SUB, put_integer, ivi_sub(a, b));
    CASE(MUL, put_integer, ivi_mul(a, b));
    CASE(NEG, put_integer, ivi_neg(a));
    CASE(FLOORDIV, put_integer, ivi_floordiv(a, b));
    CASE(MOD, put_integer, ivi_mod(a, b));
    CASE(MIN, put_integer, ivi_min(a, b));
    CASE(MAX, put_integer, ivi_max(a, b));
    CASE(ABS, put_integer, ivi_abs(a));
    CASE(SIGN, put_integer, ivi_sign(a));
    CASE(SELECT, put_integer, ivi_select(ivi_lt(a, b), a, b));
    CASE(BAND, put_integer, ivi_band(a, b));
    CASE(BOR, put_integer, ivi_bor(a, b));
    CASE(BXOR, put_integer, ivi_bxor(a, b));
    CASE(SHL, put_integer, ivi_shl(a, b));
    CASE(SHR, put_integer, ivi_shr(a, b));
    CASE(SHR_BAND, put_integer, ivi_shr_band(a, b, ivi_point(23)));
    CASE(LT, put_boolean, ivi_lt(a, b));
    CASE(LE, put_boolean, ivi_le(a, b));
    CASE(EQ, put_boolean, ivi_eq(a, b));
    CASE(NE, put_boolean, ivi_ne(a, b));
    default:
      put_integer(ivi_square(a), out); /* IR_MUL with equal arguments */
  }
}
