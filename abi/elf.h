/* elf.h: is what a cubin says of itself within it? The driver gets a pointer to a cubin, and no size. */
#ifndef LUATTN_ABI_ELF_H
#define LUATTN_ABI_ELF_H

#include <stdbool.h>
#include <stddef.h>

/* True of what is no ELF file, of whose contents this knows nothing. */
bool elf_is_within(const void *bytes, size_t size);

#endif
