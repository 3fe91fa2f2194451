/* attempt.h: one choice of tiles: from a plan to the texts that NVRTC compiles, and from one plan to the
 * next. */
#ifndef LUATTN_GEN_ATTEMPT_H
#define LUATTN_GEN_ATTEMPT_H

#include "gen/compile/compilation.h"

/* c->at from its plan on: lower -> emit, and what the image says of it. May be called again after a change
 * of the plan. Errors: LUATTN_UNSUPPORTED (the tiles do not suit the spec), LUATTN_INVALID (nor those that
 * were asked for), LUATTN_NO_MEMORY. */
luattn_status attempt_make(compilation *c, luattn_error *err);

/* Each plans c->at anew, and is false where there is no such plan. It is made by attempt_make. */
bool attempt_next_tiles(compilation *c);        /* the table's next */
bool attempt_without_bias_rows(compilation *c); /* the same tiles for a backward that reads no bias rows ahead */
bool attempt_for_softcap(compilation *c);       /* those for the soft cap's fast path, known once it is lowered */

#endif
