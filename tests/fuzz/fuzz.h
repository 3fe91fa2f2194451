/* fuzz.h: shared by the fuzz targets and libFuzzer's hooks. */
#ifndef LUATTN_TESTS_FUZZ_H
#define LUATTN_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Aborts if the status is not one of these two, the only errors that damaged bytes may cause. */
void fuzz_expect(int status, int allowed, int or_allowed);
/* Writes XXH3-128 of [from, to) at byte 16: otherwise nearly every mutation would fail at the checksum. */
void fuzz_mend(uint8_t *data, size_t size, size_t from, size_t to);

#endif
