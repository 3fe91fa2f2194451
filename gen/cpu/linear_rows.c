#include "gen/cpu/linear_rows.h"

#include <math.h>
#include <string.h>

int linear_block(const linear_problem *p) {
  const int root = (int)ceil(sqrt((double)p->most));
  return root <= 64 ? 64 : (root + 63) / 64 * 64;
}

static double *room(const linear_problem *p, int block, int width, bool *ok) {
  double *x = arena_array(p->a, (size_t)block * (size_t)width, sizeof *x);
  *ok &= x != NULL;
  return x;
}

bool linear_worker_open(const linear_problem *p, int block, bool is_forward, linear_worker *w) {
  const int k = p->k_dim, v = p->v_dim, s = p->state_v;
  bool ok = true;
  *w = (linear_worker){.p = p, .block = block, .scratch = arena_new(p->a, p->scratch_bytes)};
  double **of_k[] = {&w->raw_q, &w->raw_k, &w->q, &w->k, &w->g, &w->r, &w->e};
  double **of_v[] = {&w->raw_v, &w->v, &w->w, &w->skip};
  double **of_state[] = {&w->b, &w->o};
  double **back_k[] = {&w->dq, &w->dk, &w->dg, &w->dr, &w->de, &w->sum_q, &w->sum_k};
  double **back_v[] = {&w->dout, &w->dv, &w->dw};
  double **back_state[] = {&w->du, &w->db};
  for (size_t i = 0; i < sizeof of_k / sizeof *of_k; i++) *of_k[i] = room(p, block, k, &ok);
  for (size_t i = 0; i < sizeof of_v / sizeof *of_v; i++) *of_v[i] = room(p, block, v, &ok);
  for (size_t i = 0; i < sizeof of_state / sizeof *of_state; i++) *of_state[i] = room(p, block, s, &ok);
  for (size_t i = 0; !is_forward && i < sizeof back_k / sizeof *back_k; i++) *back_k[i] = room(p, block, k, &ok);
  for (size_t i = 0; !is_forward && i < sizeof back_v / sizeof *back_v; i++) *back_v[i] = room(p, block, v, &ok);
  for (size_t i = 0; !is_forward && i < sizeof back_state / sizeof *back_state; i++)
    *back_state[i] = room(p, block, s, &ok);
  for (int i = 0; i < LINEAR_HOOKS; i++) w->red[i] = room(p, block, CHANNEL_SUMS_MAX, &ok);
  w->row = room(p, block, CHANNEL_SUMS_MAX, &ok);
  w->roots = room(p, IR_LANES, p->most_roots, &ok);
  const linear_rows most = {.tokens = block, .k_dim = k, .v_dim = s};
  w->room = arena_array(p->a, linear_room(&most, !is_forward), sizeof *w->room);
  return ok && w->scratch != NULL && w->room != NULL;
}

linear_site linear_site_of(const linear_worker *w, linear_hook_id id, int entry, int head_v, int64_t first, int count) {
  return (linear_site){.p = w->p,
                       .entry = entry,
                       .head = linear_hook_rows[id].of_queries ? head_v / w->p->group : head_v,
                       .first = first,
                       .count = count,
                       .scratch = w->scratch,
                       .roots = w->roots};
}

void linear_load(const linear_problem *p, const cpu_view *from, int entry, int head, int64_t first, int count,
                 double *to) {
  const int dim = (int)from->shape[3];
  for (int t = 0; t < count; t++)
    for (int d = 0; d < dim; d++)
      to[t * dim + d] =
          view_get(from, (int64_t[]){linear_batch(p, entry), linear_start(p, entry) + first + t, head, d});
}

void linear_store(const linear_problem *p, const cpu_view *to, int entry, int head, int64_t first, int count,
                  const double *from) {
  const int dim = (int)to->shape[3];
  for (int t = 0; t < count; t++)
    for (int d = 0; d < dim; d++)
      view_set(to, (int64_t[]){linear_batch(p, entry), linear_start(p, entry) + first + t, head, d}, from[t * dim + d]);
}

