/* failure.c: prints why a subcommand failed. */
#include "cli/cli.h"

static bool has_told; /* the reason of a failure was printed */

bool cli_has_failed(void) { return has_told; }

/* A message may quote a file: control characters become '?'. */
int cli_fail(const luattn_error *err) {
  fflush(stdout);
  has_told = true;
  fputs("luattn: ", stderr);
  for (const char *c = err->message; *c != 0; c++)
    fputc(((unsigned char)*c < 0x20 && *c != '\n' && *c != '\t') || *c == 0x7f ? '?' : *c, stderr);
  fputc('\n', stderr);
  return 1;
}
