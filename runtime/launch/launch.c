/* launch.c: launches a kernel, after its row passes. */
#include "common/call/choices.h"
#include "common/host.h"
#include "runtime/call/weights_array.h"
#include "runtime/launch/cpu_kernel.h"
#include "runtime/launch/pass_launches.h"

/* These are not inlined: a kernel's launch, those of its row passes and the caller's arguments are in no one frame. */
static __attribute__((noinline)) luattn_status measure_passes(kernel_launch *l, size_t *size) {
  pass_launches passes;
  TRY(pass_launches_take(l->kernel, &l->c, &l->p, &passes));
  *size = l->p.room.used;
  return LUATTN_OK;
}
static __attribute__((noinline)) luattn_status measure(const luattn_kernel *kernel, const luattn_args *used,
                                                       size_t *size, luattn_error *err) {
  kernel_launch l;
  TRY(kernel_launch_fill(&l, kernel, used, NULL, true, err));
  return measure_passes(&l, size);
}

luattn_status luattn_workspace_size(const luattn_kernel *kernel, const luattn_args *args, size_t *size,
                                    luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  NEED(size);
  TRY(choices_take(args, args_place(kernel), &used, err));
  if (kernel->info.weights) weights_take(&used);
  if (kernel->cpu_run != NULL) return cpu_kernel_workspace(kernel, &used, size, err);
  return measure(kernel, &used, size, err);
}

/* After kernel_launch_fill. All checks come before the first operation on the stream. */
static __attribute__((noinline)) luattn_status launch_with_passes(kernel_launch *l, void *stream, luattn_error *err) {
  const luattn_kernel *kernel = l->kernel;
  pass_launches passes;
  TRY(pass_launches_take(kernel, &l->c, &l->p, &passes));
  TRY(kernel_launch_check(l, stream));
  TRY(pass_launches_check(&passes, stream));
  TRY(driver_push(kernel->driver, kernel->context, err));
  luattn_status status = kernel_launch_describe(l);
  if (status == LUATTN_OK) status = pass_launches_start(&passes, stream);
  if (status == LUATTN_OK) status = kernel_launch_start(l, stream);
  driver_pop(kernel->driver);
  return status;
}

/* Launches with arguments of this version. */
static luattn_status launch(const luattn_kernel *kernel, const luattn_args *used, const DLTensor *weights, void *stream,
                            luattn_error *err) {
  if (kernel->cpu_run != NULL) return cpu_kernel_launch(kernel, used, weights, stream, err);
  kernel_launch l;
  TRY(kernel_launch_fill(&l, kernel, used, weights, false, err));
  return launch_with_passes(&l, stream, err);
}

luattn_status luattn_launch(const luattn_kernel *kernel, const luattn_args *args, void *stream, luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  TRY(choices_take(args, args_place(kernel), &used, err));
  if (kernel->info.weights)
    return luattn_fail(err, LUATTN_INVALID,
                       "forward of '%s': the kernel is compiled with luattn_target.weights, which writes the weights "
                       "of V and no o; give "
                       "it to luattn_launch_weights, or take another kernel",
                       kernel->info.spec_name);
  if (kernel->info.tangents)
    return luattn_fail(err, LUATTN_INVALID,
                       "%s of '%s': the kernel is compiled with luattn_target.tangents; give it to "
                       "luattn_launch_jvp, or take another kernel",
                       kernel_pass_name(kernel->info.pass), kernel->info.spec_name);
  return launch(kernel, &used, NULL, stream, err);
}

luattn_status luattn_launch_weights(const luattn_kernel *kernel, const luattn_args *args, const DLTensor *weights,
                                    void *stream, luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  NEED(weights);
  TRY(choices_take(args, "weights", &used, err));
  if (!kernel->info.weights)
    return luattn_fail(
        err, LUATTN_INVALID,
        "weights of '%s': the kernel writes none; compile one with luattn_target.weights = 1, or call luattn_weights",
        kernel->info.spec_name);
  weights_take(&used);
  return launch(kernel, &used, weights, stream, err);
}

luattn_status luattn_launch_jvp(const luattn_kernel *kernel, const luattn_args *args, void *stream, luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  luattn_tangents tangents;
  luattn_input inputs[CHOICES_MAX_INPUTS];
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  const bool backward = kernel->info.pass == LUATTN_BACKWARD;
  const char *place = backward ? "backward_jvp" : "forward_jvp";
  TRY(choices_take_tangents(args, place, &used, &tangents, err));
  if (kernel->info.weights || (!kernel->info.tangents && (kernel->cpu_run == NULL || backward)))
    return luattn_fail(err, LUATTN_INVALID,
                       "%s of '%s': the kernel computes no tangents; compile one with luattn_target.tangents, "
                       "or call luattn_%s",
                       place, kernel->info.spec_name, place);
  if (backward) choices_write_tangents(&used, &tangents, inputs);
  used.tangents = &tangents;
  return launch(kernel, &used, NULL, stream, err);
}
