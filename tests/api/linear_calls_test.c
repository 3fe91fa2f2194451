/* linear_calls_test.c: luattn_linear_forward and luattn_linear_backward of an engine on the CPU: gradients and states beside
 * sums of pairs, and what they refuse. */
#include <math.h>
#include <string.h>

#include "luattn/linear.h"
#include "tests/api/setup.h"

/* One head, with decays g: o_t = sum over j <= t of e^(g_j+1 + .. + g_t) (q_t k_j) v_j, and what is left of the first state. */
enum { TOKENS = 70, DIM = 3, DIM_V = 2, EVERY = 64 };

static const char text[] =
    "return linear_attention { name = 'decayed', inputs = { g = { axes = {'t'}, grad = true } }, scale = 1,\n"
    "  decay = function(b, h, t) return g[t] end }";

typedef struct tensor {
  DLTensor t;
  int64_t shape[5];
  double x[TOKENS * DIM];
} tensor;

typedef struct problem {
  luattn_spec *spec;
  luattn_engine *engine;
  tensor q, k, v, o, g, first, last, between, dout, dlast, dq, dk, dv, dg, dfirst;
  luattn_input input;
  luattn_linear_args args;
} problem;

static problem p;

static void make(tensor *t, int ndim, int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, unsigned seed) {
  const int64_t shape[] = {a, b, c, d, e};
  memcpy(t->shape, shape, sizeof shape);
  t->t = (DLTensor){t->x, {kDLCPU, 0}, ndim, {kDLFloat, 64, 1}, t->shape, NULL, 0};
  for (int i = 0; i < TOKENS * DIM; i++) {
    seed = seed * 1664525u + 1013904223u;
    t->x[i] = (double)(seed >> 8) / (1 << 23) - 1;
  }
}

static int open_problem(void **state) {
  (void)state;
  luattn_error err;
  const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU};
  api_ok(luattn_spec_load_text("decayed", text, sizeof text - 1, NULL, &p.spec, &err), &err);
  p.engine = api_engine(&options);
  tensor *const of_k[] = {&p.q, &p.k, &p.dq, &p.dk}, *const of_v[] = {&p.v, &p.o, &p.dout, &p.dv},
                *const states[] = {&p.first, &p.last, &p.dlast, &p.dfirst};
  for (unsigned i = 0; i < 4; i++) {
    make(of_k[i], 4, 1, TOKENS, 1, DIM, 0, i);
    make(of_v[i], 4, 1, TOKENS, 1, DIM_V, 0, 10 + i);
    make(states[i], 4, 1, 1, DIM, DIM_V, 0, 20 + i);
  }
  make(&p.between, 5, 1, 2, 1, DIM, DIM_V, 30);
  make(&p.g, 1, TOKENS, 0, 0, 0, 0, 31), make(&p.dg, 1, TOKENS, 0, 0, 0, 0, 32);
  for (int t = 0; t < TOKENS; t++) p.g.x[t] = -fabs(p.g.x[t]) / 8;
  p.input = (luattn_input){.name = "g", .tensor = &p.g.t, .grad = &p.dg.t};
  p.args = (luattn_linear_args){.struct_size = sizeof p.args,
                                .q = &p.q.t,
                                .k = &p.k.t,
                                .v = &p.v.t,
                                .o = &p.o.t,
                                .dout = &p.dout.t,
                                .dq = &p.dq.t,
                                .dk = &p.dk.t,
                                .dv = &p.dv.t,
                                .inputs = &p.input,
                                .num_inputs = 1,
                                .initial_state = &p.first.t,
                                .final_state = &p.last.t,
                                .state_layout = LUATTN_STATE_KV,
                                .dfinal_state = &p.dlast.t,
                                .dinitial_state = &p.dfirst.t,
                                .intermediate_states = &p.between.t,
                                .states_every = EVERY};
  return 0;
}

static int close_problem(void **state) {
  (void)state;
  luattn_engine_close(p.engine);
  luattn_spec_free(p.spec);
  return 0;
}

/* ---- from sums of pairs ---- */

/* e^(sum of g over tokens after `from` up to `to`); from -1: from the first state. */
static double left(const double *g, int from, int to) {
  double sum = 0;
  for (int t = from + 1; t <= to; t++) sum += g[t];
  return exp(sum);
}

/* The state before token `end`. */
static double state_before(int end, int i, int j) {
  double s = left(p.g.x, -1, end - 1) * p.first.x[i * DIM_V + j];
  for (int t = 0; t < end; t++) s += left(p.g.x, t, end - 1) * p.k.x[t * DIM + i] * p.v.x[t * DIM_V + j];
  return s;
}

/* The sum of what backward differentiates: o times dout, and the final state times dlast. */
static double loss(void) {
  double sum = 0;
  for (int t = 0; t < TOKENS; t++)
    for (int i = 0; i < DIM; i++)
      for (int j = 0; j < DIM_V; j++) sum += p.dout.x[t * DIM_V + j] * p.q.x[t * DIM + i] * state_before(t + 1, i, j);
  for (int i = 0; i < DIM; i++)
    for (int j = 0; j < DIM_V; j++) sum += p.dlast.x[i * DIM_V + j] * state_before(TOKENS, i, j);
  return sum;
}

