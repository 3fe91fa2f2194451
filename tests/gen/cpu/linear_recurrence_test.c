/* linear_recurrence_test.c: the recurrence beside its unrolled sum, and its gradients beside differences. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen/cpu/linear_recurrence.h"

enum { TOKENS = 11, K = 5, V = 4 };

static uint64_t seed = 3;
static double uniform(void) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (double)(seed >> 11) / 9007199254740992.0;
}
static void draw(double *x, size_t n, double lo, double hi) {
  for (size_t i = 0; i < n; i++) x[i] = lo + (hi - lo) * uniform();
}

/* All numbers of a head, one after another, and where each tensor begins. */
typedef struct head {
  double q[TOKENS * K], k[TOKENS * K], b[TOKENS * V], g[TOKENS * K], r[TOKENS * K], e[TOKENS * K], state[K * V];
} head;
enum { NUMBERS = sizeof(head) / sizeof(double) };

typedef struct form {
  int g_width;
  bool reads, erases, before, has_state;
} form;

static linear_rows rows_of(const head *h, const form *f) {
  return (linear_rows){.tokens = TOKENS,
                       .k_dim = K,
                       .v_dim = V,
                       .g_width = f->g_width,
                       .before = f->before,
                       .scale = 0.7,
                       .q = h->q,
                       .k = h->k,
                       .b = h->b,
                       .g = f->g_width > 0 ? h->g : NULL,
                       .r = f->reads ? h->r : NULL,
                       .e = f->erases ? h->e : NULL,
                       .state = f->has_state ? h->state : NULL};
}

static void draw_head(head *h) {
  draw((double *)h, NUMBERS, -1, 1);
  draw(h->g, TOKENS * K, -2, 0);
}

static void forward(const head *h, const form *f, double *o, double *s) {
  const linear_rows rows = rows_of(h, f);
  luattn_error err;
  assert_int_equal(linear_forward(&rows, o, s, &err), LUATTN_OK);
}

/* Without a read, o_t = scale * sum over j <= t of (q_t' diag(exp(sum of g from j + 1 to t)) k_j) b_j. */
static void test_sum(void **unused) {
  (void)unused;
  head h;
  draw_head(&h);
  for (int width = 0; width <= K; width += width == 0 ? 1 : K - 1) {
    double o[TOKENS * V];
    forward(&h, &(form){.g_width = width}, o, NULL);
    for (int t = 0; t < TOKENS; t++)
      for (int v = 0; v < V; v++) {
        double want = 0;
        for (int j = 0; j <= t; j++)
          for (int c = 0; c < K; c++) {
            double decay = 0;
            for (int i = j + 1; width > 0 && i <= t; i++) decay += h.g[i * width + (width == 1 ? 0 : c)];
            want += h.q[t * K + c] * exp(decay) * h.k[j * K + c] * h.b[j * V + v];
          }
        assert_true(fabs(o[t * V + v] - 0.7 * want) <= 1e-14 * (1 + fabs(want)));
      }
  }
}

/* A delta rule of strength 1 with unit keys stores the last value of a key. */
static void test_delta_replaces(void **unused) {
  (void)unused;
  head h = {0};
  draw(h.b, TOKENS * V, -1, 1);
  for (int t = 0; t < TOKENS; t++) h.k[t * K + t % 3] = h.r[t * K + t % 3] = h.q[t * K + t % 3] = 1;
  double o[TOKENS * V];
  forward(&h, &(form){.reads = true}, o, NULL);
  for (int i = 0; i < TOKENS * V; i++) assert_true(fabs(o[i] - 0.7 * h.b[i]) <= 1e-15);
}

/* exp(-inf), and what lies below the least logarithm, forget everything, an infinite state too. */
static void test_all_decays(void **unused) {
  (void)unused;
  head h;
  draw_head(&h);
  const form f = {.g_width = 1, .reads = true, .has_state = true};
  const double gates[] = {-INFINITY, -1e30, -1000};
  for (int i = 0; i < 3; i++) {
    double o[TOKENS * V], alone[V], s[K * V];
    for (int t = 0; t < TOKENS; t++) h.g[t] = gates[i];
    h.state[3] = INFINITY;
    forward(&h, &f, o, s);
    for (int t = 0; t < TOKENS; t++)
      for (int v = 0; v < V; v++) {
        alone[v] = 0;
        for (int c = 0; c < K; c++) alone[v] += h.q[t * K + c] * h.k[t * K + c];
        assert_true(fabs(o[t * V + v] - 0.7 * alone[v] * h.b[t * V + v]) <= 1e-14);
      }
  }
}

