/* spec_option.c: loads the spec of a command line, and wraps its online function where --dropout is given. */
#include <math.h>

#include "cli/cli.h"
#include "gen/spec.h"

/* Of 256 weights, how many are kept: as dropout() of gen/lua/prelude.lua rounds p. */
static luattn_status keep_of(double p, int *keep, luattn_error *err) {
  if (!(p >= 0 && p < 1))
    return luattn_fail(err, LUATTN_INVALID,
                       "--dropout: %g is no probability of dropping a weight; give a number, at least 0 and below 1",
                       p);
  *keep = (int)floor((1 - p) * SPEC_KEEP_ALL + 0.5);
  if (p > 0 && (*keep < 1 || *keep >= SPEC_KEEP_ALL))
    return luattn_fail(err, LUATTN_INVALID, "--dropout: %g rounds to %d in steps of 1/256; give 0, or 1/512 to 511/512",
                       p, *keep < 1);
  return LUATTN_OK;
}

static luattn_status drop(luattn_spec *spec, const cli_options *o, luattn_error *err) {
  const traced_online *online = &spec->traced.online;
  int keep = SPEC_KEEP_ALL;
  if (!o->has_dropout) return LUATTN_OK;
  TRY(keep_of(o->dropout, &keep, err));
  if (online->keep != SPEC_KEEP_ALL)
    return luattn_fail(
        err, LUATTN_INVALID,
        "--dropout: %g: the spec '%s' drops weights already: its online function is %s; leave one of both out",
        o->dropout, spec->traced.name, online->name);
  return spec_drop_weights(spec, keep, err);
}

luattn_status spec_option(const cli_options *o, luattn_spec **out, luattn_error *err) {
  TRY(luattn_spec_load(o->spec, NULL, out, err));
  const luattn_status status = drop(*out, o, err);
  if (status != LUATTN_OK) luattn_spec_free(*out);
  return status;
}
