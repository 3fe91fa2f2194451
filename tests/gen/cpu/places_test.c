/* places_test.c: a spec over a grid on the CPU path beside the same written along a line, which finds coordinates by
 * // and %: outputs and all gradients, for tensors of any strides; what is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cpu_call.h"

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, DIM = 5, DIM_V = 6, AXES = 3, TENSORS = 11, INPUTS = 3 };
static const int64_t q_extent[AXES] = {3, 4, 5}, kv_extent[AXES] = {2, 5, 6};
enum { Q = 60, KV = 60 };

/* Hooks of coordinates qt, qy, qx, kt, ky, kx, and places q, k for random(). */
#define HOOKS                                                                                                      \
  "scalars = { cap = 3.0 }, "                                                                                      \
  "score_mod = function(score, b, h, q, k) " AT                                                                    \
  "local s = score + rows[{h, qy}] * (kx - qt) + columns[kx] + relative[{kt - qt + 2, ky - qy + 3, kx - qx + 4}] " \
  "return cap * tanh(s / cap) + 0.1 * random(b, h, q, k) / len end, "                                              \
  "block_mask = function(b, h, q, k) " AT                                                                          \
  "local dy, dx = qy - ky, qx - kx "                                                                               \
  "return kt <= qt and dy * dy + dx * dx <= 9 and not (eq(qy, 2) and eq(qx, 1)) end, "                             \
  "key_mod = function(x, b, h, pos, d) " POS                                                                       \
  "return x * (1 + 0.1 * pt - 0.05 * px) end, "                                                                    \
  "query_mod = function(x, b, h, pos, d) " QPOS "return x + 0.1 * py end, "

#define AT "local qt, qy, qx, kt, ky, kx, len = q.t, q.y, q.x, k.t, k.y, k.x, kv_len.x "
#define POS "local pt, px = pos.t, pos.x "
#define QPOS "local py = pos.y "
static const char over_grid[] =
    "return attention { grid = {'t', 'y', 'x'}, inputs = { rows = { axes = {'h', 'q.y'}, grad = true }, columns = { "
    "axes "
    "= {'kv.x'}, grad = true }, relative = { axes = {4, 8, 10}, grad = true } }, " HOOKS
    "online_func = attention_sink(0.5) }";
#undef AT
#undef POS
#undef QPOS
#define AT "local qt, qy, qx, kt, ky, kx, len = q // 20, q // 5 % 4, q % 5, k // 30, k // 6 % 5, k % 6, 6 "
#define POS "local pt, px = pos // 30, pos % 6 "
#define QPOS "local py = pos // 5 % 4 "
static const char along_line[] =
    "return attention { inputs = { rows = { axes = {'h', 4}, grad = true }, columns = { axes = {6}, grad = true }, "
    "relative = { axes = {4, 8, 10}, grad = true } }, " HOOKS "online_func = attention_sink(0.5) }";

typedef struct placed {
  tensor q, k, v, o, lse, dout, dlse, dq, dk, dv, scalars, input[INPUTS], grad[INPUTS];
  luattn_input inputs[INPUTS];
  luattn_args args;
} placed;

static void point(tensor *t, layout l) {
  t->t.shape = t->shape;
  t->t.strides = l == DENSE_NULL ? NULL : t->stride;
}

/* [batch, heads, places or their axes, dim]; dim 0: without it. */
static void make(tensor *t, int heads, const int64_t *extent, int axes, int dim, layout l) {
  int64_t shape[8] = {BATCH, heads};
  int n = 2;
  for (int a = 0; a < axes; a++) shape[n++] = extent[a];
  if (dim > 0) shape[n++] = dim;
  tensor_new(t, F64, n, shape, l);
  point(t, l);
}

static const luattn_random numbers = {.struct_size = sizeof numbers, .seed = 5, .offset = 7};

