/* graph.h: internals of an ir, for the files of gen/ir/ (and for tests that damage it). */
#ifndef LUATTN_GEN_IR_GRAPH_H
#define LUATTN_GEN_IR_GRAPH_H

#include "gen/ir/ir.h"

/* The types column of ops.def. */
typedef enum ir_rule {
  LEAF,
  GATHERS,
  REALS,
  NUMS,
  INTS,
  COMPARES,
  BOOLS,
  INT_TO_REAL,
  REAL_TO_INT,
  SELECTS,
  REDUCES
} ir_rule;

/* Which variables and ops occur under a node: bit v for variable v, bit op for op. */
enum { IR_OP_WORDS = 2 };
typedef struct ir_content {
  uint64_t vars, ops[IR_OP_WORDS];
  bool wide;    /* see ir_is_wide */
  bool inexact; /* a REAL that IEEE 754 does not determine: a score, or a function of it or of anything */
} ir_content;

enum { IR_SCRATCH_DEPTH = 6 };

struct ir {
  arena *a;
  ir_node *node; /* [capacity]; slot 0 is IR_NONE */
  ir_content *content;
  uint32_t count, capacity;
  ir_ref *table; /* open addressing; a power of two, at most half full */
  uint32_t table_size;
  uint32_t line;
  uint32_t wide_inputs; /* bit i: ir_input_wide */
  int axes;
  bool failed;
  /* Scratch arrays of one entry per node, for passes. Passes nest, so each depth keeps a buffer that the next
   * pass reuses. */
  struct {
    void *data;
    size_t size;
  } scratch[IR_SCRATCH_DEPTH];
  int depth;
};

ir_rule ir_op_rule(ir_op op);
bool ir_var_indexed(ir_var v);       /* whether v is a family of variables */
bool ir_var_is_along_axis(ir_var v); /* whether its index is the axis of a grid */
/* The node with this content, which may be new; IR_NONE, and g has failed: out of memory. */
ir_ref ir_intern(ir *g, const ir_node *n);
ir_ref ir_fail(ir *g); /* g has failed; returns IR_NONE */
/* Result type for these arguments (the rule's, given a node's own type for leaves). */
ir_type ir_result_type(const ir *g, ir_op op, const ir_ref *arg);
/* Type that selects between the INT, REAL and BOOL forms of an op: the type of the last argument. */
ir_type ir_operand_type(const ir *g, const ir_node *n);

bool ir_const_value(const ir *g, ir_ref r, double *value); /* like ir_is_const, for BOOL too */
ir_ref ir_const_of(ir *g, ir_type type, double value);
ir_ref ir_zero(ir *g, ir_type type);
bool ir_is_op(const ir *g, ir_ref r, ir_op op);
/* Whether the last bits of the node's REAL arguments may decide: a comparison, or a step of whole numbers
 * (simplify.c). */
bool ir_is_sharp(const ir *g, const ir_node *n);

/* Zeroed memory until the matching pop; NULL: out of memory (and g has failed; do not pop). */
void *ir_push(ir *g, size_t count, size_t size);
void ir_pop(ir *g);

/* An integer comparison as low - high <= k (either may be IR_NONE for 0); false if r is not one. */
typedef struct ir_order {
  ir_ref low, high;
  double k;
} ir_order;
bool ir_order_of(const ir *g, ir_ref r, ir_order *o);

/* Whether x and y are BOOL and one is the negation of the other. */
bool ir_opposite(const ir *g, ir_ref x, ir_ref y);

/* linear.c: the same sum with like terms collected, if that is shorter; the same product with its constants
 * multiplied out, if there are several; an INT comparison in normal form. Otherwise r itself. */
ir_ref ir_collect_sum(ir *g, ir_ref r);
ir_ref ir_collect_product(ir *g, ir_ref r);
ir_ref ir_collect_compare(ir *g, ir_ref r);

/* logic.c */
ir_ref ir_collect_logic(ir *g, ir_ref r); /* AND or OR without repeated, absorbed or contradicting members */

#endif
