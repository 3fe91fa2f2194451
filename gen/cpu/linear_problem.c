#include "gen/cpu/linear_problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/call/choices.h"
#include "common/call/input_dtype.h"
#include "common/call/overlap.h"
#include "common/call/states_between.h"

enum { MAX_DIM = 4096 };

static luattn_status no_memory(luattn_error *err) { return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory"); }

/* ---- tensors of tokens ---- */

#define QK_AXES "batch, tokens, heads, head_dim"
#define V_AXES "batch, tokens, heads_v, head_dim_v"

static luattn_status need(const char *name, const char *axis, int64_t value, int64_t most, luattn_error *err) {
  if (value >= 1 && value <= most) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "cpu: %s: %s is %lld, expected 1 to %lld", name, axis, (long long)value,
                     (long long)most);
}

static luattn_status open_tokens(linear_problem *p, luattn_error *err) {
  const luattn_linear_args *args = p->args;
  const view_rule q = {.name = "q", .axes = QK_AXES, .ndim = 4, .shape = {-1, -1, -1, -1}};
  TRY(view_open(&q, args->q, &p->q, err));
  TRY(need("q", "heads", p->q.shape[2], INT32_MAX, err));
  TRY(need("q", "head_dim", p->q.shape[3], MAX_DIM, err));
  const int64_t batch = p->q.shape[0];
  p->rows = p->q.shape[1], p->heads = (int)p->q.shape[2], p->k_dim = (int)p->q.shape[3];
  if (p->rows > CPU_MAX_LEN)
    return luattn_fail(err, LUATTN_INVALID, "cpu: q: has %lld tokens, expected at most %d", (long long)p->rows,
                       CPU_MAX_LEN);
  const view_rule k = {.name = "k", .axes = QK_AXES, .ndim = 4, .shape = {batch, p->rows, p->heads, p->k_dim}};
  TRY(view_open(&k, args->k, &p->k, err));
  const view_rule v = {.name = "v", .axes = V_AXES, .ndim = 4, .shape = {batch, p->rows, -1, -1}};
  TRY(view_open(&v, args->v, &p->v, err));
  TRY(need("v", "heads_v", p->v.shape[2], INT32_MAX, err));
  TRY(need("v", "head_dim_v", p->v.shape[3], MAX_DIM, err));
  p->heads_v = (int)p->v.shape[2], p->v_dim = (int)p->v.shape[3];
  if (p->heads_v % p->heads != 0)
    return luattn_fail(
        err, LUATTN_INVALID,
        "cpu: v: its %d heads are no multiple of q's %d; give each head of q the same number of value heads",
        p->heads_v, p->heads);
  p->group = p->heads_v / p->heads;
  p->state_v = p->v_dim + p->derived->class.normalizes;
  p->entries = (int)batch;
  return LUATTN_OK;
}

/* A tensor of the same shape as another one; data NULL where it is not given. */
static luattn_status open_like(const char *name, const char *axes, const cpu_view *like, const DLTensor *t,
                               bool is_output, cpu_view *out, luattn_error *err) {
  *out = (cpu_view){0};
  if (t == NULL) return LUATTN_OK;
  view_rule rule = {.name = name, .axes = axes, .ndim = 4, .is_output = is_output};
  for (int i = 0; i < 4; i++) rule.shape[i] = like->shape[i];
  return view_open(&rule, t, out, err);
}

static luattn_status open_results(linear_problem *p, bool is_forward, luattn_error *err) {
  const luattn_linear_args *a = p->args;
  if (is_forward) return open_like("o", V_AXES, &p->v, a->o, true, &p->o, err);
  TRY(open_like("dout", V_AXES, &p->v, a->dout, false, &p->dout, err));
  TRY(open_like("dq", QK_AXES, &p->q, a->dq, true, &p->dq, err));
  TRY(open_like("dk", QK_AXES, &p->k, a->dk, true, &p->dk, err));
  return open_like("dv", V_AXES, &p->v, a->dv, true, &p->dv, err);
}

/* ---- entries ---- */

