#include "cli/sequence_ends.h"

#include <string.h>

#include "common/call/limits.h"
#include "common/call/packed_axis.h"

static bool is_list(const char *text) { return text[0] != 0 && text[strspn(text, "0123456789,")] == 0; }

/* Numbers with commas between them, as an int32 array. */
static luattn_status read_list(const char *option, const char *text, array *out, luattn_error *err) {
  int64_t count = 1;
  for (const char *at = text; *at != 0; at++) count += *at == ',';
  TRY(array_new(out, dtype_of_input(LUATTN_INPUT_I32), 1, &count, false, err));
  if (parse_sizes(text, (int)count, out->storage) == count) return LUATTN_OK;
  array_free(out);
  return luattn_fail(err, LUATTN_INVALID,
                     "%s: '%s' is not a list of sequences' ends, each at most %d; give 0 and the ends as in 0,100,356",
                     option, text, INT32_MAX);
}

static luattn_status read_file(const char *option, const char *path, array *out, luattn_error *err) {
  array raw;
  TRY(npy_read(path, &raw, err));
  luattn_status status = LUATTN_OK;
  if (!array_is_integer(&raw))
    status = luattn_fail(err, LUATTN_INVALID,
                         "%s: %s: holds no integers; save x.astype(numpy.int32): 0, and where each sequence ends",
                         option, path);
  else if (raw.t.ndim != 1)
    status = luattn_fail(err, LUATTN_INVALID,
                         "%s: %s: has %d dimensions, expected 1: 0, and where each sequence ends; reshape it", option,
                         path, raw.t.ndim);
  if (status == LUATTN_OK) status = array_new(out, dtype_of_input(LUATTN_INPUT_I32), 1, raw.shape, false, err);
  for (int64_t i = 0, n = array_count(&raw); i < n && status == LUATTN_OK; i++) {
    if (array_set_integer(out, i, array_integer(&raw, i))) continue;
    status = luattn_fail(err, LUATTN_INVALID, "%s: %s: element %lld is %lld, more than 32 bits hold", option, path,
                         (long long)i, (long long)array_integer(&raw, i));
    array_free(out);
  }
  array_free(&raw);
  return status;
}

static luattn_status read_ends(const char *option, const char *text, array *out, luattn_error *err) {
  TRY(is_list(text) ? read_list(option, text, out, err) : read_file(option, text, out, err));
  const int64_t n = array_count(out);
  luattn_status status = LUATTN_OK;
  if (n < 2)
    status = luattn_fail(err, LUATTN_INVALID,
                         "%s: '%s' has %lld number%s, and one sequence takes two; give 0 and its end, as in 0,100",
                         option, text, (long long)n, n == 1 ? "" : "s");
  else if (array_integer(out, 0) != 0)
    status = luattn_fail(err, LUATTN_INVALID, "%s: '%s' begins with %lld, expected 0, where the first sequence starts",
                         option, text, (long long)array_integer(out, 0));
  for (int64_t i = 1; i < n && status == LUATTN_OK; i++) {
    const long long before = array_integer(out, i - 1), end = array_integer(out, i);
    if (end < before)
      status = luattn_fail(
          err, LUATTN_INVALID,
          "%s: '%s' falls from %lld to %lld at sequence %lld; give where each sequence ends, counted over all rows",
          option, text, before, end, (long long)i);
  }
  if (status == LUATTN_OK && array_integer(out, n - 1) > LUATTN_MAX_TOTAL)
    status = luattn_fail(err, LUATTN_INVALID, "%s: '%s' ends at %lld, more than 2^30 rows; give fewer sequences",
                         option, text, (long long)array_integer(out, n - 1));
  if (status != LUATTN_OK) array_free(out);
  return status;
}

static int longest(const array *ends) {
  int64_t most = 0;
  for (int64_t i = 1, n = array_count(ends); i < n; i++) {
    const int64_t rows = array_integer(ends, i) - array_integer(ends, i - 1);
    if (rows > most) most = rows;
  }
  return (int)most;
}

/* The DLTensor of an array of ends, with pointers into this very array. */
static const DLTensor *ends_tensor(array *a) {
  a->t.shape = a->shape;
  a->t.strides = a->stride;
  return &a->t;
}

