/* convert_args.c: checks luattn_args and converts them for the CPU path. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "abi/kernel_facts.h"
#include "common/call/choices.h"
#include "common/call/input_dtype.h"
#include "common/call/overlap.h"
#include "gen/analysis/specs/large_scores.h"
#include "gen/analysis/specs/mod_rows.h"
#include "gen/cpu/cpu.h"

#define MAX_DIM 65536

/* Kernels for these tensors, or in this precision, compute in double: then scale and scalars may be any
 * doubles. */
static bool is_float64(const luattn_args *args, luattn_dtype precision) {
  return precision == LUATTN_F64 && (args->q == NULL || (args->q->dtype.code == kDLFloat && args->q->dtype.bits == 64));
}

static luattn_status check_args(const luattn_args *args, bool is_forward, const cpu_problem *p, luattn_error *err) {
  char wrong[200];
  if (choices_ok(args, is_forward, p->takes_doubles, wrong, sizeof wrong)) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "cpu: %s", wrong);
}

static luattn_status need_dim(const char *name, const char *axis, int64_t dim, luattn_error *err) {
  if (dim >= 1 && dim <= MAX_DIM) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "cpu: %s: %s is %lld, expected 1 to %d", name, axis, (long long)dim, MAX_DIM);
}

/* The axes of the spec's grid, whose extents q and k then give. */
static luattn_status open_grid(const luattn_args *args, cpu_problem *p, luattn_error *err) {
  const traced_spec *t = &p->spec->traced;
  p->q_side = (cpu_side){.length = "q_len", .axes = t->grid_axes > 1 ? t->grid_axes : 1, .name = t->grid_axis};
  p->kv_side = p->q_side;
  p->kv_side.length = "kv_len";
  for (int a = 0; a < LUATTN_MAX_AXES; a++) p->q_side.extent[a] = p->kv_side.extent[a] = -1;
  if (t->grid_axes <= 1 || args->batch == NULL) return LUATTN_OK;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "cpu: batch: is given, and the spec '%s' has a grid of %d axes, whose calls have no lengths of "
                     "a whole, offsets, packed sequences or pages; leave it NULL",
                     t->name, t->grid_axes);
}

/* Along a line, of the whole that the keys are a part of. */
static luattn_status check_least_extents(const cpu_problem *p, luattn_error *err) {
  const traced_spec *t = &p->spec->traced;
  for (int a = 0; a < t->grid_axes; a++) {
    int64_t extent = t->grid_axes > 1 ? p->kv_side.extent[a] : p->kv_len;
    for (int b = 0; b < p->batch && t->grid_axes == 1; b++) {
      const int64_t length = problem_length(p, LUATTN_AXIS_KV, b);
      extent = b == 0 || length < extent ? length : extent;
    }
    if (extent < t->least_extent[a])
      return luattn_fail(err, LUATTN_INVALID,
                         "cpu: k: kv_len.%s is %lld, and %s needs at least %d; give more places, or a smaller window",
                         t->grid_axis[a], (long long)extent, t->least_extent_of[a], t->least_extent[a]);
  }
  return LUATTN_OK;
}

