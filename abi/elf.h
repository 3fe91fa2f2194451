/* elf.h: checks that everything a cubin refers to lies within the cubin. The driver gets a pointer to a
 * cubin, but no size. */
#ifndef LUATTN_ABI_ELF_H
#define LUATTN_ABI_ELF_H

#include <stdbool.h>
#include <stddef.h>

/* Returns true for bytes that are not an ELF file, without examining them. */
bool elf_is_within(const void *bytes, size_t size);

#endif
