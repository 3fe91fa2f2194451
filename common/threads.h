/* threads.h: chooses the number of threads of a call on the CPU. */
#ifndef LUATTN_THREADS_H
#define LUATTN_THREADS_H

#include <stdbool.h>
#include <stddef.h>

enum { THREADS_MOST = 1024 };

/* `asked` if it is not 0, else LUATTN_NUM_THREADS, else `otherwise`, or if that is 0 the number of processors
 * in the calling thread's affinity mask. If a value is out of range: false, with a message without its place
 * in *text. */
bool threads_count(int asked, int otherwise, int *count, char *text, size_t size);

#endif
