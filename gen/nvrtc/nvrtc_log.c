/* nvrtc_log.c: what ptxas says about each entry: registers, spills, stack, and remarks that a plan must not
 * ignore. */
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

/*   ptxas info    : Compiling entry function 'luattn_fwd' for 'sm_80'
 *   ptxas info    : Function properties for luattn_fwd
 *       0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
 *   ptxas info    : Used 40 registers, used 1 barriers, 1504 bytes cmem[0]
 * Properties of functions other than entries follow the same pattern and are skipped. */
static void read_line(const char *line, nvrtc_result *out, nvrtc_entry **current) {
  static const char compiling[] = "Compiling entry function '", properties[] = "Function properties for ";
  const char *at = strstr(line, compiling);
  if (at != NULL) {
    at += sizeof compiling - 1;
    *current = entry_named(out, at, strcspn(at, "'"));
    return;
  }
  at = strstr(line, properties);
  if (at != NULL) {
    at += sizeof properties - 1;
    if (*current == NULL || strcmp((*current)->name, at) != 0) *current = NULL;
    return;
  }
  if (*current == NULL) return;
  int stack = 0, stores = 0, loads = 0, registers = 0;
  const char *numbers = line + strcspn(line, "0123456789"); /* newer NVRTCs start the line with their name */
  at = strstr(line, "Used ");
  if (sscanf(numbers, "%d bytes stack frame, %d bytes spill stores, %d bytes spill loads", &stack, &stores,
             &loads) == 3) {
    (*current)->stack_bytes = stack;
    (*current)->spill_bytes = stores > loads ? stores : loads;
  } else if (at != NULL && sscanf(at, "Used %d registers", &registers) == 1) {
    (*current)->registers = registers;
    *current = NULL;
  }
}

void nvrtc_read_log(const char *log, nvrtc_result *out) {
  nvrtc_entry *current = NULL;
  while (*log != 0) {
    char line[512];
    const size_t n = strcspn(log, "\n"), kept = n < sizeof line - 1 ? n : sizeof line - 1;
    memcpy(line, log, kept);
    line[kept] = 0;
    read_line(line, out, &current);
    if (out->remark == NULL && (strstr(line, "C7508") || strstr(line, "C7510") || strstr(line, "C7511")))
      out->remark = log;
    log += n + (log[n] == '\n');
  }
}
