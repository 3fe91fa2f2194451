#include "cli/linear_tensors.h"

#include <math.h>
#include <string.h>

#include "cli/random_array.h"
#include "cli/read_array.h"
#include "common/call/input_dtype.h"
#include "common/real.h"
#include "gen/spec.h"

#define QK_AXES "batch x tokens x heads x head_dim"
#define V_AXES "batch x tokens x heads_v x head_dim_v"

luattn_status linear_refuse_options(const cli_options *o, luattn_error *err) {
  const struct {
    const char *name;
    bool given;
  } others[] = {
      {"--layout", o->layout != NULL},
      {"--dlse", o->dlse != NULL},
      {"--lengths", o->lengths != NULL},
      {"--skip", o->skip != NULL},
      {"--family", o->family != NULL},
      {"--head-dim", o->head_dim != NULL},
      {"--dropout", o->has_dropout},
      {"--cu-seqlens-q", o->cu_seqlens_q != NULL},
      {"--splits", o->splits != 0},
      {"--cu-seqlens-k", o->cu_seqlens_k != NULL},
      {"--weights", o->weights},
      {"--decode", o->decode},
      {"--no-decode", o->no_decode},
      {"--tangents", o->tangents},
      {"--jvp", o->jvp},
      {"--own-backward", o->own_backward},
      {"--deterministic", o->deterministic},
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks) {#name, o->name},
#include "abi/kernel_facts.def"
  };
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    char shown[64];
    if (!others[i].given) continue;
    snprintf(shown, sizeof shown, "%s%s", others[i].name[0] == '-' ? "" : "--", others[i].name);
    for (char *at = shown; *at != 0; at++)
      if (*at == '_') *at = '-'; /* of a name in C */
    return luattn_fail(err, LUATTN_INVALID, "%s: is of attention, and this spec of linear attention; leave it out",
                       shown);
  }
  return LUATTN_OK;
}

/* ---- sizes ---- */

static luattn_status read_shape(const char *text, linear_tensors *t, luattn_error *err) {
  static const char *const names[] = {"B", "T", "H", "HV", "K", "V"};
  int size[6];
  const int n = parse_sizes(text, 6, size);
  if (n < 5)
    return luattn_fail(
        err, LUATTN_INVALID,
        "--shape: '%s' is not B,T,H,HV,K[,V], of linear attention; give five or six sizes up to 2147483647 such as "
        "2,1024,4,8,64",
        text);
  if (n == 5) size[5] = size[4];
  for (int i = 0; i < 6; i++)
    if (size[i] == 0 && i != 1)
      return luattn_fail(err, LUATTN_INVALID, "--shape: '%s': %s is 0; it must be at least 1", text, names[i]);
  t->batch = size[0], t->tokens = size[1], t->heads = size[2], t->heads_v = size[3], t->dim = size[4],
  t->dim_v = size[5];
  if (t->heads_v % t->heads != 0)
    return luattn_fail(
        err, LUATTN_INVALID,
        "--shape: '%s': HV = %d is not a multiple of H = %d; each head of q and k serves HV / H value heads", text,
        t->heads_v, t->heads);
  return LUATTN_OK;
}

