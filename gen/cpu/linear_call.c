/* linear_call.c: linear attention on the CPU, forward and backward: units are chains of one value head, or of the value heads
 * of one head of q. */
#include "luattn/linear.h"

#include <stdlib.h>
#include <string.h>

#include "common/struct_size.h"
#include "common/threads.h"
#include "gen/cpu/linear_rows.h"

typedef struct linear_call {
  const luattn_spec *spec;
  const luattn_linear_args *args;
  int threads;
} linear_call;

typedef struct linear_pass {
  linear_problem p;
  int block, blocks; /* tokens of a block; blocks of the longest entry */
  int num_workers;
  linear_worker *worker;
  crew *crew;
  double *states;     /* [workers][..]: forward: one state; backward: see below */
  int64_t first_unit; /* of the wave */
  linear_sums *wave;  /* [workers]: where the units of a wave add gradients of parameters */
  double *total[12];  /* gradients of inputs */
  size_t size[12];    /* elements */
  bool apart[12];     /* no two units add to one element, and all add to the total */
  double scalar_total[32];
} linear_pass;

static size_t state_size(const linear_problem *p) { return (size_t)p->k_dim * (size_t)p->state_v; }

/* ---- states: [k_dim][state_v] of a value head ---- */

static double *no_state(const linear_problem *p, double *s) { return memset(s, 0, state_size(p) * sizeof *s); }

static void read_state(const linear_problem *p, const cpu_view *from, int entry, int head_v, double *s) {
  const int64_t row = linear_state_row(p, entry);
  no_state(p, s);
  if (from->ndim == 0) return;
  for (int i = 0; i < p->k_dim; i++)
    for (int j = 0; j < p->state_v; j++)
      s[i * p->state_v + j] = view_get(from, (int64_t[]){row, head_v, p->kv_layout ? i : j, p->kv_layout ? j : i});
}

static void write_state(const linear_problem *p, const cpu_view *to, int entry, int head_v, const double *s) {
  const int64_t row = linear_state_row(p, entry);
  if (to->ndim == 0) return;
  for (int i = 0; i < p->k_dim; i++)
    for (int j = 0; j < p->state_v; j++)
      view_set(to, (int64_t[]){row, head_v, p->kv_layout ? i : j, p->kv_layout ? j : i}, s[i * p->state_v + j]);
}

/* The state before token t. */
static void write_between(const linear_problem *p, int entry, int head_v, int64_t t, const double *s) {
  const cpu_view *to = &p->between;
  const int64_t first = p->starts != NULL ? p->starts[entry] / p->every + entry : entry * p->between_count;
  const int64_t row = first + t / p->every;
  for (int i = 0; i < p->k_dim; i++)
    for (int j = 0; j < p->state_v; j++)
      view_set(to, (int64_t[]){row, head_v, p->kv_layout ? i : j, p->kv_layout ? j : i}, s[i * p->state_v + j]);
}

/* Tokens from `first` on that are a block, up to the next one before which the state is wanted. */
static int count_block(const linear_problem *p, int block, int64_t first, int64_t tokens) {
  int64_t count = tokens - first < block ? tokens - first : block;
  if (p->every > 0 && count > p->every - first % p->every) count = p->every - first % p->every;
  return (int)count;
}

/* ---- forward ---- */

/* o of a block, from what the recurrence gives. */
static void finish_o(linear_worker *w, int count, double *out) {
  const linear_problem *p = w->p;
  for (int t = 0; t < count; t++)
    for (int j = 0; j < p->v_dim; j++) {
      const double *u = w->o + t * p->state_v;
      out[t * p->v_dim + j] = (p->derived->class.normalizes ? u[j] / u[p->v_dim] : u[j]) +
                              (p->derived->hook[LINEAR_SKIP].given ? w->skip[t * p->v_dim + j] : 0);
    }
}