static luattn_status open_qk(const luattn_args *args, bool shape_only, cpu_problem *p, luattn_error *err) {
  TRY(open_grid(args, p, err));
  cpu_view *q = &p->q_given, *k = &p->k_given;
  const view_rule q_rule = {
      .name = "q", .axes = CPU_Q_AXES, .ndim = 4, .shape = {-1, -1, -1, -1}, .shape_only = shape_only, Q_ROWS(p, 2)};
  TRY(view_open(&q_rule, args->q, q, err));
  TRY(need_dim("q", "head_dim", q->shape[3], err));
  const view_rule k_rule = {.name = "k",
                            .axes = CPU_K_AXES,
                            .ndim = 4,
                            .shape = {q->shape[0], -1, -1, q->shape[3]},
                            .shape_only = shape_only,
                            KV_ROWS(p, 2)};
  TRY(view_open(&k_rule, args->k, k, err));
  p->batch = (int)q->shape[0], p->heads = (int)q->shape[1], p->q_len = (int)q->shape[2], p->dim = (int)q->shape[3];
  p->heads_kv = (int)k->shape[1], p->kv_len = (int)k->shape[2];
  p->decides_in_double = is_float64(args, p->precision);
  const int64_t most = problem_most_len(p);
  if (p->q_len > most || p->kv_len > most)
    return luattn_fail(
        err, LUATTN_INVALID, "cpu: %s: has length %d, expected at most %lld%s", p->q_len > most ? "q" : "k",
        p->q_len > most ? p->q_len : p->kv_len, (long long)most,
        most < CPU_MAX_LEN ? ", where this spec's grid ends; shorten it, or give a larger grid in the spec" : "");
  if (p->heads < 1 || p->heads_kv < 1) {
    return luattn_fail(err, LUATTN_INVALID, "cpu: %s: has no heads, expected at least 1", p->heads < 1 ? "q" : "k");
  }
  if (p->heads % p->heads_kv != 0) {
    return luattn_fail(err, LUATTN_INVALID,
                       "cpu: k: its %d heads do not divide q's %d; heads must be a multiple of heads_kv", p->heads_kv,
                       p->heads);
  }
  p->group = p->heads / p->heads_kv;
  if (p->entries == 0) p->entries = p->batch;
  TRY(problem_open_batch(args, p, err));
  return check_least_extents(p, err);
}

static int64_t axis_size(const cpu_problem *p, int axis) {
  const bool of_keys = axis <= LUATTN_AXIS_KV_GRID;
  if (axis <= LUATTN_AXIS_Q_GRID)
    return of_keys ? p->kv_side.extent[LUATTN_AXIS_KV_GRID - axis] : p->q_side.extent[LUATTN_AXIS_Q_GRID - axis];
  switch (axis) {
    case LUATTN_AXIS_FREE:
      return -1;
    case LUATTN_AXIS_B:
      return p->entries;
    case LUATTN_AXIS_H:
      return p->heads;
    case LUATTN_AXIS_HKV:
      return p->heads_kv;
    case LUATTN_AXIS_Q:
      return p->q_len;
    case LUATTN_AXIS_KV:
      return p->kv_len;
    default:
      return axis; /* fixed */
  }
}

static const luattn_input *find_input(const luattn_args *args, const char *name) {
  for (size_t i = 0; i < args->num_inputs; i++) {
    if (args->inputs[i].name != NULL && strcmp(args->inputs[i].name, name) == 0) return &args->inputs[i];
  }
  return NULL;
}

static luattn_status read_grad(const luattn_input_info *info, const luattn_input *given, const cpu_view *input,
                               cpu_view *out, luattn_error *err) {
  char label[LUATTN_NAME_SIZE + 32];
  if (given->grad == NULL || given->grad->data == NULL) return LUATTN_OK;
  if (!info->grad) {
    return luattn_fail(err, LUATTN_INVALID,
                       "cpu: input '%s': its gradient is asked for, but the spec does not mark it; leave "
                       "grad NULL, or write "
                       "grad = true in the spec",
                       info->name);
  }
  snprintf(label, sizeof label, "grad of input '%s'", info->name);
  view_rule rule = {.name = label, .axes = "as the input", .ndim = input->ndim, .is_output = true};
  memcpy(rule.shape, input->shape, sizeof input->shape);
  return view_open(&rule, given->grad, out, err);
}

