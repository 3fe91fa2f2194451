#include "engine/cpu_device.h"

#include "common/call/batch.h"
#include "common/fail.h"
#include "common/threads.h"
#include "gen/compile/cpu_facts.h"
#include "gen/cpu/append_call.h"
#include "gen/cpu/packed_call.h"
#include "runtime/launch/cpu_kernel.h"

static luattn_status run(void *user, luattn_pass pass, const luattn_args *args, const DLTensor *weights,
                         luattn_error *err) {
  const luattn_spec *spec = user;
  luattn_args used = *args;
  char wrong[200];
  if (!threads_count(args->num_threads, 0, &used.num_threads, wrong, sizeof wrong))
    return luattn_fail(err, LUATTN_INVALID, "%s: %s", kernel_pass_name(pass), wrong);
  if (weights != NULL)
    return (batch_is_packed(args->batch) ? cpu_packed_weights : luattn_cpu_weights)(spec, &used, weights, err);
  if (args->tangents != NULL && batch_is_packed(args->batch))
    return (pass == LUATTN_FORWARD ? cpu_packed_forward_jvp : cpu_packed_backward_jvp)(spec, &used, args->tangents,
                                                                                       err);
  if (args->tangents != NULL)
    return (pass == LUATTN_FORWARD ? luattn_cpu_forward_jvp : luattn_cpu_backward_jvp)(spec, &used, err);
  if (batch_is_packed(args->batch) || batch_is_paged(args->batch))
    return (pass == LUATTN_FORWARD ? cpu_packed_forward : cpu_packed_backward)(spec, &used, err);
  return (pass == LUATTN_FORWARD ? luattn_cpu_forward : luattn_cpu_backward)(spec, &used, err);
}

static luattn_status append(void *user, const luattn_append_args *args, luattn_error *err) {
  return cpu_append(user, args, err);
}

luattn_status cpu_device_kernel(const cpu_device *how, const kernel_key *key, luattn_kernel **kernel,
                                luattn_compile_report *report, luattn_error *err) {
  luattn_target target = {.struct_size = sizeof target,
                          .arch = key->packed ? 90 : 80,
                          .family = key->weights ? 0 : how->family,
                          .cache_dir = "",
                          .deterministic = how->deterministic};
  kernel_key_fill_target(key, &target);
  target.tangents = 0; /* there are more than kernels have */
  image_manifest facts;
  TRY(cpu_facts(key->spec, &target, how->relaxed, &facts, report->plan, sizeof report->plan, err));
  facts.tangents = key->tangents != 0;
  report->every_length = 1;
  return cpu_kernel_make(&facts, how->relaxed, run, append, (void *)(uintptr_t)key->spec, kernel, err);
}
