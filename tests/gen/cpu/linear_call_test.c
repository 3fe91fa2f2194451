/* linear_call_test.c: linear attention by the C functions: states in place, what they refuse, and what attention's functions
 * refuse of such a spec. tests/python/linear_test.py has the numbers. */
#include <string.h>

#include "luattn/linear.h"
#include "luattn/merge.h"
#include "tests/support/cpu_call.h"

static const char gla[] =
    "return linear_attention { name = 'gla', inputs = { g = { axes = {'b', 't', 'hv'} } },\n"
    "  decay = function(b, h, t) return g[{b, t, h}] end }";

enum { B = 2, T = 5, H = 1, HV = 2, K = 4, V = 3 };

typedef struct linear {
  tensor q, k, v, g, o, dout, dq, dk, dv, state, last;
  luattn_input input;
  luattn_linear_args args;
} linear;

static void linear_new(linear *c) {
  memset(c, 0, sizeof *c);
  tensor *const qk[] = {&c->q, &c->k, &c->dq, &c->dk}, *const values[] = {&c->v, &c->o, &c->dout, &c->dv};
  for (int i = 0; i < 4; i++) {
    tensor_new(qk[i], F64, 4, (int64_t[]){B, T, H, K}, DENSE);
    tensor_new(values[i], F32, 4, (int64_t[]){B, T, HV, V}, PADDED);
    tensor_fill(qk[i], 1 + (uint64_t)i);
    tensor_fill(values[i], 11 + (uint64_t)i);
  }
  tensor_new(&c->g, F32, 3, (int64_t[]){B, T, HV}, DENSE);
  for (int i = 0; i < B * T * HV; i++) tensor_set(&c->g, i, -0.1 * (i % 7));
  tensor_new(&c->state, F32, 4, (int64_t[]){B, HV, V, K}, DENSE_NULL);
  tensor_new(&c->last, F32, 4, (int64_t[]){B, HV, V, K}, DENSE_NULL);
  tensor_fill(&c->state, 21);
  tensor *const all[] = {&c->q, &c->k, &c->v, &c->g, &c->o, &c->dout, &c->dq, &c->dk, &c->dv, &c->state, &c->last};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    all[i]->t.shape = all[i]->shape, all[i]->t.strides = all[i]->stride;
  c->input = (luattn_input){.name = "g", .tensor = &c->g.t};
  c->args = (luattn_linear_args){.struct_size = sizeof c->args,
                                 .q = &c->q.t,
                                 .k = &c->k.t,
                                 .v = &c->v.t,
                                 .o = &c->o.t,
                                 .dout = &c->dout.t,
                                 .dq = &c->dq.t,
                                 .dk = &c->dk.t,
                                 .dv = &c->dv.t,
                                 .inputs = &c->input,
                                 .num_inputs = 1,
                                 .initial_state = &c->state.t,
                                 .final_state = &c->last.t,
                                 .state_layout = LUATTN_STATE_VK};
}

static void linear_free(linear *c) {
  tensor *const all[] = {&c->q, &c->k, &c->v, &c->g, &c->o, &c->dout, &c->dq, &c->dk, &c->dv, &c->state, &c->last};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tensor_free(all[i]);
}

static void refused(luattn_status status, luattn_status expected, const luattn_error *err, const char *words) {
  assert_int_equal(status, expected);
  if (strstr(err->message, words) == NULL) fail_msg("%s\n  lacks %s", err->message, words);
}

static void test_in_place(void **unused) {
  (void)unused;
  linear c;
  luattn_error err;
  linear_new(&c);
  luattn_spec *spec = load_text(gla);
  assert_int_equal(luattn_cpu_linear_forward(spec, &c.args, &err), LUATTN_OK);
  assert_int_equal(luattn_cpu_linear_backward(spec, &c.args, &err), LUATTN_OK);
  c.args.final_state = &c.state.t;
  assert_int_equal(luattn_cpu_linear_forward(spec, &c.args, &err), LUATTN_OK);
  for (int i = 0; i < B * HV * V * K; i++) assert_true(tensor_get(&c.state, i) == tensor_get(&c.last, i));
  refused(luattn_cpu_linear_backward(spec, &c.args, &err), LUATTN_INVALID, &err,
          "cpu: initial_state: is final_state, which forward has updated in place");
  luattn_spec_free(spec);
  linear_free(&c);
}

static void test_refusals(void **unused) {
  (void)unused;
  linear c;
  luattn_error err;
  linear_new(&c);
  luattn_spec *spec = load_text(gla), *attention = load_text("return attention { name = 'full' }");
  c.args.state_layout = 0;
  refused(luattn_cpu_linear_forward(spec, &c.args, &err), LUATTN_INVALID, &err,
          "cpu: state_layout: is 0, and initial_state is given; say LUATTN_STATE_VK");
  c.args.state_layout = LUATTN_STATE_VK;
  c.args.o = &c.v.t;
  refused(luattn_cpu_linear_forward(spec, &c.args, &err), LUATTN_INVALID, &err, "is shared with v");
  c.args.o = &c.o.t;
  c.input.grad = &c.g.t;
  refused(luattn_cpu_linear_backward(spec, &c.args, &err), LUATTN_INVALID, &err,
          "input 'g': its gradient is asked for, but the spec does not mark it");
  c.args.struct_size = 8;
  refused(luattn_cpu_linear_forward(spec, &c.args, &err), LUATTN_INVALID, &err, "struct_size is 8");
  c.args.struct_size = sizeof c.args;
  refused(luattn_cpu_linear_forward(attention, &c.args, &err), LUATTN_UNSUPPORTED, &err,
          "luattn_cpu_linear_forward: spec 'full': is of attention");
  luattn_spec_free(attention);
  luattn_spec_free(spec);
  linear_free(&c);
}

static void test_other_form(void **unused) {
  (void)unused;
  luattn_error err;
  luattn_spec *spec = load_text(gla), *parts;
  luattn_image *image;
  char *stages;
  const luattn_args args = {.struct_size = sizeof args};
  const luattn_target target = {.struct_size = sizeof target, .head_dim = 60, .arch = 90, .dtype = LUATTN_F64};
  static const char words[] = "spec 'gla': is of linear attention, and this function is of attention";
  assert_int_equal(luattn_spec_form(spec), LUATTN_FORM_LINEAR);
  refused(luattn_cpu_forward(spec, &args, &err), LUATTN_UNSUPPORTED, &err, words);
  refused(luattn_cpu_backward(spec, &args, &err), LUATTN_UNSUPPORTED, &err, words);
  refused(luattn_compile(spec, &target, &image, NULL, &err), LUATTN_UNSUPPORTED, &err,
          "head_dim: is 60, and kernels of linear attention take multiples of 8 up to 256");
  refused(luattn_spec_parts(spec, &parts, &err), LUATTN_UNSUPPORTED, &err, words);
  refused(luattn_emit(spec, &target, "source", &stages, &err), LUATTN_UNSUPPORTED, &err,
          "stage 'source' is none of linear attention");
  assert_int_equal(luattn_emit(spec, &target, "plan", &stages, &err), LUATTN_OK);
  assert_non_null(strstr(stages, "class L0\n  decay: one a token"));
  luattn_text_free(stages);
  luattn_spec_free(spec);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_in_place), cmocka_unit_test(test_refusals),
                                     cmocka_unit_test(test_other_form)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
