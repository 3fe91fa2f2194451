/* batch_masks_test.c: tile bits of a luattn_batch: what is launched, which calls may use them, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "luattn/batch.h"
#include "tests/runtime/launches.h"
#include "tests/support/fake_cuda.h"

/* The mask reads 'ids' and 'cap', and differs between batch entries. */
static void evaluate_mask(image_manifest *m) {
  m->tile_bits = 1;
  m->bits[0] = (manifest_tile_bits){
      .by_batch = 1, .rows = 1, .columns = 1, .cost = 10, .inputs = 2, .scalars = 1, .spec = {1, 2, 3, 4}};
  m->params_bytes = LUATTN_PARAMS_THROUGH(tile_order);
  memmove(&m->entry[2], &m->entry[1], (m->num_entries++ - 1) * sizeof m->entry[0]);
  m->entry[1] =
      (manifest_entry){.name = "luattn_tile_bits", .role = LUATTN_ROLE_TILE_BITS, .threads = 256, .tile_m = 64};
}

typedef struct shared {
  problem p;
  luattn_kernel *kernel;
  luattn_batch *batch;
  char *memory; /* of bits */
  luattn_error err;
} shared;

/* 2 x 3 cells of two batch entries: 256 bytes for rows, and for columns; as many for minima of 'ids'. */
enum { BITS = 512, ROOM = BITS + 256, MEMORY = 16 * ROOM };

static luattn_batch *open_batch(void) {
  const luattn_batch_options options = {.struct_size = sizeof options};
  luattn_batch *batch = NULL;
  assert_int_equal(luattn_batch_open(&options, &batch, NULL), LUATTN_OK);
  return batch;
}

static void shared_open(shared *s, luattn_pass pass) {
  problem_open(&s->p, pass);
  evaluate_mask(&s->p.info);
  s->kernel = load(&s->p);
  s->batch = open_batch();
  void *memory;
  assert_int_equal(posix_memalign(&memory, 256, MEMORY), 0);
  s->memory = memory;
}
static void shared_close(shared *s) {
  luattn_kernel_unload(s->kernel);
  luattn_batch_close(s->batch);
  free(s->memory);
  problem_close(&s->p);
}

static luattn_status prepare(shared *s, char *memory, size_t size) {
  return luattn_batch_prepare_mask(s->batch, s->kernel, &s->p.args, memory, size, NULL, &s->err);
}
static void prepared(shared *s, char *memory) {
  if (prepare(s, memory, ROOM) != LUATTN_OK) fail_msg("%s", s->err.message);
}

static void refused(const shared *s, luattn_status status, const char *message) {
  assert_int_equal(status, LUATTN_INVALID);
  if (strstr(s->err.message, message) == NULL) fail_msg("'%s' lacks '%s'", s->err.message, message);
}

static size_t workspace_of(shared *s) {
  size_t size;
  if (luattn_workspace_size(s->kernel, &s->p.args, &size, &s->err) != LUATTN_OK) fail_msg("%s", s->err.message);
  return size;
}

/* Number of launches of a function in one launch. */
static int launches_of(shared *s, const char *name) {
  int n = 0;
  fake_reset();
  if (luattn_launch(s->kernel, &s->p.args, NULL, &s->err) != LUATTN_OK) fail_msg("%s", s->err.message);
  for (size_t i = 0; i < fake_num_events(); ++i) n += strcmp(fake_get_event(i)->name, name) == 0;
  return n;
}
static int evaluations(shared *s) { return launches_of(s, "luattn_tile_bits"); }

