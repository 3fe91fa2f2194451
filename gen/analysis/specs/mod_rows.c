#include "gen/analysis/specs/mod_rows.h"

#include <string.h>

#include "common/fail.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"

/* One input mod while its x[..] become permutations. */
typedef struct row_work {
  arena *a;
  traced_spec *t;
  ir *g;
  const char *hook;
  int dim;
  row_tables *tables;
  bool used[SPEC_MAX_READS];
  uint16_t *from[SPEC_MAX_READS], *back[SPEC_MAX_READS]; /* which channel d reads; who reads channel d */
  luattn_error *err;
} row_work;

enum { NOWHERE = -1, IDENTITY = -1 };

static luattn_status no_memory(const row_work *w) {
  return luattn_fail(w->err, LUATTN_NO_MEMORY, "%s: out of memory", w->t->file);
}

/* ---- every expression of a spec ---- */

typedef struct places {
  ir_ref **at;
  int count, capacity;
} places;

static void add_places(places *p, ir_ref *first, int n) {
  for (int i = 0; i < n && p->count < p->capacity; i++) p->at[p->count++] = &first[i];
}

static void add_terms(places *p, derived_terms *terms) {
  for (int i = 0; i < terms->count; i++) {
    derived_term *t = &terms->term[i];
    add_places(p, t->index, t->num_index);
    add_places(p, &t->value, 1);
    add_places(p, &t->factor, 1);
    add_places(p, &t->of_sum, 1);
  }
}

static void add_mod(places *p, derived_mod *d) {
  add_places(p, &d->dx, 1);
  add_places(p, d->by_read, SPEC_MAX_READS);
  add_terms(p, &d->terms);
}

static bool places_of(arena *a, struct luattn_spec *spec, places *p) {
  traced_spec *t = &spec->traced;
  traced_online *o = &t->online;
  derived_spec *d = &spec->derived;
  *p = (places){.capacity = 128 + 5 * 7 * DERIVED_MAX_TERMS + 3 * SPEC_MAX_READS};
  p->at = arena_array(a, (size_t)p->capacity, sizeof *p->at);
  if (p->at == NULL) return false;
  ir_ref *const single[] = {&t->score_mod, &t->block_mask, &t->query_mod, &t->key_mod,  &t->value_mod, &o->prob,
                            &o->rescale,   &o->out,        &o->forward,   &o->backward, &d->prob,      &d->ds};
  for (size_t i = 0; i < sizeof single / sizeof *single; i++) add_places(p, single[i], 1);
  add_places(p, t->read, t->num_reads);
  add_places(p, o->init, o->num_state);
  add_places(p, o->next, o->num_state);
  add_places(p, o->final, o->num_final);
  add_places(p, d->saved, d->num_saved);
  add_places(p, d->row, d->num_rows);
  add_terms(p, &d->row_terms);
  add_terms(p, &d->element_terms);
  add_mod(p, &d->query_mod);
  add_mod(p, &d->key_mod);
  add_mod(p, &d->value_mod);
  return true;
}

/* Puts the head dims into every expression. */
static luattn_status set_dims(arena *a, struct luattn_spec *spec, int dim, int dim_v, luattn_error *err) {
  ir *g = spec->traced.g;
  places p;
  const bool ready = places_of(a, spec, &p);
  const ir_ref from[2] = {ir_variable(g, VAR_HEAD_DIM, 0), ir_variable(g, VAR_HEAD_DIM_V, 0)};
  const ir_ref to[2] = {ir_int(g, dim), ir_int(g, dim_v)};
  for (int i = 0; ready && i < p.count; i++)
    if (ir_uses(g, *p.at[i], VAR_HEAD_DIM) || ir_uses(g, *p.at[i], VAR_HEAD_DIM_V))
      *p.at[i] = ir_substitute(g, *p.at[i], from, to, 2);
  return ready && !ir_failed(g) ? LUATTN_OK
                                : luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", spec->traced.file);
}

/* ---- which channel each d reads ---- */

static void channel_variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  const int first = *(const int *)user;
  (void)index;
  for (int i = 0; i < lanes; i++) out[i] = v == VAR_D ? first + i : 0;
}

static void no_load(void *user, uint32_t input, int n_index, const double *const *index, int lanes, double *out) {
  (void)user, (void)input, (void)n_index, (void)index;
  for (int i = 0; i < lanes; i++) out[i] = 0;
}

