/* foreign.c: defines symbols of Lua and zstd in the host, as a program does that links its own copies
 * statically. None of them may be called. */
#include <stdio.h>
#include <stdlib.h>

#define FOREIGN(name)                                            \
  void name(void);                                               \
  void name(void) {                                              \
    fputs("host: luattn called the host's " #name "\n", stderr); \
    abort();                                                     \
  }
FOREIGN(luaL_checkversion_)
FOREIGN(luaL_getmetafield)
FOREIGN(luaL_loadbufferx)
FOREIGN(luaL_setfuncs)
FOREIGN(lua_close)
FOREIGN(lua_createtable)
FOREIGN(lua_gettop)
FOREIGN(lua_newstate)
FOREIGN(lua_pcallk)
FOREIGN(lua_pushcclosure)
FOREIGN(lua_rawgeti)
FOREIGN(lua_sethook)
FOREIGN(lua_settop)
FOREIGN(lua_tolstring)
FOREIGN(luaopen_base)
FOREIGN(luaopen_math)
FOREIGN(luaopen_string)
FOREIGN(luaopen_table)
FOREIGN(ZSTD_compress)
FOREIGN(ZSTD_compressBound)
FOREIGN(ZSTD_decompress)
FOREIGN(ZSTD_getErrorCode)
FOREIGN(ZSTD_isError)
