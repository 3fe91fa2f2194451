#include "runtime/call/args_call.h"

#include <stdarg.h>
#include <stdio.h>

luattn_status args_fail(const args_call *c, const char *fmt, ...) {
  char text[900];
  va_list list;
  va_start(list, fmt);
  vsnprintf(text, sizeof text, fmt, list);
  va_end(list);
  if (c->place != NULL) return luattn_fail(c->err, LUATTN_INVALID, "%s: %s", c->place, text);
  return luattn_fail(c->err, LUATTN_INVALID, "%s of '%s': %s", manifest_pass_name(c->info), c->info->spec_name, text);
}

const char *args_place(const luattn_kernel *k) { return manifest_pass_name(&k->info); }

args_call args_call_of(const luattn_kernel *kernel, const luattn_args *used, bool shapes_only, luattn_error *err) {
  return (args_call){.info = &kernel->info,
                     .args = used,
                     .device = kernel->device,
                     .multiprocessors = kernel->multiprocessors,
                     .zero = (const void *)(uintptr_t)kernel->zero,
                     .shapes_only = shapes_only,
                     .err = err};
}
