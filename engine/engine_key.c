/* engine_key.c: reads from the arguments of a call which kernel it needs. */
#include <stdio.h>
#include <string.h>

#include "common/call/batch.h"
#include "common/call/choices.h"
#include "common/call/dtype_text.h"
#include "engine/box_memory.h"
#include "engine/cpu_device.h"
#include "engine/engine.h"

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

static const char *text_of(DLDataType type, char text[DTYPE_TEXT_SIZE]) {
  dtype_text(type, text, DTYPE_TEXT_SIZE);
  return text;
}

static bool read_input_type(DLDataType t, uint64_t *out) {
  const uint32_t dtype = kernel_dtype_of(t);
  *out = 1 + (uint64_t)kernel_dtype(dtype)->input;
  return dtype < KERNEL_DTYPES;
}

/* Returns the tensor types of the inputs whose dtype is any. or_f32: f32 of one that is missing. */
static luattn_status read_input_types(const luattn_spec *spec, const char *place, const luattn_args *args, bool or_f32,
                                      uint64_t *out, luattn_error *err) {
  luattn_spec_info info;
  char text[DTYPE_TEXT_SIZE];
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
          "%s: input '%s': is missing; give a tensor of float64, float32, bfloat16 or float16 by this name", place,
          name);
    if (t != NULL && !read_input_type(t->dtype, &type))
      return luattn_fail(err, LUATTN_INVALID,
                         "%s: input '%s': has dtype %s, and dtype any in a spec stands for float64, float32, bfloat16 "
                         "or float16; declare "
                         "an integer's type there, as i32",
                         place, name, text_of(t->dtype, text));
    *out |= type << 4 * i;
  }
  return LUATTN_OK;
}

/* What no kernel of an engine at this place does. */
static luattn_status check_supported(const engine_place *at, luattn_pass pass, const luattn_args *args,
                                     luattn_error *err) {
  const char *place = kernel_pass_name(pass);
  const bool packed = batch_is_packed(args->batch), paged = batch_is_paged(args->batch);
  if ((packed || paged) && at->cpu_relaxed)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED, "%s: batch: has %s, and cpu_relaxed is set, which takes no %s yet; leave it 0", place,
        packed ? "cu_seqlens_q" : "seqused_k", packed ? "packed sequences" : "keys in pages or caches in part");
  if (paged && pass != LUATTN_FORWARD)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "%s: batch: has %s, and there is no %s over keys in pages or in a part of a cache; copy them to k and v of "
        "equal lengths, or to packed sequences",
        place, args->batch->array[BATCH_BLOCK_TABLE].is_given ? "block_table" : "seqused_k without cu_seqlens_k",
        place);
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks)                                             \
  if ((lacks)[0] != 0 && args->name != 0 && pass != LUATTN_FORWARD)                                            \
    return luattn_fail(err, LUATTN_UNSUPPORTED, "%s: " #name ": is %d, and there is no %s over " lacks, place, \
                       args->name, place);
#include "abi/kernel_facts.def"
  return LUATTN_OK;
}

/* q and v give the head dims. */
static luattn_status check_axes(const luattn_args *args, const char *place, const int ndims[2], luattn_error *err) {
  const DLTensor *tensor[] = {args->q, args->v};
  const bool paged = batch_is_paged(args->batch);
  for (int i = 0; i < 2; ++i)
    if (tensor[i] == NULL || tensor[i]->ndim != ndims[i] || tensor[i]->shape == NULL)
      return luattn_fail(err, LUATTN_INVALID,
                         "%s: %s: expected a tensor of %d axes%s, which gives the head dim; see luattn/%s.h", place,
                         i == 0 ? "q" : "v", ndims[i],
                         ndims[i] == 3     ? " beside cu_seqlens"
                         : i == 1 && paged ? " of pages"
                                           : "",
                         i == 1 && paged ? "batch" : "tensors");
  return LUATTN_OK;
}

/* A launch says the same; the CPU path of a relaxed engine has messages of its own. */
static luattn_status check_choices(const kernel_key *key, const luattn_args *args, const char *spec_name,
                                   luattn_error *err) {
  char wrong[300];
  wrong[0] = 0;
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks) \
  if (args->name != 0 && args->name != 1) snprintf(wrong, sizeof wrong, #name ": is %d, expected 0 or 1", args->name);
#include "abi/kernel_facts.def"
  if (wrong[0] == 0 && choices_ok(args, key->pass == LUATTN_FORWARD, key->dtype == LUATTN_F64, wrong, sizeof wrong))
    return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "%s of '%s': %s", kernel_pass_name(key->pass), spec_name, wrong);
}

/* o and gradients in float32 are of half types. */
static luattn_status check_results(const kernel_key *key, luattn_error *err) {
  const bool is_half = key->dtype == LUATTN_BF16 || key->dtype == LUATTN_F16;
  if ((key->out_f32 == 0 && key->grad_f32 == 0) || is_half) return LUATTN_OK;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "%s: %s: is 1, and q, k and v are %s: %s has their type, unless it is bf16 or f16; leave it 0",
                     kernel_pass_name(key->pass), key->out_f32 != 0 ? "out_f32" : "grad_f32",
                     kernel_dtype_name(key->dtype), key->out_f32 != 0 ? "o" : "a gradient");
}

