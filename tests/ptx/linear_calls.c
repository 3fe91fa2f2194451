/* linear_calls.c: see linear_calls.h. */
#include "linear_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/ptx/hand_kernels.h"
#include "tests/ptx/linear_bars.h"
#include "tests/ptx/linear_problem.h"

/* ---- by the recurrence ---- */

/* Gradients by the recurrence, times what factors of rows make of them. The gradient of the last state is the first one. */
static void differentiate(const problem *x, linear_pass pass, int entry, int hv, const linear_rows *rows, double *grad,
                          double *grad_state) {
  const call *c = x->c;
  const int n = rows->tokens, dim = pass == LINEAR_GRAD_V ? rows->v_dim : rows->k_dim;
  double *dout = linear_dout_of(x, entry, hv);
  const linear_gradients out = {.q = pass == LINEAR_GRAD_Q ? grad : NULL,
                                .k = pass == LINEAR_GRAD_K ? grad : NULL,
                                .b = pass == LINEAR_GRAD_V ? grad : NULL,
                                .state = pass == LINEAR_GRAD_V ? grad_state : NULL};
  luattn_error err;
  assert_int_equal(linear_backward(rows, dout, rows->state, &out, &err), LUATTN_OK);
  for (int i = 0; i < n * dim; i++) {
    const int row = x->cu[entry] + i / dim;
    if (pass == LINEAR_GRAD_V)
      grad[i] *= linear_word(c->kernel.update, "PlainUpdate") ? 1 : linear_in_at(x, 1, row, hv);
    else if (linear_word(c->kernel.mods, "RowFactors"))
      grad[i] *= linear_in_at(x, pass == LINEAR_GRAD_Q ? 2 : 3, row, hv);
  }
  free(dout);
}
/* What a pass computes of an entry and head: o [tokens][V], and the state [K][V] at its end; or a gradient. */
static void recur(const problem *x, linear_pass pass, int entry, int hv, double *o, double *state) {
  const call *c = x->c;
  const int n = c->tokens[entry], V = c->kernel.v_dim;
  const linear_rows rows = linear_rows_of(x, entry, hv);
  luattn_error err;
  if (pass == LINEAR_FORWARD)
    assert_int_equal(linear_forward(&rows, o, state, &err), LUATTN_OK);
  else
    differentiate(x, pass, entry, hv, &rows, o, state);
  for (int i = 0; pass == LINEAR_FORWARD && linear_word(c->kernel.skip, "Skips") && i < n * V; i++) {
    o[i] += linear_read_half(c, x->v[linear_place(x, entry, hv, V, i)]) * linear_in_at(x, 4, 0, hv);
  }
  free((void *)rows.q);
}

/* ---- comparisons ---- */