static void forward_unit(void *of_pass, int worker, int64_t unit) {
  const linear_pass *f = of_pass;
  const linear_problem *p = &f->p;
  linear_worker *w = &f->worker[worker];
  const int entry = (int)(unit / p->heads_v), head_v = (int)(unit % p->heads_v);
  const bool has_state = linear_state_row(p, entry) >= 0;
  double *s = f->states + (size_t)worker * state_size(p);
  if (has_state) read_state(p, &p->first, entry, head_v, s);
  const int64_t tokens = linear_tokens(p, entry);
  for (int64_t first = 0; first < tokens;) {
    const int count = count_block(p, f->block, first, tokens);
    double *o = w->v; /* read by then */
    if (has_state) {
      if (p->every > 0 && first % p->every == 0) write_between(p, entry, head_v, first, s);
      linear_rows rows = linear_rows_of(w, entry, head_v, first, count);
      rows.state = s;
      linear_forward_in(&rows, w->o, s, w->room);
      finish_o(w, count, o);
    } else {
      memset(o, 0, (size_t)count * (size_t)p->v_dim * sizeof *o);
    }
    if (p->o.ndim > 0) linear_store(p, &p->o, entry, head_v, first, count, o);
    first += count;
  }
  if (has_state) write_state(p, &p->last, entry, head_v, s);
}

/* ---- backward ---- */

/* What a unit of backward keeps of its value heads: the state before each block, then the gradient of the state. */
static size_t kept_size(const linear_pass *b) {
  return (size_t)b->p.group * (size_t)(b->blocks + 1) * state_size(&b->p);
}

static double *kept(const linear_pass *b, int worker, int of_group, int block) {
  return b->states + (size_t)worker * kept_size(b) +
         ((size_t)of_group * (size_t)(b->blocks + 1) + (size_t)block) * state_size(&b->p);
}

static void run_forwards(const linear_pass *b, int worker, int entry, int head_v) {
  const linear_problem *p = &b->p;
  linear_worker *w = &b->worker[worker];
  const int of_group = head_v % p->group;
  const int64_t tokens = linear_tokens(p, entry);
  read_state(p, &p->first, entry, head_v, kept(b, worker, of_group, 0));
  for (int64_t n = 0; (n + 1) * b->block < tokens; n++) {
    linear_rows rows = linear_rows_of(w, entry, head_v, n * b->block, b->block);
    rows.state = kept(b, worker, of_group, (int)n);
    linear_forward_in(&rows, NULL, kept(b, worker, of_group, (int)n + 1), w->room);
  }
}

/* The gradient of what the recurrence gives, of that of o; w->o has what it gives, if o is normalised. */
static void start_du(linear_worker *w, int count) {
  const linear_problem *p = w->p;
  for (int t = 0; t < count; t++) {
    const double *dout = w->dout + t * p->v_dim, *u = w->o + t * p->state_v;
    double *du = w->du + t * p->state_v, dot = 0;
    for (int j = 0; j < p->v_dim; j++) {
      du[j] = p->derived->class.normalizes ? dout[j] / u[p->v_dim] : dout[j];
      if (p->derived->class.normalizes) dot += du[j] * u[j];
    }
    if (p->derived->class.normalizes) du[p->v_dim] = -dot / u[p->v_dim];
  }
}

/* Gradients of v after its mod, and of the strength. */
static void split_written(linear_worker *w, int count) {
  const linear_problem *p = w->p;
  const bool has_strength = p->derived->hook[LINEAR_WRITE].given;
  const double *v = p->derived->hook[LINEAR_VALUE].given ? w->v : w->raw_v;
  const int width = p->hook[LINEAR_WRITE].width;
  for (int t = 0; t < count; t++) {
    const double *db = w->db + t * p->state_v;
    double sum = p->derived->class.normalizes ? db[p->v_dim] : 0;
    for (int j = 0; j < p->v_dim; j++) {
      const int at = t * p->v_dim + j;
      w->dv[at] = (!has_strength ? 1 : w->w[width > 1 ? at : t]) * db[j];
      if (width > 1) w->dw[at] = db[j] * v[at];
      sum += db[j] * v[at];
    }
    if (width == 1) w->dw[t] = sum;
  }
}