/* 0 and where each sequence ends; random tensors then have so many rows. */
static luattn_status read_ends(const cli_options *o, linear_tensors *t, luattn_error *err) {
  const char *text = o->cu_seqlens;
  t->entries = t->batch;
  if (text == NULL) return LUATTN_OK;
  if (text[0] != 0 && text[strspn(text, "0123456789,")] == 0) {
    int64_t count = 1;
    for (const char *at = text; *at != 0; at++) count += *at == ',';
    TRY(array_new(&t->ends, dtype_of_input(LUATTN_INPUT_I32), 1, &count, false, err));
    if (parse_sizes(text, (int)count, t->ends.storage) != count)
      return luattn_fail(err, LUATTN_INVALID,
                         "--cu-seqlens: '%s' is no list of ends; give 0 and the ends as in 0,100,356", text);
  } else {
    const file_rule rule = {"--cu-seqlens", text, 1, "0, and where each sequence ends",
                            dtype_of_input(LUATTN_INPUT_I32)};
    TRY(read_array(&rule, false, &t->ends, err));
  }
  const int64_t n = array_count(&t->ends);
  if (n < 2)
    return luattn_fail(err, LUATTN_INVALID, "--cu-seqlens: '%s' has %lld numbers; give 0 and the ends as in 0,100,356",
                       text, (long long)n);
  for (int64_t i = 1; i < n; i++)
    if (array_get(&t->ends, i) < array_get(&t->ends, i - 1))
      return luattn_fail(err, LUATTN_INVALID,
                         "--cu-seqlens: '%s': number %lld is %g, expected at least %g; ends do not fall", text,
                         (long long)i, array_get(&t->ends, i), array_get(&t->ends, i - 1));
  t->batch = 1, t->entries = (int)n - 1;
  t->tokens = (int)array_get(&t->ends, n - 1);
  return LUATTN_OK;
}

/* ---- tensors ---- */

static luattn_status make_random(array *a, linear_tensors *t, int heads, int dim, double scale, uint64_t *seed,
                                 luattn_error *err) {
  TRY(array_new(a, dtype_dl(t->dtype), 4, (int64_t[]){t->batch, t->tokens, heads, dim}, false, err));
  random_normal(a, scale, seed);
  return LUATTN_OK;
}

static luattn_status read_files(const cli_options *o, linear_tensors *t, luattn_error *err) {
  static const char *const axis[] = {"batch", "tokens", "heads", "head_dim"}, *const from[] = {"--q", "--q", "--q",
                                                                                               "--q"};
  static const char *const of_v[] = {"batch", "tokens", "heads_v", "head_dim_v"};
  const struct {
    const char *option, *path, *axes;
    array *to;
  } all[] = {{"--q", o->q, QK_AXES, &t->q}, {"--k", o->k, QK_AXES, &t->k}, {"--v", o->v, V_AXES, &t->v}};
  for (int i = 0; i < 3; i++) {
    if (all[i].path == NULL)
      return luattn_fail(err, LUATTN_INVALID, "%s: is missing, and others of q, k and v are given; give all of them",
                         all[i].option);
    const file_rule rule = {all[i].option, all[i].path, 4, all[i].axes, dtype_dl(t->dtype)};
    TRY(read_array(&rule, false, all[i].to, err));
  }
  const int packed_batch = t->batch, packed_tokens = t->tokens;
  t->batch = (int)t->q.shape[0], t->tokens = (int)t->q.shape[1], t->heads = (int)t->q.shape[2],
  t->dim = (int)t->q.shape[3];
  t->heads_v = (int)t->v.shape[2], t->dim_v = (int)t->v.shape[3];
  TRY(expect_shape("--k", &t->k, axis, t->q.shape, from, err));
  TRY(expect_shape("--v", &t->v, of_v, (int64_t[]){t->batch, t->tokens, t->heads_v, t->dim_v}, from, err));
  if (t->ends.storage == NULL)
    t->entries = t->batch;
  else if (t->batch != packed_batch || t->tokens < packed_tokens)
    return luattn_fail(err, LUATTN_INVALID,
                       "--q: has batch %d and %d tokens, and --cu-seqlens batch 1 and %d; give arrays that agree",
                       t->batch, t->tokens, packed_tokens);
  return LUATTN_OK;
}