/* Notes the first decay above 0, in the order of entries, heads and tokens. */
static void look_for_growth(linear_worker *w, const linear_site *s, int width) {
  linear_growth *g = &w->growth;
  for (int i = 0; w->checks && i < s->count * width; i++) {
    const int64_t token = s->first + i / width;
    const bool is_first = !g->found || s->entry < g->entry || (s->entry == g->entry && s->head < g->head);
    if (w->g[i] > 0 && is_first) *g = (linear_growth){true, s->entry, s->head, token, w->g[i]};
  }
}

void linear_look_for_growth(linear_worker *w, int entry, int head_v, int64_t first, int count) {
  const linear_site s = linear_site_of(w, LINEAR_DECAY, entry, head_v, first, count);
  linear_hook_run(&s, LINEAR_DECAY, NULL, w->red[LINEAR_DECAY], w->g);
  look_for_growth(w, &s, w->p->hook[LINEAR_DECAY].width);
}

/* What is written: the strength times v, and times the channel that is always 1. */
static void fill_written(linear_worker *w, const double *v, bool has_strength, int width, int count) {
  const linear_problem *p = w->p;
  for (int t = 0; t < count; t++)
    for (int j = 0; j < p->state_v; j++) {
      const double strength = !has_strength ? 1 : w->w[width > 1 ? t * width + j : t];
      w->b[t * p->state_v + j] = strength * (j < p->v_dim ? v[t * p->v_dim + j] : 1);
    }
}

linear_rows linear_rows_of(linear_worker *w, int entry, int head_v, int64_t first, int count) {
  const linear_problem *p = w->p;
  const int head = head_v / p->group;
  linear_load(p, &p->q, entry, head, first, count, w->raw_q);
  linear_load(p, &p->k, entry, head, first, count, w->raw_k);
  linear_load(p, &p->v, entry, head_v, first, count, w->raw_v);
  const bool has_v = p->derived->hook[LINEAR_VALUE].given;
  const struct {
    linear_hook_id id;
    const double *x;
    double *to;
  } run[] = {{LINEAR_QUERY, w->raw_q, w->q}, {LINEAR_KEY, w->raw_k, w->k},    {LINEAR_VALUE, w->raw_v, w->v},
             {LINEAR_DECAY, NULL, w->g},     {LINEAR_WRITE, NULL, w->w},      {LINEAR_READ, w->k, w->r},
             {LINEAR_ERASE, w->k, w->e},     {LINEAR_SKIP, w->raw_v, w->skip}};
  if (!p->derived->hook[LINEAR_QUERY].given) memcpy(w->q, w->raw_q, (size_t)count * (size_t)p->k_dim * sizeof *w->q);
  if (!p->derived->hook[LINEAR_KEY].given) memcpy(w->k, w->raw_k, (size_t)count * (size_t)p->k_dim * sizeof *w->k);
  for (size_t i = 0; i < sizeof run / sizeof *run; i++) {
    if (!p->derived->hook[run[i].id].given) continue;
    const linear_site s = linear_site_of(w, run[i].id, entry, head_v, first, count);
    linear_hook_run(&s, run[i].id, run[i].x, w->red[run[i].id], run[i].to);
    if (run[i].id == LINEAR_DECAY) look_for_growth(w, &s, p->hook[LINEAR_DECAY].width);
  }
  fill_written(w, has_v ? w->v : w->raw_v, p->derived->hook[LINEAR_WRITE].given, p->hook[LINEAR_WRITE].width, count);
  return (linear_rows){.tokens = count,
                       .k_dim = p->k_dim,
                       .v_dim = p->state_v,
                       .g_width = p->derived->hook[LINEAR_DECAY].given ? p->hook[LINEAR_DECAY].width : 0,
                       .before = p->derived->class.before,
                       .scale = p->scale,
                       .q = w->q,
                       .k = w->k,
                       .b = w->b,
                       .g = w->g,
                       .r = p->derived->class.reads ? w->r : NULL,
                       .e = p->derived->class.erases ? w->e : NULL};
}
