/* cmd_emit.c: luattn emit. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static luattn_status read_target(const cli_options *o, luattn_target *t, luattn_error *err) {
  int b, h, hkv, sq, skv;
  *t = (luattn_target){.struct_size = sizeof *t, .dtype = LUATTN_F32, .head_dim = 64, .arch = 80, .cache_dir = o->cache_dir};
  if (o->dtype != NULL && !dtype_parse(o->dtype, &t->dtype)) {
    return luattn_fail(err, LUATTN_INVALID, "--dtype: '%s' is not f64, f32, bf16 or f16", o->dtype);
  }
  if (o->shape != NULL &&
      sscanf(o->shape, "%d,%d,%d,%d,%d,%d,%d", &b, &h, &hkv, &sq, &skv, &t->head_dim, &t->head_dim_v) < 6) {
    return luattn_fail(err, LUATTN_INVALID, "--shape: '%s' is not B,H,Hkv,Sq,Skv,D[,Dv]", o->shape);
  }
  if (o->arch != NULL && sscanf(o->arch, "sm_%d", &t->arch) != 1) {
    return luattn_fail(err, LUATTN_INVALID, "--arch: '%s' is not of the form sm_80", o->arch);
  }
  if (o->tile != NULL && sscanf(o->tile, "%d,%d", &t->tile_m, &t->tile_n) != 2) {
    return luattn_fail(err, LUATTN_INVALID, "--tile: '%s' is not M,N", o->tile);
  }
  if (o->pass != NULL && strcmp(o->pass, "backward") == 0) {
    t->pass = LUATTN_BACKWARD;
  } else if (o->pass != NULL && strcmp(o->pass, "forward") != 0) {
    return luattn_fail(err, LUATTN_INVALID, "--pass: '%s' is not forward or backward", o->pass);
  }
  return LUATTN_OK;
}

static luattn_status emit_cubin(const luattn_spec *spec, const luattn_target *t, luattn_error *err) {
  luattn_image *image;
  luattn_compile_report report = {0};
  size_t size;
  TRY(luattn_compile(spec, t, &image, &report, err));
  if (report.cache_hit) {
    fprintf(stderr, "from the cache: plan and source %.1f ms, cache %.1f ms\n", report.plan_ms, report.cache_ms);
  } else {
    fprintf(stderr, "compiled: trace %.1f ms, plan and source %.1f ms, NVRTC %.0f ms\n", report.trace_ms, report.plan_ms,
            report.nvrtc_ms);
  }
  const void *cubin = luattn_image_cubin(image, &size);
  const bool ok = fwrite(cubin, 1, size, stdout) == size;
  luattn_image_free(image);
  return ok ? LUATTN_OK : luattn_fail(err, LUATTN_IO, "writing to standard output failed");
}

static luattn_status emit(const cli_options *o, const luattn_spec *spec, luattn_error *err) {
  luattn_target target;
  char *text;
  TRY(read_target(o, &target, err));
  if (o->stage == NULL) {
    return luattn_fail(err, LUATTN_INVALID, "--stage is missing: one of ir, grad, mask, plan, spec, config, ptx, cubin");
  }
  if (strcmp(o->stage, "cubin") == 0) return emit_cubin(spec, &target, err);
  TRY(luattn_emit(spec, &target, o->stage, &text, err));
  fputs(text, stdout);
  luattn_text_free(text);
  return LUATTN_OK;
}

int cmd_emit(const cli_options *o) {
  luattn_error err;
  luattn_spec *spec;
  if (luattn_spec_load(o->spec, NULL, &spec, &err) != LUATTN_OK) return cli_fail(&err);
  const luattn_status status = emit(o, spec, &err);
  luattn_spec_free(spec);
  return status == LUATTN_OK ? 0 : cli_fail(&err);
}
