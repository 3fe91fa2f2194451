/* cache_key.h: under which keys an image and remembered tiles are found. */
#ifndef LUATTN_GEN_CACHE_KEY_H
#define LUATTN_GEN_CACHE_KEY_H

#include "gen/base/hash.h"
#include "gen/compile/compilation.h"

/* Of the spec's IR, inputs and scalars, the target with its defaults, the build of the generator, the templates and
 * NVRTC: known before anything is planned. c->at.plan is started, c->nvrtc is found. one_code: that of an image which
 * would have two codes, but for luattn_target.one_code. */
luattn_status cache_key(const compilation *c, bool one_code, hash128 *key, luattn_error *err);

/* Of what is compiled apart from the plan's numbers: what was measured with another origin says nothing. */
luattn_status cache_key_origin(const compilation *c, hash128 *origin, luattn_error *err);
/* keys[lengths], for each of luattn_lengths: what a record of tuned tiles is about. */
luattn_status cache_key_tuned(const compilation *c, hash128 keys[2], luattn_error *err);

#endif
