/* engine_pack_test.c: tests the engine with packs and kernels prepared in advance, with a fake compiler. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "luattn/pack.h"
#include "tests/engine/fake_compiler.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/problem.h"

/* Writes and opens a pack with only the forward pass. */
static luattn_pack *forward_pack(char path[32], uint64_t hash, unsigned shared_bytes) {
  problem p;
  luattn_pack *pack = NULL;
  luattn_error err;
  snprintf(path, 32, "/tmp/luattn-engine-XXXXXX");
  close(mkstemp(path));
  problem_open(&p, LUATTN_FORWARD);
  p.info.entry[2].shared_bytes = shared_bytes;
  luattn_image *image = problem_image(&p);
  const luattn_pack_item item = {.kind = LUATTN_PACK_IMAGE, .image = image, .spec_hash = {7, hash}};
  if (luattn_pack_write(path, "13.0", &item, 1, &err) != LUATTN_OK) fail_msg("%s", err.message);
  if (luattn_pack_open(path, &pack, &err) != LUATTN_OK) fail_msg("%s", err.message);
  luattn_image_free(image);
  problem_close(&p);
  return pack;
}

/* A pack with this spec's forward pass has no kernel for packed sequences. */
static void sequences_are_compiled(const luattn_pack *pack) {
  luattn_spec spec = {.compilations = 0};
  luattn_engine *engine = NULL;
  luattn_error err;
  problem p;
  tensor cu;
  problem_open(&p, LUATTN_FORWARD);
  tensor_set(&p, &cu, kDLInt, 32, 1, 2, 1, 1, 1);
  const luattn_batch_options sequences = {.struct_size = sizeof sequences,
                                          .cu_seqlens_q = &cu.t,
                                          .cu_seqlens_k = &cu.t,
                                          .max_seqlen_q = 70,
                                          .max_seqlen_k = 70};
  luattn_batch *batch;
  if (luattn_batch_open(&sequences, &batch, &err) != LUATTN_OK) fail_msg("%s", err.message);
  p.args.batch = batch;
  p.q.t.ndim = p.v.t.ndim = 3;
  p.q.shape[2] = HEAD_DIM, p.v.shape[2] = HEAD_DIM_V;
  for (int never = 0; never <= 1; ++never)
    for (size_t num_packs = 0; num_packs <= 1; ++num_packs) {
      const luattn_engine_options options = {
          .struct_size = sizeof options, .packs = &pack, .num_packs = num_packs, .never_compile = never};
      const luattn_kernel *kernel;
      assert_int_equal(luattn_engine_open(&options, &engine, &err), LUATTN_OK);
      const luattn_status status = luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &kernel, &err);
      assert_int_equal(status, never ? LUATTN_UNSUPPORTED : LUATTN_OK);
      const char *why = num_packs > 0
                            ? "has no forward of 'demo', bf16, head dim 64x32, sm_90, packed; it has forward of 'demo'"
                            : "never_compile is set and there are no packs";
      if (never && strstr(err.message, why) == NULL) fail_msg("'%s' is not in '%s'", why, err.message);
      luattn_engine_close(engine);
    }
  assert_int_equal(spec.compilations, 2);
  luattn_batch_close(batch);
  problem_close(&p);
}