static void placed_new(placed *c, bool grid, layout l) {
  static const int64_t flat_q = Q, flat_kv = KV, input_shape[INPUTS][3] = {{HEADS, 4}, {6}, {4, 8, 10}}, one = 1;
  static const int input_axes[INPUTS] = {2, 1, 3};
  static const char *const names[INPUTS] = {"rows", "columns", "relative"};
  const int64_t *q = grid ? q_extent : &flat_q, *kv = grid ? kv_extent : &flat_kv;
  const int n = grid ? AXES : 1;
  const layout rows = l == DENSE_NULL ? DENSE_NULL : DENSE;
  make(&c->q, HEADS, q, n, DIM, l), make(&c->k, HEADS_KV, kv, n, DIM, l), make(&c->v, HEADS_KV, kv, n, DIM_V, l);
  make(&c->o, HEADS, q, n, DIM_V, l), make(&c->dout, HEADS, q, n, DIM_V, l), make(&c->dq, HEADS, q, n, DIM, l);
  make(&c->dk, HEADS_KV, kv, n, DIM, l), make(&c->dv, HEADS_KV, kv, n, DIM_V, l);
  make(&c->lse, HEADS, q, n, 0, rows), make(&c->dlse, HEADS, q, n, 0, rows);
  tensor_new(&c->scalars, F64, 1, &one, DENSE);
  point(&c->scalars, DENSE);
  tensor *const filled[] = {&c->q, &c->k, &c->v, &c->dout, &c->dlse};
  for (uint64_t i = 0; i < sizeof filled / sizeof *filled; i++) tensor_fill(filled[i], 100 + i);
  for (int i = 0; i < INPUTS; i++) {
    tensor_new(&c->input[i], F64, input_axes[i], input_shape[i], DENSE);
    tensor_new(&c->grad[i], F64, input_axes[i], input_shape[i], DENSE);
    point(&c->input[i], DENSE), point(&c->grad[i], DENSE);
    tensor_fill(&c->input[i], 200 + (uint64_t)i);
    c->inputs[i] = (luattn_input){names[i], &c->input[i].t, &c->grad[i].t};
  }
  c->args = (luattn_args){.struct_size = sizeof c->args,
                          .q = &c->q.t,
                          .k = &c->k.t,
                          .v = &c->v.t,
                          .o = &c->o.t,
                          .lse = &c->lse.t,
                          .dout = &c->dout.t,
                          .dlse = &c->dlse.t,
                          .dq = &c->dq.t,
                          .dk = &c->dk.t,
                          .dv = &c->dv.t,
                          .inputs = c->inputs,
                          .num_inputs = INPUTS,
                          .scalar_grads = &c->scalars.t,
                          .random = &numbers};
}

static void placed_free(placed *c) {
  tensor *const all[] = {&c->q, &c->k, &c->v, &c->o, &c->lse, &c->dout, &c->dlse, &c->dq, &c->dk, &c->dv, &c->scalars};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tensor_free(all[i]);
  for (int i = 0; i < INPUTS; i++) tensor_free(&c->input[i]), tensor_free(&c->grad[i]);
}

static void same(const char *what, const tensor *a, const tensor *b) {
  const int64_t n = tensor_count(a);
  double *want = malloc((size_t)n * sizeof *want);
  assert_int_equal(n, tensor_count(b));
  for (int64_t i = 0; i < n; i++) want[i] = tensor_get(b, i);
  assert_close(what, a, want, 1e-14);
  free(want);
}

/* Tangents along the gradients: <J J' u, u> is |J' u|^2, and o's tangent takes the place of dout, which it is compared
 * with before. */
static void take_tangents(const luattn_spec *spec, placed *c) {
  luattn_error err;
  luattn_input inputs[INPUTS];
  const luattn_scalar cap = {"cap", tensor_get(&c->scalars, 0)};
  for (int i = 0; i < INPUTS; i++) inputs[i] = (luattn_input){c->inputs[i].name, &c->grad[i].t, NULL};
  const luattn_tangents t = {.struct_size = sizeof t,
                             .q = &c->dq.t,
                             .k = &c->dk.t,
                             .v = &c->dv.t,
                             .inputs = inputs,
                             .num_inputs = INPUTS,
                             .scalars = &cap,
                             .num_scalars = 1,
                             .o = &c->dout.t,
                             .lse = &c->dlse.t};
  luattn_args args = c->args;
  args.tangents = &t;
  if (luattn_cpu_forward_jvp(spec, &args, &err) != LUATTN_OK) fail_msg("%s", err.message);
}

static double product(const tensor *a, const tensor *b) {
  double sum = 0;
  for (int64_t i = 0; i < tensor_count(a); i++) sum += tensor_get(a, i) * tensor_get(b, i);
  return sum;
}

