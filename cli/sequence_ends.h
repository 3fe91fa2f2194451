/* sequence_ends.h: the packed sequences of a problem, as options give them. */
#ifndef LUATTN_CLI_SEQUENCE_ENDS_H
#define LUATTN_CLI_SEQUENCE_ENDS_H

#include "cli/cli.h"

/* Reads --cu-seqlens, or --cu-seqlens-q and --cu-seqlens-k: opens p->sequences, and sets the batch, q_len and kv_len
 * (the totals) and the longest lengths. Does nothing without these options. Then p->batch agrees with --shape, if it is
 * given. */
luattn_status sequences_option(const cli_options *o, cli_problem *p, luattn_error *err);
void sequences_free(cli_problem *p);

/* The size of axis j of an input: a packed axis has the rows of all sequences. */
int64_t sequences_axis(const cli_problem *p, const luattn_input_info *info, uint32_t j);

#endif
