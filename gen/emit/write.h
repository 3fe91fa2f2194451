/* write.h: prints expressions as statements and function bodies. */
#ifndef LUATTN_GEN_WRITE_H
#define LUATTN_GEN_WRITE_H

#include "gen/base/text.h"
#include "gen/lower/lowered.h"

typedef struct writer {
  const lowered *f;
  text out;
  const char **slot_name; /* per node: "head.cap_0" */

  /* The function being written. */
  int has, num_temps;
  bool *need;
  int *temp;           /* per node: t<n>; 0: none yet */
  const char *state;   /* "old" or "state" */
  const char *element; /* which of a thread's elements it computes, where it is told */
  bool outlined;       /* a function out of line: it has only what it is given */
  uint8_t *param;      /* per node: PARAM_* if it is given to it */
  const char *call;    /* how it is called */
  int num_values;      /* the first results of one that computes gradients; sums for Acc follow */
  bool failed;
} writer;

bool writer_open(writer *w, const lowered *f); /* false: out of memory */

/* A body: begin, then lines() for whatever roots, then value() of each. */
void body_begin(writer *w, int has, const char *state);
void body_lines(writer *w, const ir_ref *roots, int n);
const char *body_value(writer *w, ir_ref r); /* an operand: a literal, a parameter, a slot or a temporary */
/* lines, then `return value;` */
void body_return(writer *w, ir_ref r);

/* called_hooks.c. Between open and close, what is written goes to the function out of line. Flags: it
 * needs p in any case; it is a template over with_inputs. */
enum { OUTLINE_WITH_P = 1, OUTLINE_WITH_INPUTS = 2 };
void outline_open(writer *w, const char *type, const char *name, int has, const char *state,
                  const ir_ref *roots, int n, int flags);
const char *outline_close(writer *w); /* the call of it */

/* True if the function being written reads r from a slot or a parameter instead of computing it. */
bool writer_in_slot(const writer *w, ir_ref r);
const char *writer_parameter(writer *w, ir_ref r);  /* a slot or variable as a parameter: "head_cap_0" */
const char *writer_type(const writer *w, ir_ref r); /* "Real", "int", "bool" */
const char *writer_input_type(const writer *w, uint32_t input);
/* The spec's, without its folder: where it lies must not change the text. */
const char *writer_file(const writer *w);
void writer_line_end(writer *w, const ir_node *n); /* `;`, and the line of the spec */
const char *writer_format(writer *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); /* never NULL */

#endif