static void packs_first(void **state) {
  (void)state;
  char path[2][32];
  luattn_pack *const pack[2] = {forward_pack(path[0], 9, 0),
                                forward_pack(path[1], 8, 0)}; /* the first pack is of another spec */
  luattn_engine_options options = {
      .struct_size = sizeof options, .packs = (const luattn_pack *const *)pack, .num_packs = 2};
  luattn_spec spec = {.compilations = 0};
  luattn_engine *engine = NULL;
  luattn_error err;
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  for (int never = 0; never <= 1; ++never) {
    options.never_compile = never;
    assert_int_equal(luattn_engine_open(&options, &engine, &err), LUATTN_OK);
    if (luattn_forward(engine, &spec, &p.args, NULL, &err) != LUATTN_OK) fail_msg("%s", err.message);
    assert_int_equal(spec.compilations, never);
    const luattn_status status = luattn_backward(engine, &spec, &p.args, NULL, &err);
    assert_int_equal(status, never ? LUATTN_UNSUPPORTED : LUATTN_OK);
    if (never)
      assert_non_null(strstr(err.message, "has no backward of 'demo', bf16, head dim 64x32, sm_90, gradients dq"));
    assert_int_equal(spec.compilations, 1); /* the backward pass, if compiling was allowed */
    luattn_engine_close(engine);
  }
  /* In either order of the packs, the message comes from the pack that contains the spec. */
  luattn_engine_options reversed = options;
  reversed.packs = (const luattn_pack *const[]){pack[1], pack[0]};
  assert_int_equal(luattn_engine_open(&reversed, &engine, &err), LUATTN_OK);
  assert_int_equal(luattn_backward(engine, &spec, &p.args, NULL, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "it has forward of 'demo'"));
  luattn_engine_close(engine);
  /* One of the packs is NULL. */
  luattn_engine_options unopened = options;
  unopened.packs = (const luattn_pack *const[]){pack[0], NULL};
  assert_int_equal(luattn_engine_open(&unopened, &engine, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "packs: number 1 of 2 is NULL"));
  unopened.packs = NULL;
  assert_int_equal(luattn_engine_open(&unopened, &engine, &err), LUATTN_INVALID);
  sequences_are_compiled(pack[1]);
  /* Damage is an error, not a reason to compile. */
  options.never_compile = 0;
  const int fd = open(path[1], O_WRONLY);
  assert_int_equal(pwrite(fd, "damage", 6, 300), 6);
  close(fd);
  assert_int_equal(luattn_engine_open(&options, &engine, &err), LUATTN_OK);
  assert_int_equal(luattn_forward(engine, &spec, &p.args, NULL, &err), LUATTN_IMAGE);
  assert_int_equal(spec.compilations, 1);
  luattn_engine_close(engine);
  const luattn_engine_options nothing = {.struct_size = sizeof nothing, .never_compile = 1};
  assert_int_equal(luattn_engine_open(&nothing, &engine, &err), LUATTN_OK);
  assert_int_equal(luattn_forward(engine, &spec, &p.args, NULL, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "never_compile is set and there are no packs"));
  luattn_engine_close(engine);
  for (int i = 0; i < 2; ++i) {
    luattn_pack_close(pack[i]);
    unlink(path[i]);
  }
  problem_close(&p);
}

/* Code for an earlier architecture may need more shared memory than the device has. Such code is treated as
 * absent. */
static void packed_kernel_is_too_large(void **state) {
  (void)state;
  char path[32];
  luattn_pack *const pack = forward_pack(path, 8, FAKE_SHARED_BYTES + 1);
  luattn_engine_options options = {
      .struct_size = sizeof options, .packs = (const luattn_pack *const *)&pack, .num_packs = 1};
  luattn_spec spec = {.compilations = 0};
  luattn_engine *engine = NULL;
  luattn_error err;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  for (int never = 0; never <= 1; ++never) {
    options.never_compile = never;
    assert_int_equal(luattn_engine_open(&options, &engine, &err), LUATTN_OK);
    const luattn_status status = luattn_forward(engine, &spec, &p.args, NULL, &err);
    assert_int_equal(status, never ? LUATTN_UNSUPPORTED : LUATTN_OK);
    if (never) assert_non_null(strstr(err.message, "luattn_fwd needs 232449 bytes of shared memory"));
    luattn_engine_close(engine);
  }
  assert_int_equal(spec.compilations, 1);
  luattn_pack_close(pack);
  unlink(path);
  problem_close(&p);
}

/* One pack has tiles for each class of lengths. Another has only tiles for long sequences, which then serve
 * short ones too. */
static void packed_tiles_for_lengths(void **state) {
  (void)state;
  char path[32] = "/tmp/luattn-engine-XXXXXX";
  problem p;
  luattn_error err;
  close(mkstemp(path));
  problem_open(&p, LUATTN_FORWARD);
  luattn_image *image = problem_image(&p);
  const luattn_pack_item item[2] = {
      {.kind = LUATTN_PACK_IMAGE, .image = image, .spec_hash = {7, 8}, .lengths = 1 + LUATTN_LONG},
      {.kind = LUATTN_PACK_IMAGE, .image = image, .spec_hash = {7, 8}, .lengths = 1 + LUATTN_SHORT}};
  for (size_t count = 1; count <= 2; ++count) {
    luattn_pack *pack;
    luattn_engine *engine;
    if (luattn_pack_write(path, NULL, item, count, &err) != LUATTN_OK) fail_msg("%s", err.message);
    if (luattn_pack_open(path, &pack, &err) != LUATTN_OK) fail_msg("%s", err.message);
    const luattn_pack *const packs[1] = {pack};
    const luattn_engine_options options = {
        .struct_size = sizeof options, .packs = packs, .num_packs = 1, .never_compile = 1};
    if (luattn_engine_open(&options, &engine, &err) != LUATTN_OK) fail_msg("%s", err.message);
    luattn_spec spec = {.compilations = 0};
    const luattn_kernel *kernel[2];
    const char *plan;
    for (int i = 0; i < 2; ++i) { /* short lengths, then long ones */
      p.q.shape[2] = i == 0 ? 5 : 100000;
      assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &kernel[i], &err), LUATTN_OK);
      assert_int_equal(luattn_engine_plan(engine, &spec, LUATTN_FORWARD, &p.args, &plan, &err), LUATTN_OK);
      assert_string_equal(plan, i == 0 && count == 2 ? "from pack number 0 of the engine's, entry 1\n"
                                                     : "from pack number 0 of the engine's, entry 0\n");
    }
    assert_int_equal(kernel[0] == kernel[1], count == 1);
    luattn_engine_close(engine);
    luattn_pack_close(pack);
  }
  luattn_image_free(image);
  problem_close(&p);
  unlink(path);
}

