/* table.c: the contents of ops.def as tables that passes look up. */
#include <stddef.h>

#include "gen/ir/graph.h"

_Static_assert(IR_OP_COUNT <= 64 * IR_OP_WORDS && VAR_COUNT <= 64, "ir_content keeps one bit for each");

#define CALLED(name) name
const char *ir_op_name(ir_op op) {
  static const char *const name[] = {
#define IR_OP(id, name, ...) name,
#include "gen/ir/ops.def"
#undef IR_OP
  };
  return (unsigned)op < IR_OP_COUNT ? name[op] : "?";
}
#undef CALLED

#define CALLED(name) NULL
bool ir_op_called(ir_op op) {
  static const char *const other[] = {
#define IR_OP(id, name, ...) name,
#include "gen/ir/ops.def"
#undef IR_OP
  };
  return other[op] == NULL;
}
#undef CALLED

int ir_op_arity(ir_op op) {
  static const signed char arity[] = {
#define IR_OP(id, name, arity, ...) arity,
#include "gen/ir/ops.def"
#undef IR_OP
  };
  return arity[op];
}

ir_rule ir_op_rule(ir_op op) {
  static const unsigned char rule[] = {
#define IR_OP(id, name, arity, rule, ...) rule,
#include "gen/ir/ops.def"
#undef IR_OP
  };
  return (ir_rule)rule[op];
}

bool ir_op_exact(ir_op op) {
#define EXACT(value) true
#define NEAR(value) false
#define WIDE(value, wide) true
  static const bool exact[] = {
#define IR_OP(id, name, arity, rule, cuda, value, ...) value,
#include "gen/ir/ops.def"
#undef IR_OP
  };
  return exact[op];
}

const char *ir_op_cuda(ir_op op) {
  static const char *const cuda[] = {
#define IR_OP(id, name, arity, rule, cuda, ...) cuda,
#include "gen/ir/ops.def"
#undef IR_OP
  };
  return cuda[op];
}

const char *ir_op_interval(ir_op op) {
#define NO_INTERVAL NULL
#define REAL1(f) #f
#define REAL2(f) #f
#define REAL3(f) #f
#define NUM1(f) #f
#define NUM2(f) #f
#define COMPARE2(f) #f
#define BOOL1(f) #f
#define BOOL2(f) #f
#define INT_REAL1(f) #f
#define INT_REAL2(f) #f
#define REAL_INT1(f) #f
#define INT2(f) #f
#define INT3(f) #f
#define SELECT3(f) #f
  static const char *const stem[] = {
#define IR_OP(id, name, arity, rule, cuda, value, derivative, interval, cost) interval,
#include "gen/ir/ops.def"
#undef IR_OP
  };
  return stem[op];
}

int ir_op_cost(ir_op op, ir_type type, ir_arithmetic how) {
#define COST(n) {n, n, n, n}
#define COSTS(integer, fast, accurate, wide) {integer, fast, accurate, wide}
  static const short cost[][4] = {
#define IR_OP(id, name, arity, rule, cuda, value, derivative, interval, cost) cost,
#include "gen/ir/ops.def"
#undef IR_OP
  };
  return cost[op][type == IR_REAL ? 1 + (int)how : 0];
}

const char *ir_interval_prefix(ir_type t) { return t == IR_REAL ? "iv_" : t == IR_INT ? "ivi_" : "tri_"; }

const char *ir_type_name(ir_type t) {
  return t == IR_REAL ? "real" : t == IR_INT ? "int" : t == IR_BOOL ? "bool" : "?";
}

typedef struct var_row {
  const char *name;
  ir_type type;
  bool indexed;
} var_row;

