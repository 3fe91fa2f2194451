/* start_test.c: measures the time from a program's start to its first kernel launched from a pack, not
 * counting the driver's initialisation. Links only the runtime.
 *
 * usage: gpu_start PACK [--dtype bf16|f16|f32] [--head-dim D]. Starts itself a few times; the limit for the
 * median is 20 ms. Exit: 0, 1, or 77 without a GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "luattn/pack.h"

enum { STARTS = 9, LENGTH = 300, HEADS = 4, LIMIT_MS = 20 };

typedef struct choice {
  const char *pack, *dtype;
  int head_dim;
} choice;

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Launches once, on tensors of zeros. */
static luattn_status first_launch(luattn_driver *driver, const choice *c, void *memory, luattn_error *err) {
  static const struct {
    const char *name;
    luattn_dtype dtype;
    DLDataType type;
  } known[] = {{"bf16", LUATTN_BF16, {kDLBfloat, 16, 1}},
               {"f16", LUATTN_F16, {kDLFloat, 16, 1}},
               {"f32", LUATTN_F32, {kDLFloat, 32, 1}}};
  size_t d = 0;
  while (d < 2 && strcmp(known[d].name, c->dtype) != 0) d++;
  int64_t shape[4] = {1, HEADS, LENGTH, c->head_dim};
  const size_t bytes = (size_t)HEADS * LENGTH * (size_t)c->head_dim * 4;
  DLTensor t[4];
  for (size_t i = 0; i < 4; i++)
    t[i] = (DLTensor){
        .data = (char *)memory + i * bytes, .device = {kDLCUDA, 0}, .ndim = 4, .dtype = known[d].type, .shape = shape};
  luattn_args args = {.struct_size = sizeof args, .q = &t[0], .k = &t[1], .v = &t[2], .o = &t[3]};
  const luattn_pack_query query = {.struct_size = sizeof query, .dtype = known[d].dtype, .head_dim = c->head_dim};
  luattn_pack *pack;
  luattn_kernel *kernel = NULL;
  luattn_status status = luattn_pack_open(c->pack, &pack, err);
  if (status != LUATTN_OK) return status;
  status = luattn_pack_kernel(pack, driver, 0, &query, &kernel, NULL, err);
  if (status == LUATTN_OK) status = luattn_workspace_size(kernel, &args, &args.workspace_size, err);
  args.workspace = (char *)memory + 4 * bytes; /* the rest of the block, one page */
  if (status == LUATTN_OK) status = luattn_launch(kernel, &args, NULL, err);
  if (status == LUATTN_OK) status = luattn_synchronize(driver, 0, NULL, err);
  luattn_kernel_unload(kernel);
  luattn_pack_close(pack);
  return status;
}

/* Runs as the program that was started at `start`. Prints the driver's time and the remaining time. */
static int program(const choice *c, double start) {
  luattn_driver *driver;
  luattn_error err;
  void *memory;
  const double opened = now_ms();
  if (luattn_driver_open(&driver, &err) != LUATTN_OK) return 77;
  /* The first allocation creates the context. */
  const size_t bytes = (size_t)4 * HEADS * LENGTH * (size_t)c->head_dim * 4 + 4096;
  luattn_status status = luattn_device_alloc(driver, 0, bytes, &memory, &err);
  if (status == LUATTN_OK) status = luattn_device_fill(driver, 0, memory, 0, bytes, NULL, &err);
  if (status == LUATTN_OK) status = luattn_synchronize(driver, 0, NULL, &err);
  const double ready = now_ms();
  if (status == LUATTN_OK) status = first_launch(driver, c, memory, &err);
  const double launched = now_ms();
  if (status != LUATTN_OK) {
    fprintf(stderr, "%s\n", err.message);
    return 1;
  }
  printf("%.3f %.3f\n", ready - opened, launched - start - (ready - opened));
  luattn_driver_close(driver);
  return 0;
}

/* Starts this program again and reads its output; returns its exit status. */
static int start_program(const char *self, const choice *c, double *driver_ms, double *own_ms) {
  char start[32], head_dim[16], line[64] = "";
  int out[2], status;
  if (pipe(out) != 0) return 1;
  snprintf(head_dim, sizeof head_dim, "%d", c->head_dim);
  snprintf(start, sizeof start, "%.6f", now_ms());
  const pid_t child = fork();
  if (child == 0) {
    dup2(out[1], STDOUT_FILENO);
    execl(self, self, c->pack, "--dtype", c->dtype, "--head-dim", head_dim, "--started", start, (char *)NULL);
    _exit(1);
  }
  close(out[1]);
  FILE *f = fdopen(out[0], "r");
  const int got = f != NULL && fgets(line, sizeof line, f) != NULL ? sscanf(line, "%lf %lf", driver_ms, own_ms) : 0;
  if (f != NULL) fclose(f);
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 1;
  return got == 2 || WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : 1;
}

static int compare_double(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  choice c = {.dtype = "f32", .head_dim = 64};
  const char *started = NULL;
  double driver_ms[STARTS], own_ms[STARTS];
  for (int i = 2; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--dtype") == 0) c.dtype = argv[i + 1];
    if (strcmp(argv[i], "--head-dim") == 0) c.head_dim = atoi(argv[i + 1]);
    if (strcmp(argv[i], "--started") == 0) started = argv[i + 1];
  }
  if (argc < 2 || c.head_dim < 1) return 2;
  c.pack = argv[1];
  if (started != NULL) return program(&c, strtod(started, NULL));
  for (int i = 0; i < STARTS; i++) {
    const int status = start_program("/proc/self/exe", &c, &driver_ms[i], &own_ms[i]);
    if (status == 77) printf("skipped: no GPU\n");
    if (status != 0) return status;
  }
  qsort(driver_ms, STARTS, sizeof *driver_ms, compare_double);
  qsort(own_ms, STARTS, sizeof *own_ms, compare_double);
  const int failed = own_ms[STARTS / 2] > LIMIT_MS;
  printf(
      "first launch done %.1f ms after the program's start (%.1f to %.1f), beside %.0f ms in which the "
      "driver starts; "
      "limit %d ms: %s\n",
      own_ms[STARTS / 2], own_ms[0], own_ms[STARTS - 1], driver_ms[STARTS / 2], LIMIT_MS, failed ? "FAILED" : "ok");
  return failed;
}