/* The decode kernel, for few queries and many keys, is taken from a pack that has one; else the kernel for all lengths,
 * which luattn_engine_plan tells. */
static void packed_decode_kernels(void **state) {
  (void)state;
  char path[32] = "/tmp/luattn-engine-XXXXXX";
  problem p, few;
  luattn_error err;
  close(mkstemp(path));
  problem_open(&p, LUATTN_FORWARD);
  problem_open(&few, LUATTN_FORWARD);
  few.info.decode = 1, few.info.num_state[0] = 2;
  luattn_image *const images[] = {problem_image(&p), problem_image(&few)};
  const luattn_pack_item item[2] = {{.kind = LUATTN_PACK_IMAGE, .image = images[0], .spec_hash = {7, 8}},
                                    {.kind = LUATTN_PACK_IMAGE, .image = images[1], .spec_hash = {7, 8}}};
  p.q.shape[2] = 1, p.k.shape[2] = p.v.shape[2] = 8192;
  for (size_t count = 1; count <= 2; ++count)
    for (int decode = LUATTN_DECODE_AUTO; decode <= LUATTN_DECODE_NEVER; ++decode) {
      luattn_pack *pack;
      luattn_engine *engine;
      luattn_spec spec = {.compilations = 0};
      const char *plan;
      if (luattn_pack_write(path, NULL, item, count, &err) != LUATTN_OK) fail_msg("%s", err.message);
      if (luattn_pack_open(path, &pack, &err) != LUATTN_OK) fail_msg("%s", err.message);
      const luattn_pack *const packs[1] = {pack};
      const luattn_engine_options options = {
          .struct_size = sizeof options, .packs = packs, .num_packs = 1, .never_compile = 1};
      if (luattn_engine_open(&options, &engine, &err) != LUATTN_OK) fail_msg("%s", err.message);
      p.args.decode = decode;
      const luattn_status status = luattn_engine_plan(engine, &spec, LUATTN_FORWARD, &p.args, &plan, &err);
      const bool lacks = count == 1 && decode == LUATTN_DECODE_ALWAYS;
      assert_int_equal(status, lacks ? LUATTN_UNSUPPORTED : LUATTN_OK);
      if (lacks)
        assert_non_null(strstr(err.message, "has no forward of 'demo', bf16, head dim 64x32, sm_90, few queries"));
      else
        assert_string_equal(plan, decode == LUATTN_DECODE_NEVER ? "from pack number 0 of the engine's, entry 0\n"
                                  : count == 2
                                      ? "from pack number 0 of the engine's, entry 1\n"
                                      : "from pack number 0 of the engine's, entry 0\nnot the decode kernel: no pack "
                                        "has one of this spec, type and head dims for this device\n");
      assert_int_equal(spec.compilations, 0);
      luattn_engine_close(engine);
      luattn_pack_close(pack);
    }
  for (int i = 0; i < 2; ++i) luattn_image_free(images[i]);
  problem_close(&p);
  problem_close(&few);
  unlink(path);
}

