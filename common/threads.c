#if defined(__linux__)
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "common/threads.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__linux__)
#include <sched.h>

/* 0: unknown. */
static int in_mask(void) {
  int count = 0;
  for (size_t most = CPU_SETSIZE; count == 0 && most <= 1 << 20;
       most *= 2) { /* EINVAL: the kernel's masks are larger */
    cpu_set_t *set = CPU_ALLOC(most);
    if (set == NULL) return 0;
    if (sched_getaffinity(0, CPU_ALLOC_SIZE(most), set) == 0) count = CPU_COUNT_S(CPU_ALLOC_SIZE(most), set);
    CPU_FREE(set);
  }
  return count;
}
#else
static int in_mask(void) { return 0; }
#endif

static int processors(void) {
  const int mask = in_mask();
  const long count = mask > 0 ? mask : sysconf(_SC_NPROCESSORS_ONLN);
  return count < 1 ? 1 : count > THREADS_MOST ? THREADS_MOST : (int)count;
}

/* Accepts only digits; -1: other text, or out of range. */
static int read_count(const char *text) {
  int count = 0;
  for (const char *c = text; *c != 0; c++) {
    if (*c < '0' || *c > '9') return -1;
    count = count * 10 + (*c - '0');
    if (count > THREADS_MOST) return -1;
  }
  return count > 0 ? count : -1;
}

bool threads_count(int asked, int otherwise, int *count, char *text, size_t size) {
  if (asked < 0 || asked > THREADS_MOST) {
    snprintf(text, size, "num_threads: is %d, expected 1 to %d, or 0 to leave it to LUATTN_NUM_THREADS", asked,
             THREADS_MOST);
    return false;
  }
  const char *variable = getenv("LUATTN_NUM_THREADS");
  const bool is_set = variable != NULL && variable[0] != 0;
  *count = asked > 0 ? asked : is_set ? read_count(variable) : otherwise > 0 ? otherwise : processors();
  if (*count > 0) return true;
  snprintf(text, size, "LUATTN_NUM_THREADS: is '%.40s', expected a number from 1 to %d; set it, or unset it", variable,
           THREADS_MOST);
  return false;
}
