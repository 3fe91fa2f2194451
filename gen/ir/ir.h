/* ir.h: the expression IR. One growable array of hash-consed nodes, referred to by 32-bit index.
 *
 * A node is an op, up to four arguments and an immediate. Equal nodes are the same ir_ref, so common subexpressions are
 * shared from the start. Constants fold at construction. ops.def has one row per op and is the only list of ops.
 * Ownership: an ir lives in the arena it was opened with. Out of memory: a builder returns IR_NONE, builders given
 * IR_NONE return IR_NONE, and ir_failed() stays true; a pass checks once at its end.
 */
#ifndef LUATTN_GEN_IR_H
#define LUATTN_GEN_IR_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

#include "gen/base/arena.h"
#include "luattn/status.h"

typedef uint32_t ir_ref; /* index of a node; IR_NONE = absent or failed */
#define IR_NONE 0u

/* REAL is float on the device (double in f64 kernels and on the CPU). INT is 32-bit on the device, 64-bit on the CPU;
 * ir_int_limit() in interval.h says up to which lengths the two agree. */
typedef enum ir_type { IR_BOOL, IR_INT, IR_REAL } ir_type;

typedef enum ir_op {
#define IR_OP(id, ...) IR_##id,
#include "gen/ir/ops.def"
#undef IR_OP
  IR_OP_COUNT
} ir_op;

/* Leaves for values known outside the IR. `index` picks one of a family (scalar 2, state 0, ..). */
typedef enum ir_var {
  VAR_SCORE, /* scale * dot, the argument of score_mod; after score_mod, the argument of the online function */
  VAR_B,
  VAR_H,
  VAR_Q,
  VAR_KV, /* INT: batch, query head, positions. In key_mod and value_mod VAR_H is the kv head. Positions and their
           * lengths have the axis of a grid as index: ir_set_axes */
  VAR_Q_LEN,
  VAR_KV_LEN,
  VAR_HEADS,
  VAR_HEADS_KV, /* INT */
  VAR_SCALAR,   /* REAL, index: run-time scalar of the spec */
  VAR_X,        /* REAL: the element in an input mod */
  VAR_POS,      /* INT, index: its position (query or kv position) along an axis of a grid */
  VAR_D,        /* INT: its channel */
  VAR_STATE,    /* REAL, index: online row state before this step; in the epilogue, after the last */
  VAR_OUT,      /* REAL: the accumulated sum of prob * v in the epilogue */
  VAR_FINAL,    /* REAL, index: a final row scalar (what forward saves) in `forward` and `backward` */
  VAR_DP,
  VAR_P,
  VAR_DELTA,
  VAR_DLSE,  /* REAL: backward: dO.v, prob, rowsum(dO*O), incoming gradient of lse */
  VAR_ROW,   /* REAL, index: a number prepared per row for the backward kernel */
  VAR_RED,   /* REAL, index: result of reduction k */
  VAR_DOT,   /* REAL: unscaled dot product */
  VAR_SCALE, /* REAL: the softmax scale */
  VAR_GRAD,  /* REAL: incoming gradient in an input mod */
  VAR_TILE,  /* INT, index: inclusive bounds of a tile, VAR_Q0 .. VAR_KV1 of mask.h, in range expressions */
  VAR_PART,  /* INT, index: summands of a position, PART_Q_BASE .. of lower/lowered.h; only in emitted
              * expressions */
  VAR_SHIFT, /* REAL: the offset left out of a stored score, constant per row and tile: lower/row_shift.c */
  VAR_TERM,  /* REAL: the part of a score that depends only on the distance: lower/early_terms.c */
  VAR_HEAD_DIM,
  VAR_HEAD_DIM_V, /* INT: channels of a row of q and k, and of v; constants once the target is known */
  VAR_READ,       /* REAL, index: another element of the row in an input mod: traced_spec.read, then row_tables */
  VAR_READ_GRAD,  /* REAL, index: the incoming gradient there */
  VAR_CHANNEL,    /* INT, index: its channel */
  VAR_OTHER, /* REAL, index: the online row state of another part of the row, in a merge: analysis/online/merge.h */
  VAR_PASS,  /* REAL, index: backward: a sum over the row that a row pass makes: derived_pass of spec.h */
  VAR_SCORE_TANGENT,
  VAR_X_TANGENT, /* REAL: forward mode: the tangents of VAR_SCORE and VAR_X, */
  VAR_READ_TANGENT,
  VAR_STATE_TANGENT,
  VAR_RED_TANGENT,
  VAR_SCALAR_TANGENT, /* REAL, index: of VAR_READ, VAR_STATE, VAR_RED and VAR_SCALAR: analysis/specs/spec_tangents.h */
  VAR_DP_TANGENT,
  VAR_DELTA_TANGENT,
  VAR_DLSE_TANGENT,
  VAR_GRAD_TANGENT, /* REAL: of what backward reads: VAR_DP, VAR_DELTA, VAR_DLSE, VAR_GRAD, */
  VAR_FINAL_TANGENT,
  VAR_ROW_TANGENT,
  VAR_READ_GRAD_TANGENT,
  VAR_PASS_TANGENT, /* REAL, index: VAR_FINAL, VAR_ROW, VAR_READ_GRAD and VAR_PASS */
  VAR_COUNT
} ir_var;

