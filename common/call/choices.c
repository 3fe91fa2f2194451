#include "common/call/choices.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/call/batch.h"
#include "common/host.h"
#include "common/struct_size.h"

static luattn_status check_counts(const char *place, const char *of, size_t inputs, size_t scalars, luattn_error *err) {
  const bool is_inputs = inputs > CHOICES_MAX_INPUTS; /* an input may have no more */
  if (!is_inputs && scalars <= CHOICES_MAX_SCALARS) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "%s: %s%s is %zu, expected at most %d, as no spec has more", place, of,
                     is_inputs ? "num_inputs" : "num_scalars", is_inputs ? inputs : scalars,
                     is_inputs ? CHOICES_MAX_INPUTS : CHOICES_MAX_SCALARS);
}

static luattn_status take(const luattn_args *given, const char *place, luattn_args *out, luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_args, o);
  TRY(struct_take(&rule, place, given, out, err));
  return check_counts(place, "", out->num_inputs, out->num_scalars, err);
}

luattn_status choices_take(const luattn_args *given, const char *place, luattn_args *out, luattn_error *err) {
  TRY(take(given, place, out, err));
  if (out->tangents == NULL) return LUATTN_OK;
  return luattn_fail(
      err, LUATTN_INVALID,
      "%s: tangents: is given, and this call computes none; leave it NULL, or call luattn_forward_jvp or "
      "luattn_cpu_forward_jvp",
      place);
}

/* What forward mode lacks: its name, or NULL. */
static const char *without_tangents(const luattn_args *a) {
  if (a->keys_modified != 0) return "keys_modified: is 1";
  if (a->large_scores != 0) return "large_scores: is 1";
  if (a->append != NULL) return "append: is given";
  if (a->skip == LUATTN_SKIP_ALWAYS) return "skip: is LUATTN_SKIP_ALWAYS";
  if (a->decode == LUATTN_DECODE_ALWAYS) return "decode: is LUATTN_DECODE_ALWAYS";
  return batch_is_paged(a->batch) ? "batch: has seqused_k without cu_seqlens_k" : NULL;
}

luattn_status choices_take_tangents(const luattn_args *given, const char *place, luattn_args *out,
                                    luattn_tangents *tangents, luattn_error *err) {
  static const struct_rule rule = {"luattn_tangents", sizeof(luattn_tangents), sizeof(luattn_tangents)};
  TRY(take(given, place, out, err));
  if (out->tangents == NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "%s: tangents: is missing; give a luattn_tangents, in which what is NULL has none", place);
  TRY(struct_take(&rule, place, out->tangents, tangents, err));
  TRY(check_counts(place, "tangents: ", tangents->num_inputs, tangents->num_scalars, err));
  const char *lacks = without_tangents(out);
  out->tangents = NULL;
  if (lacks == NULL) return LUATTN_OK;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "%s: %s, and tangents are not computed with it yet; leave it out, or call "
                     "luattn_forward",
                     place, lacks);
}

void choices_write_tangents(luattn_args *args, const luattn_tangents *tangents, luattn_input *inputs) {
  const bool has_rows = args->o != NULL && args->lse != NULL && tangents->o != NULL && tangents->lse != NULL;
  if (!has_rows) args->o = args->lse = NULL;
  args->saved = NULL;
  args->dq = tangents->dq, args->dk = tangents->dk, args->dv = tangents->dv;
  args->scalar_grads = tangents->scalar_grads;
  for (size_t i = 0; i < args->num_inputs && args->inputs != NULL; ++i) {
    inputs[i] = args->inputs[i];
    inputs[i].grad = NULL;
    for (size_t j = 0; j < tangents->num_inputs && tangents->inputs != NULL; ++j)
      if (inputs[i].name != NULL && tangents->inputs[j].name != NULL &&
          strcmp(inputs[i].name, tangents->inputs[j].name) == 0)
        inputs[i].grad = tangents->inputs[j].grad;
  }
  if (args->inputs != NULL) args->inputs = inputs;
}

luattn_status choices_take_dense(const luattn_args *given, const char *place, luattn_args *out, luattn_error *err) {
  TRY(choices_take(given, place, out, err));
  if (!batch_is_packed(out->batch) && batch_is_paged(out->batch))
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "%s: batch: has seqused_k, and luattn_forward and luattn_launch alone take keys in pages or "
                       "caches in part; call "
                       "it with k and v of equal lengths, and a batch that has none",
                       place);
  if (!batch_is_packed(out->batch)) return LUATTN_OK;
  return luattn_fail(
      err, LUATTN_UNSUPPORTED,
      "%s: batch: has cu_seqlens_q, and luattn_forward and luattn_launch alone take packed sequences yet; call it for "
      "each sequence, with a batch that has none",
      place);
}

