/* branches.h: generates random functions of nested `if`s around sqrt, log, division, powers and exp, as a
 * spec's hook and as an independent reference.
 *
 * Each call that could give NaN or infinity is in an arm whose condition makes the call safe. branches_lua
 * writes the function in Lua; branches_value runs the same statements in double precision with derivatives
 * carried along, and never computes an arm that is not taken. So a value or a gradient that leaks from an
 * untaken arm differs from the reference. */
#ifndef LUATTN_TESTS_BRANCHES_H
#define LUATTN_TESTS_BRANCHES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The function's arguments. x is the element; i is an integer that is often 0; w is an input per head; c is a
 * scalar. */
typedef struct branches_point {
  double x, w, c, position;
  int i;
} branches_point;

/* A value and its derivatives with respect to x, w and c. */
typedef struct branches_dual {
  double value, by_x, by_w, by_c;
} branches_dual;

enum { BRANCHES_NODES = 256, BRANCHES_STATEMENTS = 64 };

typedef struct branches_node {
  char op; /* x w c i r: a leaf, r being the running result; k: number; + - *; s l / p e: a risky function of
              a */
  int a, b;
  double number;
} branches_node;

typedef struct branches_statement {
  int value;    /* the node assigned to r; -1: an if, with the members below */
  int left;     /* a node, or -1: the position */
  char compare; /* > or < */
  double limit;
  int then, otherwise, next; /* statements; -1: none */
} branches_statement;

typedef struct branches {
  branches_node node[BRANCHES_NODES];
  branches_statement statement[BRANCHES_STATEMENTS];
  int num_nodes, num_statements, first;
  uint64_t seed;
  bool gentle;
} branches;

/* gentle: limits the curvature in taken arms, so that float32 rounding of a score changes a gradient little.
 * Other functions have slopes up to 100, and up to infinity at the edge of a square root. */
void branches_random(branches *p, uint64_t seed, bool gentle);
branches_dual branches_value(const branches *p, const branches_point *at);

/* The hook that contains the function. */
typedef enum branches_kind { BRANCHES_SCORE, BRANCHES_MODS, BRANCHES_ONLINE, BRANCHES_KINDS } branches_kind;

/* Writes a complete spec that contains the function, with an input `w` of axis "h" and a scalar `c`, both
 * with gradients:
 *   SCORE   score_mod; x = score, i = |q_idx - kv_idx|, position = kv_idx
 *   MODS    query_mod, key_mod and value_mod; x = the element, i = pos % 3, position = d
 *   ONLINE  weights f and O = sum f v * N(rho), rho = the row's sum of f^2, N with an arm of its own
 *           (branches_norm); x = score, i = 1 where it is above 0.5, else 0, position = 3 score
 * Returns the spec's length; writes at most `size` bytes. */
size_t branches_lua(const branches *p, branches_kind kind, char *out, size_t size);
void branches_norm(const branches *p, double rho, double *norm, double *by_rho);

#endif
