/* main.c: the subcommands of luattn. */
#define _DEFAULT_SOURCE /* madvise, sbrk */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/cli.h"
#include "common/host.h"

typedef struct command {
  const char *name;
  int bit;
  int (*run)(const cli_options *o);
  const char *usage, *help;
} command;

static const command commands[] = {
    {"run", CLI_RUN, cmd_run, "run SPEC [options]", "run a spec on arrays; write out.npy, lse.npy, dq.npy, .."},
    {"check", CLI_CHECK, cmd_check, "check SPEC [options]",
     "compare kernels, the CPU path and plain Lua; print every error beside its tolerance"},
    {"emit", CLI_EMIT, cmd_emit, "emit SPEC --stage NAME [options]", "show one stage of the pipeline"},
    {"mask", CLI_MASK, cmd_mask, "mask SPEC [options]",
     "draw which tiles of a head are empty, partial or full, and count them"},
    {"plan", CLI_PLAN, cmd_plan, "plan SPEC --ranks N [options]",
     "share a sequence out to GPUs by the tiles that its mask keeps; predict their speed"},
    {"bench", CLI_BENCH, cmd_bench, "bench SPEC [options]", "time a spec on a GPU"},
    {"tune", CLI_TUNE, cmd_tune, "tune SPEC [options]", "measure tiles on a GPU; remember the best beside the cache"},
    {"pack", CLI_PACK, cmd_pack, "pack -o FILE SPEC.. [options], or pack --list FILE",
     "compile kernels ahead of time into one file"},
    {"warm", CLI_WARM, cmd_warm, "warm SPEC.. [options]", "compile kernels into the disk cache"},
    {"cache", CLI_CACHE, cmd_cache, "cache info|prune|clear [options]", "look after the disk cache"},
    {"devices", CLI_DEVICES, cmd_devices, "devices", "list the GPUs that luattn sees"},
};
#define NUM_COMMANDS ((int)(sizeof commands / sizeof *commands))

static void print_help(FILE *to) {
  fprintf(to,
          "luattn: fused attention kernels from a small Lua file\n\n"
          "usage: luattn SUBCOMMAND ...        luattn SUBCOMMAND --help        luattn --version\n\n");
  for (int i = 0; i < NUM_COMMANDS; i++) fprintf(to, "  %-52s %s\n", commands[i].usage, commands[i].help);
  fprintf(to,
          "\na first spec, causal attention with soft-capped scores:\n\n"
          "  return attention {\n"
          "    name = \"first\",\n"
          "    score_mod = function(score, b, h, q_idx, kv_idx) return 50 * tanh(score / 50) end,\n"
          "    block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end,\n"
          "  }\n\n"
          "environment: LUATTN_CACHE_DIR, LUATTN_CACHE_SIZE, LUATTN_COMPILE_LIMIT, LUATTN_NVRTC, "
          "LUATTN_LIBCUDA, LUATTN_TEMPLATE_DIR, LUATTN_LINEINFO\n"
          "exit code: 0 done; 2 a command line of another form, as with an unknown subcommand or option, no "
          "SPEC,\n"
          "or no number for N, X or SECONDS; 1 anything else that failed, a value that is refused "
          "included\n");
}

static int run_command(const command *c, int argc, char **argv) {
  cli_options o;
  luattn_error err;
  for (int i = 0; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      printf("usage: luattn %s\n%s\n\n", c->usage, c->help);
      options_print(stdout, c->bit);
      return 0;
    }
  }
  if (options_parse(argc, argv, c->bit, c->name, &o, &err) != LUATTN_OK) {
    cli_fail(&err);
    return 2;
  }
  if (o.spec == NULL && c->bit != CLI_DEVICES) {
    fprintf(stderr, "luattn: %s: %s is missing; usage: luattn %s\n", c->name,
            c->bit == CLI_CACHE ? "info, prune or clear" : "SPEC, a Lua file,", c->usage);
    return 2;
  }
  return c->run(&o);
}

/* NVRTC writes to 40 MB of memory for one kernel, in page faults of 4 KB, which takes a twentieth of its
 * time and more under a hypervisor. So malloc gets its memory at once, as large pages where the system has
 * them. */
static void use_large_pages(void) {
#if defined(__GLIBC__) && defined(MADV_HUGEPAGE)
  enum { HEAP = 64 << 20, ABOVE_TOP = 256 << 10, APART = 32 << 20, LARGE_PAGE = 2 << 20 };
  if (!mallopt(M_TOP_PAD, HEAP) || !mallopt(M_MMAP_THRESHOLD, APART)) return;
  void *p = malloc(ABOVE_TOP); /* more than the heap has, so that it grows */
  const uintptr_t end = (uintptr_t)sbrk(0), at = ((uintptr_t)p + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
  if (p != NULL && at < end && end - at <= 2 * (uintptr_t)HEAP) madvise((void *)at, end - at, MADV_HUGEPAGE);
  free(p);
#endif
}

/* The number of a closed standard stream would go to the next file opened, and output into that file. So the
 * stream is opened in a way that makes its use fail, as it would have. */
static void keep_streams_apart(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
    if (fcntl(fd, F_GETFD) < 0) (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

static int run(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "--help";
  if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
    print_help(stdout);
    return 0;
  }
  if (strcmp(name, "--version") == 0) {
    printf("luattn %s\n", luattn_version());
    return 0;
  }
  for (int i = 0; i < NUM_COMMANDS; i++) {
    if (strcmp(name, commands[i].name) == 0) return run_command(&commands[i], argc - 2, argv + 2);
  }
  fprintf(stderr, "luattn: '%s': no such subcommand; it is one of", name);
  for (int i = 0; i < NUM_COMMANDS; i++) fprintf(stderr, " %s%s", commands[i].name, i < NUM_COMMANDS - 1 ? "," : "");
  fprintf(stderr, " (luattn --help says what each does)\n");
  return 2;
}

/* What was printed may still be in the stream's buffer, and a disk may be full. */
static int finish(int code) {
  errno = 0;
  const bool flushed = fflush(stdout) == 0;
  const int reason = errno;
  if (flushed && !ferror(stdout)) return code;
  if (!cli_has_failed()) /* the reason of an earlier write error is gone */
    fprintf(stderr, "luattn: standard output: cannot be written%s%s; give it a file or a pipe that takes it\n",
            reason != 0 ? ": " : "", reason != 0 ? strerror(reason) : "");
  return code != 0 ? code : 1;
}

/* Output has the same numbers and words whatever locale a loaded library sets. */
int main(int argc, char **argv) {
  HOST_SCOPE;
  keep_streams_apart();
  use_large_pages();
  return finish(run(argc, argv));
}
