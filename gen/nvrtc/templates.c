/* templates.c: serves the template files, from the library itself or from a folder while one edits them.
 * Headers of abi/ always come from the library: host code was compiled with these. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/nvrtc/embedded.h"

static luattn_status read_template(arena *a, const char *folder, const char *name, template_file *out,
                                   luattn_error *err) {
  char *path = arena_printf(a, "%s/%s", folder, name);
  if (path == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "templates: %s: out of memory", name);
  FILE *f = fopen(path, "rb");
  long size = -1;
  if (f != NULL && fseek(f, 0, SEEK_END) == 0) size = ftell(f);
  char *data = size < 0 ? NULL : arena_new(a, (size_t)size + 1);
  bool ok = data != NULL && fseek(f, 0, SEEK_SET) == 0 && fread(data, 1, (size_t)size, f) == (size_t)size;
  const int reason = errno;
  if (f != NULL) fclose(f);
  if (!ok)
    return luattn_fail(err, LUATTN_IO,
                       "templates: '%s': cannot be read (%s); LUATTN_TEMPLATE_DIR must hold every template, "
                       "or be unset to use "
                       "the embedded ones",
                       path, strerror(reason));
  out->name = name;
  out->data = data;
  out->size = (size_t)size;
  return LUATTN_OK;
}

luattn_status templates_get(arena *a, const template_file **files, int *count, luattn_error *err) {
  const char *folder = getenv("LUATTN_TEMPLATE_DIR");
  if (folder == NULL || folder[0] == 0) {
    *files = luattn_embedded_templates;
    *count = luattn_embedded_template_count;
    return LUATTN_OK;
  }
  template_file *out = arena_array(a, (size_t)luattn_embedded_template_count, sizeof *out);
  if (out == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "templates: out of memory");
  for (int i = 0; i < luattn_embedded_template_count; i++) {
    out[i] = luattn_embedded_templates[i];
    if (strncmp(out[i].name, "abi/", 4) != 0) TRY(read_template(a, folder, out[i].name, &out[i], err));
  }
  *files = out;
  *count = luattn_embedded_template_count;
  return LUATTN_OK;
}
