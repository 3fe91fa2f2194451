/* engine.c: compiles or loads kernels on first use. Each key is compiled once, outside the lock; other
 * threads that ask for the same key wait for it. */
#include "engine/engine.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/batch.h"
#include "common/choices.h"
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
    e->device = options->device;
    e->cpu_relaxed = options->cpu_relaxed != 0;
    e->family = options->family;
    e->no_tuned = options->no_tuned != 0;
    e->lengths = options->lengths;
    if (e->lengths < 0 || e->lengths > 1 + (int)LUATTN_SHORT)
      return luattn_fail(err, LUATTN_INVALID,
                         "luattn_engine_options: lengths: %d is not 0 or 1 + a luattn_lengths", e->lengths);
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
  return (engine_place){e->driver, e->device, e->arch, e->driver_version, e->nvrtc, e->never_compile};
}

engine_merges *engine_lock_merges(luattn_engine *engine) {
  pthread_mutex_lock(&engine->merges_lock);
  return &engine->merges;
}

void engine_unlock_merges(luattn_engine *engine) { pthread_mutex_unlock(&engine->merges_lock); }

luattn_driver *luattn_engine_driver(luattn_engine *engine) { return engine != NULL ? engine->driver : NULL; }

static bool read_dtype(DLDataType from, luattn_dtype *dtype) {
  static const struct {
    int code, bits;
    luattn_dtype dtype;
  } table[] = {{kDLFloat, 64, LUATTN_F64},
               {kDLFloat, 32, LUATTN_F32},
               {kDLFloat, 16, LUATTN_F16},
               {kDLBfloat, 16, LUATTN_BF16}};
  for (size_t i = 0; i < sizeof table / sizeof *table; ++i) {
    if (from.code != table[i].code || from.bits != table[i].bits || from.lanes != 1) continue;
    *dtype = table[i].dtype;
    return true;
  }
  return false;
}

static unsigned wants_of(const luattn_args *a) {
  unsigned wants = 0;
  if (a->dq != NULL) wants |= LUATTN_WANT_DQ;
  if (a->dk != NULL) wants |= LUATTN_WANT_DK;
  if (a->dv != NULL) wants |= LUATTN_WANT_DV;
  if (a->scalar_grads != NULL) wants |= LUATTN_WANT_SCALARS;
  for (size_t i = 0; i < a->num_inputs && a->inputs != NULL; ++i)
    if (a->inputs[i].grad != NULL && a->inputs[i].grad->data != NULL) wants |= LUATTN_WANT_INPUTS;
  return wants;
}

static bool read_input_type(DLDataType t, uint64_t *out) {
  luattn_dtype dtype;
  static const luattn_input_dtype as_input[] = {[LUATTN_F64] = LUATTN_INPUT_F64,
                                                [LUATTN_F32] = LUATTN_INPUT_F32,
                                                [LUATTN_BF16] = LUATTN_INPUT_BF16,
                                                [LUATTN_F16] = LUATTN_INPUT_F16};
  if (!read_dtype(t, &dtype)) return false;
  *out = 1 + (uint64_t)as_input[dtype];
  return true;
}

/* Returns the tensor types of the inputs whose dtype is any. or_f32: f32 of one that is missing. */
static luattn_status read_input_types(const luattn_spec *spec, const char *place, const luattn_args *args, bool or_f32,
                                      uint64_t *out, luattn_error *err) {
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  for (size_t i = 0; i < info.num_inputs; ++i) {
    if (info.inputs[i].dtype != LUATTN_INPUT_ANY) continue;
    const char *name = info.inputs[i].name;
    const DLTensor *t = NULL;
    uint64_t type = 1 + LUATTN_INPUT_F32;
    for (size_t j = 0; j < args->num_inputs && args->inputs != NULL; ++j)
      if (args->inputs[j].name != NULL && strcmp(args->inputs[j].name, name) == 0) t = args->inputs[j].tensor;
    if (t == NULL && !or_f32)
      return luattn_fail(
          err, LUATTN_INVALID,
          "%s: input '%s': is missing; give a tensor of float64, float32, bfloat16 or float16 by this name",
          place, name);
    if (t != NULL && !read_input_type(t->dtype, &type))
      return luattn_fail(
          err, LUATTN_INVALID,
          "%s: input '%s': has DLPack dtype (code %d, %d bits, %d lanes), and dtype any in a spec stands for "
          "float64, float32, bfloat16 or float16; declare an integer's type there, as i32",
          place, name, t->dtype.code, t->dtype.bits, t->dtype.lanes);
    *out |= type << 4 * i;
  }
  return LUATTN_OK;
}

