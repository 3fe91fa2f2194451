/* real.h: converts real numbers to and from text that programs read: sources, keys, files, options. The
 * decimal point is '.' in every locale. tests/check_numbers.cmake refuses any other conversion in the
 * tree. */
#ifndef LUATTN_REAL_H
#define LUATTN_REAL_H

enum { REAL_SIZE = 32 };

/* The shortest decimal form with at least `digits` significant digits (1 to 17), without trailing zeros, that
 * reads back as x. Returns `out`. */
const char *real_write(double x, int digits, char out[REAL_SIZE]);

/* As strtod: *end is `text` if no number starts there; errno is ERANGE if the value is out of float64's
 * range. */
double real_read(const char *text, char **end);

#endif