/* Runs the derivative of a hook, if the spec has it. */
static void hook_back(linear_worker *w, linear_hook_id id, int entry, int head_v, int64_t first, int count,
                      const double *x, const double *grad, double *dx, const linear_sums *sums) {
  if (!w->p->derived->hook[id].given) return;
  const linear_site s = linear_site_of(w, id, entry, head_v, first, count);
  linear_hook_back(&s, id, x, w->red[id], grad, w->row, dx, sums);
}

static void add_to(double *sum, const double *x, size_t n) {
  for (size_t i = 0; i < n; i++) sum[i] += x[i];
}

/* One block of one value head: its gradients of k and q after their mods go to sum_k and sum_q. */
static void back_block(const linear_pass *b, int worker, int entry, int head_v, int64_t first, int count,
                       const linear_sums *sums) {
  const linear_problem *p = &b->p;
  linear_worker *w = &b->worker[worker];
  const int of_group = head_v % p->group;
  double *ds = kept(b, worker, of_group, b->blocks);
  const size_t of_k = (size_t)count * (size_t)p->k_dim, of_v = (size_t)count * (size_t)p->v_dim;
  linear_rows rows = linear_rows_of(w, entry, head_v, first, count);
  rows.state = kept(b, worker, of_group, (int)(first / b->block));
  if (p->derived->class.normalizes) linear_forward_in(&rows, w->o, NULL, w->room);
  if (p->dout.ndim > 0)
    linear_load(p, &p->dout, entry, head_v, first, count, w->dout);
  else
    memset(w->dout, 0, of_v * sizeof *w->dout);
  start_du(w, count);
  const linear_gradients out = {w->dq, w->dk, w->db, w->dg, w->dr, w->de, ds};
  linear_backward_in(&rows, w->du, ds, &out, w->room);
  split_written(w, count);
  hook_back(w, LINEAR_ERASE, entry, head_v, first, count, w->k, w->de, w->dk, sums);
  hook_back(w, LINEAR_READ, entry, head_v, first, count, w->k, w->dr, w->dk, sums);
  hook_back(w, LINEAR_DECAY, entry, head_v, first, count, NULL, w->dg, NULL, sums);
  hook_back(w, LINEAR_WRITE, entry, head_v, first, count, NULL, w->dw, NULL, sums);
  add_to(w->sum_q, w->dq, of_k);
  add_to(w->sum_k, w->dk, of_k);
  double *dv = w->dv;
  if (p->derived->hook[LINEAR_VALUE].given) {
    dv = memset(w->dw, 0, of_v * sizeof *dv); /* of the strength by then */
    hook_back(w, LINEAR_VALUE, entry, head_v, first, count, w->raw_v, w->dv, dv, sums);
  }
  hook_back(w, LINEAR_SKIP, entry, head_v, first, count, w->raw_v, w->dout, dv, sums);
  if (p->dv.ndim > 0) linear_store(p, &p->dv, entry, head_v, first, count, dv);
}

/* dq or dk of a block, through the mod. */
static void finish_qk(linear_worker *w, linear_hook_id id, int entry, int head, int64_t first, int count,
                      const linear_sums *sums) {
  const linear_problem *p = w->p;
  const bool is_q = id == LINEAR_QUERY;
  double *grad = is_q ? w->sum_q : w->sum_k, *dx = is_q ? w->dq : w->dk;
  const cpu_view *to = is_q ? &p->dq : &p->dk;
  if (p->derived->hook[id].given) {
    memset(dx, 0, (size_t)count * (size_t)p->k_dim * sizeof *dx);
    hook_back(w, id, entry, head * p->group, first, count, is_q ? w->raw_q : w->raw_k, grad, dx, sums);
    grad = dx;
  }
  if (to->ndim > 0) linear_store(p, to, entry, head, first, count, grad);
}