/* Once for all launches, whose workspace has no room for bits. */
static void once(void **state) {
  (void)state;
  for (int pass = LUATTN_FORWARD; pass <= LUATTN_BACKWARD; ++pass) {
    shared s;
    size_t size;
    int stream;
    shared_open(&s, (luattn_pass)pass);
    assert_int_equal(evaluations(&s), 0); /* it does not pay */
    const size_t without = workspace_of(&s);
    s.p.args.skip = LUATTN_SKIP_ALWAYS;
    assert_int_equal(workspace_of(&s), without + BITS);
    assert_int_equal(evaluations(&s), 1);
    assert_int_equal(luattn_batch_mask_size(s.kernel, &s.p.args, &size, &s.err), LUATTN_OK);
    assert_int_equal(size, ROOM);
    fake_reset();
    void *const q = s.p.q.t.data;
    s.p.q.t.data = NULL; /* shapes are enough */
    assert_int_equal(luattn_batch_prepare_mask(s.batch, s.kernel, &s.p.args, s.memory, ROOM, &stream, &s.err),
                     LUATTN_OK);
    s.p.q.t.data = q;
    assert_int_equal(fake_num_events(), 2);
    assert_launch(0, "luattn_stats", 3, BATCH, 1, 64, 0);
    assert_launch(1, "luattn_tile_bits", 1, 4, BATCH, 256, 0);
    for (size_t i = 0; i < 2; ++i) {
      const fake_event *e = fake_get_event(i);
      assert_ptr_equal(e->stream, &stream);
      assert_ptr_equal(e->params.inputs.input[1].data, s.p.ids.t.data);
      assert_int_equal(e->params.shape.kv_len, KV_LEN);
      assert_ptr_equal(e->params.scratch.stats[0], s.memory + BITS);
    }
    assert_int_equal(evaluations(&s), 1); /* args.batch is still NULL */
    assert_int_equal(launches_of(&s, "luattn_stats"), 1);
    s.p.args.batch = s.batch;
    assert_int_equal(workspace_of(&s), without);
    assert_int_equal(launches_of(&s, "luattn_stats"), 0); /* minima decide nothing more */
    for (size_t i = 0; i < fake_num_events(); ++i)
      if (fake_get_event(i)->kind == FAKE_LAUNCH) assert_null(fake_get_event(i)->params.scratch.stats[0]);
    for (int skip = LUATTN_SKIP_AUTO; skip <= LUATTN_SKIP_NEVER; ++skip) {
      s.p.args.skip = skip;
      assert_int_equal(evaluations(&s), 0);
    }
    shared_close(&s);
  }
}

/* Minima are read where an sm90 walk classifies tiles of a size that takes no words of bits. */
static void minima(void **state) {
  (void)state;
  for (unsigned tile_n = 64; tile_n <= 192; tile_n += 64) {
    shared s;
    shared_open(&s, LUATTN_FORWARD);
    s.p.info.family = LUATTN_SM90;
    for (uint32_t i = 0; i < s.p.info.num_entries; ++i)
      if (s.p.info.entry[i].role == LUATTN_ROLE_FORWARD) s.p.info.entry[i].tile_n = tile_n;
    luattn_kernel_unload(s.kernel);
    s.kernel = load(&s.p);
    prepared(&s, s.memory);
    s.p.args.batch = s.batch;
    assert_int_equal(launches_of(&s, "luattn_stats"), tile_n > 128);
    shared_close(&s);
  }
}

/* Orders of tiles are made once as well, if the image knows how; of 20 tiles of 64 queries of two batch entries
 * here. */
enum { ORDERED = 1280, WORDS = 2 * BATCH * (3 * (20 + 10 + 7)) };
static void ordered(void **state) {
  (void)state;
  for (unsigned layout = 0; layout < 2; ++layout) {
    shared s;
    size_t size;
    shared_open(&s, LUATTN_FORWARD);
    image_manifest *m = &s.p.info;
    m->bits[0].layout = layout;
    memmove(&m->entry[3], &m->entry[2], (m->num_entries++ - 2) * sizeof m->entry[0]);
    m->entry[2] =
        (manifest_entry){.name = "luattn_tile_order", .role = LUATTN_ROLE_TILE_ORDER, .threads = 512, .tile_m = 64};
    problem_resize(&s.p, BATCH, ORDERED, ORDERED);
    luattn_kernel_unload(s.kernel);
    s.kernel = load(&s.p);
    const size_t without = workspace_of(&s), bits = 2 * BATCH * 20 * 8, order = 2 * 20 * BATCH * 4;
    s.p.args.skip = LUATTN_SKIP_ALWAYS;
    assert_int_equal(workspace_of(&s), without + (bits / 2 + 255) / 256 * 512 + (order + 255) / 256 * 256);
    assert_int_equal(launches_of(&s, "luattn_tile_order"), 1);
    assert_launch(2, "luattn_tile_order", BATCH, 1, 1, 512, 0);
    assert_int_equal(luattn_batch_mask_size(s.kernel, &s.p.args, &size, &s.err), LUATTN_OK);
    assert_int_equal(size, (bits / 2 + 255) / 256 * 512 + 512 + layout * ((WORDS * 4 + 255) / 256 * 256));
    fake_reset();
    assert_int_equal(prepare(&s, s.memory, size), LUATTN_OK);
    assert_int_equal(fake_num_events(), 2 + layout);
    if (layout == 1) assert_launch(2, "luattn_tile_order", BATCH, 9, 1, 512, 0);
    s.p.args.batch = s.batch;
    assert_int_equal(workspace_of(&s), without + (layout == 1 ? 0 : (order + 255) / 256 * 256));
    assert_int_equal(launches_of(&s, "luattn_tile_order"), layout == 0);
    shared_close(&s);
  }
}

