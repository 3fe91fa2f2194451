/* fuzz.h: shared by the fuzz targets and libFuzzer's hooks. */
#ifndef LUATTN_TESTS_FUZZ_H
#define LUATTN_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Aborts unless the status is LUATTN_OK, LUATTN_NO_MEMORY or one of these two, the errors that damaged bytes
 * may cause. */
void fuzz_expect(int status, int allowed, int or_allowed);
/* Writes XXH3-128 of bytes [from, to) at byte 16. Without it nearly every mutation would fail the
 * checksum. */
void fuzz_mend(uint8_t *data, size_t size, size_t from, size_t to);

#endif
