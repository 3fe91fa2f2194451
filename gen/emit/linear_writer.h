/* linear_writer.h: shared by the files that print spec.cuh of linear attention. */
#ifndef LUATTN_GEN_LINEAR_WRITER_H
#define LUATTN_GEN_LINEAR_WRITER_H

#include "gen/emit/linear_spec.h"
#include "gen/emit/sections.h"

#define LINEAR_SITE "const LuattnLinearParams &p, const LinearSite &s, "

/* linear_gradients.c. Print a hook of rows, with its derivative in backward, and the gradients that a number of a token
 * gives. w->names says whose heads the hook counts. */
void linear_print_row(writer *w, const char *name, const linear_row_hook *hook, bool backward);
void linear_print_number(writer *w, const char *name, const linear_terms *terms);

#endif
