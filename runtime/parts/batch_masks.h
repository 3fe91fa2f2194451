/* batch_masks.h: the tile bits of masks from data that a luattn_batch holds, for all launches of a spec (LuattnTileBits). */
#ifndef LUATTN_RUNTIME_BATCH_MASKS_H
#define LUATTN_RUNTIME_BATCH_MASKS_H

#include "runtime/launch/launch.h"

/* Takes the bits of this call's mask from its batch, if the batch has some of its spec; otherwise params->bits.rows is NULL.
 * *orders: the orders of tiles that lie beside them (workspace_order_words), or NULL. Errors: LUATTN_INVALID (they were made for
 * other arguments; says which). */
luattn_status batch_masks_take(const args_call *c, LuattnCallParams *params, unsigned **orders);

/* With LUATTN_CHECK=1: evaluates the mask again and compares, if a launch takes bits from the batch, which is where `makes` is false.
 * Waits for `stream`, and does nothing while that is captured. Errors: LUATTN_INVALID (an input has changed), LUATTN_NO_MEMORY,
 * LUATTN_CUDA. */
luattn_status batch_masks_check(const luattn_kernel *kernel, const args_call *c, const LuattnCallParams *params, bool makes,
                                cu_stream stream);

/* Whether LUATTN_CHECK=1 is in the environment; and whether a graph records the stream, in which nothing can be read back. The
 * stream's context must be current. Errors: LUATTN_CUDA. */
bool batch_check_asked(void);
luattn_status batch_check_captured(const luattn_driver *d, cu_stream stream, bool *out, luattn_error *err);

#endif
