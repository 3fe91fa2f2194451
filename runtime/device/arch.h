/* arch.h: tells which devices run code that was compiled for an architecture. Shared by images and pack
 * messages. */
#ifndef LUATTN_RUNTIME_ARCH_H
#define LUATTN_RUNTIME_ARCH_H

#include <stdbool.h>
#include <stdint.h>

/* The architecture of a cubin or PTX; `suffix` as in luattn_kernel_description. */
typedef struct arch_code {
  uint32_t arch;
  const char *suffix;
  bool is_ptx;
} arch_code;

/* Rates how well the code serves `device` (10 * major + minor): higher is better; 0: it does not run
 * there. */
int arch_match(arch_code code, int device);
/* "sm_90a", or "compute_80" for PTX. */
void arch_text(arch_code code, char text[24]);

#endif
