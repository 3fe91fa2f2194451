#include "runtime/arch.h"

#include <stdio.h>

/* A cubin runs on its own major version from its own minor version on, PTX on every later one; with suffix a,
 * either runs on that architecture only. Nearer architectures score higher, and any cubin before PTX, which
 * the driver has to compile first. */
int arch_match(arch_code code, int device) {
  const int arch = (int)code.arch;
  if (code.suffix[0] != '\0' && arch != device) return 0;
  if (arch > device || (!code.is_ptx && arch / 10 != device / 10)) return 0;
  return (code.is_ptx ? 1000 : 2000) - (device - arch) + (code.suffix[0] != '\0');
}

void arch_text(arch_code code, char text[24]) {
  snprintf(text, 24, "%s_%u%.3s", code.is_ptx ? "compute" : "sm", (unsigned)code.arch, code.suffix);
}
