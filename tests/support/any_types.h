/* any_types.h: luattn_target.input_types for a spec whose inputs of dtype `any` are float32. */
#ifndef LUATTN_TESTS_ANY_TYPES_H
#define LUATTN_TESTS_ANY_TYPES_H

#include "luattn/compiler.h"

static inline uint64_t any_types_f32(const luattn_spec *spec) {
  luattn_spec_info info;
  uint64_t types = 0;
  luattn_spec_get_info(spec, &info);
  for (size_t i = 0; i < info.num_inputs; ++i)
    if (info.inputs[i].dtype == LUATTN_INPUT_ANY) types |= (uint64_t)(1 + LUATTN_INPUT_F32) << 4 * i;
  return types;
}

#endif
