/* tangent_calls.c: luattn_forward_jvp, forward and tangents. */
#include "common/call/choices.h"
#include "common/call/need_attention.h"
#include "common/call/tangent_bits.h"
#include "engine/engine.h"

/* A call: the arguments without tangents, the tangents, and the kernel for both. */
typedef struct jvp_call {
  luattn_args used;
  luattn_tangents tangents;
  const luattn_kernel *kernel;
} jvp_call;

/* On the CPU one kernel serves calls with and without tangents. */
static luattn_status find(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args, jvp_call *c,
                          luattn_error *err) {
  kernel_key key;
  luattn_spec_info info;
  const engine_place at = engine_get_place(engine);
  TRY(choices_take_tangents(args, "forward_jvp", &c->used, &c->tangents, err));
  TRY(engine_key(&at, spec, LUATTN_FORWARD, &c->used, false, &key, err));
  if (at.driver != NULL) {
    luattn_spec_get_info(spec, &info);
    kernel_key_leave_decode(&key);
    key.tangents = tangent_bits(&c->tangents, info.inputs, info.num_inputs, info.scalar_names, info.num_scalars);
    if (key.tangents == 0)
      return luattn_fail(err, LUATTN_INVALID,
                         "forward_jvp: tangents: none is given, so there is nothing to compute; call luattn_forward");
  }
  TRY(engine_kernel(engine, &key, &c->kernel, err));
  c->used.tangents = &c->tangents;
  return LUATTN_OK;
}

luattn_status luattn_forward_jvp_workspace_size(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                                                size_t *size, luattn_error *err) {
  jvp_call c;
  luattn_error said;
  fail_clear(err);
  NEED(engine);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(size);
  TRY(find(engine, spec, args, &c, err));
  c.used.tangents = NULL;
  return engine_tell(luattn_workspace_size(c.kernel, &c.used, size, &said), &said, err);
}

luattn_status luattn_forward_jvp(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args, void *stream,
                                 luattn_error *err) {
  jvp_call c;
  luattn_error said;
  fail_clear(err);
  NEED(engine);
  NEED_ATTENTION(spec);
  NEED(args);
  TRY(find(engine, spec, args, &c, err));
  const engine_place at = engine_get_place(engine);
  luattn_status status = luattn_launch_jvp(c.kernel, &c.used, stream, &said);
  c.used.tangents = NULL;
  if (status == LUATTN_OK && at.driver != NULL) status = engine_check_ints(&at, spec, &c.used, stream, &said);
  return engine_tell(status, &said, err);
}