/* Within these limits the scale is a normal number, and both 1 / scale and scale * log2(e), which kernels use,
 * are finite. */
static bool scale_ok(double scale, bool is_float64, char *text, size_t size) {
  const double least = is_float64 ? DBL_MIN : (double)FLT_MIN;
  const double most = (is_float64 ? DBL_MAX : (double)FLT_MAX) / 2;
  if (scale == 0 || (scale >= least && scale <= most)) return true;
  if (scale > 0 && isfinite(scale))
    host_format(text, size, "scale: is %g, expected %g to %g, which %s can hold, or 0 for head_dim^-1/2", scale, least,
                most, is_float64 ? "float64" : "float32");
  else
    host_format(text, size, "scale: is %g, expected a positive number, or 0 for head_dim^-1/2", scale);
  return false;
}

bool choices_ok(const luattn_args *args, bool is_forward, bool is_float64, char *text, size_t size) {
  if (!scale_ok(args->scale, is_float64, text, size)) return false;
  if (!is_forward && (args->num_splits < 0 || args->num_splits > CHOICES_MAX_SPLITS)) {
    snprintf(text, size, "num_splits: is %d, expected 1 to %d, or 0 to leave it to the launch", args->num_splits,
             CHOICES_MAX_SPLITS);
    return false;
  }
  if (args->spare_multiprocessors < 0) {
    snprintf(text, size, "spare_multiprocessors: is %d, expected 0 or more, and fewer than the device has",
             args->spare_multiprocessors);
    return false;
  }
  if (args->decode < LUATTN_DECODE_AUTO || args->decode > LUATTN_DECODE_NEVER) {
    snprintf(text, size, "decode: is %d, expected a luattn_decode, 0 to 2", args->decode);
    return false;
  }
  if (args->skip < LUATTN_SKIP_AUTO || args->skip > LUATTN_SKIP_NEVER) {
    snprintf(text, size, "skip: is %d, expected a luattn_skip, 0 to 2", args->skip);
    return false;
  }
  return true;
}

/* Infinity is a float32 value. A number below the normal range would become 0 or lose digits. */
bool choices_scalar_ok(const char *name, double value, const scalar_range *range, bool is_default, bool is_float64,
                       char *text, size_t size) {
  const double x = fabs(value);
  if (isnan(value)) {
    snprintf(text, size, "scalar '%s': is nan, expected a number", name);
    return false;
  }
  if (range != NULL && !scalar_range_has(range, value)) {
    char words[128];
    scalar_range_words(range, words, sizeof words);
    host_format(text, size, "scalar '%s': is %.9g, and the spec takes it as %s; give %s", name, value, range->by,
                words);
    return false;
  }
  if (is_float64 || x == 0 || isinf(value) || (x >= (double)FLT_MIN && x <= (double)FLT_MAX)) return true;
  host_format(text, size, "scalar '%s': %s %g, expected 0, or a magnitude of %g to %g, which float32 can hold%s", name,
              is_default ? "has the default" : "is", value, (double)FLT_MIN, (double)FLT_MAX,
              is_default ? "; give it a value" : "");
  return false;
}

bool choices_random(const luattn_args *args, luattn_random *out, char *text, size_t size) {
  static const struct_rule rule = STRUCT_RULE(luattn_random, seed_at);
  luattn_error why;
  if (args->random == NULL) {
    snprintf(text, size,
             "random: is missing; the spec drops weights at random, give a luattn_random with seed and offset");
    return false;
  }
  if (struct_take(&rule, "random", args->random, out, &why) != LUATTN_OK) {
    snprintf(text, size, "%s", why.message);
    return false;
  }
  const uint64_t *const at[] = {out->seed_at, out->offset_at};
  for (int i = 0; i < 2; i++)
    if (((uintptr_t)at[i] & 7) != 0) {
      snprintf(text, size, "random: %s: address %p is not a multiple of 8 bytes; align it",
               i == 0 ? "seed_at" : "offset_at", (const void *)at[i]);
      return false;
    }
  return true;
}
