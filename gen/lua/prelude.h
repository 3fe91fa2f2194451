/* prelude.h: the standard library of specs, prelude.lua, as embed.cmake compiled it in. */
#ifndef LUATTN_GEN_LUA_PRELUDE_H
#define LUATTN_GEN_LUA_PRELUDE_H

#include <stddef.h>

extern const unsigned char front_prelude[];
extern const size_t front_prelude_size;

#endif
