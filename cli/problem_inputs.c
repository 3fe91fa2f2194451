/* problem_inputs.c: the extra inputs of a problem, from files or random numbers. */
#include <math.h>
#include <string.h>

#include "cli/problem.h"
#include "cli/random_array.h"
#include "cli/read_array.h"
#include "cli/sequence_ends.h"
#include "common/call/input_dtype.h"
#include "gen/analysis/specs/int_range.h"

/* The places of both sides along the longest axis. */
static int64_t longest_distance(const cli_problem *p) {
  if (p->axes <= 1) return (int64_t)p->q_len + p->kv_len;
  int64_t most = 0;
  for (int a = 0; a < p->axes; a++) {
    const int64_t sum = (int64_t)p->extent[0][a] + p->extent[1][a];
    if (sum > most) most = sum;
  }
  return most;
}

static int64_t axis_size(const cli_problem *p, const luattn_input_info *info, uint32_t j) {
  switch (info->axis[j]) {
    case LUATTN_AXIS_B:
      return p->batch;
    case LUATTN_AXIS_H:
      return p->heads;
    case LUATTN_AXIS_HKV:
      return p->heads_kv;
    case LUATTN_AXIS_Q:
    case LUATTN_AXIS_KV:
      return sequences_axis(p, info, j);
    case LUATTN_AXIS_FREE:
      return longest_distance(p); /* long enough for a table over relative positions */
    default:
      return info->axis[j] <= LUATTN_AXIS_KV_GRID  ? p->extent[1][LUATTN_AXIS_KV_GRID - info->axis[j]]
             : info->axis[j] <= LUATTN_AXIS_Q_GRID ? p->extent[0][LUATTN_AXIS_Q_GRID - info->axis[j]]
                                                   : info->axis[j];
  }
}

/* Stands for the type that a file has. */
static const DLDataType any_float = {kDLFloat, 0, 1};

static luattn_status read_input(const luattn_input_info *info, const char *path, const cli_problem *p, array *out,
                                luattn_error *err) {
  char option[32 + LUATTN_NAME_SIZE];
  snprintf(option, sizeof option, "--input: %s", info->name);
  const file_rule rule = {option, path, (int)info->num_axes, "as the spec declares",
                          info->dtype == LUATTN_INPUT_ANY ? any_float : dtype_of_input(info->dtype)};
  TRY(read_array(&rule, false, out, err));
  for (uint32_t j = 0; j < info->num_axes; j++) {
    const int64_t have = out->shape[j], want = axis_size(p, info, j);
    const bool any = info->axis[j] == LUATTN_AXIS_FREE && have > 0;
    const bool broadcast = have == 1 && (info->axis[j] == LUATTN_AXIS_B || info->axis[j] == LUATTN_AXIS_H);
    if (have == want || any || broadcast) continue;
    return luattn_fail(err, LUATTN_INVALID,
                       "%s: %s: axis %u has size %lld, expected %lld as the spec declares; cut or pad it", option, path,
                       (unsigned)j, (long long)have, (long long)(info->axis[j] == LUATTN_AXIS_FREE ? 1 : want));
  }
  return LUATTN_OK;
}

/* An integer by itself, or for each batch entry or head, is a length, a prefix or a window. */
static bool counts_positions(const luattn_input_info *info) {
  bool all = true;
  for (uint32_t i = 0; i < info->num_axes; i++)
    all &= info->axis[i] == LUATTN_AXIS_B || info->axis[i] == LUATTN_AXIS_H || info->axis[i] == LUATTN_AXIS_HKV;
  return all;
}

static void fill_input(array *a, const luattn_input_info *info, const cli_problem *p, uint64_t *seed) {
  const int64_t n = array_count(a);
  if (input_is_integer(info->dtype) && counts_positions(info)) {
    const int most = info->dtype == LUATTN_INPUT_U8 && p->kv_len > UINT8_MAX ? UINT8_MAX : p->kv_len;
    for (int64_t i = 0; i < n; i++) array_set(a, i, floor(random_uniform(seed) * ((double)most + 1)));
  } else if (input_is_integer(info->dtype)) {
    random_ids(a, seed);
  } else if (info->dtype == LUATTN_INPUT_BOOL) {
    for (int64_t i = 0; i < n; i++) array_set(a, i, random_uniform(seed) < 0.5);
  } else {
    random_normal(a, 0.5, seed);
  }
}

/* Warns of integers beyond what kernels compute with, where the spec, or its mask alone, does so. */
static void warn_of_ints(const cli_problem *p, int input, bool mask_alone) {
  char warning[INT_RANGE_TEXT];
  if (int_range_warning(p->spec, input, mask_alone ? INT_RANGE_MASK : INT_RANGE_SPEC, array_tensor(&p->input[input]),
                        warning))
    fprintf(stderr, "luattn: warning: --input: %s: %s\n", p->info.inputs[input].name, warning);
}

luattn_status problem_read_inputs(const cli_options *o, cli_problem *p, uint64_t *seed, luattn_error *err) {
  for (size_t i = 0; i < p->info.num_inputs; i++) {
    const luattn_input_info *info = &p->info.inputs[i];
    const char *path = NULL;
    for (int j = 0; j < o->num_inputs; j++) {
      if (strcmp(o->input[j].name, info->name) == 0) path = o->input[j].value;
    }
    if (path != NULL) {
      TRY(read_input(info, path, p, &p->input[i], err));
      warn_of_ints(p, (int)i, o->mask_only);
      continue;
    }
    int64_t shape[4];
    for (uint32_t j = 0; j < info->num_axes; j++) shape[j] = axis_size(p, info, j);
    const DLDataType type = info->dtype == LUATTN_INPUT_ANY ? dtype_dl(p->dtype) : dtype_of_input(info->dtype);
    TRY(array_new(&p->input[i], type, (int)info->num_axes, shape, false, err));
    fill_input(&p->input[i], info, p, seed);
  }
  return LUATTN_OK;
}