/* Whether the rows of a kv head, queries times its query heads, are more than `most`; true for shapes that a launch refuses. */
static bool has_more_rows(const luattn_args *args, int64_t most) {
  const DLTensor *q = args->q, *k = args->k;
  if (k == NULL || k->ndim < 2 || k->shape == NULL || k->shape[1] < 1) return true;
  const int64_t q_len = batch_is_packed(args->batch) ? args->batch->lengths[0].longest : q->shape[2], of_all = most * k->shape[1];
  return q_len > of_all || q->shape[1] > of_all || q_len * q->shape[1] > of_all;
}

/* luattn_target.decode for these arguments. */
static int wants_decode(const luattn_engine *e, luattn_pass pass, const luattn_args *args) {
  if (pass != LUATTN_FORWARD || e->device == LUATTN_CPU || args->decode == LUATTN_DECODE_NEVER) return 0;
  if (args->decode != LUATTN_DECODE_AUTO) return 1;
  const bool packed = batch_is_packed(args->batch), paged = batch_is_paged(args->batch);
  const DLTensor *q = args->q, *k = args->k;
  if (q->dtype.bits != 16) return 0;
  if (k == NULL || k->ndim != (paged ? 4 : q->ndim) || k->shape == NULL || k->shape[1] < 1) return 0;
  const int64_t kv_len = paged    ? batch_longest_paged(args->batch, k->shape[2])
                         : packed ? args->batch->lengths[1].longest
                                  : k->shape[2];
  return kv_len >= LUATTN_DECODE_KEYS && !has_more_rows(args, LUATTN_DECODE_ROWS) ? 2 : 0;
}

