/* plan_manifest.c: plans an image, and describes it before anything is compiled. */
#include "common/host.h"
#include "gen/compile/pipeline.h"
#include "gen/compile/plan_manifest.h"

typedef struct manifest_call {
  const luattn_spec *spec;
  const luattn_target *target;
  image_manifest *out;
} manifest_call;

static luattn_status answer(void *arguments, luattn_error *err) {
  const manifest_call *given = arguments;
  compilation *c;
  luattn_status status = compilation_open(given->spec, given->target, &c, err);
  if (status == LUATTN_OK) status = pipeline_tuned_source(c, err);
  if (status == LUATTN_OK) *given->out = c->at.info;
  compilation_close(c);
  if (status == LUATTN_OK) fail_clear(err); /* other tiles may have failed first */
  return status;
}

luattn_status plan_manifest(const luattn_spec *spec, const luattn_target *target, image_manifest *out,
                            luattn_error *err) {
  return host_run(answer, &(manifest_call){spec, target, out}, err);
}
