/* fuzz_spec.c: loads arbitrary bytes as a spec, which is parsed, run in the sandbox, traced, differentiated,
 * and emitted as CUDA text. */
#include "luattn/compiler.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/any_types.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  luattn_spec *spec;
  luattn_error err;
  char *text;
  luattn_status status = luattn_spec_load_text("fuzz.lua", (const char *)data, size, NULL, &spec, &err);
  fuzz_expect(status, LUATTN_SPEC, LUATTN_UNSUPPORTED);
  if (status != LUATTN_OK) return 0;
  const luattn_target target = {.struct_size = sizeof target,
                                .pass = size % 2 ? LUATTN_BACKWARD : LUATTN_FORWARD,
                                .dtype = size % 3 ? LUATTN_BF16 : LUATTN_F32,
                                .head_dim = 64,
                                .arch = size % 5 ? 80 : 90,
                                .input_types = any_types_f32(spec)};
  status = luattn_emit(spec, &target, "spec", &text, &err);
  fuzz_expect(status, LUATTN_UNSUPPORTED, LUATTN_SPEC);
  if (status == LUATTN_OK) luattn_text_free(text);
  luattn_spec_free(spec);
  return 0;
}