/* An INT of VAR_D alone at every channel. NULL: out of memory. */
static double *values_by_channel(const row_work *w, ir_ref r) {
  double *value = arena_array(w->a, (size_t)w->dim + IR_LANES, sizeof *value);
  const ir_program *program = ir_program_new(w->a, w->g, &r, 1);
  void *scratch = program != NULL ? arena_new(w->a, ir_program_scratch(program)) : NULL;
  int first = 0;
  const ir_env env = {.user = &first, .variable = channel_variable, .load = no_load};
  if (value == NULL || scratch == NULL) return NULL;
  for (; first < w->dim; first += IR_LANES)
    ir_program_run(program, &env, IR_LANES, scratch, (double *const[]){value + first});
  return value;
}

static ir_bounds bounds_at_channel(void *user, ir_var v, uint32_t index, ir_type type) {
  (void)index, (void)type;
  ir_bounds b = {.real = iv_all(), .integer = ivi_all(), .boolean = tri_all()};
  if (v == VAR_D) b.integer = ivi_point(*(const int *)user);
  return b;
}

static ir_bounds any_load(void *user, uint32_t input, ir_type type, int n_index, const ivi *index) {
  (void)user, (void)input, (void)type, (void)n_index, (void)index;
  return (ir_bounds){.real = iv_all(), .integer = ivi_all(), .boolean = tri_all()};
}

/* Writes which x[..] the mod reads at channel d: where a condition of the channel says which arm of a select is
 * taken, those of the other are not. `bounds` and `reached` have an entry for each node. */
static void reads_at(const row_work *w, ir_ref mod, int d, ir_bounds *bounds, uint8_t *reached,
                     bool out[SPEC_MAX_READS]) {
  const ir_bounds_env env = {.user = &d, .variable = bounds_at_channel, .load = any_load};
  ir_bounds unused;
  memset(out, 0, SPEC_MAX_READS * sizeof *out);
  memset(reached, 0, (size_t)mod + 1);
  ir_interval(w->g, &mod, 1, &env, bounds, &unused);
  reached[mod] = 1;
  for (ir_ref r = mod; r > IR_NONE; r--) {
    if (!reached[r]) continue;
    const ir_node *n = ir_get(w->g, r);
    if (n->op == IR_VAR && ir_var_of(n) == VAR_READ) out[ir_index_of(n)] = true;
    const tri c = n->op == IR_SELECT ? bounds[n->arg[0]].boolean : tri_all();
    for (int i = 0; i < n->nargs; i++)
      if (n->op != IR_SELECT || i == 0 || (i == 1 ? c.can_be_true : c.can_be_false)) reached[n->arg[i]] = 1;
  }
}

static const char *hint_of(const row_work *w) {
  return w->dim % 2 != 0 ? "; head_dim is odd here, and halves and pairs of channels take an even one" : "";
}

static luattn_status refuse_outside(const row_work *w, int read, int d, double channel) {
  return luattn_fail(w->err, LUATTN_SPEC,
                     "%s:%d: %s: x[..] at d = %d is channel %.0f, outside of 0 .. %d, head_dim being %d; it "
                     "must be a permutation of the channels%s",
                     w->t->file, w->t->read_line[read], w->hook, d, channel, w->dim - 1, w->dim, hint_of(w));
}

static luattn_status refuse_twice(const row_work *w, int read, int d0, int d1, int channel) {
  return luattn_fail(w->err, LUATTN_SPEC,
                     "%s:%d: %s: x[..] is channel %d both at d = %d and at d = %d, head_dim being %d; it must "
                     "be a permutation of the channels%s",
                     w->t->file, w->t->read_line[read], w->hook, channel, d0, d1, w->dim, hint_of(w));
}

/* Assigns the remaining channels to those that do not read x[..], so that the map has an inverse: preferably the
 * channel that the index gives, else the same channel. Vectors of channels then stay together in a partly rotated
 * row. */
static void complete(const row_work *w, int read, const double *value, int *reader) {
  uint16_t *from = w->from[read], *back = w->back[read];
  bool *reads = arena_array(w->a, (size_t)w->dim, sizeof *reads);
  if (reads == NULL) return;
  for (int c = 0; c < w->dim; c++)
    if (reader[c] != NOWHERE) reads[reader[c]] = true;
  for (int d = 0; d < w->dim; d++) {
    const bool is_channel = value[d] >= 0 && value[d] < w->dim;
    if (!reads[d] && is_channel && reader[(int)value[d]] == NOWHERE) reader[(int)value[d]] = d, reads[d] = true;
  }
  for (int d = 0; d < w->dim; d++)
    if (!reads[d] && reader[d] == NOWHERE) reader[d] = d, reads[d] = true;
  for (int d = 0, c = 0; d < w->dim; d++) {
    if (reads[d]) continue;
    while (reader[c] != NOWHERE) c++;
    reader[c] = d;
  }
  for (int c = 0; c < w->dim; c++) from[reader[c]] = (uint16_t)c, back[c] = (uint16_t)reader[c];
}