static const var_row var_table[] = {
    [VAR_SCORE] = {"score", IR_REAL, false},
    [VAR_B] = {"b", IR_INT, false},
    [VAR_H] = {"h", IR_INT, false},
    [VAR_Q] = {"q_idx", IR_INT, true},
    [VAR_KV] = {"kv_idx", IR_INT, true},
    [VAR_Q_LEN] = {"q_len", IR_INT, true},
    [VAR_KV_LEN] = {"kv_len", IR_INT, true},
    [VAR_HEADS] = {"heads", IR_INT, false},
    [VAR_HEADS_KV] = {"heads_kv", IR_INT, false},
    [VAR_SCALAR] = {"scalar", IR_REAL, true},
    [VAR_X] = {"x", IR_REAL, false},
    [VAR_POS] = {"pos", IR_INT, true},
    [VAR_D] = {"d", IR_INT, false},
    [VAR_STATE] = {"state", IR_REAL, true},
    [VAR_OUT] = {"out", IR_REAL, false},
    [VAR_FINAL] = {"final", IR_REAL, true},
    [VAR_DP] = {"dp", IR_REAL, false},
    [VAR_P] = {"p", IR_REAL, false},
    [VAR_DELTA] = {"delta", IR_REAL, false},
    [VAR_DLSE] = {"dlse", IR_REAL, false},
    [VAR_ROW] = {"row", IR_REAL, true},
    [VAR_RED] = {"red", IR_REAL, true},
    [VAR_DOT] = {"dot", IR_REAL, false},
    [VAR_SCALE] = {"scale", IR_REAL, false},
    [VAR_GRAD] = {"grad", IR_REAL, false},
    [VAR_TILE] = {"tile", IR_INT, true},
    [VAR_PART] = {"part", IR_INT, true},
    [VAR_SHIFT] = {"shift", IR_REAL, false},
    [VAR_TERM] = {"term", IR_REAL, false},
    [VAR_HEAD_DIM] = {"head_dim", IR_INT, false},
    [VAR_HEAD_DIM_V] = {"head_dim_v", IR_INT, false},
    [VAR_READ] = {"read", IR_REAL, true},
    [VAR_READ_GRAD] = {"read_grad", IR_REAL, true},
    [VAR_CHANNEL] = {"channel", IR_INT, true},
    [VAR_OTHER] = {"other", IR_REAL, true},
    [VAR_PASS] = {"pass", IR_REAL, true},
    [VAR_SCORE_TANGENT] = {"score_tangent", IR_REAL, false},
    [VAR_X_TANGENT] = {"x_tangent", IR_REAL, false},
    [VAR_READ_TANGENT] = {"read_tangent", IR_REAL, true},
    [VAR_STATE_TANGENT] = {"state_tangent", IR_REAL, true},
    [VAR_RED_TANGENT] = {"red_tangent", IR_REAL, true},
    [VAR_SCALAR_TANGENT] = {"scalar_tangent", IR_REAL, true},
    [VAR_DP_TANGENT] = {"dp_tangent", IR_REAL, false},
    [VAR_DELTA_TANGENT] = {"delta_tangent", IR_REAL, false},
    [VAR_DLSE_TANGENT] = {"dlse_tangent", IR_REAL, false},
    [VAR_GRAD_TANGENT] = {"grad_tangent", IR_REAL, false},
    [VAR_FINAL_TANGENT] = {"final_tangent", IR_REAL, true},
    [VAR_ROW_TANGENT] = {"row_tangent", IR_REAL, true},
    [VAR_READ_GRAD_TANGENT] = {"read_grad_tangent", IR_REAL, true},
    [VAR_PASS_TANGENT] = {"pass_tangent", IR_REAL, true},
};
_Static_assert(sizeof var_table / sizeof var_table[0] == VAR_COUNT, "one row for each variable");

const char *ir_var_name(ir_var v) { return (unsigned)v < VAR_COUNT ? var_table[v].name : "?"; }

ir_type ir_var_type(ir_var v) { return var_table[v].type; }

bool ir_var_indexed(ir_var v) { return var_table[v].indexed; }

bool ir_var_is_along_axis(ir_var v) {
  return v == VAR_Q || v == VAR_KV || v == VAR_POS || v == VAR_Q_LEN || v == VAR_KV_LEN;
}
