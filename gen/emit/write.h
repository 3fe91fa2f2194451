/* write.h: expressions to statements. hoist.c decides what lives in Head, Row and Col; write.c prints
 * function bodies.
 *
 * First every function registers its expressions (writer_plan), then the slots are fixed (writer_fix), then
 * bodies are written.
 */
#ifndef LUATTN_GEN_WRITE_H
#define LUATTN_GEN_WRITE_H

#include "gen/base/text.h"
#include "gen/emit/form.h"

/* What a function of the contract has among its parameters. */
enum { HAS_HEAD = 1, HAS_ROW = 2, HAS_COL = 4, HAS_Q = 8, HAS_KV = 16 };
#define HAS_ELEMENT (HAS_HEAD | HAS_ROW | HAS_COL | HAS_Q | HAS_KV)

enum { PARAM_SLOT = 1, PARAM_VARIABLE };
enum { SLOTS_HEAD, SLOTS_ROW, SLOTS_COL, SLOTS_KINDS };

#define WRITER_MAX_ACC DERIVED_MAX_TERMS

typedef struct slots {
  int count, capacity;
  ir_ref *ref;
} slots; /* ascending */

/* A hook that a kernel's code repeats, and what it is made of. */
typedef struct hook {
  const char *name;
  int cost, copies;       /* instructions, roughly; how often they stand there if it is inlined */
  bool outlined, inlined; /* inlined: in any case */
} hook;
#define WRITER_MAX_HOOKS (16 + SPEC_MAX_RED)

typedef struct writer {
  emit_form *f;
  text out;
  uint32_t count; /* nodes; the IR is fixed from writer_open on */
  uint8_t
      *slot_kind; /* per node: 1 + SLOTS_*; 0: none. A node has at most one, as what it depends on decides */
  const char **slot_name; /* per node: "head.cap_0" */
  slots slot[SLOTS_KINDS];
  uint8_t *cost; /* per node: rough instructions to compute it */

  bool grad_reads_row; /* what backward's main kernel calls besides `keep` has slots in Row */

  int num_acc;
  derived_term acc[WRITER_MAX_ACC]; /* where element i of Acc goes */

  int num_hooks;
  hook hook[WRITER_MAX_HOOKS];

  /* The function being written. */
  int has, num_temps;
  bool *need;
  int *temp;         /* per node: t<n>; 0: none yet */
  const char *state; /* "old" or "state" */
  const char *turn;  /* which of a thread's elements it computes, where it is told */
  bool outlined;     /* a function out of line: it has only what it is given */
  uint8_t *param;    /* per node: PARAM_* if it is given to it */
  const char *call;  /* how it is called */
  int num_values;    /* the first results of one that computes gradients; sums for Acc follow */
  bool failed;
} writer;

luattn_status writer_open(writer *w, emit_form *f, luattn_error *err);
void writer_plan(writer *w, int has, const ir_ref *roots, int n);
void writer_fix(writer *w);
/* Prints struct Head, Row or Col and the function that fills it. */
void writer_slots(writer *w, int kind);

/* A body: begin, then lines() for whatever roots, then value() of each. */
void body_begin(writer *w, int has, const char *state);
void body_lines(writer *w, const ir_ref *roots, int n);
const char *body_value(writer *w, ir_ref r); /* an operand: a literal, a parameter, a slot or a temporary */
/* lines, then `return value;` */
void body_return(writer *w, ir_ref r);

/* outline.c: a hook whose inlined copies would take long to compile is one function, called. */
void outline_add(writer *w, const char *name, int has, int copies, const ir_ref *roots, int n);
void outline_choose(writer *w, text *why); /* adds a line to the plan's reasons for each */
bool outline_is(const writer *w, const char *name);
/* Between open and close, what is written goes to the function out of line. Flags: it needs p in any case; it
 * is a template over with_inputs. */
enum { OUTLINE_WITH_P = 1, OUTLINE_WITH_INPUTS = 2 };
void outline_open(writer *w, const char *type, const char *name, int has, const char *state,
                  const ir_ref *roots, int n, int flags);
const char *outline_close(writer *w); /* the call of it */

int writer_op_cost(const writer *w, ir_ref r); /* of the node alone */
/* True if the function reads r from a slot instead of computing it. */
bool writer_in_slot(const writer *w, ir_ref r);
/* The same of a function with `has` that is not being written. */
bool writer_slot_of(const writer *w, int has, ir_ref r);
const char *writer_parameter(writer *w, ir_ref r);  /* a slot or variable as a parameter: "head_cap_0" */
const char *writer_type(const writer *w, ir_ref r); /* "Real", "int", "bool" */
const char *writer_input_type(const writer *w, uint32_t input);
const char *writer_file(
    const writer *w); /* the spec's, without its folder: where it lies must not change the text */
void writer_line_end(writer *w, const ir_node *n); /* `;`, and the line of the spec */
const char *writer_format(writer *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); /* never NULL */

#endif
