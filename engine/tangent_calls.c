/* tangent_calls.c: luattn_forward_jvp, forward and tangents, and luattn_backward_jvp, tangents of gradients. */
#include "abi/kernel_facts.h"
#include "common/call/batch.h"
#include "common/call/choices.h"
#include "common/call/need_attention.h"
#include "common/call/tangent_bits.h"
#include "engine/engine.h"

/* A call: the arguments without tangents, the tangents, and the kernel for both. */
typedef struct jvp_call {
  luattn_args given, used; /* used: what the kernel reads and writes besides tangents */
  luattn_tangents tangents;
  luattn_input inputs[CHOICES_MAX_INPUTS];
  const luattn_kernel *kernel; /* NULL: the CPU computes them without one */
} jvp_call;

static const char *name_of(luattn_pass pass) { return pass == LUATTN_FORWARD ? "forward_jvp" : "backward_jvp"; }

/* On the CPU one kernel serves forward calls with and without tangents, and dense calls of backward check themselves. */
static luattn_status find(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass, const luattn_args *args,
                          jvp_call *c, luattn_error *err) {
  kernel_key key;
  luattn_spec_info info;
  const engine_place at = engine_get_place(engine);
  TRY(choices_take_tangents(args, name_of(pass), &c->given, &c->tangents, err));
  c->used = c->given;
  c->kernel = NULL;
  if (pass == LUATTN_BACKWARD && at.driver == NULL && !batch_is_packed(c->given.batch)) return LUATTN_OK;
  if (pass == LUATTN_BACKWARD) choices_write_tangents(&c->used, &c->tangents, c->inputs);
  TRY(engine_key(&at, spec, pass, &c->used, false, &key, err));
  if (pass == LUATTN_BACKWARD || at.driver != NULL) {
    luattn_spec_get_info(spec, &info);
    kernel_key_leave_decode(&key);
    key.tangents = tangent_bits(&c->tangents, info.inputs, info.num_inputs, info.scalar_names, info.num_scalars);
    if (key.tangents == 0)
      return luattn_fail(err, LUATTN_INVALID,
                         "%s: tangents: none is given, so there is nothing to compute; call luattn_%s", name_of(pass),
                         kernel_pass_name(pass));
  }
  return engine_kernel(engine, &key, &c->kernel, err);
}

static luattn_status find_size(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                               const luattn_args *args, size_t *size, luattn_error *err) {
  jvp_call c;
  luattn_error said;
  TRY(find(engine, spec, pass, args, &c, err));
  *size = 0;
  if (c.kernel == NULL) return LUATTN_OK;
  return engine_tell(luattn_workspace_size(c.kernel, &c.used, size, &said), &said, err);
}

static luattn_status run(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass, const luattn_args *args,
                         void *stream, luattn_error *err) {
  jvp_call c;
  luattn_error said;
  TRY(find(engine, spec, pass, args, &c, err));
  if (c.kernel == NULL) return luattn_cpu_backward_jvp(spec, args, err);
  const engine_place at = engine_get_place(engine);
  c.given.tangents = &c.tangents;
  luattn_status status = luattn_launch_jvp(c.kernel, &c.given, stream, &said);
  if (status == LUATTN_OK && at.driver != NULL) status = engine_check_ints(&at, spec, &c.used, stream, &said);
  return engine_tell(status, &said, err);
}

#define NEED_CALL       \
  fail_clear(err);      \
  NEED(engine);         \
  NEED_ATTENTION(spec); \
  NEED(args)

luattn_status luattn_forward_jvp_workspace_size(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                                                size_t *size, luattn_error *err) {
  NEED_CALL;
  NEED(size);
  return find_size(engine, spec, LUATTN_FORWARD, args, size, err);
}

luattn_status luattn_forward_jvp(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args, void *stream,
                                 luattn_error *err) {
  NEED_CALL;
  return run(engine, spec, LUATTN_FORWARD, args, stream, err);
}

luattn_status luattn_backward_jvp_workspace_size(luattn_engine *engine, const luattn_spec *spec,
                                                 const luattn_args *args, size_t *size, luattn_error *err) {
  NEED_CALL;
  NEED(size);
  return find_size(engine, spec, LUATTN_BACKWARD, args, size, err);
}

luattn_status luattn_backward_jvp(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args, void *stream,
                                  luattn_error *err) {
  NEED_CALL;
  return run(engine, spec, LUATTN_BACKWARD, args, stream, err);
}
