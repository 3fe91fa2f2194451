/* xla_handlers.c: what XLA calls for a pass of attention: reads the call, launches it on XLA's stream, and says what was wrong in XLA's words. */
#include "common/fail.h"
#include "xla/xla_call.h"

LUATTN_API xla_error *luattn_jax_forward_cpu(xla_frame *frame);
LUATTN_API xla_error *luattn_jax_backward_cpu(xla_frame *frame);
LUATTN_API xla_error *luattn_jax_forward_cuda(xla_frame *frame);
LUATTN_API xla_error *luattn_jax_backward_cuda(xla_frame *frame);

static int code_of(luattn_status status) {
  switch (status) {
    case LUATTN_INVALID:
    case LUATTN_SPEC:
      return XLA_INVALID_ARGUMENT;
    case LUATTN_NO_MEMORY:
      return XLA_RESOURCE_EXHAUSTED;
    case LUATTN_UNSUPPORTED:
      return XLA_UNIMPLEMENTED;
    case LUATTN_COMPILE:
    case LUATTN_CUDA:
      return XLA_FAILED_PRECONDITION;
    default:
      return XLA_INTERNAL;
  }
}

static xla_error *error_of(const xla_frame *frame, luattn_status status, const luattn_error *err) {
  if (status == LUATTN_OK) return NULL;
  xla_error_args args = {XLA_SIZE(xla_error_args, code), NULL, err->message, code_of(status)};
  return frame->api->error_create(&args);
}

/* XLA asks a handler what it is before it runs one. States the version of ffi_abi.h, or an earlier one where XLA is earlier. */
static int is_question(const xla_frame *frame) {
  if (frame->extension == NULL || frame->extension->type != XLA_EXTENSION_METADATA) return 0;
  xla_metadata *answer = ((xla_metadata_extension *)frame->extension)->metadata;
  const int known = frame->api != NULL ? frame->api->version.minor : XLA_API_MINOR;
  answer->version =
      (xla_version){XLA_SIZE(xla_version, minor), NULL, XLA_API_MAJOR, known < XLA_API_MINOR ? known : XLA_API_MINOR};
  answer->traits = 0; /* not for command buffers: a replay would use scratch memory that others have */
  return 1;
}

/* Runs the pass in scratch memory of XLA's, which it hands to no other kernel before those on this stream are over. */
static xla_error *run_with_scratch(const xla_frame *frame, xla_call *call, luattn_engine *engine, luattn_pass pass,
                                   void *stream) {
  const library_functions *lib = library_get();
  luattn_error err;
  size_t size = 0;
  luattn_status status = lib->engine_workspace_size(engine, call->spec->spec, pass, &call->args, &size, &err);
  if (status != LUATTN_OK) return error_of(frame, status, &err);
  enum { ALIGNMENT = 256, XLA_ALIGNMENT = 16 };
  xla_allocate_args scratch = {
      XLA_SIZE(xla_allocate_args, data), NULL, frame->context, size + ALIGNMENT, XLA_ALIGNMENT, NULL};
  if (size > 0) {
    xla_error *failed = frame->api->memory_allocate(&scratch);
    if (failed != NULL) return failed;
    call->args.workspace = (void *)(((uintptr_t)scratch.data + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    call->args.workspace_size = size;
  }
  status = (pass == LUATTN_FORWARD ? lib->forward : lib->backward)(engine, call->spec->spec, &call->args, stream, &err);
  xla_error *failed = error_of(frame, status, &err);
  if (size > 0) {
    xla_free_args used = {XLA_SIZE(xla_free_args, data), NULL, frame->context, size + ALIGNMENT, scratch.data};
    xla_error *kept = frame->api->memory_free(&used);
    if (failed == NULL) failed = kept;
  }
  return failed;
}

static xla_error *run_on(const xla_frame *frame, luattn_pass pass, int device, void *stream) {
  luattn_error err;
  if (library_get() == NULL)
    return error_of(frame, luattn_fail(&err, LUATTN_CUDA, "luattn: is not started; import luattn.jax before the call"),
                    &err);
  xla_call call;
  luattn_engine *engine = NULL;
  luattn_status status = xla_call_read(&call, frame, device, &err);
  if (status == LUATTN_OK) status = library_find_engine(device, call.deterministic != 0, &engine, &err);
  luattn_batch *batch = NULL;
  if (status == LUATTN_OK && call.has_batch) {
    status = library_get()->batch_open(&call.batch, &batch, &err);
    call.args.batch = batch;
  }
  xla_error *failed =
      status == LUATTN_OK ? run_with_scratch(frame, &call, engine, pass, stream) : error_of(frame, status, &err);
  if (batch != NULL) library_get()->batch_close(batch);
  return failed;
}

static xla_error *run(const xla_frame *frame, luattn_pass pass, int is_cuda) {
  if (is_question(frame) || frame->stage != XLA_STAGE_EXECUTE) return NULL;
  luattn_error err;
  if (frame->api->struct_size < XLA_SIZE(xla_api, ordinal_get))
    return error_of(frame,
                    luattn_fail(&err, LUATTN_UNSUPPORTED,
                                "luattn: jaxlib: is too old, it has no device ordinals; install jax 0.10 or later"),
                    &err);
  if (!is_cuda) return run_on(frame, pass, LUATTN_CPU, NULL);
  xla_stream_args stream = {XLA_SIZE(xla_stream_args, stream), NULL, frame->context, NULL};
  xla_ordinal_args ordinal = {XLA_SIZE(xla_ordinal_args, ordinal), NULL, frame->context, 0};
  xla_error *failed = frame->api->stream_get(&stream);
  if (failed == NULL) failed = frame->api->ordinal_get(&ordinal);
  return failed != NULL ? failed : run_on(frame, pass, ordinal.ordinal, stream.stream);
}

xla_error *luattn_jax_forward_cpu(xla_frame *frame) { return run(frame, LUATTN_FORWARD, 0); }
xla_error *luattn_jax_backward_cpu(xla_frame *frame) { return run(frame, LUATTN_BACKWARD, 0); }
xla_error *luattn_jax_forward_cuda(xla_frame *frame) { return run(frame, LUATTN_FORWARD, 1); }
xla_error *luattn_jax_backward_cuda(xla_frame *frame) { return run(frame, LUATTN_BACKWARD, 1); }
