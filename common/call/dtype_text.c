#include "common/call/dtype_text.h"

#include <stdio.h>

void dtype_text(DLDataType dtype, char *text, size_t size) {
  static const char *const name[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  /* DLPack's codes behind these, whose names have the bits. */
  static const char *const narrow[] = {"float8_e3m4",     "float8_e4m3",   "float8_e4m3b11fnuz", "float8_e4m3fn",
                                       "float8_e4m3fnuz", "float8_e5m2",   "float8_e5m2fnuz",    "float8_e8m0fnu",
                                       "float6_e2m3fn",   "float6_e3m2fn", "float4_e2m1fn"};
  enum { NAMES = sizeof name / sizeof *name, NARROW = sizeof narrow / sizeof *narrow };
  const char *base = dtype.code < NAMES ? name[dtype.code] : "unknown";
  if (dtype.code >= NAMES && dtype.code < NAMES + NARROW)
    snprintf(text, size, "%s%s", narrow[dtype.code - NAMES], dtype.lanes == 1 ? "" : ", of several lanes");
  else if (dtype.lanes == 1)
    snprintf(text, size, "%s%d", base, dtype.bits);
  else
    snprintf(text, size, "%s%dx%d", base, dtype.bits, dtype.lanes);
}
