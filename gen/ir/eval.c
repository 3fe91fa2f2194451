/* eval.c: evaluates the value column of ops.def: on single numbers for constant folding, and over blocks of
 * lanes for the CPU. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "abi/philox.h"
#include "gen/ir/graph.h"
#include "gen/ir/passes.h"
#include "gen/ir/scalar.h"

/* The value column on doubles. */
#define EXACT(value) (value)
#define NEAR(value) (value)
#define WIDE(value, wide) (value)

double ir_value(ir_op op, ir_type type, double x, double y, double z) {
  (void)type;
  switch (op) {
#define IR_OP(id, name, arity, types, cuda, value, ...) \
  case IR_##id:                                         \
    return value;
#include "gen/ir/ops.def"
#undef IR_OP
    case IR_OP_COUNT:
      break;
  }
  return 0;
}

/* One instruction writes one slot, a block of lanes. Slots are reused once their last reader has run; a
 * destination is never one of its own arguments, which lets the loops vectorise. */
typedef struct instr {
  uint16_t op;
  uint8_t type; /* selects the form of an op, see ir_operand_type */
  uint8_t nargs;
  bool wide;         /* computes or compares integers of 64 bits */
  uint8_t wide_args; /* bit i: argument i lies in its slot as such */
  uint32_t dst, arg[4];
  uint32_t var, index; /* of a variable; index is the input of a LOAD */
  double value;        /* of a constant */
} instr;

struct ir_program {
  instr *code;
  uint32_t num_code, num_slots;
  uint32_t *root; /* slot of each root */
  bool *wide_root;
  int num_roots;
};

/* ---- compiling ---- */

typedef struct compiler {
  const ir *g;
  ir_ref top;          /* highest root */
  uint32_t *last_use;  /* [top + 1]; 0: not needed; UINT32_MAX: a root */
  uint32_t *slot;      /* [top + 1] */
  uint32_t *free_slot; /* stack */
  uint32_t num_free;
} compiler;

static uint32_t find_uses(compiler *c, const ir_ref *roots, int n) {
  uint32_t needed = 0;
  for (int i = 0; i < n; ++i) c->last_use[roots[i]] = UINT32_MAX;
  for (ir_ref r = c->top; r > 0; --r) {
    if (c->last_use[r] == 0) continue;
    ++needed;
    const ir_node *node = ir_get(c->g, r);
    for (int k = 0; k < node->nargs; ++k)
      if (c->last_use[node->arg[k]] == 0)
        c->last_use[node->arg[k]] = r; /* counting down: the first use seen is the last */
  }
  return needed;
}

static uint32_t take_slot(compiler *c, ir_program *p) {
  return c->num_free > 0 ? c->free_slot[--c->num_free] : p->num_slots++;
}

static bool is_wide_int(const ir *g, ir_ref r) { return ir_is_wide(g, r) && ir_typeof(g, r) == IR_INT; }

static void compile_node(compiler *c, ir_program *p, ir_ref r) {
  const ir_node *n = ir_get(c->g, r);
  assert(ir_op_rule((ir_op)n->op) != REDUCES && n->op != IR_LISTED);
  instr *in = &p->code[p->num_code++];
  *in = (instr){.op = n->op, .type = (uint8_t)ir_operand_type(c->g, n), .nargs = n->nargs};
  in->wide = is_wide_int(c->g, r) || (ir_compares_wide(c->g, r) && ir_operand_type(c->g, n) == IR_INT);
  for (int k = 0; k < n->nargs; ++k) {
    in->arg[k] = c->slot[n->arg[k]];
    if (is_wide_int(c->g, n->arg[k])) in->wide_args |= (uint8_t)(1 << k);
  }
  for (int k = n->nargs; k > 0 && k < 4; ++k)
    in->arg[k] = in->arg[0]; /* the loops read three arguments, whatever the arity */
  if (n->op == IR_VAR)
    in->var = (uint32_t)ir_var_of(n), in->index = ir_index_of(n);
  else if (n->op == IR_LOAD)
    in->index = (uint32_t)n->imm.integer;
  else
    ir_const_value(c->g, r, &in->value);
  in->dst = c->slot[r] = take_slot(c, p);
  for (int k = 0; k < n->nargs; ++k) {
    if (c->last_use[n->arg[k]] != r) continue;
    c->last_use[n->arg[k]] = 0; /* freed once, even if it occurs in several arguments */
    c->free_slot[c->num_free++] = c->slot[n->arg[k]];
  }
}

