#include "runtime/launch/cpu_kernel.h"

#include <inttypes.h>
#include <stdlib.h>

#include "runtime/call/args.h"
#include "runtime/call/packed.h"
#include "runtime/call/paged.h"
#include "runtime/call/random.h"
#include "runtime/call/tangents.h"
#include "runtime/call/weights_array.h"
#include "runtime/parts/append.h"

luattn_status cpu_kernel_make(const image_manifest *facts, bool relaxed, cpu_pass *run, cpu_append_pass *append,
                              void *user, luattn_kernel **kernel, luattn_error *err) {
  luattn_kernel *k = calloc(1, sizeof *k);
  if (k == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_engine: out of memory");
  k->info = *facts;
  k->cpu_run = run;
  k->cpu_append = append;
  k->cpu_user = user;
  k->cpu_relaxed = relaxed;
  *kernel = k;
  return LUATTN_OK;
}

luattn_status cpu_kernel_launch(const luattn_kernel *kernel, const luattn_args *args, const DLTensor *weights,
                                const void *stream, luattn_error *err) {
  const args_call c = {.info = &kernel->info, .args = args, .err = err};
  LuattnCallParams unused;
  if (stream != NULL)
    return args_fail(&c, "stream: is 0x%" PRIxPTR ", and the CPU has none; give NULL", (uintptr_t)stream);
  if (!kernel->cpu_relaxed) {
    LuattnUsed lengths;
    LuattnPaging pages;
    TRY(args_fill(&c, &unused));
    TRY(packed_used(&c, &lengths));
    TRY(paged_table(&c, &unused.dense, &pages));
    TRY(random_fill(&c, &unused));
    LuattnWeights to;
    if (weights != NULL) TRY(weights_fill(&c, weights, &unused.dense, &to));
    if (args->tangents != NULL) TRY(tangents_fill(&c, args->tangents, &unused));
    TRY(weights != NULL          ? weights_apart(&c, weights, 0)
        : args->tangents != NULL ? tangents_apart(&c, args->tangents, 0)
                                 : args_apart(&c, 0));
  }
  luattn_args rest = *args;
  if (kernel->info.pass == LUATTN_FORWARD && !kernel->cpu_relaxed) {
    TRY(append_first(kernel, args, NULL, err));
    rest.append = NULL;
  }
  return kernel->cpu_run(kernel->cpu_user, (luattn_pass)kernel->info.pass, &rest, weights, err);
}

luattn_status cpu_kernel_workspace(const luattn_kernel *kernel, const luattn_args *args, size_t *size,
                                   luattn_error *err) {
  const args_call c = {.info = &kernel->info, .args = args, .shapes_only = true, .err = err};
  LuattnCallParams unused;
  if (!kernel->cpu_relaxed) TRY(args_fill(&c, &unused));
  *size = 0;
  return LUATTN_OK;
}