static void backward_unit(void *of_pass, int worker, int64_t of_wave) {
  const linear_pass *b = of_pass;
  const linear_problem *p = &b->p;
  linear_worker *w = &b->worker[worker];
  const int64_t unit = b->first_unit + of_wave;
  const int entry = (int)(unit / p->heads), head = (int)(unit % p->heads), head_v = head * p->group;
  const int64_t tokens = linear_tokens(p, entry);
  const linear_sums *sums = &b->wave[of_wave];
  if (linear_state_row(p, entry) < 0) return;
  for (int i = 0; i < p->group; i++) {
    run_forwards(b, worker, entry, head_v + i);
    read_state(p, &p->dlast, entry, head_v + i, kept(b, worker, i, b->blocks));
  }
  for (int64_t n = (tokens + b->block - 1) / b->block - 1; n >= 0; n--) {
    const int64_t first = n * b->block;
    const int count = (int)(tokens - first < b->block ? tokens - first : b->block);
    const size_t of_k = (size_t)count * (size_t)p->k_dim;
    memset(w->sum_q, 0, of_k * sizeof *w->sum_q);
    memset(w->sum_k, 0, of_k * sizeof *w->sum_k);
    for (int i = 0; i < p->group; i++) back_block(b, worker, entry, head_v + i, first, count, sums);
    finish_qk(w, LINEAR_QUERY, entry, head, first, count, sums);
    finish_qk(w, LINEAR_KEY, entry, head, first, count, sums);
  }
  for (int i = 0; i < p->group; i++) write_state(p, &p->dfirst, entry, head_v + i, kept(b, worker, i, b->blocks));
}

/* ---- gradients of parameters ---- */

/* Whether two units never add to one element by this term. */
static bool term_is_apart(const linear_problem *p, const derived_term *t) {
  const luattn_input_info *info = &p->spec->traced.input[t->input];
  const int64_t *shape = p->input[t->input].shape;
  bool by_head = false, by_entry = p->entries == 1;
  for (int j = 0; j < t->num_index && j < (int)info->num_axes; j++) {
    const int32_t axis = info->axis[j];
    const bool is_head = ir_is_var(p->g, t->index[j], VAR_H), is_entry = ir_is_var(p->g, t->index[j], VAR_B);
    by_head |= is_head &&
               ((axis == LUATTN_AXIS_HV && shape[j] == p->heads_v) || (axis == LUATTN_AXIS_H && shape[j] == p->heads));
    by_entry |=
        (is_entry && axis == LUATTN_AXIS_B && shape[j] == p->entries) || (p->starts != NULL && axis == LUATTN_AXIS_T);
  }
  return by_head && by_entry;
}

static bool terms_are_apart(const linear_problem *p, const derived_terms *terms, int input) {
  bool are = true;
  for (int i = 0; i < terms->count; i++) are &= terms->term[i].input != input || term_is_apart(p, &terms->term[i]);
  return are;
}

static bool open_totals(linear_pass *b) {
  linear_problem *p = &b->p;
  b->wave = arena_array(p->a, (size_t)b->num_workers, sizeof *b->wave);
  bool ok = b->wave != NULL;
  for (int i = 0; ok && i < p->spec->traced.num_inputs; i++) {
    const cpu_view *grad = &p->input_grad[i];
    if (grad->data == NULL) continue;
    b->size[i] = 1, b->apart[i] = true;
    for (int j = 0; j < grad->ndim; j++) b->size[i] *= (size_t)grad->shape[j];
    for (int h = 0; h < LINEAR_HOOKS; h++)
      b->apart[i] &= !p->derived->hook[h].given || (terms_are_apart(p, &p->derived->hook[h].grad.by_value, i) &&
                                                    terms_are_apart(p, &p->derived->hook[h].grad.by_sums, i));
    b->total[i] = arena_array(p->a, b->size[i] + 1, sizeof(double));
    ok = b->total[i] != NULL;
    for (int w = 0; ok && w < b->num_workers; w++) {
      b->wave[w].input[i] = b->apart[i] ? b->total[i] : arena_array(p->a, b->size[i] + 1, sizeof(double));
      ok = b->wave[w].input[i] != NULL;
    }
  }
  for (int w = 0; ok && p->scalar_grads.ndim > 0 && w < b->num_workers; w++) {
    b->wave[w].scalar = arena_array(p->a, 32, sizeof(double));
    ok = b->wave[w].scalar != NULL;
  }
  return ok;
}

