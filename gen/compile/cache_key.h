/* cache_key.h: under which keys an image and remembered tiles are found. */
#ifndef LUATTN_GEN_CACHE_KEY_H
#define LUATTN_GEN_CACHE_KEY_H

#include "gen/base/hash.h"
#include "gen/compile/compilation.h"

/* Of all that is compiled, and how. c->nvrtc is found. */
luattn_status cache_key(const compilation *c, hash128 *key, luattn_error *err);
/* Of what is compiled apart from the plan's numbers: what was measured with another origin says nothing. */
luattn_status cache_key_origin(const compilation *c, hash128 *origin, luattn_error *err);

#endif