/* Formats "b, free", as the spec writes axes. */
static void axes_text(const traced_spec *t, int input, char *out, size_t size) {
  const luattn_input_info *info = &t->input[input];
  static const char *const names[] = {[-LUATTN_AXIS_FREE] = "free", [-LUATTN_AXIS_B] = "b", [-LUATTN_AXIS_H] = "h",
                                      [-LUATTN_AXIS_HKV] = "hkv",   [-LUATTN_AXIS_Q] = "q", [-LUATTN_AXIS_KV] = "kv"};
  size_t used = 0;
  out[0] = 0;
  for (uint32_t i = 0; i < info->num_axes && used < size; i++) {
    const char *comma = i > 0 ? ", " : "";
    const bool of_grid = info->axis[i] <= LUATTN_AXIS_Q_GRID;
    const int n = info->axis[i] > 0 ? snprintf(out + used, size - used, "%s%d", comma, (int)info->axis[i])
                                    : snprintf(out + used, size - used, "%s%s", comma,
                                               of_grid ? t->axis_name[4 * input + (int)i] : names[-info->axis[i]]);
    used += (size_t)n;
  }
}

static luattn_status read_input(const traced_spec *t, int i, const luattn_args *args, cpu_problem *p,
                                luattn_error *err) {
  const luattn_input_info *info = &t->input[i];
  const luattn_input *given = find_input(args, info->name);
  char label[LUATTN_NAME_SIZE + 16], axes[64];
  if (given == NULL) {
    return luattn_fail(err, LUATTN_INVALID,
                       "cpu: input '%s': is missing, and the spec '%s' reads it; add it to args.inputs", info->name,
                       t->name);
  }
  snprintf(label, sizeof label, "input '%s'", info->name);
  axes_text(t, i, axes, sizeof axes);
  view_rule rule = {.name = label, .axes = axes, .ndim = (int)info->num_axes};
  static const view_kind kinds[INPUT_DTYPES] = {
      [LUATTN_INPUT_I32] = VIEW_INT,
      [LUATTN_INPUT_BOOL] = VIEW_BOOL,
      [LUATTN_INPUT_I64] = VIEW_I64,
      [LUATTN_INPUT_I16] = VIEW_I16,
      [LUATTN_INPUT_U8] = VIEW_U8}; /* others, any among them, are VIEW_REAL */
  rule.kind = kinds[info->dtype];
  for (int j = 0; j < rule.ndim; j++) {
    const bool broadcasts = info->axis[j] == LUATTN_AXIS_B || info->axis[j] == LUATTN_AXIS_H;
    const DLTensor *tensor = given->tensor;
    const bool is_one = tensor != NULL && tensor->ndim == rule.ndim && tensor->shape != NULL && tensor->shape[j] == 1;
    rule.shape[j] = broadcasts && is_one ? 1 : axis_size(p, info->axis[j]);
  }
  TRY(view_open(&rule, given->tensor, &p->input[i], err));
  if (rule.ndim == 0) p->input[i].shape[0] = 1; /* it is read at index 0 */
  if (p->input[i].code == kDLFloat && p->input[i].bits == 64) p->double_inputs |= UINT32_C(1) << i;
  for (int j = 0; j < rule.ndim; j++) {
    if (info->axis[j] == LUATTN_AXIS_FREE && p->input[i].shape[j] == 0) {
      return luattn_fail(err, LUATTN_INVALID, "cpu: %s: axis %d is empty; a gather needs at least 1 element", label, j);
    }
  }
  return read_grad(info, given, &p->input[i], &p->input_grad[i], err);
}