/* Adds what a wave's units have found to the totals, in their order, so that no thread changes a bit. */
static void take_wave(linear_pass *b, int64_t count) {
  for (int64_t w = 0; w < count; w++) {
    for (int i = 0; i < 12; i++) {
      if (b->total[i] == NULL || b->apart[i]) continue;
      add_to(b->total[i], b->wave[w].input[i], b->size[i]);
      memset(b->wave[w].input[i], 0, b->size[i] * sizeof(double));
    }
    if (b->wave[w].scalar == NULL) continue;
    add_to(b->scalar_total, b->wave[w].scalar, 32);
    memset(b->wave[w].scalar, 0, 32 * sizeof(double));
  }
}

static void write_totals(const linear_pass *b) {
  const linear_problem *p = &b->p;
  for (int i = 0; i < 12; i++) {
    const cpu_view *to = &p->input_grad[i];
    for (size_t n = 0; b->total[i] != NULL && n < b->size[i]; n++) {
      int64_t at[4] = {0};
      size_t left = n;
      for (int j = to->ndim - 1; j >= 0; j--) {
        at[j] = (int64_t)(left % (size_t)to->shape[j]);
        left /= (size_t)to->shape[j];
      }
      view_set(to, at, b->total[i][n]);
    }
  }
  for (int64_t i = 0; p->scalar_grads.ndim > 0 && i < p->scalar_grads.shape[0]; i++)
    view_set(&p->scalar_grads, &i, b->scalar_total[i]);
}

/* Rows of no entry, and of entries without a state, have gradients of 0. */
static void zero_gradients(const linear_problem *p) {
  const cpu_view *all[] = {&p->dq, &p->dk, &p->dv};
  for (size_t n = 0; n < 3; n++) {
    const cpu_view *to = all[n];
    if (to->ndim == 0 || view_is_empty(to)) continue;
    for (int64_t b = 0; b < to->shape[0]; b++)
      for (int64_t t = 0; t < to->shape[1]; t++)
        for (int64_t h = 0; h < to->shape[2]; h++)
          for (int64_t d = 0; d < to->shape[3]; d++) view_set(to, (int64_t[]){b, t, h, d}, 0);
  }
}

/* ---- the whole ---- */

static luattn_status refuse_growth(const linear_pass *f, luattn_error *err) {
  const linear_growth *first = NULL;
  for (int i = 0; i < f->num_workers; i++) {
    const linear_growth *g = &f->worker[i].growth;
    if (!g->found) continue;
    if (first == NULL || g->entry < first->entry || (g->entry == first->entry && g->head < first->head)) first = g;
  }
  return first == NULL ? LUATTN_OK : linear_growth_fail(first, "cpu", err);
}

static luattn_status start(linear_pass *f, const linear_call *call, bool is_forward, arena *a, int64_t *units,
                           luattn_error *err) {
  linear_problem *p = &f->p;
  TRY(linear_open(call->spec, call->args, is_forward, a, p, err));
  *units = (int64_t)p->entries * (is_forward ? p->heads_v : p->heads);
  f->block = linear_block(p);
  f->blocks = (int)((p->most + f->block - 1) / f->block);
  if (f->blocks < 1) f->blocks = 1;
  f->num_workers = *units < call->threads ? (int)(*units > 0 ? *units : 1) : call->threads;
  const size_t size = is_forward ? state_size(p) : kept_size(f);
  const char *check = getenv("LUATTN_CHECK");
  f->worker = arena_array(a, (size_t)f->num_workers, sizeof *f->worker);
  f->states = arena_array(a, (size_t)f->num_workers, size * sizeof *f->states);
  bool ok = f->worker != NULL && f->states != NULL;
  for (int i = 0; ok && i < f->num_workers; i++) {
    ok = linear_worker_open(p, f->block, is_forward, &f->worker[i]);
    f->worker[i].checks = is_forward && check != NULL && strcmp(check, "1") == 0;
  }
  if (ok && !is_forward) ok = open_totals(f);
  return ok ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
}