/* Images that evaluate nothing, and calls without scores. */
static void not_needed(void **state) {
  (void)state;
  shared s;
  size_t size = 1;
  shared_open(&s, LUATTN_FORWARD);
  problem_resize(&s.p, BATCH, 0, KV_LEN);
  assert_int_equal(luattn_batch_mask_size(s.kernel, &s.p.args, &size, &s.err), LUATTN_OK);
  assert_int_equal(size, 0);
  fake_reset();
  assert_int_equal(prepare(&s, NULL, 0), LUATTN_OK);
  shared_close(&s);
  shared_open(&s, LUATTN_FORWARD);
  luattn_kernel_unload(s.kernel);
  problem_close(&s.p);
  problem_open(&s.p, LUATTN_FORWARD);
  s.kernel = load(&s.p);
  size = 1;
  assert_int_equal(luattn_batch_mask_size(s.kernel, &s.p.args, &size, &s.err), LUATTN_OK);
  assert_int_equal(size, 0);
  assert_int_equal(prepare(&s, NULL, 0), LUATTN_OK);
  assert_int_equal(fake_num_events(), 0);
  s.p.args.batch = s.batch;
  evaluations(&s);
  shared_close(&s);
}

/* What the mask reads must be as it was; the message has both values. */
static void compared(void **state) {
  (void)state;
  shared s;
  char text[200];
  shared_open(&s, LUATTN_BACKWARD);
  prepared(&s, s.memory);
  s.p.args.batch = s.batch;
  s.p.scalars[0].value = 40;
  refused(&s, luattn_launch(s.kernel, &s.p.args, NULL, &s.err),
          "backward of 'demo': batch: its tile bits were made for another call: scalar 'cap' was 30, and is 40; call "
          "luattn_batch_prepare_mask with these arguments too, or give a batch without them");
  s.p.scalars[0].value = 30;
  tensor *const ids = &s.p.ids;
  ids->t.byte_offset = 4;
  snprintf(text, sizeof text, "the address of input 'ids' was %p, and is %p", ids->t.data,
           (void *)((char *)ids->t.data + 4));
  refused(&s, luattn_launch(s.kernel, &s.p.args, NULL, &s.err), text);
  ids->t.byte_offset = 0;
  ids->strides[0] = KV_LEN + 2;
  refused(&s, luattn_launch(s.kernel, &s.p.args, NULL, &s.err),
          "the stride of axis 0 of input 'ids' was 130, and is 132");
  ids->strides[0] = KV_LEN;
  ids->shape[0] = 1;
  refused(&s, luattn_workspace_size(s.kernel, &s.p.args, &(size_t){0}, &s.err),
          "the size of axis 0 of input 'ids' was 2, and is 1");
  ids->shape[0] = BATCH;
  fake_reset();
  const tensor was = s.p.slopes;
  s.p.slopes.t.data = s.p.slopes_grad.t.data; /* the mask does not read it */
  s.p.inputs[0].grad = NULL;
  assert_int_equal(evaluations(&s), 0);
  s.p.slopes = was;
  const struct {
    int batch, q_len, kv_len;
    const char *message;
  } sizes[] = {{BATCH, 90, KV_LEN, "the length of q was 100, and is 90"},
               {BATCH, Q_LEN, 131, "the length of k was 130, and is 131"},
               {1, Q_LEN, KV_LEN, "the number of batch entries was 2, and is 1"}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    problem_resize(&s.p, sizes[i].batch, sizes[i].q_len, sizes[i].kv_len);
    refused(&s, luattn_launch(s.kernel, &s.p.args, NULL, &s.err), sizes[i].message);
    s.p.args.skip = LUATTN_SKIP_NEVER; /* does not read the bits */
    assert_int_equal(evaluations(&s), 0);
    s.p.args.skip = LUATTN_SKIP_AUTO;
  }
  shared_close(&s);
}

/* Kernels of other specs do without bits of this one. */
static void of_other_specs(void **state) {
  (void)state;
  shared s;
  shared_open(&s, LUATTN_FORWARD);
  prepared(&s, s.memory);
  s.p.info.bits[0].spec[3] = 5;
  luattn_kernel_unload(s.kernel);
  s.kernel = load(&s.p);
  s.p.args.batch = s.batch;
  s.p.args.skip = LUATTN_SKIP_ALWAYS;
  assert_int_equal(evaluations(&s), 1);
  prepared(&s, s.memory + ROOM);
  assert_int_equal(evaluations(&s), 0);
  shared_close(&s);
}

