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
  int *temp;                /* per node: t<n>; 0: none yet */
  float *reach;             /* per node with an initializer: the operations that NVRTC visits to check it */
  const char *state;        /* "old", "state" or "mine" */
  const char *element;      /* which of a thread's elements is computed, where the hook takes it */
  bool outlined;            /* the function is outlined and reads only its parameters */
  uint8_t *param;           /* per node: PARAM_* if it is a parameter */
  bool calls_ops;           /* long functions are called, not inlined */
  const char *call;         /* the call */
  bool of_cells;            /* bounds over cells, for which there are no block bounds */
  bool of_place;            /* an end of a box over a grid is that of one place */
  int num_values;           /* how many values a gradient function returns before the sums for Acc */
  size_t body;              /* the start of its first statement in `out` */
  const char *places;       /* the axis of offsets: "q" or, in key_mod and value_mod, "kv"; whole_positions.c */
  const char *const *names; /* of linear attention: of the variables without an index; NULL: attention's */
  bool failed;
} writer;

bool writer_open(writer *w, const lowered *f); /* writer.c; false: out of memory */

/* A body: begin, then lines() for any roots, then value() of each. */
void body_begin(writer *w, int has, const char *state);
void body_lines(writer *w, const ir_ref *roots, int n);
const char *body_value(writer *w, ir_ref r); /* an operand: a literal, a parameter, a slot or a temporary */
const char *body_int(writer *w, ir_ref r);   /* of an integer, where 32 bits are wanted: the nearest number of these */
/* Prints ", " and an operand for each index: where an input is read, or its gradient added to. */
void body_index(writer *w, unsigned input, const ir_ref *index, int n);
/* The same for a row along the last axis, whose index is the caller's position: it may lie outside of the axis. */
/* What follows the name of a function of templates/ops/input_list.cuh. */
void body_list(writer *w, const ir_node *n);
void body_row_index(writer *w, unsigned input, const ir_ref *index, int n);
/* Prints lines, then `return value;`. */
void body_return(writer *w, ir_ref r);

/* called_hooks.c. Between open and close, output goes to the outlined function. Flags: it always takes p; it
 * is a template over with_inputs; it is given acc.lanes.kept. */
enum { OUTLINE_WITH_P = 1, OUTLINE_WITH_INPUTS = 2, OUTLINE_WITH_KEPT = 4 };
void outline_open(writer *w, const char *type, const char *name, int has, const char *state, const ir_ref *roots, int n,
                  int flags);
void called_ops(writer *w);
const char *outline_close(writer *w); /* the call of it */

/* whole_positions.c. A kernel's positions and heads are those of the tensors; a spec's, with
 * luattn_target.offsets, those of a whole (templates/ops/offsets.cuh). Without offsets, both are the same. */
const char *offsets_variable(writer *w, const ir_node *n, const char *own); /* `own`: the kernel's variable */
const char *offsets_tile(writer *w, ir_var position);                       /* bounds of VAR_Q or VAR_KV over a tile */
/* offsets_index returns an input's index, relative to the call's tensors, and where sequences are packed an index of
 * the entry's own rows; offsets_own_index the same without that last step; `value`: r as an integer. offsets_bounds
 * returns its bounds over a tile; `bounds`: those of r. */
const char *offsets_index(writer *w, unsigned input, int axis, ir_ref r, const char *value);
const char *offsets_own_index(writer *w, unsigned input, int axis, ir_ref r, const char *value);
const char *offsets_bounds(writer *w, unsigned input, int axis, ir_ref r, const char *bounds);
/* Whether index r is the kernel's own position, so that a tile lies in one block of stats. */
bool offsets_is_place(const writer *w, unsigned input, int axis, ir_ref r);
/* [lo, hi) of `axis`, "q" or "kv", clipped to the tensors' positions; NULL: no bound. */
const char *offsets_range(writer *w, const char *lo, const char *hi, const char *axis);
const char *offsets_all(writer *w, const char *axis);               /* of a range without ends */
const char *offsets_phase(writer *w, const char *axis, int period); /* of row_phase, column_phase */
void offsets_close(
    writer *w); /* declares the offsets, and the entry's rows, at the start of a function that uses them */
/* Whether sequences are packed, or keys in pages, and some input has an axis of positions of entries whose lengths
 * differ; whether this axis has the rows of all sequences. */
bool entry_rows_are_read(const writer *w);
bool entry_rows_shift(const writer *w, unsigned input, int axis);

/* writer.c. Whether the function being written reads r from a slot or a parameter instead of computing it. */
bool writer_in_slot(const writer *w, ir_ref r);
const char *writer_own(writer *w, const ir_node *n); /* the kernel's variable: "q", "s.h" */
/* Whether keys lie in boxes that begin anywhere (templates/contract/keys.cuh), and the types of hooks' parameters: of a
 * key, one with a constant offset, and the ends of a tile. */
bool writer_free_boxes(const writer *w);
const char *writer_key(const writer *w);
const char *writer_key_place(const writer *w);
const char *writer_key_box(const writer *w);
const char *writer_parameter(writer *w, ir_ref r);  /* a slot or variable as a parameter: "head_cap_0" */
const char *writer_type(const writer *w, ir_ref r); /* "Real", "int", "bool"; of 64 bits "double", "i64" */
bool writer_is_wide(const writer *w, ir_ref r);     /* ir_is_wide, and no double where Real is double */
const char *writer_input_type(const writer *w, uint32_t input);
/* Returns the spec's file name without its folder: the folder's path must not change the text. */
const char *writer_file(const writer *w);
void writer_line_end(writer *w, const ir_node *n); /* `;`, and the line of the spec */
const char *writer_format(writer *w, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* never NULL */

#endif
