/* gradient_terms.c: computes the terms of gradients of inputs and scalars: the value that each lane adds, and
 * its offset. */
#include "gen/cpu/backward.h"

luattn_status terms_open(backward *w, const derived_terms *terms, term_program *out, luattn_error *err) {
  cpu_problem *p = &w->p;
  ir_ref roots[MAX_ROOTS];
  int n = 0;
  for (int i = 0; i < terms->count; i++) {
    const derived_term *t = &terms->term[i];
    roots[n] = t->value;
    if (w->purpose == PARAMETER_NOISE) TRY(magnitude_of(p->a, p->g, &roots[n], 1, err));
    n++;
    for (int j = 0; j < t->num_index; j++) roots[n++] = t->index[j];
  }
  *out = (term_program){.terms = terms, .num_roots = n};
  if (n > p->most_values) p->most_values = n;
  return program_open(p, roots, n, &out->program, err);
}

/* NULL: not wanted. */
static double *sum_of(backward *w, const derived_term *t) {
  if (!has_parameters(w)) return NULL;
  if (t->input >= 0) return w->input_grad[t->input];
  return w->scalars_out.data != NULL ? &w->scalar_grad[t->scalar] : NULL;
}

void terms_want(backward *w, term_program *t) {
  int root = 0;
  t->num_wanted = 0;
  for (int i = 0; t->num_roots > 0 && i < t->terms->count; i++) {
    const derived_term *term = &t->terms->term[i];
    double *sum = sum_of(w, term);
    if (sum != NULL) t->wanted[t->num_wanted++] = (wanted_term){term, root, sum};
    root += 1 + term->num_index;
  }
}

static size_t input_offset(const cpu_lanes *c, const derived_term *term, const double *const *index, int lane) {
  const uint32_t input = (uint32_t)term->input;
  size_t at = 0;
  for (int j = 0; j < term->num_index; j++)
    at = at * (size_t)c->p->input[input].shape[j] + (size_t)lane_index(c, input, j, lane, index[j][lane]);
  return at;
}

/* Selects from the values of the program. */
static void one_term(const backward *w, const wanted_term *t, const cpu_lanes *lanes, double *const *out, int count,
                     const double *weight, double *value, size_t *offset) {
  const double *from = out[t->root], *const *index = (const double *const *)(out + t->root + 1);
  for (int lane = 0; lane < count; lane++) {
    const double x = weight != NULL ? weight[lane] * from[lane] : from[lane];
    value[lane] = squares_parameters(w) ? x * x : x;
  }
  for (int lane = 0; t->term->input >= 0 && lane < count; lane++)
    offset[lane] = input_offset(lanes, t->term, index, lane);
}

void terms_add_lanes(const wanted_term *t, const double *value, const size_t *offset, int count) {
  for (int lane = 0; lane < count; lane++) t->sum[t->term->input < 0 ? 0 : offset[lane]] += value[lane];
}

static void run_program(const term_program *t, cpu_lanes *lanes, int count, double **out) {
  for (int i = 0; i < t->num_roots; i++) out[i] = lanes->w->values[i];
  program_run(&t->program, lanes, count, out);
}

void terms_run(const backward *w, const term_program *t, cpu_lanes *lanes, int count, const double *weight, int stride,
               double *value, size_t *offset) {
  double *out[MAX_ROOTS];
  if (t->num_wanted == 0) return;
  run_program(t, lanes, count, out);
  for (int i = 0; i < t->num_wanted; i++)
    one_term(w, &t->wanted[i], lanes, out, count, weight, value + i * stride, offset + i * stride);
}

void terms_add(const backward *w, const term_program *t, cpu_lanes *lanes, int count) {
  double *out[MAX_ROOTS], value[IR_LANES];
  size_t offset[IR_LANES];
  if (t->num_wanted == 0) return;
  run_program(t, lanes, count, out);
  for (int i = 0; i < t->num_wanted; i++) {
    one_term(w, &t->wanted[i], lanes, out, count, NULL, value, offset);
    terms_add_lanes(&t->wanted[i], value, offset, count);
  }
}
