#include "runtime/device/arch.h"

#include <stdio.h>

/* A cubin runs on devices with its major version and the same or a later minor version; PTX also runs on
 * every later architecture. With suffix a, either runs on that architecture only. Nearer architectures score
 * higher, and any cubin scores higher than PTX, which the driver must compile first. */
int arch_match(arch_code code, int device) {
  const int arch = (int)code.arch;
  if (code.suffix[0] != '\0' && arch != device) return 0;
  if (arch > device || (!code.is_ptx && arch / 10 != device / 10)) return 0;
  return (code.is_ptx ? 1000 : 2000) - (device - arch) + (code.suffix[0] != '\0');
}

void arch_text(arch_code code, char text[24]) {
  snprintf(text, 24, "%s_%u%.3s", code.is_ptx ? "compute" : "sm", (unsigned)code.arch, code.suffix);
}
