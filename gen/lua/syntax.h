#ifndef LUATTN_GEN_LUA_SYNTAX_H
#define LUATTN_GEN_LUA_SYNTAX_H

#include <stddef.h>

/* Returns "; write .. for .." for a message `..:line: .. near ..` of Lua's parser about this source, or
 * NULL. */
const char *syntax_hint(const char *source, size_t size, const char *message);

#endif