static luattn_status read_dims(const engine_place *at, const luattn_args *args, const int ndims[2], kernel_key *key,
                               luattn_error *err) {
  const int64_t dim[] = {args->q->shape[ndims[0] - 1], args->v->shape[ndims[1] - 1]};
  const int most = at->cpu_relaxed ? CPU_DEVICE_MAX_DIM : LUATTN_MAX_HEAD_DIM;
  for (int i = 0; i < 2; ++i)
    if (dim[i] < 1 || dim[i] > most)
      return luattn_fail(err, LUATTN_INVALID, "%s: %s: has head dim %lld, expected 1 to %d",
                         kernel_pass_name(key->pass), i == 0 ? "q" : "v", (long long)dim[i], most);
  key->head_dim = (int)dim[0];
  key->head_dim_v = (int)dim[1];
  return LUATTN_OK;
}

/* Positions of a tensor, over a grid places: the product of all axes but batch, heads and the last. */
static int64_t positions_of(const DLTensor *t) {
  int64_t positions = t->shape[2];
  for (int i = 3; i < t->ndim - 1 && positions <= INT32_MAX; ++i) positions *= t->shape[i];
  return positions;
}

static void read_classes(const luattn_args *args, kernel_key *key) {
  const luattn_batch *batch = args->batch;
  key->lengths = luattn_lengths_of(key->pass, key->packed ? batch->lengths[0].longest : positions_of(args->q),
                                   key->packed ? batch->lengths[1].longest : positions_of(args->v));
  if (key->decode == 0) return;
  key->lengths = choice_has_more_rows(args, LUATTN_DECODE_TILE) ? LUATTN_LONG : LUATTN_SHORT;
  key->many_rows = choice_has_more_rows(args, LUATTN_DECODE_MANY);
}

static luattn_status read_wants(const luattn_args *args, kernel_key *key, luattn_error *err) {
  if (kernel_pass_wants(key->pass) == 0) return LUATTN_OK;
  key->wants = wants_of(args);
  if (key->wants != 0) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "%s: dq, dk, dv, grads: none is given, so there is nothing to compute; give at least one",
                     kernel_pass_name(key->pass));
}

/* Reads from the arguments what is fixed at compile time; the launch checks the rest. */
luattn_status engine_key(const engine_place *at, const luattn_spec *spec, luattn_pass pass, const luattn_args *given,
                         bool for_append, kernel_key *key, luattn_error *err) {
  const char *place = kernel_pass_name(pass);
  if ((unsigned)pass >= KERNEL_PASSES)
    return luattn_fail(err, LUATTN_INVALID, "luattn_engine: pass: is %d, expected a luattn_pass, 0 to %d", (int)pass,
                       KERNEL_PASSES - 1);
  luattn_args taken;
  const luattn_args *args = &taken;
  TRY(choices_take(given, place, &taken, err));
  TRY(check_supported(at, pass, args, err));
  const bool packed = batch_is_packed(args->batch), paged = batch_is_paged(args->batch);
  const int axes = luattn_spec_grid(spec, NULL), along_grid = axes > 1 ? 3 + axes : 4;
  const int ndims[] = {packed ? 3 : along_grid, packed && !paged ? 3 : along_grid};
  TRY(check_axes(args, place, ndims, err));
  *key = (kernel_key){
      .spec = spec,
      .pass = pass,
      .packed = packed,
      .pages = !paged                                                          ? 0
               : args->v->shape[2] % 8 == 0 || batch_has_one_page(args->batch) ? 8
                                                                               : 1,
      .offsets = batch_offsets(args->batch),
      .query_tile_size = at->driver != NULL ? args->query_tile_size : 0,
      .key_tile_size = at->driver != NULL ? args->key_tile_size : 0,
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks) .name = args->name != 0 && (matters),
#include "abi/kernel_facts.def"
  };
  if (pass == LUATTN_FORWARD) key->grad_f32 = 0;
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  memcpy(key->spec_hash, info.hash, sizeof key->spec_hash);
  char text[DTYPE_TEXT_SIZE];
  const uint32_t dtype = kernel_dtype_of(args->q->dtype);
  if (dtype == KERNEL_DTYPES)
    return luattn_fail(err, LUATTN_INVALID,
                       "%s: q: has dtype %s, expected float64, float32, "
                       "bfloat16 or float16; convert it",
                       place, text_of(args->q->dtype, text));
  key->dtype = (luattn_dtype)dtype;
  TRY(check_results(key, err));
  if (!at->cpu_relaxed) TRY(check_choices(key, args, info.name, err));
  TRY(read_dims(at, args, ndims, key, err));
  key->decode = axes > 1 && args->decode == LUATTN_DECODE_AUTO ? 0 : choice_of_decode(at, pass, args);
  read_classes(args, key);
  TRY(read_input_types(spec, place, args, for_append && paged, &key->input_types, err));
  TRY(read_wants(args, key, err));
  if (axes > 1 && at->driver != NULL) box_memory_choose(at->boxes, at, args->q, args->k, key);
  return LUATTN_OK;
}
