/* set_locale.c: a preloaded library that sets the environment's locale, as some hosts do. */
#include <locale.h>
#include <stdlib.h>

__attribute__((constructor)) static void take_locale(void) {
  /* Without a decimal comma, the comparison in this test would prove nothing. */
  if (setlocale(LC_ALL, "") == NULL || localeconv()->decimal_point[0] != ',') abort();
}