/* Random inputs that are a decay, or whose logarithm is one, do not grow. */
static void make_decays(const linear_tensors *t, int input, array *a) {
  const traced_spec *spec = &t->spec->traced;
  const ir_ref decay = spec->linear.decay;
  const ir_node *root = decay != IR_NONE ? ir_get(spec->g, decay) : NULL;
  const bool is_log = root != NULL && root->op == IR_LOG;
  const ir_node *load = is_log ? ir_get(spec->g, root->arg[0]) : root;
  if (load == NULL || load->op != IR_LOAD || (int)load->imm.integer != input) return;
  for (int64_t i = 0, n = array_count(a); i < n; i++) {
    const double g = -fabs(array_get(a, i));
    array_set(a, i, is_log ? exp(g) : g);
  }
}

static int64_t axis_size(const linear_tensors *t, const luattn_input_info *info, uint32_t j) {
  bool has_tokens = false;
  for (uint32_t i = 0; i < info->num_axes; i++) has_tokens |= info->axis[i] == LUATTN_AXIS_T;
  switch (info->axis[j]) {
    case LUATTN_AXIS_B:
      return has_tokens ? t->batch : t->entries;
    case LUATTN_AXIS_T:
      return t->tokens;
    case LUATTN_AXIS_H:
      return t->heads;
    case LUATTN_AXIS_HV:
      return t->heads_v;
    case LUATTN_AXIS_D:
      return t->dim;
    case LUATTN_AXIS_DV:
      return t->dim_v;
    default:
      return info->axis[j] == LUATTN_AXIS_FREE ? (t->tokens > 0 ? t->tokens : 1) : info->axis[j];
  }
}

static luattn_status read_input(const cli_options *o, linear_tensors *t, int i, uint64_t *seed, luattn_error *err) {
  const luattn_input_info *info = &t->info.inputs[i];
  const bool is_real = info->dtype == LUATTN_INPUT_ANY || dtype_of_input(info->dtype).code == kDLFloat;
  const bool here = o->device == NULL || strcmp(o->device, "cpu") == 0; /* where differences need float64 */
  const DLDataType type = (is_real && t->dtype == LUATTN_F64 && here) || info->dtype == LUATTN_INPUT_ANY
                              ? dtype_dl(t->dtype)
                              : dtype_of_input(info->dtype);
  char option[32 + LUATTN_NAME_SIZE];
  for (int j = 0; j < o->num_inputs; j++) {
    if (strcmp(o->input[j].name, info->name) != 0) continue;
    snprintf(option, sizeof option, "--input: %s", info->name);
    const file_rule rule = {option, o->input[j].value, (int)info->num_axes, "as the spec declares", type};
    return read_array(&rule, false, &t->input[i], err); /* the call checks its sizes */
  }
  int64_t shape[4];
  for (uint32_t j = 0; j < info->num_axes; j++) shape[j] = axis_size(t, info, j);
  TRY(array_new(&t->input[i], type, (int)info->num_axes, shape, false, err));
  if (input_is_integer(info->dtype) || info->dtype == LUATTN_INPUT_BOOL)
    for (int64_t n = 0; n < array_count(&t->input[i]); n++) array_set(&t->input[i], n, random_uniform(seed) < 0.5);
  else
    random_normal(&t->input[i], 0.5, seed);
  make_decays(t, i, &t->input[i]);
  return LUATTN_OK;
}

static luattn_status read_numbers(const cli_options *o, linear_tensors *t, luattn_error *err) {
  for (int i = 0; i < o->num_inputs; i++) {
    bool known = false;
    for (size_t j = 0; j < t->info.num_inputs; j++) known |= strcmp(o->input[i].name, t->info.inputs[j].name) == 0;
    if (!known)
      return luattn_fail(err, LUATTN_INVALID,
                         "--input: '%s': the spec '%s' declares no input of that name; take it out", o->input[i].name,
                         t->info.name);
  }
  for (int i = 0; i < o->num_sets; i++) {
    char *end;
    const double x = real_read(o->set[i].value, &end);
    if (*o->set[i].value == 0 || *end != 0 || isnan(x))
      return luattn_fail(err, LUATTN_INVALID, "--set: %s: '%s' is not a number; give --set %s=1.5", o->set[i].name,
                         o->set[i].value, o->set[i].name);
    t->scalar[t->num_scalars++] = (luattn_scalar){o->set[i].name, x};
  }
  t->scale = o->has_scale ? o->scale : 0;
  return LUATTN_OK;
}