static void near(const char *what, int at, double got, double want, double most) {
  if (fabs(got - want) > most * (1 + fabs(want)))
    fail_msg("%s: number %d is %.12g, expected %.12g", what, at, got, want);
}

static void forward(void **state) {
  (void)state;
  luattn_error err;
  api_ok(luattn_linear_forward(p.engine, p.spec, &p.args, NULL, &err), &err);
  for (int i = 0; i < DIM; i++)
    for (int j = 0; j < DIM_V; j++) {
      const int at = i * DIM_V + j;
      near("final_state", at, p.last.x[at], state_before(TOKENS, i, j), 1e-12);
      near("intermediate_states", at, p.between.x[at], p.first.x[at], 0);
      near("intermediate_states", at, p.between.x[DIM * DIM_V + at], state_before(EVERY, i, j), 1e-12);
    }
  for (int t = 0; t < TOKENS; t++)
    for (int j = 0; j < DIM_V; j++) {
      double o = 0;
      for (int i = 0; i < DIM; i++) o += p.q.x[t * DIM + i] * state_before(t + 1, i, j);
      near("o", t, p.o.x[t * DIM_V + j], o, 1e-12);
    }
}

/* The loss is linear in all but g: differences are exact but for rounding. */
static void differ(const char *name, tensor *x, const tensor *grad, double step, double most) {
  int64_t count = 1;
  for (int i = 0; i < x->t.ndim; i++) count *= x->shape[i];
  for (int at = 0; at < count; at += 1 + (int)count / 6) {
    const double kept = x->x[at];
    x->x[at] = kept + step;
    const double above = loss();
    x->x[at] = kept - step;
    near(name, at, grad->x[at], (above - loss()) / (2 * step), most);
    x->x[at] = kept;
  }
}

static void backward(void **state) {
  (void)state;
  luattn_error err;
  api_ok(luattn_linear_backward(p.engine, p.spec, &p.args, NULL, &err), &err);
  differ("dq", &p.q, &p.dq, 1, 1e-10);
  differ("dk", &p.k, &p.dk, 1, 1e-10);
  differ("dv", &p.v, &p.dv, 1, 1e-10);
  differ("dinitial_state", &p.first, &p.dfirst, 1, 1e-10);
  differ("d g", &p.g, &p.dg, 1e-4, 1e-6);
}

static void wanted_alone(void **state) {
  (void)state;
  luattn_error err;
  luattn_linear_args args = p.args;
  const double dk = p.dk.x[5];
  args.dq = args.dv = args.dinitial_state = NULL, args.dfinal_state = &p.dlast.t;
  p.dk.x[5] = 7;
  api_ok(luattn_linear_backward(p.engine, p.spec, &args, NULL, &err), &err);
  near("dk", 5, p.dk.x[5], dk, 0);
}

static void refusals(void **state) {
  (void)state;
  luattn_error err;
  luattn_linear_args args = p.args;
  size_t size = 1;
  int stream;
  api_refused(luattn_linear_backward(p.engine, p.spec, &args, &stream, &err), LUATTN_INVALID, &err,
              "luattn_linear_backward: stream: is not NULL, and the CPU has none; give NULL");
  api_ok(luattn_linear_backward_workspace_size(p.engine, p.spec, &args, &size, &err), &err);
  assert_int_equal(size, 0);
  size = 1;
  api_ok(luattn_linear_kept_size(p.engine, p.spec, &args, &size, &err), &err);
  assert_int_equal(size, 0);
  args.dv = &p.dk.t;
  api_refused(luattn_linear_backward(p.engine, p.spec, &args, NULL, &err), LUATTN_INVALID, &err, "dv: ");
  args = p.args, args.dv = &p.v.t;
  api_refused(luattn_linear_backward(p.engine, p.spec, &args, NULL, &err), LUATTN_INVALID, &err, "dv");
  args = p.args, args.final_state = &p.first.t;
  api_refused(luattn_linear_backward(p.engine, p.spec, &args, NULL, &err), LUATTN_INVALID, &err,
              "initial_state: is final_state, which forward has updated in place");
  args = p.args, args.states_every = 65;
  api_refused(luattn_linear_forward(p.engine, p.spec, &args, NULL, &err), LUATTN_INVALID, &err,
              "states_every: is 65, expected a multiple of 64 up to 2147483584, as intermediate_states is given");
  args = p.args, args.states_every = 128;
  api_refused(luattn_linear_forward(p.engine, p.spec, &args, NULL, &err), LUATTN_INVALID, &err,
              "intermediate_states: has 1 x 2 states, expected 1 x 1");
  args = p.args, args.intermediate_states = &p.first.t;
  api_refused(luattn_linear_forward(p.engine, p.spec, &args, NULL, &err), LUATTN_INVALID, &err,
              "intermediate_states: has 4 axes, expected 5");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(forward), cmocka_unit_test(backward),
                                     cmocka_unit_test(wanted_alone), cmocka_unit_test(refusals)};
  return cmocka_run_group_tests(tests, open_problem, close_problem);
}
