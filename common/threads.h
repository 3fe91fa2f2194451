/* threads.h: how many threads a call on the CPU has. */
#ifndef LUATTN_THREADS_H
#define LUATTN_THREADS_H

#include <stdbool.h>
#include <stddef.h>

enum { THREADS_MOST = 1024 };

/* `asked` if it is not 0, else LUATTN_NUM_THREADS, else `otherwise`, or where that is 0 as many as the
 * calling thread's affinity mask has processors. Where what is given is out of range: false, and in *text
 * a message without its place. */
bool threads_count(int asked, int otherwise, int *count, char *text, size_t size);

#endif