/* Reads a list of integers, of `count` if that is not -1. */
static luattn_status read_list(linear_problem *p, const char *name, const char *axes, const DLTensor *t, int64_t count,
                               int64_t **out, int64_t *n, luattn_error *err) {
  cpu_view view;
  const bool wide = t->dtype.code == kDLInt && t->dtype.bits == 64;
  const view_rule rule = {.name = name, .axes = axes, .ndim = 1, .shape = {count}, .kind = wide ? VIEW_I64 : VIEW_INT};
  TRY(view_open(&rule, t, &view, err));
  *n = view.shape[0];
  *out = arena_array(p->a, (size_t)*n + 1, sizeof **out);
  if (*out == NULL) return no_memory(err);
  for (int64_t i = 0; i < *n; i++) (*out)[i] = view_get_wide(&view, &i);
  return LUATTN_OK;
}

static luattn_status open_entries(linear_problem *p, luattn_error *err) {
  const DLTensor *cu = p->args->cu_seqlens;
  int64_t n;
  p->most = p->entries > 0 ? p->rows : 0;
  if (cu == NULL) return LUATTN_OK;
  if (p->entries != 1)
    return luattn_fail(err, LUATTN_INVALID,
                       "cpu: cu_seqlens: is given, and q has batch %d; packed sequences have batch 1", p->entries);
  TRY(read_list(p, "cu_seqlens", "entries + 1", cu, -1, &p->starts, &n, err));
  if (n < 1 || n > INT32_MAX)
    return luattn_fail(err, LUATTN_INVALID, "cpu: cu_seqlens: has %lld numbers, expected entries + 1", (long long)n);
  p->entries = (int)n - 1;
  p->most = 0;
  for (int64_t i = 0; i < n; i++) {
    const int64_t least = i > 0 ? p->starts[i - 1] : 0;
    if (p->starts[i] < least)
      return luattn_fail(err, LUATTN_INVALID,
                         "cpu: cu_seqlens: number %lld is %lld, expected at least %lld; it must not fall", (long long)i,
                         (long long)p->starts[i], (long long)least);
    if (p->starts[i] > p->rows)
      return luattn_fail(err, LUATTN_INVALID, "cpu: cu_seqlens: number %lld is %lld, and q has %lld rows", (long long)i,
                         (long long)p->starts[i], (long long)p->rows);
    if (i > 0 && p->starts[i] - least > p->most) p->most = p->starts[i] - least;
  }
  return LUATTN_OK;
}

/* ---- states ---- */

static luattn_status check_layout(linear_problem *p, const char *name, luattn_error *err) {
  const int layout = p->args->state_layout;
  p->kv_layout = layout == LUATTN_STATE_KV;
  if (layout == LUATTN_STATE_VK || layout == LUATTN_STATE_KV) return LUATTN_OK;
  return luattn_fail(
      err, LUATTN_INVALID,
      "cpu: state_layout: is %d, and %s is given; say LUATTN_STATE_VK for [.., head_dim_v, head_dim], or "
      "LUATTN_STATE_KV",
      layout, name);
}

static luattn_status open_state(linear_problem *p, const char *name, const DLTensor *t, bool is_output, int64_t *rows,
                                cpu_view *out, luattn_error *err) {
  *out = (cpu_view){0};
  if (t == NULL) return LUATTN_OK;
  TRY(check_layout(p, name, err));
  const char *axes = p->kv_layout ? "rows, heads_v, head_dim, head_dim_v" : "rows, heads_v, head_dim_v, head_dim";
  view_rule rule = {.name = name, .axes = axes, .ndim = 4, .is_output = is_output};
  rule.shape[0] = *rows, rule.shape[1] = p->heads_v;
  rule.shape[2] = p->kv_layout ? p->k_dim : p->state_v;
  rule.shape[3] = p->kv_layout ? p->state_v : p->k_dim;
  TRY(view_open(&rule, t, out, err));
  *rows = out->shape[0];
  return LUATTN_OK;
}

static luattn_status open_between(linear_problem *p, luattn_error *err) {
  char wrong[300];
  states_between b;
  if (p->args->intermediate_states == NULL) return LUATTN_OK;
  if (!states_between_open(p->args, p->rows, p->entries, &b, wrong, sizeof wrong))
    return luattn_fail(err, LUATTN_INVALID, "cpu: %s", wrong);
  p->every = b.every, p->between_count = b.count;
  return open_state(p, "intermediate_states", &b.rows, true, &b.shape[0], &p->between, err);
}

