#include "runtime/call/random.h"

#include <string.h>

#include "common/call/choices.h"

luattn_status random_fill(const args_call *c, LuattnCallParams *params) {
  LuattnRandom *out = &params->random;
  luattn_random given;
  char text[400];
  memset(out, 0, sizeof *out);
  if (!c->info->random) return LUATTN_OK;
  if (!choices_random(c->args, &given, text, sizeof text)) return args_fail(c, "%s", text);
  out->seed_at = (const unsigned long long *)given.seed_at;
  out->offset_at = (const unsigned long long *)given.offset_at;
  out->seed = given.seed;
  out->offset = given.offset;
  out->heads = c->info->offsets ? params->offsets.heads : params->dense.shape.heads;
  out->first_head = params->offsets.head_offset;
  return LUATTN_OK;
}