static void test_tangents(void **state) {
  (void)state;
  luattn_error err;
  luattn_spec *grid = load_text(over_grid), *line = load_text(along_line);
  placed c[2];
  for (int i = 0; i < 2; i++) {
    const luattn_spec *spec = i == 0 ? grid : line;
    tensor u, w;
    placed_new(&c[i], i == 0, i == 0 ? HEADS_LAST : DENSE);
    if (luattn_cpu_forward(spec, &c[i].args, &err) != LUATTN_OK) fail_msg("%s", err.message);
    if (luattn_cpu_backward(spec, &c[i].args, &err) != LUATTN_OK) fail_msg("%s", err.message);
    double size = product(&c[i].dq, &c[i].dq) + product(&c[i].dk, &c[i].dk) + product(&c[i].dv, &c[i].dv) +
                  product(&c[i].scalars, &c[i].scalars);
    for (int j = 0; j < INPUTS; j++) size += product(&c[i].grad[j], &c[i].grad[j]);
    tensor_new(&u, F64, 1, (const int64_t[]){tensor_count(&c[i].dout)}, DENSE);
    tensor_new(&w, F64, 1, (const int64_t[]){tensor_count(&c[i].dlse)}, DENSE);
    for (int64_t j = 0; j < tensor_count(&u); j++) tensor_set(&u, j, tensor_get(&c[i].dout, j));
    for (int64_t j = 0; j < tensor_count(&w); j++) tensor_set(&w, j, tensor_get(&c[i].dlse, j));
    take_tangents(spec, &c[i]);
    assert_true(fabs(product(&c[i].dout, &u) + product(&c[i].dlse, &w) - size) <= 1e-12 * size);
    tensor_free(&u), tensor_free(&w);
  }
  same("o's tangent", &c[0].dout, &c[1].dout), same("lse's tangent", &c[0].dlse, &c[1].dlse);
  placed_free(&c[0]), placed_free(&c[1]);
  luattn_spec_free(grid), luattn_spec_free(line);
}

