/* linear_writer.h: shared by the files that print spec.cuh of linear attention. */
#ifndef LUATTN_GEN_LINEAR_WRITER_H
#define LUATTN_GEN_LINEAR_WRITER_H

#include "gen/emit/linear_spec.h"
#include "gen/emit/sections.h"

#define LINEAR_SITE "const LuattnLinearParams &p, const LinearSite &s, "

/* Names of variables in hooks of value heads, and of heads of q. */
extern const char *const linear_of_values[VAR_COUNT], *const linear_of_queries[VAR_COUNT];

/* Open and close a function of the contract, which reads its parameters alone. */
void linear_open_function(writer *w, const char *signature);
void linear_close_function(writer *w);
/* The lines before the first struct; `contract`: the file of templates/contract, `real`: the type of numbers. */
void linear_print_head(writer *w, const char *contract, const char *real, bool backward);
/* Adds a term's value to the gradient of an input or scalar. */
void linear_add_to_memory(writer *w, const derived_term *t, const char *value, bool sole);

/* A text of nodes of g, which `print` prints, given `of`. */
typedef struct linear_text {
  arena *a;
  ir *g;
  const luattn_spec *spec;
  bool packed, deterministic, is_double; /* is_double: Real is */
  void (*print)(writer *w, const void *of);
  const void *of;
} linear_text;
/* Errors: LUATTN_NO_MEMORY, LUATTN_INTERNAL. */
luattn_status linear_print_text(const linear_text *t, const char **out, luattn_error *err);

/* linear_gradients.c. Print a hook of rows, with its derivative in backward, and the gradients that a number of a token
 * gives. w->names says whose heads the hook counts. */
void linear_print_row(writer *w, const char *name, const linear_row_hook *hook, bool backward);
void linear_print_number(writer *w, const char *name, const linear_terms *terms, unsigned sole);

#endif