static luattn_status open_batch(cli_problem *p, luattn_error *err) {
  array *const ends = p->ends;
  p->batch = (int)array_count(&ends[0]) - 1;
  p->q_len = (int)array_integer(&ends[0], p->batch), p->kv_len = (int)array_integer(&ends[1], p->batch);
  p->longest[0] = longest(&ends[0]), p->longest[1] = longest(&ends[1]);
  const luattn_batch_options options = {
      .struct_size = sizeof options, .cu_seqlens_q = ends_tensor(&ends[0]), .cu_seqlens_k = ends_tensor(&ends[1])};
  return luattn_batch_open(&options, &p->sequences, err);
}

static luattn_status check_shape(const cli_options *o, const cli_problem *p, const int shape[3], luattn_error *err) {
  static const char *const names[] = {"B", "Sq", "Skv"}, *const what[] = {"sequences", "queries in all", "keys in all"};
  const int have[] = {p->batch, p->q_len, p->kv_len};
  for (int i = 0; i < 3 && o->shape != NULL; i++)
    if (shape[i] != have[i])
      return luattn_fail(
          err, LUATTN_INVALID,
          "--shape: '%s': %s is %d, and the sequences of --cu-seqlens have %d %s; give %d,%d,%d,%d,%d,%d", o->shape,
          names[i], shape[i], have[i], what[i], p->batch, p->heads, p->heads_kv, p->q_len, p->kv_len, p->dim);
  return LUATTN_OK;
}

luattn_status sequences_option(const cli_options *o, cli_problem *p, luattn_error *err) {
  const char *const q = o->cu_seqlens != NULL ? o->cu_seqlens : o->cu_seqlens_q, *const k = o->cu_seqlens != NULL
                                                                                                ? o->cu_seqlens
                                                                                                : o->cu_seqlens_k;
  const char *const name_q = o->cu_seqlens != NULL ? "--cu-seqlens" : "--cu-seqlens-q", *const name_k =
                                                                                            o->cu_seqlens != NULL
                                                                                                ? "--cu-seqlens"
                                                                                                : "--cu-seqlens-k";
  const int shape[] = {p->batch, p->q_len, p->kv_len};
  if (q == NULL && k == NULL) return LUATTN_OK;
  if (o->cu_seqlens != NULL && (o->cu_seqlens_q != NULL || o->cu_seqlens_k != NULL))
    return luattn_fail(err, LUATTN_INVALID,
                       "--cu-seqlens: '%s' is for q and k, and %s '%s' is given too; give one of them", o->cu_seqlens,
                       o->cu_seqlens_q != NULL ? "--cu-seqlens-q" : "--cu-seqlens-k",
                       o->cu_seqlens_q != NULL ? o->cu_seqlens_q : o->cu_seqlens_k);
  if (q == NULL || k == NULL)
    return luattn_fail(
        err, LUATTN_INVALID,
        "%s: is missing; packed sequences have ends of queries and of keys, --cu-seqlens if they are the same",
        q == NULL ? name_q : name_k);
  if (o->layout != NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "--layout: '%s' is an order of entries of equal lengths; packed q, k and v are rows x heads x "
                       "head_dim: leave it out",
                       o->layout);
  TRY(read_ends(name_q, q, &p->ends[0], err));
  TRY(read_ends(name_k, k, &p->ends[1], err));
  if (array_count(&p->ends[0]) != array_count(&p->ends[1]))
    return luattn_fail(err, LUATTN_INVALID,
                       "--cu-seqlens-k: '%s' has %lld sequences, and --cu-seqlens-q has %lld; give as many", k,
                       (long long)array_count(&p->ends[1]) - 1, (long long)array_count(&p->ends[0]) - 1);
  TRY(open_batch(p, err));
  return check_shape(o, p, shape, err);
}

void sequences_free(cli_problem *p) {
  luattn_batch_close(p->sequences);
  p->sequences = NULL;
  array_free(&p->ends[0]), array_free(&p->ends[1]);
}

int64_t sequences_axis(const cli_problem *p, const luattn_input_info *info, uint32_t j) {
  const bool is_q = info->axis[j] == LUATTN_AXIS_Q;
  const bool packed = p->sequences == NULL || (int)j == packed_axis(info);
  return packed ? (is_q ? p->q_len : p->kv_len) : p->longest[is_q ? 0 : 1];
}