static luattn_status find_permutation(row_work *w, int read, const bool (*reads)[SPEC_MAX_READS]) {
  const double *value = values_by_channel(w, w->t->read[read]);
  int *reader = arena_array(w->a, (size_t)w->dim, sizeof *reader);
  w->from[read] = arena_array(w->a, (size_t)w->dim, sizeof **w->from);
  w->back[read] = arena_array(w->a, (size_t)w->dim, sizeof **w->back);
  if (value == NULL || reader == NULL || w->from[read] == NULL || w->back[read] == NULL) return no_memory(w);
  for (int c = 0; c < w->dim; c++) reader[c] = NOWHERE;
  for (int d = 0; d < w->dim; d++) {
    if (!reads[d][read]) continue;
    if (!(value[d] >= 0 && value[d] < w->dim)) return refuse_outside(w, read, d, value[d]);
    const int c = (int)value[d];
    if (reader[c] != NOWHERE) return refuse_twice(w, read, reader[c], d, c);
    reader[c] = d;
  }
  complete(w, read, value, reader);
  return arena_failed(w->a) ? no_memory(w) : LUATTN_OK;
}

static luattn_status find_permutations(row_work *w, ir_ref mod) {
  bool(*reads)[SPEC_MAX_READS] = arena_array(w->a, (size_t)w->dim, sizeof *reads);
  ir_bounds *bounds = arena_array(w->a, ir_count(w->g), sizeof *bounds);
  uint8_t *reached = arena_array(w->a, ir_count(w->g), 1);
  if (reads == NULL || bounds == NULL || reached == NULL) return no_memory(w);
  for (int d = 0; d < w->dim; d++) {
    reads_at(w, mod, d, bounds, reached, reads[d]);
    for (int i = 0; i < w->t->num_reads; i++) w->used[i] |= reads[d][i];
  }
  for (int i = 0; i < w->t->num_reads; i++)
    if (w->used[i]) TRY(find_permutation(w, i, (const bool(*)[SPEC_MAX_READS])reads));
  return LUATTN_OK;
}

/* ---- tables ---- */

/* The number of the table d -> second[first[d]]; first NULL: of second. IDENTITY, or *status says why not. */
static int table_of(row_work *w, const uint16_t *second, const uint16_t *first, luattn_status *status) {
  row_tables *t = w->tables;
  const size_t size = (size_t)w->dim * sizeof(uint16_t);
  uint16_t *made = arena_array(w->a, (size_t)w->dim, sizeof *made);
  if (made == NULL) return *status = no_memory(w), IDENTITY;
  bool same = true;
  for (int d = 0; d < w->dim; d++) {
    made[d] = second[first != NULL ? first[d] : d];
    same &= made[d] == d;
  }
  if (same) return IDENTITY;
  for (int i = 0; i < t->count; i++)
    if (memcmp(t->channel[i], made, size) == 0) return i;
  if (t->count == ROW_MAX_TABLES) {
    *status = luattn_fail(w->err, LUATTN_SPEC,
                          "%s: %s: its x[..] and those that its derivative reads are more than %d "
                          "permutations of the channels; read fewer",
                          w->t->file, w->hook, ROW_MAX_TABLES);
    return IDENTITY;
  }
  t->channel[t->count] = made;
  return t->count++;
}

static ir_ref seen_at(ir *g, ir_var own, ir_var other, int table) {
  return table == IDENTITY ? ir_variable(g, own, 0) : ir_variable(g, other, (uint32_t)table);
}

enum { ROW_LEAVES = 3 + SPEC_MAX_READS };

/* Returns the replacements for x, its gradient, its channel and x[..] that read channel at[d] instead of d; at
 * NULL: d itself. */