ir_program *ir_program_new(arena *a, const ir *g, const ir_ref *roots, int n) {
  if (g->failed) return NULL;
  compiler c = {.g = g};
  for (int i = 0; i < n; ++i) {
    if (roots[i] == IR_NONE) return NULL;
    if (roots[i] > c.top) c.top = roots[i];
  }
  ir_program *p = arena_new(a, sizeof *p);
  c.last_use = arena_array(a, (size_t)c.top + 1, sizeof *c.last_use);
  c.slot = arena_array(a, (size_t)c.top + 1, sizeof *c.slot);
  c.free_slot = arena_array(a, (size_t)c.top + 1, sizeof *c.free_slot);
  if (p == NULL || c.last_use == NULL || c.slot == NULL || c.free_slot == NULL) return NULL;
  const uint32_t needed = find_uses(&c, roots, n);
  p->code = arena_array(a, needed, sizeof *p->code);
  p->root = arena_array(a, (size_t)n, sizeof *p->root);
  p->wide_root = arena_array(a, (size_t)n, sizeof *p->wide_root);
  if (p->code == NULL || p->root == NULL || p->wide_root == NULL) return NULL;
  for (ir_ref r = 1; r <= c.top; ++r)
    if (c.last_use[r] != 0) compile_node(&c, p, r);
  for (int i = 0; i < n; ++i) p->root[i] = c.slot[roots[i]], p->wide_root[i] = is_wide_int(g, roots[i]);
  p->num_roots = n;
  return p;
}

size_t ir_program_scratch(const ir_program *p) { return (p->num_slots > 0 ? p->num_slots : 1) * sizeof(ir_lane_block); }

/* ---- running ---- */

/* Lanes come in groups of eight, a constant count for the vectoriser. */
enum { GROUP = 8 };

static void fill(double *out, int from, int to, double value) {
  for (int i = from; i < to; ++i) out[i] = value;
}

static void run_op(ir_op op, ir_type type, const double *restrict a, const double *restrict b, const double *restrict c,
                   double *restrict out, int groups) {
  switch (op) {
#define IR_OP(id, name, arity, types, cuda, value, ...)   \
  case IR_##id:                                           \
    for (int j = 0; j < groups; ++j)                      \
      for (int i = j * GROUP; i < (j + 1) * GROUP; ++i) { \
        const double x = a[i], y = b[i], z = c[i];        \
        (void)x, (void)y, (void)z, (void)type;            \
        out[i] = value;                                   \
      }                                                   \
    break;
#include "gen/ir/ops.def"
#undef IR_OP
    case IR_OP_COUNT:
      break;
  }
}

/* ---- integers of 64 bits, which lie in their slots as such ---- */

#undef EXACT
#undef NEAR
#undef WIDE
#define EXACT(value) (assert(!"an op of integers has no form of 64 bits"), 0)
#define NEAR(value) EXACT(value)
#define WIDE(value, wide) (wide)
static int64_t wide_value(ir_op op, int64_t x, int64_t y, int64_t z) {
  switch (op) {
#define IR_OP(id, name, arity, types, cuda, value, ...) \
  case IR_##id:                                         \
    return value;
#include "gen/ir/ops.def"
#undef IR_OP
    case IR_OP_COUNT:
      break;
  }
  return 0;
}

static void read_wide(int64_t *out, const double *slot) { memcpy(out, slot, sizeof(int64_t) * IR_LANES); }

/* Argument k as doubles: in its slot, or converted in `room`. */
static const double *argument(const instr *in, int k, const ir_lane_block *slot, double *room) {
  int64_t x[IR_LANES];
  if ((in->wide_args >> k & 1) == 0) return slot[in->arg[k]];
  read_wide(x, slot[in->arg[k]]);
  for (int i = 0; i < IR_LANES; ++i) room[i] = (double)x[i];
  return room;
}

static void run_wide(const instr *in, const ir_lane_block *slot, double *out) {
  int64_t x[3][IR_LANES] = {{0}}, made[IR_LANES];
  double as_double[IR_LANES];
  for (int k = 0; k < in->nargs && k < 3; ++k)
    if (in->wide_args >> k & 1)
      read_wide(x[k], slot[in->arg[k]]);
    else
      for (int i = 0; i < IR_LANES; ++i) x[k][i] = scalar_bits(slot[in->arg[k]][i]);
  for (int i = 0; i < IR_LANES; ++i) made[i] = wide_value((ir_op)in->op, x[0][i], x[1][i], x[2][i]);
  if (ir_op_rule((ir_op)in->op) == COMPARES) {
    for (int i = 0; i < IR_LANES; ++i) as_double[i] = (double)made[i];
    memcpy(out, as_double, sizeof as_double);
  } else {
    memcpy(out, made, sizeof made);
  }
}

