/* fuzz.h: what the fuzz targets share with libFuzzer, and with each other. */
#ifndef LUATTN_TESTS_FUZZ_H
#define LUATTN_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Stops the program if the answer is not one of these two: the only failures that damaged bytes may lead to.
 */
void fuzz_expect(int status, int allowed, int or_allowed);
/* Puts XXH3-128 of [from, to) at byte 16: without it nearly every mutation would end at the checksum. */
void fuzz_mend(uint8_t *data, size_t size, size_t from, size_t to);

#endif
