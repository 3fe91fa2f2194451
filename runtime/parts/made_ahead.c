#include "runtime/parts/made_ahead.h"

#include <stdlib.h>

#include "runtime/device/check_mode.h"

luattn_status ahead_check_memory(const args_call *c, const char *what, const char *says_size, const void *memory,
                                 size_t size, size_t need) {
  if (size < need || memory == NULL)
    return args_fail(c, "%s: memory: has %zu bytes%s, expected %zu; %s gives the size", what, size,
                     memory == NULL ? " at NULL" : "", need, says_size);
  if (((uintptr_t)memory & 255) != 0)
    return args_fail(c, "%s: memory: address %p is not a multiple of 256 bytes; align it", what, memory);
  return LUATTN_OK;
}

static luattn_status make_again(const luattn_kernel *kernel, const args_call *c, const prepared *p,
                                const ahead_part *part, cu_pointer memory, char *host, cu_stream stream) {
  const luattn_driver *d = kernel->driver;
  prepared again = *p;
  TRY(part->make(kernel, c, &again, (uintptr_t)memory, stream));
  cu_result result = d->stream_wait(stream);
  if (result == 0) result = d->copy_to_host(host, (cu_pointer)(uintptr_t)part->have, part->compared);
  if (result == 0) result = d->copy_to_host(host + part->compared, memory + part->at, part->compared);
  if (result != 0)
    return driver_fail(d, c->err, result, "cuMemcpyDtoH", "LUATTN_CHECK: reading %s of '%s'", part->what,
                       c->info->spec_name);
  return part->compare(c, p, host, host + part->compared);
}

/* Makes it in memory of its own. The device's context is current. */
static luattn_status check_made(const luattn_kernel *kernel, const args_call *c, const prepared *p,
                                const ahead_part *part, char *host, cu_stream stream) {
  const luattn_driver *d = kernel->driver;
  cu_pointer memory = 0;
  bool captured;
  TRY(check_captured(d, stream, &captured, c->err));
  if (captured) return LUATTN_OK;
  const cu_result result = d->alloc(&memory, part->size);
  if (result != 0)
    return driver_fail(d, c->err, result, "cuMemAlloc", "LUATTN_CHECK: allocating %zu bytes", part->size);
  const luattn_status status = make_again(kernel, c, p, part, memory, host, stream);
  (void)d->free(memory);
  return status;
}

luattn_status ahead_check(const luattn_kernel *kernel, const args_call *c, const prepared *p, const ahead_part *part,
                          cu_stream stream) {
  char *host = malloc(2 * part->compared);
  if (host == NULL) return luattn_fail(c->err, LUATTN_NO_MEMORY, "LUATTN_CHECK: out of memory");
  luattn_status status = driver_push(kernel->driver, kernel->context, c->err);
  if (status == LUATTN_OK) {
    status = check_made(kernel, c, p, part, host, stream);
    driver_pop(kernel->driver);
  }
  free(host);
  return status;
}
