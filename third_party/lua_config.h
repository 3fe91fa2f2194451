/* lua_config.h: how the bundled Lua is built. Its sources include this before anything else.
 *
 * LUA_COMPAT_5_3 keeps what the distributions' Lua 5.4 has, such as math.pow. A fixed seed makes the order of `pairs` depend on nothing
 * but the spec: Lua's own seed is the time and addresses, and the kernels of a spec would differ from run to run with it. */
#define LUA_COMPAT_5_3
#define LUA_USE_POSIX
#define luai_makeseed(L) 0x6c756174u