/* Reads from the arguments what is fixed at compile time; the launch checks the rest. */
luattn_status engine_key(const luattn_engine *e, const luattn_spec *spec, luattn_pass pass, const luattn_args *given, bool for_append,
                         kernel_key *key, luattn_error *err) {
  const char *place = pass == LUATTN_FORWARD ? "forward" : "backward";
  if (pass != LUATTN_FORWARD && pass != LUATTN_BACKWARD)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_engine: pass: is %d, expected LUATTN_FORWARD or LUATTN_BACKWARD", (int)pass);
  luattn_args taken;
  const luattn_args *args = &taken;
  TRY(choices_take(given, place, &taken, err));
  const bool packed = batch_is_packed(args->batch), paged = batch_is_paged(args->batch);
  if ((packed || paged) && e->cpu_relaxed)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "%s: batch: has %s, and cpu_relaxed is set, which takes no %s yet; leave it 0", place,
        packed ? "cu_seqlens_q" : "seqused_k", packed ? "packed sequences" : "keys in pages or caches in part");
  if (paged && pass == LUATTN_BACKWARD)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "%s: batch: has %s, and there is no backward over keys in pages or in a part of a cache; copy them to k and v of "
                       "equal lengths, or to packed sequences",
                       place, args->batch->array[BATCH_BLOCK_TABLE].is_given ? "block_table" : "seqused_k without cu_seqlens_k");
  if (args->keys_modified != 0 && pass == LUATTN_BACKWARD)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "%s: keys_modified: is %d, and there is no backward over keys that key_mod has changed already; leave it 0, and give k and v as "
                       "they were before",
                       place, args->keys_modified);
  const DLTensor *tensor[] = {args->q, args->v};
  const int ndims[] = {packed ? 3 : 4, packed && !paged ? 3 : 4}, ndim = ndims[0];
  for (int i = 0; i < 2; ++i)
    if (tensor[i] == NULL || tensor[i]->ndim != ndims[i] || tensor[i]->shape == NULL)
      return luattn_fail(
          err, LUATTN_INVALID,
          "%s: %s: expected a tensor of %d axes%s, which gives the head dim; see luattn/%s.h", place,
          i == 0 ? "q" : "v", ndims[i], ndims[i] == 3 ? " beside cu_seqlens" : i == 1 && paged ? " of pages" : "",
          i == 1 && paged ? "batch" : "tensors");
  *key = (kernel_key){.spec = spec,
                      .pass = pass,
                      .packed = packed,
                      .pages = !paged ? 0 : args->v->shape[2] % 8 == 0 || batch_has_one_page(args->batch) ? 8 : 1,
                      .offsets = batch_offsets(args->batch),
                      .large_scores = args->large_scores != 0,
                      .keys_modified = args->keys_modified != 0 && luattn_spec_modifies_keys(spec),
                      .decode = wants_decode(e, pass, args)};
  if (!read_dtype(args->q->dtype, &key->dtype))
    return luattn_fail(err, LUATTN_INVALID,
                       "%s: q: has DLPack dtype (code %d, %d bits, %d lanes), expected float64, float32, "
                       "bfloat16 or float16; convert it",
                       place, args->q->dtype.code, args->q->dtype.bits, args->q->dtype.lanes);
  const int64_t dim[] = {args->q->shape[ndim - 1], args->v->shape[ndims[1] - 1]};
  const int most = e->cpu_relaxed ? CPU_DEVICE_MAX_DIM : 256;
  for (int i = 0; i < 2; ++i)
    if (dim[i] < 1 || dim[i] > most)
      return luattn_fail(err, LUATTN_INVALID, "%s: %s: has head dim %lld, expected 1 to %d", place,
                         i == 0 ? "q" : "v", (long long)dim[i], most);
  key->head_dim = (int)dim[0];
  key->head_dim_v = (int)dim[1];
  key->lengths = luattn_lengths_of(pass, packed ? args->batch->lengths[0].longest : args->q->shape[2],
                                   packed ? args->batch->lengths[1].longest : args->v->shape[2]);
  if (key->decode) {
    key->lengths = has_more_rows(args, LUATTN_DECODE_TILE) ? LUATTN_LONG : LUATTN_SHORT;
    key->many_rows = has_more_rows(args, LUATTN_DECODE_MANY);
  }
  TRY(read_input_types(spec, place, args, for_append && paged, &key->input_types, err));
  if (pass == LUATTN_FORWARD) return LUATTN_OK;
  key->wants = wants_of(args);
  if (key->wants == 0)
    return luattn_fail(
        err, LUATTN_INVALID,
        "backward: dq, dk, dv, grads: none is given, so there is nothing to compute; give at least one");
  return LUATTN_OK;
}

/* Compares everything except the lengths. */
static bool is_same_key(const kernel_key *a, const kernel_key *b) {
  return a->spec == b->spec && a->pass == b->pass && a->dtype == b->dtype && a->head_dim == b->head_dim &&
         a->head_dim_v == b->head_dim_v && a->wants == b->wants && a->packed == b->packed &&
         a->pages == b->pages && a->offsets == b->offsets && a->large_scores == b->large_scores && a->decode == b->decode &&
         a->many_rows == b->many_rows && a->weights == b->weights && a->keys_modified == b->keys_modified && a->input_types == b->input_types;
}

/* Returns the slot of this key, or the slot of the other lengths if its kernel serves both. This is unknown
 * while the other kernel is being compiled, so callers wait for it. */
