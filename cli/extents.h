/* extents.h: the extents of a grid's axes on command lines: 16x24 in the place of a length. */
#ifndef LUATTN_CLI_EXTENTS_H
#define LUATTN_CLI_EXTENTS_H

#include "cli/cli.h"

/* Parses the seven sizes of --shape, of which Sq and Skv may be extents, into those of the problem. Refuses what they
 * cannot be. */
luattn_status extents_parse(const char *text, cli_problem *p, luattn_error *err);
/* Refuses extents of another grid than the spec's; takes others where neither --shape nor files have them. */
luattn_status extents_check(const cli_options *o, cli_problem *p, luattn_error *err);
/* Takes those of a tensor [batch, heads, .., head_dim]. side: 0 of q, 1 of kv */
void extents_take(cli_problem *p, int side, const array *tensor);
/* Reads up to `most` sizes, from 0 to INT32_MAX, with an x between them, and sets *count. Returns what follows; NULL:
 * these are none. */
const char *extents_read(const char *at, int most, int *out, int *count);
/* "16x24", or "256". */
const char *extents_text(const cli_problem *p, int side, char text[64]);
/* The coordinates of a place by its row-major number; of a line that number. Returns how many. */
int extents_coordinates(const cli_problem *p, int side, int place, double at[LUATTN_MAX_AXES]);
/* The number by which draws of dropout know a place (docs/language.md). */
int extents_draw_number(const cli_problem *p, int side, int place);

#endif
