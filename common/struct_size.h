/* struct_size.h: reads and fills caller structs that carry their size, of this or of another version of
 * luattn. The policy is in luattn/status.h. */
#ifndef LUATTN_STRUCT_SIZE_H
#define LUATTN_STRUCT_SIZE_H

#include <stddef.h>

#include "common/fail.h"

/* The size rule of one public struct: bytes this luattn knows, and the least a caller must give. */
typedef struct struct_rule {
  const char *name; /* "luattn_args" */
  size_t least, known;
} struct_rule;

/* A rule for a struct that starts with its struct_size. `member` is the first that may be missing. */
#define STRUCT_RULE(type, member) {#type, offsetof(type, member), sizeof(type)}

/* Copies the caller's struct into `out`, which has rule->known bytes: what an earlier version lacks is zero
 * there. `place` starts the message: "forward". Errors: LUATTN_INVALID. */
luattn_status struct_take(const struct_rule *rule, const char *place, const void *given, void *out, luattn_error *err);

/* Fills the caller's struct from `filled`, which has rule->known bytes: a smaller struct gets the members that
 * it has, and a larger one gets zeros in members unknown to this luattn. Reads only struct_size, and does not
 * change it. Errors: LUATTN_INVALID. */
luattn_status struct_give(const struct_rule *rule, const char *place, const void *filled, void *out, luattn_error *err);

#endif
