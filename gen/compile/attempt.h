/* attempt.h: one choice of tiles: turns a plan into the texts that NVRTC compiles, and moves on to the next
 * plan. */
#ifndef LUATTN_GEN_ATTEMPT_H
#define LUATTN_GEN_ATTEMPT_H

#include "gen/compile/compilation.h"

/* Takes c->at from its plan through lower and emit, and fills the manifest. May be called again after a
 * change of the plan. Errors: LUATTN_UNSUPPORTED (the tiles do not suit the spec), LUATTN_INVALID (nor do
 * those that were asked for), LUATTN_NO_MEMORY. */
luattn_status attempt_make(compilation *c, luattn_error *err);

/* Each plans c->at anew for attempt_make, and returns false if there is no such plan. */
bool attempt_next_tiles(compilation *c);              /* the table's next tiles */
bool attempt_skip_tiles(compilation *c, int skipped); /* skips tiles that spill like these; false after the
                                                       * last */
bool attempt_without_bias_rows(compilation *c);       /* the same tiles for a backward that stages no bias rows */
bool attempt_for_softcap(compilation *c);             /* tiles for the soft cap's fast path, which is known once it
                                                       * is lowered */

#endif