/* luattn_prepare_calls makes what the calls then use. */
static void prepares_calls(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec = {.by_length = 1};
  luattn_error err;
  problem p[3];
  luattn_call call[3];
  const luattn_call *calls[3];
  for (int i = 0; i < 3; ++i) {
    problem_open(&p[i], LUATTN_FORWARD);
    p[i].args.decode = LUATTN_DECODE_AUTO;
    if (i == 0) p[i].q.shape[2] = 1000;
    if (i == 1) p[i].q.shape[2] = 1, p[i].k.shape[2] = p[i].v.shape[2] = 8192; /* few queries */
    if (i == 2) p[i].q.shape[2] = 100000;
    p[i].q.t.data = p[i].k.t.data = p[i].v.t.data = NULL;
    call[i] = (luattn_call){.struct_size = sizeof call[i], .spec = &spec, .args = &p[i].args};
    calls[i] = &call[i];
  }
  if (luattn_prepare_calls(engine, calls, 3, 2, NULL, NULL, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(spec.compilations, 3);
  for (int i = 0; i < 3; ++i) {
    const luattn_kernel *kernel;
    assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p[i].args, &kernel, &err), LUATTN_OK);
  }
  assert_int_equal(spec.compilations, 3);
  assert_int_equal(luattn_prepare_calls(engine, (const luattn_call *const[]){calls[0], NULL}, 2, 1, NULL, NULL, &err),
                   LUATTN_INVALID);
  assert_string_equal(err.message, "luattn_prepare_calls: call 1 is NULL; give one");
  call[0].spec = NULL;
  assert_int_equal(luattn_prepare_calls(engine, calls, 1, 1, NULL, NULL, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "luattn_prepare_calls: call 0: spec is NULL; give one");
  call[0].struct_size = 0;
  assert_int_equal(luattn_prepare_calls(engine, calls, 1, 1, NULL, NULL, &err), LUATTN_INVALID);
  assert_int_equal(luattn_prepare_calls(engine, NULL, 0, 1, NULL, NULL, &err), LUATTN_OK);
  luattn_engine_close(engine);
  for (int i = 0; i < 3; ++i) problem_close(&p[i]);
}

static void count_progress(void *user, size_t done, size_t count) {
  size_t *seen = user;
  assert_int_equal(done, ++*seen);
  assert_int_equal(count, 12);
}

static void prepares_on_several_threads(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec[3] = {{.compilations = 0}};
  luattn_request request[12];
  luattn_error err;
  size_t seen = 0;
  problem p;
  for (int i = 0; i < 12; ++i) /* each request twice */
    request[i] = (luattn_request){.spec = &spec[i % 3],
                                  .pass = i % 2 ? LUATTN_BACKWARD : LUATTN_FORWARD,
                                  .dtype = LUATTN_BF16,
                                  .head_dim = HEAD_DIM,
                                  .head_dim_v = HEAD_DIM_V};
  if (luattn_prepare(engine, request, 12, 8, count_progress, &seen, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(seen, 12);
  problem_open(&p, LUATTN_BACKWARD);
  for (int i = 0; i < 3; ++i) {
    assert_int_equal(spec[i].compilations, 2);
    assert_int_equal(luattn_forward(engine, &spec[i], &p.args, NULL, &err), LUATTN_OK);
    assert_int_equal(luattn_backward(engine, &spec[i], &p.args, NULL, &err), LUATTN_OK);
    assert_int_equal(spec[i].compilations, 2); /* the calls compiled nothing more */
  }
  problem_close(&p);
  luattn_spec classes = {.by_length = 1};
  const luattn_request both = {.spec = &classes, .dtype = LUATTN_BF16, .head_dim = 32};
  assert_int_equal(luattn_prepare(engine, &both, 1, 1, NULL, NULL, &err), LUATTN_OK);
  assert_int_equal(classes.compilations, 2);
  luattn_spec bad = {.failures_left = 1000};
  luattn_request failing[3] = {request[0], request[1], request[2]};
  failing[1].spec = &bad;
  assert_int_equal(luattn_prepare(engine, failing, 3, 1, NULL, NULL, &err), LUATTN_COMPILE);
  assert_string_equal(err.message, "attempt 0 failed");
  failing[1].spec = NULL;
  assert_int_equal(luattn_prepare(engine, failing, 3, 2, NULL, NULL, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "luattn_prepare: request 1: spec is NULL; give one");
  const luattn_request without_dim = {.spec = &classes, .dtype = LUATTN_BF16};
  assert_int_equal(luattn_prepare(engine, &without_dim, 1, 1, NULL, NULL, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "request 0: head_dim is 0, head_dim_v 0"));
  assert_int_equal(luattn_prepare(engine, NULL, 0, 2, NULL, NULL, &err), LUATTN_OK);
  luattn_engine_close(engine);
}

int main(void) {
#define TEST(name) cmocka_unit_test_teardown(name, everything_given_back)
  const struct CMUnitTest tests[] = {
      TEST(packs_first),
      TEST(packed_kernel_is_too_large),
      TEST(packed_tiles_for_lengths),
      TEST(prepares_on_several_threads),
      TEST(packed_decode_kernels),
      TEST(prepares_calls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
