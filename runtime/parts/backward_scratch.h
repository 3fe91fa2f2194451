/* backward_scratch.h: what the kernels of a backward leave for one another: rows that luattn_prepare writes,
 * accumulators that luattn_finish turns into gradients, and exact sums that luattn_round does. */
#ifndef LUATTN_RUNTIME_BACKWARD_SCRATCH_H
#define LUATTN_RUNTIME_BACKWARD_SCRATCH_H

#include "runtime/parts/part.h"

part_take backward_rows_take;
part_grid backward_rows_grid;

part_take backward_sums_take; /* after kv_splits_take */
part_grid backward_finish_grid, backward_round_grid;

#endif
