/* check_ints.c: with LUATTN_CHECK=1, warns of integers of inputs in device memory beyond what kernels compute with. */
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/host.h"
#include "engine/engine.h"
#include "gen/analysis/specs/int_range.h"
#include "runtime/call/fetch_tensor.h"

static luattn_status look(const engine_place *at, const luattn_spec *spec, int input, const luattn_input *given,
                          void *stream, luattn_error *err) {
  DLTensor on_host;
  void *memory;
  char warning[INT_RANGE_TEXT];
  TRY(fetch_tensor(at->driver, at->device, stream, given->tensor, given->name, &on_host, &memory, err));
  if (memory != NULL && int_range_warning(spec, input, INT_RANGE_SPEC, &on_host, warning))
    luattn_warn(err, "LUATTN_CHECK: input '%s': %s", given->name, warning);
  free(memory);
  return LUATTN_OK;
}

luattn_status engine_check_ints(const engine_place *at, const luattn_spec *spec, const luattn_args *args, void *stream,
                                luattn_error *err) {
  const unsigned matter = int_range_inputs(spec, INT_RANGE_SPEC);
  if (matter == 0 || at->driver == NULL) return LUATTN_OK; /* on the CPU the path itself looks */
  HOST_SCOPE;
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  for (size_t i = 0; i < info.num_inputs; ++i)
    for (size_t j = 0; j < args->num_inputs && err->message[0] == 0; ++j)
      if ((matter >> i & 1) != 0 && strcmp(args->inputs[j].name, info.inputs[i].name) == 0)
        TRY(look(at, spec, (int)i, &args->inputs[j], stream, err));
  return LUATTN_OK;
}
