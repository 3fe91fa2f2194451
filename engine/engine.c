/* engine.c: compiles or loads kernels on first use. Each key is compiled once, outside the lock; other
 * threads that ask for the same key wait for it. */
#include "engine/engine.h"

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/struct_size.h"
#include "engine/cpu_device.h"
#include "engine/log_line.h"

typedef enum slot_state { SLOT_COMPILING, SLOT_READY, SLOT_FAILED } slot_state;

/* Never moves; freed with the engine or when its spec is forgotten. */
typedef struct slot {
  kernel_key key;
  slot_state state;
  unsigned attempt; /* lets waiting threads tell how their attempt ended */
  luattn_kernel *kernel;
  bool every_length; /* this kernel also serves the other key.lengths */
  bool is_fallback;  /* it is not the decode kernel, though key.decode asks for that where the spec has it; and so serves all rows */
  char plan[sizeof((luattn_compile_report *)NULL)->plan];
  luattn_error error;
} slot;

struct luattn_engine {
  luattn_driver *driver; /* NULL: on the CPU */
  bool cpu_relaxed;
  int device, arch, driver_version;
  char device_name[sizeof((luattn_device_info *)NULL)->name];
  int family; /* 0: the plan chooses; else 1 + luattn_family */
  bool no_tuned;
  int lengths;             /* 0: by the lengths of each call; else 1 + luattn_lengths */
  char *cache_dir, *nvrtc; /* NULL: as in luattn_target */
  const luattn_pack **packs;
  size_t num_packs;
  bool never_compile, deterministic;
  luattn_log *log; /* may be NULL */
  void *log_user;
  pthread_mutex_t lock; /* guards the members below */
  pthread_cond_t ended; /* some attempt has ended */
  slot **slots;
  size_t count, capacity;
  pthread_mutex_t merges_lock; /* guards `merges` */
  engine_merges merges;
};

/* Checks what stands for a choice. */
static luattn_status check_options(const luattn_engine_options *o, luattn_error *err) {
  const struct {
    const char *name;
    int value, least, most;
    const char *means;
  } all[] = {{"device", o->device, LUATTN_CPU, INT_MAX, "the number of a GPU, or LUATTN_CPU"},
             {"family", o->family, 0, 1 + (int)LUATTN_SM90, "0, or 1 + a luattn_family"},
             {"no_tuned", o->no_tuned, 0, 1, "0 or 1"},
             {"lengths", o->lengths, 0, 1 + (int)LUATTN_SHORT, "0, or 1 + a luattn_lengths"},
             {"never_compile", o->never_compile, 0, 1, "0 or 1"},
             {"deterministic", o->deterministic, 0, 1, "0 or 1"},
             {"cpu_relaxed", o->cpu_relaxed, 0, 1, "0 or 1"}};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    if (all[i].value < all[i].least || all[i].value > all[i].most)
      return luattn_fail(err, LUATTN_INVALID, "luattn_engine_options: %s: is %d, expected %s", all[i].name, all[i].value, all[i].means);
  return LUATTN_OK;
}