static void several(void **state) {
  (void)state;
  shared s;
  shared_open(&s, LUATTN_FORWARD);
  s.p.args.batch = s.batch;
  s.p.args.skip = LUATTN_SKIP_ALWAYS;
  for (int i = 0; i < 8; ++i) {
    s.p.scalars[0].value = i + 1;
    prepared(&s, s.memory + i * ROOM);
    prepared(&s, s.memory + i * ROOM);
  }
  for (int i = 0; i < 8; ++i) {
    s.p.scalars[0].value = i + 1;
    assert_int_equal(evaluations(&s), 0);
  }
  s.p.scalars[0].value = 9;
  refused(&s, prepare(&s, s.memory + 8 * ROOM, ROOM),
          "forward of 'demo': batch: has the tile bits of 8 masks, and there is room for no more");
  prepared(&s, s.memory + 2 * ROOM); /* instead of the third */
  assert_int_equal(evaluations(&s), 0);
  s.p.scalars[0].value = 3;
  refused(&s, luattn_launch(s.kernel, &s.p.args, NULL, &s.err), "scalar 'cap' was");
  s.p.scalars[0].value = 4;
  prepared(&s, s.memory + 9 * ROOM); /* moves the fourth */
  assert_int_equal(evaluations(&s), 0);
  s.p.scalars[0].value = 3;
  refused(&s, prepare(&s, s.memory + 3 * ROOM, ROOM), "there is room for no more");
  prepared(&s, s.memory + 9 * ROOM);
  assert_int_equal(evaluations(&s), 0);
  shared_close(&s);
}

static void memory(void **state) {
  (void)state;
  shared s;
  shared_open(&s, LUATTN_FORWARD);
  refused(&s, prepare(&s, s.memory, ROOM - 1),
          "forward of 'demo': tile bits: memory: has 767 bytes, expected 768; luattn_batch_mask_size gives the size");
  refused(&s, prepare(&s, NULL, ROOM), "memory: has 768 bytes at NULL, expected 768");
  refused(&s, prepare(&s, s.memory + 8, ROOM), "is not a multiple of 256 bytes; align it");
  s.p.ids.t.data = NULL;
  refused(&s, prepare(&s, s.memory, ROOM), "input 'ids': its data pointer is NULL");
  problem_resize(&s.p, BATCH, Q_LEN, KV_LEN);
  assert_int_equal(fake_num_events(), 0);
  prepared(&s, s.memory);
  s.p.scalars[0].value = 4;
  refused(&s, prepare(&s, s.memory + 256, ROOM), "are shared with the tile bits of another mask");
  s.p.scalars[0].value = 30;
  s.p.args.batch = s.batch;
  s.p.o.t.data = s.memory;
  refused(&s, luattn_launch(s.kernel, &s.p.args, NULL, &s.err), "is shared with tile bits");
  shared_close(&s);
}

/* LUATTN_CHECK=1 evaluates again, whether or not the caller has a current context, but not while a graph records. The
 * fake device computes nothing, so that the bits may differ. */
static void checked(void **state) {
  (void)state;
  shared s;
  int stream;
  shared_open(&s, LUATTN_FORWARD);
  prepared(&s, s.memory);
  s.p.args.batch = s.batch;
  setenv("LUATTN_CHECK", "1", 1);
  for (int captures = 0; captures < 2; ++captures) {
    int found = 0;
    fake_reset();
    fake_capture(captures ? &stream : NULL);
    const luattn_status status = luattn_launch(s.kernel, &s.p.args, &stream, &s.err);
    if (status != LUATTN_OK) refused(&s, status, "batch: its tile bits are not those of the mask");
    fake_capture(NULL);
    for (size_t i = 0; i < fake_num_events(); ++i) found += strcmp(fake_get_event(i)->name, "luattn_tile_bits") == 0;
    assert_int_equal(found, !captures);
  }
  fake_fail("cuStreamIsCapturing", 1, 900);
  assert_int_equal(luattn_launch(s.kernel, &s.p.args, &stream, &s.err), LUATTN_CUDA);
  assert_non_null(strstr(s.err.message, "asking whether a CUDA graph captures a stream"));
  unsetenv("LUATTN_CHECK");
  shared_close(&s);
}

/* After a failed launch the batch has no bits. */
static void failed(void **state) {
  (void)state;
  shared s;
  shared_open(&s, LUATTN_FORWARD);
  fake_fail("cuLaunchKernelEx", 1, 700);
  assert_int_equal(prepare(&s, s.memory, ROOM), LUATTN_CUDA);
  s.p.args.batch = s.batch;
  s.p.args.skip = LUATTN_SKIP_ALWAYS;
  assert_int_equal(evaluations(&s), 1);
  shared_close(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(once),     cmocka_unit_test(minima),
                                     cmocka_unit_test(ordered),  cmocka_unit_test(not_needed),
                                     cmocka_unit_test(compared), cmocka_unit_test(of_other_specs),
                                     cmocka_unit_test(several),  cmocka_unit_test(memory),
                                     cmocka_unit_test(checked),  cmocka_unit_test(failed)};
  return cmocka_run_group_tests(tests, open_all, close_all);
}