static luattn_status move_leaves(row_work *w, const uint16_t *at, ir_ref from[ROW_LEAVES], ir_ref to[ROW_LEAVES]) {
  ir *g = w->g;
  luattn_status status = LUATTN_OK;
  const int own = at == NULL ? IDENTITY : table_of(w, at, NULL, &status);
  static const ir_var pairs[3][2] = {{VAR_X, VAR_READ}, {VAR_GRAD, VAR_READ_GRAD}, {VAR_D, VAR_CHANNEL}};
  for (int i = 0; i < 3; i++) {
    from[i] = ir_variable(g, pairs[i][0], 0);
    to[i] = seen_at(g, pairs[i][0], pairs[i][1], own);
  }
  for (int i = 0; i < SPEC_MAX_READS; i++) {
    from[3 + i] = to[3 + i] = IR_NONE;
    if (!w->used[i] || status != LUATTN_OK) continue;
    from[3 + i] = ir_variable(g, VAR_READ, (uint32_t)i);
    to[3 + i] = seen_at(g, VAR_X, VAR_READ, table_of(w, w->from[i], at, &status));
  }
  return status;
}

static ir_ref moved(ir *g, ir_ref r, const ir_ref *from, const ir_ref *to) {
  return r == IR_NONE ? IR_NONE : ir_substitute(g, r, from, to, ROW_LEAVES);
}

/* Builds a channel's gradient: from its own element, plus the contributions of the channels that read it. */
static luattn_status move_derivative(row_work *w, derived_mod *d) {
  ir *g = w->g;
  ir_ref from[ROW_LEAVES], to[ROW_LEAVES];
  TRY(move_leaves(w, NULL, from, to));
  ir_ref dx = moved(g, d->dx, from, to);
  for (int i = 0; i < d->terms.count; i++) {
    derived_term *t = &d->terms.term[i];
    t->value = moved(g, t->value, from, to);
    for (int k = 0; k < t->num_index; k++) t->index[k] = moved(g, t->index[k], from, to);
  }
  for (int i = 0; i < w->t->num_reads && dx != IR_NONE; i++) {
    if (!w->used[i] || d->by_read[i] == IR_NONE) continue;
    TRY(move_leaves(w, w->back[i], from, to));
    dx = ir_op2(g, IR_ADD, dx, moved(g, d->by_read[i], from, to));
  }
  d->dx = dx;
  memset(d->by_read, 0, sizeof d->by_read);
  if (dx != IR_NONE) ir_simplify(g, &d->dx, 1);
  return LUATTN_OK;
}

static luattn_status resolve(row_work *w, ir_ref *mod, derived_mod *d, const row_tables **rows) {
  if (*mod == IR_NONE || !ir_uses(w->g, *mod, VAR_READ)) return LUATTN_OK;
  ir_ref from[ROW_LEAVES], to[ROW_LEAVES];
  w->tables = arena_new(w->a, sizeof *w->tables);
  if (w->tables == NULL) return no_memory(w);
  w->tables->dim = w->dim;
  TRY(find_permutations(w, *mod));
  TRY(move_leaves(w, NULL, from, to));
  *mod = moved(w->g, *mod, from, to);
  TRY(move_derivative(w, d));
  if (w->tables->count > 0) *rows = w->tables;
  return ir_failed(w->g) || arena_failed(w->a) ? no_memory(w) : LUATTN_OK;
}

/* ---- the whole ---- */

bool mod_rows_need_dim(const traced_spec *t) {
  if (t->num_reads > 0) return true;
  for (ir_ref r = 1; r < ir_count(t->g); r++)
    if (ir_is_var(t->g, r, VAR_HEAD_DIM) || ir_is_var(t->g, r, VAR_HEAD_DIM_V)) return true;
  return false;
}

luattn_status mod_rows_resolve(arena *a, struct luattn_spec *spec, int dim, int dim_v, luattn_error *err) {
  traced_spec *t = &spec->traced;
  derived_spec *d = &spec->derived;
  if (!mod_rows_need_dim(t)) return LUATTN_OK;
  TRY(set_dims(a, spec, dim, dim_v, err));
  const struct {
    const char *hook;
    ir_ref *mod;
    derived_mod *derivative;
    int dim;
  } all[3] = {{"query_mod", &t->query_mod, &d->query_mod, dim},
              {"key_mod", &t->key_mod, &d->key_mod, dim},
              {"value_mod", &t->value_mod, &d->value_mod, dim_v}};
  for (int i = 0; i < 3; i++) {
    row_work w = {.a = a, .t = t, .g = t->g, .hook = all[i].hook, .dim = all[i].dim, .err = err};
    TRY(resolve(&w, all[i].mod, all[i].derivative, &t->rows[i]));
  }
  return LUATTN_OK;
}
