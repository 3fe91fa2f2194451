/* na_fused.c: luattn_na_forward and luattn_na_backward: specs of neighborhoods over a grid, which the engine keeps, and
 * their calls with heads last. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/host.h"
#include "common/struct_size.h"
#include "engine/engine.h"
#include "runtime/call/na_args.h"

enum { TEXT = 2048, MAX_AXES = LUATTN_NA_MAX_RANK + 3, BOX_EXTENT_MAX = 256 };
static const char *const axis_names[LUATTN_NA_MAX_RANK] = {"t", "y", "x"};

typedef struct na_spec {
  struct na_spec *next;
  luattn_spec *spec;
  char text[TEXT];
} na_spec;

static void close_specs(na_spec *s) {
  while (s != NULL) {
    na_spec *next = s->next;
    luattn_spec_free(s->spec);
    free(s);
    s = next;
  }
}

/* ---- the spec of a window ---- */

/* Text in an array, which TEXT is enough for: three axes of 64 bits. */
typedef struct spec_text {
  char at[TEXT];
  size_t used;
} spec_text;

static void add(spec_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(spec_text *t, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  if (t->used < TEXT) t->used += (size_t)host_vformat(t->at + t->used, TEXT - t->used, fmt, args);
  va_end(args);
}

static void add_numbers(spec_text *t, const char *name, const int64_t *numbers, int rank) {
  add(t, "%s = {", name);
  for (int a = 0; a < rank; a++) add(t, "%s%" PRId64, a > 0 ? ", " : "", numbers[a] == 0 ? 1 : numbers[a]);
  add(t, "}, ");
}

static void add_bias(spec_text *t, const luattn_na_window *w, const char *const *axis) {
  add(t, "inputs = { rpb = { axes = {\"h\"");
  for (int a = 0; a < w->rank; a++) add(t, ", %" PRId64, 2 * w->kernel_size[a] - 1);
  add(t, "}, dtype = \"any\", grad = true } }, score_mod = function(s, b, h, q, kv) return s + rpb[{h");
  for (int a = 0; a < w->rank; a++)
    add(t, ", (kv.%s - q.%s) // %" PRId64 " + %" PRId64, axis[a], axis[a], w->dilation[a] == 0 ? 1 : w->dilation[a],
        w->kernel_size[a] - 1);
  add(t, "}] end, ");
}

static void write_spec(const luattn_na_args *args, spec_text *t) {
  const luattn_na_window *w = &args->window;
  const char *const *axis = axis_names + LUATTN_NA_MAX_RANK - w->rank;
  t->used = 0;
  add(t, "return attention { name = \"na%dd\", grid = {", w->rank);
  for (int a = 0; a < w->rank; a++) add(t, "%s\"%s\"", a > 0 ? ", " : "", axis[a]);
  add(t, "}, ");
  if (args->rel_pos_bias != NULL) add_bias(t, w, axis);
  add(t, "block_mask = neighborhood { ");
  add_numbers(t, "kernel_size", w->kernel_size, w->rank);
  add_numbers(t, "stride", args->stride, w->rank);
  add_numbers(t, "dilation", w->dilation, w->rank);
  add(t, "is_causal = {");
  for (int a = 0; a < w->rank; a++) add(t, "%s%s", a > 0 ? ", " : "", w->is_causal[a] ? "true" : "false");
  add(t, "} } }\n");
}

static luattn_status load(const spec_text *t, na_spec **out, luattn_error *err) {
  na_spec *s = calloc(1, sizeof *s);
  if (s == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_na_forward: out of memory");
  memcpy(s->text, t->at, TEXT);
  const luattn_status status = luattn_spec_load_text("natten", t->at, strlen(t->at), NULL, &s->spec, err);
  if (status != LUATTN_OK) {
    free(s);
    return status;
  }
  *out = s;
  return LUATTN_OK;
}

/* Others wait while one is loaded. */
static luattn_status find_spec(luattn_engine *engine, const luattn_na_args *args, const luattn_spec **out,
                               luattn_error *err) {
  spec_text t;
  luattn_status status = LUATTN_OK;
  memset(&t, 0, sizeof t);
  write_spec(args, &t);
  engine_merges *m = engine_lock_merges(engine);
  m->close = engine_close_merges, m->close_na_specs = close_specs;
  na_spec *s = m->na_specs;
  while (s != NULL && strcmp(s->text, t.at) != 0) s = s->next;
  if (s == NULL) {
    status = load(&t, &s, err);
    if (status == LUATTN_OK) s->next = m->na_specs, m->na_specs = s;
  }
  *out = s == NULL ? NULL : s->spec;
  engine_unlock_merges(engine);
  return status;
}

/* ---- its call ---- */

/* A tensor with its heads moved before the axes of the grid. */
typedef struct heads_first {
  DLTensor t;
  int64_t shape[MAX_AXES], stride[MAX_AXES];
} heads_first;

typedef struct fused_call {
  const char *place;
  const luattn_na_args *given;
  luattn_args args;
  luattn_input bias;
  heads_first tensor[8];
  int count;
} fused_call;

static luattn_status turn(fused_call *c, const char *name, const DLTensor *t, const DLTensor **out, luattn_error *err) {
  const int ndim = c->given->window.rank + 3;
  if (t == NULL) return LUATTN_OK;
  if (t->ndim != ndim || t->shape == NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "%s: %s: has %d axes, expected %d: batch, those of the grid, heads, head dim", c->place, name,
                       t->ndim, ndim);
  heads_first *to = &c->tensor[c->count++];
  int64_t step = 1, stride[MAX_AXES];
  for (int i = ndim; i-- > 0; step *= t->shape[i]) stride[i] = t->strides != NULL ? t->strides[i] : step;
  for (int i = 0; i < ndim; i++) {
    const int from = i == 0 || i == ndim - 1 ? i : i == 1 ? ndim - 2 : i - 1;
    to->shape[i] = t->shape[from], to->stride[i] = stride[from];
  }
  to->t = *t, to->t.shape = to->shape, to->t.strides = to->stride;
  *out = &to->t;
  return LUATTN_OK;
}

/* A choice of an axis that the window lacks. */
static luattn_status check_unused(const fused_call *c, const char *name, const int64_t *numbers, luattn_error *err) {
  for (int axis = c->given->window.rank; axis < LUATTN_NA_MAX_RANK; axis++)
    if (numbers[axis] != 0)
      return luattn_fail(err, LUATTN_INVALID, "%s: %s[%d]: is %" PRId64 ", and the window has a rank of %d; give 0",
                         c->place, name, axis, numbers[axis], c->given->window.rank);
  return LUATTN_OK;
}

/* What kernels have boxes of these extents, the plan knows. */
static luattn_status take_box(const fused_call *c, const char *name, const int64_t *size, uint64_t *box,
                              luattn_error *err) {
  bool is_given = false;
  *box = 0;
  TRY(check_unused(c, name, size, err));
  for (int axis = 0; axis < c->given->window.rank; axis++) is_given |= size[axis] != 0;
  for (int axis = 0; axis < c->given->window.rank && is_given; axis++) {
    if (size[axis] < 1 || size[axis] > BOX_EXTENT_MAX)
      return luattn_fail(err, LUATTN_INVALID,
                         "%s: %s[%d]: is %" PRId64
                         ", expected 1 to %d along each axis of a box, or 0 along all, for the engine's choice",
                         c->place, name, axis, size[axis], BOX_EXTENT_MAX);
    *box = *box << 16 | (uint64_t)size[axis];
  }
  return LUATTN_OK;
}

/* Backward may be split where boxes of keys begin. */
static luattn_status check_splits(const fused_call *c, luattn_error *err) {
  const luattn_na_args *a = c->given;
  TRY(check_unused(c, "num_splits_key", a->num_splits_key, err));
  for (int axis = 0; axis < a->window.rank; axis++) {
    const int64_t dilation = a->window.dilation[axis] == 0 ? 1 : a->window.dilation[axis],
                  box = a->key_tile_size[axis] == 0 ? 1 : a->key_tile_size[axis],
                  keys = (a->key->shape[1 + axis] + dilation - 1) / dilation, most = (keys + box - 1) / box;
    if (a->num_splits_key[axis] < 0 || a->num_splits_key[axis] > most)
      return luattn_fail(err, LUATTN_INVALID,
                         "%s: num_splits_key[%d]: is %" PRId64 ", expected at most %" PRId64 ", the boxes of %" PRId64
                         " keys along that axis, or 0",
                         c->place, axis, a->num_splits_key[axis], most, box);
  }
  return LUATTN_OK;
}

static luattn_status take_choices(fused_call *c, luattn_error *err) {
  const luattn_na_args *a = c->given;
  TRY(take_box(c, "query_tile_size", a->query_tile_size, &c->args.query_tile_size, err));
  TRY(take_box(c, "key_tile_size", a->key_tile_size, &c->args.key_tile_size, err));
  TRY(check_splits(c, err));
  if (a->compute_delta_with_torch != 0 && a->compute_delta_with_torch != 1)
    return luattn_fail(err, LUATTN_INVALID, "%s: compute_delta_with_torch: is %d, expected 0 or 1", c->place,
                       a->compute_delta_with_torch);
  return LUATTN_OK;
}

static luattn_status check_window(const fused_call *c, luattn_error *err) {
  const luattn_na_args *a = c->given;
  const int rank = a->window.rank;
  if (rank < 1 || rank > LUATTN_NA_MAX_RANK)
    return luattn_fail(err, LUATTN_INVALID, "%s: window: rank: is %d, expected 1 to %d", c->place, rank,
                       LUATTN_NA_MAX_RANK);
  const DLTensor *const both[] = {a->query, a->key};
  for (int i = 0; i < 2; i++) {
    const char *name = i == 0 ? "query" : "key";
    if (both[i] == NULL) return luattn_fail(err, LUATTN_INVALID, "%s: %s: is missing", c->place, name);
    if (both[i]->ndim != rank + 3 || both[i]->shape == NULL)
      return luattn_fail(err, LUATTN_INVALID, "%s: %s: has %d axes, expected %d", c->place, name, both[i]->ndim,
                         rank + 3);
  }
  for (int i = 0; i < rank; i++) {
    if (a->query->shape[1 + i] != a->key->shape[1 + i])
      return luattn_fail(err, LUATTN_INVALID, "%s: key: has %" PRId64 " places along axis %d, and query %" PRId64,
                         c->place, a->key->shape[1 + i], i, a->query->shape[1 + i]);
    if (a->stride[i] < 0 || a->stride[i] > a->window.kernel_size[i])
      return luattn_fail(err, LUATTN_INVALID,
                         "%s: stride[%d]: is %" PRId64 ", expected 1 to kernel_size, which is %" PRId64 ", or 0 for 1",
                         c->place, i, a->stride[i], a->window.kernel_size[i]);
  }
  return na_check_window(c->place, &a->window, a->query->shape + 1, err);
}

static luattn_status fill(fused_call *c, bool backward, luattn_error *err) {
  const luattn_na_args *a = c->given;
  luattn_args *to = &c->args;
  to->struct_size = sizeof *to;
  to->lse = a->logsumexp, to->scale = a->attn_scale;
  to->workspace = a->workspace, to->workspace_size = a->workspace_size;
  TRY(turn(c, "query", a->query, &to->q, err));
  TRY(turn(c, "key", a->key, &to->k, err));
  TRY(turn(c, "value", a->value, &to->v, err));
  TRY(turn(c, "output", a->output, &to->o, err));
  if (a->rel_pos_bias != NULL) {
    c->bias = (luattn_input){"rpb", a->rel_pos_bias, backward ? a->grad_rel_pos_bias : NULL};
    to->inputs = &c->bias, to->num_inputs = 1;
  }
  if (!backward) return LUATTN_OK;
  TRY(turn(c, "grad_output", a->grad_output, &to->dout, err));
  TRY(turn(c, "grad_query", a->grad_query, &to->dq, err));
  TRY(turn(c, "grad_key", a->grad_key, &to->dk, err));
  return turn(c, "grad_value", a->grad_value, &to->dv, err);
}

static luattn_status open_call(luattn_engine *engine, luattn_pass pass, const luattn_na_args *given,
                               luattn_na_args *taken, fused_call *c, const luattn_spec **spec, luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_na_args, workspace);
  const bool backward = pass == LUATTN_BACKWARD;
  const char *place = backward ? "luattn_na_backward" : "luattn_na_forward";
  TRY(struct_take(&rule, place, given, taken, err));
  *c = (fused_call){.place = place, .given = taken};
  TRY(check_window(c, err));
  TRY(take_choices(c, err));
  TRY(fill(c, backward, err));
  return find_spec(engine, taken, spec, err);
}

luattn_status luattn_na_workspace_size(luattn_engine *engine, luattn_pass pass, const luattn_na_args *args,
                                       size_t *size, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(engine);
  NEED(args);
  NEED(size);
  luattn_na_args taken;
  fused_call c;
  const luattn_spec *spec;
  TRY(open_call(engine, pass, args, &taken, &c, &spec, err));
  return luattn_engine_workspace_size(engine, spec, pass, &c.args, size, err);
}

luattn_status luattn_na_forward(luattn_engine *engine, const luattn_na_args *args, void *stream, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(engine);
  NEED(args);
  luattn_na_args taken;
  fused_call c;
  const luattn_spec *spec;
  TRY(open_call(engine, LUATTN_FORWARD, args, &taken, &c, &spec, err));
  return luattn_forward(engine, spec, &c.args, stream, err);
}

luattn_status luattn_na_backward(luattn_engine *engine, const luattn_na_args *args, void *stream, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(engine);
  NEED(args);
  luattn_na_args taken;
  fused_call c;
  const luattn_spec *spec;
  TRY(open_call(engine, LUATTN_BACKWARD, args, &taken, &c, &spec, err));
  return luattn_backward(engine, spec, &c.args, stream, err);
}
