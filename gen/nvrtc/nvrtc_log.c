/* nvrtc_log.c: parses what ptxas reports for each entry: registers, spills, stack, and remarks that a plan
 * must not ignore. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "gen/nvrtc/nvrtc.h"

static nvrtc_entry *entry_named(nvrtc_result *out, const char *name, size_t n) {
  for (int i = 0; i < out->num_entries; i++)
    if (strlen(out->entry[i].name) == n && memcmp(out->entry[i].name, name, n) == 0) return &out->entry[i];
  const int room = (int)(sizeof out->entry / sizeof out->entry[0]);
  if (out->num_entries == room || n >= sizeof out->entry[0].name) return NULL;
  nvrtc_entry *e = &out->entry[out->num_entries++];
  memset(e, 0, sizeof *e);
  memcpy(e->name, name, n);
  return e;
}

/* The owner of the properties on the next lines: an entry, a function that entries call, or none. */
typedef struct reader {
  nvrtc_result *out;
  nvrtc_entry *entry;
  bool called;
} reader;

/* The frame of the entry itself; if it calls functions, the line of registers has the cumulative size. */
static void read_numbers(reader *r, const char *line) {
  int stack = 0, stores = 0, loads = 0, registers = 0;
  const char *numbers = line + strcspn(line, "0123456789"); /* newer NVRTCs start the line with their name */
  const char *used = strstr(line, "Used "), *cumulative = strstr(line, " bytes cumulative stack size");
  if (sscanf(numbers, "%d bytes stack frame, %d bytes spill stores, %d bytes spill loads", &stack, &stores, &loads) ==
      3) {
    const int spills = stores > loads ? stores : loads;
    if (r->called) r->out->called_spill_bytes += spills;
    if (r->entry == NULL) return;
    r->entry->stack_bytes = stack;
    r->entry->spill_bytes = spills;
  } else if (r->entry != NULL && used != NULL && sscanf(used, "Used %d registers", &registers) == 1) {
    r->entry->registers = registers;
    while (cumulative != NULL && cumulative > line && cumulative[-1] != ' ') cumulative--;
    if (cumulative != NULL && sscanf(cumulative, "%d", &stack) == 1) r->entry->stack_bytes = stack;
    r->entry = NULL;
  }
}

/*   ptxas info    : Compiling entry function 'luattn_fwd' for 'sm_80'
 *   ptxas info    : Function properties for luattn_fwd
 *       0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
 *   ptxas info    : Used 40 registers, used 1 barriers, 24 bytes cumulative stack size, 1504 bytes cmem[0]
 * Properties of functions that are called follow the same pattern, without the last line. */
static void read_line(reader *r, const char *line) {
  static const char compiling[] = "Compiling entry function '", properties[] = "Function properties for ";
  const char *at = strstr(line, compiling);
  if (at != NULL) {
    at += sizeof compiling - 1;
    r->entry = entry_named(r->out, at, strcspn(at, "'"));
    r->called = false;
    return;
  }
  at = strstr(line, properties);
  if (at == NULL) {
    read_numbers(r, line);
    return;
  }
  at += sizeof properties - 1;
  r->called = r->entry == NULL || strcmp(r->entry->name, at) != 0;
  if (r->called) r->entry = NULL;
}

void nvrtc_read_log(const char *log, nvrtc_result *out) {
  reader r = {.out = out};
  while (*log != 0) {
    char line[512];
    const size_t n = strcspn(log, "\n"), kept = n < sizeof line - 1 ? n : sizeof line - 1;
    memcpy(line, log, kept);
    line[kept] = 0;
    read_line(&r, line);
    if (out->remark == NULL && (strstr(line, "C7508") || strstr(line, "instructions are serialized")))
      out->remark = log;
    log += n + (log[n] == '\n');
  }
}