static luattn_status open_input_tangent(const luattn_input *given, bool is_forward, cpu_problem *p, luattn_error *err) {
  const traced_spec *t = &p->spec->traced;
  char label[FAIL_NAME_SIZE + 32], shown[FAIL_NAME_SIZE];
  int i = 0;
  while (i < t->num_inputs && (given->name == NULL || strcmp(given->name, t->input[i].name) != 0)) i++;
  snprintf(label, sizeof label, "tangent of input '%s'", given->name != NULL ? fail_name(given->name, shown) : "NULL");
  if (i == t->num_inputs)
    return luattn_fail(err, LUATTN_INVALID, "cpu: %s: the spec '%s' declares no input of that name; take it out", label,
                       t->name);
  if (p->input[i].kind != VIEW_REAL)
    return luattn_fail(err, LUATTN_INVALID,
                       "cpu: %s: the input holds no real numbers, which alone have tangents; "
                       "take it out",
                       label);
  if (p->input_tangent[i].data != NULL) return luattn_fail(err, LUATTN_INVALID, "cpu: %s: was given twice", label);
  if (given->grad != NULL && is_forward)
    return luattn_fail(err, LUATTN_INVALID, "cpu: %s: has a grad, which tangents have not; leave it NULL", label);
  view_rule rule = {.name = label, .axes = "as the input", .ndim = t->input[i].num_axes == 0 ? 0 : p->input[i].ndim};
  memcpy(rule.shape, p->input[i].shape, sizeof p->input[i].shape);
  if (given->tensor != NULL || is_forward) TRY(view_open(&rule, given->tensor, &p->input_tangent[i], err));
  if (rule.ndim == 0) p->input_tangent[i].shape[0] = 1;
  if (given->grad == NULL) return LUATTN_OK;
  if (!t->input[i].grad)
    return luattn_fail(
        err, LUATTN_INVALID,
        "cpu: %s: its grad is asked for, and the spec does not mark the input; leave grad NULL, or write "
        "grad = true in the spec",
        label);
  rule.is_output = true;
  return view_open(&rule, given->grad, &p->input_tangent_grad[i], err);
}

static luattn_status take_scalar_tangent(const luattn_scalar *given, uint32_t *taken, cpu_problem *p,
                                         luattn_error *err) {
  const traced_spec *t = &p->spec->traced;
  char shown[FAIL_NAME_SIZE];
  const char *name = given->name != NULL ? fail_name(given->name, shown) : "NULL";
  int i = 0;
  while (i < t->num_scalars && (given->name == NULL || strcmp(given->name, t->scalar_name[i]) != 0)) i++;
  if (i == t->num_scalars)
    return luattn_fail(err, LUATTN_INVALID,
                       "cpu: tangent of scalar '%s': the spec '%s' declares no scalar of that name; take it out", name,
                       t->name);
  if (*taken >> i & 1) return luattn_fail(err, LUATTN_INVALID, "cpu: tangent of scalar '%s': was given twice", name);
  if (!isfinite(given->value))
    return luattn_fail(err, LUATTN_INVALID, "cpu: tangent of scalar '%s': is not finite, expected a number", name);
  *taken |= UINT32_C(1) << i;
  p->scalar_tangent[i] = given->value;
  return LUATTN_OK;
}

luattn_status problem_open_tangents(const luattn_tangents *given, bool is_forward, cpu_problem *p, luattn_error *err) {
  uint32_t taken = 0;
  if ((given->num_inputs > 0 && given->inputs == NULL) || (given->num_scalars > 0 && given->scalars == NULL))
    return luattn_fail(err, LUATTN_INVALID, "cpu: tangents: %s is NULL, but num_%s is %zu",
                       given->num_inputs > 0 && given->inputs == NULL ? "inputs" : "scalars",
                       given->num_inputs > 0 && given->inputs == NULL ? "inputs" : "scalars",
                       given->num_inputs > 0 && given->inputs == NULL ? given->num_inputs : given->num_scalars);
  for (size_t i = 0; i < given->num_inputs; i++) TRY(open_input_tangent(&given->inputs[i], is_forward, p, err));
  for (size_t i = 0; i < given->num_scalars; i++) TRY(take_scalar_tangent(&given->scalars[i], &taken, p, err));
  p->scalar_tangents = taken;
  return LUATTN_OK;
}

void cpu_warn_of_ints(const luattn_spec *spec, int i, int_range_hooks hooks, const luattn_args *args,
                      luattn_error *err) {
  const char *name = spec->traced.input[i].name;
  const luattn_input *given = find_input(args, name);
  char warning[INT_RANGE_TEXT];
  if (err == NULL || err->message[0] != 0 || given == NULL) return; /* the first is enough */
  if (int_range_warning(spec, i, hooks, given->tensor, warning)) luattn_warn(err, "cpu: input '%s': %s", name, warning);
}