static void compare_entry(const problem *x, linear_pass pass, int entry, const uint16_t *o, const char *pool) {
  const call *c = x->c;
  const int n = c->tokens[entry], K = c->kernel.k_dim, V = c->kernel.v_dim, dim = linear_sides_of(x, pass).value.dim;
  double *want = malloc(sizeof(double) * (size_t)(n * dim + K * V)), *state = want + n * dim;
  error of_o = {0, 0}, of_state = {0, 0};
  for (int hv = 0; hv < c->heads_v; hv++) {
    recur(x, pass, entry, hv, want, state);
    for (int i = 0; i < n * dim; i++)
      linear_add_error(&of_o, (double)linear_read_half(c, o[linear_place(x, entry, hv, dim, i)]),
                       linear_left_alone(c, entry) ? 0 : want[i]);
    linear_add_states(&of_state, x, entry, hv, pool, state);
  }
  const bool erases = linear_is_erasing(c);
  /* Keys that are alike: o is small beside what it is made of. */
  const double alike = c->keys == ALIKE ? c->most_write > 1 ? 4.7 : 2 : 1;
  /* Keys that turn: twice what a call is off by that is not cut, 0.0096. */
  const double state_times = c->gates == TURNS ? 2.8 : alike > 2 ? 1.9 : 1;
  static const char *const names[] = {"o", "dq", "dk", "dv"};
  linear_expect(names[pass], entry, of_o, alike * linear_most_o(erases, linear_gate_width(c) > 1));
  linear_expect("the last state", entry, of_state,
                state_times * linear_most_state(erases) + (c->state_type == LUATTN_STATE_BF16 ? 0.0017 : 0));
  free(want);
}
/* What is nobody's is as it was: rows between and behind those of entries, rows of the pool that no entry has. */
static void compare_rest(const problem *x, int dim, const uint16_t *o, const char *pool) {
  const call *c = x->c;
  linear_expect_untouched("o", x, dim, o);
  for (int row = 0; pool != NULL && row < POOL_ROWS; row++) {
    bool used = false;
    for (int e = 0; e < c->entries; e++) used = used || (!linear_left_alone(c, e) && linear_pool_row(c, e) == row);
    const int size = c->heads_v * c->kernel.k_dim * c->kernel.v_dim, V = c->kernel.v_dim, K = c->kernel.k_dim;
    for (int i = 0; !used && i < size; i++)
      if (linear_got_state(c, pool, linear_state_at(c, row, i / V / K, i / V % K, i % V)) !=
          (double)x->pool[row * size + i])
        fail_msg("row %d of the pool was written", row);
  }
}

/* Decays of channels, by tiles of all chunks, in segments or not. */
static void launch_tiles(const problem *x, void *module, on_device *d, const char *last) {
  const call *c = x->c;
  const linear_kernel *k = &c->kernel;
  const bool erases = linear_is_erasing(c);
  const int chunks = linear_chunks_of(x), cut = d->p.segments.count, blocks = linear_blocks(c, k->v_dim, k->v_block),
            maps = erases ? linear_blocks(c, k->k_dim, k->v_block) : 0, threads = 128 * (1 + (k->v_block + 63) / 64);
  void *tiles = hand_device((size_t)(chunks + 1) * (size_t)linear_tiles_layout(k->k_dim, erases, 0).bytes, NULL);
  d->p.kept.tiles = tiles;
  /* blocks take chunks in turns */
  linear_launch(module, "luattn_linear_tiles", (chunks + 2) / 3, 256, linear_maker_layout(k->k_dim).bytes, &d->p, NULL);
  if (cut > 1)
    linear_launch(module, "luattn_linear_states", (blocks + maps) * (cut - 1), threads,
                  linear_chain_layout(k->k_dim, k->v_block, erases, LINEAR_CHAIN_STATES).bytes, &d->p, &d->maps);
  if (cut > 1 && erases)
    linear_launch(module, "luattn_linear_join", linear_blocks(c, k->v_dim, LINEAR_JOIN_VALUES), LINEAR_JOIN_THREADS, 0,
                  &d->p, NULL);
  linear_launch(module, last, blocks * cut, threads,
                linear_chain_layout(k->k_dim, k->v_block, erases, LINEAR_CHAIN_OUT).bytes, &d->p, &d->maps);
  hand_release(tiles);
}

/* Whether one kernel makes tiles and takes them. */
static bool is_by_quarters(const linear_kernel *k) {
  return k->k_dim > 64 && k->v_dim > 64 && k->v_dim <= 128 && k->v_block == 128;
}
static void launch_quarters(const problem *x, void *module, on_device *d) {
  const call *c = x->c;
  const linear_kernel *k = &c->kernel;
  const int cut = d->p.segments.count, blocks = linear_blocks(c, k->v_dim, k->v_block),
            bytes = linear_quarters_layout().bytes;
  if (cut > 1)
    linear_launch(module, "luattn_linear_end", c->entries * c->heads_v * (cut - 1), LINEAR_QUARTER_END_THREADS, bytes,
                  &d->p, NULL);
  linear_launch(module, "luattn_linear", blocks * cut, LINEAR_QUARTER_THREADS, bytes, &d->p, &d->maps);
  if (cut > 1) launch_tiles(x, module, d, "luattn_linear_chain");
}