static void run_load(const instr *in, const ir_env *env, int lanes, const ir_lane_block *slot, double *out) {
  const double *index[4] = {NULL, NULL, NULL, NULL};
  ir_lane_block room[4];
  int64_t wide[IR_LANES] = {0};
  for (int k = 0; k < in->nargs; ++k) index[k] = argument(in, k, slot, room[k]);
  if (!in->wide || env->load_wide == NULL) {
    env->load(env->user, in->index, in->nargs, index, lanes, out);
    for (int i = 0; in->wide && i < lanes; ++i) wide[i] = scalar_bits(out[i]);
  } else {
    env->load_wide(env->user, in->index, in->nargs, index, lanes, wide);
  }
  if (in->wide) memcpy(out, wide, sizeof wide);
}

static unsigned word_of(double x) { return (unsigned)(int64_t)x; }

double ir_random_value(uint64_t seed, uint64_t offset, int heads, const double at[4]) {
  const uint64_t counter = offset + (uint64_t)((int64_t)at[0] * heads + (int64_t)at[1]);
  return random_bits(seed, counter, (int)word_of(at[2]), (int)word_of(at[3])) * 0x1p-24;
}

static void run_random(const instr *in, const ir_env *env, int lanes, const ir_lane_block *slot, double *out) {
  ir_lane_block room[4];
  const double *const at[4] = {argument(in, 0, slot, room[0]), argument(in, 1, slot, room[1]),
                               argument(in, 2, slot, room[2]), argument(in, 3, slot, room[3])};
  if (env->random != NULL) {
    env->random(env->user, at, lanes, out);
    return;
  }
  for (int i = 0; i < lanes; ++i)
    out[i] = ir_random_value(0, 0, 1, (const double[]){at[0][i], at[1][i], at[2][i], at[3][i]});
}

/* An op of which some argument, or the result, is an integer of 64 bits. */
static void run_of_wide(const instr *in, ir_lane_block *slot, double *dst, int groups) {
  ir_lane_block room[3];
  if (in->wide) {
    run_wide(in, (const ir_lane_block *)slot, dst);
    return;
  }
  run_op((ir_op)in->op, (ir_type)in->type, argument(in, 0, (const ir_lane_block *)slot, room[0]),
         in->nargs > 1 ? argument(in, 1, (const ir_lane_block *)slot, room[1]) : slot[in->arg[1]],
         in->nargs > 2 ? argument(in, 2, (const ir_lane_block *)slot, room[2]) : slot[in->arg[2]], dst, groups);
}

void ir_program_run(const ir_program *p, const ir_env *env, int lanes, void *scratch, double *const *out) {
  assert(lanes >= 1 && lanes <= IR_LANES);
  ir_lane_block *slot = scratch;
  const int groups = (lanes + GROUP - 1) / GROUP, padded = groups * GROUP;
  for (uint32_t i = 0; i < p->num_code; ++i) {
    const instr *in = &p->code[i];
    double *dst = slot[in->dst];
    switch (in->op) {
      case IR_CONST_REAL:
      case IR_CONST_INT:
      case IR_CONST_BOOL:
        fill(dst, 0, padded, in->value);
        break;
      case IR_VAR:
        env->variable(env->user, (ir_var)in->var, in->index, lanes, dst);
        fill(dst, lanes, padded, dst[0]);
        break;
      case IR_LOAD:
        run_load(in, env, lanes, (const ir_lane_block *)slot, dst);
        if (!in->wide) fill(dst, lanes, padded, dst[0]);
        break;
      case IR_RANDOM:
        run_random(in, env, lanes, (const ir_lane_block *)slot, dst);
        fill(dst, lanes, padded, dst[0]);
        break;
      default:
        if (in->wide || in->wide_args != 0)
          run_of_wide(in, slot, dst, groups);
        else
          run_op((ir_op)in->op, (ir_type)in->type, slot[in->arg[0]], slot[in->arg[1]], slot[in->arg[2]], dst, groups);
    }
  }
  for (int i = 0; i < p->num_roots; ++i) {
    ir_lane_block room;
    const instr of_root = {.arg = {p->root[i]}, .wide_args = p->wide_root[i]};
    memcpy(out[i], argument(&of_root, 0, (const ir_lane_block *)slot, room), (size_t)lanes * sizeof(double));
  }
}
