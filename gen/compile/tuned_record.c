#include "gen/compile/tuned_record.h"

#include <stdio.h>
#include <string.h>

#include "luattn/status.h"

enum { HEAD_SIZE = sizeof "luattn tuned 1 " - 1 + 32 + 1 };

static void write_head(const char *rest, char head[HEAD_SIZE + 1]) {
  char check[33];
  hash_hex(hash_bytes(rest, strlen(rest)), check);
  snprintf(head, HEAD_SIZE + 1, "luattn tuned 1 %s\n", check);
}

void tuned_record_write(hash128 key, hash128 origin, const char *fields, char text[RECORD_SIZE]) {
  char name[33], from[33], head[HEAD_SIZE + 1];
  hash_hex(key, name);
  hash_hex(origin, from);
  snprintf(text + HEAD_SIZE, RECORD_SIZE - HEAD_SIZE, "luattn " LUATTN_VERSION "\nkey %s\norigin %s\n%s", name, from,
           fields);
  write_head(text + HEAD_SIZE, head);
  memcpy(text, head, HEAD_SIZE);
}

const char *tuned_record_read(const char *text, hash128 key, hash128 origin, bool *is_stale) {
  char head[HEAD_SIZE + 1], version[32], name[33], from[33], want[33];
  int used = 0;
  if (strlen(text) <= HEAD_SIZE) return NULL;
  write_head(text + HEAD_SIZE, head);
  if (memcmp(text, head, HEAD_SIZE) != 0) return NULL;
  if (sscanf(text + HEAD_SIZE, "luattn %31s key %32s origin %32s %n", version, name, from, &used) != 3) return NULL;
  hash_hex(key, want);
  if (strcmp(name, want) != 0) return NULL; /* copied from another name */
  hash_hex(origin, want);
  *is_stale = strcmp(version, LUATTN_VERSION) != 0 || strcmp(from, want) != 0;
  return text + HEAD_SIZE + used;
}