typedef struct ir_node {
  uint16_t op;  /* ir_op */
  uint8_t type; /* ir_type */
  uint8_t nargs;
  uint32_t line; /* line of the spec that made it, 0 = none; not part of its identity */
  ir_ref arg[4];
  union {
    double real;
    int64_t integer;
  } imm; /* constant; or var << 32 | index; or input number of a LOAD; of a LISTED more */
} ir_node;

typedef struct ir ir;

ir *ir_open(arena *a);
/* Copies g so that every ir_ref keeps its meaning. A loaded spec is shared by threads, so a compilation
 * builds in a clone. */
ir *ir_clone(arena *a, const ir *g); /* NULL: out of memory */
bool ir_failed(const ir *g);
uint32_t ir_count(const ir *g);
const ir_node *ir_get(const ir *g, ir_ref r); /* r != IR_NONE; valid until the next builder call */
void ir_set_line(ir *g, uint32_t line);       /* line for nodes built from now on */

/* Builders. Arguments must have the types that ops.def asks for: INT is converted to REAL where a REAL is asked for;
 * anything else is a caller's bug (assert). Trivial identities (x+0, x*1, select of equal arms, ..) fold here, also
 * x*0 = 0, which is exact for real numbers (not for infinities).
 * ADD SUB MUL NEG MIN MAX ABS SIGN FLOORDIV MOD LT LE EQ NE SELECT are generic: INT if every operand is INT, REAL if
 * one is REAL. DIV, POW and the functions convert INT to REAL. There is no GT or GE: swap the operands. FLOORDIV and
 * MOD floor as in Lua; an INT divided by 0 gives x // 0 = 0, x % 0 = x, so that no value is undefined. Two builder
 * calls that are arguments of one call run in an order that C leaves open, which changes the numbering of nodes from
 * compiler to compiler: give all but one of them a name first. */
ir_ref ir_real(ir *g, double x);
ir_ref ir_int(ir *g, int64_t x);
ir_ref ir_bool(ir *g, bool x);
ir_ref ir_variable(ir *g, ir_var v, uint32_t index);
ir_ref ir_load(ir *g, uint32_t input, ir_type type, const ir_ref *index, int n); /* gather; n index arguments, INT */
/* BOOL: whether x is one of `count` integers of an input, which lie along `axis` from `first` on; `index`: the indices
 * of its num_axes - 1 other axes. Made by gen/lower/lists.c, and not evaluated on the CPU. */
typedef struct ir_list {
  uint32_t input;
  int axis, num_axes, first, count;
  ir_ref x, index[3];
} ir_list;
#define IR_LIST_MOST 4096 /* of first + count */
ir_ref ir_listed(ir *g, const ir_list *l);
ir_list ir_list_of(const ir_node *n);
/* Says that input k has 64 bits: i64 or f64. What is computed from its values has as many, see ir_is_wide. */
void ir_input_wide(ir *g, uint32_t input);

/* Positions have so many axes, 1 to IR_MAX_AXES: VAR_Q, VAR_KV, VAR_POS, VAR_Q_LEN and VAR_KV_LEN of index a are along
 * axis a, the last one innermost. 1 unless set. */
