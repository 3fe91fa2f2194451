/* read_array.h: reads the array of an option from a file, and checks its type and its shape. */
#ifndef LUATTN_CLI_READ_ARRAY_H
#define LUATTN_CLI_READ_ARRAY_H

#include "cli/cli.h"

/* The expected axes of an option's file, for messages. */
typedef struct file_rule {
  const char *option, *path;
  int ndim;
  const char *axes;
  DLDataType type;
} file_rule;

/* Reads a [batch, heads, len, dim] tensor (or [batch, len, heads, dim] in a bshd file), or one of other axes. */
luattn_status read_array(const file_rule *rule, bool heads_last, array *out, luattn_error *err);
/* `from`: the option that each expected size comes from. */
luattn_status expect_shape(const char *option, const array *a, const char *const *axis, const int64_t *shape,
                           const char *const *from, luattn_error *err);

#endif