static luattn_status check_names(const traced_spec *t, const luattn_args *args, luattn_error *err) {
  if (args->num_inputs > 0 && args->inputs == NULL) {
    return luattn_fail(err, LUATTN_INVALID, "cpu: inputs: is NULL, but num_inputs is %zu", args->num_inputs);
  }
  for (size_t i = 0; i < args->num_inputs; i++) {
    char shown[FAIL_NAME_SIZE];
    bool known = false;
    if (args->inputs[i].name == NULL) return luattn_fail(err, LUATTN_INVALID, "cpu: inputs: number %zu has no name", i);
    for (int j = 0; j < t->num_inputs && !known; j++) known = strcmp(args->inputs[i].name, t->input[j].name) == 0;
    if (!known) {
      return luattn_fail(err, LUATTN_INVALID,
                         "cpu: input '%s': the spec '%s' declares no input of that name; take it out",
                         fail_name(args->inputs[i].name, shown), t->name);
    }
    for (size_t j = 0; j < i; j++) {
      if (strcmp(args->inputs[i].name, args->inputs[j].name) == 0)
        return luattn_fail(err, LUATTN_INVALID, "cpu: input '%s': was given twice", args->inputs[i].name);
    }
  }
  return LUATTN_OK;
}

static luattn_status read_scalars(const traced_spec *t, const luattn_args *args, cpu_problem *p, luattn_error *err) {
  bool given[32] = {false};
  for (int i = 0; i < t->num_scalars; i++) p->scalar[i] = t->scalar_default[i];
  if (args->num_scalars > 0 && args->scalars == NULL) {
    return luattn_fail(err, LUATTN_INVALID, "cpu: scalars: is NULL, but num_scalars is %zu", args->num_scalars);
  }
  for (size_t i = 0; i < args->num_scalars; i++) {
    const luattn_scalar *s = &args->scalars[i];
    char shown[FAIL_NAME_SIZE];
    int at = 0;
    while (at < t->num_scalars && (s->name == NULL || strcmp(s->name, t->scalar_name[at]) != 0)) at++;
    if (at == t->num_scalars) {
      return luattn_fail(err, LUATTN_INVALID,
                         "cpu: scalar '%s': the spec '%s' declares no scalar of that name; take it out",
                         s->name != NULL ? fail_name(s->name, shown) : "NULL", t->name);
    }
    for (size_t j = 0; j < i; j++) {
      if (strcmp(s->name, args->scalars[j].name) == 0)
        return luattn_fail(err, LUATTN_INVALID, "cpu: scalar '%s': was given twice", s->name);
    }
    p->scalar[at] = s->value;
    given[at] = true;
  }
  for (int i = 0; i < t->num_scalars; i++) {
    char wrong[300];
    if (!choices_scalar_ok(t->scalar_name[i], p->scalar[i], &t->scalar_range[i], !given[i], p->takes_doubles, wrong,
                           sizeof wrong))
      return luattn_fail(err, LUATTN_INVALID, "cpu: %s", wrong);
  }
  p->scale = args->scale != 0 ? args->scale : 1.0 / sqrt((double)p->dim);
  return LUATTN_OK;
}

luattn_status refuse_lse(const luattn_spec *spec, const char *name, luattn_error *err) {
  return luattn_fail(err, LUATTN_INVALID, "cpu: %s: online_func '%s' of the spec '%s' has no lse; leave it NULL", name,
                     spec->traced.online.name, spec->traced.name);
}

/* The graph is cloned before anything is built in it: the spec's own is shared by threads. From then on p->spec is a
 * copy with that graph, for the head dims of the tensors. */
