/* weights.c: luattn_weights, the weights of V. */
#include "common/call/need_attention.h"
#include "common/call/batch.h"
#include "engine/engine.h"

static luattn_status find(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                          const luattn_kernel **kernel, luattn_error *err) {
  kernel_key key;
  const engine_place at = engine_get_place(engine);
  TRY(engine_key(&at, spec, LUATTN_FORWARD, args, false, &key, err));
  if (key.pages != 0)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "weights: batch: has %s, and there are no weights of keys in pages or in a part of a cache; copy them to k of "
        "equal "
        "lengths, or to packed sequences",
        args->batch->array[BATCH_BLOCK_TABLE].is_given ? "block_table" : "seqused_k without cu_seqlens_k");
  kernel_key_leave_decode(&key);
  key.weights = 1;
  key.large_scores = key.out_f32 = 0;
  return engine_kernel(engine, &key, kernel, err);
}

luattn_status luattn_weights_workspace_size(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                                            size_t *size, luattn_error *err) {
  const luattn_kernel *kernel;
  luattn_error said;
  fail_clear(err);
  NEED(engine);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(size);
  TRY(find(engine, spec, args, &kernel, err));
  return engine_tell(luattn_workspace_size(kernel, args, size, &said), &said, err);
}

luattn_status luattn_weights(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                             const DLTensor *weights, void *stream, luattn_error *err) {
  const luattn_kernel *kernel;
  luattn_error said;
  fail_clear(err);
  NEED(engine);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(weights);
  TRY(find(engine, spec, args, &kernel, err));
  const engine_place at = engine_get_place(engine);
  luattn_status status = luattn_launch_weights(kernel, args, weights, stream, &said);
  if (status == LUATTN_OK) status = engine_check_ints(&at, spec, args, stream, &said);
  return engine_tell(status, &said, err);
}