static luattn_status copy_packs(luattn_engine *e, const luattn_engine_options *options, luattn_error *err) {
  e->never_compile = options->never_compile != 0;
  e->deterministic = options->deterministic != 0;
  if (options->num_packs == 0) return LUATTN_OK;
  for (size_t i = 0; i < options->num_packs; ++i)
    if (options->packs == NULL || options->packs[i] == NULL)
      return luattn_fail(err, LUATTN_INVALID,
                         "luattn_engine_options: packs: number %zu of %zu is NULL; open it first", i,
                         options->num_packs);
  e->packs = calloc(options->num_packs, sizeof *e->packs);
  if (e->packs == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_engine_open: out of memory");
  for (size_t i = 0; i < options->num_packs; ++i) e->packs[i] = options->packs[i];
  e->num_packs = options->num_packs;
  return LUATTN_OK;
}

static luattn_status copy_text(const char *text, char **out, luattn_error *err) {
  if (text == NULL) return LUATTN_OK;
  const size_t size = strlen(text) + 1;
  *out = malloc(size);
  if (*out == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_engine_open: out of memory");
  memcpy(*out, text, size);
  return LUATTN_OK;
}

static luattn_status fill_engine(luattn_engine *e, const luattn_engine_options *given, luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_engine_options, device);
  if (given != NULL) {
    luattn_engine_options taken;
    const luattn_engine_options *options = &taken;
    TRY(struct_take(&rule, "luattn_engine_open", given, &taken, err));
    TRY(check_options(options, err));
    e->device = options->device;
    e->cpu_relaxed = options->cpu_relaxed != 0;
    e->family = options->family;
    e->no_tuned = options->no_tuned != 0;
    e->lengths = options->lengths;
    e->log = options->log;
    e->log_user = options->log_user;
    TRY(copy_text(options->cache_dir, &e->cache_dir, err));
    TRY(copy_text(options->nvrtc, &e->nvrtc, err));
    TRY(copy_packs(e, options, err));
  }
  if (e->device == LUATTN_CPU) return LUATTN_OK;
  if (e->cpu_relaxed)
    return luattn_fail(
        err, LUATTN_INVALID,
        "luattn_engine_options: cpu_relaxed: is set, and device is %d; a GPU takes no other arguments, "
        "leave it 0, or set device to LUATTN_CPU",
        e->device);
  TRY(luattn_driver_open(&e->driver, err));
  luattn_device_info info;
  TRY(luattn_device_get_info(e->driver, e->device, &info, err));
  TRY(luattn_driver_version(e->driver, &e->driver_version, err));
  e->arch = info.arch;
  memcpy(e->device_name, info.name, sizeof e->device_name);
  return LUATTN_OK;
}

luattn_status luattn_engine_open(const luattn_engine_options *options, luattn_engine **engine,
                                 luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  luattn_engine *e = calloc(1, sizeof *e);
  if (e == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_engine_open: out of memory");
  if (pthread_mutex_init(&e->lock, NULL) != 0) goto fail_lock;
  if (pthread_cond_init(&e->ended, NULL) != 0) goto fail_ended;
  if (pthread_mutex_init(&e->merges_lock, NULL) != 0) goto fail_merges;
  const luattn_status status = fill_engine(e, options, err);
  if (status != LUATTN_OK) {
    luattn_engine_close(e);
    return status;
  }
  *engine = e;
  return LUATTN_OK;

fail_merges:
  pthread_cond_destroy(&e->ended);
fail_ended:
  pthread_mutex_destroy(&e->lock);
fail_lock:
  free(e);
  return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_engine_open: cannot create a lock");
}

void luattn_engine_close(luattn_engine *engine) {
  if (engine == NULL) return;
  for (size_t i = 0; i < engine->count; ++i) {
    luattn_kernel_unload(engine->slots[i]->kernel);
    free(engine->slots[i]);
  }
  free(engine->slots);
  if (engine->merges.close != NULL) engine->merges.close(&engine->merges);
  luattn_driver_close(engine->driver);
  pthread_cond_destroy(&engine->ended);
  pthread_mutex_destroy(&engine->lock);
  pthread_mutex_destroy(&engine->merges_lock);
  free(engine->cache_dir);
  free(engine->nvrtc);
  free(engine->packs);
  free(engine);
}

/* Removes the slots of `spec` from the engine; returns false, and removes none, while one is being
 * compiled. */
static bool take_slots(luattn_engine *e, const luattn_spec *spec, slot **taken, size_t *num_taken) {
  size_t kept = 0;
  for (size_t i = 0; i < e->count; ++i)
    if (e->slots[i]->key.spec == spec && e->slots[i]->state == SLOT_COMPILING) return false;
  for (size_t i = 0; i < e->count; ++i)
    if (e->slots[i]->key.spec == spec)
      taken[(*num_taken)++] = e->slots[i];
    else
      e->slots[kept++] = e->slots[i];
  e->count = kept;
  return true;
}

luattn_status luattn_engine_forget(luattn_engine *engine, const luattn_spec *spec, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  pthread_mutex_lock(&engine->lock);
  size_t count = 0;
  slot **taken = calloc(engine->count + 1, sizeof *taken);
  const bool idle = taken != NULL && take_slots(engine, spec, taken, &count);
  pthread_mutex_unlock(&engine->lock);
  for (size_t i = 0; i < count; ++i) {
    luattn_kernel_unload(taken[i]->kernel);
    free(taken[i]);
  }
  const bool failed = taken == NULL;
  free(taken);
  if (failed) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_engine_forget: out of memory");
  if (idle) return LUATTN_OK;
  return luattn_fail(
      err, LUATTN_INVALID,
      "luattn_engine_forget: spec: a kernel of it is being compiled; wait for the calls that use it");
}

engine_place engine_get_place(const luattn_engine *e) {
  return (engine_place){e->driver, e->device, e->arch, e->driver_version, e->nvrtc, e->never_compile, e->cpu_relaxed};
}

engine_merges *engine_lock_merges(luattn_engine *engine) {
  pthread_mutex_lock(&engine->merges_lock);
  return &engine->merges;
}

void engine_unlock_merges(luattn_engine *engine) { pthread_mutex_unlock(&engine->merges_lock); }

luattn_driver *luattn_engine_driver(luattn_engine *engine) { return engine != NULL ? engine->driver : NULL; }

/* Whether the slot's kernel is for this key, which is another class of it. */
static bool serves_others(const slot *s, const kernel_key *key) {
  return s->state == SLOT_READY && ((s->every_length && s->key.many_rows == key->many_rows) || s->is_fallback);
}

/* Returns the slot of this key, or the slot of another class of it whose kernel serves both. This is unknown
 * while the other kernel is being compiled, so callers wait for it. */
static slot *find_slot(const luattn_engine *e, const kernel_key *key) {
  slot *other = NULL;
  for (size_t i = 0; i < e->count; ++i) {
    slot *s = e->slots[i];
    if (!kernel_key_same(&s->key, key)) continue;
    if (kernel_key_same_class(&s->key, key)) return s;
    if (s->state == SLOT_COMPILING || serves_others(s, key)) other = s;
  }
  return other;
}

static slot *add_slot(luattn_engine *e, const kernel_key *key) {
  if (e->count == e->capacity) {
    const size_t capacity = e->capacity > 0 ? 2 * e->capacity : 16;
    slot **grown = realloc(e->slots, capacity * sizeof(slot *));
    if (grown == NULL) return NULL;
    e->slots = grown;
    e->capacity = capacity;
  }
  slot *s = calloc(1, sizeof *s);
  if (s == NULL) return NULL;
  s->key = *key;
  s->state = SLOT_FAILED; /* until an attempt starts */
  e->slots[e->count++] = s;
  return s;
}

static bool knows_spec(const luattn_pack *pack, const uint64_t hash[2]) {
  const luattn_pack_entry *e;
  for (size_t i = 0; (e = luattn_pack_get_entry(pack, i)) != NULL; ++i)
    if (e->kind == LUATTN_PACK_IMAGE && e->spec_hash[0] == hash[0] && e->spec_hash[1] == hash[1]) return true;
  return false;
}

/* Searches the packs for a key that leaves nothing open. *kernel stays NULL if no pack has the kernel for this device; *err then holds the
 * message of the first pack that knows the spec, or else of the last one. A damaged pack, or one made for
 * another luattn, is an error: compiling instead would hide it. */
static luattn_status search_packs(const luattn_engine *e, const kernel_key *key, luattn_kernel **kernel,
                                  luattn_compile_report *report, luattn_error *err) {
  luattn_spec_info info;
  luattn_spec_get_info(key->spec, &info);
  luattn_pack_query query = {.struct_size = sizeof query,
                             .spec_name = info.name,
                             .spec_hash = {info.hash[0], info.hash[1]},
                             .family = e->family,
                             .deterministic = e->deterministic};
  kernel_key_fill_query(key, &query);
  bool told = false;
  for (size_t i = 0; i < e->num_packs; ++i) {
    size_t index;
    luattn_error said;
    const luattn_status status =
        luattn_pack_kernel(e->packs[i], e->driver, e->device, &query, kernel, &index, &said);
    if (status == LUATTN_OK || !told || status != LUATTN_UNSUPPORTED) *err = said;
    if (status == LUATTN_UNSUPPORTED) {
      told = told || knows_spec(e->packs[i], info.hash);
      continue;
    }
    TRY(status);
    /* If only an image for the other lengths exists, it serves these too. */
    const uint32_t lengths = luattn_pack_get_entry(e->packs[i], index)->lengths;
    report->every_length = lengths != 1 + (uint32_t)key->lengths;
    snprintf(report->plan, sizeof report->plan, "from pack number %zu of the engine's, entry %zu\n", i,
             index);
    return status;
  }
  return LUATTN_OK;
}

/* Where the key leaves open whether it is decode, the kernel for all lengths serves if no pack has the decode kernel, as it does for
 * a spec that has none. */
static luattn_status look_in_packs(const luattn_engine *e, const kernel_key *given, luattn_kernel **kernel,
                                   luattn_compile_report *report, luattn_error *err) {
  kernel_key key = *given;
  key.decode = given->decode != 0;
  TRY(search_packs(e, &key, kernel, report, err));
  if (*kernel != NULL || given->decode != 2) return LUATTN_OK;
  kernel_key_leave_decode(&key);
  TRY(search_packs(e, &key, kernel, report, err));
  if (*kernel == NULL) return LUATTN_OK;
  report->every_length = 1;
  const size_t used = strlen(report->plan);
  snprintf(report->plan + used, sizeof report->plan - used, "not the decode kernel: no pack has one of this spec, type and head dims for this device\n");
  return LUATTN_OK;
}

static luattn_status build(const luattn_engine *e, const kernel_key *key, luattn_kernel **kernel,
                           luattn_compile_report *report, luattn_error *err) {
  if (e->device == LUATTN_CPU) {
    const cpu_device how = {e->family, e->deterministic, e->cpu_relaxed};
    return cpu_device_kernel(&how, key, kernel, report, err);
  }
  const char *asked_by, *unpacked = kernel_key_unpacked(key, &asked_by);
  if (e->never_compile && unpacked != NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "luattn_engine: %s: is given, never_compile is set, and packs hold no kernels for %s; "
                       "leave never_compile 0",
                       asked_by, unpacked);
  if (e->num_packs > 0 && unpacked == NULL) {
    TRY(look_in_packs(e, key, kernel, report, err));
    if (*kernel != NULL) return LUATTN_OK;
  }
  if (e->never_compile && e->num_packs > 0) return LUATTN_UNSUPPORTED; /* the message is a pack's */
  if (e->never_compile)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "luattn_engine: never_compile is set and there are no packs; give some");
  fail_clear(err); /* drops the message about what packs lack */
  luattn_target target = {.struct_size = sizeof target,
                          .arch = e->arch,
                          .family = key->weights ? 0 : e->family, /* the kernel is of simt */
                          .cache_dir = e->cache_dir,
                          .device = e->no_tuned ? NULL : e->device_name,
                          .nvrtc = e->nvrtc,
                          .deterministic = e->deterministic,
                          .driver_version = e->driver_version};
  kernel_key_fill_target(key, &target);
  luattn_image *image;
  luattn_error said;
  TRY(luattn_compile(key->spec, &target, &image, report, err));
  const luattn_status status = luattn_kernel_load(e->driver, e->device, image, kernel, &said);
  luattn_image_free(image);
  if (status != LUATTN_OK) *err = said; /* otherwise keeps a warning of the compilation */
  return status;
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Builds, and logs a success. */
static luattn_status build_aloud(const luattn_engine *e, const kernel_key *key, luattn_kernel **kernel,
                                 luattn_compile_report *report, luattn_error *err) {
  const double start = now_ms();
  TRY(build(e, key, kernel, report, err));
  if (e->log == NULL || e->device == LUATTN_CPU) return LUATTN_OK;
  char line[256];
  log_line(key, report, now_ms() - start, line, sizeof line);
  e->log(e->log_user, line);
  return LUATTN_OK;
}

static bool is_decode(const luattn_kernel *kernel) {
  luattn_kernel_description d = {.struct_size = sizeof d};
  luattn_error ignored;
  return luattn_kernel_describe(kernel, &d, &ignored) == LUATTN_OK && d.decode != 0;
}

/* Called and returns with the lock held; releases it while compiling. */
static void attempt(luattn_engine *e, slot *s) {
  luattn_error error = {.status = LUATTN_OK};
  luattn_kernel *kernel = NULL;
  luattn_compile_report report = {.every_length = 0};
  s->state = SLOT_COMPILING;
  ++s->attempt;
  pthread_mutex_unlock(&e->lock);
  const luattn_status status = build_aloud(e, &s->key, &kernel, &report, &error);
  pthread_mutex_lock(&e->lock);
  s->kernel = kernel;
  s->every_length = report.every_length != 0;
  s->is_fallback = kernel != NULL && s->key.decode == 2 && !is_decode(kernel);
  memcpy(s->plan, report.plan, sizeof s->plan);
  s->state = status == LUATTN_OK ? SLOT_READY : SLOT_FAILED;
  s->error = error;
  s->error.status = status;
  pthread_cond_broadcast(&e->ended);
}

static void wait_for(luattn_engine *e, const slot *s) {
  const unsigned awaited = s->attempt;
  while (s->state == SLOT_COMPILING && s->attempt == awaited) pthread_cond_wait(&e->ended, &e->lock);
}

/* Called and returns with the lock held. *out: the slot with the result for this key, ready or failed.
 * *fresh: it was finished during this call. */
static luattn_status resolve(luattn_engine *e, const kernel_key *key, const slot **out, bool *fresh,
                             luattn_error *err) {
  for (*fresh = false;;) {
    slot *s = find_slot(e, key);
    if (s == NULL) s = add_slot(e, key);
    if (s == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_engine: out of memory");
    if (s->state != SLOT_READY) *fresh = true;
    if (s->state == SLOT_COMPILING)
      wait_for(e, s);
    else if (s->state == SLOT_FAILED)
      attempt(e, s);
    *out = s;
    if (kernel_key_same_class(&s->key, key) || serves_others(s, key)) return LUATTN_OK;
  }
}

/* Only the calls that waited for it get a failure: the next call tries again, because the cause may be
 * gone. */
static luattn_status ready_slot(luattn_engine *engine, const kernel_key *asked, const slot **out,
                                luattn_error *err) {
  kernel_key key = *asked;
  if (engine->lengths > 0) key.lengths = (luattn_lengths)(engine->lengths - 1);
  pthread_mutex_lock(&engine->lock);
  bool fresh;
  luattn_status status = resolve(engine, &key, out, &fresh, err);
  if (status == LUATTN_OK) {
    status = (*out)->error.status;
    /* Only the calls that waited get a warning of the compilation. */
    if (fresh && err != NULL) *err = (*out)->error;
  }
  pthread_mutex_unlock(&engine->lock);
  return status;
}

luattn_status engine_kernel(luattn_engine *engine, const kernel_key *key, const luattn_kernel **kernel,
                            luattn_error *err) {
  const slot *s;
  TRY(ready_slot(engine, key, &s, err));
  *kernel = s->kernel; /* a ready slot never changes */
  return LUATTN_OK;
}

/* Returns the kernel of a launch. */
static luattn_status kernel_of(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass, const luattn_args *args,
                               const luattn_kernel **kernel, luattn_error *err) {
  kernel_key key;
  TRY(engine_key(engine, spec, pass, args, false, &key, err));
  return engine_kernel(engine, &key, kernel, err);
}

luattn_status luattn_engine_kernel(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                   const luattn_args *args, const luattn_kernel **kernel, luattn_error *err) {
  kernel_key key;
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  NEED(args);
  NEED(kernel);
  TRY(engine_key(engine, spec, pass, args, true, &key, err));
  return engine_kernel(engine, &key, kernel, err);
}

luattn_status luattn_engine_plan(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                 const luattn_args *args, const char **plan, luattn_error *err) {
  kernel_key key;
  const slot *s;
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  NEED(args);
  NEED(plan);
  TRY(engine_key(engine, spec, pass, args, false, &key, err));
  TRY(ready_slot(engine, &key, &s, err));
  *plan = s->plan;
  return LUATTN_OK;
}

luattn_status engine_tell(luattn_status status, const luattn_error *said, luattn_error *err) {
  if (err == NULL) return status;
  if (status != LUATTN_OK || err->message[0] == 0) *err = *said;
  return status;
}

luattn_status luattn_engine_workspace_size(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                           const luattn_args *args, size_t *size, luattn_error *err) {
  const luattn_kernel *kernel;
  luattn_error said;
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  NEED(args);
  NEED(size);
  TRY(kernel_of(engine, spec, pass, args, &kernel, err));
  return engine_tell(luattn_workspace_size(kernel, args, size, &said), &said, err);
}

static luattn_status run_pass(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass, const luattn_args *args, void *stream,
                              luattn_error *err) {
  const luattn_kernel *kernel;
  luattn_error said;
  TRY(kernel_of(engine, spec, pass, args, &kernel, err));
  luattn_status status = luattn_launch(kernel, args, stream, &said);
  if (status == LUATTN_OK) status = engine_check_ints(engine, spec, args, stream, &said);
  return engine_tell(status, &said, err);
}

luattn_status luattn_forward(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                             void *stream, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  NEED(args);
  return run_pass(engine, spec, LUATTN_FORWARD, args, stream, err);
}

luattn_status luattn_backward(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                              void *stream, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  NEED(args);
  return run_pass(engine, spec, LUATTN_BACKWARD, args, stream, err);
}
