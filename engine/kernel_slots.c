#include "engine/kernel_slots.h"

#include <stdlib.h>
#include <string.h>

#include "common/fail.h"

bool kernel_slots_open(kernel_slots *k, const engine_setup *how) {
  k->how = how;
  if (pthread_mutex_init(&k->lock, NULL) != 0) return false;
  if (pthread_cond_init(&k->ended, NULL) == 0) return true;
  pthread_mutex_destroy(&k->lock);
  return false;
}

void kernel_slots_close(kernel_slots *k) {
  for (size_t i = 0; i < k->count; ++i) {
    luattn_kernel_unload(k->slots[i]->kernel);
    free(k->slots[i]);
  }
  free(k->slots);
  pthread_cond_destroy(&k->ended);
  pthread_mutex_destroy(&k->lock);
}

/* Removes the slots of `spec` from the engine; returns false, and removes none, while one is being
 * compiled. */
static bool take_slots(kernel_slots *k, const luattn_spec *spec, slot **taken, size_t *num_taken) {
  size_t kept = 0;
  for (size_t i = 0; i < k->count; ++i)
    if (k->slots[i]->key.spec == spec && k->slots[i]->state == SLOT_COMPILING) return false;
  for (size_t i = 0; i < k->count; ++i)
    if (k->slots[i]->key.spec == spec)
      taken[(*num_taken)++] = k->slots[i];
    else
      k->slots[kept++] = k->slots[i];
  k->count = kept;
  return true;
}

luattn_status kernel_slots_forget(kernel_slots *k, const luattn_spec *spec, luattn_error *err) {
  pthread_mutex_lock(&k->lock);
  size_t count = 0;
  slot **taken = calloc(k->count + 1, sizeof *taken);
  const bool idle = taken != NULL && take_slots(k, spec, taken, &count);
  pthread_mutex_unlock(&k->lock);
  for (size_t i = 0; i < count; ++i) {
    luattn_kernel_unload(taken[i]->kernel);
    free(taken[i]);
  }
  const bool failed = taken == NULL;
  free(taken);
  if (failed) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_engine_forget: out of memory");
  if (idle) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "luattn_engine_forget: spec: a kernel of it is being compiled; wait for the calls that use it");
}

/* Whether the slot's kernel is for this key, which is another class of it. */
static bool serves_others(const slot *s, const kernel_key *key) {
  return s->state == SLOT_READY && ((s->every_length && s->key.many_rows == key->many_rows) || s->is_fallback);
}

/* Returns the slot of this key, or the slot of another class of it whose kernel serves both. This is unknown
 * while the other kernel is being compiled, so callers wait for it. */
static slot *find_slot(const kernel_slots *k, const kernel_key *key) {
  slot *other = NULL;
  for (size_t i = 0; i < k->count; ++i) {
    slot *s = k->slots[i];
    if (!kernel_key_same(&s->key, key)) continue;
    if (kernel_key_same_class(&s->key, key)) return s;
    if (s->state == SLOT_COMPILING || serves_others(s, key)) other = s;
  }
  return other;
}

static slot *add_slot(kernel_slots *k, const kernel_key *key) {
  if (k->count == k->capacity) {
    const size_t capacity = k->capacity > 0 ? 2 * k->capacity : 16;
    slot **grown = realloc(k->slots, capacity * sizeof(slot *));
    if (grown == NULL) return NULL;
    k->slots = grown;
    k->capacity = capacity;
  }
  slot *s = calloc(1, sizeof *s);
  if (s == NULL) return NULL;
  s->key = *key;
  s->state = SLOT_FAILED; /* until an attempt starts */
  k->slots[k->count++] = s;
  return s;
}

static bool is_decode(const luattn_kernel *kernel) {
  luattn_kernel_description d = {.struct_size = sizeof d};
  luattn_error ignored;
  return luattn_kernel_describe(kernel, &d, &ignored) == LUATTN_OK && d.decode != 0;
}

/* Called and returns with the lock held; releases it while compiling. */
static void attempt(kernel_slots *k, slot *s) {
  luattn_error error = {.status = LUATTN_OK};
  luattn_kernel *kernel = NULL;
  luattn_compile_report report = {.every_length = 0};
  s->state = SLOT_COMPILING;
  ++s->attempt;
  pthread_mutex_unlock(&k->lock);
  const luattn_status status = build_kernel(k->how, &s->key, &kernel, &report, &error);
  pthread_mutex_lock(&k->lock);
  s->kernel = kernel;
  s->every_length = report.every_length != 0;
  s->is_fallback = kernel != NULL && s->key.decode == 2 && !is_decode(kernel);
  memcpy(s->plan, report.plan, sizeof s->plan);
  s->state = status == LUATTN_OK ? SLOT_READY : SLOT_FAILED;
  s->error = error;
  s->error.status = status;
  pthread_cond_broadcast(&k->ended);
}

static void wait_for(kernel_slots *k, const slot *s) {
  const unsigned awaited = s->attempt;
  while (s->state == SLOT_COMPILING && s->attempt == awaited) pthread_cond_wait(&k->ended, &k->lock);
}

/* Called and returns with the lock held. *out: the slot with the result for this key, ready or failed.
 * *fresh: it was finished during this call. */
static luattn_status resolve(kernel_slots *k, const kernel_key *key, const slot **out, bool *fresh, luattn_error *err) {
  for (*fresh = false;;) {
    slot *s = find_slot(k, key);
    if (s == NULL) s = add_slot(k, key);
    if (s == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_engine: out of memory");
    if (s->state != SLOT_READY) *fresh = true;
    if (s->state == SLOT_COMPILING)
      wait_for(k, s);
    else if (s->state == SLOT_FAILED)
      attempt(k, s);
    *out = s;
    if (kernel_key_same_class(&s->key, key) || serves_others(s, key)) return LUATTN_OK;
  }
}

/* Only the calls that waited for it get a failure: the next call tries again, because the cause may be
 * gone. */
luattn_status kernel_slots_ready(kernel_slots *k, const kernel_key *asked, const slot **out, luattn_error *err) {
  kernel_key key = *asked;
  if (k->how->lengths > 0) key.lengths = (luattn_lengths)(k->how->lengths - 1);
  pthread_mutex_lock(&k->lock);
  bool fresh;
  luattn_status status = resolve(k, &key, out, &fresh, err);
  if (status == LUATTN_OK) {
    status = (*out)->error.status;
    /* Only the calls that waited get a warning of the compilation. */
    if (fresh && err != NULL) *err = (*out)->error;
  }
  pthread_mutex_unlock(&k->lock);
  return status;
}
