/* host_test.c: a program with its own Lua that uses luattn. usage: host [SONAME_OF_THE_LUA]
 *
 * The program's Lua is preloaded. If HOST_LOADS_LUATTN names libluattn.so, the program loads its Lua with
 * global symbols, and then libluattn.so, as a plugin. Without a soname, foreign.c replaces Lua, and all of
 * its functions abort. Both Luas must work side by side, and zstd too. Exit status 77: the named Lua is not
 * installed. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include <dlfcn.h>
#include <luattn/compiler.h>
#include <luattn/pack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failures;

static void expect(int right, const char *what, const char *message) {
  if (right) return;
  fprintf(stderr, "host: %s%s%s\n", what, *message ? ": " : "", message);
  failures++;
}

/* Functions of luattn, linked or loaded. */
#ifdef HOST_LOADS_LUATTN
static void *library;
static void open_luattn(void) {
  library = dlopen(HOST_LOADS_LUATTN, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "host: %s\n", dlerror());
    exit(1);
  }
}
#define LUATTN(function) (__extension__(__typeof__(&function)) dlsym(library, #function))
#else
static void open_luattn(void) {}
#define LUATTN(function) function
#endif

/* The host's Lua: functions that LuaJIT and Lua 5.3 share. */
typedef struct lua_State lua_State;
static struct foreign_lua {
  lua_State *(*newstate)(void);
  void (*openlibs)(lua_State *);
  int (*loadstring)(lua_State *, const char *);
  int (*pcall)(lua_State *, int, int, int);                     /* LuaJIT only */
  int (*pcallk)(lua_State *, int, int, int, ptrdiff_t, void *); /* Lua 5.3 only */
  void (*close)(lua_State *);
} lua;

static void load_lua(const char *soname) {
#ifdef HOST_LOADS_LUATTN
  const int flags = RTLD_NOW | RTLD_GLOBAL;
#else
  const int flags = RTLD_NOW | RTLD_NOLOAD; /* finds the library only if it was preloaded */
#endif
  if (strcmp(soname, "linked") != 0 && dlopen(soname, flags) == NULL) {
    printf("skipped: %s is not installed\n", soname);
    exit(77);
  }
  *(void **)&lua.newstate = dlsym(RTLD_DEFAULT, "luaL_newstate");
  *(void **)&lua.openlibs = dlsym(RTLD_DEFAULT, "luaL_openlibs");
  *(void **)&lua.loadstring = dlsym(RTLD_DEFAULT, "luaL_loadstring");
  *(void **)&lua.pcall = dlsym(RTLD_DEFAULT, "lua_pcall");
  *(void **)&lua.pcallk = dlsym(RTLD_DEFAULT, "lua_pcallk");
  *(void **)&lua.close = dlsym(RTLD_DEFAULT, "lua_close");
}

static void run_lua(lua_State *L) {
  static const char chunk[] = "local t = {} for i = 1, 1000 do t[#t + 1] = i end assert(#table.concat(t) == 2893)";
  int status = lua.loadstring(L, chunk);
  if (status == 0) status = lua.pcallk != NULL ? lua.pcallk(L, 0, 0, 0, 0, NULL) : lua.pcall(L, 0, 0, 0);
  expect(status == 0, "the host's Lua", "a chunk failed");
}

static luattn_status load(const char *text, luattn_spec **spec, luattn_error *err) {
  memset(err, 0, sizeof *err);
  *spec = NULL;
  return LUATTN(luattn_spec_load_text)("host", text, strlen(text), NULL, spec, err);
}

/* Uses a causal mask, whose first row keeps only the first key. */
static void use_specs(void) {
  luattn_error err;
  luattn_spec *spec;
  expect(load("return attention { name = 'x', block_mask = causal() }", &spec, &err) == LUATTN_OK, "causal",
         err.message);
  if (spec != NULL) {
    float x[4 * 8], out[4 * 8] = {0};
    for (int i = 0; i < 4 * 8; i++) x[i] = (float)(i % 5);
    int64_t shape[] = {1, 1, 4, 8};
    DLTensor q = {.data = x, .device = {kDLCPU, 0}, .ndim = 4, .dtype = {kDLFloat, 32, 1}, .shape = shape}, o = q;
    o.data = out;
    luattn_args args = {.struct_size = sizeof args, .q = &q, .k = &q, .v = &q, .o = &o};
    expect(LUATTN(luattn_cpu_forward)(spec, &args, &err) == LUATTN_OK, "luattn_cpu_forward", err.message);
    expect(memcmp(out, x, 8 * sizeof *x) == 0, "luattn_cpu_forward", "the first row is not v's");
    LUATTN(luattn_spec_free)(spec);
  }
  expect(load("return attention { name = 'y', scalars = { c = 2.0 },\n"
              "  score_mod = function(score, b, h, q_idx, kv_idx) return c * tanh(score / c) + 0.5 * (kv_idx "
              "- q_idx) end }",
              &spec, &err) == LUATTN_OK,
         "traced values", err.message);
  LUATTN(luattn_spec_free)(spec);
  /* An error in the spec leaves Lua through longjmp. */
  expect(load("local t = nil\nreturn t.x", &spec, &err) == LUATTN_SPEC, "an error of Lua", "is none");
  expect(strstr(err.message, "host:2: attempt to index a nil value") != NULL, "an error of Lua", err.message);
}

static void use_pack(void) {
  char path[] = "/tmp/luattn-host-XXXXXX", text[4000];
  memset(text, 'x', sizeof text);
  const int fd = mkstemp(path);
  expect(fd >= 0, path, "cannot be made");
  if (fd >= 0) close(fd);
  luattn_error err = {0};
  const luattn_pack_item item = {
      .kind = LUATTN_PACK_SPEC, .spec_hash = {1, 2}, .spec_name = "x", .text = text, .text_size = sizeof text};
  luattn_pack *pack = NULL;
  void *bytes = NULL;
  size_t size = 0;
  expect(LUATTN(luattn_pack_write)(path, "13.0", &item, 1, &err) == LUATTN_OK, "luattn_pack_write", err.message);
  expect(LUATTN(luattn_pack_open)(path, &pack, &err) == LUATTN_OK, "luattn_pack_open", err.message);
  if (pack != NULL) {
    expect(LUATTN(luattn_pack_read)(pack, 0, &bytes, &size, &err) == LUATTN_OK, "luattn_pack_read", err.message);
    expect(bytes != NULL && size == sizeof text && memcmp(bytes, text, size) == 0, "luattn_pack_read", "other bytes");
    LUATTN(luattn_pack_free)(bytes);
    LUATTN(luattn_pack_close)(pack);
  }
  unlink(path);
}

int main(int argc, char **argv) {
  lua_State *L = NULL;
  if (argc > 1) {
    load_lua(argv[1]);
    L = lua.newstate();
    lua.openlibs(L);
    run_lua(L);
  }
  open_luattn();
  use_specs();
  use_pack();
  if (L != NULL) {
    run_lua(L);
    lua.close(L);
  }
  if (failures == 0) puts("both Luas work");
  return failures > 0;
}
