/* cache_key.h: the keys of images and of tuning records. */
#ifndef LUATTN_GEN_CACHE_KEY_H
#define LUATTN_GEN_CACHE_KEY_H

#include "gen/base/hash.h"
#include "gen/compile/compilation.h"

/* Computes the key of an image: a hash of the spec's IR, inputs and scalars, the target with its defaults,
 * the build of the generator, the templates and NVRTC. Needs c->at.plan started and c->nvrtc found, but no
 * tiles. one_code: luattn_target.one_code, if the image would otherwise have two cubins. */
luattn_status cache_key(const compilation *c, bool one_code, hash128 *key, luattn_error *err);

/* Computes the origin: a hash of all that is compiled except the plan's numbers. Measurements with another
 * origin do not apply. */
luattn_status cache_key_origin(const compilation *c, hash128 *origin, luattn_error *err);
/* keys[lengths], for each of luattn_lengths: the keys of tuning records. */
luattn_status cache_key_tuned(const compilation *c, hash128 keys[2], luattn_error *err);

#endif