static slot *find_slot(const luattn_engine *e, const kernel_key *key) {
  slot *other = NULL;
  for (size_t i = 0; i < e->count; ++i) {
    slot *s = e->slots[i];
    if (!is_same_key(&s->key, key)) continue;
    if (s->key.lengths == key->lengths) return s;
    if (s->state == SLOT_COMPILING || (s->state == SLOT_READY && s->every_length)) other = s;
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
  const luattn_pack_query query = {.struct_size = sizeof query,
                                   .spec_name = info.name,
                                   .spec_hash = {info.hash[0], info.hash[1]},
                                   .pass = key->pass,
                                   .dtype = key->dtype,
                                   .head_dim = key->head_dim,
                                   .head_dim_v = key->head_dim_v,
                                   .wants = key->wants,
                                   .family = e->family,
                                   .lengths = 1 + (int)key->lengths,
                                   .deterministic = e->deterministic,
                                   .packed = key->packed,
                                   .pages = key->pages,
                                   .decode = key->decode};
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
  key.decode = 0, key.many_rows = false;
  key.lengths = LUATTN_SHORT; /* which said something about rows of decode */
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
  const bool in_packs = !key->offsets && !key->large_scores && !key->weights && !key->keys_modified && key->input_types == 0;
  if (e->never_compile && !in_packs)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "luattn_engine: %s: is given, never_compile is set, and packs hold no kernels for %s; "
                       "leave never_compile 0",
                       key->offsets         ? "batch"
                       : key->large_scores  ? "large_scores"
                       : key->weights       ? "weights"
                       : key->keys_modified ? "keys_modified"
                                            : "inputs",
                       key->offsets         ? "parts of a whole"
                       : key->large_scores  ? "large scores"
                       : key->weights       ? "the weights of V"
                       : key->keys_modified ? "keys that have been modified"
                                            : "inputs whose dtype is any");
  if (e->num_packs > 0 && in_packs) {
    TRY(look_in_packs(e, key, kernel, report, err));
    if (*kernel != NULL) return LUATTN_OK;
  }
  if (e->never_compile && e->num_packs > 0) return LUATTN_UNSUPPORTED; /* the message is a pack's */
  if (e->never_compile)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "luattn_engine: never_compile is set and there are no packs; give some");
  fail_clear(err); /* drops the message about what packs lack */
  const luattn_target target = {.struct_size = sizeof target,
                                .pass = key->pass,
                                .dtype = key->dtype,
                                .head_dim = key->head_dim,
                                .head_dim_v = key->head_dim_v,
                                .arch = e->arch,
                                .family = key->weights ? 0 : e->family, /* the kernel is of simt */
                                .wants = key->wants,
                                .cache_dir = e->cache_dir,
                                .lengths = key->lengths,
                                .device = e->no_tuned ? NULL : e->device_name,
                                .nvrtc = e->nvrtc,
                                .deterministic = e->deterministic,
                                .packed = key->packed,
                                .offsets = key->offsets,
                                .large_scores = key->large_scores,
                                .decode = key->decode,
                                .many_rows = key->many_rows,
                                .pages = key->pages,
                                .weights = key->weights,
                                .keys_modified = key->keys_modified,
                                .input_types = key->input_types,
                                .driver_version = e->driver_version};
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
    if (s->key.lengths == key->lengths || (s->state == SLOT_READY && s->every_length)) return LUATTN_OK;
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
  if (status != LUATTN_OK && err != NULL) *err = *said;
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

luattn_status luattn_forward(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                             void *stream, luattn_error *err) {
  const luattn_kernel *kernel;
  luattn_error said;
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  NEED(args);
  TRY(kernel_of(engine, spec, LUATTN_FORWARD, args, &kernel, err));
  return engine_tell(luattn_launch(kernel, args, stream, &said), &said, err);
}

luattn_status luattn_backward(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                              void *stream, luattn_error *err) {
  const luattn_kernel *kernel;
  luattn_error said;
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  NEED(args);
  TRY(kernel_of(engine, spec, LUATTN_BACKWARD, args, &kernel, err));
  return engine_tell(luattn_launch(kernel, args, stream, &said), &said, err);
}