static luattn_status open_states(linear_problem *p, bool is_forward, luattn_error *err) {
  const luattn_linear_args *a = p->args;
  int64_t rows = a->state_indices != NULL ? -1 : p->entries;
  TRY(open_state(p, "initial_state", a->initial_state, false, &rows, &p->first, err));
  if (is_forward) TRY(open_state(p, "final_state", a->final_state, true, &rows, &p->last, err));
  if (is_forward) return open_between(p, err);
  if (a->final_state != NULL && a->initial_state != NULL && a->final_state->data == a->initial_state->data &&
      a->final_state->byte_offset == a->initial_state->byte_offset)
    return luattn_fail(err, LUATTN_INVALID,
                       "cpu: initial_state: is final_state, which forward has updated in place, and backward needs the "
                       "initial state as it was; give forward a final_state of its own");
  TRY(open_state(p, "dfinal_state", a->dfinal_state, false, &rows, &p->dlast, err));
  return open_state(p, "dinitial_state", a->dinitial_state, true, &rows, &p->dfirst, err);
}

static int by_row(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Two entries that write one row would leave that of either. */
static luattn_status check_rows(const linear_problem *p, luattn_error *err) {
  int64_t *sorted = arena_array(p->a, (size_t)p->entries + 1, sizeof *sorted);
  if (sorted == NULL) return no_memory(err);
  memcpy(sorted, p->state_of, (size_t)p->entries * sizeof *sorted);
  qsort(sorted, (size_t)p->entries, sizeof *sorted, by_row);
  for (int i = 1; i < p->entries; i++)
    if (sorted[i] >= 0 && sorted[i] == sorted[i - 1])
      return luattn_fail(
          err, LUATTN_INVALID,
          "cpu: state_indices: two entries have row %lld, whose state is written; give each entry a row of "
          "its own",
          (long long)sorted[i]);
  return LUATTN_OK;
}

static luattn_status open_indices(linear_problem *p, luattn_error *err) {
  const DLTensor *t = p->args->state_indices;
  const cpu_view *states[] = {&p->first, &p->last, &p->dfirst, &p->dlast};
  int64_t rows = INT64_MAX, n;
  if (t == NULL) return LUATTN_OK;
  for (size_t i = 0; i < 4; i++)
    if (states[i]->ndim > 0 && states[i]->shape[0] < rows) rows = states[i]->shape[0];
  if (rows == INT64_MAX)
    return luattn_fail(err, LUATTN_INVALID, "cpu: state_indices: is given, and there is no state; leave it NULL");
  TRY(read_list(p, "state_indices", "entries", t, p->entries, &p->state_of, &n, err));
  for (int64_t i = 0; i < n; i++)
    if (p->state_of[i] < -1 || p->state_of[i] >= rows)
      return luattn_fail(
          err, LUATTN_INVALID,
          "cpu: state_indices: number %lld is %lld, and the pool has %lld rows; expected -1 for no state, or "
          "a row",
          (long long)i, (long long)p->state_of[i], (long long)rows);
  return p->last.ndim > 0 || p->dfirst.ndim > 0 ? check_rows(p, err) : LUATTN_OK;
}

/* ---- inputs and scalars ---- */

static const luattn_input *find_input(const luattn_linear_args *args, const char *name) {
  for (size_t i = 0; i < args->num_inputs; i++)
    if (args->inputs[i].name != NULL && strcmp(args->inputs[i].name, name) == 0) return &args->inputs[i];
  return NULL;
}

/* The size of an axis; *also: another one that it may have, 1 where it broadcasts. */
static int64_t axis_size(const linear_problem *p, const luattn_input_info *info, int j, int64_t *also) {
  bool has_tokens = false;
  for (uint32_t i = 0; i < info->num_axes; i++) has_tokens |= info->axis[i] == LUATTN_AXIS_T;
  *also = info->axis[j] == LUATTN_AXIS_B || info->axis[j] == LUATTN_AXIS_H || info->axis[j] == LUATTN_AXIS_HV ? 1 : -1;
  switch (info->axis[j]) {
    case LUATTN_AXIS_B:
      return p->starts != NULL && has_tokens ? 1 : p->entries;
    case LUATTN_AXIS_T:
      return p->rows;
    case LUATTN_AXIS_H:
      return p->heads;
    case LUATTN_AXIS_HV:
      return p->heads_v;
    case LUATTN_AXIS_D:
      return p->k_dim;
    case LUATTN_AXIS_DV:
      return p->v_dim;
    default:
      return info->axis[j] == LUATTN_AXIS_FREE ? -1 : info->axis[j];
  }
}

static luattn_status open_grad(linear_problem *p, int i, const luattn_input *given, luattn_error *err) {
  const luattn_input_info *info = &p->spec->traced.input[i];
  char label[LUATTN_NAME_SIZE + 32];
  if (given->grad == NULL || given->grad->data == NULL) return LUATTN_OK;
  if (!info->grad)
    return luattn_fail(err, LUATTN_INVALID,
                       "cpu: input '%s': its gradient is asked for, but the spec does not mark it; leave grad NULL, or "
                       "write grad = true in the spec",
                       info->name);
  snprintf(label, sizeof label, "grad of input '%s'", info->name);
  view_rule rule = {.name = label, .axes = "as the input", .ndim = (int)info->num_axes, .is_output = true};
  memcpy(rule.shape, p->input[i].shape, sizeof p->input[i].shape);
  return view_open(&rule, given->grad, &p->input_grad[i], err);
}

static luattn_status open_input(linear_problem *p, int i, bool is_forward, luattn_error *err) {
  static const view_kind kinds[INPUT_DTYPES] = {[LUATTN_INPUT_I32] = VIEW_INT,
                                                [LUATTN_INPUT_BOOL] = VIEW_BOOL,
                                                [LUATTN_INPUT_I64] = VIEW_I64,
                                                [LUATTN_INPUT_I16] = VIEW_I16,
                                                [LUATTN_INPUT_U8] = VIEW_U8};
  const traced_spec *t = &p->spec->traced;
  const luattn_input_info *info = &t->input[i];
  const luattn_input *given = find_input(p->args, info->name);
  char label[LUATTN_NAME_SIZE + 16], axes[128] = "";
  if (given == NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "cpu: input '%s': is missing, and the spec '%s' reads it; add it to args.inputs", info->name,
                       t->name);
  snprintf(label, sizeof label, "input '%s'", info->name);
  view_rule rule = {.name = label, .axes = axes, .ndim = (int)info->num_axes, .kind = kinds[info->dtype]};
  const DLTensor *tensor = given->tensor;
  const bool has_shape = tensor != NULL && tensor->ndim == rule.ndim && tensor->shape != NULL;
  for (int j = 0; j < rule.ndim; j++) {
    int64_t also;
    const size_t used = strlen(axes);
    snprintf(axes + used, sizeof axes - used, "%s%s", j > 0 ? ", " : "", t->axis_name[4 * i + j]);
    rule.shape[j] = axis_size(p, info, j, &also);
    if (has_shape && tensor->shape[j] == also) rule.shape[j] = also;
  }
  TRY(view_open(&rule, tensor, &p->input[i], err));
  if (rule.ndim == 0) p->input[i].shape[0] = 1; /* it is read at index 0 */
  if (p->input[i].code == kDLFloat && p->input[i].bits == 64) p->double_inputs |= UINT32_C(1) << i;
  for (int j = 0; j < rule.ndim; j++)
    if (info->axis[j] == LUATTN_AXIS_FREE && p->input[i].shape[j] == 0)
      return luattn_fail(err, LUATTN_INVALID, "cpu: %s: axis %d is empty; a gather needs at least 1 element", label, j);
  return is_forward ? LUATTN_OK : open_grad(p, i, given, err);
}

static luattn_status check_names(const linear_problem *p, luattn_error *err) {
  const traced_spec *t = &p->spec->traced;
  const luattn_linear_args *a = p->args;
  char shown[FAIL_NAME_SIZE];
  if (a->num_inputs > 0 && a->inputs == NULL)
    return luattn_fail(err, LUATTN_INVALID, "cpu: inputs: is NULL, but num_inputs is %zu", a->num_inputs);
  for (size_t i = 0; i < a->num_inputs; i++) {
    const char *name = a->inputs[i].name;
    bool known = false;
    if (name == NULL) return luattn_fail(err, LUATTN_INVALID, "cpu: inputs: number %zu has no name", i);
    for (int j = 0; j < t->num_inputs; j++) known |= strcmp(name, t->input[j].name) == 0;
    if (!known)
      return luattn_fail(err, LUATTN_INVALID,
                         "cpu: input '%s': the spec '%s' declares no input of that name; take it out",
                         fail_name(name, shown), t->name);
    if (find_input(a, name) != &a->inputs[i])
      return luattn_fail(err, LUATTN_INVALID, "cpu: input '%s': was given twice", name);
  }
  return LUATTN_OK;
}

static luattn_status open_scalars(linear_problem *p, luattn_error *err) {
  const traced_spec *t = &p->spec->traced;
  const luattn_linear_args *a = p->args;
  bool given[32] = {false};
  char shown[FAIL_NAME_SIZE], wrong[300];
  memcpy(p->scalar, t->scalar_default, sizeof p->scalar);
  if (a->num_scalars > 0 && a->scalars == NULL)
    return luattn_fail(err, LUATTN_INVALID, "cpu: scalars: is NULL, but num_scalars is %zu", a->num_scalars);
  for (size_t i = 0; i < a->num_scalars; i++) {
    const char *name = a->scalars[i].name;
    int at = 0;
    while (at < t->num_scalars && (name == NULL || strcmp(name, t->scalar_name[at]) != 0)) at++;
    if (at == t->num_scalars)
      return luattn_fail(err, LUATTN_INVALID,
                         "cpu: scalar '%s': the spec '%s' declares no scalar of that name; take it out",
                         name != NULL ? fail_name(name, shown) : "NULL", t->name);
    if (given[at]) return luattn_fail(err, LUATTN_INVALID, "cpu: scalar '%s': was given twice", name);
    given[at] = true, p->scalar[at] = a->scalars[i].value;
  }
  for (int i = 0; i < t->num_scalars; i++)
    if (!choices_scalar_ok(t->scalar_name[i], p->scalar[i], &t->scalar_range[i], !given[i], true, wrong, sizeof wrong))
      return luattn_fail(err, LUATTN_INVALID, "cpu: %s", wrong);
  if (!isfinite(a->scale))
    return luattn_fail(err, LUATTN_INVALID, "cpu: scale: is %g, expected a finite number", a->scale);
  p->scale = a->scale != 0 ? a->scale : t->linear.scale != 0 ? t->linear.scale : 1 / sqrt((double)p->k_dim);
  return LUATTN_OK;
}

static luattn_status open_scalar_grads(linear_problem *p, luattn_error *err) {
  if (p->args->scalar_grads == NULL) return LUATTN_OK;
  const view_rule rule = {.name = "scalar_grads",
                          .axes = "number of scalars",
                          .ndim = 1,
                          .shape = {p->spec->traced.num_scalars},
                          .is_output = true};
  return view_open(&rule, p->args->scalar_grads, &p->scalar_grads, err);
}

static luattn_status open_inputs(linear_problem *p, bool is_forward, luattn_error *err) {
  TRY(check_names(p, err));
  for (int i = 0; i < p->spec->traced.num_inputs; i++) TRY(open_input(p, i, is_forward, err));
  TRY(open_scalars(p, err));
  return is_forward ? LUATTN_OK : open_scalar_grads(p, err);
}

/* ---- outputs ---- */

static luattn_status check_apart(const linear_problem *p, bool is_forward, luattn_error *err) {
  const luattn_linear_args *a = p->args;
  const bool in_place = is_forward && a->initial_state != NULL && a->final_state != NULL &&
                        p->first.data == p->last.data &&
                        memcmp(p->first.stride, p->last.stride, sizeof p->first.stride) == 0 &&
                        p->first.bits == p->last.bits && p->first.code == p->last.code;
  overlap_item item[25 + 2 * 12];
  int n = 0;
  const overlap_item both[] = {{"q", a->q, false},
                               {"k", a->k, false},
                               {"v", a->v, false},
                               {"initial_state", in_place ? NULL : a->initial_state, false}};
  const overlap_item forward[] = {
      {"o", a->o, true}, {"final_state", a->final_state, true}, {"intermediate_states", a->intermediate_states, true}};
  const overlap_item backward[] = {{"dout", a->dout, false},
                                   {"dfinal_state", a->dfinal_state, false},
                                   {"dq", a->dq, true},
                                   {"dk", a->dk, true},
                                   {"dv", a->dv, true},
                                   {"dinitial_state", a->dinitial_state, true},
                                   {"scalar_grads", a->scalar_grads, true}};
  for (size_t i = 0; i < sizeof both / sizeof *both; i++) item[n++] = both[i];
  for (size_t i = 0; is_forward && i < sizeof forward / sizeof *forward; i++) item[n++] = forward[i];
  for (size_t i = 0; !is_forward && i < sizeof backward / sizeof *backward; i++) item[n++] = backward[i];
  for (size_t i = 0; i < a->num_inputs; i++) {
    item[n++] = (overlap_item){a->inputs[i].name, a->inputs[i].tensor, false};
    if (!is_forward) item[n++] = (overlap_item){"an input's grad", a->inputs[i].grad, true};
  }
  overlap_pair pair;
  char message[400];
  if (!overlap_find_among(item, n, &pair)) return LUATTN_OK;
  overlap_text(&pair, message, sizeof message);
  return luattn_fail(err, LUATTN_INVALID, "cpu: %s", message);
}

/* ---- programs ---- */

static luattn_status compile(linear_problem *p, const ir_ref *roots, int n, const ir_program **out, luattn_error *err) {
  const ir_decisions rule = {.doubles = p->decides_in_double, .double_inputs = p->double_inputs};
  *out = NULL;
  if (n == 0) return LUATTN_OK;
  ir_ref *decided = arena_array(p->a, (size_t)n, sizeof *decided);
  if (decided == NULL) return no_memory(err);
  for (int i = 0; i < n; i++) decided[i] = roots[i] != IR_NONE ? roots[i] : ir_real(p->g, 0);
  ir_decide(p->g, decided, n, &rule);
  *out = ir_program_new(p->a, p->g, decided, n);
  if (*out == NULL) return no_memory(err);
  const size_t need_bytes = ir_program_scratch(*out);
  if (need_bytes > p->scratch_bytes) p->scratch_bytes = need_bytes;
  if (n > p->most_roots) p->most_roots = n;
  return LUATTN_OK;
}

static luattn_status compile_terms(linear_problem *p, const derived_terms *terms, const ir_program **out,
                                   luattn_error *err) {
  ir_ref roots[5 * DERIVED_MAX_TERMS];
  int n = 0;
  for (int i = 0; i < terms->count; i++) {
    roots[n++] = terms->term[i].value;
    for (int j = 0; j < terms->term[i].num_index; j++) roots[n++] = terms->term[i].index[j];
  }
  return compile(p, roots, n, out, err);
}

static luattn_status open_hook(linear_problem *p, linear_hook_id id, bool is_forward, luattn_error *err) {
  const linear_hook *hook = &p->derived->hook[id];
  linear_programs *to = &p->hook[id];
  const bool has_row = linear_hook_rows[id].reads_x; /* its values are a row, even if they are all the same */
  *to = (linear_programs){.channels = linear_hook_rows[id].of_v ? p->v_dim : p->k_dim};
  to->width = has_row || hook->by_channel ? to->channels : 1;
  if (!hook->given) return LUATTN_OK;
  TRY(compile(p, hook->sums.of, hook->sums.count, &to->sums, err));
  TRY(compile(p, &hook->sums.value, 1, &to->value, err));
  if (is_forward) return LUATTN_OK;
  TRY(compile(p, hook->grad.weight, hook->sums.count, &to->weights, err));
  TRY(compile(p, &hook->grad.dx, hook->grad.dx != IR_NONE, &to->dx, err));
  TRY(compile_terms(p, &hook->grad.by_value, &to->by_value, err));
  return compile_terms(p, &hook->grad.by_sums, &to->by_sums, err);
}

luattn_status linear_open(const luattn_spec *spec, const luattn_linear_args *args, bool is_forward, arena *a,
                          linear_problem *p, luattn_error *err) {
  *p = (linear_problem){.a = a, .spec = spec, .derived = spec->linear, .args = args, .most_roots = 1};
  p->g = ir_clone(a, spec->traced.g);
  if (p->g == NULL) return no_memory(err);
  TRY(open_tokens(p, err));
  TRY(open_entries(p, err));
  TRY(open_results(p, is_forward, err));
  TRY(open_states(p, is_forward, err));
  TRY(open_indices(p, err));
  TRY(open_inputs(p, is_forward, err));
  TRY(check_apart(p, is_forward, err));
  p->decides_in_double = p->q.code == kDLFloat && p->q.bits == 64;
  for (int i = 0; i < LINEAR_HOOKS; i++) TRY(open_hook(p, (linear_hook_id)i, is_forward, err));
  return LUATTN_OK;
}