static luattn_status make_states(linear_tensors *t, uint64_t *seed, luattn_error *err) {
  const int64_t shape[] = {t->entries, t->heads_v, t->state_v, t->dim};
  TRY(array_new(&t->initial, dtype_dl(t->dtype), 4, shape, false, err));
  TRY(array_new(&t->dfinal, dtype_dl(t->dtype), 4, shape, false, err));
  random_normal(&t->initial, 0.5, seed);
  random_normal(&t->dfinal, 0.5, seed);
  for (int64_t i = 0; t->state_v > t->dim_v && i < array_count(&t->initial); i++) /* a sum of weights */
    array_set(&t->initial, i, fabs(array_get(&t->initial, i)));
  return LUATTN_OK;
}

static luattn_status read_dout(const cli_options *o, linear_tensors *t, uint64_t *seed, luattn_error *err) {
  static const char *const axis[] = {"batch", "tokens", "heads_v", "head_dim_v"}, *const from[] = {"--v", "--v", "--v",
                                                                                                   "--v"};
  if (o->dout == NULL) return make_random(&t->dout, t, t->heads_v, t->dim_v, 1, seed, err);
  TRY(read_array(&(file_rule){"--dout", o->dout, 4, V_AXES, dtype_dl(t->dtype)}, false, &t->dout, err));
  return expect_shape("--dout", &t->dout, axis, t->v.shape, from, err);
}

static luattn_status read_all(const cli_options *o, const char *shape, bool with_states, linear_tensors *t,
                              luattn_error *err) {
  uint64_t seed = (uint64_t)o->seed;
  TRY(dtype_option(o, &t->dtype, err));
  TRY(read_numbers(o, t, err));
  TRY(read_shape(o->shape != NULL ? o->shape : shape, t, err));
  TRY(read_ends(o, t, err));
  if (o->q != NULL || o->k != NULL || o->v != NULL) {
    TRY(read_files(o, t, err));
  } else {
    TRY(make_random(&t->q, t, t->heads, t->dim, 1, &seed, err));
    TRY(make_random(&t->k, t, t->heads, t->dim, 1 / sqrt((double)t->dim), &seed, err));
    TRY(make_random(&t->v, t, t->heads_v, t->dim_v, 1, &seed, err));
  }
  t->state_v = t->dim_v + luattn_spec_normalizes(t->spec);
  for (size_t i = 0; i < t->info.num_inputs; i++) TRY(read_input(o, t, (int)i, &seed, err));
  TRY(read_dout(o, t, &seed, err));
  return with_states ? make_states(t, &seed, err) : LUATTN_OK;
}

luattn_status linear_tensors_read(const luattn_spec *spec, const cli_options *o, const char *shape, bool with_states,
                                  linear_tensors *t, luattn_error *err) {
  *t = (linear_tensors){.spec = spec, .dtype = LUATTN_F32};
  luattn_spec_get_info(spec, &t->info);
  luattn_status status = linear_refuse_options(o, err);
  if (status == LUATTN_OK) status = read_all(o, shape, with_states, t, err);
  if (status != LUATTN_OK) linear_tensors_free(t);
  return status;
}

DLDataType linear_sums_type(const linear_tensors *t) {
  return dtype_dl(t->dtype == LUATTN_F64 ? LUATTN_F64 : LUATTN_F32);
}

