/* real.h: real numbers as text that programs read: sources, keys, files, options. The decimal point is '.' in
 * every locale. tests/check_numbers.cmake refuses any other way in the tree. */
#ifndef LUATTN_REAL_H
#define LUATTN_REAL_H

enum { REAL_SIZE = 32 };

/* The shortest decimal form of at least `digits` significant ones (1 to 17), less zeros at the end, that
 * reads back as x. Returns `out`. */
const char *real_write(double x, int digits, char out[REAL_SIZE]);

/* strtod: *end is `text` where no number starts there; errno is ERANGE where none of float64 is near. */
double real_read(const char *text, char **end);

#endif