static void test_beside_line(void **state) {
  (void)state;
  luattn_error err;
  luattn_spec *grid = load_text(over_grid), *line = load_text(along_line);
  placed want, got;
  placed_new(&want, false, DENSE);
  if (luattn_cpu_forward(line, &want.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
  if (luattn_cpu_backward(line, &want.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
  for (int l = 0; l < NUM_LAYOUTS; l++) {
    placed_new(&got, true, (layout)l);
    if (luattn_cpu_forward(grid, &got.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
    if (luattn_cpu_backward(grid, &got.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
    same("o", &got.o, &want.o), same("lse", &got.lse, &want.lse), same("dq", &got.dq, &want.dq);
    same("dk", &got.dk, &want.dk), same("dv", &got.dv, &want.dv), same("scalars", &got.scalars, &want.scalars);
    for (int i = 0; i < INPUTS; i++) same(got.inputs[i].name, &got.grad[i], &want.grad[i]);
    placed_free(&got);
  }
  int64_t kept[2];
  placed_new(&got, true, DENSE);
  if (luattn_mask_count(grid, &got.args, &kept[0], &err) != LUATTN_OK) fail_msg("%s", err.message);
  if (luattn_mask_count(line, &want.args, &kept[1], &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(kept[0], kept[1]);
  placed_free(&got), placed_free(&want);
  luattn_spec_free(grid), luattn_spec_free(line);
}

/* The draw of a score, 0 to 255, as docs/language.md describes it for a grid. */
static int draw_at(const int64_t *q, const int64_t *kv, int b, int h) {
  const int64_t *at[] = {q, kv}, *extent[] = {q_extent, kv_extent};
  int64_t n[2];
  for (int side = 0; side < 2; side++) {
    const int64_t t = at[side][0], y = at[side][1], x = at[side][2];
    const int64_t down = (extent[side][1] + 3) / 4, across = (extent[side][2] + 3) / 4;
    n[side] = ((t * down + y / 4) * across + x / 4) * 16 + y % 2 * 8 + y / 2 % 2 * 4 + x % 4;
  }
  const int64_t i = n[0], j = n[1];
  const int bit = (int)(j / 2 % 2 * 16 + j % 2 * 8 + i % 2 * 4 + i / 8 % 2 * 2 + j / 8 % 2);
  const uint32_t key[] = {5, 0};
  int value = 0;
  for (uint32_t half = 0; half < 2; half++) {
    const uint32_t counter[] = {(uint32_t)(7 + b * HEADS + h), 0, (uint32_t)(i / 16 * 4 + i % 8 / 2),
                                (uint32_t)(j / 16 * 4 + j % 8 / 4 * 2) + half};
    uint32_t words[4];
    philox(key, counter, words);
    for (int w = 0; w < 4; w++) value = value * 2 + (int)(words[w] >> bit & 1);
  }
  return value;
}

static void test_dropout(void **state) {
  (void)state;
  luattn_error err;
  luattn_spec *spec = load_text("return attention { grid = {'t', 'y', 'x'}, online_func = dropout(0.25) }");
  placed c;
  tensor weights;
  placed_new(&c, true, HEADS_LAST);
  c.args.num_inputs = 0;
  tensor_new(&weights, F64, 4, (const int64_t[]){BATCH, HEADS, Q, KV}, DENSE);
  point(&weights, DENSE);
  if (luattn_cpu_weights(spec, &c.args, &weights.t, &err) != LUATTN_OK) fail_msg("%s", err.message);
  for (int64_t i = 0; i < tensor_count(&weights); i++) {
    const int64_t kv = i % KV, q = i / KV % Q, head = i / KV / Q;
    const int64_t at_q[] = {q / 20, q / 5 % 4, q % 5}, at_kv[] = {kv / 30, kv / 6 % 5, kv % 6};
    const bool kept = draw_at(at_q, at_kv, (int)(head / HEADS), (int)(head % HEADS)) < 192;
    assert_int_equal(tensor_get(&weights, i) > 0, kept);
  }
  tensor_free(&weights);
  placed_free(&c);
  luattn_spec_free(spec);
}

static void refused(const luattn_spec *spec, const luattn_args *args, const char *message) {
  luattn_error err = {.message = ""};
  assert_int_not_equal(luattn_cpu_forward(spec, args, &err), LUATTN_OK);
  if (strcmp(err.message, message) != 0) fail_msg("says   %s\nbut is %s", message, err.message);
}

static void test_refused(void **state) {
  (void)state;
  luattn_spec *spec = load_text(over_grid);
  placed c, flat;
  placed_new(&c, true, DENSE), placed_new(&flat, false, DENSE);
  luattn_args args = c.args;
  args.q = &flat.q.t;
  refused(spec, &args, "cpu: q: has 4 axes, expected 6: [batch, heads, q_len.t, q_len.y, q_len.x, head_dim]");
  args = c.args, args.v = &c.k.t;
  c.k.t.shape[3] = 4; /* k has fewer places than v */
  args.v = &c.v.t;
  refused(
      spec, &args,
      "cpu: v: axis 3 of [batch, heads_kv, kv_len.t, kv_len.y, kv_len.x, head_dim_v] has size 5, expected 4; tensors "
      "must agree");
  c.k.t.shape[3] = 5;
  tensor_free(&c.input[1]);
  tensor_new(&c.input[1], F64, 1, (const int64_t[]){7}, DENSE);
  point(&c.input[1], DENSE);
  refused(spec, &args, "cpu: input 'columns': axis 0 of [kv.x] has size 7, expected 6; tensors must agree");
  luattn_spec_free(spec);

  spec = load_text(
      "return attention { grid = {'t', 'y', 'x'}, block_mask = neighborhood { kernel_size = {2, 2, 4}, "
      "dilation = {1, 1, 2} } }");
  args = c.args, args.num_inputs = 0;
  refused(
      spec, &args,
      "cpu: k: kv_len.x is 6, and neighborhood: kernel_size 4 times dilation 2 needs at least 8; give more places, or "
      "a smaller window");
  static const int64_t wide[] = {1, 1, 1, 1, 32768, 1}, many[] = {1, 1, 2048, 1024, 1024, 1};
  DLTensor q = {
      .data = c.q.memory, .device = {kDLCPU, 0}, .ndim = 6, .dtype = F64, .shape = (int64_t *)(uintptr_t)wide};
  int64_t none[6] = {0};
  q.strides = none;
  args.q = &q;
  refused(spec, &args, "cpu: q: q_len.x is 32768, and an axis of a grid has at most 32767 places");
  q.shape = (int64_t *)(uintptr_t)many;
  refused(spec, &args, "cpu: q: has 2147483648 places, and a grid has at most 1073741824");
  luattn_spec_free(spec);
  placed_free(&c), placed_free(&flat);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_beside_line), cmocka_unit_test(test_tangents),
                                     cmocka_unit_test(test_dropout), cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