static luattn_status open_mask(cpu_problem *p, bool is_mask_alone, luattn_error *err) {
  luattn_spec *own = arena_new(p->a, sizeof *own);
  p->g = ir_clone(p->a, p->spec->traced.g);
  if (own == NULL || p->g == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  *own = *p->spec;
  own->traced.g = p->g;
  if (p->keys_modified) own->traced.key_mod = own->traced.value_mod = IR_NONE;
  if (is_mask_alone) own->traced.query_mod = own->traced.key_mod = own->traced.value_mod = IR_NONE;
  p->spec = own;
  TRY(mod_rows_resolve(p->a, own, p->dim, p->dim_v > 0 ? p->dim_v : p->dim, err));
  if (p->large_scores) TRY(large_scores_apply(p->a, own, err));
  return mask_analyse(p->a, &own->traced, &p->mask, err);
}

/* Allocates a tensor as doubles, and opens its input mod. */
static luattn_status make_room(cpu_problem *p, const cpu_view *from, ir_ref mod, const row_tables *rows,
                               cpu_program *program, double **out, luattn_error *err) {
  const size_t count = (size_t)from->shape[0] * (size_t)from->shape[1] * (size_t)from->shape[2];
  *out = arena_raw(p->a, count, (size_t)from->shape[3] * sizeof **out);
  if (*out == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  TRY(program_open(p, &mod, mod != IR_NONE, program, err));
  program->rows = rows;
  return LUATTN_OK;
}

luattn_status problem_open(const cpu_call *given, bool is_forward, arena *a, cpu_problem *p, luattn_error *err) {
  const luattn_spec *spec = given->spec;
  const luattn_args *args = given->args;
  const luattn_dtype precision = given->precision;
  const traced_spec *t = &spec->traced;
  *p = (cpu_problem){.a = a,
                     .spec = spec,
                     .precision = precision,
                     .coarse = given->coarse,
                     .merges = given->merges,
                     .first_entry = given->first_entry,
                     .entries = given->entries};
  if ((unsigned)precision >= KERNEL_DTYPES)
    return luattn_fail(err, LUATTN_INVALID, "cpu: precision: is %d, expected a luattn_dtype", (int)precision);
  p->takes_doubles = is_float64(args, precision);
  TRY(check_args(args, is_forward, p, err));
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks)                                         \
  if (args->name != 0 && args->name != 1)                                                                  \
    return luattn_fail(err, LUATTN_INVALID, "cpu: " #name ": is %d, expected 0 or 1", args->name);         \
  if ((lacks)[0] != 0 && args->name != 0 && !is_forward)                                                   \
    return luattn_fail(err, LUATTN_INVALID, "cpu: " #name ": is 1, and there is no backward over " lacks); \
  p->name = args->name != 0;
#include "abi/kernel_facts.def"
  if (is_forward && args->append != NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "cpu: append: is given, and only an engine's forward over keys in pages or a cache writes new "
                       "rows; leave it NULL");
  TRY(open_qk(args, false, p, err));
  const view_rule v_rule = {
      .name = "v", .axes = CPU_V_AXES, .ndim = 4, .shape = {p->batch, p->heads_kv, p->kv_len, -1}, KV_ROWS(p, 2)};
  TRY(view_open(&v_rule, args->v, &p->v_given, err));
  TRY(need_dim("v", "head_dim_v", p->v_given.shape[3], err));
  p->dim_v = (int)p->v_given.shape[3];
  TRY(check_names(t, args, err));
  for (int i = 0; i < t->num_inputs; i++) {
    TRY(read_input(t, i, args, p, err));
    if (given->entries == 0)
      cpu_warn_of_ints(spec, i, INT_RANGE_SPEC, args, err); /* else the call of all sequences does */
  }
  TRY(read_scalars(t, args, p, err));
  TRY(problem_open_random(args, p, err));
  TRY(open_mask(p, false, err));
  t = &p->spec->traced;
  TRY(make_room(p, &p->q_given, t->query_mod, t->rows[0], &p->query_mod, &p->q, err));
  TRY(make_room(p, &p->k_given, t->key_mod, t->rows[1], &p->key_mod, &p->k, err));
  return make_room(p, &p->v_given, t->value_mod, t->rows[2], &p->value_mod, &p->v, err);
}

luattn_status problem_apart(const cpu_problem *p, const luattn_args *args, bool is_forward, luattn_error *err) {
  luattn_args used = *args;
  overlap_pair pair;
  char message[400];
  used.workspace = NULL;
  if (p->spec->traced.online.lse < 0) used.lse = used.dlse = NULL;
  if (p->spec->derived.num_saved == 0) used.saved = NULL;
  if (!overlap_find(&used, is_forward, &pair)) return LUATTN_OK;
  overlap_text(&pair, message, sizeof message);
  return luattn_fail(err, LUATTN_INVALID, "cpu: %s", message);
}

/* Finds the inputs that the expression under `root` loads. Arguments come before their users. */
static luattn_status find_loads(const cpu_problem *p, ir_ref root, bool *loads, luattn_error *err) {
  bool *used = arena_array(p->a, ir_count(p->g), sizeof *used);
  if (used == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  used[root] = true;
  for (ir_ref r = root; r > IR_NONE; r--) {
    const ir_node *n = ir_get(p->g, r);
    for (int i = 0; used[r] && i < n->nargs; i++) used[n->arg[i]] = true;
    if (used[r] && n->op == IR_LOAD) loads[n->imm.integer] = true;
  }
  return LUATTN_OK;
}

luattn_status problem_open_mask(const luattn_spec *spec, const luattn_args *args, arena *a, cpu_problem *p,
                                luattn_error *err) {
  const traced_spec *t = &spec->traced;
  bool loads[12] = {false};
  *p = (cpu_problem){.a = a, .spec = spec, .precision = LUATTN_F64};
  p->takes_doubles = true; /* a mask is the same in every type */
  TRY(check_args(args, true, p, err));
  TRY(open_qk(args, true, p, err));
  TRY(check_names(t, args, err));
  TRY(read_scalars(t, args, p, err));
  TRY(open_mask(p, true, err));
  t = &p->spec->traced;
  if (t->block_mask != IR_NONE && ir_uses_op(t->g, t->block_mask, IR_RANDOM)) TRY(problem_open_random(args, p, err));
  if (t->block_mask != IR_NONE) TRY(find_loads(p, t->block_mask, loads, err));
  for (int i = 0; i < t->num_inputs; i++) {
    if (!loads[i]) continue;
    TRY(read_input(t, i, args, p, err));
    cpu_warn_of_ints(spec, i, INT_RANGE_MASK, args, err);
  }
  return LUATTN_OK;
}

luattn_status problem_open_rows(const luattn_spec *spec, const luattn_args *args, arena *a, cpu_problem *p,
                                luattn_error *err) {
  bool loads[12] = {false};
  *p = (cpu_problem){.a = a, .spec = spec, .precision = LUATTN_F64};
  p->takes_doubles = true; /* the runtime has checked scalars for the kernel's type */
  TRY(open_qk(args, true, p, err));
  p->dim_v = (int)args->v->shape[3];
  TRY(check_names(&spec->traced, args, err));
  TRY(read_scalars(&spec->traced, args, p, err));
  TRY(open_mask(p, false, err));
  const traced_spec *t = &p->spec->traced;
  const ir_ref mod[] = {t->key_mod, t->value_mod};
  cpu_program *const program[] = {&p->key_mod, &p->value_mod};
  for (int i = 0; i < 2; i++) {
    if (mod[i] == IR_NONE) continue;
    TRY(find_loads(p, mod[i], loads, err));
    TRY(program_open(p, &mod[i], 1, program[i], err));
    program[i]->rows = t->rows[1 + i];
  }
  for (int i = 0; i < t->num_inputs; i++) {
    if (!loads[i]) continue;
    TRY(read_input(t, i, args, p, err));
    cpu_warn_of_ints(spec, i, INT_RANGE_SPEC, args, err);
  }
  return LUATTN_OK;
}