/* The state of a sequence is that of its second part, begun with that of the first. */
static void test_parts(void **unused) {
  (void)unused;
  head h;
  draw_head(&h);
  const form f = {.g_width = K, .reads = true, .erases = true, .before = true, .has_state = true};
  double o[TOKENS * V], s[K * V], first[TOKENS * V], middle[K * V], end[K * V];
  forward(&h, &f, o, s);
  linear_rows rows = rows_of(&h, &f);
  luattn_error err;
  rows.tokens = 4;
  assert_int_equal(linear_forward(&rows, first, middle, &err), LUATTN_OK);
  rows.tokens = TOKENS - 4, rows.state = middle;
  rows.q += 4 * K, rows.k += 4 * K, rows.b += 4 * V, rows.g += 4 * K, rows.r += 4 * K, rows.e += 4 * K;
  assert_int_equal(linear_forward(&rows, first + 4 * V, end, &err), LUATTN_OK);
  assert_memory_equal(first, o, sizeof o);
  assert_memory_equal(end, s, sizeof s);
  rows.tokens = 0; /* nothing happens to the state, or to its gradient */
  assert_int_equal(linear_forward(&rows, NULL, end, &err), LUATTN_OK);
  assert_memory_equal(end, middle, sizeof end);
  assert_int_equal(linear_backward(&rows, NULL, s, &(linear_gradients){.state = end}, &err), LUATTN_OK);
  assert_memory_equal(end, s, sizeof end);
}

/* ---- gradients ---- */

static double loss(const head *h, const form *f, const double *do_, const double *ds) {
  double o[TOKENS * V], s[K * V], sum = 0;
  forward(h, f, o, s);
  for (int i = 0; i < TOKENS * V; i++) sum += do_[i] * o[i];
  for (int i = 0; i < K * V; i++) sum += ds[i] * s[i];
  return sum;
}

static double difference(head *h, const form *f, const double *do_, const double *ds, int i) {
  double *x = (double *)h + i, at = *x, v[4];
  const double step = 1e-3, by[] = {-2, -1, 1, 2};
  for (int j = 0; j < 4; j++) {
    *x = at + by[j] * step;
    v[j] = loss(h, f, do_, ds);
  }
  *x = at;
  return (8 * (v[2] - v[1]) - (v[3] - v[0])) / (12 * step);
}

static void check_gradients(const form *f) {
  head h, grad;
  double do_[TOKENS * V], ds[K * V];
  draw_head(&h);
  draw(do_, TOKENS * V, -1, 1);
  draw(ds, K * V, -1, 1);
  memset(&grad, 0, sizeof grad);
  const linear_rows rows = rows_of(&h, f);
  const linear_gradients out = {grad.q, grad.k, grad.b, grad.g, grad.r, grad.e, grad.state};
  luattn_error err;
  assert_int_equal(linear_backward(&rows, do_, ds, &out, &err), LUATTN_OK);
  const double *g = (const double *)&grad;
  if (!f->has_state) memset(grad.state, 0, sizeof grad.state); /* the gradient of the zeros that stand for it */
  for (int i = 0; i < NUMBERS; i++) {
    const double want = difference(&h, f, do_, ds, i);
    if (!(fabs(g[i] - want) <= 1e-9 * (1 + fabs(want))))
      fail_msg("number %d of %d: %.12g, differences give %.12g", i, NUMBERS, g[i], want);
  }
}

static void test_gradients(void **unused) {
  (void)unused;
  for (int width = 0; width <= K; width += width == 0 ? 1 : K - 1)
    for (int bits = 0; bits < 16; bits++) {
      const form f = {width, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
      if (f.reads || (!f.erases && !f.before)) check_gradients(&f);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_sum), cmocka_unit_test(test_delta_replaces),
                                     cmocka_unit_test(test_all_decays), cmocka_unit_test(test_parts),
                                     cmocka_unit_test(test_gradients)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