static void run_waves(linear_pass *b, int64_t units) {
  zero_gradients(&b->p);
  for (b->first_unit = 0; b->first_unit < units; b->first_unit += b->num_workers) {
    const int64_t left = units - b->first_unit, count = left < b->num_workers ? left : b->num_workers;
    crew_run(b->crew, backward_unit, b, count);
    take_wave(b, count);
  }
  write_totals(b);
}

static luattn_status run_pass(const linear_call *call, bool is_forward, luattn_error *err) {
  arena *a = arena_open(arena_allocator(call->spec->a));
  linear_pass *f = a != NULL ? arena_new(a, sizeof *f) : NULL;
  int64_t units = 0;
  luattn_status status =
      f != NULL ? start(f, call, is_forward, a, &units, err) : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  if (status == LUATTN_OK) {
    f->crew = crew_open(f->num_workers);
    if (is_forward)
      crew_run(f->crew, forward_unit, f, units);
    else
      run_waves(f, units);
    crew_close(f->crew);
    status = refuse_growth(f, err);
  }
  arena_close(a);
  return status;
}

static luattn_status forward_within(void *of_call, luattn_error *err) { return run_pass(of_call, true, err); }

static luattn_status backward_within(void *of_call, luattn_error *err) { return run_pass(of_call, false, err); }

static luattn_status take(const luattn_spec *spec, const luattn_linear_args *given, const char *function,
                          luattn_linear_args *used, linear_call *call, luattn_error *err) {
  static const struct_rule rule = {"luattn_linear_args", offsetof(luattn_linear_args, workspace),
                                   sizeof(luattn_linear_args)};
  char wrong[200];
  if (luattn_spec_form(spec) != LUATTN_FORM_LINEAR)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "%s: spec '%s': is of attention, and this function is of linear attention; call luattn_cpu_forward "
        "and luattn_cpu_backward",
        function, spec->traced.name);
  TRY(struct_take(&rule, "cpu", given, used, err));
  if (used->ring_k != NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "cpu: ring_k: is given, and rings are of GPUs alone; leave it NULL, and update states in place");
  *call = (linear_call){.spec = spec, .args = used};
  if (threads_count(used->num_threads, 1, &call->threads, wrong, sizeof wrong)) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "cpu: %s", wrong);
}

int luattn_spec_normalizes(const luattn_spec *spec) { return spec != NULL && spec->traced.linear.normalize; }

void luattn_spec_ring(const luattn_spec *spec, int head_dim, int *decays, int *erases) {
  const linear_class *c = spec != NULL && spec->linear != NULL ? &spec->linear->class : NULL;
  const linear_decay decay = c != NULL ? c->decay : LINEAR_DECAY_NONE;
  if (decays != NULL) *decays = decay == LINEAR_DECAY_CHANNEL ? head_dim : decay != LINEAR_DECAY_NONE;
  if (erases != NULL) *erases = c != NULL && c->erases;
}

luattn_status luattn_cpu_linear_forward(const luattn_spec *spec, const luattn_linear_args *args, luattn_error *err) {
  luattn_linear_args used;
  linear_call call;
  fail_clear(err);
  NEED(spec);
  NEED(args);
  TRY(take(spec, args, __func__, &used, &call, err));
  return host_run(forward_within, &call, err);
}

luattn_status luattn_cpu_linear_backward(const luattn_spec *spec, const luattn_linear_args *args, luattn_error *err) {
  luattn_linear_args used;
  linear_call call;
  fail_clear(err);
  NEED(spec);
  NEED(args);
  TRY(take(spec, args, __func__, &used, &call, err));
  return host_run(backward_within, &call, err);
}