/* whole: by the kernel that makes T of each chunk itself. */
static void run_pass(const problem *x, linear_pass pass, bool whole) {
  const call *c = x->c;
  linear_kernel k = c->kernel;
  const sides of = linear_sides_of(x, pass);
  k.k_dim = of.query.dim, k.v_dim = of.value.dim;
  if (pass != LINEAR_FORWARD) k.v_block = k.v_dim > 64 ? 128 : 64;
  const bool by_tiles = linear_gate_width(c) > 1 && pass == LINEAR_FORWARD && (linear_is_erasing(c) || c->segments > 1);
  const bool by_quarters = by_tiles && linear_is_erasing(c) && is_by_quarters(&k);
  void *module = linear_load(&k, pass,
                             by_quarters ? "entry/linear_quarters_sm90.cu"
                             : by_tiles  ? "entry/linear_tiles_sm90.cu"
                                         : "entry/linear_sm90.cu");
  on_device d = linear_upload(x, pass);
  const LinearLayout l = linear_layout(k.k_dim, k.v_block, k.stages, linear_is_erasing(c), linear_gate_width(c) > 1);
  const bool erases = linear_is_erasing(c);
  const int blocks = linear_blocks(c, k.v_dim, k.v_block), threads = linear_threads(&k);
  const int maps = erases ? linear_blocks(c, k.k_dim, k.v_block) : 0;
  if (pass == LINEAR_FORWARD && linear_takes_inverses(c) && !whole) {
    linear_set_inverses(x, &d, linear_room_of_inverses(x));
    linear_make_inverses(x, module, &d);
  }
  if (by_quarters)
    launch_quarters(x, module, &d);
  else if (by_tiles)
    launch_tiles(x, module, &d, "luattn_linear");
  else if (d.p.segments.count > 1)
    linear_launch(module, "luattn_linear_states", (blocks + maps) * (d.p.segments.count - 1), threads, l.bytes, &d.p,
                  &d.maps);
  if (!by_tiles && d.p.segments.count > 1 && erases)
    linear_launch(module, "luattn_linear_join", linear_blocks(c, k.v_dim, LINEAR_JOIN_VALUES), LINEAR_JOIN_THREADS, 0,
                  &d.p, NULL);
  if (whole)
    linear_launch(module, "luattn_linear_whole", blocks, threads, linear_layout_whole(k.k_dim, k.v_block).bytes, &d.p,
                  &d.maps);
  else if (!by_tiles)
    linear_launch(module, "luattn_linear", blocks * d.p.segments.count, threads, l.bytes, &d.p, &d.maps);
  uint16_t *o = linear_take_rows(x, &d.p.o, k.v_dim);
  char *pool = linear_take_pool(&d, c);
  for (int e = 0; e < c->entries; e++)
    if (!c->poisoned[e]) compare_entry(x, pass, e, o, pool);
  compare_rest(x, k.v_dim, o, pool);
  free(o), free(pool);
  hand_release(d.p.inverses);
  linear_take_back(&d, c);
  hand_unload(module);
}
void linear_run(const call *c) {
  problem x = linear_make_problem(c);
  run_pass(&x, LINEAR_FORWARD, false);
  linear_free_problem(&x);
}
void linear_run_whole(const call *c) {
  problem x = linear_make_problem(c);
  run_pass(&x, LINEAR_FORWARD, true);
  linear_free_problem(&x);
}
void linear_run_gradients(const call *c) {
  problem x = linear_make_problem(c);
  for (linear_pass pass = LINEAR_GRAD_Q; pass <= LINEAR_GRAD_V; pass++) run_pass(&x, pass, false);
  linear_free_problem(&x);
}
