/* xla_library.c: what the handlers of a process share. */
#include "xla/xla_library.h"
#include "common/fail.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MOST_DEVICES = 64, BUCKETS = 256 };

typedef struct entry {
  struct entry *next;
  uint64_t hash;
  size_t size;
  char *text;
  library_spec of;
} entry;

/* All that is here is written under the lock, and stays once it is there. */
static struct {
  pthread_mutex_t lock;
  int started;
  library_functions functions;
  char *nvrtc;
  luattn_engine *engines[MOST_DEVICES + 1][2]; /* the CPU's first; by whether kernels are deterministic */
  entry *specs[BUCKETS];
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

static luattn_status load_functions(const char *path, luattn_error *err) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) {
    const char *why = dlerror();
    return luattn_fail(err, LUATTN_IO, "luattn_jax_start: cannot load libluattn: %s", why != NULL ? why : path);
  }
#define LIBRARY_LOAD(name, type, params)                                                                            \
  {                                                                                                                 \
    void *address = dlsym(library, "luattn_" #name);                                                                \
    if (address == NULL)                                                                                            \
      return luattn_fail(err, LUATTN_IO, "luattn_jax_start: %s: has no luattn_%s; install both libraries together", \
                         path, #name);                                                                              \
    memcpy(&shared.functions.name, &address, sizeof address);                                                       \
  }
  LIBRARY_FUNCTIONS(LIBRARY_LOAD)
#undef LIBRARY_LOAD
  return LUATTN_OK;
}

luattn_status luattn_jax_start(const char *path, const char *nvrtc, luattn_error *err) {
  fail_clear(err);
  NEED(path);
  pthread_mutex_lock(&shared.lock);
  luattn_status status = LUATTN_OK;
  if (!shared.started) {
    status = load_functions(path, err);
    if (status == LUATTN_OK && nvrtc != NULL) {
      shared.nvrtc = strdup(nvrtc);
      if (shared.nvrtc == NULL) status = luattn_fail(err, LUATTN_NO_MEMORY, "luattn_jax_start: out of memory");
    }
    __atomic_store_n(&shared.started, status == LUATTN_OK, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&shared.lock);
  return status;
}

const library_functions *library_get(void) {
  return __atomic_load_n(&shared.started, __ATOMIC_ACQUIRE) ? &shared.functions : NULL;
}

static luattn_status load_spec(const char *text, size_t size, uint64_t hash, entry **made, luattn_error *err) {
  entry *e = calloc(1, sizeof *e);
  char *copy = malloc(size + 1);
  luattn_status status = LUATTN_OK;
  if (e == NULL || copy == NULL) status = luattn_fail(err, LUATTN_NO_MEMORY, "spec: out of memory");
  if (status == LUATTN_OK) status = shared.functions.spec_load_text("spec", text, size, NULL, &e->of.spec, err);
  if (status != LUATTN_OK) {
    free(copy);
    free(e);
    return status;
  }
  memcpy(copy, text, size);
  e->text = copy;
  e->size = size;
  e->hash = hash;
  shared.functions.spec_get_info(e->of.spec, &e->of.info);
  *made = e;
  return LUATTN_OK;
}

luattn_status library_find_spec(const char *text, size_t size, const library_spec **spec, luattn_error *err) {
  const uint64_t hash = XXH3_64bits(text, size);
  luattn_status status = LUATTN_OK;
  pthread_mutex_lock(&shared.lock);
  entry **first = &shared.specs[hash % BUCKETS], *e = *first;
  while (e != NULL && (e->hash != hash || e->size != size || memcmp(e->text, text, size) != 0)) e = e->next;
  if (e == NULL) {
    status = load_spec(text, size, hash, &e, err);
    if (status == LUATTN_OK) {
      e->next = *first;
      *first = e;
    }
  }
  pthread_mutex_unlock(&shared.lock);
  if (status == LUATTN_OK) *spec = &e->of;
  return status;
}

luattn_status library_find_engine(int device, int deterministic, luattn_engine **engine, luattn_error *err) {
  if (device < LUATTN_CPU || device >= MOST_DEVICES)
    return luattn_fail(err, LUATTN_UNSUPPORTED, "device %d: is too large a number, expected at most %d", device,
                       MOST_DEVICES - 1);
  luattn_engine **place = &shared.engines[device + 1][deterministic != 0];
  luattn_status status = LUATTN_OK;
  pthread_mutex_lock(&shared.lock);
  if (*place == NULL) {
    const luattn_engine_options options = {.struct_size = sizeof options,
                                           .device = device,
                                           .deterministic = deterministic != 0,
                                           .nvrtc = device == LUATTN_CPU ? NULL : shared.nvrtc};
    status = shared.functions.engine_open(&options, place, err);
  }
  *engine = *place;
  pthread_mutex_unlock(&shared.lock);
  return status;
}
