/* one_sequence.h: each of a problem's packed sequences as a problem of its own. */
#ifndef LUATTN_CLI_ONE_SEQUENCE_H
#define LUATTN_CLI_ONE_SEQUENCE_H

#include "cli/cli.h"

/* One sequence: a problem with tensors of its own, as a batch without other sequences. If the spec computes with b, the
 * batch has as many entries as make the last one's number right; the others are 0. Free it with problem_free. */
luattn_status sequence_take(const cli_problem *p, int i, cli_problem *one, luattn_error *err);
bool sequence_is_empty(const cli_problem *p, int i);
/* Puts the results of a sequence to its rows in `all`, and adds those that sequences share; as_squares: they are roots
 * of sums of squares. What either lacks is left out. */
void sequence_put(const cli_problem *p, int i, const cli_result *one, bool as_squares, cli_result *all);

#endif