luattn_status linear_results_new(linear_tensors *t, DLDataType rows, DLDataType sums, bool backward,
                                 luattn_error *err) {
  const int64_t state[] = {t->entries, t->heads_v, t->state_v, t->dim}, scalars = (int64_t)t->info.num_scalars;
  TRY(array_new(&t->o, rows, 4, t->v.shape, false, err));
  TRY(array_new(&t->final, sums, 4, state, false, err));
  for (int64_t i = 0, n = array_count(&t->o); i < n; i++) array_set(&t->o, i, 0); /* rows of no sequence stay so */
  if (!backward) return LUATTN_OK;
  TRY(array_new(&t->dq, rows, 4, t->q.shape, false, err));
  TRY(array_new(&t->dk, rows, 4, t->k.shape, false, err));
  TRY(array_new(&t->dv, rows, 4, t->v.shape, false, err));
  if (t->initial.storage != NULL) TRY(array_new(&t->dinitial, sums, 4, state, false, err));
  for (size_t i = 0; i < t->info.num_inputs; i++)
    if (t->info.inputs[i].grad)
      TRY(array_new(&t->input_grad[i], sums, (int)t->info.inputs[i].num_axes, t->input[i].shape, false, err));
  return scalars > 0 ? array_new(&t->scalar_grads, sums, 1, &scalars, false, err) : LUATTN_OK;
}

void linear_results_free(linear_tensors *t) {
  array *const owned[] = {&t->o, &t->final, &t->dq, &t->dk, &t->dv, &t->dinitial, &t->scalar_grads};
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) array_free(owned[i]);
  for (int i = 0; i < 12; i++) array_free(&t->input_grad[i]);
}

void linear_tensors_free(linear_tensors *t) {
  array *const owned[] = {&t->q, &t->k, &t->v, &t->dout, &t->ends, &t->initial, &t->dfinal};
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) array_free(owned[i]);
  for (int i = 0; i < 12; i++) array_free(&t->input[i]);
  linear_results_free(t);
}

/* Of an array without elements, too. */
static const DLTensor *tensor_of(array *a) {
  a->t.shape = a->shape, a->t.strides = a->stride;
  return &a->t;
}

static const DLTensor *given(array *a) { return a->storage != NULL ? tensor_of(a) : NULL; }

luattn_linear_args linear_tensors_args(linear_tensors *t) {
  const bool has_states = t->initial.storage != NULL || t->final.storage != NULL;
  for (size_t i = 0; i < t->info.num_inputs; i++)
    t->binding[i] = (luattn_input){t->info.inputs[i].name, tensor_of(&t->input[i]), given(&t->input_grad[i])};
  return (luattn_linear_args){.struct_size = sizeof(luattn_linear_args),
                              .q = tensor_of(&t->q),
                              .k = tensor_of(&t->k),
                              .v = tensor_of(&t->v),
                              .o = given(&t->o),
                              .dout = given(&t->dout),
                              .dq = given(&t->dq),
                              .dk = given(&t->dk),
                              .dv = given(&t->dv),
                              .inputs = t->binding,
                              .num_inputs = t->info.num_inputs,
                              .scalars = t->scalar,
                              .num_scalars = (size_t)t->num_scalars,
                              .scalar_grads = given(&t->scalar_grads),
                              .scale = t->scale,
                              .cu_seqlens = given(&t->ends),
                              .initial_state = given(&t->initial),
                              .final_state = given(&t->final),
                              .state_layout = has_states ? LUATTN_STATE_VK : 0,
                              .dfinal_state = given(&t->dfinal),
                              .dinitial_state = given(&t->dinitial)};
}

const char *linear_tensors_text(const linear_tensors *t, char text[PROBLEM_TEXT]) {
  if (t->ends.storage != NULL)
    snprintf(text, PROBLEM_TEXT, "%d sequences, T%d in all, H%d/%d K%d V%d", t->entries, t->tokens, t->heads,
             t->heads_v, t->dim, t->dim_v);
  else
    snprintf(text, PROBLEM_TEXT, "B%d T%d H%d/%d K%d V%d", t->batch, t->tokens, t->heads, t->heads_v, t->dim, t->dim_v);
  return text;
}