enum { IR_MAX_AXES = 4 };
void ir_set_axes(ir *g, int axes);
int ir_axes(const ir *g);
/* Whether positions lie along one line. Whatever is concluded from the position of a query or a key, its distance, or
 * its neighbours in memory asks this first: of several axes nothing of that is known. */
bool ir_is_line(const ir *g);
/* The number of a query or a key among all of its batch entry, in row-major order: of VAR_Q, VAR_KV; of VAR_POS with
 * the lengths of that side. */
ir_ref ir_linear_index(ir *g, ir_var position, ir_var length);
ir_ref ir_op1(ir *g, ir_op op, ir_ref a);
ir_ref ir_op2(ir *g, ir_op op, ir_ref a, ir_ref b);
ir_ref ir_op3(ir *g, ir_op op, ir_ref a, ir_ref b, ir_ref c);
#define IR_RANDOM_MOST 0x1.fffffep-1         /* the largest value: 1 - 2^-24 */
ir_ref ir_random(ir *g, const ir_ref at[4]); /* REAL in [0, 1), drawn for four INTs: batch entry, head, two positions */
ir_ref ir_to_real(ir *g, ir_ref a);          /* INT -> REAL; REAL unchanged */

ir_type ir_typeof(const ir *g, ir_ref r);
bool ir_is_const(const ir *g, ir_ref r, double *value); /* REAL or INT constant, as double */
bool ir_is_var(const ir *g, ir_ref r, ir_var v);        /* any index */
ir_var ir_var_of(const ir_node *n);
uint32_t ir_index_of(const ir_node *n);

/* Whether r has 64 bits where its type otherwise has 32: an INT that is computed from an i64 input; a REAL, in kernels
 * of float32, that is computed exactly, but for roundings, from an f64 input and from what is no score. Any: some input
 * has. */
bool ir_is_wide(const ir *g, ir_ref r);
bool ir_any_wide(const ir *g);
/* Whether r compares such values, in 64 bits. */
bool ir_compares_wide(const ir *g, ir_ref r);

/* Whether the expression under `r` contains variable v (any index), or op. */
bool ir_uses(const ir *g, ir_ref r, ir_var v);
bool ir_uses_op(const ir *g, ir_ref r, ir_op op);
/* Whether the expression has a node of which `is(of, node)` is true; also where there is no memory to find out. */
bool ir_reads(const ir *g, ir_ref root, bool (*is)(const void *of, const ir_node *n), const void *of);

/* Node r with other arguments (as many as it has), folded like a new node; keeps r's line. */
ir_ref ir_rebuild(ir *g, ir_ref r, const ir_ref *args);

/* Copy of `r` with each from[i] replaced by to[i] (same types). Shared subexpressions stay shared. */
ir_ref ir_substitute(ir *g, ir_ref r, const ir_ref *from, const ir_ref *to, int n);

const char *ir_op_name(ir_op op);
/* The value column of ops.def on single numbers (eval.c); type: of the arguments. */
double ir_value(ir_op op, ir_type type, double x, double y, double z);
bool ir_op_exact(ir_op op);  /* its REAL result is the same everywhere: EXACT and WIDE of ops.def */
bool ir_op_called(ir_op op); /* specs call it by that name, with one number */
int ir_op_arity(ir_op op);   /* -1 for LOAD and LISTED, which have 1 to 4 */
const char *ir_op_cuda(
    ir_op op); /* spelling with %0 %1 %2 for the arguments; NULL for leaves, LOAD, RANDOM, LISTED and reductions */
/* Approximate device instructions of an op. `type` is the type of its result. */
typedef enum ir_arithmetic { IR_FAST, IR_ACCURATE, IR_DOUBLE } ir_arithmetic;
int ir_op_cost(ir_op op, ir_type type, ir_arithmetic how);
const char *ir_var_name(ir_var v);
ir_type ir_var_type(ir_var v);
const char *ir_type_name(ir_type t);

/* The interval function of node r in templates/ops/interval.cuh is prefix ## stem, called with the bounds of its
 * arguments: ir_interval_prefix(type of its LAST argument) and ir_op_interval(op), e.g. "ivi_" and "lt". NULL for
 * leaves, LOAD and RANDOM. */
const char *ir_op_interval(ir_op op);
const char *ir_interval_prefix(ir_type t);

#endif
